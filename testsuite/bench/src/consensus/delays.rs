//! Four validators with latency: throughput, the time to a certificate, the bytes between them, and the time to recover
//! from the primary's death.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use slipstream_storage::{StorageConfig, Store};
use slipstream_types::Genesis;

use super::{
    Plan, Weight,
    cluster::{Cluster, ClusterOptions},
    drive::{Driver, Pressure},
    failover,
    pages::Pages,
    ways,
};
use crate::{Figure, harness::ratios};
use slipnet::{
    load::{self, LoadOptions, Rate, Workload},
    progress::Progress,
};

/// The one-way latencies, in milliseconds.
const ONE_WAYS_MS: [u64; 3] = [0, 25, 50];
/// Enough that batches rarely share pages.
const ACCOUNTS: u32 = 5_000;
/// Low enough that no batch waits for a core.
const LIGHT_TPS: u32 = 50;
const VALIDATORS: u32 = 4;
/// The most transactions of a batch.
const BATCH_MAX: u32 = 800;
/// Transactions in flight. They are enough for a delay of a second, so that the validators and not the sender limit the
/// rate.
const WINDOW: usize = 6_000;
/// The time in which everything in flight under the previous latency arrives.
const SETTLE: Duration = Duration::from_secs(1);

/// The results of one latency, run by run.
#[derive(Default)]
struct LatencyRuns {
    tps: Vec<f64>,
    /// The median latency of all transactions, as the sender sees them.
    commit_p50_ms: Vec<f64>,
    /// The batches of the light loads.
    light: Vec<(u64, u64)>,
    /// The batches of the heavy loads, and the bytes between validators.
    heavy: Vec<((u64, u64), u64)>,
}

pub(super) async fn run(weight: &Weight, plan: &Plan, dir: &Path, progress: Progress) -> Result<Vec<Figure>> {
    let options = ClusterOptions { validators: VALIDATORS, accounts: ACCOUNTS, batch_max: BATCH_MAX };
    let mut cluster = Cluster::start(&dir.join("far"), options).await?;
    let mut all: BTreeMap<u64, LatencyRuns> = BTreeMap::new();
    for run in 1..=plan.runs {
        for one_way_ms in ONE_WAYS_MS.into_iter().filter(|ms| !plan.is_quick || *ms != 25) {
            progress.step(&format!("{one_way_ms} ms one way, run {run} of {}", plan.runs));
            cluster.set_one_way(Duration::from_millis(one_way_ms));
            tokio::time::sleep(SETTLE).await;
            measure(&cluster, weight, plan, all.entry(one_way_ms).or_default()).await?;
        }
    }
    cluster.set_one_way(Duration::ZERO);
    let views = view(&cluster).await?;
    let mut failovers = Vec::new();
    for run in 1..=plan.runs {
        progress.step(&format!("the primary dies, {run} of {}", plan.runs));
        tokio::time::sleep(SETTLE).await;
        failovers.push(failover::seconds(&mut cluster).await?);
    }
    ensure!(cluster.dropped() == 0, "a relay dropped datagrams");
    let (node, genesis) = (cluster.devnet.nodes()[0].dir().to_owned(), cluster.devnet.genesis_file());
    let log = cluster.devnet.nodes()[0].log();
    cluster.devnet.stop().await?;
    let config = StorageConfig { snapshot_interval_batches: 0, ..StorageConfig::default() };
    let store = Store::open(&config, &node.join("data/db"))?;
    let genesis: Genesis = serde_json::from_str(&std::fs::read_to_string(genesis)?)?;
    let mut figures =
        vec![Figure::new("failover_s", "s", failovers), Figure::new("far.views", "1", vec![views])];
    figures.extend(throughput(&all));
    figures.extend(latency(&all, &store, &log)?);
    figures.extend(shipping(&all, &store, &genesis)?);
    Ok(figures)
}

