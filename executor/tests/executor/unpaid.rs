//! Tests without fees: accounts that exist by their nonce alone, and everything that can observe an account's
//! existence.

use std::sync::LazyLock;

use alloy_consensus::TxEip1559;
use alloy_primitives::{Address, Bytes, TxKind, U256, address, keccak256};
use proptest::{collection::vec, prelude::*};
use slipstream_executor::{BatchEnv, Outcome, Transaction, conflicts, execute};
use slipstream_storage::MemoryState;
use slipstream_types::{AccountValue, Conflicts, StateKey, StateValue};

use crate::{
    support::{CHAIN_ID, FEE, PROPOSER, TIP, account, bytes, chain, decode, sign},
    ways::Ways,
};

/// These contracts observe the account in their call data, and store the result in the slot that their caller's address
/// names. So two of them conflict only through that account.
///
/// Observes the balance.
const BALANCE: Address = address!("0x00000000000000000000000000000000c0ffee21");
/// Observes the hash of the code: zero if the account does not exist.
const HASH: Address = address!("0x00000000000000000000000000000000c0ffee22");
/// Observes the length of the code.
const SIZE: Address = address!("0x00000000000000000000000000000000c0ffee23");
/// Pays the account 1 wei, which costs more gas if the account does not exist. Stores whether that succeeded.
const PAY: Address = address!("0x00000000000000000000000000000000c0ffee24");
/// Calls the account as a contract, and stores its answer.
const ASK: Address = address!("0x00000000000000000000000000000000c0ffee25");
/// Creates a contract by CREATE2 with the value of the call. The salt is the first word of the call data; the code is
/// the rest.
const MAKE: Address = address!("0x00000000000000000000000000000000c0ffee26");
/// Runs until 100,000 gas are left.
const BUSY: Address = address!("0x00000000000000000000000000000000c0ffee27");
/// Reverts with the address of the contract that it would have created, which follows from its nonce.
const NAMER: Address = address!("0x00000000000000000000000000000000c0ffee28");

const CODES: [(Address, &str); 8] = [
    (BALANCE, "5f3531335500"),
    (HASH, "5f353f335500"),
    (SIZE, "5f353b335500"),
    (PAY, "5f5f5f5f60015f355af1335500"),
    (ASK, "60205f5f5f5f5f355af1505f51335500"),
    (MAKE, "602036038060205f375f35905f34f5335500"),
    (BUSY, "5b620186a05a115f5700"),
    (NAMER, "5f5f5ff05f5260205ffd"),
];

const OBSERVERS: [Address; 5] = [BALANCE, HASH, SIZE, PAY, ASK];

/// Init codes. They destroy the contract at once, keep a slot without code, keep code that pays the balance to the
/// account in its call data, or fail.
const INIT_CODES: [&str; 4] = ["32ff", "600760015500", "625f35ff5f526003601df3", "5f5ffd"];

/// An empty account that has sent no transaction.
const NOBODY: u8 = 9;
/// Another one.
const NOBODY_ELSE: u8 = 10;
/// Has delegated to [`NAMER`].
const DELEGATED: u8 = 11;
const SENDERS: [u8; 6] = [1, 2, 3, NOBODY, NOBODY_ELSE, DELEGATED];
/// Accounts that can only send free transactions until the batch has paid them.
const POOR: [u8; 2] = [NOBODY, NOBODY_ELSE];
/// Senders of transactions that keep a thread busy, so that the other threads share the rest.
const BUSY_SENDERS: [u8; 2] = [7, 8];

static WAYS: LazyLock<Ways> = LazyLock::new(|| Ways::new(3));

