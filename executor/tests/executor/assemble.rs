//! Proposing: which candidates enter a batch, and what happens to the others.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};

use crate::support::*;
use alloy_consensus::TxEip1559;
use alloy_primitives::{B256, Bytes, TxKind};
use slipstream_executor::{
    AssembledBatch, BatchEnv, BuildClock, BuildLimits, Candidates, ExecuteError, ExecutionState, Interrupt,
    Outcome, ReadSet, Rejection, RemainingCapacity, Transaction, build, build_by, execute,
};
use slipstream_storage::{StateReader, StorageError};
use slipstream_types::{
    AccountValue, Address, BatchNumber, Body, Digest, Hints, StateKey, StateValue, U256,
    limits::{
        BATCH_TRANSACTIONS_MAX, BODY_BYTES_MAX, DELTA_BYTES_MAX, LOGS_MAX, RECEIPTS_BYTES_MAX,
        TRANSACTION_GAS_MAX,
    },
};

const LIMITS: BuildLimits =
    BuildLimits { gas: u64::MAX, body_bytes: BODY_BYTES_MAX, transactions: BATCH_TRANSACTIONS_MAX };

fn build_with(env: &BatchEnv, candidates: &[Transaction], limits: BuildLimits) -> AssembledBatch {
    let (state, _, _) = chain();
    let built = build(&state, env, &mut candidates.iter().cloned(), &limits).unwrap();
    // Followers accept every batch that a proposer builds, with the same outcome.
    let followed = execute(&state, env, &built.included).unwrap();
    assert_eq!(
        Outcome {
            hints: Hints::default(),
            preimages: vec![],
            touched: ReadSet::default(),
            ..built.outcome.clone()
        },
        Outcome {
            hints: Hints::default(),
            preimages: vec![],
            touched: ReadSet::default(),
            ..followed.clone()
        }
    );
    // The proposer also read for the candidates that it left out.
    let hinted: BTreeSet<_> = built.outcome.hints.keys().collect();
    assert!(followed.hints.keys().all(|key| hinted.contains(&key)));
    built
}

fn hashes(transactions: &[Transaction]) -> Vec<B256> {
    transactions.iter().map(|transaction| transaction.hash).collect()
}

#[test]
fn invalid_candidates_are_skipped_and_only_hopeless_ones_rejected() {
    let (_, _, env) = chain();
    let good = [transfer(1, 0, account(2), 1), transfer(2, 0, account(3), 1), transfer(1, 1, account(2), 1)];
    let gap = transfer(3, 5, account(2), 1);
    let poor = transfer(9, 0, account(2), 1);
    let old = transfer(1, 0, account(2), 2);
    let huge = decode(sign(4, TxEip1559 { gas_limit: env.gas_limit + 1, ..dynamic(0, account(2)) }));
    let candidates =
        [good[0].clone(), gap, poor.clone(), old.clone(), good[1].clone(), huge.clone(), good[2].clone()];
    let built = build_with(&env, &candidates, LIMITS);
    assert_eq!(hashes(&built.included), hashes(&good));
    let rejected: Vec<_> = built.rejected.iter().map(|(hash, _)| *hash).collect();
    assert_eq!(rejected, [poor.hash, old.hash, huge.hash], "a gap in the nonces is no reason to forget");
    let (_, reason) = &built.rejected[1];
    assert_eq!(*reason, Rejection::NonceTooLow { expected: 1, found: 0 }.to_string());
    assert!(reason.starts_with("nonce too low"));
}

#[test]
fn stops_at_the_number_of_transactions_without_taking_another_candidate() {
    let (state, _, env) = chain();
    let mut candidates = (0..10).map(|nonce| transfer(1, nonce, account(2), 1));
    let limits = BuildLimits { transactions: 3, ..LIMITS };
    let built = build(&state, &env, &mut candidates, &limits).unwrap();
    assert_eq!(built.included.len(), 3);
    assert_eq!(candidates.next().unwrap().nonce(), 3);
}

#[test]
fn stays_within_gas_and_keeps_what_does_not_fit_for_later() {
    let (_, _, env) = chain();
    let big = decode(sign(2, TxEip1559 { gas_limit: 1_000_000, ..dynamic(0, account(3)) }));
    let candidates = [transfer(1, 0, account(2), 1), big, transfer(1, 1, account(2), 1)];
    let limits = BuildLimits { gas: 100_000, ..LIMITS };
    let built = build_with(&env, &candidates, limits);
    assert_eq!(built.included.len(), 2, "the big one is skipped, not the ones after it");
    assert!(built.rejected.is_empty());
    assert!(built.outcome.gas_used <= 100_000);

    let many: Vec<_> = (0..20).map(|nonce| transfer(1, nonce, account(2), 1)).collect();
    assert_eq!(build_with(&env, &many, limits).included.len(), 4);
    let small = BatchEnv { gas_limit: 50_000, ..env };
    assert_eq!(build_with(&small, &many, LIMITS).included.len(), 2, "the chain's limit holds too");
}

