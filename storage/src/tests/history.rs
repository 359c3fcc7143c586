//! Past states equal a model's, whichever way batches came, through restarts, and as far back as the window says.

use std::{
    num::NonZeroUsize,
    ops::ControlFlow,
    time::{Duration, Instant},
};

use proptest::prelude::*;

use super::{model, *};
use crate::{
    StateHistory, StorageError,
    backend::{Column, Direction},
    history::{past_rows::recorded_from, seal::SealJob},
    schema,
};

pub(super) fn window(batches: u64) -> StorageConfig {
    StorageConfig { state_history: StateHistory::Batches(batches), ..config() }
}

/// Compares the state after a batch with a model's, for all keys of any of the models.
fn check(store: &Store, number: u64, state: &BTreeMap<StateKey, StateValue>, keys: &[StateKey]) {
    let view = store.view_of(BatchNumber::new(number)).unwrap().expect("the state is kept");
    assert_eq!(view.head().number, BatchNumber::new(number));
    let rows = view.rows(keys).unwrap();
    for (key, row) in keys.iter().zip(rows) {
        assert_eq!(row, state.get(key).copied(), "{key:?} behind batch {number}");
    }
}

pub(super) fn check_all(store: &Store, ledgers: &[Ledger], first: u64) {
    let mut keys: Vec<StateKey> = ledgers.iter().flat_map(|ledger| ledger.state.keys().copied()).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(store.states_from().unwrap(), BatchNumber::new(first));
    for ledger in ledgers {
        let number = ledger.head.number.get();
        match number < first {
            true => assert!(store.view_of(BatchNumber::new(number)).unwrap().is_none(), "{number}"),
            false => check(store, number, &ledger.state, &keys),
        }
    }
    let head = store.head().unwrap().header.number;
    assert!(store.view_of(head.next()).unwrap().is_none());
}

/// Commits batches one by one, or in groups of `group` unless it is 0.
pub(super) fn commit(store: &Store, made: &[Made], group: usize) {
    let batches: Vec<_> = made.iter().map(Made::batch).collect();
    match NonZeroUsize::new(group) {
        Some(group) => store.commit_run(&batches, group).unwrap(),
        None => batches.into_iter().for_each(|batch| store.commit(batch, None).unwrap()),
    }
}

/// Makes the batches of some changes, and the ledgers from the genesis on.
pub(super) fn ledgers(changes: &[Vec<(StateKey, Option<StateValue>)>]) -> (Vec<Made>, Vec<Ledger>) {
    let (mut made, mut ledgers) = (Vec::new(), vec![Ledger::new()]);
    for changes in changes {
        let mut ledger = ledgers[ledgers.len() - 1].clone();
        let batch = ledger.make(changes, Vec::new());
        ledger.advance(&batch);
        made.push(batch);
        ledgers.push(ledger);
    }
    (made, ledgers)
}

