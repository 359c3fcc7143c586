//! [`Frontiers`]: files that let a store open in seconds, whatever its size.
//!
//! ```text
//!  frontiers/N.tree      the upper part of the tree after batch N, written beside commits to a temporary file, then renamed
//!            N.touched   the paths that writes after batch N touch, up to the next such file; each appended before its write
//! ```
//! At start the store folds the newest tree and reads again the rows touched since. The root must then match the
//! head's header. So the files are neither trusted nor needed: without them the tree is rebuilt from all rows. The
//! same happens if the machine went down before the last paths reached the disk, because the notes are not synced.
//!
//! A commit or a proof compares each unread subtree with its hash on first touch; [`crate::Store::scrub`] compares the rest.

mod file;
mod notes;

use std::{
    fs::{self, File},
    io::{self, Write as _},
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
use slipstream_types::{BatchNumber, Digest, Path};

use self::{
    file::{read, save},
    notes::{NoteEncoder, read_touched},
};
use crate::{
    backend::{Column, Write, WriteBatch},
    config::StorageConfig,
    crash::{CrashPoint, Faults, WriteStep},
    directory::FRONTIERS_DIR,
    error::StorageError,
    schema::{self, HEAD_KEY, HeadRecord, StateColumn},
    state::{Tree, frontier::Frontier, load::ColumnRows},
    tuning::Tuning,
};

const TREE: &str = "tree";
const TOUCHED: &str = "touched";
/// Another tree is due once one path per this number of leaves was touched, and at least [`Tuning::touched_min`] paths.
/// A tree takes about 2 bytes a leaf, so that writing it adds 400 bytes per touched path.
const LEAVES_PER_PATH: u64 = 200;
/// Maximum bytes of touched paths since a tree was written. A store that cannot write trees stops noting there, and
/// opens from its rows.
const TOUCHED_BYTES_MAX: u64 = 256 << 20;
/// With fewer leaves per touched path, reading all rows is faster.
const LEAVES_PER_PATH_MIN: u64 = 64;
/// Touched paths that are read again whatever the number of leaves.
const REREAD_MIN: u64 = 1 << 13;
/// Touched paths that are read again at once, between two checks of the memory budget.
const REREAD_PATHS: usize = 1 << 16;
/// Maximum bytes of memory that are kept for the next notes.
const SCRATCH_BYTES_MAX: usize = 4 << 20;

/// Names the tree that an upper part belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct TreeId {
    pub(crate) number: BatchNumber,
    pub(crate) column: StateColumn,
    pub(crate) state_root: Digest,
}

/// A tree to be written.
struct SaveJob {
    title: TreeId,
    frontier: Frontier,
    /// Batches of snapshots, whose trees are kept beside this one.
    kept: Vec<BatchNumber>,
}

/// The directory `frontiers` of a store.
pub(crate) struct Frontiers {
    dir: PathBuf,
    log: Mutex<Log>,
    /// Whether trees are synced. A store that need not survive power cuts skips it.
    fsync: bool,
    tuning: Tuning,
    faults: Faults,
    /// Whether a tree was written since [`Frontiers::note`] last looked.
    saved: Arc<AtomicBool>,
    /// Started by the first job.
    saver: Mutex<Option<Saver>>,
}

/// The thread that writes trees.
type Saver = (SyncSender<SaveJob>, JoinHandle<()>);

/// The file of touched paths that is currently written.
struct Log {
    file: Option<File>,
    /// Whether a write failed; a start then reads all rows.
    failed: bool,
    /// Bytes in this file and those before it, since a tree was written.
    bytes: u64,
    /// Paths touched since a tree was begun.
    touched: u64,
    /// Bytes of the last write, kept to reuse the memory.
    scratch: Vec<u8>,
}

