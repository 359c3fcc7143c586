//! Calls on a state and in a batch that the caller overrides.

use std::collections::BTreeMap;

use crate::support::*;
use alloy_eips::eip7702::{Authorization, RecoveredAuthorization};
use alloy_primitives::{Address, B256, Bytes, U256};
use slipstream_executor::{
    AccountOverride, BatchEnv, BlockOverrides, CallRequest, ExecuteError, Interrupt, Overrides,
    StorageOverride, call, estimate_gas,
};
use slipstream_storage::MemoryState;

/// An account that the state does not have.
const NOBODY: Address = Address::repeat_byte(0x77);

/// Runs code as that of an account without code, and returns the word that it returns.
fn run(state: &MemoryState, env: &BatchEnv, code: &str, request: CallRequest) -> U256 {
    let mut request = CallRequest { to: Some(NOBODY), ..request };
    request.overrides.accounts.entry(NOBODY).or_default().code = Some(returning(code));
    let outcome = call(state, env, &request, &Interrupt::never()).unwrap();
    assert!(outcome.success, "{code}: {:?}", outcome.halt);
    U256::from_be_slice(&outcome.output)
}

/// The code, followed by code that returns the top of the stack.
fn returning(code: &str) -> Bytes {
    bytes(&format!("{code} 5f5260205ff3")).into()
}

fn overriding(address: Address, account: AccountOverride) -> CallRequest {
    let accounts = BTreeMap::from([(address, account)]);
    CallRequest { overrides: Overrides { accounts, ..Overrides::default() }, ..CallRequest::default() }
}

fn in_block(block: BlockOverrides) -> CallRequest {
    CallRequest { overrides: Overrides { block, ..Overrides::default() }, ..CallRequest::default() }
}

fn push20(address: Address) -> String {
    format!("73{}", alloy_primitives::hex::encode(address))
}

#[test]
fn balance_nonce_and_code_of_accounts() {
    let (state, _, env) = chain();
    let rich = AccountOverride { balance: Some(U256::from(77)), ..Default::default() };
    let asks = format!("{} 31", push20(account(1)));
    assert_eq!(run(&state, &env, &asks, CallRequest::default()), ether(100));
    assert_eq!(run(&state, &env, &asks, overriding(account(1), rich.clone())), U256::from(77));
    // A poor account can send the balance that the call gives it.
    let gift = CallRequest {
        from: account(9),
        to: Some(account(2)),
        value: U256::from(77),
        ..overriding(account(9), rich)
    };
    assert!(call(&state, &env, &gift, &Interrupt::never()).unwrap().success);
    assert!(
        call(&state, &env, &CallRequest { overrides: Overrides::default(), ..gift }, &Interrupt::never())
            .is_err()
    );

    // A nonce makes an account exist, and determines the addresses of the contracts that it creates.
    let exists = format!("{} 3f", push20(Address::repeat_byte(0x78)));
    assert_eq!(run(&state, &env, &exists, CallRequest::default()), U256::ZERO);
    let counted = AccountOverride { nonce: Some(5), ..Default::default() };
    assert_ne!(
        run(&state, &env, &exists, overriding(Address::repeat_byte(0x78), counted.clone())),
        U256::ZERO
    );
    let created = run(&state, &env, "5f5f5ff0", overriding(NOBODY, counted));
    assert_eq!(created, U256::from_be_slice(NOBODY.create(5).as_slice()));

    // Code that is removed, and code that is longer than deployed code may be.
    let size = format!("{} 3b", push20(COUNTER));
    let without = AccountOverride { code: Some(Bytes::new()), ..Default::default() };
    assert_eq!(run(&state, &env, &size, overriding(COUNTER, without)), U256::ZERO);
    let long = AccountOverride { code: Some(vec![0; 60_000].into()), ..Default::default() };
    assert_eq!(run(&state, &env, &size, overriding(COUNTER, long)), U256::from(60_000));
    assert_eq!(state, chain().0, "nothing is kept");
}

#[test]
fn some_slots_or_all() {
    let (mut state, _, env) = chain();
    let slot = |number: u64| B256::from(U256::from(number));
    for number in [1, 2] {
        state.insert(
            slipstream_types::StateKey::Slot(NOBODY, slot(number)),
            slipstream_types::StateValue::Slot(U256::from(10 + number)),
        );
    }
    let read = |number: u64, storage: StorageOverride| {
        let request = overriding(NOBODY, AccountOverride { storage, ..Default::default() });
        run(&state, &env, &format!("60{number:02x} 54"), request).to::<u64>()
    };
    let slots = BTreeMap::from([(slot(1), U256::from(99)), (slot(3), U256::from(98))]);
    let seen = |storage: StorageOverride| [1, 2, 3].map(|number| read(number, storage.clone()));
    assert_eq!(seen(StorageOverride::default()), [11, 12, 0]);
    assert_eq!(seen(StorageOverride::Some(slots.clone())), [99, 12, 98]);
    assert_eq!(seen(StorageOverride::All(slots)), [99, 0, 98]);
}

