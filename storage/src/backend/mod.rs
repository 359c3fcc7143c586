//! The seam below the store: ordered columns of bytes, atomic writes, frozen reads. Two implementations, one behaviour:
//! [`rocks`] on disk and [`memory`] for tests and simulation. Nothing above knows which one it runs on.

pub(crate) mod memory;
pub(crate) mod rocks;

use std::{ops::ControlFlow, sync::Arc};

use crate::error::StorageError;

/// A column family. Keys and values are described in [`crate::schema`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Column {
    /// Head and restore records.
    Meta,
    /// Batch number to header.
    Headers,
    /// Header digest to batch number.
    HeaderIndex,
    /// Accumulator nodes.
    Nodes,
    /// Batch number to certificate.
    Certificates,
    /// Batch number to body blob; the genesis at 0.
    Bodies,
    /// Batch number to receipts blob.
    Receipts,
    /// Batch number to delta blob.
    Deltas,
    /// Batch number to hints blob.
    Hints,
    /// Transaction hash to batch number and index.
    TransactionIndex,
    /// Keccak-256 to contract code.
    Codes,
    /// Hashes of the code that a restore still needs.
    MissingCodes,
    /// Named records of other crates.
    Records,
    /// State rows by path; the head record says whether this column or the other one is in use.
    StateA,
    /// See [`Column::StateA`].
    StateB,
}

impl Column {
    /// Every column. Its place here is its index in the in-memory twin.
    pub(crate) const ALL: [Column; 15] = [
        Column::Meta,
        Column::Headers,
        Column::HeaderIndex,
        Column::Nodes,
        Column::Certificates,
        Column::Bodies,
        Column::Receipts,
        Column::Deltas,
        Column::Hints,
        Column::TransactionIndex,
        Column::Codes,
        Column::MissingCodes,
        Column::Records,
        Column::StateA,
        Column::StateB,
    ];

    /// The column family's name on disk.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Column::Meta => "default",
            Column::Headers => "headers",
            Column::HeaderIndex => "header_index",
            Column::Nodes => "nodes",
            Column::Certificates => "certificates",
            Column::Bodies => "bodies",
            Column::Receipts => "receipts",
            Column::Deltas => "deltas",
            Column::Hints => "hints",
            Column::TransactionIndex => "transaction_index",
            Column::Codes => "codes",
            Column::MissingCodes => "missing_codes",
            Column::Records => "records",
            Column::StateA => "state_a",
            Column::StateB => "state_b",
        }
    }
}

/// One change of a [`WriteBatch`].
#[derive(Debug)]
pub(crate) enum Write {
    Put(Column, Vec<u8>, Vec<u8>),
    Delete(Column, Vec<u8>),
    /// Deletes every key of the column.
    Clear(Column),
}

/// Changes that happen together or not at all, in order.
#[derive(Debug, Default)]
pub(crate) struct WriteBatch(pub(crate) Vec<Write>);

impl WriteBatch {
    pub(crate) fn put(&mut self, column: Column, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.0.push(Write::Put(column, key.into(), value.into()));
    }

    pub(crate) fn delete(&mut self, column: Column, key: impl Into<Vec<u8>>) {
        self.0.push(Write::Delete(column, key.into()));
    }

    pub(crate) fn clear(&mut self, column: Column) {
        self.0.push(Write::Clear(column));
    }
}

/// Which way a scan goes. Its first key is included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Up,
    Down,
}

/// What a scan calls per row; it stops at `Break` or at an error.
pub(crate) type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, StorageError> + 'a;

/// Reads. A backend itself shows the latest writes, its snapshots and checkpoints one moment.
pub(crate) trait Reader: Send + Sync {
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError>;

    /// The values of keys that are sorted, in their order.
    fn multi_get(&self, column: Column, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, StorageError>;

    fn scan(
        &self,
        column: Column,
        from: &[u8],
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), StorageError>;
}

/// A checkpoint under its number.
pub(crate) type NumberedReader = (u64, Arc<dyn Reader>);

/// Writes and frozen reads.
pub(crate) trait Backend: Reader {
    /// Makes all changes or none. A durable write has reached the disk when this returns, and so have all before it.
    fn write(&self, batch: WriteBatch, durable: bool) -> Result<(), StorageError>;

    /// A frozen view, as long as this process lives.
    fn snapshot(&self) -> Arc<dyn Reader>;

    /// A frozen view under a number, which also outlives the process if the backend itself does.
    fn checkpoint(&self, number: u64) -> Result<Arc<dyn Reader>, StorageError>;

    /// The checkpoints of earlier runs, by ascending number.
    fn checkpoints(&self) -> Result<Vec<NumberedReader>, StorageError>;

    /// Frees a checkpoint once its last reader is dropped.
    fn remove_checkpoint(&self, number: u64) -> Result<(), StorageError>;
}
