//! Prefetching: hostile, missing and surplus hints cost time and memory within limits, and nothing else.

use crate::support::*;
use alloy_primitives::{Address, B256, Bytes, U256};
use slipstream_executor::{
    ExecutorConfig, HintsMode, PrefetchStats, StateReader, WarmStats, execute, prefetch,
};
use slipstream_types::{
    AccountValue, Digest, Hints, StateKey, StateValue, hints::AccountHints, limits::CODE_BYTES_MAX,
};

fn named(accounts: Vec<(Address, Vec<B256>)>) -> Hints {
    let account = |(address, slots)| AccountHints { address, code: false, slots };
    Hints { accounts: accounts.into_iter().map(account).collect() }
}

#[test]
fn complete_hints_leave_nothing_to_read() {
    let (state, _, env) = chain();
    let transactions = [invoke(1, 0, COUNTER, &[]), transfer(2, 0, account(3), 1)];
    let expected = execute(&state, &env, &transactions).unwrap();
    for threads in [0, 1, 8] {
        let (warm, stats) = prefetch(&state, &expected.hints, threads).unwrap();
        assert_eq!(execute(&warm, &env, &transactions).unwrap(), expected);
        assert_eq!(
            (stats.keys, stats.codes),
            (expected.hints.keys().count(), expected.hints.codes().count())
        );
        let reads = (stats.keys + stats.codes) as u64;
        assert_eq!(warm.stats(), WarmStats { hits: reads, misses: 0 });
    }
    let (cold, stats) = prefetch(&state, &Hints::default(), 8).unwrap();
    assert_eq!(execute(&cold, &env, &transactions).unwrap(), expected);
    assert_eq!(stats, PrefetchStats::default());
    assert_eq!(cold.stats().hits, 0);
    assert!(cold.stats().misses > 0);
}

/// Goal: "absent" is an answer too. A key without a row must not be read again.
#[test]
fn absent_keys_are_known_to_be_absent() {
    let (mut state, _, _) = chain();
    let nobody = Address::repeat_byte(0x77);
    state.insert(StateKey::Slot(COUNTER, B256::ZERO), StateValue::Slot(U256::from(5)));
    let accounts = vec![(nobody, vec![B256::ZERO]), (COUNTER, vec![B256::ZERO]), (nobody, vec![])];
    let (warm, stats) = prefetch(&state, &named(accounts), 2).unwrap();
    assert_eq!((stats.keys, stats.found), (4, 2));
    assert_eq!(warm.account(&nobody).unwrap(), None);
    assert_eq!(warm.slot(&nobody, &B256::ZERO).unwrap(), U256::ZERO);
    assert_eq!(warm.slot(&COUNTER, &B256::ZERO).unwrap(), U256::from(5));
    assert_eq!(warm.stats(), WarmStats { hits: 3, misses: 0 });
}

/// Goal: a hint of 32 bytes must not make a node load 64 KiB without end.
#[test]
fn hinted_code_is_bounded_in_bytes() {
    let (mut state, _, _) = chain();
    let code = |index: u32| {
        let mut code = vec![0; CODE_BYTES_MAX];
        code[..4].copy_from_slice(&index.to_le_bytes());
        Bytes::from(code)
    };
    let address = |index: u32| Address::left_padding_from(&(0xc0de_0000 + index).to_be_bytes());
    let hashes: Vec<Digest> = (0..600).map(|index| state.insert_code(code(index))).collect();
    for (index, hash) in (0..).zip(&hashes) {
        let account = AccountValue { code_hash: Some(*hash), ..AccountValue::default() };
        state.insert(StateKey::Account(address(index)), StateValue::Account(account));
    }
    // The last one has no account.
    let account = |index| AccountHints { address: address(index), code: true, slots: vec![] };
    let hints = Hints { accounts: (0..601).map(account).collect() };
    let (warm, stats) = prefetch(&state, &hints, 2).unwrap();
    assert_eq!((stats.codes, stats.codes_skipped), (512, 89));
    for hash in &hashes {
        assert!(warm.code(hash).unwrap().is_some(), "what was skipped is read when it is needed");
    }
}

#[test]
fn more_keys_than_a_chunk_are_read_by_all_threads() {
    let (mut state, _, _) = chain();
    let slots: Vec<_> = (0..2_000u64).map(|slot| B256::from(word(slot))).collect();
    for (index, slot) in slots.iter().enumerate().skip(1) {
        state.insert(StateKey::Slot(COUNTER, *slot), StateValue::Slot(U256::from(index)));
    }
    let (warm, stats) = prefetch(&state, &named(vec![(COUNTER, slots.clone())]), 3).unwrap();
    assert_eq!((stats.keys, stats.found), (2_001, 2_000));
    for (index, slot) in slots.iter().enumerate() {
        assert_eq!(warm.slot(&COUNTER, slot).unwrap(), U256::from(index));
    }
    assert_eq!(warm.stats(), WarmStats { hits: 2_000, misses: 0 });
}

#[test]
fn the_configuration_has_defaults_and_no_unknown_keys() {
    let parse = |json| serde_json::from_str::<ExecutorConfig>(json);
    assert_eq!(parse("{}").unwrap(), ExecutorConfig::default());
    assert_eq!(parse(r#"{"hints": "off"}"#).unwrap().hints, HintsMode::Off);
    assert!(parse(r#"{"hint": "off"}"#).is_err());
}
