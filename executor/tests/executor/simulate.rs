//! Compares simulated batches with executed ones.

use std::collections::BTreeMap;

use crate::support::*;
use alloy_consensus::{Transaction as _, TxEip1559};
use alloy_primitives::{Address, B256, Bytes, TxKind, U256, address};
use proptest::prelude::*;
use slipstream_executor::{
    AccountOverride, BatchEnv, BlockOverrides, CALL_GAS_MAX, CallRequest, ExecuteError, ExecutionState,
    Interrupt, Overrides, Rejection, SimulateError, Simulation, SimulationRules, StorageOverride,
    Transaction, execute,
};
use slipstream_types::{BatchNumber, ChainConfig, Log};

const RULES: SimulationRules =
    SimulationRules { is_validated: true, has_transfer_logs: false, output_bytes_max: 1 << 20 };
const FREE: SimulationRules = SimulationRules { is_validated: false, ..RULES };
const LOGGED: SimulationRules = SimulationRules { has_transfer_logs: true, ..FREE };
const NOBODY: Address = Address::repeat_byte(0x77);

fn simulate(state: &dyn ExecutionState, rules: SimulationRules) -> Simulation<'_> {
    Simulation::new(state, rules, Interrupt::never())
}

/// The call that corresponds to a transaction.
fn request_of(transaction: &Transaction) -> CallRequest {
    CallRequest {
        from: transaction.sender,
        to: transaction.to(),
        gas: Some(transaction.gas_limit()),
        max_fee_wei: transaction.max_fee_wei(),
        max_tip_wei: transaction.envelope.max_priority_fee_per_gas().unwrap_or_default(),
        value: transaction.value(),
        data: transaction.input().clone(),
        nonce: Some(transaction.nonce()),
        ..CallRequest::default()
    }
}

fn call(from: u8, to: Address, data: &[u8]) -> CallRequest {
    CallRequest {
        from: account(from),
        to: Some(to),
        data: Bytes::copy_from_slice(data),
        ..CallRequest::default()
    }
}

fn accounts(all: &[(Address, AccountOverride)]) -> Overrides {
    Overrides { accounts: all.iter().cloned().collect(), ..Overrides::default() }
}

fn coded(code: &str) -> AccountOverride {
    AccountOverride { code: Some(bytes(code).into()), ..AccountOverride::default() }
}

/// A transaction of sender `1 + seed % 4`; `nonces` has the next nonce of each sender.
pub(crate) fn transaction(
    nonces: &mut BTreeMap<u8, u64>,
    (sender, kind, number): (u8, u8, u8),
) -> Transaction {
    let seed = 1 + sender % 4;
    let nonce = nonces.entry(seed).or_default();
    let to = match kind % 6 {
        0 => TxKind::Call(account(1 + number % 8)),
        1 => TxKind::Call(COUNTER),
        2 => TxKind::Call(WRITER),
        3 => TxKind::Call(REVERTER),
        4 => TxKind::Call(HASHES),
        _ => TxKind::Create,
    };
    let input: Bytes = match to {
        TxKind::Call(WRITER | HASHES | REVERTER) => word(u64::from(number % 3)).into(),
        // Returns five bytes of code and keeps its value.
        TxKind::Create => bytes("64 5f355f5500 5f52 6005 601b f3").into(),
        _ => Bytes::new(),
    };
    let has_value = matches!(kind % 6, 0 | 5);
    let value = U256::from(if has_value { u64::from(number) } else { 0 });
    let inner = TxEip1559 { to, input, value, ..dynamic(*nonce, COUNTER) };
    *nonce += 1;
    decode(sign(seed, inner))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Goal: a validated simulation gives the results of the batches, one after the other: gas, logs, and the state for
    /// later ones.
    #[test]
    fn simulated_batches_do_what_batches_do(
        batches in prop::collection::vec(prop::collection::vec(any::<(u8, u8, u8)>(), 0..8), 1..4)
    ) {
        let (mut state, genesis, _) = chain();
        let base = state.clone();
        let mut simulation = simulate(&base, RULES);
        let (mut nonces, mut parent) = (BTreeMap::new(), B256::from(genesis.digest()));
        for (number, batch) in (1u64..).zip(batches) {
            let config = ChainConfig { chain_id: CHAIN_ID, ..ChainConfig::default() };
            let env = BatchEnv::behind(parent, &config, BatchNumber::new(number), 2_000 * number, PROPOSER);
            let transactions: Vec<_> =
                batch.into_iter().map(|draw| transaction(&mut nonces, draw)).collect();
            let outcome = execute(&state, &env, &transactions).unwrap();
            let requests: Vec<_> = transactions.iter().map(request_of).collect();
            let simulated = simulation.batch(env, &Overrides::default(), &requests).unwrap();
            prop_assert_eq!(simulated.gas_used, outcome.gas_used);
            prop_assert_eq!(simulated.calls.len(), transactions.len());
            for (call, receipt) in simulated.calls.iter().zip(&outcome.receipts.receipts) {
                prop_assert_eq!((call.outcome.success, call.outcome.gas_used), (receipt.success, receipt.gas_used));
                let logs: Vec<_> = receipt.logs.iter().map(|log: &Log| alloy_primitives::Log::from(log)).collect();
                prop_assert_eq!(&call.logs, &logs);
            }
            state.apply(&outcome.delta);
            parent = B256::repeat_byte(number as u8);
            state.insert_header(BatchNumber::new(number), parent.into());
            simulation.seal(number, parent);
        }
    }
}

