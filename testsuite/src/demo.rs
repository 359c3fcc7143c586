//! The demo: a chain with history, and one fresh fullnode per sync mode that catches up with it.

use std::{
    fmt,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    devnet::{Devnet, DevnetOptions, Node, Status, SyncMode},
    load::{self, LoadOptions, LoadSummary, Rate, Workload},
    progress::Progress,
    rpc::Rpc,
};

/// A short interval, so that even a short demo has snapshots.
const SNAPSHOT_INTERVAL_BATCHES: u64 = 20;
/// A fullnode needs seconds; the rest is for loaded machines.
const CATCH_UP_DEADLINE: Duration = Duration::from_secs(90);
/// Batches during which the first fullnode starts and chooses a snapshot. Without load a batch takes one second.
const BEFORE_SNAPSHOT: u64 = 10;
/// The time limit for a node's sync counters to include its last commit. The counters follow the head within a moment,
/// later on a loaded machine.
const COUNTED_WITHIN: Duration = Duration::from_secs(10);
const MODES: [SyncMode; 3] = [SyncMode::Snapshot, SyncMode::Delta, SyncMode::Replay];

/// The settings of the demo.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// The seconds of load.
    pub seconds: u64,
    /// The transactions per second of the load.
    pub tps: u32,
    /// The devnet that the demo starts.
    pub devnet: DevnetOptions,
}

impl Default for DemoOptions {
    fn default() -> Self {
        let devnet = DevnetOptions {
            validators: 4,
            fullnodes: 0,
            snapshot_interval_batches: SNAPSHOT_INTERVAL_BATCHES,
            ..DevnetOptions::default()
        };
        Self { seconds: 15, tps: 1_000, devnet }
    }
}

/// One fullnode's catch-up to the target.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The sync mode.
    pub mode: &'static str,
    /// Batches fetched one by one; a snapshot saves those before it.
    pub batches_fetched: u64,
    /// The batches among them that it executed itself.
    pub batches_replayed: u64,
    /// The number of the snapshot from which it started.
    pub snapshot_number: Option<u64>,
    /// State rows downloaded with the snapshot.
    pub snapshot_rows: u64,
    /// Transactions of the chain up to the target, per second of the catch-up.
    pub transactions_per_second: f64,
    /// The bytes that it received from peers.
    pub bytes_received: u64,
    /// Seconds from the start of the process until its head reached the target.
    pub seconds: f64,
    /// The state root after the target batch.
    pub state_root: B256,
}

/// The result of the demo.
#[derive(Clone, Debug, Serialize)]
pub struct DemoReport {
    /// The figures of the load.
    pub load: Vec<LoadSummary>,
    /// The batch that every fullnode had to reach.
    pub target: u64,
    /// Transactions of the chain up to the target.
    pub transactions: u64,
    /// The validators' state root after the target.
    pub state_root: B256,
    /// One row per mode.
    pub rows: Vec<Row>,
    /// The batch at which all nodes were compared once more at the end, while following.
    pub followed_to: u64,
}

/// Runs the demo. Returns an error if a fullnode's state differs from the validators'.
pub async fn run(options: &DemoOptions, progress: Progress) -> Result<DemoReport> {
    let validators = options.devnet.validators;
    progress.step(&format!("starting {validators} validators"));
    let mut devnet = Devnet::start(options.devnet.clone()).await?;
    match steps(&mut devnet, options, progress).await {
        Ok(report) => {
            devnet.stop().await?;
            Ok(report)
        }
        Err(error) => {
            let dir = devnet.keep_directory();
            Err(error.context(format!("the demo failed; the nodes' files and logs are in {}", dir.display())))
        }
    }
}

