//! Clusters of one, four and seven real validators, with requests of each weight.

use std::path::Path;

use anyhow::Result;

use super::{
    Plan, Weight,
    cluster::{Cluster, ClusterOptions},
    drive::{Driver, Flow},
};
use crate::{Figure, harness::ratios};
use slipnet::progress::Progress;

const ACCOUNTS: u32 = 500;

/// One kind of cluster.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    validators: u32,
    parallel: bool,
}

const KINDS: [Kind; 5] = [
    Kind { name: "1", validators: 1, parallel: false },
    Kind { name: "4", validators: 4, parallel: false },
    Kind { name: "7", validators: 7, parallel: false },
    Kind { name: "1_parallel", validators: 1, parallel: true },
    Kind { name: "4_parallel", validators: 4, parallel: true },
];

pub(super) async fn run(
    weights: &[Weight],
    plan: &Plan,
    dir: &Path,
    progress: Progress,
) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for weight in weights.iter().filter(|weight| Weight::NODES.contains(&weight.name)) {
        let dir = dir.join(format!("nodes-{}", weight.name));
        let flows = flows(weight, plan, &dir, progress).await?;
        figures.extend(of_weight(weight, &flows));
    }
    Ok(figures)
}

/// Measures all kinds in turn, run by run.
async fn flows(
    weight: &Weight,
    plan: &Plan,
    dir: &Path,
    progress: Progress,
) -> Result<Vec<(&'static str, Vec<Flow>)>> {
    let kinds = if plan.is_quick { &KINDS[..2] } else { &KINDS[..] };
    // On several threads only the weight of the aims is measured, to limit the total time.
    let is_due = |kind: &&Kind| !kind.parallel || weight.name == Weight::MIDDLE;
    let mut clusters = Vec::new();
    for Kind { name, validators, parallel } in kinds.iter().filter(is_due).copied() {
        let options = ClusterOptions {
            validators,
            accounts: ACCOUNTS,
            batch_max: weight.batch,
            parallel,
            impatient: false,
        };
        clusters.push((name, Cluster::start(&dir.join(name), options).await?));
    }
    let mut flows: Vec<Vec<Flow>> = vec![Vec::new(); clusters.len()];
    for run in 1..=plan.runs {
        for (flows, (name, cluster)) in flows.iter_mut().zip(&clusters) {
            progress.step(&format!("{} on {name}, run {run} of {}", weight.name, plan.runs));
            let pressure = weight.pressure(plan.seconds);
            flows.push(Driver::new(cluster).await?.press(weight.request, pressure).await?);
        }
    }
    let mut named = Vec::new();
    for ((name, cluster), flows) in clusters.into_iter().zip(flows) {
        anyhow::ensure!(cluster.dropped() == 0, "a relay dropped datagrams");
        cluster.devnet.stop().await?;
        named.push((name, flows));
    }
    Ok(named)
}

/// Returns the busiest validator's CPU seconds per transaction.
fn busiest(flow: &Flow) -> f64 {
    flow.cpu_s_per_tx.iter().copied().fold(0.0, f64::max)
}

fn of_weight(weight: &Weight, flows: &[(&str, Vec<Flow>)]) -> Vec<Figure> {
    let of = |flows: &[Flow], value: fn(&Flow) -> f64| flows.iter().map(value).collect::<Vec<_>>();
    let mut figures = Vec::new();
    for (name, mine) in flows {
        let mut add = |what: &str, unit, samples| {
            figures.push(Figure::new(format!("nodes.{name}.{what}.{}", weight.name), unit, samples));
        };
        add("tps", "1/s", of(mine, |flow| flow.tps));
        add("cpu_us_per_tx", "us", of(mine, |flow| 1e6 * busiest(flow)));
        let alone = if name.ends_with("parallel") { "1_parallel" } else { "1" };
        let Some((_, alone)) = flows.iter().find(|(name, _)| *name == alone) else { continue };
        if mine[0].cpu_s_per_tx.len() > 1 {
            let share = ratios(&of(mine, |flow| flow.tps), &of(alone, |flow| flow.tps));
            add("share_on_2_shared_cores", "ratio", share);
            add("cpu_share", "ratio", ratios(&of(alone, busiest), &of(mine, busiest)));
        }
    }
    figures
}