impl Frontiers {
    /// Opens the directory, and creates it if it is missing. Returns `None` if it is unusable.
    pub(crate) fn open(dir: &FilePath, config: &StorageConfig, faults: &Faults) -> Option<Frontiers> {
        let dir = dir.join(FRONTIERS_DIR);
        if let Err(error) = fs::create_dir_all(&dir) {
            tracing::warn!(%error, dir = %dir.display(), "cannot use this directory for the state tree's upper part: each start reads all rows");
            return None;
        }
        for name in names(&dir).unwrap_or_default() {
            if name.ends_with(".new") {
                let _ = fs::remove_file(dir.join(name));
            }
        }
        let log = Log { file: None, failed: false, bytes: 0, touched: 0, scratch: Vec::new() };
        let (faults, saved, saver) = (faults.clone(), Arc::default(), Mutex::default());
        let StorageConfig { fsync, tuning, .. } = *config;
        Some(Frontiers { dir, log: Mutex::new(log), fsync, tuning, faults, saved, saver })
    }

    /// Loads a head's tree from these files and compares its root. Evicts cold parts beyond `resident_max` leaves.
    /// Returns `None` if all rows must be read.
    pub(crate) fn load(&self, wanted: &TreeId, rows: Arc<ColumnRows>, resident_max: u64) -> Option<Tree> {
        let key = (wanted.number, wanted.column.column(), wanted.state_root);
        let (tree, touched) = load(&self.dir, key, rows, resident_max)?;
        self.log.lock().touched = touched;
        Some(tree)
    }

    /// The directory that [`load`] reads.
    pub(crate) fn dir(&self) -> &FilePath {
        &self.dir
    }

