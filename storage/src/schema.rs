//! Keys and values of every column, and the version of the format. docs/formats.md draws them.
//!
//! Numbers in keys are big-endian, so that the order of keys is the order of batches. Values are BCS, except blobs and
//! code, which are stored as they are.

use std::{fs, io::Write as _, path::Path as FilePath};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use slipstream_types::{
    BatchHeader, BatchNumber, BlobKind, Certificate, Digest, Path, StateKey, StateValue,
    accumulator::NodePosition, codec,
};

use crate::{backend::Column, error::StorageError};

/// The format that this release writes, and the newest that it reads.
pub(crate) const FORMAT: u32 = 1;
const FORMAT_FILE: &str = "FORMAT";
const FORMAT_PREFIX: &str = "slipstream storage format ";

/// Keys in [`Column::Meta`].
pub(crate) const HEAD_KEY: &[u8] = b"head";
pub(crate) const RESTORE_KEY: &[u8] = b"restore";

/// The kinds of blob that a batch has, in the order of [`HeadRecord::lowest`].
pub(crate) const KINDS: [BlobKind; 4] =
    [BlobKind::Body, BlobKind::Receipts, BlobKind::Delta, BlobKind::Hints];

/// Where the store stands. Written with every commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct HeadRecord {
    pub(crate) number: BatchNumber,
    pub(crate) active: StateColumn,
    /// Per kind of [`KINDS`]: from this batch on all are stored, up to the head. One above the head if none is.
    pub(crate) lowest: [BatchNumber; 4],
}

/// Which of the two state columns is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum StateColumn {
    A,
    B,
}

impl StateColumn {
    pub(crate) fn other(self) -> StateColumn {
        match self {
            StateColumn::A => StateColumn::B,
            StateColumn::B => StateColumn::A,
        }
    }

    pub(crate) fn column(self) -> Column {
        match self {
            StateColumn::A => Column::StateA,
            StateColumn::B => Column::StateB,
        }
    }
}

/// How far a restore is. Written with every chunk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct RestoreRecord {
    pub(crate) header: BatchHeader,
    pub(crate) certificate: Certificate,
    pub(crate) column: StateColumn,
    /// Where the next chunk starts; none if all rows are in.
    pub(crate) next: Option<Path>,
    pub(crate) rows: u64,
}

/// The column that holds the blobs of a kind.
pub(crate) fn blob_column(kind: BlobKind) -> Option<Column> {
    match kind {
        BlobKind::Body | BlobKind::Genesis => Some(Column::Bodies),
        BlobKind::Receipts => Some(Column::Receipts),
        BlobKind::Delta => Some(Column::Deltas),
        BlobKind::Hints => Some(Column::Hints),
        BlobKind::StateChunk => None,
    }
}

pub(crate) fn number_key(number: BatchNumber) -> [u8; 8] {
    number.0.to_be_bytes()
}

pub(crate) fn node_key(position: NodePosition) -> [u8; 9] {
    let mut key = [position.level; 9];
    key[1..].copy_from_slice(&position.index.to_be_bytes());
    key
}

/// The value of a state row: its key and its value, because a path cannot be turned back into its key.
pub(crate) fn encode_row(key: &StateKey, value: &StateValue) -> Vec<u8> {
    encode(&(key, value))
}

pub(crate) fn decode_row(bytes: &[u8]) -> Result<(StateKey, StateValue), StorageError> {
    decode("state row", bytes)
}

/// Encodes a value of our own types.
pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    codec::encode("stored value", value).expect("stored types are far below BCS's limits")
}

/// Decodes what this store wrote itself: a failure means damage, not bad input.
pub(crate) fn decode<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, StorageError> {
    codec::decode(what, bytes, usize::MAX).map_err(|error| StorageError::corrupt(error.to_string()))
}

pub(crate) fn decode_number(bytes: &[u8]) -> Result<BatchNumber, StorageError> {
    let bytes = bytes.try_into().map_err(|_| StorageError::corrupt("a batch number is not 8 bytes long"))?;
    Ok(BatchNumber(u64::from_be_bytes(bytes)))
}

pub(crate) fn decode_digest(bytes: &[u8]) -> Result<Digest, StorageError> {
    bytes.try_into().map(Digest).map_err(|_| StorageError::corrupt("a digest is not 32 bytes long"))
}

/// Position of a transaction: batch number and index.
pub(crate) fn encode_position(number: BatchNumber, index: u32) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&number.0.to_be_bytes());
    bytes[8..].copy_from_slice(&index.to_be_bytes());
    bytes
}

pub(crate) fn decode_position(bytes: &[u8]) -> Result<(BatchNumber, u32), StorageError> {
    let parts =
        bytes.split_first_chunk::<8>().and_then(|(number, rest)| Some((number, rest.try_into().ok()?)));
    let (number, index) =
        parts.ok_or_else(|| StorageError::corrupt("a transaction's position is not 12 bytes long"))?;
    Ok((BatchNumber(u64::from_be_bytes(*number)), u32::from_be_bytes(index)))
}

/// Refuses a directory that a newer release wrote, before the database is touched, and marks a fresh one as ours. A text
/// file, so that an operator can read it and no database of an unknown layout has to be opened for it.
pub(crate) fn check_format(dir: &FilePath) -> Result<(), StorageError> {
    let path = dir.join(FORMAT_FILE);
    match fs::read_to_string(&path) {
        Ok(text) => {
            let version =
                text.trim_end().strip_prefix(FORMAT_PREFIX).and_then(|version| version.parse().ok());
            match version {
                Some(found) if found > FORMAT => {
                    Err(StorageError::NewerFormat { dir: dir.to_owned(), found, supported: FORMAT })
                }
                Some(FORMAT) => Ok(()),
                _ => Err(StorageError::corrupt(format!(
                    "{} should read \"{FORMAT_PREFIX}{FORMAT}\"",
                    path.display()
                ))),
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if dir.join("db").exists() {
                return Err(StorageError::corrupt(format!(
                    "{} is missing beside a database",
                    path.display()
                )));
            }
            write_format(dir).map_err(|error| StorageError::io("write", &path, error))
        }
        Err(error) => Err(StorageError::io("read", &path, error)),
    }
}

/// Written aside and renamed, so that a kill leaves no half of it.
fn write_format(dir: &FilePath) -> std::io::Result<()> {
    let aside = dir.join("FORMAT.new");
    let mut file = fs::File::create(&aside)?;
    file.write_all(format!("{FORMAT_PREFIX}{FORMAT}\n").as_bytes())?;
    file.sync_all()?;
    fs::rename(&aside, dir.join(FORMAT_FILE))?;
    fs::File::open(dir)?.sync_all()
}
