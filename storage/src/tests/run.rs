//! Runs of batches, in groups that are written while the next is hashed, must leave what single commits leave,
//! wherever they end.

use std::{
    num::NonZeroUsize,
    ops::ControlFlow,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use proptest::prelude::*;
use slipstream_types::Path;

use super::{commit::Faulty, model, *};
use crate::{
    CrashPoint, Faults, Speculation, StateHistory, StorageError, WriteStep,
    backend::{Column, Direction, Reader},
    disk::DiskGuard,
    history_log::LogValue,
    schema::{SEALED_KEY, history_key},
};

/// Batches per group: one, some, and more than there are.
const GROUPS: [usize; 3] = [1, 5, 1_000];

/// Batches that change and delete each other's rows, and the ledger after each.
fn batches(count: u8) -> (Vec<Made>, Vec<Ledger>) {
    let mut ledger = Ledger::new();
    let (mut made, mut ledgers) = (Vec::new(), vec![ledger.clone()]);
    for n in 1..=count {
        let own = (account_key(n), account(u64::from(n)));
        let shared = (slot_key(0xcc, 9), slot(u64::from(n % 3)));
        let undone = (account_key(n.wrapping_sub(2)), if n > 3 { None } else { account(7) });
        let batch = ledger.make(&[own, shared, undone], Vec::new());
        ledger.advance(&batch);
        made.push(batch);
        ledgers.push(ledger.clone());
    }
    (made, ledgers)
}

fn run(store: &Store, made: &[Made], group: usize) -> Result<(), StorageError> {
    let batches: Vec<_> = made.iter().map(Made::batch).collect();
    store.commit_run(&batches, NonZeroUsize::new(group).unwrap())
}

/// Seals a batch again, for a changed header.
fn resealed(ledger: &Ledger, made: &Made, root: Digest) -> Made {
    seal(&ledger.head, &ledger.accumulator, made.delta.clone(), root)
}

type Contents = Vec<(Column, Vec<u8>, Vec<u8>)>;

/// Returns the content of all columns. The history counts by its entries, which may be in groups or single, and in
/// the log or not.
fn contents(backend: &MemoryBackend) -> Contents {
    let (mut contents, mut history) = (Vec::new(), BTreeMap::new());
    for &column in Column::ALL {
        let visit = &mut |key: &[u8], value: &[u8]| {
            match column {
                Column::Meta if key == SEALED_KEY => {}
                Column::History => _ = history.insert(key.to_vec(), value.to_vec()),
                Column::HistoryLog => {
                    for entry in LogValue::parse(key, value)?.iter().map(Result::unwrap) {
                        let key = history_key(&Path(*entry.path), entry.batch);
                        history.insert(key.to_vec(), entry.row.to_vec());
                    }
                }
                _ => contents.push((column, key.to_vec(), value.to_vec())),
            }
            Ok(ControlFlow::Continue(()))
        };
        backend.scan(column, &[], Direction::Up, visit).unwrap();
    }
    contents.extend(history.into_iter().map(|(key, value)| (Column::History, key, value)));
    contents
}

/// Returns the content of a store after batches, in groups or (with `None`) one by one.
fn left_by(made: &[Made], group: Option<usize>) -> Contents {
    let backend = MemoryBackend::default();
    let store = Store::with_backend(&config(), Arc::new(backend.clone())).unwrap();
    store.initialize(&genesis()).unwrap();
    match group {
        Some(group) => run(&store, made, group).unwrap(),
        None => made.iter().for_each(|made| store.commit(made.batch(), None).unwrap()),
    }
    contents(&backend)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn groups_leave_the_bytes_that_single_commits_leave(
        changes in prop::collection::vec(model::changes(), 1..20),
        group in 1..24usize,
        bare in 0..20usize,
    ) {
        let mut ledger = Ledger::new();
        let mut made: Vec<Made> = Vec::new();
        for changes in &changes {
            let batch = ledger.make(changes, Vec::new());
            ledger.advance(&batch);
            made.push(batch);
        }
        // One batch without parts, so that the lowest batch of each kind moves.
        let single = left_by(&made, None);
        prop_assert!(single == left_by(&made, Some(group)));
        let batches: Vec<_> = made.iter().enumerate().map(|(index, made)| {
            if index == bare { CommitBatch::new(&made.header, &made.delta) } else { made.batch() }
        }).collect();
        let (one, other) = (MemoryBackend::default(), MemoryBackend::default());
        for (backend, group) in [(&one, 1), (&other, group)] {
            let store = Store::with_backend(&config(), Arc::new(backend.clone())).unwrap();
            store.initialize(&genesis()).unwrap();
            store.commit_run(&batches, NonZeroUsize::new(group).unwrap()).unwrap();
        }
        prop_assert!(contents(&one) == contents(&other));
    }
}

/// Checks that the store is exactly at that ledger, and that the next batch fits.
fn check(store: &Store, ledger: &Ledger, next: Option<&Made>) {
    assert_eq!(store.head().unwrap().header, ledger.head);
    let view = store.view().unwrap();
    let keys: Vec<StateKey> = (0..40).map(account_key).chain([slot_key(0xcc, 9)]).collect();
    let expected: Vec<_> = keys.iter().map(|key| ledger.state.get(key).copied()).collect();
    assert_eq!(view.rows(&keys).unwrap(), expected);
    if let Some(next) = next {
        let root = store.speculate(&next.delta).unwrap().root();
        assert_eq!(root, next.header.state_root);
    }
}

#[test]
fn a_run_leaves_what_single_commits_leave() {
    let (made, ledgers) = batches(30);
    for (interval, group) in [0, 7].into_iter().flat_map(|interval| GROUPS.map(|group| (interval, group))) {
        let config = StorageConfig { snapshot_interval_batches: interval, ..config() };
        on_both(&config, |fixture| {
            run(fixture.store(), &made[..1], group).unwrap();
            run(fixture.store(), &[], group).unwrap();
            run(fixture.store(), &made[1..29], group).unwrap();
            check(fixture.store(), &ledgers[29], Some(&made[29]));
            for snapshot in fixture.store().snapshots() {
                let ledger = &ledgers[snapshot.number.get() as usize];
                assert_eq!(snapshot.state_root, ledger.head.state_root);
                let served = fixture.store().snapshot(snapshot.number).unwrap().unwrap();
                let chunk = served.chunk(slipstream_types::Path::MIN, 1 << 20).unwrap();
                assert_eq!(chunk.verify(snapshot.state_root), Ok(()));
            }
            assert_eq!(fixture.store().snapshots().len(), if interval == 0 { 0 } else { 2 });
        });
        let mut fixture = Fixture::initialized(&config, true);
        run(fixture.store(), &made[..29], group).unwrap();
        fixture.reopen();
        check(fixture.store(), &ledgers[29], Some(&made[29]));
    }
}

/// Goal: if a group does not fit, everything before the first batch at fault is committed, and that batch is named.
#[test]
fn a_run_ends_before_the_batch_that_does_not_fit() {
    let (made, ledgers) = batches(12);
    for (bad, group) in [0, 1, 6, 9, 11].into_iter().flat_map(|bad| GROUPS.map(|group| (bad, group))) {
        let refuse = |altered: &[Made], expected: fn(&StorageError) -> Option<BatchNumber>| {
            on_both(&config(), |fixture| {
                let error = run(fixture.store(), altered, group).unwrap_err();
                assert_eq!(expected(&error), Some(made[bad].header.number), "{bad} {group}: {error}");
                check(fixture.store(), &ledgers[bad], Some(&made[bad]));
                run(fixture.store(), &made[bad..], group).unwrap();
                check(fixture.store(), &ledgers[12], None);
            });
        };
        let mismatch: fn(&StorageError) -> Option<BatchNumber> = |error| match error {
            StorageError::StateRootMismatch { number, .. } => Some(*number),
            _ => None,
        };
        let mut false_root = made.clone();
        false_root[bad] = resealed(&ledgers[bad], &made[bad], Digest::ZERO);
        refuse(&false_root, mismatch);
        let mut false_row = made.clone();
        let entry = DeltaEntry { key: slot_key(0xee, 1), value: slot(5) };
        let entries = made[bad].delta.entries().iter().copied().chain([entry]).collect();
        false_row[bad].delta = Delta::new(entries, Vec::new()).unwrap();
        refuse(&false_row, mismatch);
        let mut false_certificate = made.clone();
        false_certificate[bad].certificate = certify(&made[bad].header, Digest::ZERO);
        refuse(&false_certificate, |error| match error {
            StorageError::WrongCertificate { number, .. } => Some(*number),
            _ => None,
        });
        let mut orphan = made.clone();
        orphan[bad].header.parent = Digest::ZERO;
        refuse(&orphan, |error| match error {
            StorageError::WrongParent { number, .. } => Some(*number),
            _ => None,
        });
    }
    let mut skipping = made.clone();
    skipping.remove(5);
    for group in GROUPS {
        let fixture = Fixture::initialized(&config(), false);
        let error = run(fixture.store(), &skipping, group).unwrap_err();
        assert!(matches!(error, StorageError::NotNext { .. }), "{error}");
        check(fixture.store(), &ledgers[5], Some(&made[5]));
    }
}

fn contract(nonce: u64, code: &[u8]) -> Option<StateValue> {
    let code_hash = Some(Digest::from(keccak256(code)));
    Some(StateValue::Account(AccountValue { nonce, code_hash, ..AccountValue::default() }))
}

#[test]
fn code_is_known_to_the_group_that_brings_it_and_missed_in_any_other() {
    let code = vec![0x60, 0x02, 0x00];
    let mut ledger = Ledger::new();
    let mut made = Vec::new();
    for n in 1..=6 {
        let brings = if n == 3 { vec![code.clone()] } else { Vec::new() };
        let change = if n < 3 { account(n) } else { contract(n, &code) };
        made.push(ledger.make(&[(account_key(1), change)], brings));
        ledger.advance(&made[n as usize - 1]);
    }
    for group in GROUPS {
        let fixture = Fixture::initialized(&config(), false);
        run(fixture.store(), &made, group).unwrap();
        let stored = fixture.store().view().unwrap().code(&Digest::from(keccak256(&code))).unwrap();
        assert_eq!(stored.unwrap()[..], code[..]);
        let fixture = Fixture::initialized(&config(), false);
        let mut without = made.clone();
        without[2].delta = Delta::new(made[2].delta.entries().to_vec(), Vec::new()).unwrap();
        let error = run(fixture.store(), &without, group).unwrap_err();
        let first =
            matches!(error, StorageError::UnknownCode { number, .. } if number == BatchNumber::new(3));
        assert!(first, "{group}: {error}");
        assert_eq!(fixture.store().head().unwrap().header, made[1].header);
    }
}

/// Goal: the next batch is checked while the batch with the code is being written, and must find that code.
#[test]
fn code_of_the_batch_before_is_known_before_it_is_written() {
    let delay = Duration::from_millis(100);
    let backend = Faulty { inner: MemoryBackend::default(), failing: Arc::default(), delay };
    let store = Store::with_backend(&config(), Arc::new(backend)).unwrap();
    store.initialize(&genesis()).unwrap();
    let code = vec![0x60, 0x01, 0x00];
    let mut ledger = Ledger::new();
    let deployed = ledger.make(&[(account_key(1), contract(1, &code))], vec![code.clone()]);
    ledger.advance(&deployed);
    let called = ledger.make(&[(account_key(1), contract(2, &code))], Vec::new());
    ledger.advance(&called);
    run(&store, &[deployed, called], 1).unwrap();
    assert_eq!(store.head().unwrap().header, ledger.head);
}

#[test]
fn a_run_that_meets_a_full_disk_goes_on_when_there_is_room() {
    let (made, ledgers) = batches(240);
    for group in [1, 2] {
        let asked = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&asked);
        // The guard checks before every write: this is one in the middle of the run.
        let free = move || Ok(if seen.fetch_add(1, Ordering::Relaxed) == 60 { 100 << 20 } else { 1 << 30 });
        let guard = DiskGuard::new("disk".as_ref(), 512, free);
        let backend = Arc::new(MemoryBackend::default());
        // Sealing the history would check too.
        let config = StorageConfig { state_history: StateHistory::Batches(0), ..config() };
        let store = Store::with_parts(&config, backend, Some(guard), None).unwrap();
        store.initialize(&genesis()).unwrap();
        let error = run(&store, &made, group).unwrap_err();
        assert!(matches!(error, StorageError::DiskLow { .. }), "{error}");
        let head = store.head().unwrap().header.number.get() as usize;
        assert!((1..239).contains(&head), "{head}");
        check(&store, &ledgers[head], Some(&made[head]));
        run(&store, &made[head..], group).unwrap();
        check(&store, &ledgers[240], None);
        assert!(asked.load(Ordering::Relaxed) > 61);
    }
}

