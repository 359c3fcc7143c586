//! [`Syncing`]: the right to wait for the disk on behalf of all, and with it to rewrite the file.
//!
//! Only its holder marks entries as being on disk. So nobody acknowledges an entry that is appended during a rewrite
//! before the new file has it. The lock that every submission needs is never held across a sync.

use std::{
    io::Write,
    sync::Arc,
    sync::atomic::Ordering::{Acquire, Release},
};

use parking_lot::MutexGuard;
use tokio::time::Instant;

use super::{
    Journal, JournalError,
    file::{replace, write_beside},
    share::{self, Fitting, Live},
};

pub(super) struct Syncing<'a> {
    journal: &'a Journal,
    _lock: MutexGuard<'a, ()>,
}

impl Journal {
    /// Blocks until nobody else waits for the disk.
    pub(super) fn syncing(&self) -> Syncing<'_> {
        Syncing { journal: self, _lock: self.syncing.lock() }
    }
}

impl Syncing<'_> {
    /// Syncs the file as it is.
    pub(super) fn sync(&self) -> Result<(), JournalError> {
        let journal = self.journal;
        let (file, appended) = {
            let inner = journal.inner.lock();
            (inner.file.clone(), journal.appended.load(Acquire))
        };
        journal.disk.sync(&file).map_err(|source| {
            journal.inner.lock().is_broken = true;
            journal.failed("sync", source)
        })?;
        journal.synced.fetch_max(appended, Release);
        Ok(())
    }

    /// Rewrites the file. If it can, it leaves `wanted` bytes of room besides the reserved bytes, by leaving out
    /// waiting transactions. Until the new file is in its place, the old one stays in use.
    pub(super) fn compact(&self, live: impl FnOnce() -> Vec<Live>, wanted: u64) -> Result<(), JournalError> {
        let journal = self.journal;
        let (kept, is_settled, reserved) = {
            let mut inner = journal.inner.lock();
            inner.compacted = Some(Instant::now());
            inner.tail = Some(Vec::new());
            (inner.kept.clone(), inner.is_settled, inner.reserved)
        };
        // Read after the tail began, so every entry from before the tail is in the pool or has left it.
        let live = live();
        let bytes_max = journal.bytes_max.saturating_sub(reserved + wanted);
        let Fitting { entries, left_out, is_tight } =
            share::fitting(&kept, is_settled, &live, bytes_max, journal.bytes_max);
        let written = write_beside(&*journal.disk, &journal.path, entries.into_iter());
        let mut inner = journal.inner.lock();
        let tail = inner.tail.take().unwrap_or_default();
        let with_tail = written.and_then(|(mut file, bytes)| file.write_all(&tail).map(|()| (file, bytes)));
        let (file, bytes) = with_tail.map_err(|source| {
            // Keeps each further sync, and each transaction that finds no room, from trying again.
            (inner.compacted_bytes, inner.is_tight) = (inner.bytes, true);
            journal.failed("write", source)
        })?;
        // The replacement may fail after the new file has taken the old one's name.
        inner.is_broken = true;
        let dir = replace(&journal.path).map_err(|source| journal.failed("write", source))?;
        let file = Arc::new(file);
        (inner.file, inner.is_tight, inner.is_broken) = (file.clone(), is_tight, false);
        (inner.bytes, inner.compacted_bytes) = (bytes + tail.len() as u64, bytes);
        journal.bytes.store(inner.bytes, Release);
        let appended = journal.appended.load(Acquire);
        drop(inner);
        if left_out > 0 {
            let path = journal.path.display();
            tracing::warn!(%path, left_out, "the transaction journal is full; dropped waiting transactions from it, \
                beginning with the senders that have the most");
        }
        // Syncs the tail first, then the name.
        let tail_synced = if tail.is_empty() { Ok(()) } else { journal.disk.sync(&file) };
        let synced = tail_synced.and_then(|()| dir.map_or(Ok(()), |dir| journal.disk.sync(&dir)));
        synced.map_err(|source| {
            journal.inner.lock().is_broken = true;
            journal.failed("sync", source)
        })?;
        journal.synced.fetch_max(appended, Release);
        Ok(())
    }
}
