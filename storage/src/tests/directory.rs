//! A store's directory that lacks files is refused, and the rest of it stays.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path as FilePath, PathBuf},
};

use super::*;
use crate::{Maintenance, ReadOnly, Repair, StorageError};

/// Returns names and contents of the files below a directory, except for RocksDB's own log and lock.
fn files(dir: &FilePath) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap().to_string_lossy();
        if path.is_dir() {
            found.extend(files(&path));
        } else if name != "LOCK" && !name.starts_with("LOG") {
            let content = fs::read(&path).unwrap();
            found.insert(path, content);
        }
    }
    found
}

fn copy_tree(from: &FilePath, to: &FilePath) {
    fs::create_dir_all(to).unwrap();
    for path in fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
        let target = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy_tree(&path, &target),
            false => drop(fs::copy(&path, &target).unwrap()),
        }
    }
}

/// A closed store with tables and a log.
fn closed(config: &StorageConfig) -> Fixture {
    let mut fixture = Fixture::initialized(config, true);
    let mut ledger = Ledger::new();
    ledger.commit_up_to(fixture.store(), 8);
    fixture.reopen();
    ledger.commit_up_to(fixture.store(), 12);
    fixture.store = None;
    fixture
}

fn of_kind(dir: &FilePath, kind: &str) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir.join("db")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths.filter(|path| path.to_string_lossy().contains(kind)).collect();
    paths.sort_unstable();
    paths
}

/// Checks that every way to open it refuses the directory as damaged, twice, and leaves each file as it is.
fn refused(dir: &FilePath, what: &str) {
    let before = files(dir);
    for attempt in 0..2 {
        let opened = [
            Store::open(&config(), dir).err(),
            Maintenance::open(&config(), dir).err(),
            Repair::open(&config(), dir).err(),
        ];
        for (way, error) in opened.into_iter().enumerate() {
            let error = error.unwrap_or_else(|| panic!("{what}: way {way} opened at attempt {attempt}"));
            assert!(matches!(error, StorageError::Corrupt { .. }), "{what}: {error}");
        }
    }
    assert!(files(dir) == before, "{what}: files changed");
}

/// Goal: a store that lost a file is never taken for an empty directory, and keeps everything else.
#[test]
fn a_store_that_lacks_a_file_is_refused_and_left_alone() {
    let fixture = closed(&config());
    let dir = fixture.dir();
    let tables = of_kind(dir, ".sst");
    let manifest = of_kind(dir, "MANIFEST-").pop().unwrap();
    let losses = [
        vec![dir.join("FORMAT")],
        vec![dir.join("db/CURRENT")],
        vec![manifest.clone()],
        vec![tables[0].clone()],
        vec![tables.last().unwrap().clone()],
        of_kind(dir, ".log"),
        [of_kind(dir, ".log"), vec![dir.join("FORMAT"), dir.join("db/CURRENT"), manifest.clone()]].concat(),
        of_kind(dir, ""),
        vec![dir.join("db/CURRENT"), manifest.clone()],
    ];
    for lost in losses {
        let copy = tempfile::tempdir().unwrap();
        copy_tree(dir, copy.path());
        for path in &lost {
            let path = copy.path().join(path.strip_prefix(dir).unwrap());
            let _ = fs::remove_file(path);
        }
        refused(copy.path(), &format!("without {lost:?}"));
    }
    for emptied in [&dir.join("FORMAT"), &dir.join("db/CURRENT"), &manifest, &tables[0]] {
        let copy = tempfile::tempdir().unwrap();
        copy_tree(dir, copy.path());
        fs::write(copy.path().join(emptied.strip_prefix(dir).unwrap()), "").unwrap();
        refused(copy.path(), &format!("with an empty {}", emptied.display()));
    }
    let copy = tempfile::tempdir().unwrap();
    copy_tree(dir, copy.path());
    fs::remove_file(copy.path().join("db/CURRENT")).unwrap();
    let error = ReadOnly::open(&config(), copy.path()).err().unwrap().to_string();
    assert!(error.contains("lacks db/CURRENT") && error.contains("put back"), "{error}");
    drop(Store::open(&config(), dir).unwrap());
}

/// Returns a copy of a store after a change of its files.
fn changed(dir: &FilePath, change: impl FnOnce(&FilePath)) -> tempfile::TempDir {
    let copy = store_dir();
    copy_tree(dir, copy.path());
    change(copy.path());
    copy
}

fn cut(file: &FilePath, len: impl FnOnce(u64) -> u64) {
    let before = fs::metadata(file).unwrap().len();
    fs::File::options().write(true).open(file).unwrap().set_len(len(before)).unwrap();
}

