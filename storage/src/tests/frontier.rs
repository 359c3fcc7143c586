//! Opening by the tree's upper part gives the same store as opening by all rows, whatever happened to the files. A row outside the tree
//! is never accepted.

use std::{fs, path::PathBuf};

use proptest::prelude::*;
use slipstream_types::Path;

use super::*;
use crate::{
    StorageError,
    backend::{Column, WriteBatch},
};

/// Damages the files of a stopped store.
type Damage = fn(&Fixture);

/// Changes of a batch: some rows of many, so that the tree has parts to evict.
fn changes(random: &mut u64) -> Vec<(StateKey, Option<StateValue>)> {
    let mut draw = |n: u64| {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*random >> 33) % n
    };
    let changes: BTreeMap<_, _> =
        (0..20).map(|_| (slot_key(draw(6) as u8, draw(250) as u8), slot(draw(5)))).collect();
    changes.into_iter().collect()
}

fn grow(ledger: &mut Ledger, store: &Store, batches: u64, random: &mut u64) {
    for _ in 0..batches {
        ledger.commit(store, &changes(random));
    }
}

fn is_unread(fixture: &Fixture) -> bool {
    fixture.store().is_unread()
}

fn files(fixture: &Fixture, kind: &str) -> Vec<PathBuf> {
    let dir = fixture.dir().join("frontiers");
    let mut files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == kind));
    files.sort();
    files
}

/// A store of some hundred rows, stopped well after its last tree was written, and its ledger.
fn stopped() -> (Fixture, Ledger) {
    let mut fixture = Fixture::initialized(&config(), true);
    let (mut ledger, mut random) = (Ledger::new(), 1);
    grow(&mut ledger, fixture.store(), 40, &mut random);
    fixture.store().close();
    grow(&mut ledger, fixture.store(), 2, &mut random);
    fixture.close();
    (fixture, ledger)
}

/// Checks that the store is that ledger's, and can continue.
fn is_whole(fixture: &Fixture, ledger: &mut Ledger) {
    let store = fixture.store();
    assert_eq!(store.head().unwrap().header, ledger.head);
    let view = store.view().unwrap();
    let keys: Vec<StateKey> = ledger.state.keys().copied().collect();
    let rows = view.rows(&keys).unwrap();
    assert!(rows.into_iter().eq(ledger.state.values().map(|value| Some(*value))));
    grow(ledger, store, 3, &mut 99);
    assert_eq!(store.subtree(&Path::MIN, 0).unwrap().hash(), state_root(&ledger.state));
}

#[test]
fn a_stopped_store_opens_by_what_it_left() {
    let (mut fixture, mut ledger) = stopped();
    fixture.reopen();
    assert!(is_unread(&fixture), "it read all rows");
    is_whole(&fixture, &mut ledger);
    // The same again, on files that several lives left.
    for _ in 0..3 {
        fixture.reopen();
        assert!(is_unread(&fixture));
        is_whole(&fixture, &mut ledger);
    }
    fixture.store().close();
    fixture.reopen();
    assert!(is_unread(&fixture));
    assert_eq!(
        (files(&fixture, "tree").len(), files(&fixture, "touched").len()),
        (1, 1),
        "old ones are gone"
    );
}

