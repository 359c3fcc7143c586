//! Files that a store's directory lacks: it is refused, and what is left of it stays.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path as FilePath, PathBuf},
};

use super::*;
use crate::{Maintenance, ReadOnly, Repair, StorageError};

/// The files below a directory but for RocksDB's own log and lock: names and contents.
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
fn closed() -> Fixture {
    let mut fixture = Fixture::initialized(&config(), true);
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

/// Every way in refuses the directory as damaged, twice, and leaves each file as it is.
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

/// Goal: a store that lost a file is never taken for an empty place: nothing else of it goes.
#[test]
fn a_store_that_lacks_a_file_is_refused_and_left_alone() {
    let fixture = closed();
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

/// Goal: a first start that was killed at any moment is done again; where no store is, only [`Store::open`] makes one.
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
}

/// Goal: a snapshot that cannot be read now may be all there is later: a start keeps it, and what an operator put beside it.
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
