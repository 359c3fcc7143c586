//! Open-loop load: transactions leave at the times of a schedule, whatever the nodes do, and every latency is counted
//! from the scheduled time. A node that stalls therefore shows in the percentiles, instead of slowing the load down.
//!
//! ```text
//!  setup: fund, deploy, mint ──▶ plan: sign everything ──▶ send: lanes, batches ──▶ nodes
//!                                     │ hash -> scheduled time                        │ new batches
//!                                     └──────────────▶ track: validator, follower ◀───┘ ──▶ report
//! ```

mod plan;
mod report;
mod send;
mod setup;
mod track;

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub use report::{Latency, Report};
pub use setup::{Call, Chain};

use crate::{
    accounts::{self, Account},
    manifest::{Manifest, Role},
    progress::Progress,
    rpc::Rpc,
};

/// Transactions of one run. They are all signed beforehand and kept, about 300 bytes each.
const TRANSACTIONS_MAX: u64 = 2_000_000;
/// Without a new commit for this long, what is still missing counts as lost.
const DRAIN_PATIENCE: Duration = Duration::from_secs(10);
/// At most so many receipts are looked at after a run.
const RECEIPTS_MAX: usize = 5_000;
/// Time between the start of the senders and the first transaction.
const LEAD: Duration = Duration::from_millis(100);

/// What the transactions do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Plain transfers, half of them to new addresses, half in legacy envelopes and half in those of EIP-1559.
    Transfers,
    /// Transfers of an ERC-20, half of them to new addresses: conflicts are rare.
    Erc20,
    /// Swaps at one constant-product pair: every transaction conflicts with every other.
    Amm,
}

impl Workload {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Transfers => "transfers",
            Workload::Erc20 => "erc20",
            Workload::Amm => "amm",
        }
    }
}

/// What to send, how fast and where.
#[derive(Clone)]
pub struct LoadOptions {
    /// The kind of transactions.
    pub workload: Workload,
    /// Transactions per second.
    pub tps: u32,
    /// How long.
    pub duration: Duration,
    /// Who sends them.
    pub accounts: Vec<Account>,
    /// Transactions go to all of these in turn; commits are read from the first.
    pub submit: Vec<Rpc>,
    /// Where the follow latency is read, if anywhere.
    pub follower: Option<Rpc>,
    /// Connections; each has at most one batch in flight.
    pub connections: usize,
    /// The random choices come from it.
    pub seed: u64,
}

impl LoadOptions {
    /// Transactions to a devnet's validators; the first fullnode, if any, is the follower.
    pub fn for_manifest(manifest: &Manifest, accounts: usize) -> Result<LoadOptions> {
        let rpc = |role| manifest.of_role(role).map(|node| Rpc::new(&node.api)).collect::<Result<Vec<_>>>();
        Ok(LoadOptions {
            accounts: manifest.accounts(accounts)?,
            submit: rpc(Role::Validator)?,
            follower: rpc(Role::Fullnode)?.into_iter().next(),
            seed: manifest.seed.as_ref().map_or(1, |seed| accounts::number(seed, "load")),
            ..LoadOptions::default()
        })
    }
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            workload: Workload::Transfers,
            tps: 500,
            duration: Duration::from_secs(10),
            accounts: Vec::new(),
            submit: Vec::new(),
            follower: None,
            connections: 4,
            seed: 1,
        }
    }
}

/// Prepares the chain, sends the load, and waits until it is committed or lost.
pub async fn run(options: &LoadOptions, progress: Progress) -> Result<Report> {
    let count = u64::from(options.tps) * options.duration.as_millis() as u64 / 1_000;
    ensure!(count > 0, "nothing to send: --tps times --duration is below one transaction");
    ensure!(
        count <= TRANSACTIONS_MAX,
        "{count} transactions are too many for one run (they are signed beforehand); at most {TRANSACTIONS_MAX}"
    );
    ensure!(options.accounts.len() > 1, "a load needs at least two accounts");
    let validator = options.submit.first().context("a load needs the API of at least one node")?;

    progress.step(&format!("preparing {} accounts for {}", options.accounts.len(), options.workload.name()));
    let chain = Chain::connect(validator.clone()).await?;
    chain.fund(&options.accounts).await?;
    let target = setup::prepare(&chain, options.workload, &options.accounts).await?;
    let nonces = chain.nonces(&options.accounts).await?;

    progress.step(&format!("signing {count} transactions"));
    let plan = Arc::new(plan::Plan::sign(options, &chain, &target, &nonces, count as usize));
    let first_batch = chain.head().await? + 1;

    progress.step(&format!("sending {} tx/s for {:.1} s", options.tps, options.duration.as_secs_f64()));
    let traffic = Traffic::start(options, validator, &plan, first_batch);
    traffic.finish(options, &plan, &chain, progress).await
}

