//! Predictors on mainnet blocks: the share of a block's reads that they predict, and the number of surplus ones.

use std::collections::BTreeSet;

use alloy_primitives::{Address, B256, Bytes, U256};
use slipstream_executor::{
    BatchEnv, execute,
    predict::{PredictConfig, PredictLimits, PredictMode, PredictStats, Predicted, Predictors},
};
use slipstream_storage::{StateReader, StorageError};
use slipstream_types::{AccountValue, BatchNumber, Digest, StateKey, hints};

use crate::{
    mainnet::{Case, cases, transactions},
    support::{COUNTER, FILLER, PROPOSER, WRITER, account, chain, invoke, word},
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
/// predicted, and few others. They are many more than the transactions name.
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
    let env = BatchEnv::mainnet(&case.block.header.inner);
    let mut named = BTreeSet::new();
    for transaction in transactions(&case.block) {
        let mut own = BTreeSet::new();
        let stats = predictors.predict(&transaction, &env, &case.state, mode, &mut |predicted| {
            assert!(own.insert(predicted), "{predicted:?} was named twice");
        });
        own.retain(|predicted| !matches!(predicted, Predicted::Change(_)));
        assert_eq!(stats.keys + stats.codes, own.len() as u64);
        assert!(stats.reads <= stats.keys + stats.codes, "what is read was named");
        named.extend(own);
    }
    named
}

fn named(predictors: &Predictors, to: Address, data: &[u8]) -> (Vec<Predicted>, PredictStats) {
    let (state, _, env) = chain();
    let mut named = Vec::new();
    let transaction = invoke(1, 0, to, data);
    let mut sink = |predicted| named.push(predicted);
    let stats = predictors.predict(&transaction, &env, &state, PredictMode::Full, &mut sink);
    named.retain(|predicted| !matches!(predicted, Predicted::Change(_)));
    (named, stats)
}

/// Goal: a contract is analysed once, when it was called often enough and not before. Then its reads are predicted.
#[test]
fn contracts_that_are_called_often_get_programs() {
    let (state, _, _) = chain();
    let hash = |address| state.account(&address).unwrap().unwrap().code_hash.unwrap();
    let code = |hash: Digest| state.code(&hash).unwrap().unwrap();
    let predictors = Predictors::new(PredictConfig { calls_min: 4, ..PredictConfig::default() });
    // A predicted call counts, too.
    let (without, _) = named(&predictors, COUNTER, &[]);
    let counter = hash(COUNTER);
    predictors.note_executed(counter, &code(counter), 2);
    assert_eq!((predictors.queued(), predictors.build_queued(usize::MAX)), (0, 0));
    predictors.note_executed(counter, &code(counter), 1);
    predictors.note_executed(counter, &code(counter), 9);
    assert_eq!((predictors.queued(), predictors.build_queued(usize::MAX)), (1, 1));
    predictors.note_executed(counter, &code(counter), 9);
    assert_eq!((predictors.queued(), predictors.len()), (0, 1));
    let (with, stats) = named(&predictors, COUNTER, &[]);
    assert_eq!((with.len(), stats.stopped_because), (without.len() + 1, None));
}

/// Goal: the kept programs stay within their bytes, and the least recently used are evicted.
#[test]
fn programs_are_bounded_in_bytes() {
    let code = |number: u16| [vec![0x61], number.to_be_bytes().to_vec(), vec![0x54, 0x50, 0x00]].concat();
    let hash = |number: u16| Digest::from(alloy_primitives::keccak256(code(number)));
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
    let off = predictors.foretell(&transactions, &env, 90_000, &Untouchable, PredictMode::Off);
    assert!(off.hints.accounts.is_empty());
    let accounts =
        predictors.foretell(&transactions, &env, 90_000, &Untouchable, PredictMode::Accounts).hints;
    let named: Vec<StateKey> = accounts.keys().collect();
    assert_eq!(named, [account(1), PROPOSER, COUNTER, account(2), WRITER].map(StateKey::Account));
    assert!(accounts.codes().any(|address| address == COUNTER));
    let full = predictors.foretell(&transactions, &env, 90_000, &state, PredictMode::Full).hints;
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
        let foretold = predictors.foretell(&transactions, &env, gas, &state, PredictMode::Full);
        let named = foretold.hints.keys().count();
        assert_eq!(named, hints::keys_max(gas));
    }
}

/// Goal: calls of one contract wait for each other only where its program touches slots that an earlier one changes. If
/// the program is missing, all wait.
#[test]
fn conflicts_are_foretold() {
    let (state, _, env) = chain();
    let fill = |sender: u8, nonce: u64, from: u64, to: u64| {
        invoke(sender, nonce, FILLER, &[word(from), word(to)].concat())
    };
    let transactions = [fill(1, 0, 0, 3), fill(2, 0, 10, 12), fill(3, 0, 2, 4), fill(1, 1, 20, 21)];
    let graph = |mode| {
        let predictors = Predictors::new(PredictConfig { builds_at_once: true, ..PredictConfig::default() });
        predictors.foretell(&transactions, &env, 400_000, &state, mode).conflicts(&transactions).predecessors
    };
    assert_eq!(graph(PredictMode::Full), [vec![], vec![], vec![0], vec![0]]);
    assert_eq!(graph(PredictMode::Accounts), [vec![], vec![0], vec![1], vec![0, 2]]);
}