/// Goal: whatever happens to the frontier files, the store opens with the same state, from its rows if need be, and
/// leaves better files.
#[test]
fn damaged_and_missing_files_cost_time_only() {
    let damage: [(&str, Damage); 8] = [
        ("no directory", |fixture| fs::remove_dir_all(fixture.dir().join("frontiers")).unwrap()),
        ("no tree", |fixture| files(fixture, "tree").iter().for_each(|path| fs::remove_file(path).unwrap())),
        ("a cut tree", |fixture| {
            let path = files(fixture, "tree").pop().unwrap();
            let bytes = fs::read(&path).unwrap();
            fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        }),
        ("a flipped bit in each place of a tree", |fixture| {
            let path = files(fixture, "tree").pop().unwrap();
            let mut bytes = fs::read(&path).unwrap();
            let at = bytes.len() / 2;
            bytes[at] ^= 4;
            fs::write(&path, bytes).unwrap();
        }),
        ("a huge length", |fixture| {
            let path = files(fixture, "tree").pop().unwrap();
            let mut bytes = fs::read(&path).unwrap();
            bytes[22..30].fill(0x7f);
            fs::write(&path, bytes).unwrap();
        }),
        ("no paths", |fixture| {
            files(fixture, "touched").iter().for_each(|path| fs::remove_file(path).unwrap())
        }),
        ("cut paths", |fixture| {
            let path = files(fixture, "touched").pop().unwrap();
            let bytes = fs::read(&path).unwrap();
            fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        }),
        ("a flipped bit in the paths", |fixture| {
            let path = files(fixture, "touched").pop().unwrap();
            let mut bytes = fs::read(&path).unwrap();
            bytes[30] ^= 1;
            fs::write(&path, bytes).unwrap();
        }),
    ];
    for (what, damage) in damage {
        let (mut fixture, mut ledger) = stopped();
        damage(&fixture);
        fixture.reopen();
        assert!(!is_unread(&fixture), "{what}: it did not read its rows");
        is_whole(&fixture, &mut ledger);
        fixture.store().close();
        fixture.reopen();
        assert!(is_unread(&fixture), "{what}: it left nothing to open by");
        is_whole(&fixture, &mut ledger);
    }
}

/// Goal: with bytes all over a tree's file changed in turn, the store never opens with another state.
#[test]
fn no_altered_tree_is_believed() {
    let (mut fixture, ledger) = stopped();
    let path = files(&fixture, "tree").pop().unwrap();
    let bytes = fs::read(&path).unwrap();
    for at in (0..bytes.len()).step_by(bytes.len() / 60) {
        let mut altered = bytes.clone();
        altered[at] ^= 1;
        for path in files(&fixture, "tree") {
            fs::remove_file(path).unwrap();
        }
        fs::write(&path, altered).unwrap();
        fixture.reopen();
        assert!(!is_unread(&fixture), "byte {at}");
        assert_eq!(fixture.store().head().unwrap().header, ledger.head);
        fixture.close();
    }
}

/// Changes rows directly in the backend, as only damage does, and reopens the store.
fn spoil(fixture: &mut Fixture, rows: &[(StateKey, Option<StateValue>)]) {
    let mut writes = WriteBatch::default();
    for (key, value) in rows {
        match value {
            Some(value) => writes.put(Column::StateA, key.path().0, crate::schema::encode_row(key, value)),
            None => writes.delete(Column::StateA, key.path().0),
        }
    }
    fixture.store().0.backend.write(writes, true).unwrap();
    fixture.reopen();
}

/// Compares all rows. Returns their number.
fn scrub(store: &Store) -> Result<u64, StorageError> {
    let (mut next, mut rows) = (Some(Path::MIN), 0);
    while let Some(from) = next {
        let scrubbed = store.scrub(from)?;
        assert!(scrubbed.next.is_none_or(|next| next > from));
        (next, rows) = (scrubbed.next, rows + scrubbed.rows);
    }
    Ok(rows)
}

/// Goal: a scrub finds any row that is wrong, missing or surplus since before the start, and no snapshot serves such
/// rows.
#[test]
fn a_scrub_finds_every_row_that_is_wrong() {
    let (mut fixture, ledger) = stopped();
    fixture.reopen();
    // Nothing has to be read again at the next start.
    fixture.store().close();
    fixture.reopen();
    let mut keys: Vec<StateKey> = ledger.state.keys().copied().step_by(ledger.state.len() / 12).collect();
    keys.extend([slot_key(0xcc, 1), account_key(0xaa), account_key(0xee), slot_key(3, 0xfe)]);
    // The repair of the last row is written with the next wrong one, because each start costs more than the rest.
    let mut back = None;
    for key in keys {
        let (right, changed) = (
            ledger.state.get(&key).copied(),
            match key {
                StateKey::Account(_) => account(77),
                StateKey::Slot(..) => slot(1_234),
            },
        );
        for wrong in [changed, None].into_iter().filter(|wrong| *wrong != right) {
            let rows: Vec<_> = back.replace((key, right)).into_iter().chain([(key, wrong)]).collect();
            spoil(&mut fixture, &rows);
            assert!(is_unread(&fixture), "{key:?}");
            let error = scrub(fixture.store()).unwrap_err();
            assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
            let snapshot = fixture.store().create_snapshot().unwrap();
            let snapshot = fixture.store().snapshot(snapshot.number).unwrap().unwrap();
            let served = snapshot.chunk(Path::MIN, 1 << 20);
            assert!(matches!(served, Err(StorageError::DamagedSnapshot { .. })), "{key:?}: {served:?}");
            drop(snapshot);
            fixture.store().0.snapshots.lock().clear();
            fixture.store().0.backend.remove_checkpoint(ledger.head.number.get()).unwrap();
        }
    }
    spoil(&mut fixture, back.as_slice());
    scrub(fixture.store()).unwrap();
}