/// The running tasks of one load.
struct Traffic {
    begin: Instant,
    lanes: tokio::task::JoinSet<send::Outcome>,
    sent: Arc<send::Counters>,
    commits: track::Tracker,
    follower: Option<track::Tracker>,
    stop: CancellationToken,
}

impl Traffic {
    fn start(options: &LoadOptions, validator: &Rpc, plan: &Arc<plan::Plan>, first_batch: u64) -> Traffic {
        let begin = Instant::now() + LEAD;
        let stop = CancellationToken::new();
        let track =
            |rpc: &Rpc| track::Tracker::start(rpc.clone(), plan.clone(), first_batch, begin, stop.clone());
        let (commits, follower) = (track(validator), options.follower.as_ref().map(track));
        let sent = Arc::new(send::Counters::default());
        let mut lanes = tokio::task::JoinSet::new();
        let count = options.connections.clamp(1, options.accounts.len());
        for lane in 0..count {
            let rpc = options.submit[lane % options.submit.len()].clone();
            lanes.spawn(send::run_lane(
                rpc,
                plan.clone(),
                send::Lane { index: lane, count },
                begin,
                sent.clone(),
            ));
        }
        Traffic { begin, lanes, sent, commits, follower, stop }
    }

    async fn finish(
        mut self,
        options: &LoadOptions,
        plan: &plan::Plan,
        chain: &Chain,
        progress: Progress,
    ) -> Result<Report> {
        let outcome = self.watch(plan.len(), progress).await?;
        self.stop.cancel();
        let commits = self.commits.result().await?;
        let follower = match self.follower {
            Some(follower) => Some(follower.result().await?),
            None => None,
        };
        progress.step("checking receipts");
        let (receipts_checked, receipts_failed) = check_receipts(chain, plan, &commits).await?;
        Ok(Report::new(options, outcome, &commits, follower.as_ref(), receipts_checked, receipts_failed))
    }

    /// Shows progress until everything that was accepted is committed, here and at the follower, or is not coming.
    async fn watch(&mut self, total: usize, progress: Progress) -> Result<send::Outcome> {
        let mut task = progress.task("sent", total as u64);
        let mut outcome = send::Outcome::default();
        let mut last_change = (0, Instant::now());
        loop {
            tokio::select! {
                Some(lane) = self.lanes.join_next() => outcome.add(lane.context("a sending lane panicked")?),
                () = tokio::time::sleep(Duration::from_millis(100)) => {}
            }
            let committed = self.commits.committed();
            let followed = self.follower.as_ref().map(track::Tracker::committed);
            let sum = committed + followed.unwrap_or(committed);
            if sum != last_change.0 {
                last_change = (sum, Instant::now());
            }
            let lag = followed.map(|followed| format!(", at the fullnode {followed}")).unwrap_or_default();
            let seconds = self.begin.elapsed().as_secs_f64();
            let sent = self.sent.sent.load(Ordering::Relaxed);
            task.update(sent, &format!("committed {committed}{lag} after {seconds:.0} s"));
            let complete = committed >= outcome.accepted && followed.is_none_or(|n| n >= outcome.accepted);
            if self.lanes.is_empty() && (complete || last_change.1.elapsed() > DRAIN_PATIENCE) {
                return Ok(outcome);
            }
        }
    }
}

/// Reads receipts of committed transactions, evenly spread, and counts those that failed.
async fn check_receipts(chain: &Chain, plan: &plan::Plan, commits: &track::Tracked) -> Result<(u64, u64)> {
    let step = commits.seen.len().div_ceil(RECEIPTS_MAX).max(1);
    let hashes = commits.seen.iter().step_by(step).map(|index| plan.hash(*index as usize));
    let params: Vec<Value> = hashes.map(|hash| json!([hash])).collect();
    let receipts: Vec<Value> = chain.rpc().batch_all("eth_getTransactionReceipt", &params).await?;
    let failed = receipts.iter().filter(|receipt| receipt["status"] != "0x1").count();
    Ok((receipts.len() as u64, failed as u64))
}
