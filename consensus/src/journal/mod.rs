//! [`Journal`]: the transactions that users of this node were told are taken, in a file that outlives it.
//!
//! ```text
//! "slipstream journal 1\n"  then for each  length u32 │ checksum 8 │ envelope      little-endian; first 8 bytes of Keccak-256
//! ```
//!
//! A caller that acknowledges a transaction reserves its room before the pool takes it, and then appends it. Before the answer leaves, it
//! waits for [`Journal::sync`] once for all its transactions. When the file has grown, it is rewritten with the transactions still in the
//! pool. In a full file, waiting transactions (for a nonce or for funds) keep an eighth. So transactions that may never execute cannot keep
//! others out. Opening cuts a torn end off, passes over damaged entries, and reports both.

mod file;
mod share;
#[cfg(test)]
mod tests;

use std::{
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Release},
        },
    },
    time::Duration,
};

use parking_lot::Mutex;
use slipstream_types::limits::TRANSACTION_BYTES_MAX;
use tokio::time::Instant;

use self::file::{Recovered, entry, entry_bytes, recover, rewrite};
use self::share::Fitting;
pub(crate) use self::share::Live;

/// A file that is shorter is not written anew to save room.
const COMPACT_BYTES_MIN: u64 = 1 << 20;
/// A file that was written anew and is full again is not written anew for every transaction that finds it so.
const COMPACT_INTERVAL: Duration = Duration::from_secs(10);
/// The same after a failure.
const REPAIR_INTERVAL: Duration = Duration::from_secs(1);
/// One sender's transactions may take this share of the file, as a divisor, and one of the longest always.
const SENDER_SHARE: u64 = 16;

/// Why a transaction could not be written down.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The disk fails.
    #[error("cannot {action} the transaction journal {}: {source}; free some room, or set consensus.pool.journal_mib to 0 to do without", path.display())]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// Path of the journal's file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// It is full of transactions that are still in the pool.
    #[error(
        "the journal of this node's transactions is full: {bytes} bytes of at most {bytes_max}; retry later"
    )]
    Full {
        /// Bytes in the journal.
        bytes: u64,
        /// [`PoolConfig::journal_mib`](crate::PoolConfig::journal_mib) in bytes.
        bytes_max: u64,
    },
    /// The sender has as much in it as one may.
    #[error(
        "the sender's transactions take {bytes} bytes of this node's journal, of at most {bytes_max}; retry when some are executed"
    )]
    SenderFull {
        /// Bytes of the sender's transactions of this node's users.
        bytes: u64,
        /// The most that one sender may have.
        bytes_max: u64,
    },
}

/// The file. One process has it, which holds the data directory's lock.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    bytes_max: u64,
    /// Locked while the file is written to or rewritten, which waits for the disk. Threads that must not wait leave it alone.
    inner: Mutex<Inner>,
    /// Held by the one that waits for the disk in the name of all.
    syncing: Mutex<()>,
    /// Entries ever appended; changed under `inner`.
    appended: AtomicU64,
    /// How many of these are on the disk.
    synced: AtomicU64,
    /// Length of the file.
    bytes: AtomicU64,
    has_kept: AtomicBool,
}

#[derive(Debug)]
struct Inner {
    file: Arc<File>,
    bytes: u64,
    /// Set aside for entries that are about to be appended.
    reserved: u64,
    /// Its length when it was written anew, and when that was last tried.
    compacted_bytes: u64,
    compacted: Option<Instant>,
    /// The last rewrite lacked room for all, so rewriting again soon would free none.
    is_tight: bool,
    /// Entries from before the start that are in no pool yet.
    kept: Vec<Vec<u8>>,
    /// The pool has seen the kept transactions at least once.
    is_settled: bool,
    /// A write failed: the content of the file is unknown, and so is whether this handle is still the file's.
    is_broken: bool,
}

/// Room for one entry. Dropping it gives the room back.
#[derive(Debug)]
#[must_use]
pub(crate) struct Place<'a> {
    journal: &'a Journal,
    bytes: u64,
}