/// Goal: overrides stay for later batches, slots can be removed, and hashes are the given ones.
#[test]
fn overrides_and_hashes_stay() {
    let (state, _, env) = chain();
    let mut simulation = simulate(&state, FREE);
    // Returns slot 0, and then adds one to it.
    let code = "5f54 80 5f52 6001 01 5f55 60205ff3";
    let seven = StorageOverride::Some(BTreeMap::from([(B256::ZERO, U256::from(7))]));
    let first = accounts(&[(NOBODY, AccountOverride { storage: seven, ..coded(code) })]);
    let result = |outcome: &slipstream_executor::SimulatedBatch| {
        let word = |call: &slipstream_executor::SimulatedCall| U256::from_be_slice(&call.outcome.output);
        outcome.calls.iter().map(word).map(|word| word.to::<u64>()).collect::<Vec<_>>()
    };
    let twice = [call(1, NOBODY, &[]), call(1, NOBODY, &[])];
    assert_eq!(result(&simulation.batch(env.clone(), &first, &twice).unwrap()), [7, 8]);
    let next = BatchEnv { number: env.number + 1, parent_hash: B256::repeat_byte(1), ..env.clone() };
    simulation.seal(env.number, B256::repeat_byte(1));
    assert_eq!(result(&simulation.batch(next, &Overrides::default(), &twice).unwrap()), [9, 10]);
    let emptied = AccountOverride { storage: StorageOverride::All(BTreeMap::new()), ..Default::default() };
    let third = BatchEnv { number: env.number + 2, parent_hash: B256::repeat_byte(2), ..env.clone() };
    simulation.seal(env.number + 1, B256::repeat_byte(2));
    let overrides = accounts(&[(NOBODY, emptied)]);
    assert_eq!(result(&simulation.batch(third, &overrides, &twice).unwrap()), [0, 1]);
    // BLOCKHASH of the first of the three, of the one before, and of one whose hash is overridden.
    let fourth = BatchEnv { number: env.number + 3, parent_hash: B256::repeat_byte(3), ..env.clone() };
    let hashes = BTreeMap::from([(0, B256::repeat_byte(9))]);
    let shows = coded("5f35405f5260205ff3");
    let overrides = Overrides {
        block: BlockOverrides { hashes, ..BlockOverrides::default() },
        ..accounts(&[(NOBODY, shows)])
    };
    let asks = [1, 3, 0].map(|number| call(1, NOBODY, &word(env.number - 1 + number)));
    let batch = simulation.batch(fourth, &overrides, &asks).unwrap();
    let shown: Vec<_> = batch.calls.iter().map(|call| B256::from_slice(&call.outcome.output)).collect();
    assert_eq!(shown, [1, 3, 9].map(B256::repeat_byte));
    assert_eq!(state, chain().0, "nothing is kept");
}