async fn steps(devnet: &mut Devnet, options: &DemoOptions, progress: Progress) -> Result<DemoReport> {
    let manifest = devnet.manifest().await?;
    let mut load = Vec::new();
    // A third of the time is for plain transfers, the rest for contract calls.
    let transfers = (options.seconds / 3).max(1);
    let phases = [
        (Workload::Transfers, transfers),
        (Workload::Erc20, options.seconds.saturating_sub(transfers).max(1)),
    ];
    for (workload, seconds) in phases {
        let accounts = devnet.accounts().len();
        let defaults = LoadOptions::for_manifest(&manifest, accounts)?;
        let duration = Duration::from_secs(seconds);
        let rate = Rate::constant(options.tps);
        let options = LoadOptions { workload: workload.into(), rate, duration, ..defaults };
        let summary = load::run(&options, progress).await?;
        ensure!(summary.committed > 0, "no transaction was committed:\n{summary}");
        ensure!(summary.audit.is_clean(), "the load's books do not add up:\n{summary}");
        load.push(summary);
    }
    let target = choose_target(devnet, options.devnet.snapshot_interval_batches).await?;
    let transactions = count_transactions(devnet.proposer().rpc(), target).await?;
    let state_root = devnet.proposer().state_root(target).await?;
    progress.step(&format!(
        "the chain has {transactions} transactions in {target} batches; fresh fullnodes now follow"
    ));

    let mut rows = Vec::new();
    for mode in MODES {
        rows.push(catch_up(devnet, mode, target, transactions, progress).await?);
    }
    for row in &rows {
        ensure!(
            row.state_root == state_root,
            "the fullnode that followed by {} has state root {} after batch {target}, the validators have {state_root}",
            row.mode,
            row.state_root
        );
    }
    let followed_to = compare_followers(devnet, progress).await?;
    Ok(DemoReport { load, target, transactions, state_root, rows, followed_to })
}

/// Returns the head once no snapshot is imminent: the first fullnode must not start from a snapshot beyond the target.
async fn choose_target(devnet: &mut Devnet, interval: u64) -> Result<u64> {
    let head = devnet.proposer().status().await?.head.number;
    // An interval of 0 means no snapshots.
    let next = head.checked_div(interval).map(|passed| (passed + 1) * interval);
    let Some(next) = next.filter(|next| next - head <= BEFORE_SNAPSHOT) else { return Ok(head) };
    let status = devnet.node_mut(0).wait_head(next, Instant::now() + CATCH_UP_DEADLINE).await?;
    Ok(status.head.number)
}

