//! [`Frontiers`]: what a store opens by in seconds, whatever its size.
//!
//! ```text
//!  frontiers/N.tree      the upper part of the tree behind batch N, written beside commits, aside and renamed
//!            N.touched   the paths that writes after batch N touch, as far as the next file of that kind; each appended before its write
//! ```
//! At start the newest tree is folded, what was touched since is read again from the rows, and the root must be the one in the head's
//! header. So nothing here is believed, nothing here is ever needed, and the directory can be removed at any time: the tree is then rebuilt
//! from all rows. That also happens when the machine went down before the last paths reached the disk, which is why they are not synced.
//!
//! What was not read at start is compared with its hash when a commit or a proof first touches it, and by [`Store::scrub`].

use std::{
    fs::{self, File},
    io::{self, BufReader, Read, Write as _},
    path::{Path as FilePath, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{SyncSender, TrySendError, sync_channel},
    },
    thread::JoinHandle,
    time::Instant,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use slipstream_types::{BatchNumber, Digest, Path, state::PATH_ACCOUNT_BYTES};

use crate::{
    backend::{Column, Write, WriteBatch},
    crash::{CrashPoint, Faults, Step},
    error::StorageError,
    schema::{self, HEAD_KEY, HeadRecord, StateColumn},
    state::{
        REREAD_NIBBLES, Tree,
        frontier::{Frontier, FrontierPart},
        load::ColumnRows,
    },
};

const MAGIC: &[u8; 22] = b"slipstream frontier 1\n";
const TREE: &str = "tree";
const TOUCHED: &str = "touched";
/// Paths touched since the last tree, from which another one is written: at least so many, and one in [`LEAVES_PER_PATH`] leaves. The more,
/// the longer takes opening after a kill: some 20 us a path.
const TOUCHED_MIN: u64 = if cfg!(test) { 64 } else { 1 << 16 };
/// As [`TOUCHED_MIN`], for the tree that is written when the store is closed.
const TOUCHED_AT_CLOSE_MIN: u64 = if cfg!(test) { 1 } else { 1 << 14 };
/// A tree takes about 2 bytes a leaf, so that writing it adds 400 bytes to a path that is touched.
const LEAVES_PER_PATH: u64 = 200;
/// Bytes of touched paths since a tree was written. A store whose trees cannot be written stops there, and opens by its rows.
const TOUCHED_BYTES_MAX: u64 = 256 << 20;
/// One touched path in so many leaves makes reading all rows the quicker way.
const LEAVES_PER_PATH_MIN: u64 = 64;
/// Touched paths that are read again whatever the number of leaves.
const REREAD_MIN: u64 = 1 << 13;
/// Touched paths that are read again at once, between two looks at the memory budget.
const REREAD_PATHS: usize = 1 << 16;
/// Parts that are read and folded at once.
const PARTS_AT_ONCE: usize = 16;
/// A path as far as it is noted: an account's part and four bytes.
const NOTED: usize = REREAD_NIBBLES / 2;
const BELOW: usize = NOTED - PATH_ACCOUNT_BYTES;

/// Bytes that are written between two syncs, so that no commit waits behind much more than these.
const SYNC_BYTES: u64 = 8 << 20;
/// Bytes of notes for which memory is kept.
const SCRATCH_BYTES_MAX: usize = 4 << 20;

/// What a tree is the upper part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Title {
    pub(crate) number: BatchNumber,
    pub(crate) column: StateColumn,
    pub(crate) state_root: Digest,
}

/// A tree to be written.
struct Job {
    title: Title,
    frontier: Frontier,
    /// Batches whose trees are kept beside it: those of snapshots.
    kept: Vec<BatchNumber>,
}

/// The directory `frontiers` of a store.
pub(crate) struct Frontiers {
    dir: PathBuf,
    log: Mutex<Log>,
    /// Whether trees are synced: of a store that need not survive a power cut, neither must they.
    fsync: bool,
    faults: Faults,
    /// Whether a tree was written since this was last looked at.
    saved: Arc<AtomicBool>,
    /// Started by the first job.
    saver: Mutex<Option<Saver>>,
}

