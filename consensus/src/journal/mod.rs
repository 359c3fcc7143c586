//! [`Journal`]: the transactions that this node acknowledged to its users, in a file that outlives the process.
//!
//! ```text
//! "slipstream journal 1\n"  then for each  length u32 │ checksum 8 │ envelope      little-endian; first 8 bytes of Keccak-256
//! ```
//!
//! A caller that acknowledges a transaction reserves its room before the pool takes it, and then appends it. Before the
//! caller answers, it waits for [`Journal::synced`]: one sync serves all waiters. When the file has grown, that sync
//! rewrites it with the transactions still in the pool. In a full file, transactions that wait for a nonce or for funds
//! keep an eighth. So transactions that may never execute cannot keep others out. Opening cuts off a torn end, skips
//! damaged entries, and reports both.

mod error;
mod file;
mod share;
mod syncing;
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
pub(crate) use self::share::Live;
pub use self::{
    error::JournalError,
    file::{Disk, SystemDisk},
};

/// The least length at which the file is rewritten to save room. The file of a nearly empty pool outgrows its content
/// all the time, and each rewrite costs three syncs. At a start, reading this many bytes and recovering the senders in
/// them takes two seconds.
const COMPACT_BYTES_MIN: u64 = 8 << 20;
/// Least time between two rewrites of a file that is full again, so that transactions that find it full do not each
/// cause a rewrite.
const COMPACT_INTERVAL: Duration = Duration::from_secs(10);
/// Least time between two rewrites after a failed write.
const REPAIR_INTERVAL: Duration = Duration::from_secs(1);
/// Divisor: the share of the file that one sender's transactions may take. One transaction of the greatest length
/// always fits.
const SENDER_SHARE: u64 = 16;

/// The file. One process owns it, the holder of the data directory's lock.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    bytes_max: u64,
    disk: Arc<dyn Disk>,
    /// Locked while the file is written to, and never during a sync.
    inner: Mutex<Inner>,
    /// Held by the thread that waits for the disk on behalf of all. See `syncing`.
    syncing: Mutex<()>,
    /// Held by one of the callers that wait for a sync. The others wait for it without a thread.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Entries ever appended; changed under `inner`.
    appended: AtomicU64,
    /// Number of appended entries that are on disk.
    synced: AtomicU64,
    /// Length of the file.
    bytes: AtomicU64,
    has_kept: AtomicBool,
}

#[derive(Debug)]
struct Inner {
    file: Arc<File>,
    bytes: u64,
    /// Bytes set aside for entries that are about to be appended.
    reserved: u64,
    /// The file's length after its last rewrite; `compacted` is when one was last tried.
    compacted_bytes: u64,
    compacted: Option<Instant>,
    /// During a rewrite: the entries appended since it began, which go into the new file too.
    tail: Option<Vec<u8>>,
    /// Whether the last rewrite failed or lacked room for all entries. Another rewrite soon after would then free no
    /// room.
    is_tight: bool,
    /// Entries from before the start that are in no pool yet.
    kept: Arc<Vec<Vec<u8>>>,
    /// Whether the pool has seen the kept transactions at least once.
    is_settled: bool,
    /// Whether a write failed: the content of the file is unknown, and so is whether this handle is still the file's.
    is_broken: bool,
}

impl Inner {
    /// Whether `bytes` more fit into a file of at most `bytes_max`.
    fn has_room(&self, bytes: u64, bytes_max: u64) -> bool {
        self.bytes + self.reserved + bytes <= bytes_max
    }

    /// Whether most of the file may have left the pool. A rewrite then costs no more than the appends did.
    fn has_doubled(&self) -> bool {
        self.bytes > (2 * self.compacted_bytes).max(COMPACT_BYTES_MIN)
    }
}

/// Room for one entry. Dropping it gives the room back.
#[derive(Debug)]
#[must_use]
pub(crate) struct Place<'a> {
    journal: &'a Journal,
    bytes: u64,
}

