//! Tests the way from bytecode to keys: what programs hold, and that no bytecode breaks them.

use alloy_consensus::TxLegacy;
use alloy_primitives::{Address, B256, Bytes, TxKind, U256, keccak256};
use proptest::prelude::*;
use slipstream_storage::MemoryState;
use slipstream_types::{AccountValue, Digest, StateKey, StateValue};

use crate::{
    BlockValues, JumpEdge, PredictConfig, PredictLimits, PredictMode, PredictStats, Predicted, Predictors,
    TransactionRef, build,
};

const CONTRACT: Address = Address::repeat_byte(0xc0);
const OTHER: Address = Address::repeat_byte(0x0e);

/// Adds 1 to slot 0 and emits a topic.
const COUNTER: &str = "60005460010160005560 2a60006000a100";
/// Writes the first word of its call data to slot 0.
const WRITER: &str = "5f355f5500";
/// slot = calldata[0]; while slot != calldata[1] { slots[slot] = 1; slot += 1 }
const FILLER: &str = "5f355b8060203514601557 60018155600101600256 5b00";

fn block() -> BlockValues {
    BlockValues {
        chain_id: 1,
        number: 5,
        timestamp_s: 100,
        beneficiary: Address::repeat_byte(0xbe),
        gas_limit: 30_000_000,
        base_fee_wei: 7,
        prev_randao: U256::ZERO,
        parent_hash: B256::ZERO,
    }
}

fn transaction(to: TxKind, input: &[u8]) -> TxLegacy {
    TxLegacy { gas_limit: 1_000_000, to, input: Bytes::copy_from_slice(input), ..TxLegacy::default() }
}

fn predict(
    predictors: &Predictors,
    transaction: &TxLegacy,
    state: &MemoryState,
    sink: &mut dyn FnMut(Predicted),
) -> PredictStats {
    let transaction = TransactionRef { sender: Address::repeat_byte(1), envelope: transaction };
    predictors.predict(transaction, &block(), state, PredictMode::Full, sink)
}

fn state(contracts: &[(Address, &[u8])]) -> MemoryState {
    let mut state = MemoryState::default();
    for (address, code) in contracts {
        let hash = state.insert_code(Bytes::copy_from_slice(code));
        let account = AccountValue { nonce: 1, balance: U256::ZERO, code_hash: Some(hash) };
        state.insert(StateKey::Account(*address), StateValue::Account(account));
    }
    state
}

fn run(state: &MemoryState, input: &[u8], config: PredictConfig) -> (Vec<Predicted>, PredictStats) {
    let predictors = Predictors::new(PredictConfig { builds_at_once: true, ..config });
    let mut named = Vec::new();
    let transaction = transaction(TxKind::Call(CONTRACT), input);
    let stats = predict(&predictors, &transaction, state, &mut |predicted| named.push(predicted));
    (named, stats)
}

fn slots(state: &MemoryState, input: &[u8]) -> Vec<(Address, U256)> {
    let (named, _) = run(state, input, PredictConfig::default());
    let slot = |predicted| match predicted {
        Predicted::Key(StateKey::Slot(address, slot)) => Some((address, U256::from_be_bytes(slot.0))),
        _ => None,
    };
    named.into_iter().filter_map(slot).collect()
}

fn code(hex: &str) -> Vec<u8> {
    alloy_primitives::hex::decode(hex.replace(' ', "")).unwrap()
}

fn word(value: u64) -> [u8; 32] {
    U256::from(value).to_be_bytes()
}

/// Goal: the slot of a mapping's element is computed from call data, and a slot number found in another slot is
/// followed.
#[test]
fn slots_are_computed_and_followed() {
    // mstore(0, calldata[0]); mstore(32, 3); sload(sload(keccak(0, 64)))
    let program = code("5f35 5f52 6003 602052 60405f20 54 54 50 00");
    let mut state = state(&[(CONTRACT, &program)]);
    let element = U256::from_be_bytes(keccak256([word(9), word(3)].concat()).0);
    state.insert(StateKey::Slot(CONTRACT, element.into()), StateValue::Slot(U256::from(77)));
    assert_eq!(slots(&state, &word(9)), [(CONTRACT, element), (CONTRACT, U256::from(77))]);
}

