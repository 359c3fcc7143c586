//! [`Claim`]: the part of a [`Load`] that one thread reads exclusively. Other threads that need the same keys wait.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use alloy_primitives::{B256, Bytes};
use slipstream_storage::StateReader;
use slipstream_types::{Digest, StateValue, state::ROW_BYTES_MAX};

use super::{ABSENT, Cell, Code, FOUND, Load, QUEUED};

/// Keys that one thread reads. If the claim is dropped before it publishes, after an error or a panic, the keys are
/// queued again.
pub(super) struct Claim<'a, R: StateReader> {
    load: &'a Load<R>,
    places: Vec<usize>,
}

impl<'a, R: StateReader> Claim<'a, R> {
    /// Claims indexes that this thread changed from queued to loading.
    pub(super) fn new(load: &'a Load<R>, places: Vec<usize>) -> Self {
        Self { load, places }
    }

    pub(super) fn places(&self) -> &[usize] {
        &self.places
    }

    pub(super) fn publish(mut self, rows: Vec<Option<StateValue>>) {
        let places = std::mem::take(&mut self.places);
        self.load.bytes.fetch_add(places.len() * (size_of::<Cell>() + ROW_BYTES_MAX), Relaxed);
        for (place, row) in places.into_iter().zip(rows) {
            let cell = &self.load.cells[place];
            // No other thread claimed this cell, so its row is set once.
            cell.row.get_or_init(|| row);
            cell.state.store(if row.is_some() { FOUND } else { ABSENT }, SeqCst);
        }
    }
}

impl<R: StateReader> Drop for Claim<'_, R> {
    fn drop(&mut self) {
        for place in &self.places {
            self.load.cells[*place].state.store(QUEUED, SeqCst);
        }
        self.load.wake();
    }
}

/// As [`Claim`], for code.
pub(super) struct CodeClaim<'a, R: StateReader> {
    load: &'a Load<R>,
    hashes: Vec<Digest>,
}

impl<'a, R: StateReader> CodeClaim<'a, R> {
    /// Claims code that this thread marked as loading.
    pub(super) fn new(load: &'a Load<R>, hashes: Vec<Digest>) -> Self {
        Self { load, hashes }
    }

    pub(super) fn hashes(&self) -> &[Digest] {
        &self.hashes
    }

    pub(super) fn publish(mut self, found: Vec<Option<Bytes>>) {
        let hashes = std::mem::take(&mut self.hashes);
        let mut codes = self.load.codes.lock();
        for (hash, code) in hashes.into_iter().zip(found) {
            self.load.bytes.fetch_add(code.as_ref().map_or(0, |code| code.len()), Relaxed);
            codes.by_hash.insert(hash.into(), Code::Read(code));
        }
    }
}

impl<R: StateReader> Drop for CodeClaim<'_, R> {
    fn drop(&mut self) {
        let mut codes = self.load.codes.lock();
        for hash in &self.hashes {
            codes.by_hash.remove(&B256::from(*hash));
        }
        drop(codes);
        self.load.wake();
    }
}