/// Goal: acknowledged data is there, or the store is refused: a log or manifest that lost its end is not taken for a
/// power cut. Once the file is put back, the store opens.
#[test]
fn a_store_that_lost_what_it_acknowledged_is_refused_and_left_alone() {
    let synced = StorageConfig { fsync: true, ..config() };
    let fixture = closed(&synced);
    let dir = fixture.dir();
    // The longest file, because a new log may hold no acknowledged write.
    let longest = |kind: &str| {
        let found = of_kind(dir, kind).into_iter();
        found.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap()
    };
    let place = |copy: &FilePath, kind: &str| copy.join(longest(kind).strip_prefix(dir).unwrap());
    type Cut = fn(u64) -> u64;
    let cuts: [(&str, Cut); 3] =
        [("a byte less", |len| len - 1), ("half", |len| len / 2), ("nothing", |_| 0)];
    for kind in [".log", "MANIFEST-"] {
        for (what, len) in cuts {
            let copy = changed(dir, |copy| cut(&place(copy, kind), len));
            // The last bytes may be of a write that nobody waited for.
            if what == "a byte less"
                && let Ok(store) = Store::open(&synced, copy.path())
            {
                assert_eq!(store.head().unwrap().header.number, BatchNumber::new(12), "{kind}");
                continue;
            }
            refused(copy.path(), &format!("{kind} with {what}"));
            let error = crate::stats_of(&synced, copy.path()).err().unwrap();
            assert!(matches!(error, StorageError::Corrupt { .. }), "{kind} with {what}: {error}");
            let error = ReadOnly::open(&synced, copy.path()).err().unwrap();
            assert!(matches!(error, StorageError::Corrupt { .. }), "{kind} with {what}: {error}");
            fs::copy(longest(kind), place(copy.path(), kind)).unwrap();
            let store = Store::open(&synced, copy.path()).unwrap();
            assert_eq!(store.head().unwrap().header.number, BatchNumber::new(12));
        }
    }
    // Some bytes in a log are changed. The rest after them is whole, and would be dropped.
    let copy = changed(dir, |copy| {
        let log = place(copy, ".log");
        let mut bytes = fs::read(&log).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(log, bytes).unwrap();
    });
    refused(copy.path(), "a flipped byte in the log");
    let copy = changed(dir, |copy| fs::write(copy.join("db/CURRENT"), "MANIFEST-000001\n").unwrap());
    fs::copy(longest("MANIFEST-"), copy.path().join("db/MANIFEST-000001")).unwrap();
    refused(copy.path(), "an older manifest");
}

/// Goal: a store of a release without marks, or whose mark its operator removed, opens, and is marked from then on.
#[test]
fn a_store_without_a_mark_gets_one() {
    let synced = StorageConfig { fsync: true, ..config() };
    let fixture = closed(&synced);
    let format = |dir: &FilePath| fs::read_to_string(dir.join("FORMAT")).unwrap();
    let unmarked = |text: &str| text.split_inclusive('\n').take(2).collect::<String>();
    let copy =
        changed(fixture.dir(), |copy| fs::write(copy.join("FORMAT"), unmarked(&format(copy))).unwrap());
    drop(Store::open(&synced, copy.path()).unwrap());
    let marked = format(copy.path());
    assert!(marked.lines().nth(2).is_some_and(|line| line.starts_with("acknowledged 0000")), "{marked}");
    fs::write(copy.path().join("FORMAT"), marked.replace("acknowledged 0", "acknowledged 1")).unwrap();
    refused(copy.path(), "with a damaged mark");
    // What a power cut takes from the log was not acknowledged.
    fs::write(copy.path().join("FORMAT"), unmarked(&marked)).unwrap();
    let log = of_kind(copy.path(), ".log").pop().unwrap();
    fs::write(log, "torn").unwrap();
    drop(Store::open(&synced, copy.path()).unwrap());
}

/// Goal: a first start that was killed at any moment is repeated. Where there is no store, only [`Store::open`] makes
/// one.
#[test]
fn a_first_start_that_was_killed_is_done_again() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Maintenance::open(&config(), dir.path()).err(), Some(StorageError::NotInitialized)));
    assert!(matches!(Repair::open(&config(), dir.path()).err(), Some(StorageError::NotInitialized)));
    assert!(files(dir.path()).is_empty(), "asking makes nothing");
    fs::write(dir.path().join("FORMAT.new"), "").unwrap();
    drop(Store::open(&config(), dir.path()).unwrap());
    assert!(dir.path().join("FORMAT").exists() && !dir.path().join("FORMAT.new").exists());
    // Killed before the mark got its name.
    fs::rename(dir.path().join("FORMAT"), dir.path().join("FORMAT.new")).unwrap();
    drop(Store::open(&config(), dir.path()).unwrap());
    assert!(dir.path().join("FORMAT").exists());
    // Anything else that is left of a store is not an empty directory.
    for left in ["db/OPTIONS-000007", "db/IDENTITY", "frontiers/7.tree"] {
        let dir = tempfile::tempdir().unwrap();
        let left = dir.path().join(left);
        fs::create_dir_all(left.parent().unwrap()).unwrap();
        fs::write(left, "").unwrap();
        refused(dir.path(), "all but one file are gone");
    }
}

/// Goal: a snapshot that cannot be read now may be the last copy later. So a start keeps it, and also what an operator
/// put beside it.
#[test]
fn unreadable_snapshots_are_kept() {
    let serving = StorageConfig { snapshot_interval_batches: 10, ..config() };
    let mut fixture = Fixture::initialized(&serving, true);
    let mut ledger = Ledger::new();
    ledger.commit_up_to(fixture.store(), 12);
    fixture.store = None;
    let snapshots = fixture.dir().join("snapshots");
    let current = snapshots.join("10/CURRENT");
    let content = fs::read(&current).unwrap();
    fs::remove_file(&current).unwrap();
    fs::create_dir_all(snapshots.join("10 of monday")).unwrap();
    fs::create_dir_all(snapshots.join("7.gone")).unwrap();
    fixture.reopen();
    assert_eq!(fixture.store().snapshots(), []);
    ledger.commit_up_to(fixture.store(), 13);
    fixture.store = None;
    assert!(!snapshots.join("7.gone").exists() && snapshots.join("10 of monday").exists());
    fs::write(&current, content).unwrap();
    fixture.reopen();
    assert_eq!(fixture.store().snapshots().len(), 1);
}