/// Goal: transfers make logs where they happen, and a revert removes them.
#[test]
fn transfers_make_logs() {
    let (state, _, env) = chain();
    let ether = address!("0xeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee");
    let [inner, outer] = [0x71, 0x72].map(Address::repeat_byte);
    let hex = alloy_primitives::hex::encode::<Address>;
    // Sends one wei on to account 2 and emits topic 1; a variant reverts afterwards.
    let sends = format!("5f5f5f5f600173{}5af150 60015f5fa1", hex(account(2)));
    // Calls `inner` with 3 wei and NOBODY with 4, emits topic 2, and destroys itself in favour of account 3. Its
    // CALLCODE moves no ether.
    let calls = |to: Address, wei: u8| format!("5f5f5f5f60{wei:02x}73{}5af150", hex(to));
    let own = format!("5f5f5f5f600173{}5af250", hex(account(2)));
    let both = format!("{} {} {own} 60025f5fa1 73{}ff", calls(inner, 3), calls(NOBODY, 4), hex(account(3)));
    let overrides = accounts(&[
        (inner, coded(&format!("{sends} 5f5ffd"))),
        (NOBODY, coded(&format!("{sends} 00"))),
        (outer, coded(&both)),
    ]);
    let paying = CallRequest { value: U256::from(10), ..call(1, outer, &[]) };
    let rejected = CallRequest { value: U256::from(5), ..call(1, REVERTER, &[]) };
    let made =
        CallRequest { to: None, value: U256::from(2), data: bytes("00").into(), ..call(1, outer, &[]) };
    let plain = CallRequest { value: U256::from(6), ..call(1, account(4), &[]) };
    let nothing = call(1, account(4), &[]);
    let asked = [paying, rejected, made, plain, nothing];
    let logs = |rules| {
        let batch = simulate(&state, rules).batch(env.clone(), &overrides, &asked).unwrap();
        batch.calls.into_iter().map(|call| call.logs).collect::<Vec<_>>()
    };
    let show = |logs: &Vec<alloy_primitives::Log>| {
        let parts = |log: &alloy_primitives::Log| {
            let topics = log.topics();
            if log.address != ether {
                return (log.address, log.address, topics[0].0[31]);
            }
            let value = U256::from_be_slice(&log.data.data).to::<u8>();
            (Address::from_word(topics[1]), Address::from_word(topics[2]), value)
        };
        logs.iter().map(parts).collect::<Vec<_>>()
    };
    let found: Vec<_> = logs(LOGGED).iter().map(show).collect();
    assert_eq!(
        found[0],
        [
            (account(1), outer, 10),
            (outer, NOBODY, 4),
            (NOBODY, account(2), 1),
            (NOBODY, NOBODY, 1),
            (outer, outer, 2),
            // The rest of ten, of which four went to NOBODY.
            (outer, account(3), 6),
        ]
    );
    assert!(found[1].is_empty());
    // The fourth transaction of account 1: nonces continue, validated or not.
    assert_eq!(found[2], [(account(1), account(1).create(2), 2)]);
    assert_eq!(found[3], [(account(1), account(4), 6)]);
    assert!(found[4].is_empty());
    let silent: Vec<_> = logs(FREE).iter().map(show).collect();
    assert_eq!(silent[0], [(NOBODY, NOBODY, 1), (outer, outer, 2)]);
}