/// The thread that writes trees.
type Saver = (SyncSender<Job>, JoinHandle<()>);

/// The file of touched paths that is written now.
struct Log {
    file: Option<File>,
    /// After a failure a start reads all rows.
    failed: bool,
    /// In this file and those before it, since a tree was written.
    bytes: u64,
    /// Paths since a tree was begun.
    touched: u64,
    /// Of the last write.
    scratch: Vec<u8>,
}

impl Frontiers {
    /// The directory's, which is made if it is not there; none if it cannot be used.
    pub(crate) fn open(dir: &FilePath, fsync: bool, faults: &Faults) -> Option<Frontiers> {
        let dir = dir.join("frontiers");
        if let Err(error) = fs::create_dir_all(&dir) {
            tracing::warn!(%error, dir = %dir.display(), "this cannot be used: each start reads all rows");
            return None;
        }
        for name in names(&dir).unwrap_or_default() {
            if name.ends_with(".new") {
                let _ = fs::remove_file(dir.join(name));
            }
        }
        let log = Log { file: None, failed: false, bytes: 0, touched: 0, scratch: Vec::new() };
        let (faults, saved, saver) = (faults.clone(), Arc::default(), Mutex::default());
        Some(Frontiers { dir, log: Mutex::new(log), fsync, faults, saved, saver })
    }

    /// The tree of a head by what is here, with its root compared. What is read again from rows stays within so many leaves. None if it
    /// takes the rows.
    pub(crate) fn load(&self, wanted: &Title, rows: Arc<ColumnRows>, resident_max: u64) -> Option<Tree> {
        let key = (wanted.number, wanted.column.column(), wanted.state_root);
        let (tree, touched) = load(&self.dir, key, rows, resident_max)?;
        self.log.lock().touched = touched;
        Some(tree)
    }

    /// Where [`load`] finds trees.
    pub(crate) fn dir(&self) -> &FilePath {
        &self.dir
    }

    /// Begins to note what is touched behind a head.
    pub(crate) fn begin(&self, head: BatchNumber) {
        let mut log = self.log.lock();
        let path = self.path(head, TOUCHED);
        let open = || {
            let file = File::options().create(true).append(true).open(&path)?;
            // Behind half a note nobody would find the next.
            if file.metadata()?.len() > 0 {
                file.set_len(read_touched(&path, &mut Vec::new()).map_or(0, |(_, len)| len))?;
            }
            Ok(file)
        };
        let opened: io::Result<File> = open();
        log.failed = opened.is_err();
        if let Err(error) = &opened {
            tracing::warn!(%error, path = %path.display(), "what is touched cannot be noted: the next start takes longer");
        }
        log.file = opened.ok();
    }