/// Starts a fresh fullnode and waits until it reaches the target.
async fn catch_up(
    devnet: &mut Devnet,
    mode: SyncMode,
    target: u64,
    transactions: u64,
    progress: Progress,
) -> Result<Row> {
    progress.step(&format!("a fresh fullnode bootstraps by {}", mode.name()));
    let mut task = progress.task(mode.name(), target);
    let begin = Instant::now();
    let index = devnet.add_fullnode(&format!("fullnode-{}", mode.name()), mode).await?;
    let node = devnet.node_mut(index);
    loop {
        node.check_alive()?;
        let status = node.status().await?;
        let bytes = status.sync.bytes_received;
        task.update(status.head.number, &format!("batches, {} received", Bytes(bytes)));
        if status.head.number >= target {
            break;
        }
        ensure!(
            begin.elapsed() < CATCH_UP_DEADLINE,
            "{} is at batch {} of {target} after {} s",
            node.name(),
            status.head.number,
            CATCH_UP_DEADLINE.as_secs()
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let seconds = begin.elapsed().as_secs_f64();
    let status = counted(node, target).await?;
    Ok(Row {
        mode: mode.name(),
        batches_fetched: status.sync.batches,
        batches_replayed: status.sync.batches_replayed,
        snapshot_number: status.sync.snapshot.as_ref().map(|snapshot| snapshot.number),
        snapshot_rows: status.sync.snapshot.as_ref().map_or(0, |snapshot| snapshot.rows),
        transactions_per_second: transactions as f64 / seconds,
        bytes_received: status.sync.bytes_received,
        seconds,
        state_root: node.state_root(target).await?,
    })
}

/// Returns the status of a node at the target, once its counters include the batches up to there. A commit takes many
/// batches at once, and the counters follow it.
async fn counted(node: &Node, target: u64) -> Result<Status> {
    let deadline = Instant::now() + COUNTED_WITHIN;
    loop {
        let status = node.status().await?;
        let begun = status.sync.snapshot.as_ref().map_or(0, |snapshot| snapshot.number);
        if begun + status.sync.batches >= target || Instant::now() > deadline {
            return Ok(status);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Compares all nodes, which keep following, at a batch that did not exist when they started.
async fn compare_followers(devnet: &mut Devnet, progress: Progress) -> Result<u64> {
    let number = devnet.proposer().status().await?.head.number + 1;
    progress.step(&format!("all fullnodes follow to batch {number}"));
    let deadline = Instant::now() + CATCH_UP_DEADLINE;
    let mut roots = Vec::new();
    for index in 0..devnet.nodes().len() {
        let node = devnet.node_mut(index);
        node.wait_head(number, deadline).await?;
        roots.push((node.name().to_owned(), node.state_root(number).await?));
    }
    if let Some((name, root)) = roots.iter().find(|(_, root)| *root != roots[0].1) {
        anyhow::bail!("{name} has state root {root} after batch {number}, {} has {}", roots[0].0, roots[0].1);
    }
    Ok(number)
}

async fn count_transactions(rpc: &Rpc, last: u64) -> Result<u64> {
    let params: Vec<_> = (0..=last).map(|number| json!([format!("{number:#x}"), false])).collect();
    let blocks: Vec<Value> = rpc.batch_all("eth_getBlockByNumber", &params).await?;
    let counts = blocks.iter().map(|block| block["transactions"].as_array().map(|list| list.len() as u64));
    counts.sum::<Option<u64>>().context("the validator does not have all batches")
}

/// A number of bytes, formatted for people.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes < 1 << 20 => write!(f, "{:.1} KiB", bytes as f64 / 1024.0),
            bytes => write!(f, "{:.2} MiB", bytes as f64 / 1024.0 / 1024.0),
        }
    }
}

impl fmt::Display for DemoReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let committed: u64 = self.load.iter().map(|report| report.committed).sum();
        writeln!(f, "The load committed {committed} transactions in {} batches.", self.target)?;
        for report in &self.load {
            if let Some(latency) = &report.commit_ms {
                writeln!(
                    f,
                    "  {:<9} {:.0} tx/s, commit latency {latency}",
                    report.workload, report.achieved_per_second
                )?;
            }
        }
        writeln!(
            f,
            "\nFresh fullnodes, each from nothing to batch {} ({} transactions):",
            self.target, self.transactions
        )?;
        let head =
            ["mode", "rows", "batches", "executed", "transactions/s", "received", "seconds", "state root"];
        let [mode, rows, batches, executed, rate, received, seconds, root] = head;
        writeln!(
            f,
            "  {mode:<9} {rows:>7} {batches:>8} {executed:>8} {rate:>15} {received:>12} {seconds:>8}  {root}"
        )?;
        for row in &self.rows {
            writeln!(
                f,
                "  {:<9} {:>7} {:>8} {:>8} {:>15.0} {:>12} {:>8.2}  {}",
                row.mode,
                row.snapshot_rows,
                row.batches_fetched,
                row.batches_replayed,
                row.transactions_per_second,
                Bytes(row.bytes_received).to_string(),
                row.seconds,
                row.state_root
            )?;
        }
        writeln!(
            f,
            "\nrows: state rows from a snapshot. batches: fetched one by one; executed: how many of them were executed. seconds: since the process started."
        )?;
        writeln!(f, "All state roots equal the validators', then and later at batch {}.", self.followed_to)
    }
}