    /// Begins to note what is touched after a head.
    pub(crate) fn begin(&self, head: BatchNumber) {
        let mut log = self.log.lock();
        let path = self.path(head, TOUCHED);
        let open = || {
            let file = File::options().create(true).append(true).open(&path)?;
            // A note after a torn one would never be found.
            if file.metadata()?.len() > 0 {
                file.set_len(read_touched(&path, &mut Vec::new()).map_or(0, |(_, len)| len))?;
            }
            Ok(file)
        };
        let opened: io::Result<File> = open();
        log.failed = opened.is_err();
        if let Err(error) = &opened {
            tracing::warn!(%error, path = %path.display(), "cannot record touched paths: the next start takes longer");
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
        let mut noted = NoteEncoder::begin(&mut log.scratch, head.map_or(0, |head| head.number.get()));
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
        let paths = noted.end();
        if paths == 0 && head.is_none() {
            return;
        }
        log.touched += paths;
        if self.saved.swap(false, Ordering::AcqRel) {
            log.bytes = 0;
        }
        log.bytes += log.scratch.len() as u64;
        let Some(file) = &mut log.file else { return };
        let mut append = || -> Result<(), StorageError> {
            self.faults.pass(CrashPoint::Before(WriteStep::FrontierNote))?;
            let written = match log.bytes > TOUCHED_BYTES_MAX {
                true => Err(io::Error::other("too many paths were touched since the last saved tree")),
                false => file.write_all(&log.scratch),
            };
            written.map_err(|error| StorageError::io("write to", &self.dir, error))?;
            self.faults.pass(CrashPoint::After(WriteStep::FrontierNote))
        };
        if let Err(error) = append() {
            tracing::warn!(%error, "cannot record a write's touched paths: the next start takes longer");
            (log.file, log.failed) = (None, true);
        }
        if log.scratch.capacity() > SCRATCH_BYTES_MAX {
            log.scratch = Vec::new();
        }
    }

    /// Whether enough was touched since the last tree to make another one worth writing.
    pub(crate) fn is_due(&self, leaves: u64) -> bool {
        let log = self.log.lock();
        log.touched >= self.tuning.touched_min.max(leaves / LEAVES_PER_PATH)
            || log.file.is_none() && !log.failed
    }

    /// Whether enough was touched since the last tree to make another one worth waiting for.
    pub(crate) fn is_behind(&self) -> bool {
        let log = self.log.lock();
        log.touched >= self.tuning.touched_at_close_min || log.file.is_none()
    }

    /// Hands the upper part of a head's tree to the thread that writes it, unless two are in flight. The caller ensures
    /// that no write has followed that head. `kept` has the batches of snapshots, whose trees are loaded from these
    /// files too.
    pub(crate) fn save(&self, title: TreeId, frontier: Frontier, kept: Vec<BatchNumber>) {
        let mut job = SaveJob { title, frontier, kept };
        let mut saver = self.saver.lock();
        // The second try replaces a thread that has ended.
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

    /// Waits until all trees that were handed over are written.
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
        let (sender, jobs) = sync_channel::<SaveJob>(1);
        let (dir, fsync, faults) = (self.dir.clone(), self.fsync, self.faults.clone());
        let saved = Arc::clone(&self.saved);
        let save_all = move || {
            for job in jobs {
                let number = job.title.number;
                let save = || {
                    faults.pass(CrashPoint::Before(WriteStep::FrontierSave))?;
                    save(&dir, &job, fsync)?;
                    faults.pass(CrashPoint::After(WriteStep::FrontierSave))
                };
                match save() {
                    Ok(()) => {
                        saved.store(true, Ordering::Release);
                        forget(&dir, number, &job.kept);
                    }
                    Err(error) => tracing::warn!(
                        %number, %error, dir = %dir.display(),
                        "cannot write the state tree's upper part: the next start takes longer"
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

/// Loads the tree after a batch from a directory, and compares its root with `state_root`. Evicts cold parts beyond
/// `resident_max` leaves. Also returns how many paths it read again. Returns `None` if all rows must be read.
pub(crate) fn load(
    dir: &FilePath,
    (number, column, state_root): (BatchNumber, Column, Digest),
    rows: Arc<ColumnRows>,
    resident_max: u64,
) -> Option<(Tree, u64)> {
    let start = Instant::now();
    let from = numbers(dir, TREE).into_iter().rev().find(|from| *from <= number)?;
    let refuse = |reason: &str| {
        tracing::info!(%from, %number, reason, "cannot use the saved upper part of the state tree; reading all rows instead");
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
        return refuse("the paths touched since then are unknown or too many");
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
    tracing::info!(rows = tree.leaves(), %from, %number, touched, ms, "loaded the state tree from its saved upper part");
    Some((tree, touched))
}

/// Returns the sorted paths touched between two batches, and perhaps some touched later. Returns `None` if the notes
/// have a gap or more than `max` paths.
fn touched(dir: &FilePath, from: BatchNumber, to: BatchNumber, max: u64) -> Option<Vec<Path>> {
    let mut paths = Vec::new();
    let mut known = from;
    for number in numbers(dir, TOUCHED).into_iter().filter(|number| *number >= from && *number <= to) {
        // Nothing may be missing between the end of one file and the beginning of the next.
        (number <= known).then_some(())?;
        known = known.max(read_touched(&dir.join(format!("{number}.{TOUCHED}")), &mut paths)?.0);
        (paths.len() as u64 <= max).then_some(())?;
    }
    (known >= to).then_some(())?;
    paths.sort_unstable();
    paths.dedup();
    Some(paths)
}

/// Removes files that a newly written tree makes useless: neither the head's tree nor that of a kept batch needs
/// them.
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
            tracing::warn!(%error, path = %path.display(), "cannot remove an old frontier");
        }
    }
}

fn names(dir: &FilePath) -> io::Result<Vec<String>> {
    fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Numbers of the files of one kind, ascending.
fn numbers(dir: &FilePath, kind: &str) -> Vec<BatchNumber> {
    let names = names(dir).unwrap_or_default();
    let mut numbers: Vec<BatchNumber> = names.iter().filter_map(|name| number_of(name, kind)).collect();
    numbers.sort_unstable();
    numbers
}

fn number_of(name: &str, kind: &str) -> Option<BatchNumber> {
    let number = name.strip_suffix(kind)?.strip_suffix('.')?.parse().ok()?;
    Some(BatchNumber::new(number))
}