    /// Notes what a write is about to touch, and the head after it.
    pub(crate) fn note(&self, batch: &WriteBatch) {
        let head = batch.0.iter().find_map(|write| match write {
            Write::Put(Column::Meta, key, value) if key == HEAD_KEY => {
                schema::decode::<HeadRecord>("head record", value).ok()
            }
            _ => None,
        });
        let mut log = self.log.lock();
        let log = &mut *log;
        log.scratch.clear();
        let mut noted = Noted { bytes: &mut log.scratch, paths: 0, group: None };
        noted.begin(head.map_or(0, |head| head.number.0));
        for write in &batch.0 {
            match write {
                Write::Rows(_, rows) => rows.iter().for_each(|(path, _)| noted.path(path)),
                Write::Put(Column::StateA | Column::StateB, key, _)
                | Write::Delete(Column::StateA | Column::StateB, key) => {
                    schema::decode_digest(key).into_iter().for_each(|path| noted.path(&Path(path.0)));
                }
                _ => {}
            }
        }
        let paths = noted.paths;
        if paths == 0 && head.is_none() {
            return;
        }
        noted.end();
        log.touched += paths;
        if self.saved.swap(false, Ordering::AcqRel) {
            log.bytes = 0;
        }
        log.bytes += log.scratch.len() as u64;
        let Some(file) = &mut log.file else { return };
        let mut append = || -> Result<(), StorageError> {
            self.faults.pass(CrashPoint::Before(Step::FrontierNote))?;
            let written = match log.bytes > TOUCHED_BYTES_MAX {
                true => Err(io::Error::other("too much was touched since the last tree")),
                false => file.write_all(&log.scratch),
            };
            written.map_err(|error| StorageError::io("write to", &self.dir, error))?;
            self.faults.pass(CrashPoint::After(Step::FrontierNote))
        };
        if let Err(error) = append() {
            tracing::warn!(%error, "what a write touches was not noted: the next start takes longer");
            (log.file, log.failed) = (None, true);
        }
        if log.scratch.capacity() > SCRATCH_BYTES_MAX {
            log.scratch = Vec::new();
        }
    }

    /// Whether so much was touched since the last tree that another one is worth writing.
    pub(crate) fn is_due(&self, leaves: u64) -> bool {
        let log = self.log.lock();
        log.touched >= TOUCHED_MIN.max(leaves / LEAVES_PER_PATH) || log.file.is_none() && !log.failed
    }

    /// Whether so much was touched since the last tree that another one is worth waiting for.
    pub(crate) fn is_behind(&self) -> bool {
        let log = self.log.lock();
        log.touched >= TOUCHED_AT_CLOSE_MIN || log.file.is_none()
    }

    /// Has the upper part of a head's tree written, soon, unless two are under way. The caller sees to it that no write comes between. The
    /// batches are those of snapshots, whose trees are made of what is here too.
    pub(crate) fn save(&self, title: Title, frontier: Frontier, kept: Vec<BatchNumber>) {
        let mut job = Job { title, frontier, kept };
        let mut saver = self.saver.lock();
        // A second try is for a thread that has ended.
        for _ in 0..2 {
            let running = match saver.take() {
                Some(saver) => Some(saver),
                None => self.start_saver(),
            };
            let Some((sender, thread)) = running else { return };
            match sender.try_send(job) {
                Err(TrySendError::Disconnected(back)) => job = back,
                sent => {
                    *saver = Some((sender, thread));
                    if sent.is_ok() {
                        self.begin(title.number);
                        self.log.lock().touched = 0;
                    }
                    return;
                }
            }
        }
    }

    /// Waits until all trees are written that were handed over.
    pub(crate) fn finish(&self) {
        let taken = self.saver.lock().take();
        if let Some((sender, thread)) = taken {
            drop(sender);
            let _ = thread.join();
        }
    }

    fn path(&self, number: BatchNumber, kind: &str) -> PathBuf {
        self.dir.join(format!("{number}.{kind}"))
    }

    fn start_saver(&self) -> Option<Saver> {
        let (sender, jobs) = sync_channel::<Job>(1);
        let (dir, fsync, faults) = (self.dir.clone(), self.fsync, self.faults.clone());
        let saved = Arc::clone(&self.saved);
        let save_all = move || {
            for job in jobs {
                let number = job.title.number;
                let save = || {
                    faults.pass(CrashPoint::Before(Step::FrontierSave))?;
                    save(&dir, &job, fsync)?;
                    faults.pass(CrashPoint::After(Step::FrontierSave))
                };
                match save() {
                    Ok(()) => {
                        saved.store(true, Ordering::Release);
                        forget(&dir, number, &job.kept);
                    }
                    Err(error) => tracing::warn!(
                        %number, %error, dir = %dir.display(),
                        "the tree's upper part was not written: the next start takes longer"
                    ),
                }
            }
        };
        let thread = std::thread::Builder::new().name("frontier".to_owned()).spawn(save_all).ok()?;
        Some((sender, thread))
    }
}

