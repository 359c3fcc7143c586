//! Predictors on mainnet blocks: the share of a block's reads that they predict, and the number of surplus ones.

use std::collections::BTreeSet;

use alloy_primitives::{Address, B256, Bytes, U256};
use slipstream_executor::{BatchEnv, Interrupt, execute, predict_batch};
use slipstream_predict::{BlockValues, PredictConfig, PredictMode, Predicted, Predictors};
use slipstream_storage::{StateReader, StorageError};
use slipstream_types::{AccountValue, BatchNumber, Digest, StateKey, StateValue, hints};

use crate::{
    mainnet::{Case, cases, transactions},
    support::{AttendedState, COUNTER, FILLER, PROPOSER, WRITER, account, bytes, chain, invoke, word},
};

/// The first block of 2020; predictors are for today's EVM.
const FIRST: u64 = 9_193_266;

#[derive(Default)]
struct Score {
    wanted: usize,
    named: usize,
    right: usize,
}

impl std::ops::Add for Score {
    type Output = Score;

    fn add(self, other: Score) -> Score {
        Score {
            wanted: self.wanted + other.wanted,
            named: self.named + other.named,
            right: self.right + other.right,
        }
    }
}

impl Score {
    fn count(&mut self, wanted: &BTreeSet<Predicted>, named: &BTreeSet<Predicted>) {
        self.wanted += wanted.len();
        self.named += named.len();
        self.right += wanted.intersection(named).count();
    }

    fn recall(&self) -> f64 {
        self.right as f64 / self.wanted as f64
    }

    fn waste(&self) -> f64 {
        (self.named - self.right) as f64 / self.named as f64
    }
}

/// How well the keys and codes of every other block are predicted, by `Full` and by `Accounts`, and the number of
/// blocks; `None` if the data is missing.
fn scored(rest: u64) -> Option<(Score, Score, usize)> {
    let cases = cases(|number| number >= FIRST && number % 2 == rest)?;
    let (mut full, mut accounts, mut blocks) = (Score::default(), Score::default(), 0);
    for case in cases {
        let outcome =
            execute(&case.state, &BatchEnv::mainnet(&case.block.header.inner), &transactions(&case.block))
                .unwrap();
        let codes = outcome.touched.codes.iter().map(|(hash, _)| Predicted::Code((*hash).into()));
        let wanted = outcome.hints.keys().map(Predicted::Key).chain(codes).collect();
        let predictors = Predictors::new(PredictConfig::default());
        for (hash, code) in &outcome.touched.codes {
            predictors.build_now((*hash).into(), &code.bytes());
        }
        full.count(&wanted, &foretold(&predictors, &case, PredictMode::Full));
        accounts.count(&wanted, &foretold(&predictors, &case, PredictMode::Accounts));
        assert_eq!(foretold(&predictors, &case, PredictMode::Off).len(), 0);
        blocks += 1;
    }
    Some((full, accounts, blocks))
}

/// Goal: with programs for the block's contracts and the state before it, most of the block's keys and codes are
/// predicted, and few others. The predicted keys are many more than the transactions name.
#[test]
fn most_reads_of_mainnet_blocks_are_foretold() {
    // Two threads share the slowest of these tests.
    let (even, odd) = std::thread::scope(|scope| {
        let odd = scope.spawn(|| scored(1));
        (scored(0), odd.join().unwrap())
    });
    let (Some(even), Some(odd)) = (even, odd) else { return };
    let (full, accounts, blocks) = (even.0 + odd.0, even.1 + odd.1, even.2 + odd.2);
    assert!(blocks > 20, "{blocks} blocks");
    assert!(full.recall() > 0.85, "recall {}", full.recall());
    assert!(full.waste() < 0.05, "waste {}", full.waste());
    assert!(accounts.recall() > 0.3, "recall {}", accounts.recall());
    assert!(accounts.waste() < 0.02, "waste {}", accounts.waste());
}

fn foretold(predictors: &Predictors, case: &Case, mode: PredictMode) -> BTreeSet<Predicted> {
    let block = BlockValues::from(&BatchEnv::mainnet(&case.block.header.inner));
    let mut named = BTreeSet::new();
    for transaction in transactions(&case.block) {
        let mut own = BTreeSet::new();
        let stats = predictors.predict((&transaction).into(), &block, &case.state, mode, &mut |predicted| {
            assert!(own.insert(predicted), "{predicted:?} was named twice");
        });
        own.retain(|predicted| !matches!(predicted, Predicted::Change(_)));
        assert_eq!(stats.keys + stats.codes, own.len() as u64);
        assert!(stats.reads <= stats.keys + stats.codes, "what is read was named");
        named.extend(own);
    }
    named
}

/// A state that must not be read.
struct Untouchable;

impl StateReader for Untouchable {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        panic!("{address} was read")
    }

    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        panic!("{slot} of {address} was read")
    }

    fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        panic!("the code {hash} was read")
    }

    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        panic!("batch {number} was looked up")
    }
}

