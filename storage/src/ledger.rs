//! Reads the ledger of a [`Store`]: headers, blobs, certificates, proofs, indexes, and named records.

use std::ops::ControlFlow;

use serde::de::DeserializeOwned;
use slipstream_types::{
    B256, BatchHeader, BatchNumber, Blob, BlobKind, Certificate, Digest, Genesis,
    accumulator::{self, AccumulatorRangeProof, NodePosition},
    limits,
};

use crate::{
    backend::{Column, Direction, Reader, WriteBatch},
    error::StorageError,
    nodes::{read_node, with_nodes},
    schema::{self, GENESIS_KEY},
    store::Store,
    transactions,
};

/// Maximum bytes of a [`crate::Store::put_record`] value: a batch that is executed but not agreed upon, with body,
/// receipts and delta, and some room.
pub const RECORD_BYTES_MAX: usize =
    limits::BODY_BYTES_MAX + limits::RECEIPTS_BYTES_MAX + limits::DELTA_BYTES_MAX + (8 << 20);
/// Maximum bytes of a record's name.
pub const RECORD_KEY_BYTES_MAX: usize = 256;

impl Store {
    /// Returns the genesis, decoded from batch 0's body.
    ///
    /// # Errors
    /// [`StorageError::NotInitialized`].
    pub fn genesis(&self) -> Result<Genesis, StorageError> {
        let blob = self.blob(BlobKind::Genesis, BatchNumber::GENESIS)?.ok_or(StorageError::NotInitialized)?;
        let damaged =
            |error: slipstream_types::genesis::GenesisError| StorageError::corrupt(error.to_string());
        Genesis::decode(&blob.content(BlobKind::Genesis).map_err(|error| damaged(error.into()))?)
            .map_err(damaged)
    }

    /// Returns the digest of the genesis header, which identifies the chain.
    pub(crate) fn genesis_digest(&self) -> Result<Digest, StorageError> {
        read_node(&*self.0.backend, NodePosition { level: 0, index: 0 })?.ok_or(StorageError::NotInitialized)
    }

    /// Returns a batch's header; `None` beyond the head, if it was pruned, and in the gap that a restore leaves.
    pub fn header(&self, number: BatchNumber) -> Result<Option<BatchHeader>, StorageError> {
        header_of(&*self.0.backend, self.headers_floor(), number)
    }

    /// Returns headers from `first` on without a gap: at most `count`, and at most [`limits::HEADERS_MAX`]. Stops at
    /// the first that is missing.
    pub fn headers(&self, first: BatchNumber, count: usize) -> Result<Vec<BatchHeader>, StorageError> {
        headers_of(&*self.0.backend, || self.headers_floor(), first, count)
    }

    /// Returns a part of a batch, as it was made. The genesis is batch 0's body.
    pub fn blob(&self, kind: BlobKind, number: BatchNumber) -> Result<Option<Blob>, StorageError> {
        let Some(column) = schema::blob_column(kind) else { return Ok(None) };
        let bytes = match column {
            Column::Bodies if number == BatchNumber::GENESIS => {
                self.0.backend.get(Column::Meta, GENESIS_KEY)?
            }
            _ if self.is_pruned(kind, number) => None,
            _ => self.0.backend.get(column, &schema::number_key(number))?,
        };
        bytes.map(decode_blob).transpose()
    }

    /// Returns the lowest batch above 0 from which all blobs of a kind are stored up to the head; `None` if the
    /// head's blob is missing.
    pub fn lowest(&self, kind: BlobKind) -> Result<Option<BatchNumber>, StorageError> {
        let record = self.current()?.record;
        let lowest = schema::kind_index(kind).map(|index| record.lowest[index].max(self.0.floors.get(index)));
        Ok(lowest.filter(|lowest| *lowest <= record.number))
    }

    /// Returns the certificate of exactly this batch.
    pub fn certificate(&self, number: BatchNumber) -> Result<Option<Certificate>, StorageError> {
        if self.is_header_pruned(number) {
            return Ok(None);
        }
        self.decoded("certificate", Column::Certificates, &schema::number_key(number))
    }

