//! A result from running ahead is accepted only if the turn itself would give the same. These tests use one thread: a
//! seed decides which values each transaction saw.

use alloy_consensus::{SignableTransaction as _, TxEip1559};
use alloy_eips::eip2718::Encodable2718 as _;
use alloy_primitives::{Address, Bytes, Signature, TxKind, U256, hex, keccak256};
use slipstream_storage::MemoryState;
use slipstream_types::{AccountValue, StateKey, StateValue};

use super::{Random, env};
use crate::{
    evm::{
        BatchEnv, ExecutedTransaction, Machine, RunError, SpecId, SpeculativeReads, Speculator, Verdict,
        Versions,
    },
    transaction::{Envelope, Transaction},
};

const GAS_LIMIT: u64 = 250_000;
const BASE_FEE_WEI: u64 = 2;
/// Fee caps, well above the price too: then a sender must have more than it pays.
const CAPS_WEI: [u64; 3] = [3, 9, 60];
/// The most that a sender must have for one transaction, without its value.
const COST_MAX: u64 = GAS_LIMIT * 60;

/// Contracts, which delegated accounts run too. Their call data names the account that they read or pay.
const CODES: [&str; 11] = [
    // Store the account's balance, code hash, or code length in slot 0.
    "5f35315f5500",
    "5f353f5f5500",
    "5f353b5f5500",
    // Pay 1 wei, and store whether that succeeded, or nothing.
    "5f5f5f5f60015f355af15f5500",
    "5f5f5f5f60015f355af15000",
    // Stores its own balance, and pays all of it.
    "475f555f5f5f5f475f355af100",
    // Create a contract, and store its address, or nothing.
    "5f5f5ff05f5500",
    "5f5f5ff000",
    // Counts in slot 0.
    "5f546001015f5500",
    // Destroys itself in favour of the account.
    "5f35ff",
    // Reads more balances than can be recorded, then stores the account's.
    "60285b80315060019003806002575f35315f5500",
];
const USERS: u8 = 8;
/// Users from this one on have delegated to the contracts (EIP-7702): others make them pay, and use their nonces.
const DELEGATED: u8 = 4;

fn contract(index: usize) -> Address {
    Address::with_last_byte(0x80 + index as u8)
}

/// The first is the fee recipient.
fn user(index: u8) -> Address {
    Address::with_last_byte(0x10 + index)
}

/// Some accounts have just enough, some nothing, and some a balance at which sums could overflow.
fn start(random: &mut Random) -> MemoryState {
    let mut state = MemoryState::default();
    let mut hashes = Vec::new();
    for (index, code) in CODES.iter().enumerate() {
        let code = state.insert_code(Bytes::from(hex::decode(code).unwrap()));
        hashes.push(code);
        let balance = U256::from(random.below(3));
        let value = AccountValue { nonce: 1, balance, code_hash: Some(code) };
        state.insert(StateKey::Account(contract(index)), StateValue::Account(value));
    }
    for index in 0..USERS {
        let balance = match random.below(6) {
            0 => U256::ZERO,
            1 => U256::from(COST_MAX + random.below(9)),
            2 => U256::from(COST_MAX + random.below(COST_MAX)),
            3 => U256::from(1) << (191 + random.below(60) as usize),
            _ => U256::from(100 * COST_MAX),
        };
        let delegate = [&[0xef, 0x01, 0x00][..], contract(random.below(8) as usize).as_slice()].concat();
        let code_hash = (index >= DELEGATED).then(|| state.insert_code(delegate.into()));
        let value = AccountValue { nonce: 0, balance, code_hash };
        if value != AccountValue::default() {
            state.insert(StateKey::Account(user(index)), StateValue::Account(value));
        }
    }
    state
}

/// Every other transaction of a batch calls one contract, so they conflict there.
fn transaction(random: &mut Random, favourite: Address, nonces: &mut [u64]) -> Transaction {
    let from = random.below(USERS.into()) as usize;
    let anybody = |random: &mut Random| match random.below(6) {
        0 => contract(random.below(CODES.len() as u64) as usize),
        1 => favourite,
        // An address that the batch may create.
        2 => user(random.below(USERS.into()) as u8).create(random.below(2)),
        // An account that may exist, or only after a payment.
        _ => user(random.below(u64::from(USERS) + 2) as u8),
    };
    let cap_wei = CAPS_WEI[random.below(3) as usize];
    let to = match random.below(12) {
        0 => TxKind::Create,
        1..=6 => TxKind::Call(favourite),
        _ => TxKind::Call(anybody(random)),
    };
    let input = match to {
        // Returns no code, or one byte.
        TxKind::Create if random.below(2) == 0 => Bytes::from_static(&hex!("5f5500")),
        TxKind::Create => Bytes::from_static(&hex!("60015ff3")),
        TxKind::Call(_) => Bytes::copy_from_slice(anybody(random).into_word().as_slice()),
    };
    let transaction = TxEip1559 {
        chain_id: 1,
        nonce: nonces[from],
        gas_limit: GAS_LIMIT,
        max_fee_per_gas: cap_wei.into(),
        // For some, the fee cap decides the proposer's tip.
        max_priority_fee_per_gas: random.below(cap_wei + 1).into(),
        to,
        value: U256::from([0, 0, 0, 0, 1, 5, COST_MAX][random.below(7) as usize]),
        input,
        ..TxEip1559::default()
    };
    nonces[from] += 1;
    let envelope = Envelope::Eip1559(transaction.into_signed(Signature::test_signature()));
    let raw = Bytes::from(envelope.encoded_2718());
    Transaction { hash: keccak256(&raw), raw, sender: user(from as u8), envelope: envelope.into() }
}

