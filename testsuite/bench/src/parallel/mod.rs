//! Batches on two threads beside the same batches on one. They are mainnet blocks, synthetic batches with and without
//! hot spots, and batches with conflicts that are wrong to a known degree, as in Eve's figures.
//!
//! Everything is in memory, so that only the CPU is measured. Each run executes a batch on one thread and on two, one
//! right after another, and every outcome is compared.

mod case;
mod synthetic;

use anyhow::Result;
use slipstream_executor::{ForcedMethod, Workers, announced_conflicts};
use slipstream_types::Conflicts;

use self::case::Case;
use super::{Aim, BenchOptions, Figure, Report, mainnet};
use slipnet::progress::Progress;

/// The first block of 2021.
const BLOCK_2021: u64 = 11_565_019;
/// The first block whose receipts do not depend on the order of execution, and whose state has no empty accounts.
const BLOCK_MIN: u64 = 4_370_000;
/// The threads of every comparison.
const THREADS: usize = 2;
/// Shares of edges that are left out of the graph, and of transactions that get a needless edge.
const ERRORS_PERCENT: [u32; 4] = [1, 10, 50, 100];

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    let runs = if options.quick { 5 } else { 31 };
    let data = mainnet::data_dir(options.data.as_deref())?;
    progress.step("loading blocks");
    let mut blocks = Vec::new();
    for block in mainnet::load(&data, BLOCK_MIN)? {
        let name = format!("mainnet.{}", block.env.number);
        blocks.push(Case::new(name, block.state, block.env, block.transactions, Some(block.gas_used))?);
    }
    progress.step("signing synthetic batches");
    let synthetic = synthetic::cases()?;
    let bench = Measure {
        workers: Workers::new(THREADS)?,
        eager: Workers::new(THREADS)?.eager(ForcedMethod::Ahead),
        runs,
    };
    let mut figures = Vec::new();
    let mut speedups = Vec::new();
    for case in synthetic.iter().chain(&blocks) {
        progress.step(&format!("measuring {}", case.name));
        let speedup = Figure::new(format!("speedup.{}", case.name), "ratio", bench.speedups(case)?);
        speedups.push((case.env.number, speedup.value()));
        figures.push(speedup);
    }
    let (synthetic_speedups, block_speedups) = speedups.split_at(synthetic.len());
    let worst = speedups.iter().map(|(_, speedup)| *speedup).fold(f64::INFINITY, f64::min);
    let mut summary = vec![Figure::new("slowdown_worst", "ratio", vec![worst]).aim(Aim::AtLeast(0.95))];
    if let Some((_, speedup)) = synthetic_speedups.first() {
        summary.push(Figure::new("speedup.conflict_free", "ratio", vec![*speedup]).aim(Aim::AtLeast(1.6)));
    }
    let late = |number: &u64| *number >= BLOCK_2021;
    let samples: Vec<f64> =
        block_speedups.iter().filter(|(number, _)| late(number)).map(|(_, speedup)| *speedup).collect();
    if !samples.is_empty() {
        summary.push(Figure::new("speedup.mainnet_median", "ratio", samples).aim(Aim::AtLeast(1.25)));
    }
    blocks.retain(|case| late(&case.env.number));
    if !blocks.is_empty() {
        progress.step("measuring what the cores allow");
        summary.push(Figure::new("floor.conflict_free", "ratio", bench.floor(&synthetic[..1])?));
        summary.push(Figure::new("floor.mainnet_median", "ratio", bench.floor(&blocks)?));
        progress.step("measuring wrong predictions and the maker's cost");
        summary.extend(bench.predictions(&blocks)?);
        summary.push(bench.maker(&blocks)?);
    }
    summary.append(&mut figures);
    Ok(Report { bench: "parallel", runs, figures: summary, notes: notes(options.quick) })
}

fn notes(quick: bool) -> Vec<String> {
    let mut notes = vec![
        format!("speedup: time of `execute` over time of `execute_parallel` with {THREADS} threads and the exact conflicts, run \
                 by run; all in memory; the sequential fallback is part of it"),
        "conflict_free: 1,000 token transfers between different accounts; hot_N: N % of them to one account, whose balance is \
         one slot; one_payee: plain transfers to one account"
            .to_owned(),
        "floor: twice the time of `execute` over the time of two threads that each execute the whole batch: what the cores allow".to_owned(),
        "mainnet_median: over the blocks from 11,565,019 on; min and max are the worst and the best block".to_owned(),
        "missing_N: N % of the edges left out; surplus_N: N % of the transactions wait for an earlier one at random; \
         announced: what transactions tell by themselves; without the fallback, medians over the same blocks"
            .to_owned(),
        "maker_cost: making the graph, over executing, of which recording the sets of all transactions is a part".to_owned(),
    ];
    if quick {
        notes.push("--quick: a look, with fewer runs".to_owned());
    }
    notes
}

/// Makes a graph for a case.
type Graph = Box<dyn Fn(&Case) -> Conflicts>;

/// The threads that a measurement uses, and its number of runs.
struct Measure {
    workers: Workers,
    /// For comparisons of graphs: these threads must show possible losses, not avoid them.
    eager: Workers,
    runs: usize,
}

impl Measure {
    fn speedups(&self, case: &Case) -> Result<Vec<f64>> {
        case.speedups(&case.conflicts, &self.workers, self.runs)
    }

    /// Returns each case's median of [`Case::floors`].
    fn floor(&self, cases: &[Case]) -> Result<Vec<f64>> {
        let median = |case: &Case| Ok(Figure::new("", "ratio", case.floors(self.runs)?).value());
        cases.iter().map(median).collect()
    }

    /// Returns the median block's speed-up for graphs that are wrong to a known degree.
    fn predictions(&self, blocks: &[Case]) -> Result<Vec<Figure>> {
        let mut graphs: Vec<(String, Graph)> = vec![
            ("exact".to_owned(), Box::new(|case| case.conflicts.clone())),
            ("announced".to_owned(), Box::new(|case| announced_conflicts(&case.transactions))),
        ];
        for percent in ERRORS_PERCENT {
            graphs.push((format!("missing_{percent}"), Box::new(move |case| case.without_edges(percent))));
            graphs.push((format!("surplus_{percent}"), Box::new(move |case| case.with_edges(percent))));
        }
        let mut figures = Vec::new();
        for (name, graph) in graphs {
            let median = |case: &Case| -> Result<f64> {
                let samples = case.speedups(&graph(case), &self.eager, self.runs.div_ceil(3))?;
                Ok(Figure::new("", "ratio", samples).value())
            };
            let medians = blocks.iter().map(median).collect::<Result<_>>()?;
            figures.push(Figure::new(format!("predicted.{name}"), "ratio", medians));
        }
        Ok(figures)
    }

    fn maker(&self, blocks: &[Case]) -> Result<Figure> {
        let median = |case: &Case| -> Result<f64> {
            Ok(Figure::new("", "ratio", case.maker_costs(self.runs)?).value())
        };
        Ok(Figure::new("maker_cost", "ratio", blocks.iter().map(median).collect::<Result<_>>()?))
    }
}