/// Goal: a callee's program gets the call data and returns its result; a delegate uses the caller's storage.
#[test]
fn calls_are_followed() {
    let sload_argument = code("5f35 54 5f52 6020 5f f3");
    // call(gas, OTHER, 0, 0, 32, 0, 32) with mstore(0, 5); then sload(mload(0)), by CALL and by DELEGATECALL
    let target = format!("73{}", alloy_primitives::hex::encode(OTHER));
    let call = code(&format!("6005 5f52 6020 5f 6020 5f 5f {target} 5a f1 50 5f51 54 00"));
    let delegate = code(&format!("6005 5f52 6020 5f 6020 5f {target} 5a f4 50 5f51 54 00"));
    let mut called = state(&[(CONTRACT, &call), (OTHER, &sload_argument)]);
    called.insert(StateKey::Slot(OTHER, word(5).into()), StateValue::Slot(U256::from(8)));
    assert_eq!(slots(&called, &[]), [(OTHER, U256::from(5)), (CONTRACT, U256::from(8))]);
    let delegated = state(&[(CONTRACT, &delegate), (OTHER, &sload_argument)]);
    assert_eq!(slots(&delegated, &[]), [(CONTRACT, U256::from(5)), (CONTRACT, U256::ZERO)]);
}

/// Goal: reads on failing paths are left out, and a check before such a path does not stop the prediction.
#[test]
fn failing_ways_are_not_followed() {
    // if caller == 0 { jump 11 }; sload(1); revert — 11: sload(2); stop
    let program = code("33 15 600b 57 6001 54 5f 5f fd 5b 6002 54 00");
    assert_eq!(slots(&state(&[(CONTRACT, &program)]), &[]), [(CONTRACT, U256::from(2))]);
}

/// Goal: a later read sees a written value, unless the call that wrote it reverted.
#[test]
fn writes_are_seen_until_reverted() {
    // sstore(0, 4); sload(sload(0))
    let program = code("6004 5f55 5f54 54 00");
    let written = state(&[(CONTRACT, &program)]);
    assert_eq!(slots(&written, &[]), [(CONTRACT, U256::ZERO), (CONTRACT, U256::from(4))]);
    // delegatecall(gas, OTHER, 0, 0, 0, 0); sload(sload(0)), where OTHER does sstore(0, 9); revert
    let target = format!("73{}", alloy_primitives::hex::encode(OTHER));
    let program = code(&format!("5f 5f 5f 5f {target} 5a f4 50 5f54 54 00"));
    let reverted = state(&[(CONTRACT, &program), (OTHER, &code("6009 5f55 5f 5f fd"))]);
    assert_eq!(slots(&reverted, &[]), [(CONTRACT, U256::ZERO)]);
}

/// Goal: programs leave out operations that keys do not depend on.
#[test]
fn programs_hold_only_what_keys_need() {
    let plain = build(&code("6001 54 50 00"), &[]).size_bytes();
    // The same with arithmetic, a log and a check that reverts.
    let padded = code("6007 6008 02 33 16 50 5f 5f a0 34 6010 57 6001 54 50 00 5b 5f 5f fd");
    assert!(build(&padded, &[]).size_bytes() <= plain + 4, "{}", build(&padded, &[]).size_bytes());
}

