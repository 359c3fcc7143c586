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
/// The batch below which headers were pruned; missing if none was.
pub(crate) const PRUNED_HEADERS_KEY: &[u8] = b"pruned_headers";
/// What is kept below the gap that a leap left: see [`crate::kept`]. A program version without this key still reads the
/// store correctly.
pub(crate) const KEPT_KEY: &[u8] = b"kept";
/// The first batch after which the state is still known; missing if only the head's is.
pub(crate) const HISTORY_KEY: &[u8] = b"history";
/// The batch up to which the history has entries by path; later entries are in its log. Written once there are any.
pub(crate) const SEALED_KEY: &[u8] = b"sealed";
/// The genesis is stored here and not under batch 0 among the bodies, because those are pruned by whole files.
pub(crate) const GENESIS_KEY: &[u8] = b"genesis";

/// The kinds of blob that a batch has, in the order of [`HeadRecord::lowest`].
pub(crate) const KINDS: [BlobKind; 4] =
    [BlobKind::Body, BlobKind::Receipts, BlobKind::Delta, BlobKind::Hints];

/// The store's head and what it has. Written with every commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct HeadRecord {
    pub(crate) number: BatchNumber,
    pub(crate) active: StateColumn,
    /// Per kind of [`KINDS`]: all batches from this one up to the head are stored. One above the head if none is.
    pub(crate) lowest: [BatchNumber; 4],
}

/// For each kind of [`KINDS`], the batch below which blobs are no longer served, whether or not they are still on disk.
/// Written, and synced, before anything is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PrunedRecord {
    pub(crate) below: [BatchNumber; 4],
}

/// Names one of the two state columns.
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

/// The progress of a restore. Written after the rows that it counts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct RestoreRecord {
    pub(crate) header: BatchHeader,
    pub(crate) certificate: Certificate,
    pub(crate) column: StateColumn,
    /// Paths whose rows are not stored.
    pub(crate) todo: Spans,
    /// Paths whose rows are still those of an older target.
    pub(crate) unchecked: Spans,
    /// Rows of this target.
    pub(crate) rows: u64,
    /// The part of these that came from an older target.
    pub(crate) kept: Retargeted,
}

/// Counts what a restore kept when it got another target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Retargeted {
    /// Rows that were still right.
    pub rows: u64,
    /// Bytes of these rows and their paths, which need not be fetched again.
    pub bytes: u64,
}

/// Returns the column that holds the blobs of a kind.
pub(crate) fn blob_column(kind: BlobKind) -> Option<Column> {
    match kind {
        BlobKind::Body | BlobKind::Genesis => Some(Column::Bodies),
        BlobKind::Receipts => Some(Column::Receipts),
        BlobKind::Delta => Some(Column::Deltas),
        BlobKind::Hints => Some(Column::Hints),
        BlobKind::StateChunk | BlobKind::RangeDelta | BlobKind::Piece | BlobKind::CodePack => None,
    }
}

/// Returns the index of a kind in [`KINDS`].
pub(crate) fn kind_index(kind: BlobKind) -> Option<usize> {
    KINDS.iter().position(|known| *known == kind)
}

pub(crate) fn number_key(number: BatchNumber) -> [u8; 8] {
    number.get().to_be_bytes()
}

pub(crate) fn epoch_key(epoch: Epoch) -> [u8; 8] {
    epoch.0.to_be_bytes()
}

pub(crate) fn node_key(position: NodePosition) -> [u8; 9] {
    let mut key = [position.level; 9];
    key[1..].copy_from_slice(&position.index.to_be_bytes());
    key
}

/// Returns the position that a node's key holds.
pub(crate) fn node_position(key: &[u8]) -> Option<NodePosition> {
    let (level, index) = key.split_first()?;
    Some(NodePosition { level: *level, index: u64::from_be_bytes(index.try_into().ok()?) })
}

/// Whether the header of a batch is pruned at a floor. That of the genesis never is: it names the chain.
pub(crate) fn is_header_pruned(number: BatchNumber, floor: u64) -> bool {
    (1..floor).contains(&number.get())
}

/// Whether a node is still needed after headers below `floor` are pruned. Proofs of the genesis need the siblings on
/// the way to it. Proofs of headers from `floor` on, in accumulators that end there or one earlier, need everything
/// from the sibling of that batch's own ancestor on. A restore leaves the same nodes.
pub(crate) fn is_node_needed(NodePosition { level, index }: NodePosition, floor: u64) -> bool {
    index <= 1 || index >= first_node_needed(level, floor)
}

/// Returns the first needed node of a level, apart from those for the genesis.
pub(crate) fn first_node_needed(level: u8, floor: u64) -> u64 {
    floor.checked_shr(u32::from(level)).unwrap_or(0) & !1
}

/// Returns the key of an entry of the history: path and batch.
pub(crate) fn history_key(path: &Path, batch: BatchNumber) -> [u8; 40] {
    let mut key = [0; 40];
    key[..32].copy_from_slice(&path.0);
    key[32..].copy_from_slice(&batch.get().to_be_bytes());
    key
}

/// Returns the batch in the key of an entry of the history.
pub(crate) fn history_batch(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(*key.last_chunk()?))
}

/// Encodes a state row: its key and its value, because a path cannot be turned back into its key.
pub(crate) fn encode_row(key: &StateKey, value: &StateValue) -> Vec<u8> {
    encode(&(key, value))
}

pub(crate) fn decode_row(bytes: &[u8]) -> Result<(StateKey, StateValue), StorageError> {
    decode("state row", bytes)
}

/// Encodes a value of one of this project's types.
pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    codec::encode("stored value", value).expect("stored types are far below BCS's limits")
}

/// Decodes what this store wrote itself: a failure means damage, not bad input.
pub(crate) fn decode<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, StorageError> {
    codec::decode(what, bytes, usize::MAX).map_err(|error| StorageError::corrupt(error.to_string()))
}

pub(crate) fn decode_number(bytes: &[u8]) -> Result<BatchNumber, StorageError> {
    let bytes = bytes.try_into().map_err(|_| StorageError::corrupt("a batch number is not 8 bytes long"))?;
    Ok(BatchNumber::new(u64::from_be_bytes(bytes)))
}

pub(crate) fn decode_digest(bytes: &[u8]) -> Result<Digest, StorageError> {
    bytes.try_into().map(Digest).map_err(|_| StorageError::corrupt("a digest is not 32 bytes long"))
}
