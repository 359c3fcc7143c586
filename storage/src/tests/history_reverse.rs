//! Goal: past states that reverse deltas restore are those of a store that committed every batch, and a false one
//! changes nothing.

use super::{
    backfill::{commit_as, fill_all},
    history::window,
    range_delta::contract,
    restore::restored,
    *,
};
use crate::{RangeDeltaError, StateBackfill, StorageError};

/// The last batch of the source.
const LAST: u64 = 36;
/// The batch that the other store begins at.
const BEGIN: u64 = 30;
const MEMORY: u64 = 64 << 20;

/// Batches that create, change and delete rows, and give an account other code each time.
fn source() -> Fixture {
    let config = StorageConfig { snapshot_interval_batches: 10, ..window(1_000) };
    let (source, mut ledger) = (Fixture::initialized(&config, false), Ledger::new());
    for n in 1..=LAST as u8 {
        let (value, code) = contract(n, 1);
        let own = (account_key(n), if n % 4 == 0 { None } else { account(u64::from(n)) });
        let gone = (account_key(n / 2), if n % 3 == 0 { None } else { account(7) });
        let hot = (slot_key(0xcc, 9), slot(u64::from(n)));
        let there_and_back = (slot_key(0xcc, 8), slot(u64::from(n % 2)));
        let changes = [(account_key(0xdd), value), own, hot, there_and_back];
        let changes: Vec<_> = changes.into_iter().chain((n > 1).then_some(gone)).collect();
        let made = ledger.make(&changes, vec![code]);
        source.store().commit(made.batch(), None).unwrap();
        ledger.advance(&made);
    }
    source
}

/// A store that began in the middle and has the earlier blobs. It keeps the states of the last `batches` batches.
fn begun(source: &Store, batches: u64, on_disk: bool) -> Fixture {
    let mut fixture = restored(source, BEGIN, on_disk);
    fixture.config = StorageConfig { snapshot_interval_batches: 0, ..window(batches) };
    fixture.reopen();
    fill_all(fixture.store(), source, 7).unwrap();
    fixture
}

fn keys() -> Vec<StateKey> {
    let accounts = (0..=LAST as u8).chain([0xcc, 0xdd]).map(account_key);
    accounts.chain((0..12).map(|slot| slot_key(0xcc, slot))).collect()
}

/// Checks that all states from a batch on are the source's, with their code, and that no earlier one is known.
#[track_caller]
fn check_states(store: &Store, source: &Store, from: u64) {
    assert_eq!(store.states_from().unwrap().get(), from);
    let head = store.head().unwrap().header.number.get();
    let keys = keys();
    for number in (0..=head).map(BatchNumber::new) {
        let Some(view) = store.view_of(number).unwrap() else {
            assert!(number.get() < from, "{number}");
            continue;
        };
        assert!(number.get() >= from, "{number}");
        let rows = view.rows(&keys).unwrap();
        assert_eq!(rows, source.view_of(number).unwrap().unwrap().rows(&keys).unwrap(), "{number}");
        if let Some(Some(StateValue::Account(AccountValue { code_hash: Some(hash), .. }))) =
            rows.get(keys.iter().position(|key| *key == account_key(0xdd)).unwrap())
        {
            assert!(view.code(hash).unwrap().is_some(), "the code of batch {number}");
        }
    }
}

/// Adds the states from `to` on, by the source's reverse delta.
fn extend(states: &mut StateBackfill, source: &Store, to: u64) -> Result<(), StorageError> {
    let to = BatchNumber::new(to);
    let reverse = source.reverse_delta(states.lowest(), to).unwrap();
    states.extend(to, &reverse)
}

#[test]
fn past_states_are_those_of_who_executed() {
    let source = source();
    let source = source.store();
    for (on_disk, step) in [(false, 1), (false, 30), (true, 7)] {
        let mut fixture = begun(source, 1_000, on_disk);
        let store = fixture.store();
        let backlog = store.state_backlog().unwrap();
        assert_eq!((backlog.lowest.get(), backlog.wanted_from.get()), (BEGIN, 0));
        assert_eq!(backlog.next, Some(BatchNumber::GENESIS));
        check_states(store, source, BEGIN);
        let mut states = store.past_states(MEMORY).unwrap();
        for round in 0.. {
            let Some(to) = states.lowest().previous() else { break };
            let to = (to.get() + 1).saturating_sub(step);
            extend(&mut states, source, to).unwrap();
            check_states(store, source, to);
            // The head advances meanwhile.
            let next = BEGIN + 1 + round;
            if next <= LAST - 2 {
                commit_as(source, store, next..=next);
                check_states(store, source, to);
            }
        }
        assert_eq!(store.state_backlog().unwrap().next, None);
        drop(states);
        fixture.reopen();
        check_states(fixture.store(), source, 0);
        let next = fixture.store().head().unwrap().header.number.get() + 1;
        commit_as(source, fixture.store(), next..=LAST);
        fixture.reopen();
        check_states(fixture.store(), source, 0);
    }
}

