//! Goal: a hot cache of any size never changes a result: with batches executed and batches applied, and after a
//! rollback.

use crate::support::*;
use alloy_primitives::{Address, B256, U256};
use slipstream_executor::{BatchEnv, HotCache, LayeredState, Outcome, Transaction, execute};
use slipstream_storage::{MemoryState, StateReader};
use slipstream_types::{AccountValue, Delta, Digest, StateKey, StateValue, delta::DeltaEntry};

const ROOMY: usize = 1 << 20;

fn digest(batch: u64, branch: u64) -> Digest {
    Digest::tagged("test", &[batch.to_le_bytes(), branch.to_le_bytes()].concat())
}

/// One batch of the chain: the same callers each time, and one new account.
fn batch(round: u64, nonce: u64) -> Vec<Transaction> {
    let fresh = Address::left_padding_from(&(0xfeed_0000 + round).to_be_bytes());
    vec![
        transfer(1, nonce, fresh, 1_000),
        invoke(2, nonce, COUNTER, &[]),
        invoke(3, nonce, WRITER, &word(round % 3)),
        create(5, nonce, "64 5f355f5500 5f52 6005 601b f3"),
    ]
}

/// Executes on a state, and on the same state read through the cache. Both must give the same outcome.
fn executed(
    cache: &HotCache,
    at: Digest,
    state: &MemoryState,
    env: &BatchEnv,
    batch: &[Transaction],
) -> Outcome {
    let expected = execute(state, env, batch).unwrap();
    assert_eq!(execute(&LayeredState::cached(cache, at, state), env, batch).unwrap(), expected);
    expected
}

#[test]
fn a_cache_of_any_size_gives_the_same_results() {
    for bytes_max in [0, 1_500, 6_000, ROOMY] {
        let (mut state, _, env) = chain();
        let mut cache = HotCache::new(bytes_max);
        let mut at = digest(0, 0);
        for round in 0..12 {
            let outcome = executed(&cache, at, &state, &env, &batch(round, round));
            let next = digest(round + 1, 0);
            // Every third batch is applied by its delta.
            let touched = (round % 3 != 2).then_some(&outcome.touched);
            cache.apply(at, next, touched, &outcome.delta);
            state.apply(&outcome.delta);
            at = next;
            assert!(cache.stats().bytes <= bytes_max, "{:?} in {bytes_max} bytes", cache.stats());
        }
        let stats = cache.stats();
        assert_eq!(stats.hits > 0, bytes_max > 0, "{stats:?}");
        if bytes_max == ROOMY {
            let last = executed(&cache, at, &state, &env, &batch(1, 12));
            let mut hints = last.hints;
            cache.leave_out(&mut hints);
            let fresh = Address::left_padding_from(&0xfeed_0001u64.to_be_bytes());
            assert!(
                !hints.accounts.iter().any(|account| account.address == fresh || account.address == COUNTER)
            );
            let created = account(5).create(12);
            assert_eq!(hints.accounts.iter().map(|account| account.address).collect::<Vec<_>>(), [created]);
            assert!(
                stats.hits > 4 * stats.misses,
                "most of these batches is what the last ones touched: {stats:?}"
            );
            assert!(stats.codes >= 3);
        }
    }
}

/// Goal: a batch that replaces another one must not run on rows that the replaced batch left.
#[test]
fn another_branch_empties_the_cache() {
    let (state, _, env) = chain();
    let (root, ours, theirs) = (digest(0, 0), digest(1, 0), digest(1, 1));
    let mut cache = HotCache::new(ROOMY);
    let first = executed(&cache, root, &state, &env, &batch(0, 0));
    cache.apply(root, ours, Some(&first.touched), &first.delta);
    assert!(cache.contains(&StateKey::Account(account(1))));

    // The batch is rolled back. The cache is useless for the state before it, and is not read.
    let other = executed(&cache, root, &state, &env, &batch(7, 0));
    assert_eq!(cache.stats().hits, 0);
    cache.apply(root, theirs, Some(&other.touched), &other.delta);
    let fresh_of_ours = Address::left_padding_from(&0xfeed_0000u64.to_be_bytes());
    assert!(!cache.contains(&StateKey::Account(fresh_of_ours)));
    executed(&cache, theirs, &after(&state, &other.delta), &env, &batch(8, 1));
    assert!(cache.stats().hits > 0);
}

/// Goal: rows that a delta deletes or changes are never read with their old values.
#[test]
fn deltas_replace_what_was_read() {
    let nobody = Address::repeat_byte(0x77);
    let (account_key, slot_key) = (StateKey::Account(nobody), StateKey::Slot(nobody, B256::ZERO));
    let value = AccountValue { nonce: 1, ..AccountValue::default() };
    let delta = |account, slot| {
        let mut entries =
            vec![DeltaEntry { key: account_key, value: account }, DeltaEntry { key: slot_key, value: slot }];
        entries.sort_by_key(|entry| entry.key.path());
        Delta::new(entries, vec![]).unwrap()
    };
    let below = MemoryState::default();
    let mut cache = HotCache::new(ROOMY);
    let there = delta(Some(StateValue::Account(value)), Some(StateValue::Slot(U256::from(5))));
    cache.apply(digest(0, 0), digest(1, 0), None, &there);
    let reader = LayeredState::cached(&cache, digest(1, 0), &below);
    assert_eq!(reader.account(&nobody).unwrap(), Some(value));
    assert_eq!(reader.slot(&nobody, &B256::ZERO).unwrap(), U256::from(5));

    // A deleted row is known to be absent, even if the state below has it.
    let mut below = below.clone();
    below.insert(account_key, StateValue::Account(value));
    below.insert(slot_key, StateValue::Slot(U256::from(5)));
    cache.apply(digest(1, 0), digest(2, 0), None, &delta(None, None));
    let reader = LayeredState::cached(&cache, digest(2, 0), &below);
    assert_eq!(reader.account(&nobody).unwrap(), None);
    assert_eq!(reader.slot(&nobody, &B256::ZERO).unwrap(), U256::ZERO);
    assert_eq!(cache.stats().misses, 0);
}