/// Goal: a predicted jump that no program could resolve is learned, and followed after that.
#[test]
fn missed_jumps_are_learnt() {
    // jump(calldata[0]); 3: jumpdest sload(6) stop
    let program = code("5f35 56 5b 6006 54 00");
    let state = state(&[(CONTRACT, &program)]);
    let predictors = Predictors::new(PredictConfig { builds_at_once: true, ..PredictConfig::default() });
    let keys = || {
        let transaction = transaction(TxKind::Call(CONTRACT), &word(3));
        predict(&predictors, &transaction, &state, &mut |_| ()).keys
    };
    let before = keys();
    assert_eq!(keys(), before + 1);
    let hash = Digest::from(keccak256(&program));
    predictors.observe_jumps(hash, &[JumpEdge { from: u32::MAX, to: 3 }]);
    assert_eq!(keys(), before + 1, "nonsense changes nothing");
}

/// Predicts a call of the contract with some code. Returns what execution would read.
fn named(predictors: &Predictors, contract: &str, data: &[u8]) -> (Vec<Predicted>, PredictStats) {
    let state = state(&[(CONTRACT, &code(contract))]);
    let mut named = Vec::new();
    let transaction = transaction(TxKind::Call(CONTRACT), data);
    let stats = predict(predictors, &transaction, &state, &mut |predicted| named.push(predicted));
    named.retain(|predicted| !matches!(predicted, Predicted::Change(_)));
    (named, stats)
}

/// Goal: a contract is analysed once, when it was called often enough and not before. Then its reads are predicted.
#[test]
fn contracts_that_are_called_often_get_programs() {
    let code = Bytes::from(code(COUNTER));
    let counter = Digest::from(keccak256(&code));
    let predictors = Predictors::new(PredictConfig { calls_min: 4, ..PredictConfig::default() });
    // A predicted call counts, too.
    let (without, _) = named(&predictors, COUNTER, &[]);
    predictors.note_executed(counter, &code, 2);
    assert_eq!((predictors.queued(), predictors.build_queued(usize::MAX)), (0, 0));
    predictors.note_executed(counter, &code, 1);
    predictors.note_executed(counter, &code, 9);
    assert_eq!((predictors.queued(), predictors.build_queued(usize::MAX)), (1, 1));
    predictors.note_executed(counter, &code, 9);
    assert_eq!((predictors.queued(), predictors.len()), (0, 1));
    let (with, stats) = named(&predictors, COUNTER, &[]);
    assert_eq!((with.len(), stats.stopped_because), (without.len() + 1, None));
}

/// Goal: the kept programs stay within their bytes, and the least recently used are evicted.
#[test]
fn programs_are_bounded_in_bytes() {
    let code = |number: u16| [vec![0x61], number.to_be_bytes().to_vec(), vec![0x54, 0x50, 0x00]].concat();
    let hash = |number: u16| Digest::from(keccak256(code(number)));
    let programs_bytes_max = 4_096;
    let predictors = Predictors::new(PredictConfig { programs_bytes_max, ..PredictConfig::default() });
    for number in 0..200 {
        predictors.build_now(hash(number), &code(number));
        assert!(predictors.size_bytes() <= programs_bytes_max);
    }
    assert!((10..100).contains(&predictors.len()), "{}", predictors.len());
}

/// Goal: the limits on steps, keys and reads end an endless loop, and the keys named until then stay valid.
#[test]
fn limits_end_long_loops() {
    let data = [word(0), word(1 << 40)].concat();
    let predictors = |limits| {
        let predictors =
            Predictors::new(PredictConfig { builds_at_once: true, limits, ..PredictConfig::default() });
        let (named, stats) = named(&predictors, FILLER, &data);
        (named.len(), stats.steps, stats.stopped_because.map(|reason| format!("{reason:?}")))
    };
    let limits = PredictLimits::default();
    let (_, steps, reason) = predictors(PredictLimits { steps_max: 1_000, ..limits });
    assert!((1_000..2_000).contains(&steps), "{steps}");
    assert_eq!(reason.as_deref(), Some("Steps"));
    let (count, _, reason) = predictors(PredictLimits { keys_max: 50, ..limits });
    assert_eq!((count, reason.as_deref()), (51, Some("Keys")), "50 rows and the code");
    let (_, _, reason) = predictors(PredictLimits { reads_max: 1, ..limits });
    assert_eq!(reason.as_deref(), Some("Reads"));
}

