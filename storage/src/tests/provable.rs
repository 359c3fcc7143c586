//! Goal: at the head and shortly before it, every row is proved, present or absent, as a model has it. Other states
//! are refused.

use proptest::prelude::*;
use slipstream_types::tree::{Leaf, StateRangeProof};

use super::{
    history::{ledgers, some},
    *,
};
use crate::{ProvableState, StorageError};

fn state(store: &Store, number: u64) -> ProvableState {
    store.provable_state(BatchNumber::new(number)).unwrap()
}

fn reason(store: &Store, number: u64) -> &'static str {
    match store.provable_state(BatchNumber::new(number)).unwrap_err() {
        StorageError::NotProvable { reason, .. } => reason,
        error => panic!("{error}"),
    }
}

fn verify(proof: &StateRangeProof, root: Digest, key: &StateKey, row: Option<StateValue>) -> bool {
    let path = key.path();
    let leaf = row.map(|row| Leaf { path, value_hash: row.hash(key) });
    proof.verify(root, path, path, leaf.as_slice()).is_ok()
}

/// Proves these keys, and checks that no other row passes for them.
fn check(state: &ProvableState, ledger: &Ledger, keys: &[StateKey]) {
    assert_eq!(*state.header(), ledger.head);
    let root = ledger.head.state_root;
    for (key, row) in keys.iter().zip(state.view().rows(keys).unwrap()) {
        assert_eq!(row, ledger.state.get(key).copied(), "{key:?}");
        let proof = state.prove(key, row).unwrap();
        assert!(verify(&proof, root, key, row));
        // A row that no key of these tests has.
        let other = match key {
            StateKey::Account(_) => account(1_234),
            StateKey::Slot(..) => slot(1_000_000),
        };
        assert!(!verify(&proof, root, key, other));
        assert!(matches!(state.prove(key, other), Err(StorageError::Corrupt { .. })));
    }
}