/// A state in which [`DELEGATED`] delegates to a contract, and the environment of a batch without fees.
fn start() -> (MemoryState, BatchEnv) {
    let (mut state, _, env) = chain();
    for (address, code) in CODES {
        let code_hash = Some(state.insert_code(bytes(code).into()));
        let value = AccountValue { nonce: 1, balance: U256::from(3), code_hash };
        state.insert(StateKey::Account(address), StateValue::Account(value));
    }
    let delegation = [&[0xef, 0x01, 0x00], NAMER.as_slice()].concat();
    let code_hash = Some(state.insert_code(delegation.into()));
    let value = AccountValue { nonce: 0, balance: U256::from(10).pow(U256::from(18)), code_hash };
    state.insert(StateKey::Account(account(DELEGATED)), StateValue::Account(value));
    (state, BatchEnv { base_fee_wei: 0, ..env })
}

#[derive(Clone, Debug)]
enum What {
    Transfer { to: u8, wei: u64 },
    Observe { observer: u8, about: u8, wei: u64 },
    Make { salt: u8, form: u8, wei: u64 },
    Create { form: u8, wei: u64 },
    Call { about: u8, with: u8 },
}

/// One transaction.
#[derive(Clone, Debug)]
struct Action {
    from: u8,
    /// Whether it pays a fee.
    pays: bool,
    what: What,
}

fn action() -> impl Strategy<Value = Action> {
    let wei = || prop_oneof![3 => Just(0u64), 1 => 1..3u64];
    let what = prop_oneof![
        3 => (any::<u8>(), wei()).prop_map(|(to, wei)| What::Transfer { to, wei }),
        6 => (any::<u8>(), any::<u8>(), wei())
            .prop_map(|(observer, about, wei)| What::Observe { observer, about, wei }),
        2 => (0u8..2, any::<u8>(), wei()).prop_map(|(salt, form, wei)| What::Make { salt, form, wei }),
        1 => (any::<u8>(), wei()).prop_map(|(form, wei)| What::Create { form, wei }),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(about, with)| What::Call { about, with }),
    ];
    // A sender that cannot pay ends the batch.
    let pays = prop_oneof![20 => Just(false), 1 => Just(true)];
    (0..SENDERS.len(), pays, what).prop_map(|(from, pays, what)| Action { from: SENDERS[from], pays, what })
}

/// Accounts of every kind that the transactions here can create, empty or not.
fn party(index: u8) -> Address {
    let parties = [
        account(NOBODY),
        account(NOBODY_ELSE),
        account(1),
        account(DELEGATED),
        made(0, 0),
        made(0, 2),
        made(1, 1),
        account(1).create(0),
        account(2).create(0),
        PROPOSER,
        PAY,
        Address::repeat_byte(0xaa),
    ];
    parties[usize::from(index) % parties.len()]
}

fn beneficiaries() -> [Address; 6] {
    [PROPOSER, account(NOBODY), made(0, 2), account(1).create(0), HASH, Address::repeat_byte(0xaa)]
}

/// The address at which [`MAKE`] creates a contract.
fn made(salt: u8, form: usize) -> Address {
    MAKE.create2(U256::from(salt).to_be_bytes::<32>(), keccak256(bytes(INIT_CODES[form])))
}

struct Sent {
    to: TxKind,
    input: Bytes,
    wei: u64,
}

impl What {
    fn sent(&self) -> Sent {
        let form = |form: u8| bytes(INIT_CODES[usize::from(form) % INIT_CODES.len()]);
        let word = |about: u8| Bytes::from(party(about).into_word().to_vec());
        match *self {
            What::Transfer { to, wei } => Sent { to: party(to).into(), input: Bytes::new(), wei },
            What::Observe { observer, about, wei } => {
                let to = OBSERVERS[usize::from(observer) % OBSERVERS.len()].into();
                Sent { to, input: word(about), wei }
            }
            What::Make { salt, form: index, wei } => {
                let input = [&U256::from(salt).to_be_bytes::<32>()[..], &form(index)].concat().into();
                Sent { to: MAKE.into(), input, wei }
            }
            What::Create { form: index, wei } => Sent { to: TxKind::Create, input: form(index).into(), wei },
            What::Call { about, with } => Sent { to: party(about).into(), input: word(with), wei: 0 },
        }
    }
}

