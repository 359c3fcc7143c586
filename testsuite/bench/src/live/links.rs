//! Four validators and a fullnode with latency between them.

use std::{path::Path, time::Duration};

use anyhow::Result;

use super::{
    IDLE_TPS, Plan, flood,
    rates::load,
    subject::{Shape, Subject},
};
use crate::Figure;
use slipnet::progress::Progress;

/// One-way latencies between any two nodes.
const ONE_WAY_MS: [u64; 2] = [25, 50];

pub(super) async fn run(plan: &Plan, dir: &Path, progress: Progress) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for ms in ONE_WAY_MS {
        progress.step(&format!("four validators and a fullnode, {ms} ms apart"));
        let shape = Shape { one_way: Some(Duration::from_millis(ms)), ..Shape::default() };
        let subject = Subject::devnet(shape, &dir.join(format!("{ms}ms"))).await?;
        tokio::time::sleep(plan.flood_warm).await;
        let tps = flood(&subject, plan).await?;
        let mut idle = Vec::new();
        for _ in 0..plan.runs {
            idle.push(load(&subject, IDLE_TPS, 1, plan).await?.outcome);
        }
        let quantile = |share| idle.iter().map(|outcome| outcome.quantile_ms(share)).collect();
        figures.push(Figure::new(format!("flood_tps.{ms}ms"), "1/s", vec![tps]));
        figures.push(Figure::new(format!("p50_ms.idle.{ms}ms"), "ms", quantile(0.5)));
        figures.push(Figure::new(format!("p99_ms.idle.{ms}ms"), "ms", quantile(0.99)));
        subject.stop().await?;
    }
    Ok(figures)
}
