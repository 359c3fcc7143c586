//! `slipnet bench predictors`: the blocks of `slipnet bench hints`, on its cold store, replayed without hints.
//! Predictors derive their reads from their transactions and from their contracts' bytecode. The figures compare the
//! gain with that of hints.

mod programs;
mod replay;
mod score;

use std::collections::BTreeMap;

use anyhow::Result;

use self::{
    programs::Programs,
    replay::{Bench, Variant, Way},
};
use super::{
    Aim, BenchOptions, Figure, Report,
    harness::ratios,
    hints::{ColdState, Cost, Size},
};
use slipnet::progress::Progress;

/// Blocks that are prefetched while one executes.
const READAHEADS: [usize; 4] = [1, 2, 4, 8];
/// The readahead of a node's default configuration, for which the aim holds.
const READAHEAD: usize = 8;

/// The costs of each variant, run by run.
type Costs = BTreeMap<Variant, Vec<Cost>>;

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    let size = Size::of(options);
    let state = ColdState::open(options, &size, progress)?;
    progress.step("analysing contracts");
    let programs = Programs::of(&state.cases);
    let bench = Bench::new(&state, &programs)?;
    let mut costs = Costs::new();
    for run in 0..size.runs {
        progress.step(&format!("replaying {} blocks, round {} of {}", state.cases.len(), run + 1, size.runs));
        let mut variants = Variant::all();
        let count = variants.len();
        variants.rotate_left(run % count);
        for variant in variants {
            costs.entry(variant).or_default().push(bench.measure(variant)?);
        }
    }
    let mut figures =
        vec![gain(&costs, Way::Full, READAHEAD, "share_of_hint_gain".into()).aim(Aim::AtLeast(0.6))];
    for way in Way::FORETOLD {
        let named = |readahead: &usize| format!("share_of_hint_gain.{}.readahead_{readahead}", way.name());
        figures.extend(READAHEADS.iter().map(|readahead| gain(&costs, way, *readahead, named(readahead))));
        figures.extend(bench.score(way)?);
    }
    let keys: usize = state.cases.iter().map(|case| case.keys.len()).sum();
    for (variant, costs) in &costs {
        let of = |value: fn(&Cost) -> f64| costs.iter().map(value).collect::<Vec<_>>();
        let per_key = |values: Vec<f64>| values.iter().map(|value| value / keys as f64).collect::<Vec<_>>();
        let name = variant.name();
        figures.extend([
            Figure::new(format!("ms.{name}"), "ms", of(|cost| 1e3 * cost.seconds)),
            Figure::new(format!("reads_per_key.{name}"), "ratio", per_key(of(|cost| cost.disk_reads as f64))),
            Figure::new(format!("cpu_us_per_key.{name}"), "us", per_key(of(|cost| 1e6 * cost.cpu_s))),
        ]);
    }
    let notes = vec![
        format!(
            "{} blocks, {keys} distinct keys, in the store of bench hints ({} rows; O_DIRECT, block cache emptied before the first block); a \
             block is foretold while those before it execute, N blocks ahead (readahead_N)",
            state.cases.len(),
            state.rows,
        ),
        "share_of_hint_gain: (cold - foretold) / (cold - hints) of the time for all blocks, both with the same readahead; at readahead 8"
            .into(),
        "programs are built before the timing, from the contracts that the blocks execute, and no jump was observed: contracts of a \
         running node come to theirs after some calls"
            .into(),
        "blocks lie apart, so each starts from the state before it; on a chain the state may be some batches old, and more guesses are \
         wrong"
            .into(),
        "accounts: what stands in the transactions; no_slot_reads: programs that go no further than where a slot's value is needed; \
         full: programs that read slots; predicted_share: of the rows and code that a block reads; wasted_share: of what is foretold"
            .into(),
    ];
    Ok(Report { bench: "predictors", runs: size.runs, figures, notes })
}

/// Returns the gain over a cold replay as a share of the gain from hints, run by run.
fn gain(costs: &Costs, way: Way, readahead: usize, name: String) -> Figure {
    let seconds = |variant| costs[&variant].iter().map(|cost: &Cost| cost.seconds).collect::<Vec<_>>();
    let cold = seconds(Variant::Cold);
    let gained = |way| {
        let ahead = seconds(Variant::Ahead(way, readahead));
        cold.iter().zip(ahead).map(|(cold, ahead)| cold - ahead).collect::<Vec<_>>()
    };
    Figure::new(name, "ratio", ratios(&gained(way), &gained(Way::Hints)))
}