impl Journal {
    /// Opens the file or makes one, and says what it holds.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub fn open(path: &Path, bytes_max: u64) -> Result<Journal, JournalError> {
        let failed = |action| move |source| JournalError::Io { action, path: path.to_owned(), source };
        let mut bytes = Vec::new();
        match File::open(path) {
            Ok(mut file) => drop(file.read_to_end(&mut bytes).map_err(failed("read"))?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(failed("open")(source)),
        }
        let Recovered { transactions, damaged_bytes } = recover(&bytes);
        if damaged_bytes > 0 {
            let (path, entries) = (path.display(), transactions.len());
            tracing::warn!(%path, damaged_bytes, entries, "the transaction journal is damaged; its whole entries are kept");
        }
        // A new file, without the damaged part: the handle then appends to a known end.
        let (file, bytes) = rewrite(path, transactions.iter().map(Vec::as_slice)).map_err(failed("write"))?;
        let has_kept = AtomicBool::new(!transactions.is_empty());
        let inner = Inner {
            file: Arc::new(file),
            bytes,
            reserved: 0,
            compacted_bytes: bytes,
            compacted: None,
            is_tight: false,
            kept: transactions,
            is_settled: false,
            is_broken: false,
        };
        Ok(Journal {
            path: path.to_owned(),
            bytes_max,
            inner: Mutex::new(inner),
            syncing: Mutex::new(()),
            appended: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            bytes: AtomicU64::new(bytes),
            has_kept,
        })
    }