/// Changes that create, change and delete the same few rows.
pub(super) fn some(count: u64) -> Vec<Vec<(StateKey, Option<StateValue>)>> {
    (1..=count)
        .map(|n| {
            let flag = (slot_key(0xcc, 9), slot(n % 3));
            let own = (account_key((n % 5) as u8 + 1), if n % 4 == 0 { None } else { account(n) });
            vec![flag, own]
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn states_of_the_past_are_the_models(
        changes in prop::collection::vec(model::changes(), 1..16),
        group in 0..6usize,
        kept in 0..20u64,
    ) {
        let (made, ledgers) = ledgers(&changes);
        let fixture = Fixture::initialized(&window(kept), false);
        commit(fixture.store(), &made, group);
        check_all(fixture.store(), &ledgers, (made.len() as u64).saturating_sub(kept));
    }
}

/// Goal: the window is there at once after a restart, whatever ended the process, and continues from there.
#[test]
fn the_window_outlives_restarts() {
    on_both(&window(8), |mut fixture| {
        let (made, ledgers) = ledgers(&some(20));
        commit(fixture.store(), &made[..9], 0);
        commit(fixture.store(), &made[9..15], 4);
        fixture.reopen();
        check_all(fixture.store(), &ledgers[..16], 7);
        commit(fixture.store(), &made[15..], 2);
        check_all(fixture.store(), &ledgers, 12);
        // A smaller window hides what is still there; a larger one grows from there.
        fixture.config.state_history = StateHistory::Batches(2);
        fixture.reopen();
        check_all(fixture.store(), &ledgers, 18);
        fixture.config.state_history = StateHistory::All;
        fixture.reopen();
        check_all(fixture.store(), &ledgers, 12);
    });
}

/// Goal: a store far behind records only batches in the window of its future head. States that were not recorded are
/// never made up.
#[test]
fn a_gap_is_no_history() {
    for group in [0, 1, 3, 20] {
        let fixture = Fixture::initialized(&window(8), false);
        let store = fixture.store();
        let (made, ledgers) = ledgers(&some(30));
        commit(store, &made[..5], group);
        store.keep_history(BatchNumber::new(22));
        commit(store, &made[5..10], group);
        check_all(store, &ledgers[..11], 10);
        commit(store, &made[10..22], group);
        check_all(store, &ledgers[..23], 14);
        // Beyond it the window continues.
        commit(store, &made[22..], group);
        check_all(store, &ledgers, 22);
    }
}

/// Goal: a view of the past stays right while the head moves on. If its state is not held, the view fails instead of
/// being wrong once its rows may be gone.
#[test]
fn a_view_of_the_past_is_right_or_fails() {
    on_both(&window(8), |mut fixture| {
        let changes = some(60);
        let (made, ledgers) = ledgers(&changes[..30]);
        commit(fixture.store(), &made, 0);
        let key = slot_key(0xcc, 9);
        let expected = ledgers[25].state.get(&key).copied();
        // In the history, because a start seals; later in the log, because nothing seals then.
        fixture.reopen();
        fixture.store().0.history.sealer.finish();
        let sealed = fixture.store().view_of(BatchNumber::new(25)).unwrap().unwrap();
        let mut ledger = ledgers[30].clone();
        let store = fixture.store();
        changes[30..35].iter().for_each(|changes| _ = ledger.commit(store, changes));
        let held = store.view_of(BatchNumber::new(33)).unwrap().unwrap();
        let held_expected = ledger_at(&ledgers[30], &changes[30..33]).state.get(&key).copied();
        let_go(store);
        let logged = store.view_of(BatchNumber::new(33)).unwrap().unwrap();
        changes[35..41].iter().for_each(|changes| _ = ledger.commit(store, changes));
        assert_eq!(sealed.rows(&[key]).unwrap(), [expected]);
        assert_eq!(logged.rows(&[key]).unwrap(), [held_expected]);
        for changes in &changes[41..] {
            ledger.commit(store, changes);
            store.0.history.sealer.finish();
            for (view, expected) in [(&sealed, expected), (&logged, held_expected)] {
                match view.rows(&[key]) {
                    Ok(rows) => assert_eq!(rows, [expected]),
                    Err(StorageError::StateNotKept { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
        let gone = sealed.rows(&[key]);
        assert!(matches!(gone, Err(StorageError::StateNotKept { number }) if number.get() == 25), "{gone:?}");
        let gone = logged.rows(&[key]);
        assert!(matches!(gone, Err(StorageError::StateNotKept { number }) if number.get() == 33), "{gone:?}");
        assert_eq!(held.rows(&[key]).unwrap(), [held_expected], "what is held needs nothing");
    });
}

/// Returns the ledger after further changes.
fn ledger_at(from: &Ledger, changes: &[Vec<(StateKey, Option<StateValue>)>]) -> Ledger {
    let mut ledger = from.clone();
    for changes in changes {
        let made = ledger.make(changes, Vec::new());
        ledger.advance(&made);
    }
    ledger
}

/// Goal: entries before the window leave the disk when it is compacted, and a wider window does not claim to have
/// them.
#[test]
fn what_is_gone_is_not_made_up() {
    let mut fixture =
        Fixture::initialized(&StorageConfig { snapshot_interval_batches: 2, ..window(4) }, true);
    let entries = |store: &Store, column: Column| {
        let mut numbers = Vec::new();
        let visit = &mut |key: &[u8], _: &[u8]| {
            numbers.extend(schema::history_batch(key));
            Ok(ControlFlow::Continue(()))
        };
        store.0.backend.scan(column, &[], Direction::Up, visit).unwrap();
        numbers
    };
    let mut models = vec![Ledger::new()];
    let start = Instant::now();
    let is_left = |store: &Store| entries(store, Column::History).contains(&1);
    // Each seal makes a file of the history, and every few of these files are compacted in the background.
    while models.len() < 60 || is_left(fixture.store()) {
        assert!(start.elapsed() < Duration::from_secs(180), "what was before batch 1 stays on the disk");
        let mut ledger = models[models.len() - 1].clone();
        let n = models.len() as u64;
        ledger.commit(fixture.store(), &[(slot_key(0xcc, 9), slot(n % 7)), (account_key(1), account(n))]);
        models.push(ledger);
        if n.is_multiple_of(2) {
            seal(fixture.store());
        }
        if n == 2 {
            assert!(entries(fixture.store(), Column::History).contains(&1));
        }
    }
    let first = models.len() as u64 - 1 - 4;
    check_all(fixture.store(), &models, first);
    fixture.config.state_history = StateHistory::All;
    fixture.reopen();
    check_all(fixture.store(), &models, first);
}

/// Seals the whole log.
pub(super) fn seal(store: &Store) {
    let sealer = &store.0.history.sealer;
    sealer.finish();
    let head = store.current().unwrap();
    let first = recorded_from(&*head.reader).unwrap();
    let job = SealJob { first: first.unwrap_or(head.record.number), to: Some(head.record.number) };
    sealer.ask(job, BatchNumber::new(u64::MAX >> 1));
    sealer.finish();
}

/// Releases all states but the head's, as a restart does.
pub(super) fn let_go(store: &Store) {
    let head = store.head().unwrap().header.number;
    store.0.history.held.lock().release(head, head);
}
