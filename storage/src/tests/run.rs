//! Runs of batches, written while the next is hashed: they must leave what single commits leave, wherever they end.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::{commit::Faulty, *};
use crate::{CrashPoint, Faults, Speculation, Step, StorageError, disk::DiskGuard};

/// Batches that change and delete each other's rows, and the ledger behind each.
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

fn run(store: &Store, made: &[Made]) -> Result<(), StorageError> {
    store.commit_run(&made.iter().map(Made::batch).collect::<Vec<_>>())
}

/// The store is exactly at that ledger, and the next batch fits.
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
    for interval in [0, 7] {
        let config = StorageConfig { snapshot_interval_batches: interval, ..config() };
        on_both(&config, |fixture| {
            run(fixture.store(), &made[..1]).unwrap();
            run(fixture.store(), &[]).unwrap();
            run(fixture.store(), &made[1..29]).unwrap();
            check(fixture.store(), &ledgers[29], Some(&made[29]));
            for snapshot in fixture.store().snapshots() {
                let ledger = &ledgers[snapshot.number.0 as usize];
                assert_eq!(snapshot.state_root, ledger.head.state_root);
                let served = fixture.store().snapshot(snapshot.number).unwrap().unwrap();
                let chunk = served.chunk(slipstream_types::Path::MIN, 1 << 20).unwrap();
                assert_eq!(chunk.verify(snapshot.state_root), Ok(()));
            }
            assert_eq!(fixture.store().snapshots().len(), if interval == 0 { 0 } else { 2 });
        });
        let mut fixture = Fixture::initialized(&config, true);
        run(fixture.store(), &made[..29]).unwrap();
        fixture.reopen();
        check(fixture.store(), &ledgers[29], Some(&made[29]));
    }
}

#[test]
fn a_run_ends_before_the_batch_that_does_not_fit() {
    let (made, ledgers) = batches(12);
    for bad in [0, 1, 6, 11] {
        on_both(&config(), |fixture| {
            let mut altered = made.clone();
            altered[bad].header.state_root = Digest::ZERO;
            let error = run(fixture.store(), &altered).unwrap_err();
            assert!(matches!(error, StorageError::StateRootMismatch { .. }), "{error}");
            check(fixture.store(), &ledgers[bad], Some(&made[bad]));
            run(fixture.store(), &made[bad..]).unwrap();
            check(fixture.store(), &ledgers[12], None);
        });
    }
    let mut skipping = made.clone();
    skipping.remove(5);
    let fixture = Fixture::initialized(&config(), false);
    let error = run(fixture.store(), &skipping).unwrap_err();
    assert!(matches!(error, StorageError::NotNext { .. }), "{error}");
    check(fixture.store(), &ledgers[5], Some(&made[5]));
}

/// Goal: the next batch is checked while the one with the code is on its way to the disk, and must not miss it there.
#[test]
fn code_of_the_batch_before_is_known_before_it_is_written() {
    let delay = Duration::from_millis(100);
    let backend = Faulty { inner: MemoryBackend::default(), failing: Arc::default(), delay };
    let store = Store::with_backend(&config(), Arc::new(backend)).unwrap();
    store.initialize(&genesis()).unwrap();
    let code = vec![0x60, 0x01, 0x00];
    let code_hash = Some(Digest::from(keccak256(&code)));
    let contract =
        |nonce| Some(StateValue::Account(AccountValue { nonce, code_hash, ..AccountValue::default() }));
    let mut ledger = Ledger::new();
    let deployed = ledger.make(&[(account_key(1), contract(1))], vec![code]);
    ledger.advance(&deployed);
    let called = ledger.make(&[(account_key(1), contract(2))], Vec::new());
    ledger.advance(&called);
    run(&store, &[deployed, called]).unwrap();
    assert_eq!(store.head().unwrap().header, ledger.head);
}

#[test]
fn a_run_that_meets_a_full_disk_goes_on_when_there_is_room() {
    let (made, ledgers) = batches(140);
    let asked = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&asked);
    // The guard asks at first, and again in the middle of the run.
    let free = move || Ok(if seen.fetch_add(1, Ordering::Relaxed) == 1 { 100 << 20 } else { 1 << 30 });
    let guard = DiskGuard::new("disk".as_ref(), 512, free);
    let backend = Arc::new(MemoryBackend::default());
    let store = Store::with_backend_and_disk(&config(), backend, Some(guard)).unwrap();
    store.initialize(&genesis()).unwrap();
    let error = run(&store, &made).unwrap_err();
    assert!(matches!(error, StorageError::DiskLow { .. }), "{error}");
    let head = store.head().unwrap().header.number.0 as usize;
    assert!((1..139).contains(&head), "{head}");
    check(&store, &ledgers[head], Some(&made[head]));
    run(&store, &made[head..]).unwrap();
    check(&store, &ledgers[140], None);
    assert!(asked.load(Ordering::Relaxed) > 2);
}

#[test]
fn a_write_that_fails_in_a_run_ends_the_store_at_a_whole_batch() {
    let (made, ledgers) = batches(8);
    let dir = tempfile::tempdir().unwrap();
    let faults = Faults::fail_at(CrashPoint::Before(Step::Commit), 4);
    let store = Store::open_with(&config(), dir.path(), &faults).unwrap();
    store.initialize(&genesis()).unwrap();
    run(&store, &made).unwrap_err();
    assert!(matches!(run(&store, &made[3..]), Err(StorageError::Poisoned)));
    drop(store);
    let store = Store::open(&config(), dir.path()).unwrap();
    check(&store, &ledgers[3], Some(&made[3]));
}

#[test]
fn speculations_stand_on_each_other_and_roll_back_by_being_dropped() {
    let (made, ledgers) = batches(6);
    on_both(&config(), |fixture| {
        let store = fixture.store();
        let mut chain: Vec<Speculation> = vec![store.speculate(&made[0].delta).unwrap()];
        for batch in &made[1..] {
            let next = store.speculate_after(chain.last().unwrap(), &batch.delta).unwrap();
            chain.push(next);
        }
        for (speculation, batch) in chain.iter().zip(&made) {
            assert_eq!(speculation.root(), batch.header.state_root);
        }
        chain.truncate(3);
        let other = store.speculate_after(&chain[2], &Delta::default()).unwrap();
        assert_eq!(other.root(), made[2].header.state_root);
        for (speculation, batch) in chain.into_iter().zip(&made) {
            store.commit(batch.batch(), Some(speculation)).unwrap();
        }
        check(store, &ledgers[3], Some(&made[3]));
        // It stands on a state that the head has passed by another way.
        let stale = store.speculate(&Delta::default()).unwrap();
        run(store, &made[3..5]).unwrap();
        store.commit(made[5].batch(), Some(stale)).unwrap();
        check(store, &ledgers[6], None);
    });
}
