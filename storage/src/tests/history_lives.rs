//! Goal: whatever happens to a store, and wherever it dies, each state of its window equals that of a model that
//! keeps all states.

use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::{
    history::{check_all, commit, ledgers, let_go, seal, some, window},
    restore::{headers, served, target},
    *,
};
use crate::{
    Ancestry, CrashPoint, Faults, MemoryDisk, StateHistory, StorageError, Takeover, WriteStep,
    history::past_rows::{recorded_from, recorded_sealed},
};

/// An event in the life of a store.
#[derive(Clone, Debug)]
enum Event {
    /// Commits this number of batches, in groups of this size.
    Commit(usize, usize),
    /// Makes the store expect a head this number of batches ahead.
    Expect(u64),
    /// Seals the log, wherever it ends.
    Seal,
    /// Releases all states but the head's.
    LetGo,
    Reopen,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1..9usize, 0..5usize).prop_map(|(batches, group)| Event::Commit(batches, group)),
        1 => (0..20u64).prop_map(Event::Expect),
        2 => Just(Event::Seal),
        2 => Just(Event::LetGo),
        2 => Just(Event::Reopen),
    ]
}

fn kept() -> impl Strategy<Value = StateHistory> {
    prop_oneof![
        Just(StateHistory::Batches(0)),
        Just(StateHistory::Batches(3)),
        Just(StateHistory::Batches(12)),
        Just(StateHistory::Batches(256)),
        Just(StateHistory::All),
    ]
}

/// Batches that change few rows, so that most rows change again, and some last only briefly.
fn long(count: u64, seed: u64) -> Vec<Vec<(StateKey, Option<StateValue>)>> {
    let mut state = seed | 1;
    let mut random = move |max: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % max
    };
    let batch = |_| {
        let entries: BTreeMap<_, _> = (0..random(6))
            .map(|_| match random(2) {
                0 => (account_key(random(5) as u8), account(random(9)).filter(|_| random(3) > 0)),
                _ => (slot_key(random(4) as u8, random(3) as u8), slot(random(4))),
            })
            .collect();
        // An account with nonce 0 does not exist.
        entries.into_iter().filter(|(_, value)| *value != account(0)).collect()
    };
    (0..count).map(batch).collect()
}