fn transaction(from: u8, nonce: u64, pays: bool, gas_limit: u64, sent: Sent) -> Transaction {
    let Sent { to, input, wei } = sent;
    let (max_fee_per_gas, max_priority_fee_per_gas) = if pays { (FEE, TIP) } else { (0, 0) };
    let value = U256::from(wei);
    let chain_id = CHAIN_ID;
    let tx = TxEip1559 {
        chain_id,
        nonce,
        gas_limit,
        max_fee_per_gas,
        max_priority_fee_per_gas,
        to,
        value,
        input,
        ..TxEip1559::default()
    };
    decode(sign(from, tx))
}

/// The actions, with transactions that keep a thread busy at the beginning and in the middle.
fn transactions(actions: &[Action], all_pay: bool) -> Vec<Transaction> {
    let mut nonces = [0; DELEGATED as usize + 1];
    let mut transactions: Vec<_> = actions
        .iter()
        .map(|Action { from, pays, what }| {
            let nonce = nonces[usize::from(*from)];
            nonces[usize::from(*from)] += 1;
            let sent = what.sent();
            let wei = if POOR.contains(from) && !pays { 0 } else { sent.wei };
            transaction(*from, nonce, *pays || all_pay, 300_000, Sent { wei, ..sent })
        })
        .collect();
    for (sender, at) in BUSY_SENDERS.into_iter().zip([0, actions.len().div_ceil(2)]) {
        let sent = Sent { to: BUSY.into(), input: Bytes::new(), wei: 0 };
        transactions.insert(at, transaction(sender, 0, all_pay, 600_000, sent));
    }
    transactions
}

fn random_graph(len: usize, noise: &[(u8, u8)]) -> Conflicts {
    let mut predecessors = vec![Vec::new(); len];
    for (from, to) in noise {
        predecessors[usize::from(*to) % len].push(u32::from(*from) % len as u32);
    }
    Conflicts { predecessors, gas: vec![100_000; len] }
}

/// The configuration for `cases` cases, or for `PROPTEST_CASES`.
fn usually(cases: u32) -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        None => ProptestConfig::with_cases(cases),
        // The default reads the variable.
        Some(_) => ProptestConfig::default(),
    }
}

proptest! {
    #![proptest_config(usually(48))]

    /// Goal: all ways to execute a batch give the same view of an account: existence, nonce, code, balance. That holds
    /// with and without fees, and for the fee recipient or an account that the batch creates.
    #[test]
    fn every_way_has_one_outcome(
        actions in vec(action(), 1..24),
        base_fee_wei in prop_oneof![4 => Just(0u64), 1 => Just(10_000_000)],
        beneficiary in 0..beneficiaries().len(),
        noise in vec(any::<(u8, u8)>(), 0..12),
    ) {
        let (state, env) = start();
        let env = BatchEnv { base_fee_wei, beneficiary: beneficiaries()[beneficiary], ..env };
        let transactions = transactions(&actions, base_fee_wei > 0);
        let mut graphs = vec![random_graph(transactions.len(), &noise)];
        if let Ok(outcome) = execute(&state, &env, &transactions) {
            // The access sets in reverse order, as if from another batch.
            let sets: Vec<_> = outcome.accesses.iter().rev().cloned().collect();
            graphs.push(conflicts(&sets, vec![100_000; sets.len()]));
        }
        let agreed = WAYS.agree(&state, &env, &transactions, &graphs);
        prop_assert!(agreed.is_ok(), "{}", agreed.unwrap_err());
    }
}

/// Executes the batch repeatedly, because chance decides which thread takes which transactions.
fn agree_always(env: &BatchEnv, actions: &[Action]) -> Outcome {
    let (state, _) = start();
    let transactions = transactions(actions, false);
    let outcome = execute(&state, env, &transactions).unwrap();
    for _ in 0..50 {
        assert_eq!(WAYS.agree(&state, env, &transactions, &[]).unwrap().as_ref(), Ok(&outcome));
    }
    outcome
}