    /// Returns the certificate of the highest certified batch.
    pub fn latest_certificate(&self) -> Result<Option<Certificate>, StorageError> {
        self.certificate_at_or_before(BatchNumber::MAX)
    }

    /// Returns the certificate of the highest certified batch up to this one.
    pub fn certificate_at_or_before(&self, number: BatchNumber) -> Result<Option<Certificate>, StorageError> {
        let mut found = None;
        let key = schema::number_key(number);
        self.0.backend.scan(Column::Certificates, &key, Direction::Down, &mut |key, value| {
            if !self.is_header_pruned(schema::decode_number(key)?) {
                found = Some(schema::decode("certificate", value)?);
            }
            Ok(ControlFlow::Break(()))
        })?;
        Ok(found)
    }

    /// Returns the possible places of the transaction with a hash: batch, and index there. The list is
    /// empty if the transaction is unknown or pruned, or if the index is off. It rarely has more than one place. The
    /// index compares only the start of the hash: the caller compares the rest.
    ///
    /// # Errors
    /// Errors of the disk, or damage in the store.
    pub fn transaction_places(&self, hash: &B256) -> Result<Vec<(BatchNumber, u32)>, StorageError> {
        let mut places = Vec::new();
        let from = transactions::prefix(hash);
        self.0.backend.scan_alike(Column::Transactions, from, from.len(), &mut |key, _| {
            places.push(transactions::decode_place(key)?);
            Ok(ControlFlow::Continue(()))
        })?;
        // An entry outlives its batch's body until its file is compacted.
        places.retain(|(number, _)| !self.is_pruned(BlobKind::Body, *number));
        Ok(places)
    }

    /// Returns the batch whose header has this digest.
    pub fn find_header(&self, digest: &Digest) -> Result<Option<BatchNumber>, StorageError> {
        let bytes = self.0.backend.get(Column::HeaderIndex, &digest.0)?;
        let number = bytes.map(|bytes| schema::decode_number(&bytes)).transpose()?;
        // An entry outlives its header until its file is compacted.
        Ok(number.filter(|number| !self.is_header_pruned(*number)))
    }

    fn is_header_pruned(&self, number: BatchNumber) -> bool {
        schema::is_header_pruned(number, self.headers_floor().get())
    }

    /// Proves `count` headers from `first` on in the accumulator over the first `leaves` headers.
    ///
    /// # Errors
    /// [`StorageError::Accumulator`] if the range is not inside, or nodes are missing because the store was restored.
    pub fn header_range_proof(
        &self,
        leaves: u64,
        first: BatchNumber,
        count: usize,
    ) -> Result<AccumulatorRangeProof, StorageError> {
        range_proof_of(&*self.0.backend, leaves, first, count)
    }

    /// Returns a small named record of another crate.
    pub fn record(&self, key: &str) -> Result<Option<Vec<u8>>, StorageError> {
        self.0.backend.get(Column::Records, key.as_bytes())
    }