impl Journal {
    /// Opens or creates the file, and reads its entries.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn open(path: &Path, bytes_max: u64) -> Result<Journal, JournalError> {
        Self::open_on(Arc::new(SystemDisk), path, bytes_max)
    }

    /// Does the same as [`Journal::open`], on a disk that the caller chooses.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn open_on(disk: Arc<dyn Disk>, path: &Path, bytes_max: u64) -> Result<Journal, JournalError> {
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
            tracing::warn!(%path, damaged_bytes, entries, "the transaction journal is damaged; keeping its intact entries");
        }
        // A new file, without the damaged part: the handle then appends at a known end.
        let entries = transactions.iter().map(Vec::as_slice);
        let (file, bytes) = rewrite(&*disk, path, entries).map_err(failed("write"))?;
        let has_kept = AtomicBool::new(!transactions.is_empty());
        let inner = Inner {
            file: Arc::new(file),
            bytes,
            reserved: 0,
            compacted_bytes: bytes,
            compacted: None,
            tail: None,
            is_tight: false,
            kept: Arc::new(transactions),
            is_settled: false,
            is_broken: false,
        };
        Ok(Journal {
            path: path.to_owned(),
            bytes_max,
            disk,
            inner: Mutex::new(inner),
            syncing: Mutex::new(()),
            turn: Arc::default(),
            appended: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            bytes: AtomicU64::new(bytes),
            has_kept,
        })
    }

    /// Makes the file of a node that has not started yet, so that it starts with these envelopes, as if users had
    /// submitted them.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write<'a>(path: &Path, envelopes: impl Iterator<Item = &'a [u8]>) -> Result<(), JournalError> {
        let failed = |source| JournalError::Io { action: "write", path: path.to_owned(), source };
        rewrite(&SystemDisk, path, envelopes).map(drop).map_err(failed)
    }

    /// Returns the file's unsettled transactions from before the start.
    pub(crate) fn recovered(&self) -> Arc<Vec<Vec<u8>>> {
        self.inner.lock().kept.clone()
    }

    /// Whether [`Journal::recovered`] has any. Never blocks.
    pub(crate) fn has_recovered(&self) -> bool {
        self.has_kept.load(Acquire)
    }

    /// Keeps only `kept` of the file's entries that are in no pool. Rewrites the file with these and the pool's
    /// transactions. Blocks.
    ///
    /// # Errors
    /// If the file cannot be written; the old one then stays.
    pub(crate) fn settle(
        &self,
        kept: Vec<Vec<u8>>,
        live: impl FnOnce() -> Vec<Live>,
    ) -> Result<(), JournalError> {
        let syncing = self.syncing();
        self.has_kept.store(!kept.is_empty(), Release);
        {
            let mut inner = self.inner.lock();
            (inner.kept, inner.is_settled) = (Arc::new(kept), true);
        }
        syncing.compact(live, 0)
    }

    /// Bytes of the file. Never blocks.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Acquire)
    }

    /// Sets room aside for a transaction that the pool is about to take. `sender_bytes` counts its sender's
    /// transactions in the pool that this node's users submitted. Waits for the disk only if the file is full or
    /// broken, and is rewritten; `live` then returns the users' transactions in the pool.
    ///
    /// # Errors
    /// If the journal is full, its sender has too much in it, or the file is not writable.
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
        if !self.may_append(&inner, bytes)? {
            drop(inner);
            self.make_room(bytes, live)?;
            inner = self.inner.lock();
            if !inner.has_room(bytes, self.bytes_max) {
                return Err(self.full(&inner));
            }
        }
        inner.reserved += bytes;
        Ok(Place { journal: self, bytes })
    }

    /// Whether `bytes` may be appended to the file as it is. If not, the file must be rewritten first.
    ///
    /// # Errors
    /// If a rewrite was tried a moment ago.
    fn may_append(&self, inner: &Inner, bytes: u64) -> Result<bool, JournalError> {
        let has_room = inner.has_room(bytes, self.bytes_max);
        if has_room && !inner.is_broken {
            return Ok(true);
        }
        self.check_compact(inner, !has_room).map(|()| false)
    }

    fn make_room(&self, bytes: u64, live: impl FnOnce() -> Vec<Live>) -> Result<(), JournalError> {
        let syncing = self.syncing();
        // Another thread may have made room meanwhile.
        if self.may_append(&self.inner.lock(), bytes)? { Ok(()) } else { syncing.compact(live, bytes) }
    }

    /// Adds transactions that the pool has taken, in one write. They survive the end of this process at once, and a power cut after
    /// [`Journal::sync`].
    ///
    /// # Errors
    /// If writing fails; the file may then lack some or all of them.
    pub(crate) fn append(&self, entries: &[(Place<'_>, impl AsRef<[u8]>)]) -> Result<(), JournalError> {
        let written: Vec<u8> = entries.iter().flat_map(|(_, raw)| entry(raw.as_ref())).collect();
        let mut inner = self.inner.lock();
        if inner.is_broken {
            return Err(self.broken());
        }
        let mut file: &File = &inner.file;
        if let Err(source) = file.write_all(&written) {
            inner.is_broken = true;
            return Err(self.failed("append to", source));
        }
        inner.tail.iter_mut().for_each(|tail| tail.extend_from_slice(&written));
        inner.bytes += written.len() as u64;
        self.bytes.store(inner.bytes, Release);
        self.appended.fetch_add(entries.len() as u64, Release);
        Ok(())
    }

    /// Returns when everything that was appended before is on disk. Concurrent waiters share one sync, which one of
    /// them runs on a thread. `live` returns the users' transactions in the pool, in case the file must be rewritten.
    ///
    /// # Errors
    /// If the disk refuses: then it is unknown which entries are on it.
    pub(crate) async fn synced(
        self: &Arc<Self>,
        live: impl FnOnce() -> Vec<Live> + Send + 'static,
    ) -> Result<(), JournalError> {
        let wanted = self.appended.load(Acquire);
        if self.synced.load(Acquire) >= wanted {
            return Ok(());
        }
        // The turn moves into the work, so that callers that go away leave only one thread waiting for a disk that
        // hangs.
        let turn = self.turn.clone().lock_owned().await;
        if self.synced.load(Acquire) >= wanted {
            return Ok(());
        }
        let journal = self.clone();
        let work = move || {
            let synced = journal.sync(live);
            drop(turn);
            synced
        };
        // The answer is missing only if the runtime ends, and the caller ends with it.
        tokio::task::spawn_blocking(work).await.unwrap_or(Ok(()))
    }

    /// Returns when everything that was appended before is on disk. Blocks. A file whose write failed is not trusted
    /// again: it is rewritten. A file that has doubled is rewritten too. The rewrite then serves as the sync.
    ///
    /// # Errors
    /// If the disk refuses: then it is unknown which entries are on it.
    pub(crate) fn sync(&self, live: impl FnOnce() -> Vec<Live>) -> Result<(), JournalError> {
        let wanted = self.appended.load(Acquire);
        let syncing = self.syncing();
        if self.synced.load(Acquire) >= wanted {
            return Ok(());
        }
        let is_to_compact = {
            let inner = self.inner.lock();
            if inner.is_broken {
                // The system reports a failed write once, and then forgets it.
                self.check_compact(&inner, false)?;
            }
            inner.is_broken || inner.has_doubled()
        };
        if is_to_compact {
            let Err(error) = syncing.compact(live, 0) else { return Ok(()) };
            if self.inner.lock().is_broken {
                return Err(error);
            }
            tracing::warn!(%error, "cannot compact the transaction journal: it keeps its size");
        }
        syncing.sync()
    }

    /// Whether everything that was appended is on the disk. Never blocks.
    #[cfg(test)]
    pub(crate) fn is_synced(&self) -> bool {
        self.synced.load(Acquire) >= self.appended.load(Acquire)
    }

    /// Checks that the file may be rewritten now.
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

    /// The error of a write that is not tried because one failed a moment ago.
    pub(crate) fn broken(&self) -> JournalError {
        let source = io::Error::other("an earlier write failed; the next attempt follows shortly");
        self.failed("write", source)
    }

    /// Puts the journal into the state after a failed write.
    #[cfg(test)]
    pub(crate) fn fail(&self) {
        let mut inner = self.inner.lock();
        (inner.is_broken, inner.compacted) = (true, Some(Instant::now()));
    }

    fn failed(&self, action: &'static str, source: io::Error) -> JournalError {
        JournalError::Io { action, path: self.path.clone(), source }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.journal.inner.lock().reserved -= self.bytes;
    }
}
