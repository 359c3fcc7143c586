//! [`Floors`]: the batches below which the blobs of each kind, and headers, are not served; [`KeptRange`]: the batches
//! whose blobs of a kind are all stored.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::{Mutex, MutexGuard};
use slipstream_types::{BatchNumber, BlobKind};

use crate::{
    backend::{Backend, Column, Reader},
    error::StorageError,
    schema::{self, HeadRecord, KINDS, PRUNED_HEADERS_KEY, PRUNED_KEY, PrunedRecord},
};

/// For each kind of [`KINDS`], and for headers, the batch below which the store serves nothing. A floor equals the
/// one on disk or is ahead of it. Only a backfill lowers one, to where it stored everything.
#[derive(Debug, Default)]
pub(crate) struct Floors {
    blobs: [AtomicU64; 4],
    headers: Arc<AtomicU64>,
    /// Up to where this process dropped files of headers.
    headers_dropped: AtomicU64,
    /// Held while a floor moves and its effects are applied: files below a floor must be gone before it moves down.
    moving: Mutex<()>,
}

impl Floors {
    pub(crate) fn load(backend: &dyn Backend) -> Result<Floors, StorageError> {
        let (record, headers) = (read_record(backend)?, read_headers_floor(backend)?);
        backend.forget_transactions_below(record.below[0].get());
        backend.forget_headers_below(headers.get());
        Ok(Floors {
            blobs: record.below.map(|number| AtomicU64::new(number.get())),
            headers: Arc::new(AtomicU64::new(headers.get())),
            headers_dropped: AtomicU64::default(),
            moving: Mutex::default(),
        })
    }

    /// Waits until nobody else moves a floor. Locked before the writer's lock.
    pub(crate) fn moving(&self) -> MutexGuard<'_, ()> {
        self.moving.lock()
    }

    /// Returns the floors of blobs.
    pub(crate) fn record(&self) -> PrunedRecord {
        PrunedRecord { below: std::array::from_fn(|index| self.get(index)) }
    }

    pub(crate) fn get(&self, index: usize) -> BatchNumber {
        BatchNumber::new(self.blobs[index].load(Ordering::Acquire))
    }

    pub(crate) fn headers(&self) -> BatchNumber {
        BatchNumber::new(self.headers.load(Ordering::Acquire))
    }

    /// A handle that follows the floor of headers, for views that outlive headers that they could read at first.
    pub(crate) fn of_headers(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.headers)
    }

    pub(crate) fn headers_dropped(&self) -> BatchNumber {
        BatchNumber::new(self.headers_dropped.load(Ordering::Relaxed))
    }

    pub(crate) fn set_headers_dropped(&self, below: BatchNumber) {
        self.headers_dropped.store(below.get(), Ordering::Relaxed);
    }

    pub(crate) fn set(&self, record: &PrunedRecord, headers: BatchNumber) {
        for (floor, number) in self.blobs.iter().zip(record.below) {
            floor.store(number.get(), Ordering::Release);
        }
        self.headers.store(headers.get(), Ordering::Release);
    }
}

pub(crate) fn read_record(reader: &(impl Reader + ?Sized)) -> Result<PrunedRecord, StorageError> {
    let bytes = reader.get(Column::Meta, PRUNED_KEY)?;
    Ok(bytes.map(|bytes| schema::decode("pruning record", &bytes)).transpose()?.unwrap_or_default())
}

pub(crate) fn read_headers_floor(reader: &(impl Reader + ?Sized)) -> Result<BatchNumber, StorageError> {
    let bytes = reader.get(Column::Meta, PRUNED_HEADERS_KEY)?;
    Ok(bytes.map(|bytes| schema::decode_number(&bytes)).transpose()?.unwrap_or_default())
}

/// The batches whose blobs of one kind are all stored, up to the head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptRange {
    /// The kind of blob.
    pub kind: BlobKind,
    /// The lowest of these batches above 0, or `None` if even the head's blob is gone.
    pub lowest: Option<BatchNumber>,
}

/// Computes the kept range of each kind from the records alone.
pub(crate) fn kept_ranges(head: &HeadRecord, pruned: &PrunedRecord) -> Vec<KeptRange> {
    let ranges = KINDS.into_iter().zip(head.lowest).zip(pruned.below);
    let ranges = ranges.map(|((kind, lowest), floor)| {
        let lowest = Some(lowest.max(floor)).filter(|lowest| *lowest <= head.number);
        KeptRange { kind, lowest }
    });
    ranges.collect()
}