#[test]
fn the_body_fits_its_bytes() {
    let (_, _, env) = chain();
    let data = [1; 1_000];
    let many: Vec<_> = (0..8).map(|nonce| invoke(1, nonce, account(2), &data)).collect();
    let whole = Body::new(many.iter().map(|transaction| transaction.raw.to_vec()).collect()).unwrap();
    let limit = whole.content().unwrap().len() / 2;
    let built = build_with(&env, &many, BuildLimits { body_bytes: limit, ..LIMITS });
    let raws = built.included.iter().map(|transaction| transaction.raw.to_vec()).collect();
    assert!(Body::new(raws).unwrap().content().unwrap().len() <= limit);
    assert_eq!(built.included.len(), 3);
    assert!(built.rejected.is_empty());
}

/// Goal: a transaction too large for any batch is rejected unexecuted. A transaction that does not fit this batch waits
/// unexecuted. Otherwise attackers could make a proposer execute unpaid for ever.
fn assert_not_executed(built: &AssembledBatch, transactions: &[Transaction]) {
    let read: BTreeSet<_> = built.outcome.hints.keys().collect();
    for transaction in transactions {
        assert!(!read.contains(&StateKey::Account(transaction.sender)), "{} was executed", transaction.hash);
    }
}

#[test]
fn a_transaction_above_the_cap_is_rejected_unexecuted() {
    let (state, _, env) = chain();
    let cap = env.transaction_gas_max;
    assert_eq!(cap, TRANSACTION_GAS_MAX);
    let asks = |seed, gas_limit| decode(sign(seed, TxEip1559 { gas_limit, ..dynamic(0, COUNTER) }));
    let (most, more) = (asks(1, cap), asks(2, cap + 1));
    let built = build_with(&env, &[more.clone(), most.clone()], LIMITS);
    assert_eq!(hashes(&built.included), [most.hash]);
    let text = "transaction gas limit too high (cap: 16777216, tx: 16777217)";
    assert_eq!(built.rejected, [(more.hash, text.to_string())]);
    assert_not_executed(&built, std::slice::from_ref(&more));

    let too_high = Rejection::GasLimitTooHigh { gas_limit: cap + 1, max: cap };
    let check = |env: &BatchEnv, transaction: &Transaction, too_high: Rejection| {
        let refused = execute(&state, env, std::slice::from_ref(transaction)).unwrap_err();
        assert!(
            matches!(&refused, ExecuteError::InvalidTransaction { index: 0, reason, .. } if *reason == too_high),
            "{refused}"
        );
    };
    check(&env, &more, too_high);
    let lower = BatchEnv { transaction_gas_max: 1_000_000, ..env.clone() };
    check(&lower, &most, Rejection::GasLimitTooHigh { gas_limit: cap, max: 1_000_000 });
    let small = BatchEnv { gas_limit: 1_000_000, ..env };
    check(&small, &most, Rejection::GasLimitTooHigh { gas_limit: cap, max: 1_000_000 });
}

/// Goal: a batch stays within the limit of its receipts, although events are cheap. A batch whose receipts cannot be
/// sealed would stop the proposer for good.
#[test]
fn receipts_stay_within_their_limit() {
    const LOGS: u64 = 60;
    let (state, _, env) = chain();
    let env = BatchEnv { gas_limit: 2_000_000_000, ..env };
    let loud = |seed, nonce| {
        let input = Bytes::copy_from_slice(&word(LOGS));
        decode(sign(seed, TxEip1559 { gas_limit: TRANSACTION_GAS_MAX, input, ..dynamic(nonce, LOUD) }))
    };
    let fitting = RECEIPTS_BYTES_MAX / (LOGS as usize * 0x8000 + 100_000);
    let mut candidates: Vec<_> = (0..fitting as u64).map(|nonce| loud(1, nonce)).collect();
    let late = [loud(2, 0), loud(3, 0), loud(4, 0)];
    let small = transfer(5, 0, account(6), 1);
    candidates.extend(late.iter().chain([&small]).cloned());
    let built = build_with(&env, &candidates, LIMITS);
    assert!(built.rejected.is_empty());
    assert_eq!(built.included.len(), fitting + 1, "what is late comes again, and what is small fits");
    assert_eq!(built.included.last(), Some(&small));
    assert_not_executed(&built, &late);
    let next = after(&state, &built.outcome.delta);
    let built = build(&next, &env, &mut late.iter().cloned(), &LIMITS).unwrap();
    assert_eq!(hashes(&built.included), hashes(&late), "the next batch has room");

    let all = (0..).map(|nonce| loud(1, nonce));
    let all: Vec<_> = all.take(RECEIPTS_BYTES_MAX / (LOGS as usize * 0x8000) + 1).collect();
    let error = execute(&state, &env, &all).unwrap_err();
    let last = all.len() - 1;
    assert!(matches!(error, ExecuteError::ReceiptsTooLong { index, .. } if index == last), "{error}");
}