    /// Returns the named records from the first to the last, both included, in the order of their names' bytes.
    ///
    /// # Errors
    /// Errors of the disk, or damage in the store.
    pub fn records(&self, first: &str, last: &str) -> Result<Vec<(String, Vec<u8>)>, StorageError> {
        let mut found = Vec::new();
        self.0.backend.scan(Column::Records, first.as_bytes(), Direction::Up, &mut |key, value| {
            if key > last.as_bytes() {
                return Ok(ControlFlow::Break(()));
            }
            let name = String::from_utf8(key.to_vec())
                .map_err(|_| StorageError::corrupt("a record's name is not text"))?;
            found.push((name, value.to_vec()));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found)
    }

    /// Sets a named record. It is on disk when this returns (with `fsync`).
    ///
    /// # Errors
    /// [`StorageError::RecordTooLong`] above [`RECORD_BYTES_MAX`], or [`RECORD_KEY_BYTES_MAX`] for the name.
    pub fn put_record(&self, key: &str, value: &[u8]) -> Result<(), StorageError> {
        self.write(record_write(key, value)?, true)
    }

    /// Sets a named record that the ledger can recreate. It is not synced, so a crash may lose
    /// the last records, and setting many of them is cheap.
    ///
    /// # Errors
    /// Those of [`Store::put_record`].
    pub fn put_derived_record(&self, key: &str, value: &[u8]) -> Result<(), StorageError> {
        self.write(record_write(key, value)?, false)
    }

    /// Removes the records whose names lie from the first to the last, both included, in the order of their bytes. A
    /// crash may bring the last of them back, so use this for records that are derived or no longer needed.
    ///
    /// # Errors
    /// Errors of the disk, or damage in the store.
    pub fn remove_records(&self, first: &str, last: &str) -> Result<(), StorageError> {
        let mut writes = WriteBatch::default();
        self.0.backend.scan(Column::Records, first.as_bytes(), Direction::Up, &mut |name, _| {
            if name > last.as_bytes() {
                return Ok(ControlFlow::Break(()));
            }
            // RocksDB splits overlapping range deletions at each other's ends. If many range deletions start at one
            // name and held snapshots keep them apart, a flush costs the square of their number.
            writes.delete(Column::Records, name);
            Ok(ControlFlow::Continue(()))
        })?;
        if writes.0.is_empty() { Ok(()) } else { self.write_unguarded(writes, false) }
    }

    fn decoded<T: DeserializeOwned>(
        &self,
        what: &'static str,
        column: Column,
        key: &[u8],
    ) -> Result<Option<T>, StorageError> {
        self.0.backend.get(column, key)?.map(|bytes| schema::decode(what, &bytes)).transpose()
    }
}

/// As [`Store::header`], on any reader, with the floor of its headers.
pub(crate) fn header_of(
    reader: &dyn Reader,
    floor: BatchNumber,
    number: BatchNumber,
) -> Result<Option<BatchHeader>, StorageError> {
    if schema::is_header_pruned(number, floor.get()) {
        return Ok(None);
    }
    let bytes = reader.get(Column::Headers, &schema::number_key(number))?;
    bytes.map(|bytes| schema::decode("header", &bytes)).transpose()
}

/// As [`Store::headers`], on any reader. Asks for the floor of headers before each header, because a store's floor
/// moves on meanwhile.
pub(crate) fn headers_of(
    reader: &dyn Reader,
    floor: impl Fn() -> BatchNumber,
    first: BatchNumber,
    count: usize,
) -> Result<Vec<BatchHeader>, StorageError> {
    let count = count.min(limits::HEADERS_MAX);
    let mut headers: Vec<BatchHeader> = Vec::new();
    if count == 0 {
        return Ok(headers);
    }
    reader.scan(Column::Headers, &schema::number_key(first), Direction::Up, &mut |key, value| {
        let number = schema::decode_number(key)?;
        let is_next = number == first.after(headers.len() as u64);
        if !is_next || schema::is_header_pruned(number, floor().get()) {
            return Ok(ControlFlow::Break(()));
        }
        headers.push(schema::decode("header", value)?);
        Ok(if headers.len() == count { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(headers)
}

/// As [`Store::header_range_proof`], on any reader.
pub(crate) fn range_proof_of(
    reader: &dyn Reader,
    leaves: u64,
    first: BatchNumber,
    count: usize,
) -> Result<AccumulatorRangeProof, StorageError> {
    Ok(with_nodes(reader, |node| accumulator::prove(leaves, first.get(), count, &node))??)
}

pub(crate) fn record_write(key: &str, value: &[u8]) -> Result<WriteBatch, StorageError> {
    for (len, max) in [(key.len(), RECORD_KEY_BYTES_MAX), (value.len(), RECORD_BYTES_MAX)] {
        if len > max {
            let key = key.chars().take(80).collect();
            return Err(StorageError::RecordTooLong { key, len, max });
        }
    }
    let mut writes = WriteBatch::default();
    writes.put(Column::Records, key.as_bytes(), value);
    Ok(writes)
}

/// Decodes a blob as it was stored. The caller that opens it checks its content.
pub(crate) fn decode_blob(bytes: Vec<u8>) -> Result<Blob, StorageError> {
    Blob::from_bytes(bytes).map_err(|error| StorageError::corrupt(error.to_string()))
}