impl Drop for Frontiers {
    fn drop(&mut self) {
        self.finish();
    }
}

/// The tree behind a batch, of a column, with a root, by what is in a directory: its root is compared. What is read again from the rows stays
/// within so many leaves. Tells how many paths were. None if it takes the rows.
pub(crate) fn load(
    dir: &FilePath,
    (number, column, state_root): (BatchNumber, Column, Digest),
    rows: Arc<ColumnRows>,
    resident_max: u64,
) -> Option<(Tree, u64)> {
    let start = Instant::now();
    let from = numbers(dir, TREE).into_iter().rev().find(|from| *from <= number)?;
    let refuse = |reason: &str| {
        tracing::info!(%from, %number, reason, "the tree's upper part is not used; reading all rows instead");
        None
    };
    let (title, tree) = match read(&dir.join(format!("{from}.{TREE}"))) {
        Ok(read) => read,
        Err(reason) => return refuse(&reason),
    };
    if title.number != from || title.column.column() != column {
        return refuse("it belongs to another state");
    }
    let touched_max = REREAD_MIN.max(tree.leaves() / LEAVES_PER_PATH_MIN);
    let Some(touched) = touched(dir, from, number, touched_max) else {
        return refuse("what was touched since is not known, or too much");
    };
    let mut tree = tree.read_from(rows);
    for some in touched.chunks(REREAD_PATHS) {
        tree = match tree.reread(some) {
            Ok(tree) => tree,
            Err(error) => return refuse(&error.to_string()),
        };
        tree.shrink(resident_max);
    }
    if tree.root() != state_root {
        return refuse("it leads to another root");
    }
    let (touched, ms) = (touched.len() as u64, start.elapsed().as_millis() as u64);
    tracing::info!(rows = tree.leaves(), %from, %number, touched, ms, "the state's tree was read from its upper part");
    Some((tree, touched))
}

/// All that was touched from behind one batch to behind another, or later, sorted; none if that is not known, or more than so many.
fn touched(dir: &FilePath, from: BatchNumber, to: BatchNumber, max: u64) -> Option<Vec<Path>> {
    let mut paths = Vec::new();
    let mut known = from;
    for number in numbers(dir, TOUCHED).into_iter().filter(|number| *number >= from && *number <= to) {
        // Between the end of one file and the beginning of the next nothing may be missing.
        (number <= known).then_some(())?;
        known = known.max(read_touched(&dir.join(format!("{number}.{TOUCHED}")), &mut paths)?.0);
        (paths.len() as u64 <= max).then_some(())?;
    }
    (known >= to).then_some(())?;
    paths.sort_unstable();
    paths.dedup();
    Some(paths)
}

/// The paths of one write, as they are noted.
struct Noted<'a> {
    bytes: &'a mut Vec<u8>,
    paths: u64,
    /// Where the count of the paths stands that share an account's part.
    group: Option<(usize, [u8; PATH_ACCOUNT_BYTES])>,
}

/// Before the paths of a write: the head after it, or 0; and how many bytes follow.
const NOTE_HEADER: usize = 12;
/// Behind them, of all before.
const NOTE_DIGEST: usize = 8;

impl Noted<'_> {
    fn begin(&mut self, head: u64) {
        self.bytes.extend(head.to_le_bytes());
        self.bytes.extend([0; 4]);
    }

    fn path(&mut self, path: &Path) {
        let (account, below) = path.0.split_at(PATH_ACCOUNT_BYTES);
        let count_at = match self.group {
            Some((at, group)) if group == *account && self.bytes[at..at + 2] != [0xff; 2] => at,
            _ => {
                self.bytes.extend(account);
                let at = self.bytes.len();
                self.bytes.extend([0; 2]);
                self.group = account.try_into().ok().map(|account| (at, account));
                at
            }
        };
        let count = u16::from_le_bytes([self.bytes[count_at], self.bytes[count_at + 1]]) + 1;
        self.bytes[count_at..count_at + 2].copy_from_slice(&count.to_le_bytes());
        self.bytes.extend(&below[..BELOW]);
        self.paths += 1;
    }

    fn end(self) {
        let len = (self.bytes.len() - NOTE_HEADER) as u32;
        self.bytes[NOTE_HEADER - 4..NOTE_HEADER].copy_from_slice(&len.to_le_bytes());
        let digest = Digest::tagged("slipstream/touched/1", self.bytes);
        self.bytes.extend(&digest.0[..NOTE_DIGEST]);
    }
}

