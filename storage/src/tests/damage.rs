//! Flipped bytes in files that nothing in use depends on: the store says which part is damaged, and goes on.

use std::{fs, path::Path as FilePath};

use slipstream_types::Path;

use super::*;
use crate::{StorageError, backend::Column, plain_database};

/// Tables of a column of a closed store.
fn tables(fixture: &Fixture, column: Column) -> Vec<String> {
    let database = plain_database(&fixture.config, fixture.dir()).unwrap();
    let files = database.live_files().unwrap().into_iter();
    let files = files.filter(|file| file.column_family_name == column.name());
    files.map(|file| file.name.trim_start_matches('/').to_owned()).collect()
}

/// Puts a copy with another byte in the first block in the place of a table: what is linked to it stays.
fn damage(table: &FilePath) {
    let mut bytes = fs::read(table).unwrap();
    bytes[12] ^= 1;
    fs::remove_file(table).unwrap();
    fs::write(table, bytes).unwrap();
}

/// Goal: nobody is told that the store is damaged when a snapshot of it is.
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
    let snapshot = fixture.store().snapshot(BatchNumber(10)).unwrap().unwrap();
    let error = snapshot.chunk(Path::MIN, 1_000).unwrap_err();
    assert!(
        matches!(&error, StorageError::DamagedSnapshot { number: BatchNumber(10), what } if what.contains(&tables[0])),
        "{error}"
    );
    ledger.commit_up_to(fixture.store(), 13);
}