fn unpaid(from: u8, what: What) -> Action {
    Action { from, pays: false, what }
}

fn observe(from: u8, observer: Address, about: Address) -> Action {
    let observer = OBSERVERS.iter().position(|it| *it == observer).unwrap() as u8;
    let about = (0..).find(|index| party(*index) == about).unwrap();
    unpaid(from, What::Observe { observer, about, wei: 0 })
}

/// Goal: after an account has sent a free transaction, it exists for every observer.
#[test]
fn an_account_exists_by_its_nonce_alone() {
    let (_, env) = start();
    let nobody = account(NOBODY);
    let send = unpaid(NOBODY, What::Transfer { to: 11, wei: 0 });
    let (hash, pay) = (observe(1, HASH, nobody), observe(2, PAY, nobody));
    let outcome = agree_always(&env, &[send.clone(), hash.clone(), pay.clone()]);
    let is_seen = |outcome: &Outcome| {
        let key = StateKey::Slot(HASH, account(1).into_word());
        outcome.delta.entries().iter().any(|entry| entry.key == key)
    };
    assert!(is_seen(&outcome), "the hash of no code is not zero");
    let before = agree_always(&env, &[hash, pay, send]);
    assert!(!is_seen(&before), "before its first transaction there is no such account");
    // Positions 0 and 2 are those of the transactions that keep a thread busy.
    let gas = |outcome: &Outcome, index: usize| outcome.receipts.receipts[index].gas_used;
    assert_eq!(gas(&before, 3) - gas(&outcome, 4), 25_000, "who pays nobody creates an account");
}

/// Goal: an account that is paid before it sends exists from the payment on, not only from its own transaction.
#[test]
fn an_account_that_was_paid_exists_before_its_nonce() {
    let (_, env) = start();
    let pay = unpaid(1, What::Transfer { to: 0, wei: 1 });
    let send = unpaid(NOBODY, What::Transfer { to: 11, wei: 0 });
    assert_eq!(party(0), account(NOBODY));
    agree_always(&env, &[pay.clone(), send.clone()]);
    agree_always(&env, &[send, pay]);
}

/// Goal: calls see code that the batch deploys at the fee recipient.
#[test]
fn a_contract_can_be_made_at_the_fee_recipient() {
    let (_, env) = start();
    let env = BatchEnv { beneficiary: account(1).create(0), ..env };
    let create = unpaid(1, What::Create { form: 2, wei: 1 });
    let about = (0..).find(|index| party(*index) == env.beneficiary).unwrap();
    let outcome = agree_always(&env, &[create, unpaid(2, What::Call { about, with: 11 })]);
    let paid = StateKey::Account(party(11));
    assert!(outcome.delta.entries().iter().any(|entry| entry.key == paid), "the contract ran");
}

/// Goal: a contract that an account delegates to sees the account's nonce, which the account's own transactions
/// increase.
#[test]
fn the_nonce_of_a_delegated_sender_is_seen() {
    let (_, env) = start();
    let delegated = account(DELEGATED);
    let send = || unpaid(DELEGATED, What::Transfer { to: 11, wei: 0 });
    let ask = || observe(1, ASK, delegated);
    let named = |outcome: Outcome| {
        let key = StateKey::Slot(ASK, account(1).into_word());
        outcome.delta.entries().iter().find(|entry| entry.key == key).unwrap().value.unwrap()
    };
    let created = |nonce| StateValue::Slot(U256::from_be_bytes(delegated.create(nonce).into_word().0));
    assert_eq!(named(agree_always(&env, &[send(), ask()])), created(1));
    assert_eq!(named(agree_always(&env, &[ask(), send()])), created(0));
}