    /// Makes the file of a node that has not started yet, so that it starts with these envelopes to be executed.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write<'a>(path: &Path, envelopes: impl Iterator<Item = &'a [u8]>) -> Result<(), JournalError> {
        let failed = |source| JournalError::Io { action: "write", path: path.to_owned(), source };
        rewrite(path, envelopes).map(drop).map_err(failed)
    }

    /// Returns the file's transactions of before the start that are unsettled. Blocks.
    pub(crate) fn recovered(&self) -> Vec<Vec<u8>> {
        self.inner.lock().kept.clone()
    }

    /// Whether there is any of it. Never blocks.
    pub(crate) fn has_recovered(&self) -> bool {
        self.has_kept.load(Acquire)
    }

    /// Of the file's entries that are in no pool, only `kept` is still kept. Rewrites the file with these and the pool's transactions.
    /// Blocks.
    ///
    /// # Errors
    /// If it cannot be written; then it is written before anything else is.
    pub(crate) fn settle(
        &self,
        kept: Vec<Vec<u8>>,
        live: impl FnOnce() -> Vec<Live>,
    ) -> Result<(), JournalError> {
        let mut inner = self.inner.lock();
        self.has_kept.store(!kept.is_empty(), Release);
        (inner.kept, inner.is_settled) = (kept, true);
        self.compact(&mut inner, live(), 0)
    }

    /// Bytes of the file. Never blocks.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Acquire)
    }

    /// Sets room aside for a transaction that the pool is about to take, whose sender has `sender_bytes` of this node's users' transactions in
    /// the pool. `live` says what the pool has of them, in case the file is to be written anew. Blocks.
    ///
    /// # Errors
    /// If the journal is full, or the file is not writable.
    pub(crate) fn reserve(
        &self,
        raw_len: usize,
        sender_bytes: u64,
        live: impl FnOnce() -> Vec<Live>,
    ) -> Result<Place<'_>, JournalError> {
        let bytes = entry_bytes(raw_len);
        let sender_bytes_max = (self.bytes_max / SENDER_SHARE).max(entry_bytes(TRANSACTION_BYTES_MAX));
        if sender_bytes + bytes > sender_bytes_max {
            return Err(JournalError::SenderFull { bytes: sender_bytes, bytes_max: sender_bytes_max });
        }
        let mut inner = self.inner.lock();
        let wanted = inner.reserved + bytes;
        let is_over = inner.bytes + wanted > self.bytes_max;
        let has_doubled = inner.bytes + wanted > (2 * inner.compacted_bytes).max(COMPACT_BYTES_MIN);
        if inner.is_broken || is_over || has_doubled {
            self.check_compact(&inner, is_over)?;
            self.compact(&mut inner, live(), wanted)?;
            if inner.bytes + wanted > self.bytes_max {
                return Err(self.full(&inner));
            }
        }
        inner.reserved = wanted;
        Ok(Place { journal: self, bytes })
    }

    /// Returns when everything that was appended before is on the disk. Blocks; those who wait at once share one write. A file whose write
    /// failed is not believed again: it is written anew, with what `live` says.
    ///
    /// # Errors
    /// If the disk refuses: then it is unknown what of it there is.
    pub(crate) fn sync(&self, live: impl FnOnce() -> Vec<Live>) -> Result<(), JournalError> {
        let wanted = self.appended.load(Acquire);
        let _syncing = self.syncing.lock();
        if self.synced.load(Acquire) >= wanted {
            return Ok(());
        }
        let (file, appended) = {
            let mut inner = self.inner.lock();
            if inner.is_broken {
                // The system tells of what it could not write once, and then forgets it.
                self.check_compact(&inner, false)?;
                return self.compact(&mut inner, live(), 0);
            }
            (inner.file.clone(), self.appended.load(Acquire))
        };
        if let Err(source) = file.sync_data() {
            let mut inner = self.inner.lock();
            // One that was written anew meanwhile is on the disk with all that was in this one.
            if Arc::ptr_eq(&inner.file, &file) {
                inner.is_broken = true;
                return Err(self.failed("sync", source));
            }
        }
        self.synced.fetch_max(appended, Release);
        Ok(())
    }

    /// Whether everything that was appended is on the disk. Never blocks.
    pub(crate) fn is_synced(&self) -> bool {
        self.synced.load(Acquire) >= self.appended.load(Acquire)
    }

    /// Whether the file may be written anew now. One that has doubled since always may: that costs no more than its appends did.
    fn check_compact(&self, inner: &Inner, is_over: bool) -> Result<(), JournalError> {
        let elapsed = inner.compacted.map_or(Duration::MAX, |compacted| compacted.elapsed());
        if inner.is_broken && elapsed < REPAIR_INTERVAL {
            return Err(self.broken());
        }
        let has_grown = inner.bytes.saturating_sub(inner.compacted_bytes) >= self.bytes_max / 4;
        let is_tight = inner.is_tight && !has_grown;
        if is_over && is_tight && !inner.is_broken && elapsed < COMPACT_INTERVAL {
            return Err(self.full(inner));
        }
        Ok(())
    }

    fn full(&self, inner: &Inner) -> JournalError {
        JournalError::Full { bytes: inner.bytes, bytes_max: self.bytes_max }
    }

    fn broken(&self) -> JournalError {
        let source = io::Error::other("an earlier write failed, and the next attempt is a moment away");
        self.failed("write", source)
    }

    /// Writes the file anew, and leaves `wanted` bytes of room if leaving out what waits can.
    fn compact(&self, inner: &mut Inner, live: Vec<Live>, wanted: u64) -> Result<(), JournalError> {
        inner.compacted = Some(Instant::now());
        // Until it has succeeded: it may fail after the new file is in the place of the old one.
        inner.is_broken = true;
        let bytes_max = self.bytes_max.saturating_sub(wanted);
        let Fitting { entries, left_out, is_tight } =
            share::fitting(&inner.kept, inner.is_settled, &live, bytes_max, self.bytes_max);
        let written = rewrite(&self.path, entries.into_iter());
        let (file, bytes) = written.map_err(|source| self.failed("write", source))?;
        if left_out > 0 {
            let path = self.path.display();
            tracing::warn!(%path, left_out, "the transaction journal is full; transactions that wait are not in it any more, those of the senders with most of them first");
        }
        (inner.file, inner.is_tight) = (Arc::new(file), is_tight);
        (inner.bytes, inner.compacted_bytes, inner.is_broken) = (bytes, bytes, false);
        self.bytes.store(bytes, Release);
        self.synced.fetch_max(self.appended.load(Acquire), Release);
        Ok(())
    }

    /// As after a failed write a moment ago.
    #[cfg(test)]
    pub(crate) fn fail(&self) {
        let mut inner = self.inner.lock();
        (inner.is_broken, inner.compacted) = (true, Some(Instant::now()));
    }

    fn failed(&self, action: &'static str, source: io::Error) -> JournalError {
        JournalError::Io { action, path: self.path.clone(), source }
    }
}

impl Place<'_> {
    /// Adds the transaction, which the pool has taken. It outlives this process at once, and a power cut after [`Journal::sync`].
    ///
    /// # Errors
    /// If writing fails; the file may then lack the entry.
    pub(crate) fn append(self, raw: &[u8]) -> Result<(), JournalError> {
        let journal = self.journal;
        let mut inner = journal.inner.lock();
        if inner.is_broken {
            return Err(journal.broken());
        }
        let mut file: &File = &inner.file;
        if let Err(source) = file.write_all(&entry(raw)) {
            inner.is_broken = true;
            return Err(journal.failed("append to", source));
        }
        inner.bytes += self.bytes;
        journal.bytes.store(inner.bytes, Release);
        journal.appended.fetch_add(1, Release);
        Ok(())
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.journal.inner.lock().reserved -= self.bytes;
    }
}