fn keys(ledgers: &[Ledger]) -> Vec<StateKey> {
    let mut keys: Vec<_> = ledgers.iter().flat_map(|ledger| ledger.state.keys().copied()).collect();
    keys.extend([account_key(0xf0), slot_key(0xcc, 0xf0)]);
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Goal: the proofs are the same whichever states were requested before, through restarts, and while the head moves
/// on.
#[test]
fn recent_states_are_proved_as_the_model_has_them() {
    on_both(&config(), |mut fixture| {
        let (made, ledgers) = ledgers(&some(24));
        let keys = keys(&ledgers);
        for (index, batch) in made.iter().enumerate() {
            let head = index as u64 + 1;
            fixture.store().commit(batch.batch(), None).unwrap();
            let first = head.saturating_sub(small().provable_batches);
            let back = [head, first, (head * 7 % 5).min(head - first)];
            for number in [back[0], back[1], head - back[2]] {
                check(&state(fixture.store(), number), &ledgers[number as usize], &keys);
            }
            if first > 0 {
                assert_eq!(reason(fixture.store(), first - 1), "it is too old");
            }
            assert_eq!(reason(fixture.store(), head + 1), "it does not exist yet");
            if index % 7 == 6 {
                fixture.reopen();
            }
        }
    });
}

/// Goal: a held state does not change. The store itself remembers few states, and none that is too old.
#[test]
fn few_states_are_remembered_and_only_recent_ones() {
    let fixture = Fixture::initialized(&config(), true);
    let (made, ledgers) = ledgers(&some(20));
    let keys = keys(&ledgers);
    let store = fixture.store();
    for batch in &made[..10] {
        store.commit(batch.batch(), None).unwrap();
    }
    let held = state(store, 8);
    for number in [10, 9, 8, 7, 6, 5, 8] {
        state(store, number);
    }
    let remembered = |store: &Store| store.0.trees.lock().numbers();
    assert_eq!(remembered(store), [7, 6, 5, 8]);
    store.commit(made[10].batch(), None).unwrap();
    store.commit(made[11].batch(), None).unwrap();
    assert_eq!(remembered(store), [7, 6, 8]);
    for batch in &made[12..] {
        store.commit(batch.batch(), None).unwrap();
    }
    assert!(remembered(store).is_empty());
    check(&held, &ledgers[8], &keys);
}

/// Goal: remembered trees stay within the memory of the tree, together with the head's. They are evicted as the head
/// moves on, and made again.
#[test]
fn remembered_states_count_as_memory_of_the_tree() {
    for (tree_memory_mib, remembered) in [(1, false), (64, true), (0, true)] {
        let fixture = Fixture::initialized(&StorageConfig { tree_memory_mib, ..config() }, true);
        let (store, mut ledger) = (fixture.store(), Ledger::new());
        let key = |n: u64| StateKey::Slot(address((n % 7) as u8), keccak256(n.to_le_bytes()));
        // More than a MiB holds, so that the head's tree leaves little of it free.
        let rows: Vec<_> = (0..20_000).map(|n| (key(n), slot(n + 1))).collect();
        ledger.commit(store, &rows);
        let numbers = || store.0.trees.lock().numbers();
        let asked: Vec<StateKey> = (0..50).map(|n| key(n * 397)).collect();
        let held = state(store, 1);
        check(&held, &ledger, &asked);
        assert_eq!(numbers(), [1], "nothing came to the head's tree since: {tree_memory_mib} MiB");
        let before = ledger.clone();
        let changes: Vec<_> = (0..400).map(|n| (key(n * 41), slot(n + 9))).collect();
        ledger.commit(store, &changes);
        assert_eq!(numbers().contains(&1), remembered, "{tree_memory_mib} MiB");
        check(&held, &before, &asked);
        check(&state(store, 2), &ledger, &asked);
        assert!(numbers().contains(&2), "{tree_memory_mib} MiB");
    }
}

/// Goal: states that would cost too much, or are no longer known, are refused by name.
#[test]
fn what_changed_too_much_or_is_not_kept_is_refused() {
    let fixture = Fixture::initialized(&config(), true);
    let (store, mut ledger) = (fixture.store(), Ledger::new());
    ledger.commit(store, &[(account_key(1), account(1))]);
    let many: Vec<_> = (1..=60).map(|n| (account_key(n), account(u64::from(n) + 5))).collect();
    ledger.commit(store, &many);
    ledger.commit(store, &[(account_key(1), account(2))]);
    state(store, 3);
    state(store, 2);
    assert_eq!(reason(store, 1), "too much changed since then");

    let fixture = Fixture::initialized(&config(), true);
    let (store, mut ledger) = (fixture.store(), Ledger::new());
    ledger.commit_up_to(store, 3);
    let mut made = ledger.make(&[(account_key(1), account(3))], Vec::new());
    store.commit(CommitBatch { delta_blob: None, ..made.batch() }, None).unwrap();
    ledger.advance(&made);
    made = ledger.make(&[(account_key(1), account(4))], Vec::new());
    store.commit(made.batch(), None).unwrap();
    state(store, 4);
    assert_eq!(reason(store, 3), "the store lacks the deltas of the later batches");

    let none = Fixture::initialized(&super::history::window(1), true);
    let mut ledger = Ledger::new();
    ledger.commit_up_to(none.store(), 4);
    state(none.store(), 3);
    assert_eq!(reason(none.store(), 2), "the store does not keep its state");
}

/// Goal: a commit delays readers only while it has the tree, and then not for long.
#[test]
fn readers_wait_for_no_lock_and_not_long_for_the_tree() {
    let fixture = Fixture::initialized(&config(), true);
    let (store, mut ledger) = (fixture.store(), Ledger::new());
    ledger.commit_up_to(store, 4);
    let keys = keys(std::slice::from_ref(&ledger));
    let (writer, current) = (store.writer(), store.current().unwrap());
    check(&state(store, 4), &ledger, &keys);
    assert_eq!(state(store, 2).header().number, BatchNumber::new(2));

    let tree = writer.take_tree(&current).unwrap();
    let refused = store.provable_state(BatchNumber::new(3)).unwrap_err();
    assert!(matches!(refused, StorageError::TreeInUse { .. }) && refused.is_retryable(), "{refused}");
    check(&state(store, 4), &ledger, &keys);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            // If this machine stalls between the next two lines, a reader has waited in vain, and asks again.
            loop {
                match store.provable_state(BatchNumber::new(3)) {
                    Err(error) if error.is_retryable() => {}
                    state => return state.unwrap(),
                }
            }
        });
        *current.tree.lock() = Some(tree);
        drop(writer);
        assert_eq!(waiting.join().unwrap().header().number, BatchNumber::new(3));
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    /// Goal: parts of the tree that are not in memory are proved like those that are.
    #[test]
    fn parts_that_are_on_the_disk_are_proved_alike(seed in any::<u64>(), changes in 1..12u64) {
        let fixture = Fixture::initialized(&StorageConfig { tree_memory_mib: 1, ..config() }, true);
        let (store, mut ledger) = (fixture.store(), Ledger::new());
        let key = |n: u64| StateKey::Slot(address((n % 7) as u8), keccak256(n.to_le_bytes()));
        let rows: Vec<_> = (0..20_000).map(|n| (key(n), slot(n + 1))).collect();
        ledger.commit(store, &rows);
        let mut ledgers = vec![ledger.clone()];
        for batch in 0..4 {
            let changed: BTreeMap<StateKey, Option<StateValue>> = (0..changes)
                .map(|i| seed.wrapping_mul(i + 1).wrapping_add(batch) % 20_500)
                .map(|n| (key(n), if n % 3 == 0 { None } else { slot(n + 7) }))
                .collect();
            ledger.commit(store, &changed.into_iter().collect::<Vec<_>>());
            ledgers.push(ledger.clone());
        }
        let asked: Vec<StateKey> = (0..60).map(|i| key(seed.wrapping_mul(i * i + 3) % 21_000)).collect();
        for ledger in ledgers.iter().rev().take(3) {
            check(&state(store, ledger.head.number.get()), ledger, &asked);
        }
    }
}
