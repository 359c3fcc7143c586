//! `slipnet bench live`: the chain itself, from a wallet's JSON-RPC array to the certificate, beside geth under the
//! same load.
//!
//! ```text
//!  generator (signed transfers) ─┬▶ floods    geth --dev │ one validator │ four │ seven, with and without a fullnode; in turns, each alone
//!                                ├▶ rates     four and a fullnode: the sustained rate, shares of it, and a few transfers a second
//!                                │              └▶ a node that replays that chain, and its work in one process: the cost of consensus
//!                                ├▶ links     the same chain, with nodes that are 25 and 50 ms apart
//!                                └▶ genesis   a chain of a thousand accounts and one of half a million, side by side
//!  slipnet load ───────────────────▶ mixes     the sustained rate of other transactions
//! ```

mod figures;
mod floods;
mod floor;
mod generator;
mod genesis;
mod links;
mod mixes;
mod rates;
mod subject;

use std::{path::Path, time::Duration};

use anyhow::{Result, ensure};
use slipnet::progress::Progress;

use self::{
    generator::{ARRAY, Offer, Pace, offer},
    subject::Subject,
};
use super::{BenchOptions, Figure, Report};

/// The parts in order. A quick run has the first two.
const PARTS: [&str; 5] = ["floods", "rates", "links", "mixes", "genesis"];
/// The most uncommitted transfers of a flood.
const OUTSTANDING_MAX: usize = 5_000;
/// The rate of a light load, whose batches have few transfers, sent one by one.
const IDLE_TPS: f64 = 100.0;

struct Plan {
    runs: usize,
    /// The time from a chain's start to its load: nodes measure their machine in the first minute.
    flood_warm: Duration,
    warm: Duration,
    flood: usize,
    seconds: f64,
    /// Accounts of the large genesis. A genesis is limited to 32 MiB, which is some 540,000 accounts.
    accounts: u32,
}

const FULL: Plan = Plan {
    runs: 3,
    flood_warm: Duration::from_secs(20),
    warm: Duration::from_secs(70),
    flood: 40_000,
    seconds: 12.0,
    accounts: 500_000,
};
const QUICK: Plan = Plan {
    runs: 1,
    flood_warm: Duration::ZERO,
    warm: Duration::ZERO,
    flood: 8_000,
    seconds: 4.0,
    accounts: 50_000,
};

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    let plan = if options.quick { QUICK } else { FULL };
    let parts = parts(options)?;
    let dir = options.temporary_dir()?;
    let runtime = tokio::runtime::Handle::current();
    let mut figures = Vec::new();
    for part in &parts {
        progress.step(&format!("part {part}"));
        figures.extend(runtime.block_on(run_part(part, &plan, dir.path(), progress))?);
    }
    let notes = figures::notes(&parts, &figures, &plan, options.quick);
    let figures = figures.into_iter().map(figures::aimed).collect();
    Ok(Report { bench: "live", runs: plan.runs, figures, notes })
}

/// Returns the parts to measure.
fn parts(options: &BenchOptions) -> Result<Vec<&'static str>> {
    let only = &options.only;
    let unknown = only.iter().find(|name| !PARTS.contains(&name.as_str()));
    ensure!(unknown.is_none(), "--only {}: the parts are {}", only.join(","), PARTS.join(", "));
    let is_chosen = |index: usize, part: &str| match only.is_empty() {
        true => !options.quick || index < 2,
        false => only.iter().any(|name| name == part),
    };
    Ok(PARTS
        .iter()
        .enumerate()
        .filter(|(index, part)| is_chosen(*index, part))
        .map(|(_, part)| *part)
        .collect())
}

async fn run_part(part: &str, plan: &Plan, dir: &Path, progress: Progress) -> Result<Vec<Figure>> {
    match part {
        "floods" => floods::run(plan, dir, progress).await,
        "rates" => rates::run(plan, dir, progress).await,
        "links" => links::run(plan, dir, progress).await,
        "mixes" => mixes::run(plan, dir, progress).await,
        _ => genesis::run(plan, dir, progress).await,
    }
}

/// Returns a flooded chain's transfers per second.
async fn flood(subject: &Subject, plan: &Plan) -> Result<f64> {
    let pace = Pace::Flood { outstanding_max: OUTSTANDING_MAX };
    let flood = Offer { transfers: plan.flood, array: ARRAY, pace };
    Ok(offer(&subject.chain, &subject.accounts, flood).await?.tps)
}