/// Goal: a batch's accounts are predicted without reading anything; its programs add the slots; each key is named once.
#[test]
fn a_batch_is_foretold_as_hints() {
    let (state, _, env) = chain();
    let transactions =
        [invoke(1, 0, COUNTER, &[]), invoke(1, 1, COUNTER, &[]), invoke(2, 0, WRITER, &word(7))];
    let predictors = Predictors::new(PredictConfig { builds_at_once: true, ..PredictConfig::default() });
    let off = predict_batch(&predictors, &transactions, &env, 90_000, &Untouchable, PredictMode::Off);
    assert!(off.hints.accounts.is_empty());
    let accounts =
        predict_batch(&predictors, &transactions, &env, 90_000, &Untouchable, PredictMode::Accounts).hints;
    let named: Vec<StateKey> = accounts.keys().collect();
    assert_eq!(named, [account(1), PROPOSER, COUNTER, account(2), WRITER].map(StateKey::Account));
    assert!(accounts.codes().any(|address| address == COUNTER));
    let full = predict_batch(&predictors, &transactions, &env, 90_000, &state, PredictMode::Full).hints;
    let slots: Vec<_> = full.keys().filter(|key| matches!(key, StateKey::Slot(..))).collect();
    assert_eq!(slots, [COUNTER, WRITER].map(|address| StateKey::Slot(address, B256::ZERO)));
    assert_eq!(full.accounts.len(), accounts.accounts.len());
}

/// Goal: for any transactions, a batch's predicted keys are no more than its gas can read, with any number of threads.
#[test]
fn what_is_foretold_is_bounded_by_the_gas() {
    let (state, _, env) = chain();
    let fill =
        |nonce: u64| invoke(1, nonce, FILLER, &[word(nonce * 100_000), word((nonce + 1) * 100_000)].concat());
    let transactions: Vec<_> = (0..50).map(fill).collect();
    let predictors = Predictors::new(PredictConfig { builds_at_once: true, ..PredictConfig::default() });
    for gas in [0, 1_000_000] {
        let foretold = predict_batch(&predictors, &transactions, &env, gas, &state, PredictMode::Full);
        let named = foretold.hints.keys().count();
        assert_eq!(named, hints::keys_max(gas));
    }
}

/// Goal: calls of one contract wait for each other only where the contract's program touches slots that an earlier call
/// changes. If the program is missing, all calls wait.
#[test]
fn conflicts_are_foretold() {
    let (state, _, env) = chain();
    let fill = |sender: u8, nonce: u64, from: u64, to: u64| {
        invoke(sender, nonce, FILLER, &[word(from), word(to)].concat())
    };
    let transactions = [fill(1, 0, 0, 3), fill(2, 0, 10, 12), fill(3, 0, 2, 4), fill(1, 1, 20, 21)];
    let graph = |mode| {
        let predictors = Predictors::new(PredictConfig { builds_at_once: true, ..PredictConfig::default() });
        predict_batch(&predictors, &transactions, &env, 400_000, &state, mode)
            .conflicts(&transactions)
            .predecessors
    };
    assert_eq!(graph(PredictMode::Full), [vec![], vec![], vec![0], vec![0]]);
    assert_eq!(graph(PredictMode::Accounts), [vec![], vec![0], vec![1], vec![0, 2]]);
}

/// Goal: a jump to an uncomputable target is learned when execution makes it, and predicted from then on. Known jumps
/// are not recorded.
#[test]
fn jumps_of_execution_are_learned() {
    const JUMPER: Address = Address::repeat_byte(0xc0);
    let (mut state, _, env) = chain();
    // jump(blobbasefee() + 5); 6: sload(1)
    let code_hash = Some(state.insert_code(bytes("4a 6005 01 56 fe 5b 6001 54 50 00").into()));
    let contract = AccountValue { nonce: 1, balance: U256::ZERO, code_hash };
    state.insert(StateKey::Account(JUMPER), StateValue::Account(contract));
    let predictors = Predictors::new(PredictConfig { builds_at_once: true, ..PredictConfig::default() });
    let (call, block) = (invoke(1, 0, JUMPER, &[]), BlockValues::from(&env));
    let slots = || {
        let mut count = 0;
        let mut sink =
            |predicted| count += usize::from(matches!(predicted, Predicted::Key(StateKey::Slot(..))));
        predictors.predict((&call).into(), &block, &state, PredictMode::Full, &mut sink);
        count
    };
    assert_eq!(slots(), 0);
    let watch = predictors.watch().unwrap();
    execute(
        &AttendedState { state: &state, watch: Some(watch), interrupt: Interrupt::never() },
        &env,
        std::slice::from_ref(&call),
    )
    .unwrap();
    predictors.learn_jumps();
    // The program is built again with the observed jump.
    assert_eq!(slots(), 1);
    assert!(predictors.watch().is_none());
}
