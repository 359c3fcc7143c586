//! Tests of single transactions and batches, under Prague's rules on a small chain.

use std::collections::BTreeSet;

use crate::support::*;
use alloy_consensus::TxEip1559;
use alloy_eips::{
    eip2930::{AccessList, AccessListItem},
    eip2935::HISTORY_STORAGE_ADDRESS,
    eip4788::BEACON_ROOTS_ADDRESS,
};
use alloy_primitives::{Address, B256, U256, keccak256};
use slipstream_executor::{
    BatchContext, BatchEnv, ExecuteError, HintsMode, Outcome, Rejection, Transaction, execute, open_hints,
    seal,
};
use slipstream_storage::{MemoryState, StateReader};
use slipstream_types::{
    BlobKind, Body, Delta, Digest, Epoch, Receipts, StateKey, StateValue, batch::content_digest,
};

fn run(transactions: &[Transaction]) -> (Outcome, MemoryState) {
    let (state, _, env) = chain();
    let outcome = execute(&state, &env, transactions).unwrap();
    let after = after(&state, &outcome.delta);
    (outcome, after)
}

#[test]
fn a_transfer_moves_value_burns_the_base_fee_and_tips_the_proposer() {
    let (outcome, after) = run(&[transfer(1, 0, Address::repeat_byte(7), 5)]);
    let (_, _, env) = chain();
    assert_eq!(outcome.gas_used, 21_000);
    let receipt = &outcome.receipts.receipts[0];
    assert_eq!((receipt.tx_type, receipt.success, receipt.gas_used), (2, true, 21_000));
    let fee = U256::from(21_000 * (u128::from(env.base_fee_wei) + TIP));
    assert_eq!(balance(&after, account(1)), ether(100) - U256::from(5) - fee);
    assert_eq!(balance(&after, Address::repeat_byte(7)), U256::from(5));
    assert_eq!(balance(&after, PROPOSER), U256::from(21_000 * TIP));
    assert_eq!(after.account(&account(1)).unwrap().unwrap().nonce, 1);
}

#[test]
fn every_type_runs_and_keeps_its_type_in_the_receipt() {
    let list = AccessList(vec![AccessListItem { address: COUNTER, storage_keys: vec![B256::ZERO] }]);
    let (outcome, after) = run(&[
        decode(sign(1, legacy(0, COUNTER))),
        decode(sign(2, with_access_list(0, COUNTER, list))),
        decode(sign(3, dynamic(0, COUNTER))),
        decode(sign(4, delegation(0, account(5), 5, COUNTER))),
    ]);
    let types: Vec<_> = outcome.receipts.receipts.iter().map(|receipt| receipt.tx_type).collect();
    assert_eq!(types, [0, 1, 2, 4]);
    assert!(outcome.receipts.receipts.iter().all(|receipt| receipt.success && receipt.logs.len() == 1));
    assert_eq!(slot(&after, COUNTER, 0), U256::from(3));
    // The delegation made account 5 run the counter's code on its own storage.
    assert_eq!(slot(&after, account(5), 0), U256::from(1));
    let designator = [&[0xef, 0x01, 0x00][..], COUNTER.as_slice()].concat();
    let value = after.account(&account(5)).unwrap().unwrap();
    assert_eq!((value.nonce, value.code_hash), (1, Some(keccak256(&designator).into())));
    assert!(outcome.delta.codes().iter().any(|code| code[..] == designator[..]));

    let log = &outcome.receipts.receipts[3].logs[0];
    assert_eq!((log.address, log.topics[0]), (account(5), Digest(word(0x2a))));
    assert_eq!(outcome.receipts.receipts[0].logs[0].address, COUNTER);
}

#[test]
fn a_revert_pays_its_gas_and_changes_nothing_else() {
    let (outcome, after) = run(&[invoke(1, 0, REVERTER, b"why")]);
    let receipt = &outcome.receipts.receipts[0];
    assert!(!receipt.success && receipt.logs.is_empty());
    assert!(receipt.gas_used > 21_000 && receipt.gas_used < 200_000);
    assert_eq!(slot(&after, REVERTER, 0), U256::ZERO);
    assert!(balance(&after, account(1)) < ether(100));
    assert_eq!(change(&outcome.delta, StateKey::Account(REVERTER)), None);
}

#[test]
fn a_created_contract_brings_its_code() {
    // Returns the 5 bytes of WRITER's code.
    let (outcome, after) = run(&[create(1, 0, "64 5f355f5500 5f52 6005 601b f3")]);
    assert!(outcome.receipts.receipts[0].success);
    let created = account(1).create(0);
    let value = after.account(&created).unwrap().unwrap();
    let code = bytes("5f355f5500");
    assert_eq!((value.nonce, value.code_hash), (1, Some(keccak256(&code).into())));
    assert!(outcome.delta.codes().iter().map(|code| &code[..]).eq([&code[..]]));
    assert_eq!(after.code(&value.code_hash.unwrap()).unwrap().unwrap().to_vec(), code);
}