#[test]
fn a_write_that_fails_in_a_run_ends_the_store_at_a_whole_group() {
    let (made, ledgers) = batches(11);
    for (group, passing, point, head) in [
        (1, 4, CrashPoint::Before(WriteStep::Commit), 3),
        (4, 2, CrashPoint::Before(WriteStep::Commit), 4),
        (4, 2, CrashPoint::After(WriteStep::Commit), 8),
        (4, 3, CrashPoint::Before(WriteStep::Commit), 8),
        (4, 3, CrashPoint::After(WriteStep::Commit), 11),
        (1_000, 1, CrashPoint::Before(WriteStep::Commit), 0),
    ] {
        let dir = store_dir();
        let store = Store::open_with(&config(), dir.path(), &Faults::fail_at(point, passing)).unwrap();
        store.initialize(&genesis()).unwrap();
        run(&store, &made, group).unwrap_err();
        let known = store.head().unwrap().header.number.get() as usize;
        assert!(matches!(run(&store, &made[known..], group), Err(StorageError::Poisoned)));
        drop(store);
        let store = Store::open(&config(), dir.path()).unwrap();
        check(&store, &ledgers[head], made.get(head));
        run(&store, &made[head..], group).unwrap();
        check(&store, &ledgers[11], None);
    }
}

#[test]
fn speculations_stand_on_each_other_and_roll_back_by_being_dropped() {
    let (made, ledgers) = batches(6);
    on_both(&config(), |fixture| {
        let store = fixture.store();
        let mut chain: Vec<Speculation> = vec![store.speculate(&made[0].delta).unwrap()];
        for batch in &made[1..] {
            let next = store.speculate_after(&chain.last().unwrap().state(), &batch.delta).unwrap();
            chain.push(next);
        }
        for (speculation, batch) in chain.iter().zip(&made) {
            assert_eq!(speculation.root(), batch.header.state_root);
        }
        chain.truncate(3);
        let other = store.speculate_after(&chain[2].state(), &Delta::default()).unwrap();
        assert_eq!(other.root(), made[2].header.state_root);
        for (speculation, batch) in chain.into_iter().zip(&made) {
            store.commit(batch.batch(), Some(speculation)).unwrap();
        }
        check(store, &ledgers[3], Some(&made[3]));
        // It was made on a state that the head has passed by another way.
        let stale = store.speculate(&Delta::default()).unwrap();
        run(store, &made[3..5], 2).unwrap();
        store.commit(made[5].batch(), Some(stale)).unwrap();
        check(store, &ledgers[6], None);
    });
}
