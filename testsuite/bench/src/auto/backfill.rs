//! The cost of a backfill for a node at the head. The node's lag behind a validator under load while it fetches the
//! history is compared with the lag of a node without history.
//!
//! The validator is a real process on a clone of the chain [`FULL`]. Fresh followers with and without history take
//! turns under one load.

use std::{
    convert::Infallible,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::{
    chain::{Chain, SNAPSHOT_INTERVAL},
    situation::FULL,
};
use crate::harness::{
    chain::validator_key,
    kept::clone_store,
    node::{NodeOptions, NodeProcess, database},
    relay::Relay,
    watch::Watcher,
    workload::Signer,
};
use slipnet::{
    accounts::{Account, node_key},
    load::{self, LoadOptions, Rate},
    progress::Progress,
    quantiles::quantile,
    rpc::Rpc,
};

/// The part's name in `--only` and in figures.
pub(super) const NAME: &str = "backfill_head_cost";
const RUNS: usize = 3;
/// Far below the rate that the machine sustains, so that no queue adds to the lag.
const LOAD_TPS: u32 = 300;
const LOAD_ACCOUNTS: usize = 200;
/// Long enough for all followers, each of which catches up first.
const LOAD: Duration = Duration::from_secs(120);
/// How long a lag is watched.
const WATCH: Duration = Duration::from_secs(5);
/// How often a follower is asked whether it fetches history.
const SAMPLE: Duration = Duration::from_millis(100);
const POLL: Duration = Duration::from_millis(20);
const CATCH_UP_DEADLINE: Duration = Duration::from_secs(60);
/// A run counts if the follower fetched history for at least this share of the run.
const SHARE_MIN: f64 = 0.5;
const ROUND_TRIP: Duration = Duration::from_millis(20);
const FOLLOWER_SEED: &str = "slipnet-bench-follower";

/// The results.
#[derive(Default)]
pub(super) struct HeadCost {
    /// Median lags in milliseconds, one per run: while history is fetched, and of nodes without history.
    pub(super) lag_ms: [Vec<f64>; 2],
    /// Runs left out because the follower fetched too little history, or none.
    pub(super) left_out: usize,
}

/// Measures the cost in a directory.
///
/// # Errors
/// If a node exits or does not catch up, or the load fails.
pub(super) async fn measure(chain: &Chain, dir: &Path, progress: Progress) -> Result<HeadCost> {
    let validator_dir = dir.join("validator");
    clone_store(&chain.database(), &database(&validator_dir))?;
    let options = NodeOptions {
        mode: "auto",
        snapshot_interval: SNAPSHOT_INTERVAL,
        consensus: "  empty_batch_interval_ms: 0\n".to_owned(),
        ..NodeOptions::default()
    };
    let validator = NodeProcess::start(&validator_dir, &chain.genesis(), &validator_key(), &options).await?;
    let load = LoadOptions {
        rate: Rate::constant(LOAD_TPS),
        duration: LOAD,
        accounts: accounts(),
        submit: vec![Rpc::new(validator.url())?],
        ..LoadOptions::default()
    };
    let runs = Runs { chain, validator: &validator, dir, progress };
    let cost = tokio::select! {
        ended = load::run(&load, Progress::Quiet) => {
            ended?;
            Err(anyhow::anyhow!("the load ended before the last follower was watched"))
        }
        cost = runs.all() => cost,
    };
    let cost = cost?;
    validator.stop().await?;
    fs::remove_dir_all(&validator_dir)?;
    Ok(cost)
}

/// Returns some of the accounts that the chain's genesis funds.
fn accounts() -> Vec<Account> {
    let mut accounts = Signer::new(FULL.workload, Default::default(), FULL.senders).funded();
    accounts.truncate(LOAD_ACCOUNTS);
    accounts
}

/// The followers of a validator under load.
struct Runs<'a> {
    chain: &'a Chain,
    validator: &'a NodeProcess,
    dir: &'a Path,
    progress: Progress,
}

impl Runs<'_> {
    async fn all(&self) -> Result<HeadCost> {
        // No batch is made before the load begins.
        while self.validator.head().await? < self.chain.head + 3 {
            tokio::time::sleep(POLL).await;
        }
        let mut cost = HeadCost::default();
        for run in 1..=RUNS {
            let (with, share) = self.lag_ms(true, run).await?;
            if share < SHARE_MIN {
                cost.left_out += 1;
                continue;
            }
            let (without, _) = self.lag_ms(false, run).await?;
            cost.lag_ms[0].push(with);
            cost.lag_ms[1].push(without);
        }
        Ok(cost)
    }

    /// Returns the median lag of a fresh follower at the head, and the share of the time in which it fetched history.
    async fn lag_ms(&self, history: bool, run: usize) -> Result<(f64, f64)> {
        self.progress.step(&format!("{NAME}, history {history}, run {run} of {RUNS}"));
        let relay = Relay::start(self.validator.address(), ROUND_TRIP / 2)?;
        let options = NodeOptions {
            mode: "auto",
            sync: format!("  history: {history}\n"),
            snapshot_interval: SNAPSHOT_INTERVAL,
            peers: vec![self.validator.peer_at(relay.address())],
            ..NodeOptions::default()
        };
        let dir = self.dir.join("follower");
        let key = node_key(FOLLOWER_SEED, 0);
        let follower = NodeProcess::start(&dir, &self.chain.genesis(), &key, &options).await?;
        let begin = Instant::now();
        while follower.head().await? + 1 < self.validator.head().await? {
            ensure!(begin.elapsed() < CATCH_UP_DEADLINE, "a follower did not reach the head in time");
            tokio::time::sleep(POLL).await;
        }
        let watcher = Watcher::start(self.validator.url(), follower.url())?;
        let (mut samples, mut fetching) = (0_u32, 0_u32);
        let sampled = async {
            loop {
                samples += 1;
                fetching += u32::from(!follower.status().await?["sync"]["backfill"].is_null());
                tokio::time::sleep(SAMPLE).await;
            }
        };
        let sampled: Option<Result<Infallible>> = tokio::time::timeout(WATCH, sampled).await.ok();
        sampled.transpose()?;
        let lags = watcher.finish(self.validator.head().await?).await?;
        let lag = quantile(&lags, 0.5).context("no batch was seen")?;
        drop(follower);
        fs::remove_dir_all(&dir)?;
        Ok((lag, f64::from(fetching) / f64::from(samples.max(1))))
    }
}
