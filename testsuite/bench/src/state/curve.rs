//! The curve from a tree in memory to one that is almost entirely on disk. Store and commits stay the same, with less
//! and less memory for the tree.

use std::path::Path;

use anyhow::Result;

use super::{child::CommitOptions, dir::SizeDir, filled::Filled, meter::Cost};
use crate::{Figure, size::short};
use slipnet::progress::Progress;

/// The points to measure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Curve {
    /// Memory for the tree; 0 is unlimited.
    pub(super) tree_memory_mib: &'static [u64],
    /// The number of passes over the curve.
    pub(super) passes: usize,
    /// Rounds that each process commits before the measured ones: enough to load all of a tree that fits into memory.
    pub(super) warm_rounds: usize,
    /// Measured rounds in each process.
    pub(super) rounds: usize,
}

const UPDATES: usize = 10_000;
const BATCHES: usize = 10;

impl Curve {
    /// Measures the curve, with a process for each sample. Passes begin at alternate ends, so that all points share the
    /// store's changes over time.
    pub(super) fn measure(
        &self,
        size_dir: &SizeDir,
        (store, keys): (&Path, u64),
        progress: Progress,
    ) -> Result<Vec<Figure>> {
        let mut reports = vec![Vec::new(); self.tree_memory_mib.len()];
        for pass in 0..self.passes {
            let mut places: Vec<usize> = (0..self.tree_memory_mib.len()).collect();
            if pass % 2 == 1 {
                places.reverse();
            }
            for place in places {
                let tree_memory_mib = self.tree_memory_mib[place];
                let of = format!("{} of {}", pass + 1, self.passes);
                progress.step(&format!("committing with {tree_memory_mib} MiB for the tree, pass {of}"));
                let filled = Filled {
                    dir: store.to_owned(),
                    keys,
                    after: 0,
                    tree_memory_mib,
                    updates: UPDATES,
                    batches: BATCHES,
                };
                let options = CommitOptions { filled, warm_rounds: self.warm_rounds, rounds: self.rounds };
                let after = size_dir.take_number(options.total_batches())?;
                let filled = Filled { after, ..options.filled };
                reports[place].push(CommitOptions { filled, ..options }.in_child()?);
            }
        }
        let mut figures = Vec::new();
        for (mib, reports) in self.tree_memory_mib.iter().zip(&reports) {
            let costs = || reports.iter().flat_map(|report| &report.costs);
            let mut add = |name: &str, unit, samples| {
                figures.push(Figure::new(format!("curve.{}.{mib}.{name}", short(keys)), unit, samples));
            };
            add("updates_per_s", "1/s", costs().map(Cost::updates_per_s).collect());
            add("cpu_per_update", "us", costs().map(Cost::cpu_us_per_update).collect());
            add("block_reads_per_update", "", reports.iter().map(|it| it.block_reads_per_update).collect());
            add("peak_mib", "MiB", reports.iter().map(|report| report.peak_mib).collect());
        }
        Ok(figures)
    }
}
