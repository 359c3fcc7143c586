//! Chains that are flooded with transfers, in turns, each freshly started and alone on the machine.

use std::path::Path;

use anyhow::Result;

use super::{
    Plan, flood,
    subject::{Shape, Subject},
};
use crate::{Figure, harness::ratios};
use slipnet::progress::Progress;

/// A chain that is flooded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Geth,
    Slipstream { validators: u32, fullnodes: u32 },
}

const KINDS: [(&str, Kind); 6] = [
    ("geth", Kind::Geth),
    ("1v", Kind::Slipstream { validators: 1, fullnodes: 0 }),
    ("1v_1f", Kind::Slipstream { validators: 1, fullnodes: 1 }),
    ("4v_0f", Kind::Slipstream { validators: 4, fullnodes: 0 }),
    ("4v", Kind::Slipstream { validators: 4, fullnodes: 1 }),
    ("7v", Kind::Slipstream { validators: 7, fullnodes: 1 }),
];

pub(super) async fn run(plan: &Plan, dir: &Path, progress: Progress) -> Result<Vec<Figure>> {
    // The floods of each kind, run by run; none of geth if it is not installed.
    let mut floods: [Vec<f64>; KINDS.len()] = Default::default();
    for run in 1..=plan.runs {
        for ((name, kind), floods) in KINDS.iter().zip(&mut floods) {
            progress.step(&format!("flooding {name}, run {run} of {}", plan.runs));
            let dir = dir.join(format!("{name}-{run}"));
            let subject = match *kind {
                Kind::Geth => Subject::geth(&dir).await?,
                Kind::Slipstream { validators, fullnodes } => {
                    Some(Subject::devnet(Shape { validators, fullnodes, ..Shape::default() }, &dir).await?)
                }
            };
            let Some(subject) = subject else { continue };
            tokio::time::sleep(plan.flood_warm).await;
            floods.push(flood(&subject, plan).await?);
            subject.stop().await?;
        }
    }
    let mut figures = Vec::new();
    for ((name, _), tps) in KINDS.iter().zip(&floods) {
        if !tps.is_empty() {
            figures.push(Figure::new(format!("flood_tps.{name}"), "1/s", tps.clone()));
        }
        if *name != "geth" && !floods[0].is_empty() {
            figures.push(Figure::new(format!("tps_vs_geth.{name}"), "ratio", ratios(tps, &floods[0])));
        }
    }
    Ok(figures)
}
