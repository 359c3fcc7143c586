//! Two chains with one validator and one fullnode that differ in the number of accounts in their genesis, under the
//! same light load, in turns.

use std::path::Path;

use anyhow::Result;

use super::{
    IDLE_TPS, Plan,
    rates::{Loaded, load},
    subject::{Shape, Subject},
};
use crate::{Figure, harness::ratios};
use slipnet::progress::Progress;

/// Accounts of the small genesis.
const FEW: u32 = 1_000;

pub(super) async fn run(plan: &Plan, dir: &Path, progress: Progress) -> Result<Vec<Figure>> {
    let of = |accounts| Shape { validators: 1, fullnodes: 1, accounts, ..Shape::default() };
    progress.step(&format!("starting chains of {FEW} and of {} accounts", plan.accounts));
    let few = Subject::devnet(of(FEW), &dir.join("few")).await?;
    let many = Subject::devnet(of(plan.accounts), &dir.join("many")).await?;
    tokio::time::sleep(plan.warm).await;
    let [mut of_few, mut of_many] = [Vec::new(), Vec::new()];
    for run in 1..=plan.runs {
        progress.step(&format!("both in turns, run {run} of {}", plan.runs));
        of_few.push(batch_cpu_ms(&load(&few, IDLE_TPS, 1, plan).await?));
        of_many.push(batch_cpu_ms(&load(&many, IDLE_TPS, 1, plan).await?));
    }
    few.stop().await?;
    many.stop().await?;
    let cost = ratios(&of_many, &of_few);
    Ok(vec![
        Figure::new("genesis_cost", "ratio", cost),
        Figure::new("genesis_batch_cpu_ms.few", "ms", of_few),
        Figure::new("genesis_batch_cpu_ms.many", "ms", of_many),
    ])
}

/// Returns the CPU milliseconds per batch of both nodes together.
fn batch_cpu_ms(loaded: &Loaded) -> f64 {
    1e3 * (loaded.primary.cpu_s + loaded.follower.cpu_s) / loaded.batches
}