/// A state and a short batch on it, full of conflicts.
pub(crate) fn draw(random: &mut Random) -> (MemoryState, BatchEnv, Vec<Transaction>) {
    let state = start(random);
    let env = BatchEnv { base_fee_wei: BASE_FEE_WEI, ..env(SpecId::PRAGUE) };
    let nonces = &mut [0; USERS as usize];
    let favourite = match random.below(3) {
        0 => user(random.below(USERS.into()) as u8),
        _ => contract(random.below(CODES.len() as u64) as usize),
    };
    let count = 2 + random.below(5);
    let transactions = (0..count).map(|_| transaction(random, favourite, nonces)).collect();
    (state, env, transactions)
}

/// Runs the transactions in an order that the seed draws, each on the changes of those before it in that order. Returns
/// the result of each.
fn run_ahead(
    random: &mut Random,
    versions: &Versions<'_>,
    transactions: &[Transaction],
) -> Vec<Option<(ExecutedTransaction, SpeculativeReads)>> {
    let mut speculator = Speculator::new(versions);
    let mut ahead: Vec<_> = transactions.iter().map(|_| None).collect();
    let mut left: Vec<usize> = (0..transactions.len()).collect();
    while !left.is_empty() {
        let index = left.swap_remove(random.below(left.len() as u64) as usize);
        let transaction = &transactions[index];
        ahead[index] = speculator.run(index as u32, transaction);
        if let Some((executed, _)) = &ahead[index] {
            versions.publish(index as u32, transaction.sender, executed);
        }
    }
    ahead
}

/// Whether both results look the same from outside.
fn alike(one: &ExecutedTransaction, other: &ExecutedTransaction) -> bool {
    (one.success, one.gas_used, &one.logs, &one.output)
        == (other.success, other.gas_used, &other.logs, &other.output)
}

/// Counts of results: accepted unchanged, accepted after an update, and refused.
#[derive(Default, Debug)]
struct Taken {
    holds: usize,
    moved: usize,
    refused: usize,
}

fn check(seed: u64, taken: &mut Taken) {
    let random = &mut Random(seed);
    let (state, env, transactions) = draw(random);
    let versions = Versions::new(&state, &env);
    let ahead = run_ahead(random, &versions, &transactions);
    let mut single = Machine::new(&state, &env).unwrap();
    let mut machine = Machine::sharing(&versions).unwrap();
    for (index, (transaction, ahead)) in transactions.iter().zip(ahead).enumerate() {
        let alone = single.run(transaction);
        let mut took = None;
        if let Some((mut executed, reads)) = ahead {
            let mut access = executed.access(transaction.sender, env.beneficiary);
            match machine.accept(&mut executed, &reads, transaction) {
                Verdict::Refused => {
                    taken.refused += 1;
                    versions.retract(index as u32, transaction.sender, &executed);
                }
                verdict => {
                    if verdict == Verdict::Moved {
                        taken.moved += 1;
                        access = executed.access(transaction.sender, env.beneficiary);
                    }
                    taken.holds += 1;
                    took = Some((executed, access));
                }
            }
        }
        match (alone, took) {
            (Ok(alone), Some((executed, access))) => {
                let expected = alone.access(transaction.sender, env.beneficiary);
                assert!(alike(&executed, &alone), "seed {seed}, transaction {index}");
                assert_eq!(access, expected, "seed {seed}, transaction {index}");
                single.commit(alone);
                machine.commit(executed);
            }
            (Ok(alone), None) => {
                let Ok(executed) = machine.run(transaction) else { panic!("seed {seed}: {index}") };
                versions.publish(index as u32, transaction.sender, &executed);
                assert!(alike(&executed, &alone), "seed {seed}, transaction {index} again");
                single.commit(alone);
                machine.commit(executed);
            }
            (Err(RunError::Rejected(reason)), Some(_)) => {
                panic!("seed {seed}: transaction {index} is taken, and its turn refuses it: {reason}")
            }
            // The batch is invalid.
            (Err(_), None) => return,
            (Err(RunError::Failed(error)), Some(_)) => panic!("seed {seed}: {error}"),
        }
    }
    let (one, other) = (single.finish().unwrap(), machine.finish().unwrap());
    assert_eq!(other.delta, one.delta, "seed {seed}");
    assert_eq!((other.hints, other.touched), (one.hints, one.touched), "seed {seed}");
}

/// Goal: the result of a transaction that ran ahead of its turn is accepted only if one thread would get the same. This
/// matters most where senders have little more than they need, other transactions make them pay, and transactions read
/// balances that fees change.
#[test]
fn what_ran_ahead_is_taken_only_if_its_turn_does_the_same() {
    let mut taken = Taken::default();
    (0..12_000).for_each(|seed| check(seed, &mut taken));
    let Taken { holds, moved, refused } = taken;
    assert!(holds > 12_000 && moved > 20 && refused > 3_000, "{taken:?}");
}
