//! Compares the net delta with revm's own bookkeeping, on random batches.

pub(crate) mod ahead;

use std::sync::Arc;

use alloy_consensus::{SignableTransaction, TxEip2930, TxEip7702, TxLegacy};
use alloy_eips::{
    eip2718::Encodable2718,
    eip2930::{AccessList, AccessListItem},
    eip7702::{Authorization, SignedAuthorization},
};
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256, hex, keccak256};
use revm::database::{State, states::bundle_state::BundleRetention};
use slipstream_storage::{MemoryState, StateReader};
use slipstream_types::{AccountValue, StateKey, StateValue};

use super::{
    adapter::{account_info, account_value},
    machine::Machine,
    recorder::Recorder,
};
use crate::{
    evm::{BatchEnv, SpecId},
    outcome::{FREE_DELTA_BYTES, GAS_PER_DELTA_BYTE},
    transaction::{Envelope, Transaction},
};

const USERS: u64 = 6;
const WRITERS: u64 = 3;

/// A generator that needs no crate and draws the same batches in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn user(index: u64) -> Address {
    Address::with_last_byte(0x10 + index as u8)
}

fn writer(index: u64) -> Address {
    Address::with_last_byte(0x80 + index as u8)
}

fn env(spec: SpecId) -> BatchEnv {
    BatchEnv {
        chain_id: 1,
        rules: slipstream_types::RulesId::GENESIS,
        spec,
        number: 5,
        timestamp_s: 100,
        beneficiary: user(0),
        gas_limit: 1 << 40,
        transaction_gas_max: u64::MAX,
        base_fee_wei: 0,
        difficulty: U256::ZERO,
        prev_randao: Some(B256::ZERO),
        parent_hash: B256::ZERO,
        parent_beacon_root: None,
        excess_blob_gas: Some(0),
    }
}

/// Contracts that write the second word of their call data to the slot that the first word names. If the second word is 99,
/// they destroy themselves.
fn start() -> MemoryState {
    let mut state = MemoryState::default();
    for index in 0..USERS {
        let value = AccountValue { balance: U256::from(1_000_000), ..AccountValue::default() };
        state.insert(StateKey::Account(user(index)), StateValue::Account(value));
    }
    let code = state.insert_code(Bytes::from_static(&[
        0x60, 0x20, 0x35, 0x80, 0x60, 0x63, 0x14, 0x60, 0x0e, 0x57, 0x5f, 0x35, 0x55, 0x00, 0x5b, 0x33, 0xff,
    ]));
    for index in 0..WRITERS {
        let value = AccountValue { nonce: 1, balance: U256::from(3), code_hash: Some(code) };
        state.insert(StateKey::Account(writer(index)), StateValue::Account(value));
        for slot in 0..4u64 {
            let key = StateKey::Slot(writer(index), B256::from(U256::from(slot)));
            state.insert(key, StateValue::Slot(U256::from(slot + 1)));
        }
    }
    state
}

fn unsigned(
    tx: impl Into<alloy_consensus::EthereumTypedTransaction<alloy_consensus::TxEip4844>>,
    sender: Address,
) -> Transaction {
    let signature = Signature::test_signature();
    let envelope = Envelope::from(tx.into().into_signed(signature));
    let raw = Bytes::from(envelope.encoded_2718());
    Transaction { hash: keccak256(&raw), raw, sender, envelope: Arc::new(envelope) }
}

/// Draws transfers (some of the whole balance, some of nothing), writes, contract creations and delegations.
fn transaction(random: &mut Random, nonces: &mut [u64]) -> Transaction {
    let from = random.below(USERS);
    let nonce = nonces[from as usize];
    nonces[from as usize] += 1;
    let legacy = TxLegacy { nonce, gas_limit: 500_000, chain_id: Some(1), ..TxLegacy::default() };
    match random.below(8) {
        0 | 1 => {
            let to = TxKind::Call(user(random.below(USERS + 3)));
            unsigned(TxLegacy { to, value: U256::from(random.below(3) * 5), ..legacy }, user(from))
        }
        2 => {
            // Writes slot 1, then returns 0 or 1 bytes of code, or destroys itself.
            let tails: [&[u8]; 3] = [&[0x00], &[0x60, 0x01, 0x5f, 0xf3], &[0x33, 0xff]];
            let input = [&[0x60, 0x07, 0x60, 0x01, 0x55], tails[random.below(3) as usize]].concat();
            let value = U256::from(random.below(2));
            unsigned(TxLegacy { to: TxKind::Create, input: input.into(), value, ..legacy }, user(from))
        }
        3 => {
            let delegate = if random.below(2) == 0 { writer(0) } else { Address::ZERO };
            let authorization = Authorization { chain_id: U256::from(1), address: delegate, nonce: 0 };
            let signature = Signature::new(U256::from(random.below(4) + 1), U256::from(7), false);
            let tx = TxEip7702 {
                chain_id: 1,
                nonce,
                gas_limit: 500_000,
                to: writer(random.below(WRITERS)),
                authorization_list: vec![SignedAuthorization::new_unchecked(
                    authorization,
                    u8::from(signature.v()),
                    signature.r(),
                    signature.s(),
                )],
                ..TxEip7702::default()
            };
            unsigned(tx, user(from))
        }
        _ => {
            let value = [0, 1, 2, 3, 4, 99][random.below(6) as usize];
            let input = [U256::from(random.below(6)), U256::from(value)].map(|word| word.to_be_bytes::<32>());
            let to = TxKind::Call(writer(random.below(WRITERS)));
            unsigned(TxLegacy { to, input: input.concat().into(), ..legacy }, user(from))
        }
    }
}