#[test]
fn the_delta_is_net() {
    // Writes and restores a slot, moves ether there and back, and creates a contract that destroys itself at once.
    let (state, _, env) = chain();
    let free = BatchEnv { base_fee_wei: 0, ..env };
    let costless = |tx: TxEip1559| TxEip1559 { max_fee_per_gas: 0, max_priority_fee_per_gas: 0, ..tx };
    let write = |nonce, value: u64| {
        decode(sign(1, TxEip1559 { input: word(value).into(), ..costless(dynamic(nonce, WRITER)) }))
    };
    let pay = |from: u8, to: u8| {
        decode(sign(from, TxEip1559 { value: ether(1), ..costless(dynamic(0, account(to))) }))
    };
    let destroyed = TxEip1559 {
        to: alloy_primitives::TxKind::Create,
        input: bytes("60015f55 33ff").into(),
        ..costless(dynamic(0, Address::ZERO))
    };
    let transactions = [write(0, 7), write(1, 0), pay(2, 3), pay(3, 2), decode(sign(4, destroyed))];
    let outcome = execute(&state, &free, &transactions).unwrap();
    assert!(outcome.receipts.receipts.iter().all(|receipt| receipt.success));
    let keys: Vec<_> = outcome.delta.entries().iter().map(|entry| entry.key).collect();
    assert!(!keys.contains(&StateKey::Slot(WRITER, B256::ZERO)), "the slot is what it was");
    assert!(!keys.contains(&StateKey::Account(account(4).create(0))), "the contract never was");
    assert!(!keys.contains(&StateKey::Account(PROPOSER)), "an account touched with nothing has no row");
    assert!(outcome.delta.codes().is_empty());
    let after = after(&state, &outcome.delta);
    for seed in [2, 3] {
        let value = after.account(&account(seed)).unwrap().unwrap();
        assert_eq!((value.nonce, value.balance), (1, ether(100)), "only the nonce is new");
    }
    assert_eq!(slot(&after, WRITER, 0), U256::ZERO);
}

#[test]
fn a_slot_set_to_zero_loses_its_row() {
    let (mut state, _, env) = chain();
    state.insert(StateKey::Slot(WRITER, B256::ZERO), StateValue::Slot(U256::from(9)));
    let outcome = execute(&state, &env, &[invoke(1, 0, WRITER, &word(0))]).unwrap();
    assert_eq!(change(&outcome.delta, StateKey::Slot(WRITER, B256::ZERO)), Some(None));
    assert_eq!(slot(&after(&state, &outcome.delta), WRITER, 0), U256::ZERO);
}

#[test]
fn system_calls_write_parent_hash_and_beacon_root_if_their_contracts_exist() {
    let (state, header, env) = chain();
    let outcome = execute(&state, &env, &[]).unwrap();
    let after_one = after(&state, &outcome.delta);
    let digest = U256::from_be_bytes(header.digest().0);
    assert_eq!(slot(&after_one, HISTORY_STORAGE_ADDRESS, env.number - 1), digest);
    let ring = env.timestamp_s % 8_191;
    assert_eq!(slot(&after_one, BEACON_ROOTS_ADDRESS, ring), U256::from(env.timestamp_s));
    assert_eq!(slot(&after_one, BEACON_ROOTS_ADDRESS, ring + 8_191), digest);
    assert_eq!(outcome.delta.entries().len(), 3);

    let bare = execute(&MemoryState::default(), &env, &[]).unwrap();
    assert_eq!(bare.delta, Delta::default());
    assert_eq!(bare.gas_used, 0);
}

#[test]
fn the_evm_sees_hashes_of_earlier_batches() {
    let (mut state, header, mut env) = chain();
    env.number = 300;
    env.parent_hash = B256::repeat_byte(0x99);
    state.insert_header(slipstream_types::BatchNumber::new(60), header.digest());
    let hash_of = |number: u64| {
        let outcome = execute(&state, &env, &[invoke(1, 0, HASHES, &word(number))]).unwrap();
        B256::from(slot(&after(&state, &outcome.delta), HASHES, 0))
    };
    assert_eq!(hash_of(299), B256::repeat_byte(0x99), "the parent's comes from the environment");
    assert_eq!(hash_of(60), B256::from(header.digest()));
    assert_eq!(hash_of(0), B256::ZERO, "too far back");
    assert_eq!(hash_of(300), B256::ZERO, "not earlier");
}

