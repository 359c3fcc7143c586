//! [`Journal`]: the transactions that users of this node were told are taken, in a file that outlives it.
//!
//! ```text
//! "slipstream journal 1\n"  then for each  length u32 │ checksum 8 │ envelope      little-endian; first 8 bytes of Keccak-256
//! ```
//!
//! Whoever acknowledges a transaction appends it first, and waits for [`Journal::sync`] before the answer leaves, once for all that
//! it has. When the file has grown it is written anew with what is still in the pool. A torn end is cut off when it is opened,
//! damaged entries are passed over, and both are told.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use alloy_primitives::keccak256;
use parking_lot::Mutex;
use slipstream_types::limits::TRANSACTION_BYTES_MAX;
use tokio::time::Instant;

/// What the file begins with.
const MAGIC: &[u8] = b"slipstream journal 1\n";
const LENGTH_BYTES: usize = 4;
const CHECKSUM_BYTES: usize = 8;
/// A file that is shorter is not written anew to save room.
const COMPACT_BYTES_MIN: u64 = 1 << 20;
/// A file that was written anew and is full again is not written anew for every transaction that finds it so.
const COMPACT_INTERVAL: Duration = Duration::from_secs(10);
/// The same after a failure.
const REPAIR_INTERVAL: Duration = Duration::from_secs(1);

/// Why a transaction could not be written down.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The disk.
    #[error("cannot {action} the transaction journal {}: {source}; free some room, or set consensus.pool.journal_mib to 0 to do without", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is full of transactions that are still in the pool.
    #[error(
        "the journal of this node's transactions is full: {bytes} bytes of at most {bytes_max}; retry later"
    )]
    Full {
        /// Bytes in it.
        bytes: u64,
        /// [`PoolConfig::journal_mib`](crate::PoolConfig::journal_mib) in bytes.
        bytes_max: u64,
    },
}

/// What was found in the file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Recovered {
    /// The envelopes, in their order.
    transactions: Vec<Vec<u8>>,
    /// Bytes that belong to no whole entry.
    damaged_bytes: usize,
}

/// The file. One process has it, which holds the data directory's lock.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    bytes_max: u64,
    inner: Mutex<Inner>,
    /// How many entries are on the disk; locked while it is written to.
    synced: Mutex<u64>,
}

