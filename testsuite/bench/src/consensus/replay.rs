//! The cost of replication if every validator had its own cores: a simulation on recorded costs.
//!
//! The stages of a batch run here as in a validator, on a store on disk, and each is timed. They are: recover
//! signatures, execute, compute the root, seal, write durably, commit. Then the real cores of one validator and of four
//! play the same batches in virtual time ([`World`]). A core's time for messages is measured; its time for batches is
//! the recorded one.

use std::{path::Path, time::Instant};

use anyhow::{Result, ensure};
use slipstream_executor::{BatchContext, HintsMode, Transaction, execute, seal};
use slipstream_storage::{CommitBatch, StorageConfig, Store};
use slipstream_types::{B256, ChainConfig, Digest, Epoch};

use super::{
    Weight,
    local::Local,
    world::{Job, Machine, Pace, Ran, World},
};
use slipnet::accounts::node_key;
use slipstream_testkit::certify;

/// Batches that are recorded; the first does not count.
const RECORDED: u64 = 6;
/// Batches that are played; the first third does not count.
const PLAYED: u64 = 90;
const TIME_MAX_US: u64 = 3_600_000_000;
/// The one-way latency between validators of one data centre.
const ONE_WAY_US: u64 = 250;
/// The CPU cores of each validator: as many as this machine has, so that nothing is extrapolated.
const CORES: usize = 2;

/// Seconds of the stages of one batch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stages {
    /// Recovering all senders, on one thread: at the node that accepts them, and at a node that receives a body.
    pub(super) recover_s: f64,
    pub(super) execute_s: f64,
    /// Seconds for the root and for sealing.
    pub(super) seal_s: f64,
    /// Seconds for writing the outcome durably.
    pub(super) keep_s: f64,
    /// Seconds for a vote's record.
    pub(super) record_s: f64,
    pub(super) commit_s: f64,
}

impl Stages {
    /// Records the stages of some batches of a weight, on a new store in a directory.
    ///
    /// # Errors
    /// If the store fails.
    pub(super) fn record(weight: &Weight, dir: &Path) -> Result<Vec<Stages>> {
        let local = Local::new(weight.batch)?;
        let config = StorageConfig { snapshot_interval_batches: 0, ..StorageConfig::default() };
        let store = Store::open(&config, dir)?;
        store.initialize(&local.genesis)?;
        let mut all = Vec::new();
        for nonce in 0..RECORDED {
            let transactions = local.batch(weight.request, nonce, |sender| sender)?;
            let stages = Stages::of(&store, &local.genesis.chain, &transactions)?;
            if nonce > 0 {
                all.push(stages);
            }
        }
        Ok(all)
    }

    fn of(store: &Store, chain: &ChainConfig, transactions: &[Transaction]) -> Result<Stages> {
        let mut stages = Stages::default();
        let mut clock = Lap(Instant::now());
        for transaction in transactions {
            Transaction::decode(&transaction.raw, chain)?;
        }
        stages.recover_s = clock.lap();
        let head = store.head()?;
        let timestamp_ms = head.header.timestamp_ms + 100;
        let basis = BatchContext {
            parent: &head.header,
            epoch: Epoch(0),
            timestamp_ms,
            proposer: Default::default(),
        };
        clock.lap();
        let outcome = execute(&store.view()?, &basis.env(chain), transactions)?;
        stages.execute_s = clock.lap();
        ensure!(outcome.receipts.receipts.iter().all(|receipt| receipt.success), "a transaction failed");
        clock.lap();
        let speculation = store.speculate(&outcome.delta)?;
        let sealed = seal(HintsMode::Keys, &basis, transactions, &outcome, speculation.root())?;
        stages.seal_s = clock.lap();
        let parts = [&sealed.body, &sealed.receipts, &sealed.delta].map(|blob| blob.as_bytes());
        store.put_record("bench/outcome", &parts.concat())?;
        stages.keep_s = clock.lap();
        store.put_record("bench/vote", &[7; 400])?;
        stages.record_s = clock.lap();
        let keys = [node_key(super::local::SEED, 0)];
        let certificate = certify(&head.accumulator, &sealed.header, None, &keys);
        let hashes: Vec<B256> = transactions.iter().map(|transaction| transaction.hash).collect();
        let commit =
            CommitBatch { certificate: Some(&certificate), ..sealed.commit_batch(&outcome.delta, &hashes) };
        clock.lap();
        store.commit(commit, Some(speculation))?;
        stages.commit_s = clock.lap();
        Ok(stages)
    }
}

