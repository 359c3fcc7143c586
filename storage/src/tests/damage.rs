//! Flipped bytes in files that nothing in use depends on: the store names the damaged part, and continues.

use std::{fs, path::Path as FilePath};

use slipstream_types::Path;

use super::{
    restore::{headers, served, target},
    *,
};
use crate::{
    Ancestry, Restore, RestoreError, Snapshot, StorageError, Takeover, backend::Column, plain_database,
};

/// Returns the tables of a column of a closed store.
fn tables(fixture: &Fixture, column: Column) -> Vec<String> {
    let database = plain_database(&fixture.config, fixture.dir()).unwrap();
    let files = database.live_files().unwrap().into_iter();
    let files = files.filter(|file| file.column_family_name == column.name());
    files.map(|file| file.name.trim_start_matches('/').to_owned()).collect()
}

/// Replaces a table by a copy with another byte in the first block. Hard links to it stay intact.
fn damage(table: &FilePath) {
    let mut bytes = fs::read(table).unwrap();
    bytes[12] ^= 1;
    fs::remove_file(table).unwrap();
    fs::write(table, bytes).unwrap();
}

/// Goal: damage of a snapshot is not reported as damage of the store.
#[test]
fn a_damaged_snapshot_is_named_and_the_store_goes_on() {
    let serving = StorageConfig { snapshot_interval_batches: 10, ..config() };
    let mut fixture = Fixture::initialized(&serving, true);
    let mut ledger = Ledger::new();
    ledger.commit_up_to(fixture.store(), 8);
    fixture.store = None;
    let tables = tables(&fixture, Column::StateA);
    fixture.reopen();
    ledger.commit_up_to(fixture.store(), 12);
    fixture.store = None;
    let table = fixture.dir().join("snapshots/10").join(&tables[0]);
    damage(&table);
    fixture.reopen();
    let snapshot = fixture.store().snapshot(BatchNumber::new(10)).unwrap().unwrap();
    let error = snapshot.chunk(Path::MIN, 1_000).unwrap_err();
    let StorageError::DamagedSnapshot { number, what } = &error else { panic!("{error}") };
    assert!(*number == BatchNumber::new(10) && what.contains(&tables[0]), "{error}");
    ledger.commit_up_to(fixture.store(), 13);
}

fn snapshot(store: &Store, number: u64) -> Arc<Snapshot> {
    store.snapshot(BatchNumber::new(number)).unwrap().unwrap()
}

fn add_rows(restore: &Restore, snapshot: &Snapshot) {
    while let Some(next) = restore.next_path() {
        restore.add_chunk(&snapshot.chunk(next, 300).unwrap()).unwrap();
    }
}

/// A store with the rows of batch 20, one of whose tables is damaged.
fn damaged_restore(source: &Store) -> Fixture {
    let mut fixture = Fixture::initialized(&config(), true);
    add_rows(&fixture.store().restore(&target(source, 20)).unwrap(), &snapshot(source, 20));
    fixture.store = None;
    let tables = tables(&fixture, Column::StateB);
    damage(&fixture.dir().join("db").join(&tables[0]));
    fixture.reopen();
    fixture
}

/// Checks that the error says so, that no record is left, and that a restore from the beginning completes.
fn begins_anew(store: &Store, error: &StorageError, source: &Store, number: u64) {
    assert!(matches!(error, StorageError::Restore(RestoreError::DamagedRows { .. })), "{error}");
    assert!(error.is_retryable() && !error.is_bad_supply());
    assert_eq!(store.recorded_restore().unwrap(), None);

    let restore = store.restore(&target(source, number)).unwrap();
    assert_eq!(restore.rows(), 0);
    add_rows(&restore, &snapshot(source, number));
    for hash in restore.missing_codes(10).unwrap() {
        restore.add_code(&snapshot(source, number).code(&hash).unwrap().unwrap()).unwrap();
    }
    let (headers, proof, genesis) = headers(source, number, 3);
    restore.finish(&Ancestry { headers: &headers, proof: &proof, genesis_proof: &genesis }).unwrap();
    assert_eq!(store.head().unwrap().header.number, BatchNumber::new(number));
}

/// Goal: rows that the disk lost before the restore ended cost the restore, not the node.
#[test]
fn a_restore_with_damaged_rows_begins_anew() {
    let (source, _) = served(false);
    let source = source.store();
    let fixture = damaged_restore(source);
    let store = fixture.store();
    let restore = store.restore(&target(source, 20)).unwrap();
    for hash in restore.missing_codes(10).unwrap() {
        restore.add_code(&snapshot(source, 20).code(&hash).unwrap().unwrap()).unwrap();
    }
    let (headers, proof, genesis) = headers(source, 20, 3);
    let error =
        restore.finish(&Ancestry { headers: &headers, proof: &proof, genesis_proof: &genesis }).unwrap_err();
    begins_anew(store, &error, source, 20);
}

/// Goal: damaged rows of a restore also cost only the restore if a newer target finds the damage.
#[test]
fn a_retargeted_restore_with_damaged_rows_begins_anew() {
    let (source, _) = served(false);
    let source = source.store();
    let fixture = damaged_restore(source);
    let store = fixture.store();
    let restore = store.restore(&target(source, 30)).unwrap();
    let check = |restore: &Restore| -> Result<(), StorageError> {
        while let Some(span) = restore.unchecked(1)?.pop() {
            restore.check_range(span, &snapshot(source, 30).range_proof(span.first, span.last)?)?;
        }
        Ok(())
    };
    let error = check(&restore).unwrap_err();
    let late = check(&restore).unwrap_err();
    assert!(matches!(late, StorageError::Restore(RestoreError::Superseded { .. })), "{late}");
    begins_anew(store, &error, source, 30);
}

fn copy_dir(from: &FilePath, to: &FilePath) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Goal: where the log's end was lost, a snapshot may hold the last copy of some batches. It is kept, and not served
/// until the ledger is there again.
#[test]
fn a_snapshot_above_the_head_is_kept_and_not_served() {
    let serving = StorageConfig { snapshot_interval_batches: 10, ..config() };
    let mut fixture = Fixture::initialized(&serving, true);
    let mut ledger = Ledger::new();
    ledger.commit_up_to(fixture.store(), 8);
    fixture.store = None;
    let (database, older) = (fixture.dir().join("db"), fixture.dir().join("older"));
    copy_dir(&database, &older);
    let mut replayed = ledger.clone();
    fixture.reopen();
    ledger.commit_up_to(fixture.store(), 12);
    fixture.store = None;
    fs::remove_dir_all(&database).unwrap();
    fs::rename(&older, &database).unwrap();

    let frozen = fixture.dir().join("snapshots/10/CURRENT");
    for number in [8, 9] {
        fixture.reopen();
        assert_eq!(fixture.store().head().unwrap().header.number, BatchNumber::new(number));
        assert_eq!(fixture.store().snapshots(), []);
        assert!(frozen.exists());
        replayed.commit_up_to(fixture.store(), 9);
    }
    replayed.commit_up_to(fixture.store(), 12);
    let served = snapshot(fixture.store(), 10);
    let chunk = served.chunk(Path::MIN, 1_000).unwrap();
    chunk.verify(served.info().state_root).unwrap();
}