#[derive(Debug)]
struct Inner {
    file: Arc<File>,
    bytes: u64,
    /// Its length when it was written anew, and when that was last tried.
    compacted_bytes: u64,
    compacted: Option<Instant>,
    /// Entries ever appended.
    appended: u64,
    /// From before the start, and in no pool yet.
    kept: Vec<Vec<u8>>,
    /// A write failed: what the file ends with is unknown.
    is_broken: bool,
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
            tracing::warn!(%path, damaged_bytes, entries, "the transaction journal is damaged; what is whole is kept");
        }
        // A file of its own: what was damaged is gone with it, and the handle appends to what is known.
        let (file, bytes) = rewrite(path, transactions.iter().map(Vec::as_slice)).map_err(failed("write"))?;
        let inner = Inner {
            file: Arc::new(file),
            bytes,
            compacted_bytes: bytes,
            compacted: None,
            appended: 0,
            kept: transactions,
            is_broken: false,
        };
        Ok(Journal { path: path.to_owned(), bytes_max, inner: Mutex::new(inner), synced: Mutex::new(0) })
    }

    /// What was in the file when it was opened and has not been settled since.
    pub fn recovered(&self) -> Vec<Vec<u8>> {
        self.inner.lock().kept.clone()
    }

    /// Of what was in the file, only `kept` is still to be kept although it is in no pool. Writes the file anew with that and with what is
    /// in the pool.
    ///
    /// # Errors
    /// If it cannot be written; then the file is as it was.
    pub fn settle(
        &self,
        kept: Vec<Vec<u8>>,
        live: impl FnOnce() -> Vec<Vec<u8>>,
    ) -> Result<(), JournalError> {
        let mut inner = self.inner.lock();
        inner.kept = kept;
        self.compact(&mut inner, live())
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.inner.lock().bytes
    }

    /// Adds a transaction. It outlives this process at once, and a power cut after [`Journal::sync`]. `live` says what is still in the
    /// pool, in case the file is to be written anew; the transaction must be in it already.
    ///
    /// # Errors
    /// If it cannot be written, or there is no room; then it is not in the file.
    pub fn append(&self, raw: &[u8], live: impl FnOnce() -> Vec<Vec<u8>>) -> Result<(), JournalError> {
        let mut inner = self.inner.lock();
        let entry = entry(raw);
        let mut len = entry.len() as u64;
        let is_over = inner.bytes + len > self.bytes_max;
        let has_doubled = inner.bytes + len > (2 * inner.compacted_bytes).max(COMPACT_BYTES_MIN);
        if inner.is_broken || is_over || has_doubled {
            self.check_compact(&inner, is_over)?;
            self.compact(&mut inner, live())?;
            // The pool has it, so it is in there.
            len = 0;
        }
        if inner.bytes > self.bytes_max {
            return Err(self.full(&inner));
        }
        if len > 0 {
            let mut file: &File = &inner.file;
            if let Err(source) = file.write_all(&entry) {
                inner.is_broken = true;
                return Err(self.failed("append to", source));
            }
            inner.bytes += len;
        }
        inner.appended += 1;
        Ok(())
    }

    /// Returns when everything that was appended before is on the disk. Blocks; those who wait at once share one write.
    ///
    /// # Errors
    /// If the disk refuses: then it is unknown what of it there is.
    pub fn sync(&self) -> Result<(), JournalError> {
        let wanted = self.inner.lock().appended;
        let mut synced = self.synced.lock();
        if *synced >= wanted {
            return Ok(());
        }
        let (file, appended) = {
            let inner = self.inner.lock();
            (inner.file.clone(), inner.appended)
        };
        if let Err(source) = file.sync_data() {
            self.inner.lock().is_broken = true;
            return Err(self.failed("sync", source));
        }
        *synced = appended;
        Ok(())
    }

    /// Whether something that was appended may not be on the disk.
    pub fn is_synced(&self) -> bool {
        let appended = self.inner.lock().appended;
        self.synced.try_lock().is_some_and(|synced| *synced >= appended)
    }

    /// Whether the file may be written anew now. One that has doubled since always may: that costs no more than its appends did.
    fn check_compact(&self, inner: &Inner, is_over: bool) -> Result<(), JournalError> {
        let elapsed = inner.compacted.map_or(Duration::MAX, |compacted| compacted.elapsed());
        if inner.is_broken && elapsed < REPAIR_INTERVAL {
            let source = io::Error::other("an earlier write failed, and the next attempt is a moment away");
            return Err(self.failed("write", source));
        }
        let grown = inner.bytes - inner.compacted_bytes;
        if is_over && !inner.is_broken && elapsed < COMPACT_INTERVAL && grown < self.bytes_max / 4 {
            return Err(self.full(inner));
        }
        Ok(())
    }

    fn full(&self, inner: &Inner) -> JournalError {
        JournalError::Full { bytes: inner.bytes, bytes_max: self.bytes_max }
    }

    fn compact(&self, inner: &mut Inner, live: Vec<Vec<u8>>) -> Result<(), JournalError> {
        inner.compacted = Some(Instant::now());
        let kept = inner.kept.iter().chain(&live).map(Vec::as_slice);
        let (file, bytes) = rewrite(&self.path, kept).map_err(|source| self.failed("write", source))?;
        inner.file = Arc::new(file);
        (inner.bytes, inner.compacted_bytes, inner.is_broken) = (bytes, bytes, false);
        Ok(())
    }

    fn failed(&self, action: &'static str, source: io::Error) -> JournalError {
        JournalError::Io { action, path: self.path.clone(), source }
    }
}

fn entry(raw: &[u8]) -> Vec<u8> {
    let length = u32::try_from(raw.len()).unwrap_or(u32::MAX).to_le_bytes();
    [&length[..], &keccak256(raw)[..CHECKSUM_BYTES], raw].concat()
}

