//! `slipnet bench hints`: mainnet blocks replayed on a store that is larger than its cache, cold and with hints, beside what they cost
//! in memory (CPU only) and what reading their working set costs (I/O only).

mod cold;
mod filler;
mod meter;
mod replay;

use std::collections::BTreeMap;

use alloy_primitives::Bytes;
use anyhow::{Result, ensure};
use slipstream_storage::Store;
use slipstream_types::{Digest, StateKey, StateValue};

use self::{
    cold::World,
    filler::Rows,
    meter::Cost,
    replay::{Case, Variant},
};
use super::{Aim, BenchOptions, Figure, Report, harness::ratios, mainnet};
use crate::progress::Progress;

/// Before EIP-161 a state has empty accounts, which no delta can say.
const FIRST_BLOCK: u64 = 2_675_000;
/// The first block of the London fork, from which on the figures count.
const LONDON: u64 = 12_965_000;

/// How much is measured.
struct Size {
    runs: usize,
    /// Rows beside those that blocks read.
    filler: u64,
}

const FULL: Size = Size { runs: 5, filler: 20_000_000 };
const QUICK: Size = Size { runs: 3, filler: 1_000_000 };

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    let size = if options.quick { QUICK } else { FULL };
    let data = mainnet::data_dir(options.data.as_deref())?;
    progress.step("loading blocks");
    let cases = load(&data)?;
    let is_kept = options.dir != std::path::Path::new(".");
    let temporary = (!is_kept).then(|| tempfile::tempdir_in(&options.dir)).transpose()?;
    let dir = temporary.as_ref().map_or(options.dir.as_path(), |dir| dir.path());
    let (rows, codes) = contents(&cases, size.filler);
    let store = cold::open(dir, &rows, &codes, progress)?;
    let worlds = worlds(&store, &cases)?;
    let mut costs: BTreeMap<Variant, Vec<Vec<Cost>>> = BTreeMap::new();
    for run in 0..size.runs {
        progress.step(&format!("replaying {} blocks, round {} of {}", cases.len(), run + 1, size.runs));
        // Who comes first changes, so that what the disk still has to do after another is shared.
        let mut variants = Variant::ALL;
        variants.rotate_left(run % Variant::ALL.len());
        for variant in variants {
            costs.entry(variant).or_default().push(variant.measure(&store, &cases, &worlds)?);
        }
    }
    report(size.runs, &cases, &costs, rows.len())
}

fn load(data: &std::path::Path) -> Result<Vec<Case>> {
    let blocks = mainnet::load(data, FIRST_BLOCK)?;
    ensure!(!blocks.is_empty(), "there are no blocks from {FIRST_BLOCK} on in {}", data.display());
    blocks.into_iter().map(Case::new).collect()
}

/// All rows of a cold store, and all code.
fn contents(cases: &[Case], filler: u64) -> (Rows, BTreeMap<Digest, Bytes>) {
    let (mut real, mut codes) = (Vec::<(StateKey, StateValue)>::new(), BTreeMap::new());
    for case in cases {
        let mask = cold::mask(case.block.env.number);
        real.extend(case.block.state.iter().map(|(key, value)| (cold::masked(&mask, key), *value)));
        codes.extend(case.block.state.codes().map(|(hash, code)| (*hash, code.clone())));
    }
    (Rows::new(real, filler), codes)
}

fn worlds(store: &Store, cases: &[Case]) -> Result<Vec<World>> {
    cases.iter().map(|case| World::new(store, case.block.env.number, case.block.state.clone())).collect()
}

/// What all blocks cost, run by run.
fn totals(costs: &BTreeMap<Variant, Vec<Vec<Cost>>>, variant: Variant) -> Vec<Cost> {
    costs[&variant].iter().map(|blocks| blocks.iter().copied().sum()).collect()
}

fn report(
    runs: usize,
    cases: &[Case],
    costs: &BTreeMap<Variant, Vec<Vec<Cost>>>,
    rows: u64,
) -> Result<Report> {
    let keys: usize = cases.iter().map(|case| case.keys.len()).sum();
    let seconds = |variant| totals(costs, variant).iter().map(|cost| cost.seconds).collect::<Vec<_>>();
    let (cold, pipelined) = (seconds(Variant::Cold), seconds(Variant::Pipelined));
    let floors: Vec<f64> =
        seconds(Variant::CpuOnly).iter().zip(seconds(Variant::IoOnly)).map(|(cpu, io)| cpu.max(io)).collect();
    let mut figures = vec![
        Figure::new("time_vs_floor.pipelined", "ratio", ratios(&pipelined, &floors)).aim(Aim::AtMost(1.15)),
        Figure::new("speedup.isolated", "ratio", ratios(&cold, &pipelined)).aim(Aim::AtLeast(4.0)),
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

/// How long hints are, and what they cost who makes them.
fn made_figures(cases: &[Case]) -> Result<Vec<Figure>> {
    let made = cases.iter().map(Case::make_hints).collect::<Result<Vec<_>>>()?;
    let (execute_s, make_s) =
        made.iter().fold((0.0, 0.0), |(a, b), made| (a + made.execute_s, b + made.make_s));
    let since_london: Vec<f64> = cases
        .iter()
        .zip(&made)
        .filter(|(case, _)| case.block.env.number >= LONDON)
        .map(|(_, made)| made.bytes as f64)
        .collect();
    let mut figures =
        vec![Figure::new("maker_cost_share", "ratio", vec![make_s / execute_s]).aim(Aim::AtMost(0.03))];
    if !since_london.is_empty() {
        figures.push(Figure::new("bytes_median", "bytes", since_london).aim(Aim::AtMost(17_408.0)));
    }
    let share = |(case, made): (&Case, &replay::MadeHints)| {
        made.bytes as f64 / case.block.payload_bytes.max(1) as f64
    };
    figures.push(Figure::new("bytes_vs_payload", "ratio", cases.iter().zip(&made).map(share).collect()));
    Ok(figures)
}
