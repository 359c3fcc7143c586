//! Keys and values of every column. docs/formats.md draws them.
//!
//! Numbers in keys are big-endian, so that the order of keys is the order of batches. Values are BCS, except blobs and
//! code, which are stored as they are.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use slipstream_types::{
    BatchHeader, BatchNumber, BlobKind, Certificate, Digest, Epoch, Path, StateKey, StateValue,
    accumulator::NodePosition, codec,
};

use crate::{column::Column, error::StorageError, spans::Spans};

/// Keys in [`Column::Meta`].
pub(crate) const HEAD_KEY: &[u8] = b"head";
pub(crate) const RESTORE_KEY: &[u8] = b"restore";
pub(crate) const PRUNED_KEY: &[u8] = b"pruned";
/// The first batch behind which the state is still known; missing if that is the head alone.
pub(crate) const HISTORY_KEY: &[u8] = b"history";
/// Up to this batch the history has entries by path; what it lacks behind is in its log. Written once there is something behind.
pub(crate) const SEALED_KEY: &[u8] = b"sealed";
/// The genesis stands here and not in batch 0's place among the bodies, because those are pruned by whole files.
pub(crate) const GENESIS_KEY: &[u8] = b"genesis";

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

/// How far the ledger's blobs were pruned: per kind of [`KINDS`], those of batches below this one are not served, whether
/// they are still on disk or not. Written, and synced, before anything is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PrunedRecord {
    pub(crate) below: [BatchNumber; 4],
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

/// How far a restore is. Written after the rows that it counts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct RestoreRecord {
    pub(crate) header: BatchHeader,
    pub(crate) certificate: Certificate,
    pub(crate) column: StateColumn,
    /// Paths whose rows are not stored.
    pub(crate) todo: Spans,
    /// Paths whose rows are those of an older target.
    pub(crate) unchecked: Spans,
    /// Rows of this target.
    pub(crate) rows: u64,
    /// Of these, from an older target.
    pub(crate) kept: Retargeted,
}

/// What a restore kept when it got another target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Retargeted {
    /// Rows that were still right.
    pub rows: u64,
    /// Their bytes, paths included: what did not have to be fetched again.
    pub bytes: u64,
}

/// The column that holds the blobs of a kind.
pub(crate) fn blob_column(kind: BlobKind) -> Option<Column> {
    match kind {
        BlobKind::Body | BlobKind::Genesis => Some(Column::Bodies),
        BlobKind::Receipts => Some(Column::Receipts),
        BlobKind::Delta => Some(Column::Deltas),
        BlobKind::Hints => Some(Column::Hints),
        BlobKind::StateChunk | BlobKind::RangeDelta => None,
    }
}

/// The place of a kind in [`KINDS`].
pub(crate) fn kind_index(kind: BlobKind) -> Option<usize> {
    KINDS.iter().position(|known| *known == kind)
}

pub(crate) fn number_key(number: BatchNumber) -> [u8; 8] {
    number.0.to_be_bytes()
}

pub(crate) fn epoch_key(epoch: Epoch) -> [u8; 8] {
    epoch.0.to_be_bytes()
}

pub(crate) fn node_key(position: NodePosition) -> [u8; 9] {
    let mut key = [position.level; 9];
    key[1..].copy_from_slice(&position.index.to_be_bytes());
    key
}

/// An entry of the history: path and batch.
pub(crate) fn history_key(path: &Path, batch: BatchNumber) -> [u8; 40] {
    let mut key = [0; 40];
    key[..32].copy_from_slice(&path.0);
    key[32..].copy_from_slice(&batch.0.to_be_bytes());
    key
}

/// The batch in such a key, for whoever drops old ones or looks for one.
pub(crate) fn history_batch(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(*key.last_chunk()?))
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
