//! [`Blobs`]: a range of the ledger, read as it is stored. Serving a range costs one pass over adjacent blocks and a
//! copy; nothing is decoded.

use std::{collections::VecDeque, ops::ControlFlow};

use slipstream_types::{BatchNumber, Blob, BlobKind};

use crate::{backend::Direction, error::StorageError, ledger::decode_blob, schema, store::Store};

/// Bytes that are read at once. More would be wasted when a range ends early; fewer would cost more seeks.
const PAGE_BYTES: usize = 2 << 20;
/// Maximum number of blobs that are read at once; bounds the memory for small ones.
const PAGE_BLOBS: usize = 256;

/// Iterates over the blobs of one kind from a batch on, in order. Skips batches without one. Blobs that are pruned
/// meanwhile are missing.
pub struct Blobs<'a> {
    store: &'a Store,
    kind: BlobKind,
    /// Where the next page starts; `None` after the last.
    next: Option<BatchNumber>,
    /// Number of batches that may still be read.
    left: u64,
    page: VecDeque<(BatchNumber, Blob)>,
}

impl Store {
    /// Returns the blobs of one kind of the `count` batches from `first` on.
    pub fn blobs(&self, kind: BlobKind, first: BatchNumber, count: usize) -> Blobs<'_> {
        Blobs { store: self, kind, next: Some(first), left: count as u64, page: VecDeque::new() }
    }
}

impl Blobs<'_> {
    /// Returns the blob of exactly this batch, or `None` if it is not stored. Callers ask for batches in ascending order.
    pub fn of(&mut self, number: BatchNumber) -> Result<Option<Blob>, StorageError> {
        loop {
            while self.page.front().is_some_and(|(found, _)| *found < number) {
                self.page.pop_front();
            }
            if let Some((found, _)) = self.page.front() {
                let found = *found == number;
                return Ok(if found { self.page.pop_front().map(|(_, blob)| blob) } else { None });
            }
            if self.next.is_none() {
                return Ok(None);
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> Result<(), StorageError> {
        let (Some(first), Some(column)) = (self.next.take(), schema::blob_column(self.kind)) else {
            return Ok(());
        };
        let end = first.after(self.left);
        if end == first {
            return Ok(());
        }
        if first == BatchNumber::GENESIS {
            // The genesis is stored elsewhere.
            self.page.extend(self.store.blob(self.kind, first)?.map(|blob| (first, blob)));
            (self.next, self.left) = (Some(first.next()), end.since(first.next()));
            return Ok(());
        }
        let from = first.max(self.store.floor(self.kind));
        let (page, mut bytes) = (&mut self.page, 0);
        self.store.0.backend.scan(column, &schema::number_key(from), Direction::Up, &mut |key, value| {
            let number = schema::decode_number(key)?;
            if number >= end {
                return Ok(ControlFlow::Break(()));
            }
            if bytes >= PAGE_BYTES || page.len() == PAGE_BLOBS {
                (self.next, self.left) = (Some(number), end.since(number));
                return Ok(ControlFlow::Break(()));
            }
            bytes += value.len();
            page.push_back((number, decode_blob(value.to_vec())?));
            Ok(ControlFlow::Continue(()))
        })
    }
}

impl Iterator for Blobs<'_> {
    type Item = Result<(BatchNumber, Blob), StorageError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.page.is_empty() && self.next.is_some() {
            if let Err(error) = self.fill() {
                return Some(Err(error));
            }
        }
        self.page.pop_front().map(Ok)
    }
}
