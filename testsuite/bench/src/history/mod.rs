//! The cost of past states: point reads a few batches back and very far back, beside point reads of the head; and their
//! cost for commits.

mod copies;
mod cost;
mod deep;
mod read;
mod recent;

use anyhow::Result;

use super::{Aim, BenchOptions, Figure, Report, harness::kept::WorkDir};
use slipnet::progress::Progress;

/// The size of the measurements.
struct Plan {
    rounds: usize,
    recent: recent::Plan,
    deep: deep::Plan,
    /// Sizes of the stores whose commits are measured.
    cost_keys: Vec<u64>,
}

impl Plan {
    fn new(options: &BenchOptions) -> Plan {
        let cost_keys = match (&options.keys[..], options.quick) {
            ([], true) => vec![100_000],
            ([], false) => vec![1_000_000, 10_000_000],
            (keys, _) => keys.to_vec(),
        };
        if options.quick {
            return Plan {
                rounds: 3,
                recent: recent::Plan { keys: 100_000, updates: 200, reads: 5_000 },
                deep: deep::Plan { keys: 100_000, batches: 10_000, updates: 20, reads: 500 },
                cost_keys,
            };
        }
        Plan {
            rounds: 9,
            recent: recent::Plan { keys: 1_000_000, updates: 1_000, reads: 20_000 },
            deep: deep::Plan { keys: 1_000_000, batches: 100_000, updates: 20, reads: 2_000 },
            cost_keys,
        }
    }
}

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    let place = WorkDir::of(options)?;
    let plan = Plan::new(options);
    let mut figures = recent::measure(&plan.recent, plan.rounds, &place, progress)?;
    figures.extend(deep::measure(&plan.deep, plan.rounds, &place, progress)?);
    figures.extend(cost::measure(&plan.cost_keys, plan.rounds, &place, progress)?);
    let notes = vec![
        format!(
            "recent: {} warm point reads a round, one after the other, on {} keys and batches of {} uniform updates, {} batches behind the head; \
             recent_changed: of keys that changed since",
            plan.recent.reads,
            plan.recent.keys,
            plan.recent.updates,
            recent::BEHIND
        ),
        format!(
            "deep: {} point reads a round on {} keys after {} batches of {} updates, all of them kept, each read at a random depth; read past the \
             operating system's cache with a block cache that was emptied before; deep_with_view: the view of each batch is made in the time, too",
            plan.deep.reads, plan.deep.keys, plan.deep.batches, plan.deep.updates
        ),
        "commit_cost: durable batches of 10k uniform updates with `state_history: all` against 0 on copies of one store, in turn; \
         commit_cost_window: with a window of 256 batches; commit_cost without a size is that of the largest store"
            .to_owned(),
    ];
    Ok(Report {
        bench: "history",
        runs: plan.rounds,
        figures: figures.into_iter().map(aimed).collect(),
        notes,
    })
}

fn aimed(figure: Figure) -> Figure {
    match figure.name() {
        "read_vs_head.recent" => figure.aim(Aim::AtMost(1.5)),
        "read_vs_head.deep" => figure.aim(Aim::AtMost(4.0)),
        "commit_cost" | "commit_cost.1m" | "commit_cost.10m" => figure.aim(Aim::AtMost(1.25)),
        _ => figure,
    }
}