/// Goal: no transaction makes more logs than a receipt holds.
#[test]
fn the_most_logs_fit_their_receipt() {
    let (mut state, _, env) = chain();
    // 500 empty logs in a row, repeated while 200,000 gas are left.
    let code = bytes(&format!("5b{}62030d405a115f5700", "5f5fa0".repeat(500)));
    let code_hash = Some(state.insert_code(code.into()));
    let value = AccountValue { nonce: 1, balance: U256::ZERO, code_hash };
    let logger = Address::repeat_byte(0x10);
    state.insert(StateKey::Account(logger), StateValue::Account(value));
    let most = TxEip1559 { gas_limit: TRANSACTION_GAS_MAX, ..dynamic(0, logger) };
    let candidates = [decode(sign(1, most.clone()))];
    let built = build(&state, &env, &mut candidates.into_iter(), &LIMITS).unwrap();
    let logs = built.outcome.receipts.receipts[0].logs.len();
    assert!((43_000..=LOGS_MAX).contains(&logs), "{logs} logs");

    let uncapped = BatchEnv { transaction_gas_max: u64::MAX, ..env };
    let more = decode(sign(1, TxEip1559 { gas_limit: 26_000_000, ..most }));
    let error = execute(&state, &uncapped, &[more]).unwrap_err();
    assert!(matches!(error, ExecuteError::ReceiptsTooLong { index: 0, .. }), "{error}");
}

/// Goal: a batch stays within the limit of its delta, which only a chain with a very high gas limit can reach.
#[test]
fn the_delta_stays_within_its_limit() {
    const SLOTS: u64 = 720;
    let (_, _, env) = chain();
    let env = BatchEnv { gas_limit: 30_000_000_000, ..env };
    let fill = |seed, nonce, first: u64| {
        let input = [word(first), word(first + SLOTS)].concat().into();
        let fees = TxEip1559 { max_fee_per_gas: 20_000_000, ..dynamic(nonce, FILLER) };
        decode(sign(seed, TxEip1559 { gas_limit: TRANSACTION_GAS_MAX, input, ..fees }))
    };
    let count = (DELTA_BYTES_MAX / (90 * SLOTS as usize)) as u64;
    let candidates: Vec<_> = (0..count).map(|nonce| fill(1, nonce, 1 + nonce * SLOTS)).collect();
    let late = fill(2, 0, 1 + count * SLOTS);
    let candidates = [&candidates[..], &[late.clone(), transfer(4, 0, account(3), 1)]].concat();
    let built = build_with(&env, &candidates, LIMITS);
    assert!(built.rejected.is_empty());
    let slots = built.outcome.delta.entries().len();
    assert!((350_000..DELTA_BYTES_MAX / 90).contains(&slots), "{slots} slots");
    assert_eq!(built.included.last().unwrap().sender, account(4));
    assert_not_executed(&built, &[late]);
}

/// A state with accounts but without the code that they name, like a damaged store.
struct Damaged(slipstream_storage::MemoryState);

impl StateReader for Damaged {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        self.0.account(address)
    }
    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        self.0.slot(address, slot)
    }
    fn code(&self, _: &Digest) -> Result<Option<Bytes>, StorageError> {
        Ok(None)
    }
    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        self.0.header_digest(number)
    }
}

impl ExecutionState for Damaged {}

#[test]
fn a_state_that_cannot_be_read_is_nobodys_transaction_to_blame() {
    let (state, _, env) = chain();
    let env = BatchEnv { parent_beacon_root: None, spec: slipstream_executor::SpecId::CANCUN, ..env };
    let candidates = [transfer(1, 0, account(2), 1), invoke(1, 1, COUNTER, &[])];
    let error = build(&Damaged(state), &env, &mut candidates.iter().cloned(), &LIMITS).unwrap_err();
    assert!(matches!(error, ExecuteError::MissingCode { .. }), "{error}");
}

