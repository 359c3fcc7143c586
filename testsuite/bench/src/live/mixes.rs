//! Transactions other than transfers: the rate of each kind that four validators and a fullnode sustain.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

use super::{
    Plan,
    generator::LATENCY_MAX,
    subject::{Shape, Subject},
};
use crate::Figure;
use slipnet::{
    load::{self, Found, LoadOptions, Rule, SaturationOptions, Workload},
    progress::Progress,
};

const WORKLOADS: [Workload; 3] = [Workload::Erc20, Workload::Amm, Workload::Storage];
/// The first rate that is tried, per second.
const START: u32 = 500;
/// The longest time of one step, and of all steps of a workload.
const STEP: Duration = Duration::from_secs(6);
const SEARCH_MAX: Duration = Duration::from_secs(150);

pub(super) async fn run(plan: &Plan, dir: &Path, progress: Progress) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for workload in WORKLOADS {
        let name = workload.name();
        progress.step(&format!("the rate of {name} that is sustained"));
        let subject = Subject::devnet(Shape::default(), &dir.join(name)).await?;
        tokio::time::sleep(plan.flood_warm).await;
        let validators = subject.nodes().iter().take(Shape::default().validators as usize);
        let options = LoadOptions {
            workload: workload.into(),
            accounts: subject.accounts.clone(),
            submit: validators.map(|node| node.rpc().clone()).collect(),
            ..LoadOptions::default()
        };
        let rule = Rule { p99_ms_max: LATENCY_MAX.as_secs_f64() * 1e3, ..Rule::default() };
        let search =
            SaturationOptions { rule, start: START, step: STEP, until: Some(Instant::now() + SEARCH_MAX) };
        match load::saturate(&options, search, Progress::Quiet).await?.found {
            Found::Sustained { rate, .. } => {
                figures.push(Figure::new(format!("sustained_tps.{name}"), "1/s", vec![f64::from(rate)]));
            }
            Found::AtLeast { rate } if rate > 0 => {
                figures.push(Figure::new(
                    format!("sustained_at_least_tps.{name}"),
                    "1/s",
                    vec![f64::from(rate)],
                ));
            }
            found => bail!("the chain sustains no rate of {name}: {found:?}"),
        }
        subject.stop().await?;
    }
    Ok(figures)
}
