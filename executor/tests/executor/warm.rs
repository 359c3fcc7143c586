//! Prefetching: hostile, missing and surplus hints cost only time and memory, within limits.

use crate::support::*;
use alloy_primitives::{Address, B256, Bytes, U256};
use slipstream_executor::{
    ExecutorConfig, HintsMode, PrefetchLimits, PrefetchRequest, PrefetchStats, Prefetcher, WarmState, execute,
};
use slipstream_predict::PredictMode;
use slipstream_storage::{MemoryState, StateReader};
use slipstream_types::{
    AccountValue, BatchNumber, Digest, Hints, StateKey, StateValue, hints::AccountHints,
    limits::CODE_BYTES_MAX,
};

/// Reads ahead with `threads` threads; with 0 at once, on this thread.
fn read_ahead(state: &MemoryState, hints: &Hints, threads: usize) -> WarmState<MemoryState> {
    if threads == 0 {
        return WarmState::complete(state.clone(), hints.into()).unwrap();
    }
    let limits = PrefetchLimits { threads, ..PrefetchLimits::default() };
    let prefetcher = Prefetcher::new(limits).unwrap();
    // Execution reads the rows that the threads left unread.
    prefetcher.read_ahead(BatchNumber::new(1), state.clone(), PrefetchRequest::from(hints))
}

#[test]
fn complete_hints_leave_nothing_to_read() {
    let (state, _, env) = chain();
    let transactions = [invoke(1, 0, COUNTER, &[]), transfer(2, 0, account(3), 1)];
    let expected = execute(&state, &env, &transactions).unwrap();
    for threads in [0, 1, 8] {
        let warm = read_ahead(&state, &expected.hints, threads);
        assert_eq!(execute(&warm, &env, &transactions).unwrap(), expected);
        let stats = warm.prefetched();
        let named = (expected.hints.keys().count(), expected.hints.codes().count());
        assert_eq!((stats.keys, stats.codes), named);
        let reads = (stats.keys + stats.codes) as u64;
        assert_eq!((warm.stats().hits, warm.stats().misses), (reads, 0));
    }
    let cold = read_ahead(&state, &Hints::default(), 8);
    assert_eq!(cold.prefetched(), PrefetchStats::default());
    assert_eq!(execute(&cold, &env, &transactions).unwrap(), expected);
    assert_eq!(cold.stats().hits, 0);
    assert!(cold.stats().misses > 0);
}

/// Goal: a key that is known to have no row is not read again.
#[test]
fn absent_keys_are_known_to_be_absent() {
    let (mut state, _, _) = chain();
    let nobody = Address::repeat_byte(0x77);
    state.insert(StateKey::Slot(COUNTER, B256::ZERO), StateValue::Slot(U256::from(5)));
    let accounts = vec![(nobody, vec![B256::ZERO]), (COUNTER, vec![B256::ZERO]), (nobody, vec![])];
    let account = |(address, slots)| AccountHints { address, code: false, slots };
    let hints = Hints { accounts: accounts.into_iter().map(account).collect() };
    let warm = read_ahead(&state, &hints, 0);
    assert_eq!((warm.prefetched().keys, warm.prefetched().found), (4, 2));
    assert_eq!(warm.account(&nobody).unwrap(), None);
    assert_eq!(warm.slot(&nobody, &B256::ZERO).unwrap(), U256::ZERO);
    assert_eq!(warm.slot(&COUNTER, &B256::ZERO).unwrap(), U256::from(5));
    let stats = warm.stats();
    assert_eq!((stats.hits, stats.misses, stats.claimed), (3, 0, 0));
}

/// Goal: the code that hints of 32 bytes can make a node load, 64 KiB each, is bounded.
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
    // The last one has no account, so it has no code to skip.
    let account = |index| AccountHints { address: address(index), code: true, slots: vec![] };
    let hints = Hints { accounts: (0..601).map(account).collect() };
    let warm = read_ahead(&state, &hints, 0);
    assert_eq!((warm.prefetched().codes, warm.prefetched().codes_skipped), (512, 88));
    for hash in &hashes {
        assert!(warm.code(hash).unwrap().is_some(), "what was skipped is read when it is needed");
    }
}

#[test]
fn the_configuration_has_defaults_and_no_unknown_keys() {
    let parse = |json| serde_json::from_str::<ExecutorConfig>(json);
    assert_eq!(parse("{}").unwrap(), ExecutorConfig::default());
    assert_eq!(parse(r#"{"hints": "off"}"#).unwrap().hints, HintsMode::Off);
    assert_eq!(parse(r#"{"predict": "full"}"#).unwrap().predict, PredictMode::Full);
    assert_eq!(parse("{}").unwrap().predict, PredictMode::Accounts);
    assert!(parse(r#"{"predict": "some"}"#).is_err());
    assert!(parse(r#"{"hint": "off"}"#).is_err());
    let threads = |json| parse(json).unwrap().execution_threads();
    assert_eq!(threads(r#"{"hints": "keys", "threads": 3}"#), 1, "nobody says what may run beside what");
    assert_eq!(threads(r#"{"hints": "conflicts", "threads": 30}"#), 30);
    assert_eq!(threads(r#"{"hints": "values", "threads": 30}"#), 30);
    assert!((1..=8).contains(&threads(r#"{"hints": "conflicts"}"#)));
}
