//! Predictors on the mainnet blocks: how much of what a block reads they foretell, and how much more than that.

use std::collections::BTreeSet;

use slipstream_executor::{
    StateReader, execute,
    predict::{PredictConfig, PredictLimits, PredictMode, PredictStats, Predicted, Predictors},
};
use slipstream_types::{Digest, StateKey};

use crate::{
    mainnet::{Case, cases, environment, transactions},
    support::{COUNTER, FILLER, WRITER, chain, invoke, word},
};

/// The first block of 2020; predictors are for the EVM of today.
const FIRST: u64 = 9_193_266;

#[derive(Default)]
struct Score {
    wanted: usize,
    named: usize,
    right: usize,
}

impl Score {
    fn add(&mut self, wanted: &BTreeSet<Predicted>, named: &BTreeSet<Predicted>) {
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

/// Goal: with programs for the block's contracts and the state before the block, most of the keys and code that the block
/// reads are foretold, few others, and much more than what stands in the transactions.
#[test]
fn most_reads_of_mainnet_blocks_are_foretold() {
    let Some(cases) = cases() else { return };
    let (mut full, mut accounts, mut blocks) = (Score::default(), Score::default(), 0);
    for case in cases.filter(|case| case.block.header.number >= FIRST) {
        let outcome = execute(&case.state, &environment(&case.block), &transactions(&case.block)).unwrap();
        let codes = outcome.touched.codes.iter().map(|(hash, _)| Predicted::Code((*hash).into()));
        let wanted = outcome.hints.keys().map(Predicted::Key).chain(codes).collect();
        let predictors = Predictors::new(PredictConfig::default());
        for (hash, code) in &outcome.touched.codes {
            predictors.build_now((*hash).into(), &code.bytes());
        }
        full.add(&wanted, &foretold(&predictors, &case, PredictMode::Full));
        accounts.add(&wanted, &foretold(&predictors, &case, PredictMode::Accounts));
        assert_eq!(foretold(&predictors, &case, PredictMode::Off).len(), 0);
        blocks += 1;
    }
    println!("{blocks} blocks: full {:.3} recall, {:.3} waste", full.recall(), full.waste());
    println!("{blocks} blocks: accounts {:.3} recall, {:.3} waste", accounts.recall(), accounts.waste());
    assert!(blocks > 20, "{blocks} blocks");
    assert!(full.recall() > 0.85, "recall {}", full.recall());
    assert!(full.waste() < 0.05, "waste {}", full.waste());
    assert!(accounts.recall() > 0.3, "recall {}", accounts.recall());
    assert!(accounts.waste() < 0.02, "waste {}", accounts.waste());
}

fn foretold(predictors: &Predictors, case: &Case, mode: PredictMode) -> BTreeSet<Predicted> {
    let env = environment(&case.block);
    let mut named = BTreeSet::new();
    for transaction in transactions(&case.block) {
        let mut own = BTreeSet::new();
        let stats = predictors.predict(&transaction, &env, &case.state, mode, &mut |predicted| {
            assert!(own.insert(predicted), "{predicted:?} was named twice");
        });
        assert_eq!(stats.keys + stats.codes, own.len() as u64);
        assert!(stats.reads <= stats.keys + stats.codes, "what is read was named");
        named.extend(own);
    }
    named
}

fn named(
    predictors: &Predictors,
    to: alloy_primitives::Address,
    data: &[u8],
) -> (Vec<Predicted>, PredictStats) {
    let (state, _, env) = chain();
    let mut named = Vec::new();
    let transaction = invoke(1, 0, to, data);
    let mut sink = |predicted| named.push(predicted);
    let stats = predictors.predict(&transaction, &env, &state, PredictMode::Full, &mut sink);
    (named, stats)
}

/// Goal: a contract is analysed when it was called often enough, not before, and once; then what it reads is foretold.
#[test]
fn contracts_that_are_called_often_get_programs() {
    let (state, _, _) = chain();
    let hash = |address| state.account(&address).unwrap().unwrap().code_hash.unwrap();
    let code = |hash: Digest| state.code(&hash).unwrap().unwrap();
    let predictors = Predictors::new(PredictConfig { calls_min: 3, ..PredictConfig::default() });
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

/// Goal: the programs that are kept never take more than they may, and the ones not used lately go.
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

/// Goal: the limits on steps, keys and reads end a loop that would go on, and what was named until then stands.
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

/// Goal: without reading slots, keys that need no value are still foretold.
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