/// Goal: an unvalidated simulation ignores nonces and fees. A validated simulation checks them and names the offending
/// call.
#[test]
fn validation_is_asked_for() {
    let (state, _, env) = chain();
    let paid = |request| CallRequest { max_fee_wei: FEE, ..request };
    let asked = [call(2, COUNTER, &[]), CallRequest { nonce: Some(77), ..call(1, COUNTER, &[]) }];
    let free = simulate(&state, FREE).batch(env.clone(), &Overrides::default(), &asked).unwrap();
    assert_eq!((free.env.base_fee_wei, free.calls[1].nonce, free.calls[0].nonce), (0, 77, 0));
    let first = paid(call(2, COUNTER, &[]));
    let refused = |request: CallRequest| {
        let asked = [first.clone(), request];
        let error = simulate(&state, RULES).batch(env.clone(), &Overrides::default(), &asked).unwrap_err();
        assert!(error.to_string().ends_with("(call 1 of its block)"), "{error}");
        let SimulateError::Rejected { index: 1, reason } = error else { panic!("{error}") };
        reason
    };
    let low = refused(paid(CallRequest { nonce: Some(0), ..call(2, COUNTER, &[]) }));
    assert!(matches!(low, Rejection::NonceTooLow { expected: 1, found: 0 }));
    let high = refused(paid(CallRequest { nonce: Some(1), ..call(1, COUNTER, &[]) }));
    assert!(matches!(high, Rejection::NonceTooHigh { .. }));
    assert!(matches!(refused(call(1, COUNTER, &[])), Rejection::FeeBelowBase));
    assert!(matches!(refused(paid(call(9, COUNTER, &[]))), Rejection::InsufficientFunds { .. }));
    let short = paid(CallRequest { gas: Some(20_999), ..call(1, COUNTER, &[]) });
    assert!(matches!(refused(short), Rejection::IntrinsicGas { .. }));
    // A contract may call.
    let from = CallRequest { from: COUNTER, ..call(1, WRITER, &[]) };
    let rich = accounts(&[(COUNTER, AccountOverride { balance: Some(ether(1)), ..Default::default() })]);
    let batch = simulate(&state, RULES).batch(env.clone(), &rich, &[paid(from)]).unwrap();
    assert!(batch.calls[0].outcome.success);
}

/// Goal: a batch has its own gas limit, all batches of a request share a larger one, and outputs have a limit.
#[test]
fn gas_and_output_are_bounded() {
    let (state, _, env) = chain();
    let endless = accounts(&[(NOBODY, coded("5b5f56"))]);
    let mut simulation = simulate(&state, FREE);
    let tight = BatchEnv { gas_limit: 100_000, ..env.clone() };
    let burn = |gas| CallRequest { gas: Some(gas), ..call(1, NOBODY, &[]) };
    let both = [burn(60_000), burn(40_001)];
    let error = simulation.batch(tight.clone(), &endless, &both).unwrap_err();
    assert!(
        matches!(
            error,
            SimulateError::BatchGas { index: 1, used: 60_000, asked: 40_001, gas_limit: 100_000 }
        ),
        "{error}"
    );
    assert!(error.to_string().starts_with("block gas limit reached: 60000 >= 100000"), "{error}");
    let mut simulation = simulate(&state, FREE);
    let batch = simulation.batch(tight, &endless, &[burn(60_000), call(1, NOBODY, &[])]).unwrap();
    assert_eq!((batch.calls[1].gas_limit, batch.gas_used), (40_000, 100_000));

    let most = simulation.batch(env.clone(), &Overrides::default(), &[call(1, NOBODY, &[])]).unwrap();
    assert_eq!(most.gas_used, CALL_GAS_MAX - 100_000);
    let error = simulation.batch(env.clone(), &Overrides::default(), &[burn(21_000)]).unwrap_err();
    assert!(matches!(error, SimulateError::GasCap { index: 0, left: 0 }), "{error}");

    // Two logs of 32 KiB fit, four do not.
    let small = SimulationRules { output_bytes_max: 100_000, ..FREE };
    let loud = |times| [call(1, LOUD, &word(times))];
    let mut simulation = simulate(&state, small);
    assert!(simulation.batch(env.clone(), &Overrides::default(), &loud(2)).is_ok());
    let error = simulation.batch(env.clone(), &Overrides::default(), &loud(2)).unwrap_err();
    assert!(matches!(error, SimulateError::OutputTooLong { max: 100_000 }), "{error}");

    let mut stopped = Simulation::new(&state, FREE, Interrupt::when(|| true));
    let error = stopped.batch(env, &endless, &[call(1, NOBODY, &[])]).unwrap_err();
    assert!(matches!(error, SimulateError::Execute(ExecuteError::Interrupted)), "{error}");
}