#[test]
fn an_invalid_transaction_fails_the_batch_by_index_hash_and_reason() {
    let (state, _, env) = chain();
    let first = transfer(1, 0, account(2), 1);
    let check = |second: Transaction, expected: &dyn Fn(&Rejection) -> bool| {
        let hash_of_second = second.hash;
        match execute(&state, &env, &[first.clone(), second]) {
            Err(ExecuteError::InvalidTransaction { index: 1, hash, reason }) => {
                assert_eq!(hash, hash_of_second);
                assert!(expected(&reason), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    };
    check(transfer(1, 0, account(2), 1), &|reason| {
        *reason == Rejection::NonceTooLow { expected: 1, found: 0 }
    });
    check(transfer(1, 2, account(2), 1), &|reason| {
        *reason == Rejection::NonceTooHigh { expected: 1, found: 2 }
    });
    check(transfer(9, 0, account(2), 1), &|reason| matches!(reason, Rejection::InsufficientFunds { .. }));
    let cheap = TxEip1559 { max_fee_per_gas: 1, max_priority_fee_per_gas: 0, ..dynamic(1, account(2)) };
    check(decode(sign(1, cheap)), &|reason| *reason == Rejection::FeeBelowBase);
    let short = TxEip1559 { gas_limit: 20_999, ..dynamic(1, account(2)) };
    check(decode(sign(1, short)), &|reason| matches!(reason, Rejection::IntrinsicGas { needed: 21_000, .. }));
    let huge = TxEip1559 { gas_limit: env.gas_limit + 1, ..dynamic(1, account(2)) };
    check(decode(sign(1, huge)), &|reason| matches!(reason, Rejection::GasLimitTooHigh { .. }));
}

#[test]
fn the_batch_gas_limit_holds_over_all_transactions() {
    let (state, _, env) = chain();
    let tight = BatchEnv { gas_limit: 21_000 + 200_000 - 1, ..env };
    let transactions = [transfer(1, 0, account(2), 1), invoke(1, 1, COUNTER, &[])];
    let error = execute(&state, &tight, &transactions).unwrap_err();
    assert!(
        matches!(error, ExecuteError::GasLimit { index: 1, gas_limit: 200_000, left: 199_999, .. }),
        "{error}"
    );
}

#[test]
fn hints_are_the_working_set_in_first_use_order() {
    let (outcome, _) = run(&[invoke(1, 0, COUNTER, &[]), invoke(2, 0, WRITER, &word(1))]);
    let keys: Vec<_> = outcome.hints.keys().collect();
    let at = |key| keys.iter().position(|other| *other == key).unwrap_or_else(|| panic!("{key:?}"));
    assert!(at(StateKey::Slot(HISTORY_STORAGE_ADDRESS, B256::ZERO)) < at(StateKey::Account(account(1))));
    assert!(at(StateKey::Account(account(1))) < at(StateKey::Account(account(2))));
    assert!(at(StateKey::Slot(COUNTER, B256::ZERO)) < at(StateKey::Slot(WRITER, B256::ZERO)));
    let codes: Vec<_> = outcome.hints.codes().collect();
    assert_eq!(codes, [BEACON_ROOTS_ADDRESS, HISTORY_STORAGE_ADDRESS, COUNTER, WRITER]);
}

#[test]
fn a_sealed_batch_commits_to_its_parts() {
    let (state, header, env) = chain();
    let transactions = [invoke(1, 0, COUNTER, &[]), transfer(2, 0, account(3), 1)];
    let outcome = execute(&state, &env, &transactions).unwrap();
    let body = Body::new(transactions.iter().map(|transaction| transaction.raw.to_vec()).collect()).unwrap();
    let root = Digest([3; 32]);
    let basis = BatchContext { parent: &header, epoch: Epoch(4), timestamp_ms: 2_500, proposer: PROPOSER };
    let sealed = seal(HintsMode::Keys, &basis, &transactions, &outcome, root).unwrap();
    let made = &sealed.header;
    assert_eq!((made.number.get(), made.parent, made.epoch), (1, header.digest(), Epoch(4)));
    assert_eq!((made.timestamp_ms, made.proposer, made.state_root), (2_500, PROPOSER, root));
    assert_eq!((made.tx_count, made.gas_used), (2, outcome.gas_used));
    let content = |blob: &slipstream_types::Blob, kind| {
        let content = blob.content(kind).unwrap();
        (content.len() as u32, content_digest(kind, &content))
    };
    assert_eq!((made.tx_bytes, made.transactions_root), content(&sealed.body, BlobKind::Body));
    assert_eq!((made.delta_bytes, made.delta_digest), content(&sealed.delta, BlobKind::Delta));
    assert_eq!(made.receipts_root, content(&sealed.receipts, BlobKind::Receipts).1);
    assert_eq!(sealed.body.open::<Body>(BlobKind::Body).unwrap(), body);
    assert_eq!(sealed.receipts.open::<Receipts>(BlobKind::Receipts).unwrap(), outcome.receipts);
    assert_eq!(Delta::open(&sealed.delta).unwrap(), outcome.delta);
    let opened = open_hints(&sealed.hints.unwrap(), outcome.gas_used, PROPOSER, &transactions).unwrap();
    let (opened, read): (BTreeSet<_>, BTreeSet<_>) =
        (opened.hints.keys().collect(), outcome.hints.keys().collect());
    assert_eq!(opened, read);
}