/// Lives through the events, and compares every state of the window after each.
fn live(events: &[Event], kept: StateHistory, seed: u64, on_disk: bool) {
    let batches = events.iter().map(|event| if let Event::Commit(count, _) = event { *count } else { 0 });
    let (made, ledgers) = ledgers(&long(batches.sum::<usize>() as u64, seed));
    let config = StorageConfig { state_history: kept, ..config() };
    let mut fixture = Fixture::initialized(&config, on_disk);
    let (mut head, mut known, mut behind) = (0usize, 0u64, 0u64);
    for event in events {
        match event {
            Event::Commit(count, group) => {
                let next = head + count;
                commit(fixture.store(), &made[head..next], *group);
                if behind > head as u64 {
                    // Batches that are passed over stay unrecorded.
                    known = behind.min(next as u64);
                }
                head = next;
            }
            Event::Expect(ahead) => {
                let to_come = BatchNumber::new(head as u64 + ahead);
                fixture.store().keep_history(to_come);
                behind = kept.first(to_come).get();
            }
            Event::Seal => seal(fixture.store()),
            Event::LetGo => let_go(fixture.store()),
            Event::Reopen => {
                fixture.reopen();
                behind = 0;
            }
        }
        known = known.max(kept.first(BatchNumber::new(head as u64)).get());
        check_all(fixture.store(), &ledgers[..=head], known);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn states_are_right_in_memory(events in prop::collection::vec(event(), 1..16), kept in kept(), seed in any::<u64>()) {
        live(&events, kept, seed, false);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn states_are_right_on_disk(events in prop::collection::vec(event(), 1..16), kept in kept(), seed in any::<u64>()) {
        live(&events, kept, seed, true);
    }
}

/// Goal: no state is lost if a process dies anywhere while it seals, or if the power is cut then. The next process
/// continues.
#[test]
fn a_death_while_sealing_takes_no_state() {
    let steps = [
        WriteStep::HistorySeal,
        WriteStep::HistoryRows,
        WriteStep::HistoryRecord,
        WriteStep::HistoryDrop,
        WriteStep::Commit,
    ];
    let points = steps.into_iter().flat_map(|step| [CrashPoint::Before(step), CrashPoint::After(step)]);
    let (made, ledgers) = ledgers(&some(40));
    for (point, passing, group, kept) in points
        .flat_map(|point| [1, 2, 4].map(|passing| (point, passing)))
        .flat_map(|(point, passing)| [0, 3].map(|group| (point, passing, group)))
        .flat_map(|(point, passing, group)| [0, 1, usize::MAX].map(|kept| (point, passing, group, kept)))
    {
        let config = StorageConfig { fsync: kept > 0, state_history: StateHistory::All, ..config() };
        let disk = MemoryDisk::default();
        let store = Store::memory_on(&disk, &config, &Faults::fail_at(point, passing)).unwrap();
        store.initialize(&genesis()).unwrap();
        let died = made.chunks(6).try_for_each(|made| {
            let batches: Vec<_> = made.iter().map(Made::batch).collect();
            match std::num::NonZeroUsize::new(group) {
                Some(group) => store.commit_run(&batches, group),
                None => batches.into_iter().try_for_each(|batch| store.commit(batch, None)),
            }
        });
        assert!(died.is_err(), "{point} {passing}");
        disk.crash(kept);
        drop(store);
        let store = Store::memory_on(&disk, &config, &Faults::none()).unwrap();
        let head = store.head().map_or(0, |head| head.header.number.get()) as usize;
        if head == 0 {
            store.initialize(&genesis()).unwrap();
        }
        let sealed = recorded_sealed(&*store.0.backend).unwrap().map_or(0, |sealed| sealed.get());
        assert!(sealed <= head as u64, "{point} {passing}");
        check_all(&store, &ledgers[..=head], 0);
        commit(&store, &made[head..], group);
        check_all(&store, &ledgers, 0);
        let_go(&store);
        check_all(&store, &ledgers, 0);
    }
}

/// Goal: on a disk too, where a separate thread seals, a failed seal ends the store like any failed write. The next
/// start continues.
#[test]
fn a_failed_seal_ends_the_store() {
    let (made, ledgers) = ledgers(&some(20));
    for step in
        [WriteStep::HistorySeal, WriteStep::HistoryRows, WriteStep::HistoryRecord, WriteStep::HistoryDrop]
    {
        for point in [CrashPoint::Before(step), CrashPoint::After(step)] {
            let dir = store_dir();
            let config = StorageConfig { state_history: StateHistory::All, ..config() };
            let store = Store::open_with(&config, dir.path(), &Faults::fail_at(point, 1)).unwrap();
            store.initialize(&genesis()).unwrap();
            commit(&store, &made[..10], 0);
            seal(&store);
            let refused = store.commit(made[10].batch(), None);
            assert!(matches!(refused, Err(StorageError::Poisoned)), "{point}: {refused:?}");
            drop(store);
            let store = Store::open(&config, dir.path()).unwrap();
            check_all(&store, &ledgers[..11], 0);
            commit(&store, &made[10..], 0);
            check_all(&store, &ledgers, 0);
        }
    }
}

/// Goal: old states are sealed as the head moves on, the log stays short, and sealed states are read without it.
#[test]
fn the_log_is_sealed_as_it_grows() {
    on_both(&StorageConfig { state_history: StateHistory::All, ..config() }, |fixture| {
        let (made, ledgers) = ledgers(&some(60));
        for group in made.chunks(4) {
            commit(fixture.store(), group, 2);
            fixture.store().0.history.sealer.finish();
        }
        let store = fixture.store();
        let sealed = recorded_sealed(&*store.0.backend).unwrap().unwrap();
        assert!(sealed.get() > 40, "{sealed}");
        let held = store.0.history.held.lock();
        assert_eq!(held.from(sealed).unwrap().0, sealed, "the states from there on are held");
        assert!(held.len() < 20, "those before it are not");
        drop(held);
        check_all(store, &ledgers, 0);
    });
}

/// Goal: a long log is sealed too, and the states that it leads to stay held, without their large trees.
#[test]
fn a_long_log_is_sealed_and_its_states_are_held() {
    on_both(&StorageConfig { state_history: StateHistory::All, ..config() }, |mut fixture| {
        let wide: Vec<Vec<_>> = (1..=6u64)
            .map(|n| (0..200u8).map(|slot| (slot_key(0xcc, slot), self::slot(n + u64::from(slot)))).collect())
            .collect();
        let (made, ledgers) = ledgers(&wide);
        for made in &made {
            let speculation = fixture.store().speculate(&made.delta).unwrap();
            fixture.store().commit(made.batch(), Some(speculation)).unwrap();
            fixture.store().0.history.sealer.finish();
        }
        let store = fixture.store();
        let sealed = recorded_sealed(&*store.0.backend).unwrap().unwrap();
        assert!((1..6).contains(&sealed.get()), "{sealed}");
        for number in 0..=6 {
            let held = store.0.history.held.lock();
            let (found, state) = held.from(BatchNumber::new(number)).unwrap();
            assert_eq!(found, BatchNumber::new(number));
            assert_eq!(state.tree.lock().is_some(), number == 6);
        }
        check_all(store, &ledgers, 0);
        fixture.reopen();
        check_all(fixture.store(), &ledgers, 0);
    });
}

/// Goal: readers read the right states while the head moves on and the log is sealed.
#[test]
fn states_are_right_while_the_log_is_sealed() {
    for kept in [StateHistory::All, StateHistory::Batches(20)] {
        on_both(&StorageConfig { state_history: kept, ..config() }, |fixture| {
            let (made, ledgers) = ledgers(&long(150, 7));
            let store = fixture.store();
            let keys: Vec<StateKey> = ledgers[150].state.keys().copied().collect();
            let is_over = AtomicBool::new(false);
            let read = |mut n: u64| {
                let mut right = 0;
                // On a busy machine the writer may be done before a reader begins.
                while right == 0 || !is_over.load(Ordering::Relaxed) {
                    n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let (first, head) =
                        (store.states_from().unwrap().get(), store.head().unwrap().header.number.get());
                    let number = first + (n >> 33) % (head - first + 1);
                    let Some(view) = store.view_of(BatchNumber::new(number)).unwrap() else { continue };
                    let state = &ledgers[number as usize].state;
                    let expected: Vec<_> = keys.iter().map(|key| state.get(key).copied()).collect();
                    match view.rows(&keys) {
                        Ok(rows) => assert_eq!(rows, expected, "{number}"),
                        Err(StorageError::StateNotKept { .. }) => continue,
                        Err(error) => panic!("{number}: {error}"),
                    }
                    right += 1;
                }
                right
            };
            std::thread::scope(|scope| {
                let readers = [1, 2].map(|seed| scope.spawn(move || read(seed)));
                for (index, part) in made.chunks(3).enumerate() {
                    commit(store, part, index % 3);
                    match index % 4 {
                        0 => let_go(store),
                        1 => seal(store),
                        _ => {}
                    }
                }
                is_over.store(true, Ordering::Relaxed);
                readers.into_iter().for_each(|reader| assert!(reader.join().unwrap() > 0));
            });
            check_all(store, &ledgers, kept.first(BatchNumber::new(150)).get());
        });
    }
}

/// Goal: after a state that did not come by batches, no earlier state is held or known.
#[test]
fn a_restored_state_begins_the_window_anew() {
    let (source, _) = served(false);
    on_both(&window(8), |mut fixture| {
        let store = fixture.store();
        let mut ledger = Ledger::new();
        ledger.commit_up_to(store, 12);
        let before = store.view_of(BatchNumber::new(9)).unwrap().unwrap();
        let_go(store);
        let logged = store.view_of(BatchNumber::new(9)).unwrap().unwrap();
        let snapshot = source.store().snapshot(BatchNumber::new(20)).unwrap().unwrap();
        let restore = store.restore(&target(source.store(), 20)).unwrap();
        while let Some(next) = restore.next_path() {
            restore.add_chunk(&snapshot.chunk(next, 300).unwrap()).unwrap();
        }
        for hash in restore.missing_codes(10).unwrap() {
            restore.add_code(&snapshot.code(&hash).unwrap().unwrap()).unwrap();
        }
        let (headers, proof, genesis) = headers(source.store(), 20, 3);
        restore.finish(&Ancestry { headers: &headers, proof: &proof, genesis_proof: &genesis }).unwrap();
        assert_eq!(store.states_from().unwrap(), BatchNumber::new(20));
        assert_eq!(store.0.history.held.lock().len(), 1);
        assert!(recorded_from(&*store.0.backend).unwrap().is_none());
        assert_eq!(before.rows(&[account_key(8)]).unwrap(), [account(9)]);
        let gone = logged.rows(&[account_key(8)]);
        assert!(matches!(gone, Err(StorageError::StateNotKept { .. })), "{gone:?}");
        drop((before, logged, restore));
        for number in 21..=30 {
            let number = BatchNumber::new(number);
            let source = source.store();
            let (header, blob) = (source.header(number), source.blob(BlobKind::Delta, number));
            let delta = Delta::open(&blob.unwrap().unwrap()).unwrap();
            store.commit(CommitBatch::new(&header.unwrap().unwrap(), &delta), None).unwrap();
        }
        let check = |store: &Store| {
            assert_eq!(store.states_from().unwrap(), BatchNumber::new(22));
            for number in 22..=30 {
                let view = store.view_of(BatchNumber::new(number)).unwrap().unwrap();
                let past = source.store().view_of(BatchNumber::new(number)).unwrap().unwrap();
                let keys: Vec<_> = (0..40).map(account_key).collect();
                assert_eq!(view.rows(&keys).unwrap(), past.rows(&keys).unwrap(), "{number}");
            }
        };
        check(store);
        fixture.reopen();
        check(fixture.store());
    });
}