/// Goal: a row that is wrong since before the start is found by the first commit that touches it, and by reading all
/// rows.
#[test]
fn wrong_rows_are_found_when_they_are_touched() {
    let (mut fixture, ledger) = stopped();
    fixture.reopen();
    fixture.store().close();
    let key = *ledger.state.keys().find(|key| matches!(key, StateKey::Slot(..))).unwrap();
    spoil(&mut fixture, &[(key, slot(1_234))]);
    assert!(is_unread(&fixture));
    let made = ledger.make(&[(key, slot(3))], Vec::new());
    let error = fixture.store().commit(made.batch(), None).unwrap_err();
    assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
    fs::remove_dir_all(fixture.dir().join("frontiers")).unwrap();
    fixture.close();
    assert!(matches!(Store::open(&config(), fixture.dir()), Err(StorageError::Corrupt { .. })));
}

#[test]
fn a_scrub_reads_what_nobody_did() {
    let (mut fixture, mut ledger) = stopped();
    fixture.reopen();
    assert_eq!(scrub(fixture.store()).unwrap(), ledger.state.len() as u64);
    fixture.store().end_scrub();
    assert!(!is_unread(&fixture));
    is_whole(&fixture, &mut ledger);
}

/// Goal: a snapshot of an earlier process is served before its rows are read. Every served chunk is of its root.
#[test]
fn a_snapshot_is_served_again_by_its_frontier() {
    let serving = StorageConfig { snapshot_interval_batches: 20, ..config() };
    let mut fixture = Fixture::initialized(&serving, true);
    let (mut ledger, mut random) = (Ledger::new(), 5);
    grow(&mut ledger, fixture.store(), 45, &mut random);
    fixture.store().close();
    fixture.reopen();
    let number = BatchNumber::new(40);
    let snapshot = fixture.store().snapshot(number).unwrap().unwrap();
    assert!(!snapshot.is_ready());
    let mut first = Some(Path::MIN);
    while let Some(from) = first {
        let chunk = snapshot.chunk(from, 400).unwrap();
        chunk.verify(snapshot.info().state_root).unwrap();
        first = chunk.last.successor();
    }
    assert!(snapshot.tree().unwrap().resident() < ledger.state.len() as u64, "it read all rows");
}

proptest! {
    #![proptest_config(usually(8))]

    /// Goal: after stops, kills and commits in any order, with and without a budget, the store always equals the
    /// ledger.
    #[test]
    fn any_order_of_commits_and_starts(
        steps in prop::collection::vec((0..4u8, 1..8u64), 1..14),
        seed in any::<u64>(),
        tiny in any::<bool>(),
    ) {
        // A mebibyte is 8,388 leaves, more than there are, so only the files drop parts.
        let config = StorageConfig { tree_memory_mib: u64::from(tiny), ..config() };
        let mut fixture = Fixture::initialized(&config, true);
        let (mut ledger, mut random) = (Ledger::new(), seed);
        for (step, batches) in steps {
            match step {
                0 => fixture.reopen(),
                1 => {
                    fixture.store().close();
                    fixture.reopen();
                }
                _ => grow(&mut ledger, fixture.store(), batches, &mut random),
            }
            prop_assert_eq!(fixture.store().head().unwrap().header, ledger.head.clone());
        }
        fixture.reopen();
        prop_assert!(is_unread(&fixture));
        is_whole(&fixture, &mut ledger);
    }
}
