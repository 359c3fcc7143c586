//! A store that was rolled back equals one that never went further: it opens, and reaches the same roots again, or
//! others.

use std::{fs, sync::Arc};

use slipstream_types::Waypoint;

use super::{
    history::{self, check_all, window},
    *,
};
use crate::{
    CrashPoint, Faults, PruneConfig, RollbackError, RollbackReport, StateHistory, StorageError, Window,
    WriteStep,
    backend::{Column, Direction, Reader as _, faulty::FaultyBackend},
    history::past_rows::recorded_sealed,
    maintenance::Maintenance,
    rollback::roll_back,
};

const TO: u64 = 7;

/// Changes of a batch: rows that are new, changed again and removed again.
fn changes(n: u8, variant: u64) -> Vec<(StateKey, Option<StateValue>)> {
    let mut changes = BTreeMap::from([
        (account_key(n % 5), account(u64::from(n) + variant)),
        (slot_key(0xcc, n), slot(77 + variant)),
    ]);
    if n > 4 {
        changes.insert(slot_key(0xcc, n - 3), None);
    }
    changes.into_iter().collect()
}

/// Commits batches one by one or in groups. Returns the ledger after each.
fn advance(store: &Store, ledger: &mut Ledger, to: u8, variant: u64, group: usize) -> Vec<Ledger> {
    let mut ledgers = vec![ledger.clone()];
    let mut made = Vec::new();
    while ledger.head.number.get() < u64::from(to) {
        let n = ledger.head.number.get() as u8 + 1;
        let mut next = ledger.make(&changes(n, variant), Vec::new());
        next.hashes = vec![first_hash(n.into()), keccak256([1])];
        ledger.advance(&next);
        made.push(next);
        ledgers.push(ledger.clone());
    }
    history::commit(store, &made, group);
    ledgers
}

/// Hash of a batch's first transaction, as it is in the body.
fn first_hash(number: u64) -> B256 {
    keccak256(number.to_be_bytes())
}

fn maintain(fixture: &mut Fixture) -> Maintenance {
    fixture.close();
    Maintenance::open(&fixture.config, fixture.dir()).unwrap()
}

fn number(n: u64) -> BatchNumber {
    BatchNumber::new(n)
}

/// Every key and value of every column, except for the history, which may be sealed or not, the store's own records,
/// and code.
fn content(store: &Store) -> Vec<(Column, Vec<u8>, Vec<u8>)> {
    let mut rows = Vec::new();
    let columns = Column::ALL.iter().copied().filter(|column| {
        !matches!(column, Column::History | Column::HistoryLog | Column::Meta | Column::Codes)
    });
    for column in columns {
        let mut visit = |key: &[u8], value: &[u8]| {
            rows.push((column, key.to_vec(), value.to_vec()));
            Ok(std::ops::ControlFlow::Continue(()))
        };
        store.0.backend.scan(column, &[], Direction::Up, &mut visit).unwrap();
    }
    rows
}

/// Goal: after a rollback the store equals one that never went further. The history may be sealed, or its log may have
/// values that span the batch. The store continues, by the same batches or by others, with all states that it knows.
#[test]
fn a_store_that_was_rolled_back_is_as_one_that_never_went_on() {
    for (group, is_reopened, variant) in [(0, false, 0), (4, false, 1), (5, true, 0), (0, true, 1)] {
        let config = StorageConfig { snapshot_interval_batches: 4, snapshots_kept: 9, ..window(64) };
        let mut fixture = Fixture::initialized(&config, true);
        let mut ledger = Ledger::new();
        let mut ledgers = advance(fixture.store(), &mut ledger, 20, 0, group);
        if is_reopened {
            // Seals what was in the log.
            fixture.reopen();
            advance(fixture.store(), &mut ledger, 22, 0, group);
        }
        let (from, expected) = (ledger.head.number, ledgers[TO as usize].clone());
        let store = maintain(&mut fixture);
        let dry = store.roll_back(number(TO), &[], true).unwrap();
        drop(store);
        fixture.reopen();
        assert_eq!(fixture.store().head().unwrap().header.number, from, "a dry run changes nothing");
        let store = maintain(&mut fixture);
        let report = store.roll_back(number(TO), &[("past/".into(), "past/~".into())], false).unwrap();
        assert_eq!(report, dry);
        let RollbackReport { rows_put, rows_removed, blob_bytes, certificates, .. } = report;
        assert!(
            rows_put > 0 && rows_removed > 0 && blob_bytes > 0 && certificates >= from.get() - TO,
            "{report:?}"
        );
        assert!(
            report.snapshots.iter().all(|snapshot| *snapshot > number(TO)) && !report.snapshots.is_empty(),
            "{report:?}"
        );
        assert_eq!((report.from, report.to, report.state_root), (from, number(TO), expected.head.state_root));
        drop(store);

        fixture.reopen();
        let store = fixture.store();
        let head = store.head().unwrap();
        assert_eq!((&head.header, &head.accumulator), (&expected.head, &expected.accumulator));
        check_all(store, &ledgers[..=TO as usize], 0);
        let fresh = Fixture::initialized(&config, true);
        let mut again = Ledger::new();
        advance(fresh.store(), &mut again, TO as u8, 0, 0);
        assert_eq!(content(store), content(fresh.store()));
        assert!(store.snapshots().iter().all(|snapshot| snapshot.number <= number(TO)));
        for later in TO + 1..=from.get() {
            assert_eq!(store.header(number(later)).unwrap(), None);
            assert!(store.transaction_places(&first_hash(later)).unwrap().is_empty());
        }

        ledgers.truncate(TO as usize);
        let mut ledger = expected;
        ledgers.extend(advance(store, &mut ledger, 24, variant, group));
        check_all(store, &ledgers, 0);
        assert_eq!(store.head().unwrap().header.state_root, state_root(&ledger.state));
        fixture.reopen();
        check_all(fixture.store(), &ledgers, 0);
        let store = maintain(&mut fixture);
        assert!(store.check(&mut |_| {}).unwrap().damage.is_empty());
    }
}