/// The entry that the bytes begin with.
fn first(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
    let length = u32::from_le_bytes(*length) as usize;
    if length == 0 || length > TRANSACTION_BYTES_MAX {
        return None;
    }
    let (checksum, rest) = rest.split_at_checked(CHECKSUM_BYTES)?;
    let raw = rest.get(..length)?;
    (keccak256(raw)[..CHECKSUM_BYTES] == *checksum).then_some(raw)
}

/// Every whole entry. After damage it goes on at the next one, wherever that begins.
fn recover(bytes: &[u8]) -> Recovered {
    let mut recovered = Recovered::default();
    let mut rest = bytes.strip_prefix(MAGIC).unwrap_or(bytes);
    while !rest.is_empty() {
        match first(rest) {
            Some(raw) => {
                recovered.transactions.push(raw.to_vec());
                rest = &rest[LENGTH_BYTES + CHECKSUM_BYTES + raw.len()..];
            }
            None => {
                recovered.damaged_bytes += 1;
                rest = &rest[1..];
            }
        }
    }
    recovered
}

/// Puts a file with these entries in the place of the one that is there; a power cut leaves the one or the other.
fn rewrite<'a>(path: &Path, entries: impl Iterator<Item = &'a [u8]>) -> io::Result<(File, u64)> {
    let fresh = path.with_extension("new");
    let file = OpenOptions::new().create(true).write(true).truncate(true).open(&fresh)?;
    let mut writer = io::BufWriter::new(file);
    writer.write_all(MAGIC)?;
    let mut bytes = MAGIC.len() as u64;
    for raw in entries {
        let entry = entry(raw);
        writer.write_all(&entry)?;
        bytes += entry.len() as u64;
    }
    let file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    if let Some(dir) = path.parent() {
        File::open(dir)?.sync_all()?;
    }
    Ok((file, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(number: u32) -> Vec<u8> {
        [&number.to_le_bytes()[..], &[7; 100]].concat()
    }

    fn raws(range: std::ops::Range<u32>) -> Vec<Vec<u8>> {
        range.map(raw).collect()
    }

    fn file() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("transactions.journal");
        (dir, path)
    }

    fn append(journal: &Journal, range: std::ops::Range<u32>) {
        for raw in raws(range) {
            journal.append(&raw, || unreachable!("there is room")).unwrap();
        }
    }

    /// Goal: what is appended is there after a restart, in its order, whatever came of the process.
    #[test]
    fn what_is_appended_outlives_the_process() {
        let (_dir, path) = file();
        let journal = Journal::open(&path, 1 << 20).unwrap();
        assert!(journal.is_synced() && journal.recovered().is_empty());
        append(&journal, 0..3);
        assert!(!journal.is_synced());
        journal.sync().unwrap();
        assert!(journal.is_synced());
        append(&journal, 3..4);
        std::mem::forget(journal);
        let journal = Journal::open(&path, 1 << 20).unwrap();
        assert_eq!(journal.recovered(), raws(0..4));
        append(&journal, 4..5);
        drop(journal);
        assert_eq!(Journal::open(&path, 1 << 20).unwrap().recovered(), raws(0..5));
    }

    /// Goal: a torn end is cut wherever it is torn, and an entry that is damaged anywhere costs itself alone.
    #[test]
    fn damage_costs_what_is_damaged() {
        let (_dir, path) = file();
        append(&Journal::open(&path, 1 << 20).unwrap(), 0..3);
        let whole = fs::read(&path).unwrap();
        let entry_len = (whole.len() - MAGIC.len()) / 3;
        for torn in 0..entry_len {
            let recovered = recover(&whole[..MAGIC.len() + 2 * entry_len + torn]);
            assert_eq!(recovered, Recovered { transactions: raws(0..2), damaged_bytes: torn });
        }
        for position in MAGIC.len() + entry_len..MAGIC.len() + 2 * entry_len {
            let mut damaged = whole.clone();
            damaged[position] ^= 0x40;
            assert_eq!(recover(&damaged).transactions, [raw(0), raw(2)], "byte {position}");
        }
        fs::write(&path, [&whole[..whole.len() - 5], &[0; 5_000]].concat()).unwrap();
        let journal = Journal::open(&path, 1 << 20).unwrap();
        append(&journal, 9..10);
        drop(journal);
        assert_eq!(Journal::open(&path, 1 << 20).unwrap().recovered(), [raw(0), raw(1), raw(9)]);
    }

    /// Goal: the file is bounded: it is written anew with what the pool still has, and refuses what does not fit beside that.
    #[test]
    fn the_file_is_bounded() {
        let (_dir, path) = file();
        let journal = Journal::open(&path, 10_000).unwrap();
        for number in 0..1_000u32 {
            let live = || raws(number.saturating_sub(5)..number + 1);
            journal.append(&raw(number), live).unwrap();
            assert!(journal.bytes() <= 10_000 && journal.bytes() == fs::metadata(&path).unwrap().len());
        }
        journal.sync().unwrap();
        let recovered = Journal::open(&path, 10_000).unwrap().recovered();
        assert_eq!(recovered[recovered.len() - 6..], raws(994..1_000));
        let full = (0..1_000).find_map(|number| journal.append(&raw(number), || raws(0..number + 1)).err());
        assert!(matches!(full, Some(JournalError::Full { bytes_max: 10_000, .. })));
        let full = journal.append(&raw(0), || unreachable!("it was written anew a moment ago")).unwrap_err();
        assert!(matches!(full, JournalError::Full { .. }));
    }

    /// Goal: a file far below its bound takes what comes, however fast it grows.
    #[test]
    fn a_file_that_grows_fast_is_not_full() {
        let (_dir, path) = file();
        let journal = Journal::open(&path, 64 << 20).unwrap();
        let large = |number: u32| [&number.to_le_bytes()[..], &[7; 100_000]].concat();
        let mut rewritten = 0;
        for number in 0..100 {
            let before = journal.bytes();
            journal.append(&large(number), || (0..=number).map(large).collect()).unwrap();
            rewritten += usize::from(journal.inner.lock().compacted_bytes > before);
        }
        assert!((3..6).contains(&rewritten), "{rewritten}");
        assert_eq!(recover(&fs::read(&path).unwrap()).transactions, (0..100).map(large).collect::<Vec<_>>());
    }

    /// Goal: what is not settled yet is kept when the file is written anew; after a failed write it is written anew first.
    #[test]
    fn what_is_unsettled_is_kept() {
        let (_dir, path) = file();
        append(&Journal::open(&path, 1 << 20).unwrap(), 0..4);
        let journal = Journal::open(&path, 1 << 20).unwrap();
        journal.inner.lock().is_broken = true;
        journal.append(&raw(9), || vec![raw(9)]).unwrap();
        assert_eq!(recover(&fs::read(&path).unwrap()).transactions, [raws(0..4), vec![raw(9)]].concat());
        journal.settle(raws(2..3), || vec![raw(9)]).unwrap();
        assert_eq!(recover(&fs::read(&path).unwrap()).transactions, [raw(2), raw(9)]);
        journal.inner.lock().is_broken = true;
        let refused = journal.append(&raw(10), || unreachable!("a moment ago")).unwrap_err();
        assert!(matches!(refused, JournalError::Io { .. }), "{refused}");
        journal.inner.lock().compacted = None;
        journal.append(&raw(10), || vec![raw(9), raw(10)]).unwrap();
        assert_eq!(recover(&fs::read(&path).unwrap()).transactions, [raw(2), raw(9), raw(10)]);
    }

    /// Goal: a disk that refuses is told with the file and what to do, and nothing counts as written.
    #[test]
    fn a_refusing_disk_is_told() {
        let (dir, path) = file();
        let journal = Journal::open(&path, 1 << 20).unwrap();
        journal.inner.lock().is_broken = true;
        drop(dir);
        let refused = journal.append(&raw(1), || vec![raw(1)]).unwrap_err().to_string();
        assert!(refused.contains("transactions.journal") && refused.contains("journal_mib"), "{refused}");
        assert_eq!(journal.inner.lock().appended, 0);
    }
}
