//! States of the past equal a model's, whichever way batches came, through restarts, and as far back as the window says.

use std::{
    fs,
    num::NonZeroUsize,
    ops::ControlFlow,
    time::{Duration, Instant},
};

use proptest::prelude::*;

use super::{model, *};
use crate::{
    StateHistory, StorageError,
    backend::{Column, Direction},
    schema,
};

fn window(batches: u64) -> StorageConfig {
    StorageConfig { state_history: StateHistory::Batches(batches), ..config() }
}

/// Compares the state behind a batch with a model's, of all keys that any of the models has.
fn check(store: &Store, number: u64, state: &BTreeMap<StateKey, StateValue>, keys: &[StateKey]) {
    let view = store.view_of(BatchNumber::new(number)).unwrap().expect("the state is kept");
    assert_eq!(view.head().number, BatchNumber::new(number));
    let rows = view.rows(keys).unwrap();
    for (key, row) in keys.iter().zip(rows) {
        assert_eq!(row, state.get(key).copied(), "{key:?} behind batch {number}");
    }
}

fn check_all(store: &Store, ledgers: &[Ledger], first: u64) {
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

/// Commits batches, by themselves or in groups of so many.
fn commit(store: &Store, made: &[Made], group: usize) {
    let batches: Vec<_> = made.iter().map(Made::batch).collect();
    match NonZeroUsize::new(group) {
        Some(group) => store.commit_run(&batches, group).unwrap(),
        None => batches.into_iter().for_each(|batch| store.commit(batch, None).unwrap()),
    }
}

/// The batches of some changes, and the ledgers from the genesis on.
fn ledgers(changes: &[Vec<(StateKey, Option<StateValue>)>]) -> (Vec<Made>, Vec<Ledger>) {
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

/// Batches that make, change and delete the same few rows.
fn some(count: u64) -> Vec<Vec<(StateKey, Option<StateValue>)>> {
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

/// Goal: the window is there at once after a restart, whatever ended the process, and goes on from there.
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

/// Goal: who is far behind records what will be in the window of the head to come, and what was not recorded is never made up.
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
        // Beyond it goes on.
        commit(store, &made[22..], group);
        check_all(store, &ledgers, 22);
    }
}

/// Goal: a view of the past stays right while the head moves on, and fails rather than err once its rows may be gone.
#[test]
fn a_view_of_the_past_is_right_or_fails() {
    on_both(&window(8), |fixture| {
        let store = fixture.store();
        let changes = some(60);
        let (made, ledgers) = ledgers(&changes[..30]);
        commit(store, &made, 0);
        let view = store.view_of(BatchNumber::new(25)).unwrap().unwrap();
        let key = slot_key(0xcc, 9);
        let expected = ledgers[25].state.get(&key).copied();
        let mut ledger = ledgers[30].clone();
        changes[30..45].iter().for_each(|changes| _ = ledger.commit(store, changes));
        assert_eq!(view.rows(&[key]).unwrap(), [expected]);
        changes[45..].iter().for_each(|changes| _ = ledger.commit(store, changes));
        let gone = view.rows(&[key]);
        assert!(
            matches!(gone, Err(StorageError::StateNotKept { number }) if number == BatchNumber::new(25)),
            "{gone:?}"
        );
    });
}

/// Goal: entries before the window leave the disk when it is compacted, and a wider window does not pretend to have them.
#[test]
fn what_is_gone_is_not_made_up() {
    let mut fixture =
        Fixture::initialized(&StorageConfig { snapshot_interval_batches: 2, ..window(4) }, true);
    let entries = |store: &Store| {
        let mut numbers = Vec::new();
        let visit = &mut |key: &[u8], _: &[u8]| {
            numbers.extend(schema::history_batch(key));
            Ok(ControlFlow::Continue(()))
        };
        store.0.backend.scan(Column::History, &[], Direction::Up, visit).unwrap();
        numbers
    };
    let mut models = vec![Ledger::new()];
    let start = Instant::now();
    // Each snapshot flushes the column, and every few files of it are compacted in the background.
    while models.len() < 60 || entries(fixture.store()).contains(&1) {
        assert!(start.elapsed() < Duration::from_secs(60), "what was before batch 1 stays on the disk");
        let mut ledger = models[models.len() - 1].clone();
        let n = models.len() as u64;
        ledger.commit(fixture.store(), &[(slot_key(0xcc, 9), slot(n % 7)), (account_key(1), account(n))]);
        models.push(ledger);
    }
    let first = models.len() as u64 - 1 - 4;
    check_all(fixture.store(), &models, first);
    fixture.config.state_history = StateHistory::All;
    fixture.reopen();
    check_all(fixture.store(), &models, first);
}

/// Goal: a store of the release before, which has no such column, is opened as it is and begins its window then.
#[test]
fn a_store_of_before_is_taken_over() {
    let mut fixture = Fixture::initialized(&window(8), true);
    let (made, ledgers) = ledgers(&some(12));
    commit(fixture.store(), &made[..6], 0);
    fixture.close();
    crate::backend::rocks::drop_history(fixture.dir());
    let path = fixture.dir().join("FORMAT");
    let text = fs::read_to_string(&path).unwrap();
    let (first, _) = text.split_once('\n').unwrap();
    fs::write(&path, format!("{first}\nfingerprint dbb74315f5cde6d2\n")).unwrap();
    fixture.reopen();
    assert_eq!(fs::read_to_string(&path).unwrap(), text, "it is marked as one of this release");
    check_all(fixture.store(), &ledgers[..7], 6);
    commit(fixture.store(), &made[6..], 0);
    check_all(fixture.store(), &ledgers, 6);
    fixture.reopen();
    check_all(fixture.store(), &ledgers, 6);
}