/// Goal: another store object, or the same one after its head moved, continues from the first known state.
#[test]
fn they_go_on_after_a_restart() {
    let source = source();
    let source = source.store();
    on_both_begun(source, |mut fixture| {
        let mut states = fixture.store().past_states(MEMORY).unwrap();
        extend(&mut states, source, 21).unwrap();
        drop(states);
        commit_as(source, fixture.store(), BEGIN + 1..=BEGIN + 4);
        fixture.reopen();
        check_states(fixture.store(), source, 21);
        let mut states = fixture.store().past_states(MEMORY).unwrap();
        assert_eq!(states.lowest().get(), 21);
        extend(&mut states, source, 3).unwrap();
        check_states(fixture.store(), source, 3);
        assert!(matches!(
            fixture.store().past_states(10),
            Err(StorageError::RangeDelta(RangeDeltaError::OverBudget { .. }))
        ));
    });
}

fn on_both_begun(source: &Store, test: impl Fn(Fixture)) {
    [false, true].into_iter().for_each(|on_disk| test(begun(source, 1_000, on_disk)));
}

#[test]
fn a_false_one_changes_nothing() {
    let source = source();
    let source = source.store();
    let fixture = begun(source, 1_000, false);
    let store = fixture.store();
    let mut states = store.past_states(MEMORY).unwrap();
    let (from, to) = (BatchNumber::new(BEGIN), BatchNumber::new(20));
    let honest = source.reverse_delta(from, to).unwrap();
    let codes: Vec<Vec<u8>> = honest.codes().iter().map(|code| code.to_vec()).collect();
    let with = |entries: Vec<DeltaEntry>| Delta::new(entries, codes.clone()).unwrap();
    for index in 0..honest.entries().len() {
        let mut less = honest.entries().to_vec();
        let left_out = less.remove(index);
        let unchanged = source.view_of(from).unwrap().unwrap().rows(&[left_out.key]).unwrap()[0];
        if unchanged != left_out.value {
            let error = states.extend(to, &with(less)).unwrap_err();
            assert!(matches!(error, StorageError::StateRootMismatch { .. }), "{error}");
        }
        let mut false_row = honest.entries().to_vec();
        false_row[index].value = match false_row[index].value {
            Some(_) => None,
            None => account(1).filter(|value| value.fits(&false_row[index].key)).or(slot(1)),
        };
        let error = states.extend(to, &with(false_row)).unwrap_err();
        assert!(matches!(error, StorageError::StateRootMismatch { .. }), "{error}");
    }
    let without_code = Delta::new(honest.entries().to_vec(), Vec::new()).unwrap();
    let error = states.extend(to, &without_code).unwrap_err();
    assert!(matches!(error, StorageError::RangeDelta(RangeDeltaError::CodeMissing { .. })), "{error}");
    let mut padded = honest.entries().to_vec();
    padded.push(DeltaEntry { key: account_key(0xee), value: None });
    let error = states.extend(to, &with(padded)).unwrap_err();
    assert!(matches!(error, StorageError::RangeDelta(RangeDeltaError::Padded { .. })), "{error}");
    // A reverse delta of another state than it claims.
    let error = states.extend(BatchNumber::new(19), &honest).unwrap_err();
    assert!(matches!(error, StorageError::StateRootMismatch { .. }), "{error}");
    check_states(store, source, BEGIN);
    states.extend(to, &honest).unwrap();
    check_states(store, source, 20);
}

/// Goal: no state is wanted beyond the window, or beyond where the deltas lead. States that the window passed meanwhile
/// are not written.
#[test]
fn the_window_bounds_them() {
    let source = source();
    let source = source.store();
    let fixture = begun(source, 12, false);
    let store = fixture.store();
    let backlog = store.state_backlog().unwrap();
    assert_eq!((backlog.lowest.get(), backlog.wanted_from.get()), (BEGIN, BEGIN - 12));
    let mut states = store.past_states(MEMORY).unwrap();
    extend(&mut states, source, 25).unwrap();
    commit_as(source, store, BEGIN + 1..=BEGIN + 3);
    check_states(store, source, 25);
    assert_eq!(store.state_backlog().unwrap().wanted_from.get(), BEGIN + 3 - 12);
    let mut narrow = begun(source, 12, false);
    narrow.config = window(2);
    narrow.reopen();
    assert_eq!(narrow.store().state_backlog().unwrap().next.map(BatchNumber::get), Some(BEGIN - 2));
    let mut states = narrow.store().past_states(MEMORY).unwrap();
    commit_as(source, narrow.store(), BEGIN + 1..=BEGIN + 6);
    let error = extend(&mut states, source, BEGIN - 2).unwrap_err();
    assert!(matches!(error, StorageError::StateNotKept { .. }), "{error}");
    check_states(narrow.store(), source, BEGIN + 4);
    // A store without deltas, and one without past states, want none.
    let bare = restored(source, BEGIN, false);
    assert_eq!(bare.store().state_backlog().unwrap().next, None);
    assert_eq!(begun(source, 0, false).store().state_backlog().unwrap().next, None);
}

/// Goal: a server refuses states that it does not know, and ranges longer than an answer may be.
#[test]
fn who_does_not_know_the_state_refuses() {
    let source = source();
    let fixture = begun(source.store(), 1_000, false);
    let ask = |from, to| fixture.store().reverse_delta(BatchNumber::new(from), BatchNumber::new(to));
    assert!(matches!(ask(30, 20), Err(StorageError::StateNotKept { .. })));
    assert!(ask(20, 30).is_err() && ask(30, 30).is_err() && ask(40, 30).is_err());
}