/// Interrupts transactions with a gas limit of [`SLOW_GAS`], reports those in `late` as too late, and lets none in
/// `none` begin.
struct Hasty {
    asked: Arc<AtomicU32>,
    is_slow: Arc<AtomicBool>,
    late: Vec<B256>,
    none: Vec<B256>,
    interrupted: Vec<B256>,
    goes_on: bool,
}

const SLOW_GAS: u64 = 5_000_000;

impl BuildClock for Hasty {
    fn interrupt(&self) -> Interrupt {
        let (asked, is_slow) = (self.asked.clone(), self.is_slow.clone());
        Interrupt::when(move || is_slow.load(Relaxed) && asked.fetch_add(1, Relaxed) > 100)
    }

    fn is_open(&self) -> bool {
        true
    }

    fn begin(&mut self, transaction: &Transaction) -> bool {
        self.is_slow.store(transaction.gas_limit() == SLOW_GAS, Relaxed);
        self.asked.store(0, Relaxed);
        !self.none.contains(&transaction.hash)
    }

    fn end(&mut self, transaction: &Transaction) -> bool {
        !self.late.contains(&transaction.hash)
    }

    fn interrupted(&mut self, transaction: &Transaction) -> bool {
        self.interrupted.push(transaction.hash);
        self.goes_on
    }
}

/// Goal: a transaction that is interrupted, late or without time leaves only its reads in the batch's hints. Its
/// sender's later transactions wait, and all others enter. A batch that nobody waits for ends in the middle of a
/// transaction, in a build and in an execution.
#[test]
fn what_takes_too_long_stays_out() {
    let (state, _, env) = chain();
    // JUMPDEST PUSH1 0 JUMP
    let endless = |sender, nonce| {
        let input = Bytes::from_static(&[0x5b, 0x60, 0x00, 0x56]);
        decode(sign(
            sender,
            TxEip1559 { gas_limit: SLOW_GAS, to: TxKind::Create, input, ..dynamic(nonce, account(2)) },
        ))
    };
    let slow = endless(1, 0);
    let candidates = [
        slow.clone(),
        transfer(1, 1, account(2), 1),
        transfer(2, 0, account(3), 1),
        transfer(3, 0, account(3), 1),
        transfer(4, 0, account(3), 1),
    ];
    let mut clock = Hasty {
        asked: Arc::default(),
        is_slow: Arc::default(),
        late: vec![candidates[2].hash],
        none: vec![candidates[3].hash],
        interrupted: Vec::new(),
        goes_on: true,
    };
    let reader = AttendedState { state: &state, watch: None, interrupt: clock.interrupt() };
    let built = build_by(&mut clock, &reader, &env, &mut Senders::new(&candidates), &LIMITS).unwrap();
    let known = |hash: &B256| candidates.iter().position(|it| it.hash == *hash);
    assert_eq!(clock.interrupted.iter().map(known).collect::<Vec<_>>(), [Some(0)]);
    assert_eq!((hashes(&built.included), built.rejected), (vec![candidates[4].hash], vec![]));
    let followed = execute(&state, &env, &built.included).unwrap();
    assert_eq!((built.outcome.delta, built.outcome.receipts), (followed.delta, followed.receipts));

    clock.goes_on = false;
    let ended = build_by(&mut clock, &reader, &env, &mut Senders::new(&candidates), &LIMITS);
    assert!(matches!(ended, Err(ExecuteError::Interrupted)), "{ended:?}");
    clock.is_slow.store(true, Relaxed);
    clock.asked.store(0, Relaxed);
    assert!(matches!(execute(&reader, &env, &[slow]), Err(ExecuteError::Interrupted)));
}

/// Candidates in order; leaving one out also leaves out its sender's later ones.
struct Senders<'a> {
    left: std::slice::Iter<'a, Transaction>,
    last: Option<Address>,
    out: Vec<Address>,
}

impl<'a> Senders<'a> {
    fn new(candidates: &'a [Transaction]) -> Self {
        Senders { left: candidates.iter(), last: None, out: Vec::new() }
    }
}

impl Candidates for Senders<'_> {
    fn draw(&mut self, _: RemainingCapacity) -> Option<Transaction> {
        let next = self.left.find(|it| !self.out.contains(&it.sender))?.clone();
        self.last = Some(next.sender);
        Some(next)
    }

    fn leave_out(&mut self) {
        self.out.extend(self.last);
    }
}