/// Adds the paths of a file. Returns the last head in it and its bytes, as far as its notes are whole; none if it cannot be read.
fn read_touched(path: &FilePath, paths: &mut Vec<Path>) -> Option<(BatchNumber, u64)> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(TOUCHED_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let mut last = number_of(path.file_name()?.to_str()?, TOUCHED)?;
    let mut rest = &bytes[..];
    while let Some((header, _)) = rest.split_first_chunk::<NOTE_HEADER>() {
        let (head, len) = header.split_at(8);
        let len = u32::from_le_bytes(len.try_into().ok()?) as usize;
        let Some((note, after)) = rest.split_at_checked(NOTE_HEADER + len) else { break };
        let Some((digest, after)) = after.split_first_chunk::<NOTE_DIGEST>() else { break };
        if Digest::tagged("slipstream/touched/1", note).0[..NOTE_DIGEST] != digest[..] {
            break;
        }
        read_paths(&note[NOTE_HEADER..], paths)?;
        last = last.max(BatchNumber(u64::from_le_bytes(head.try_into().ok()?)));
        rest = after;
    }
    Some((last, (bytes.len() - rest.len()) as u64))
}

fn read_paths(mut note: &[u8], paths: &mut Vec<Path>) -> Option<()> {
    while !note.is_empty() {
        let (account, rest) = note.split_first_chunk::<PATH_ACCOUNT_BYTES>()?;
        let (count, rest) = rest.split_first_chunk::<2>()?;
        let (below, rest) = rest.split_at_checked(BELOW * usize::from(u16::from_le_bytes(*count)))?;
        paths.extend(below.chunks_exact(BELOW).map(|below| {
            let mut path = [0; 32];
            path[..PATH_ACCOUNT_BYTES].copy_from_slice(account);
            path[PATH_ACCOUNT_BYTES..NOTED].copy_from_slice(below);
            Path(path)
        }));
        note = rest;
    }
    Some(())
}

/// Written aside, synced and renamed.
fn save(dir: &FilePath, job: &Job, fsync: bool) -> Result<(), StorageError> {
    let path = dir.join(format!("{}.{TREE}", job.title.number));
    let aside = dir.join(format!("{}.new", job.title.number));
    let write = || {
        let mut file = io::BufWriter::with_capacity(1 << 20, File::create(&aside)?);
        file.write_all(MAGIC)?;
        write_piece(&mut file, &schema::encode(&job.title))?;
        let mut unsynced = 0;
        job.frontier.encode(|piece| {
            unsynced += piece.len() as u64;
            write_piece(&mut file, &piece)?;
            if fsync && unsynced > SYNC_BYTES {
                unsynced = 0;
                file.flush()?;
                file.get_ref().sync_data()?;
            }
            io::Result::Ok(())
        })?;
        let file = file.into_inner()?;
        if fsync {
            file.sync_all()?;
        }
        fs::rename(&aside, &path)?;
        if fsync { File::open(dir)?.sync_all() } else { Ok(()) }
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&aside);
        StorageError::io("write", &path, error)
    })
}

fn write_piece(file: &mut impl io::Write, piece: &[u8]) -> io::Result<()> {
    file.write_all(&(piece.len() as u64).to_le_bytes())?;
    file.write_all(&Digest::tagged("slipstream/frontier/1", piece).0)?;
    file.write_all(piece)
}