/// Goal: an impossible rollback is refused with what would be possible, and changes nothing.
#[test]
fn a_rollback_that_cannot_be_is_refused() {
    let config = StorageConfig { state_history: StateHistory::Batches(10), ..config() };
    let mut fixture = Fixture::initialized(&config, true);
    advance(fixture.store(), &mut Ledger::new(), 30, 0, 0);
    let first = fixture.store().states_from().unwrap();
    let before = content(fixture.store());
    let store = maintain(&mut fixture);
    let refused = |to| match store.roll_back(number(to), &[], false) {
        Err(StorageError::Rollback(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(30), RollbackError::NotBelow { to: number(30), head: number(30) });
    assert_eq!(refused(99), RollbackError::NotBelow { to: number(99), head: number(30) });
    let beyond = refused(first.get() - 1);
    assert_eq!(beyond, RollbackError::BeyondWindow { to: number(first.get() - 1), first });
    assert!(beyond.to_string().contains(&format!("can go back to batch {first} at most")));
    drop(store);
    fixture.reopen();
    assert_eq!(content(fixture.store()), before);
    let store = maintain(&mut fixture);
    store.roll_back(first, &[], false).unwrap();
    drop(store);
    fixture.reopen();
    assert_eq!(fixture.store().head().unwrap().header.number, first);

    // More than one rollback may change.
    let fixture = Fixture::initialized(&window(64), false);
    let mut ledger = Ledger::new();
    for n in 0..9 {
        let changes: Vec<_> = (0..10).map(|i| (slot_key(n, i + 1), slot(5))).collect();
        ledger.commit(fixture.store(), &changes);
    }
    let roll =
        |to| roll_back(&*fixture.store().0.backend, fixture.dir(), &fixture.config, number(to), &[], true);
    assert!(matches!(roll(1), Err(StorageError::Rollback(RollbackError::TooMuch { .. }))));
    assert_eq!(roll(5).unwrap().rows_removed, 40);
}

/// Goal: a kill at any moment leaves the old head or the new one, whole, and calling again finishes.
#[test]
fn a_kill_during_a_rollback_leaves_one_head_or_the_other() {
    let config = StorageConfig { snapshot_interval_batches: 4, snapshots_kept: 9, ..window(64) };
    let points = [WriteStep::DropSnapshot, WriteStep::Rollback]
        .into_iter()
        .flat_map(|step| [CrashPoint::Before(step), CrashPoint::After(step)]);
    for point in points {
        let mut fixture = Fixture::initialized(&config, true);
        let ledgers = advance(fixture.store(), &mut Ledger::new(), 20, 0, 3);
        let store = maintain(&mut fixture);
        let dir = store.dir.clone();
        let faults = Faults::fail_at(point, 1);
        let backend = FaultyBackend::wrap(Arc::new(store.backend), &faults);
        let failed = roll_back(&*backend, &dir, &config, number(TO), &[], false);
        assert!(failed.is_err(), "{point}");
        drop(backend);
        fixture.reopen();
        let head = fixture.store().head().unwrap().header.number;
        let is_done = point == CrashPoint::After(WriteStep::Rollback);
        assert_eq!(head, number(if is_done { TO } else { 20 }), "{point}");
        check_all(fixture.store(), &ledgers[..=head.get() as usize], 0);
        let store = maintain(&mut fixture);
        match store.roll_back(number(TO), &[], false) {
            Err(StorageError::Rollback(RollbackError::NotBelow { .. })) if is_done => {}
            report => assert_eq!(report.unwrap().to, number(TO), "{point}"),
        }
        drop(store);
        fixture.reopen();
        check_all(fixture.store(), &ledgers[..=TO as usize], 0);
    }
}

/// Goal: a rollback also removes history that a crash left linked in but unrecorded, so that it is not taken for
/// another ledger's.
#[test]
fn what_was_sealed_and_not_recorded_goes_too() {
    let config = StorageConfig { state_history: StateHistory::All, ..config() };
    let mut fixture = Fixture::initialized(&config, true);
    let mut ledger = Ledger::new();
    let mut ledgers = vec![ledger.clone()];
    let grow = |store: &Store, ledger: &mut Ledger, to: u64, key: u8, ledgers: &mut Vec<Ledger>| {
        while ledger.head.number.get() < to {
            ledger.commit(store, &[(account_key(key), account(ledger.head.number.get() + 1))]);
            ledgers.push(ledger.clone());
        }
    };
    grow(fixture.store(), &mut ledger, 12, 1, &mut ledgers);
    fixture.close();
    let faults = Faults::fail_at(CrashPoint::Before(WriteStep::HistoryRecord), 1);
    let dying = Store::open_with(&config, fixture.dir(), &faults).unwrap();
    history::seal(&dying);
    drop(dying);
    let store = maintain(&mut fixture);
    let mut linked = 0;
    let mut count = |_: &[u8], _: &[u8]| {
        linked += 1;
        Ok(std::ops::ControlFlow::Continue(()))
    };
    store.backend.scan(Column::History, &[], Direction::Up, &mut count).unwrap();
    assert!(linked > 10, "{linked}");
    assert!(recorded_sealed(&store.backend).unwrap().is_some_and(|sealed| sealed < number(5)));
    store.roll_back(number(5), &[], false).unwrap();
    drop(store);
    fixture.reopen();
    ledgers.truncate(6);
    let mut ledger = ledgers[5].clone();
    grow(fixture.store(), &mut ledger, 16, 2, &mut ledgers);
    history::seal(fixture.store());
    history::let_go(fixture.store());
    check_all(fixture.store(), &ledgers, 0);
}

/// Goal: where headers are pruned, a head goes back only as far as BLOCKHASH still finds all that it can ask for. The
/// proof that the ledger passes through the waypoint survives.
#[test]
fn a_rollback_keeps_what_pruned_headers_showed() {
    let prune = PruneConfig { headers: Window::Batches(1), ..PruneConfig::of_batches([2; 4]) };
    let config = |states| StorageConfig { prune, ..window(states) };
    let mut fixture = Fixture::initialized(&config(10), true);
    Ledger::new().commit_up_to(fixture.store(), 320);
    let waypoint = Waypoint::of(&fixture.store().ledger_info(number(7)).unwrap().unwrap());
    fixture.config = config(2);
    fixture.reopen();
    fixture.store().expect_waypoint(&waypoint).unwrap();
    fixture.store().prune().unwrap();
    assert_eq!(fixture.store().ledger_info(number(7)).unwrap(), None);
    let first = number(fixture.store().headers_floor().get() + 255);
    assert!(first > number(311), "{first}");
    let store = maintain(&mut fixture);
    let before = store.record("storage/waypoint").unwrap().unwrap();
    let refused = store.roll_back(first.before(1), &[], false);
    let expected = RollbackError::NoLedger { to: first.before(1) };
    assert!(matches!(&refused, Err(StorageError::Rollback(error)) if *error == expected), "{refused:?}");
    store.roll_back(first, &[], false).unwrap();
    assert_ne!(store.record("storage/waypoint").unwrap().unwrap(), before);
    assert!(store.check(&mut |_| {}).unwrap().damage.is_empty());
    drop(store);
    fixture.reopen();
    assert_eq!(fixture.store().head().unwrap().header.number, first);
    fixture.store().expect_waypoint(&waypoint).unwrap();
    assert!(fixture.store().passes_waypoint(&waypoint).unwrap());
    let wrong = Waypoint { hash: Digest([1; 32]), ..waypoint };
    assert!(fixture.store().passes_waypoint(&wrong).is_err());
}

/// Goal: if a snapshot above the batch cannot be removed, the rollback stops before the head is moved.
#[test]
fn a_snapshot_that_stays_stops_a_rollback() {
    let config = StorageConfig { snapshot_interval_batches: 4, snapshots_kept: 9, ..window(64) };
    let mut fixture = Fixture::initialized(&config, true);
    let ledgers = advance(fixture.store(), &mut Ledger::new(), 20, 0, 0);
    let store = maintain(&mut fixture);
    // A file is not a directory, and stays.
    let file = fixture.dir().join("snapshots/99");
    fs::write(&file, "").unwrap();
    let refused = store.roll_back(number(TO), &[], false).unwrap_err();
    assert!(refused.to_string().contains("99"), "{refused}");
    fs::remove_file(&file).unwrap();
    drop(store);
    fixture.reopen();
    check_all(fixture.store(), &ledgers, 0);
}
