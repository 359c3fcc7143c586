//! The table of the isolated blocks.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;

use super::{
    meter::Cost,
    replay::{Case, MadeHints, Variant},
};
use crate::{Aim, Figure, Report, harness::ratios};

/// The first block of the London fork, from which on the length of hints counts.
const LONDON: u64 = 12_965_000;
/// How many times the hints of all blocks are made; the first time also warms the CPU.
const MAKER_ROUNDS: usize = 18;

/// Returns the computing time per key, in memory.
pub(super) fn cpu_per_key(cases: &[Case], costs: &BTreeMap<Variant, Vec<Vec<Cost>>>) -> Duration {
    let seconds = totals(costs, Variant::CpuOnly).iter().map(|cost| cost.seconds).collect();
    Duration::from_secs_f64(Figure::new("", "s", seconds).value() / keys(cases) as f64)
}

fn keys(cases: &[Case]) -> usize {
    cases.iter().map(|case| case.keys.len()).sum()
}

/// Returns the cost of all blocks, run by run.
fn totals(costs: &BTreeMap<Variant, Vec<Vec<Cost>>>, variant: Variant) -> Vec<Cost> {
    costs[&variant].iter().map(|blocks| blocks.iter().copied().sum()).collect()
}

/// Returns the figures of the isolated blocks.
pub(super) fn isolated(
    runs: usize,
    cases: &[Case],
    costs: &BTreeMap<Variant, Vec<Vec<Cost>>>,
    rows: u64,
) -> Result<Report> {
    let keys = keys(cases);
    let seconds = |variant| totals(costs, variant).iter().map(|cost| cost.seconds).collect::<Vec<_>>();
    let (cold, pipelined) = (seconds(Variant::Cold), seconds(Variant::PIPELINED));
    // The way that is fastest over all runs, not the fastest in each run.
    let fastest = |variants: [Variant; 2]| {
        let median = |values: &Vec<f64>| Figure::new("", "s", values.clone()).value();
        let all = variants.map(seconds);
        all.into_iter().min_by(|one, other| median(one).total_cmp(&median(other))).unwrap_or_default()
    };
    let (io_only, isolated) = (fastest(Variant::IO_ONLY), fastest(Variant::ISOLATED));
    let floors: Vec<f64> =
        seconds(Variant::CpuOnly).iter().zip(io_only).map(|(cpu, io)| cpu.max(io)).collect();
    let mut figures = vec![
        Figure::new("time_vs_floor.pipelined", "ratio", ratios(&pipelined, &floors)).aim(Aim::AtMost(1.15)),
        Figure::new("speedup.isolated", "ratio", ratios(&cold, &isolated)).aim(Aim::AtLeast(3.5)),
        Figure::new("speedup.pipelined", "ratio", ratios(&cold, &pipelined)).aim(Aim::AtLeast(4.5)),
    ];
    for variant in Variant::ALL {
        let name = variant.name();
        let of = |value: &dyn Fn(&Cost) -> f64| totals(costs, variant).iter().map(value).collect::<Vec<_>>();
        figures.extend([
            Figure::new(format!("ms.{name}"), "ms", of(&|cost| 1e3 * cost.seconds)),
            Figure::new(
                format!("reads_per_key.{name}"),
                "ratio",
                of(&|cost| cost.disk_reads as f64 / keys as f64),
            ),
            Figure::new(format!("cpu_us_per_key.{name}"), "us", of(&|cost| 1e6 * cost.cpu_s / keys as f64)),
        ]);
    }
    figures.extend(made_figures(cases)?);
    let mut notes = vec![format!(
        "{} blocks, {keys} distinct keys, in a store of {rows} rows; O_DIRECT, block cache of index, filters and 16 MiB, emptied \
         before each block (pipelined: before the first); reads are of data blocks, CPU is of all threads",
        cases.len(),
    )];
    notes.push(format!(
        "{:>10} {:>6} {:>9} {:>9} {:>9} {:>9} {:>12}",
        "block", "keys", "cold ms", "hint ms", "io ms", "cpu ms", "reads/key"
    ));
    notes.extend(cases.iter().enumerate().map(|(index, case)| {
        let of = |variant, value: fn(&Cost) -> f64| {
            Figure::new("", "", costs[&variant].iter().map(|blocks| value(&blocks[index])).collect()).value()
        };
        let ms = |variant| of(variant, |cost| 1e3 * cost.seconds);
        format!(
            "{:>10} {:>6} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>12.2}",
            case.block.env.number,
            case.keys.len(),
            ms(Variant::Cold),
            ms(Variant::Single(16)),
            ms(Variant::IoOnly),
            ms(Variant::CpuOnly),
            of(Variant::Single(16), |cost| cost.disk_reads as f64) / case.keys.len() as f64,
        )
    }));
    Ok(Report { bench: "hints", runs, figures, notes })
}

/// Returns the figures of hints' lengths and of their cost for the maker.
fn made_figures(cases: &[Case]) -> Result<Vec<Figure>> {
    let round = |round| cases.iter().map(|case| case.make_hints(round)).collect::<Result<Vec<_>>>();
    let rounds = (0..MAKER_ROUNDS).map(round).collect::<Result<Vec<_>>>()?;
    let total = |made: &[MadeHints], part: fn(&MadeHints) -> f64| made.iter().map(part).sum::<f64>();
    let sealing = |made: &Vec<MadeHints>| total(made, |it| it.make_s) / total(made, |it| it.execute_s);
    let making = |made: &Vec<MadeHints>| {
        let with = total(made, |it| it.execute_s + it.make_s);
        with / total(made, |it| it.silent_s) - 1.0
    };
    let made = &rounds[0];
    let since_london: Vec<f64> = cases
        .iter()
        .zip(made)
        .filter(|(case, _)| case.block.env.number >= LONDON)
        .map(|(_, made)| made.bytes as f64)
        .collect();
    let of = |name, share: &dyn Fn(&Vec<MadeHints>) -> f64| {
        Figure::new(name, "ratio", rounds.iter().map(share).collect())
    };
    // The mean of two rounds in opposite order.
    let makings: Vec<f64> = rounds.iter().map(making).collect();
    let makings = makings.chunks_exact(2).map(|two| (two[0] + two[1]) / 2.0).collect();
    let maker = Figure::new("maker_cost_share", "ratio", makings).aim(Aim::AtMost(0.05));
    let mut figures = vec![maker, of("seal_cost_share", &sealing)];
    if !since_london.is_empty() {
        figures.push(Figure::new("bytes_median", "bytes", since_london).aim(Aim::AtMost(17_408.0)));
    }
    let share =
        |(case, made): (&Case, &MadeHints)| made.bytes as f64 / case.block.payload_bytes.max(1) as f64;
    figures.push(Figure::new("bytes_vs_payload", "ratio", cases.iter().zip(made).map(share).collect()));
    Ok(figures)
}