/// Runs a batch with revm's own bookkeeping switched on. revm's accounts and slots after the batch must equal the state
/// with the delta applied. The delta must name only rows that revm changed.
fn check(seed: u64, spec: SpecId) -> usize {
    let (state, env) = (start(), env(spec));
    let database = State::builder().with_database(Recorder::new(&state, &env)).with_bundle_update().build();
    let mut machine = Machine::over(database, &env, &state);
    let (mut random, mut nonces) = (Random(seed), [0; USERS as usize]);
    for _ in 0..random.below(60) {
        let transaction = transaction(&mut random, &mut nonces);
        match machine.run(&transaction) {
            Ok(executed) => machine.commit(executed),
            // A delegation that took effect left the sender with code or another nonce.
            Err(_) => nonces[(transaction.sender[19] - 0x10) as usize] -= 1,
        }
    }
    let database = &mut machine.evm.ctx.journaled_state.database;
    database.merge_transitions(BundleRetention::PlainState);
    let bundle = database.take_bundle();
    let delta = machine.finish().unwrap().delta;
    let mut after = state.clone();
    after.apply(&delta);
    for (address, account) in &bundle.state {
        let expected = account.info.as_ref().and_then(account_value);
        assert_eq!(after.account(address).unwrap(), expected, "account {address}, seed {seed}");
        for (index, slot) in &account.storage {
            let found = after.slot(address, &B256::from(*index)).unwrap();
            assert_eq!(found, slot.present_value, "slot {index} of {address}, seed {seed}");
        }
    }
    for (hash, code) in &bundle.contracts {
        let referenced = bundle.state.values().any(|account| {
            account.is_contract_changed() && account.info.as_ref().is_some_and(|info| info.code_hash == *hash)
        });
        if referenced && !code.is_empty() {
            assert_eq!(after.code(&(*hash).into()).unwrap().unwrap(), code.original_bytes());
        }
    }
    for entry in delta.entries() {
        let account = &bundle.state[entry.key.address()];
        match entry.key {
            StateKey::Account(_) => assert!(account.is_info_changed(), "{entry:?}, seed {seed}"),
            StateKey::Slot(_, slot) => {
                let changed =
                    account.storage.get(&U256::from_be_bytes(slot.0)).is_some_and(|slot| slot.is_changed());
                assert!(changed || account.was_destroyed(), "{entry:?}, seed {seed}");
            }
        }
    }
    delta.entries().len()
}

#[test]
fn the_net_delta_agrees_with_revms_own_bookkeeping() {
    let changes: usize = (0..300).map(|seed| check(seed, SpecId::PRAGUE)).sum();
    assert!(changes > 1_000, "the batches must do something: {changes}");
}

/// Goal: under rules from before Cancun, where SELFDESTRUCT removes contracts with storage, slots that were read are
/// deleted.
#[test]
fn destroyed_contracts_lose_the_slots_that_were_read() {
    let changes: usize = (0..300).map(|seed| check(seed, SpecId::SHANGHAI)).sum();
    assert!(changes > 1_000, "the batches must do something: {changes}");
}

#[test]
fn accounts_survive_the_way_to_revm_and_back() {
    for code_hash in [None, Some(slipstream_types::Digest([5; 32]))] {
        let value = AccountValue { nonce: 3, balance: U256::from(4), code_hash };
        assert_eq!(account_value(&account_info(&value)), Some(value));
    }
    assert_eq!(account_value(&account_info(&AccountValue::default())), None);
}

/// Goal: a proposer can bound a transaction's delta bytes from its gas limit alone, even where bytes are cheap.
#[test]
fn no_transaction_changes_more_than_its_gas_pays_for() {
    const GAS_LIMIT: u64 = 5_000_000;
    const LISTED: u64 = 1_800;
    // Each goes on until 50,000 gas are left: it calls one account after another, writes slot after slot, or creates
    // contract after contract.
    let codes = [
        "6110005b5f5f5f5f845ffa5060010161c3505a11600357 00",
        "5f5b6001815560010161c3505a11600157 00",
        "6360015ff35f525b6004601c5ff05061c3505a11600757 00",
    ];
    let list = (0..LISTED).map(|index| AccessListItem {
        address: Address::from_word(B256::from(U256::from(0x1000 + index))),
        storage_keys: vec![],
    });
    let list = AccessList(list.collect());
    let (most, mut largest) = (FREE_DELTA_BYTES + (GAS_LIMIT / GAS_PER_DELTA_BYTE) as usize, 0);
    for (code, access_list) in codes.into_iter().zip([list, AccessList::default(), AccessList::default()]) {
        let mut state = start();
        let bytecode = hex::decode(code.replace(' ', "")).unwrap();
        let value = AccountValue {
            nonce: 1,
            balance: U256::ZERO,
            code_hash: Some(state.insert_code(bytecode.into())),
        };
        let to = Address::repeat_byte(0x77);
        state.insert(StateKey::Account(to), StateValue::Account(value));
        let tx = TxEip2930 {
            chain_id: 1,
            gas_limit: GAS_LIMIT,
            to: to.into(),
            access_list,
            ..TxEip2930::default()
        };
        let env = env(SpecId::PRAGUE);
        let executed = Machine::new(&state, &env).unwrap().run(&unsigned(tx, user(1)));
        let Ok(executed) = executed else { panic!("the transaction is valid") };
        assert!(
            executed.success && executed.gas_used > GAS_LIMIT * 9 / 10,
            "{code}: {} gas",
            executed.gas_used
        );
        let bytes = executed.delta_bytes_max;
        assert!(bytes <= most, "{bytes} bytes, at most {most}");
        largest = bytes.max(largest);
    }
    assert!(largest > most * 3 / 4, "the cheapest changes are among these: {largest} bytes of {most}");
}
