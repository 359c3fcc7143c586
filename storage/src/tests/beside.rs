//! A snapshot is read beside the store that made it and drops it.

use std::{
    os::unix::fs::MetadataExt,
    time::{Duration, Instant},
};

use slipstream_types::{Path, Waypoint};

use super::*;
use crate::{Snapshot, StateHistory, StorageError, Trust, snapshots_beside, verify_export, write_export};

/// Goal: a process that opened a snapshot has all of it, even after its store drops it. A later process learns that
/// it is gone.
#[test]
fn a_snapshot_outlives_its_directory_for_who_has_it_open() {
    let config = StorageConfig { snapshot_interval_batches: 10, snapshots_kept: 1, ..config() };
    let fixture = Fixture::initialized(&config, true);
    let (store, dir) = (fixture.store(), fixture.dir());
    let number = BatchNumber::new(10);
    let look = |number| Snapshot::open_beside(&config, dir, number);
    let mut ledger = Ledger::new();
    // The rows are in files and in the log.
    let changes: Vec<_> =
        (0..600u16).map(|i| (slot_key((i % 250) as u8, (i / 250) as u8), slot(9))).collect();
    ledger.commit(store, &changes);
    assert!(snapshots_beside(dir).unwrap().is_empty());
    assert!(look(number).unwrap().is_none());
    ledger.commit_up_to(store, 10);
    assert_eq!(snapshots_beside(dir).unwrap(), [number]);

    let opened = look(number).unwrap().unwrap();
    let expected = store.snapshot(number).unwrap().unwrap();
    assert_eq!(opened.info().certificate, expected.info().certificate);
    let chunk = expected.chunk(Path::MIN, 4_096).unwrap();
    drop(expected);
    ledger.commit_up_to(store, 20);
    assert_eq!(snapshots_beside(dir).unwrap(), [BatchNumber::new(20)]);
    assert!(look(number).unwrap().is_none());
    // Its files are removed beside the commits.
    let deadline = Instant::now() + Duration::from_secs(60);
    let left = || std::fs::read_dir(dir.join("snapshots")).unwrap().count();
    while left() > 1 {
        assert!(Instant::now() < deadline, "something is left of it");
        std::thread::yield_now();
    }

    assert_eq!(opened.chunk(Path::MIN, 4_096).unwrap(), chunk);
    let parent = tempfile::tempdir().unwrap();
    let export = parent.path().join("export");
    let summary = write_export(&opened, &export).unwrap();
    let waypoint = Waypoint::of(&store.certificate(number).unwrap().unwrap().info);
    let trust = Trust { waypoint: Some(waypoint), genesis: None };
    assert_eq!(verify_export(&export, &trust).unwrap(), summary);
}

/// Goal: a snapshot of a chain with little activity leaves one small file, not one per column, and does not copy the
/// log before it.
#[test]
fn a_snapshot_flushes_what_is_worth_a_file() {
    const SNAPSHOTS: u64 = 3;
    // Past states have files of their own.
    let config =
        StorageConfig { snapshot_interval_batches: 20, state_history: StateHistory::Batches(0), ..config() };
    let fixture = Fixture::initialized(&config, true);
    let store = fixture.store();
    let files = |dir: &std::path::Path, extension: &str| -> Vec<_> {
        let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
        entries.filter(|entry| entry.path().extension().is_some_and(|it| it == extension)).collect()
    };
    let count = |extension| files(&fixture.dir().join("db"), extension).len() as u64;
    let (tables, logs) = (count("sst"), count("log"));
    let mut ledger = Ledger::new();
    for snapshot in 1..=SNAPSHOTS {
        ledger.commit_up_to(store, 20 * snapshot);
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while count("log") < logs + SNAPSHOTS || count("sst") < tables + SNAPSHOTS {
        assert!(Instant::now() < deadline, "{} tables", count("sst"));
        std::thread::yield_now();
    }
    assert_eq!(count("sst"), tables + SNAPSHOTS);
    let number = BatchNumber::new(20 * SNAPSHOTS);
    let opened = Snapshot::open_beside(&config, fixture.dir(), number).unwrap().unwrap();
    let chunk = opened.chunk(Path::MIN, 4_096).unwrap();
    chunk.verify(ledger.head.state_root).unwrap();
    // Some of its logs are the database's own files. It alone has those that the database no longer needs.
    let of_snapshot = files(&fixture.dir().join("snapshots").join(number.get().to_string()), "log");
    assert!(of_snapshot.iter().any(|entry| entry.metadata().unwrap().nlink() > 1), "all are copies");
}

/// Goal: a directory under a wrong name counts as damage of that snapshot, and nothing in it is trusted.
#[test]
fn a_snapshot_of_another_batch_is_refused() {
    let config = StorageConfig { snapshot_interval_batches: 10, ..config() };
    let fixture = Fixture::initialized(&config, true);
    Ledger::new().commit_up_to(fixture.store(), 10);
    let snapshots = fixture.dir().join("snapshots");
    std::fs::rename(snapshots.join("10"), snapshots.join("11")).unwrap();
    let refused = Snapshot::open_beside(&config, fixture.dir(), BatchNumber::new(11));
    assert!(matches!(refused.err().unwrap(), StorageError::DamagedSnapshot { .. }));
}