/// The next piece of a file of which so many bytes are left; none at its end.
fn read_piece(file: &mut impl Read, left: &mut u64) -> io::Result<Option<Vec<u8>>> {
    if *left == 0 {
        return Ok(None);
    }
    let damaged = || io::Error::other("it is damaged");
    let (mut len, mut digest) = ([0; 8], [0; 32]);
    file.read_exact(&mut len)?;
    file.read_exact(&mut digest)?;
    let len = u64::from_le_bytes(len);
    *left = left.checked_sub(40).and_then(|left| left.checked_sub(len)).ok_or_else(damaged)?;
    let mut piece = vec![0; len as usize];
    file.read_exact(&mut piece)?;
    match Digest::tagged("slipstream/frontier/1", &piece).0 == digest {
        true => Ok(Some(piece)),
        false => Err(damaged()),
    }
}

/// A tree as it was written, and what it says that it is of.
fn read(path: &FilePath) -> Result<(Title, Tree), String> {
    let damaged = || "it is damaged".to_owned();
    let text = |error: io::Error| error.to_string();
    let mut file = File::open(path).map_err(text)?;
    let mut left = file.metadata().map_err(text)?.len().saturating_sub(MAGIC.len() as u64);
    let mut magic = [0; MAGIC.len()];
    file.read_exact(&mut magic).map_err(text)?;
    if magic != *MAGIC {
        return Err("another release wrote it".to_owned());
    }
    let mut file = BufReader::with_capacity(1 << 20, file);
    let mut next = || read_piece(&mut file, &mut left).map_err(text);
    let title =
        schema::decode("frontier", &next()?.ok_or_else(damaged)?).map_err(|error| error.to_string())?;
    let top = next()?.ok_or_else(damaged)?;
    let mut parts = Vec::new();
    loop {
        let pieces = (0..PARTS_AT_ONCE).map_while(|_| next().transpose()).collect::<Result<Vec<_>, _>>()?;
        if pieces.is_empty() {
            break;
        }
        parts.extend(FrontierPart::decode(&pieces).ok_or_else(damaged)?);
    }
    Ok((title, Tree::of_frontier(&top, parts).ok_or_else(damaged)?))
}

/// Removes what a tree that was written has made useless: neither the head's tree is made of it, nor that of a batch that is kept.
fn forget(dir: &FilePath, saved: BatchNumber, kept: &[BatchNumber]) {
    let trees = numbers(dir, TREE);
    let before = |batch: &BatchNumber| trees.iter().rev().find(|number| *number <= batch).copied();
    let needed: Vec<BatchNumber> = kept.iter().filter_map(before).chain([saved]).collect();
    let oldest = needed.iter().min().copied().unwrap_or(saved);
    let old_trees = trees.iter().filter(|number| **number < saved && !needed.contains(number));
    let old_touched = numbers(dir, TOUCHED).into_iter().filter(|number| *number < oldest);
    for (number, kind) in
        old_trees.map(|number| (*number, TREE)).chain(old_touched.map(|number| (number, TOUCHED)))
    {
        let path = dir.join(format!("{number}.{kind}"));
        if let Err(error) = fs::remove_file(&path) {
            tracing::warn!(%error, path = %path.display(), "an old frontier was not removed");
        }
    }
}

fn names(dir: &FilePath) -> io::Result<Vec<String>> {
    fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Of the files of one kind, ascending.
fn numbers(dir: &FilePath, kind: &str) -> Vec<BatchNumber> {
    let names = names(dir).unwrap_or_default();
    let mut numbers: Vec<BatchNumber> = names.iter().filter_map(|name| number_of(name, kind)).collect();
    numbers.sort_unstable();
    numbers
}

fn number_of(name: &str, kind: &str) -> Option<BatchNumber> {
    let number = name.strip_suffix(kind)?.strip_suffix('.')?.parse().ok()?;
    Some(BatchNumber(number))
}