/// Goal: with slot reads off, keys that depend on no value are still predicted.
#[test]
fn keys_are_foretold_without_waiting_for_values() {
    let config = PredictConfig { builds_at_once: true, reads_slots: false, ..PredictConfig::default() };
    let (counter, stats) = named(&Predictors::new(config), COUNTER, &[]);
    let (writer, _) = named(&Predictors::new(config), WRITER, &word(7));
    let slots = |named: &[Predicted]| {
        let is_slot = |predicted: &&Predicted| matches!(predicted, Predicted::Key(StateKey::Slot(..)));
        named.iter().filter(is_slot).count()
    };
    assert_eq!((slots(&counter), slots(&writer)), (1, 1));
    assert_eq!(stats.reads, 3, "sender, fee recipient, contract");
}

/// Instructions that have an effect more often than random bytes do.
fn instruction() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => any::<u8>().prop_map(|byte| vec![0x60, byte % 96]),
        1 => any::<[u8; 2]>().prop_map(|bytes| vec![0x61, bytes[0] % 2, bytes[1]]),
        2 => prop::sample::select(vec![0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x5b, 0x5b, 0x5e, 0x5a])
            .prop_map(|byte| vec![byte]),
        2 => (0x80_u8..0xa0).prop_map(|byte| vec![byte]),
        1 => (0x01_u8..0x4b).prop_map(|byte| vec![byte]),
        1 => prop::sample::select(vec![0xf0, 0xf1, 0xf2, 0xf4, 0xf5, 0xfa, 0xf3, 0xfd, 0xff, 0x39, 0x3e])
            .prop_map(|byte| vec![byte]),
        1 => any::<u8>().prop_map(|byte| vec![byte]),
    ]
}

fn bytecode() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(instruction(), 0..120).prop_map(|instructions| instructions.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    /// Goal: for any code, analysis and run end without a panic and within the limits.
    #[test]
    fn no_bytecode_breaks_the_limits(first in bytecode(), second in bytecode(), input in any::<[u8; 40]>()) {
        let state = state(&[(CONTRACT, &first), (OTHER, &second), (Address::ZERO, &second)]);
        let limits = PredictLimits {
            steps_max: 3_000, memory_bytes_max: 1 << 14, depth_max: 5, keys_max: 40, reads_max: 30,
        };
        let (named, stats) = run(&state, &input, PredictConfig { limits, ..PredictConfig::default() });
        prop_assert!(stats.keys <= limits.keys_max && stats.reads <= limits.reads_max);
        // The last block and the last copy may pass the limit, by at most their own length.
        prop_assert!(stats.steps <= limits.steps_max + 1_000);
        let changes = named.iter().filter(|it| matches!(it, Predicted::Change(_))).count();
        prop_assert_eq!(stats.keys + stats.codes, (named.len() - changes) as u64);
        let again = run(&state, &input, PredictConfig { limits, ..PredictConfig::default() });
        prop_assert_eq!(again, (named, stats), "one prediction, twice");
    }

    /// Goal: for code that creates contracts, and for jumps that were never made, analysis and run also end within the
    /// limits and without a panic.
    #[test]
    fn no_init_code_breaks_it(init in bytecode(), edges in prop::collection::vec(any::<(u8, u8)>(), 0..20)) {
        let edges: Vec<_> = edges.iter().map(|(from, to)| JumpEdge { from: (*from).into(), to: (*to).into() }).collect();
        build(&init, &edges);
        let predictors = Predictors::new(PredictConfig::default());
        let transaction = transaction(TxKind::Create, &init);
        let stats = predict(&predictors, &transaction, &state(&[]), &mut |_| ());
        prop_assert!(stats.steps <= PredictLimits::default().steps_max + 50_000);
    }
}