#[test]
fn every_field_of_the_block() {
    let (state, header, env) = chain();
    let block = BlockOverrides {
        number: Some(U256::from(1_000)),
        timestamp_s: Some(2_000_000_000),
        gas_limit: Some(12_345),
        beneficiary: Some(account(3)),
        prev_randao: Some(B256::repeat_byte(0x5a)),
        base_fee_wei: Some(7),
        difficulty: Some(U256::from(1)),
        blob_base_fee_wei: Some(1 << 70),
        hashes: BTreeMap::from([(999, B256::repeat_byte(9)), (998, B256::repeat_byte(8))]),
    };
    for (code, expected) in [
        ("43", U256::from(1_000)),
        ("42", U256::from(2_000_000_000)),
        ("45", U256::from(12_345)),
        ("41", U256::from_be_slice(account(3).as_slice())),
        ("44", B256::repeat_byte(0x5a).into()),
        ("48", U256::from(7)),
        ("4a", U256::from(1u128 << 70)),
        ("6103e740", B256::repeat_byte(9).into()),
        ("6103e640", B256::repeat_byte(8).into()),
        ("6103e540", U256::ZERO),
    ] {
        assert_eq!(run(&state, &env, code, in_block(block.clone())), expected, "{code}");
    }
    // A fee is compared with the overridden base fee.
    let priced = CallRequest { from: account(1), max_fee_wei: 6, ..in_block(block) };
    let error =
        call(&state, &env, &CallRequest { to: Some(NOBODY), ..priced }, &Interrupt::never()).unwrap_err();
    assert!(matches!(error, ExecuteError::InvalidCall(_)), "{error}");
    // Only the number is overridden: the hashes of earlier batches stay known.
    let second = BlockOverrides { number: Some(U256::from(2)), ..BlockOverrides::default() };
    assert_eq!(run(&state, &env, "5f40", in_block(second)), U256::from_be_bytes(header.digest().0));
    // NUMBER is a word: it may exceed every batch number, and then no hash is known.
    for number in [U256::from(u64::MAX), U256::from(u64::MAX) + U256::ONE, U256::MAX] {
        let far = || in_block(BlockOverrides { number: Some(number), ..BlockOverrides::default() });
        assert_eq!(run(&state, &env, "43", far()), number);
        assert_eq!(run(&state, &env, "60014303 40", far()), U256::ZERO, "the one before {number}");
        assert_eq!(run(&state, &env, "5f40", far()), U256::ZERO);
    }
}

/// Goal: a call at a batch sees that batch, not the next one.
#[test]
fn a_call_within_a_batch_that_is_made() {
    let (state, genesis, _) = chain();
    let chain_config = super::support::genesis().chain;
    let header = slipstream_types::BatchHeader {
        number: slipstream_types::BatchNumber::new(1),
        parent: genesis.digest(),
        timestamp_ms: 5_999,
        proposer: PROPOSER,
        ..genesis.clone()
    };
    let env = BatchEnv::within(&chain_config, &header);
    let parent = U256::from_be_bytes(genesis.digest().0);
    for (code, expected) in [
        ("43", U256::from(1)),
        ("42", U256::from(5)),
        ("41", U256::from_be_slice(PROPOSER.as_slice())),
        ("44", parent),
        ("5f40", parent),
        ("600140", U256::ZERO),
    ] {
        assert_eq!(run(&state, &env, code, CallRequest::default()), expected, "{code}");
    }
}

#[test]
fn estimates_use_overrides_too() {
    let (state, _, env) = chain();
    let transfer = CallRequest { from: account(1), to: Some(COUNTER), ..CallRequest::default() };
    let plain = estimate_gas(&state, &env, &transfer, &Interrupt::never()).unwrap();
    let without = AccountOverride { code: Some(Bytes::new()), ..Default::default() };
    let request = CallRequest { from: account(1), to: Some(COUNTER), ..overriding(COUNTER, without) };
    assert!(plain > 21_000);
    assert_eq!(estimate_gas(&state, &env, &request, &Interrupt::never()).unwrap(), 21_000);
    let poor = AccountOverride { balance: Some(U256::ZERO), ..Default::default() };
    let request =
        CallRequest { max_fee_wei: FEE, from: account(1), to: Some(COUNTER), ..overriding(account(1), poor) };
    let error = estimate_gas(&state, &env, &request, &Interrupt::never()).unwrap_err();
    assert!(error.to_string().starts_with("insufficient funds for transfer"), "{error}");
    let small = BlockOverrides { gas_limit: Some(22_000), ..BlockOverrides::default() };
    let request = CallRequest { to: Some(COUNTER), ..in_block(small) };
    let error = estimate_gas(&state, &env, &request, &Interrupt::never()).unwrap_err();
    assert_eq!(error.to_string(), "gas required exceeds allowance (22000)");
}

#[test]
fn authorizations_give_code_for_a_call() {
    let (state, _, env) = chain();
    let authorization = Authorization { chain_id: U256::from(CHAIN_ID), address: COUNTER, nonce: 0 };
    let signed = authorization.clone().into_signed(sign_hash(2, authorization.signature_hash()));
    let with = |authorizations: Option<Vec<RecoveredAuthorization>>| CallRequest {
        from: account(1),
        to: Some(account(2)),
        authorizations,
        ..CallRequest::default()
    };
    let list = Some(vec![signed.into_recovered()]);
    let plain = estimate_gas(&state, &env, &with(None), &Interrupt::never()).unwrap();
    let gas = estimate_gas(&state, &env, &with(list.clone()), &Interrupt::never()).unwrap();
    assert_eq!(plain, 21_000);
    assert!(gas > 21_000 + 25_000 + 20_000, "{gas}: an authorization, and COUNTER's write");
    assert!(call(&state, &env, &with(list), &Interrupt::never()).unwrap().gas_used > 21_000 + 20_000);
    let error = call(&state, &env, &with(Some(Vec::new())), &Interrupt::never()).unwrap_err();
    assert!(error.to_string().contains("empty auth list"), "{error}");
}