struct Lap(Instant);

impl Lap {
    /// Returns the seconds since the last call.
    fn lap(&mut self) -> f64 {
        let now = Instant::now();
        let seconds = now.duration_since(self.0).as_secs_f64();
        self.0 = now;
        seconds
    }
}

/// Plays recorded batches, in turn.
struct Recorded<'a> {
    stages: &'a [Stages],
    made: u64,
}

impl Machine for Recorded<'_> {
    fn body(&mut self, _before: Digest) -> Digest {
        self.made += 1;
        let mut body = Digest::ZERO;
        body.0[..8].copy_from_slice(&self.made.to_le_bytes());
        body
    }

    fn run(&mut self, job: &Job) -> Ran {
        let mut number = [0; 8];
        number.copy_from_slice(&job.body.0[..8]);
        let stages = self.stages[u64::from_le_bytes(number) as usize % self.stages.len()];
        // The primary already knows the senders.
        let recover_s = if job.is_build { 0.0 } else { stages.recover_s };
        let took_s = recover_s + stages.execute_s + stages.seal_s + stages.keep_s;
        let state_root = Digest::tagged("slipnet/bench/played", [job.before.0, job.body.0].as_flattened());
        Ran { state_root, took_us: (took_s * 1e6) as u64 }
    }
}

/// Returns the batches per second that `validators` validators decide.
///
/// # Errors
/// If the validators decide too few batches.
pub(super) fn batches_per_s(validators: u8, stages: &[Stages], one_way_us: Option<u64>) -> Result<f64> {
    let mean_us =
        |of: fn(&Stages) -> f64| (stages.iter().map(of).sum::<f64>() / stages.len() as f64 * 1e6) as u64;
    let pace = Pace {
        one_way_us: one_way_us.unwrap_or(ONE_WAY_US),
        record_us: mean_us(|it| it.record_s),
        commit_us: mean_us(|it| it.commit_s),
        intake_us: mean_us(|it| it.recover_s),
        cores: CORES,
    };
    let machine = Recorded { stages, made: 0 };
    let decisions = World::new(validators, Digest::ZERO, pace, machine).run(PLAYED, TIME_MAX_US);
    ensure!(decisions.len() as u64 == PLAYED, "{} of {PLAYED} batches were decided", decisions.len());
    let counted = &decisions[PLAYED as usize / 3..];
    let seconds = (counted[counted.len() - 1].at_us - counted[0].at_us) as f64 / 1e6;
    Ok((counted.len() - 1) as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: four validators that only execute keep pace with one; additional work costs throughput.
    #[test]
    fn replication_costs_what_it_adds() {
        let stages = |recover_s| {
            [Stages {
                recover_s,
                execute_s: 0.1,
                seal_s: 0.001,
                keep_s: 0.001,
                record_s: 0.001,
                commit_s: 0.001,
            }]
        };
        let share = |stages: &[Stages]| {
            batches_per_s(4, stages, None).unwrap() / batches_per_s(1, stages, None).unwrap()
        };
        let (light, heavy) = (share(&stages(0.001)), share(&stages(0.05)));
        assert!((0.93..=1.01).contains(&light), "{light}");
        assert!((0.55..=0.75).contains(&heavy), "{heavy}");
    }
}