/// Returns the view, which is 0 until a primary is replaced.
async fn view(cluster: &Cluster) -> Result<f64> {
    let status = cluster.devnet.proposer().status().await?;
    status.consensus.and_then(|it| it["view"].as_f64()).context("the first node does not validate")
}

async fn measure(cluster: &Cluster, weight: &Weight, plan: &Plan, far: &mut LatencyRuns) -> Result<()> {
    let pressure = Pressure { window: WINDOW, ..weight.pressure(1.5 * plan.seconds) };
    let flow = Driver::new(cluster).await?.press(weight.request, pressure).await?;
    far.tps.push(flow.tps);
    far.heavy.push((flow.batches, flow.bytes));
    let first = cluster.chain.head().await? + 1;
    let options = LoadOptions {
        workload: Workload::Transfers.into(),
        rate: Rate::constant(LIGHT_TPS),
        duration: Duration::from_secs(plan.light_seconds),
        accounts: cluster.devnet.accounts()[..200].to_vec(),
        submit: vec![cluster.chain.rpc().clone()],
        ..LoadOptions::default()
    };
    let report = load::run(&options, Progress::Quiet).await?;
    far.commit_p50_ms.push(report.commit_ms.context("no transaction was committed")?.p50);
    far.light.push((first, report.head));
    Ok(())
}

fn throughput(all: &BTreeMap<u64, LatencyRuns>) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (one_way_ms, far) in all {
        figures.push(Figure::new(format!("far.{one_way_ms}ms.tps"), "1/s", far.tps.clone()));
        let latencies = far.commit_p50_ms.clone();
        figures.push(Figure::new(format!("far.{one_way_ms}ms.commit_p50_ms"), "ms", latencies));
        if *one_way_ms > 0 {
            let share = ratios(&far.tps, &all[&0].tps);
            figures.push(Figure::new(format!("throughput_at_{one_way_ms}ms"), "ratio", share));
        }
    }
    figures
}

fn latency(all: &BTreeMap<u64, LatencyRuns>, store: &Store, log: &Path) -> Result<Vec<Figure>> {
    let decided = ways::decided_ms(log)?;
    let mut figures = Vec::new();
    for (one_way_ms, far) in all {
        let (mut medians, mut nineties) = (Vec::new(), Vec::new());
        for (first, last) in &far.light {
            let waits = ways::waits_ms(store, &decided, *first..=*last)?;
            medians.push(*waits.get(waits.len() / 2).context("no batch was decided under light load")?);
            nineties.push(waits[waits.len() * 9 / 10]);
        }
        if *one_way_ms == 50 {
            let ways = medians.iter().map(|ms| ms / 50.0).collect();
            figures.push(Figure::new("commit_one_ways_p50", "ratio", ways));
        }
        figures.push(Figure::new(format!("far.{one_way_ms}ms.certificate_p50_ms"), "ms", medians));
        figures.push(Figure::new(format!("far.{one_way_ms}ms.certificate_p90_ms"), "ms", nineties));
    }
    Ok(figures)
}

fn shipping(all: &BTreeMap<u64, LatencyRuns>, store: &Store, genesis: &Genesis) -> Result<Vec<Figure>> {
    let head = store.head()?.header.number.get();
    let pages = Pages::of(store, genesis, head)?;
    let (mut to_all, mut to_one) = (Vec::new(), Vec::new());
    for ((first, last), bytes) in &all[&0].heavy {
        let shipped = pages.changed_bytes(store, *first..=*last)? as f64;
        to_one.push(*bytes as f64 / shipped);
        to_all.push(*bytes as f64 / (shipped * f64::from(VALIDATORS - 1)));
    }
    Ok(vec![
        Figure::new("bytes_vs_state_shipping", "ratio", to_all),
        Figure::new("bytes_vs_state_shipping.one_backup", "ratio", to_one),
        Figure::new("bytes_vs_state_shipping.rows", "1", vec![pages.rows() as f64]),
    ])
}
