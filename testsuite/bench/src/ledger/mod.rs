//! `slipnet bench ledger`: blobs appended, served and pruned; state rows read by key. Each is compared with its floor
//! (plain files on the same file system) and its rival (RocksDB without any layer above it), in one process.

mod blobs;
pub(super) mod chain;
mod points;
mod raw;

use anyhow::Result;

use super::{Aim, BenchOptions, Figure, Report};
use slipnet::progress::Progress;

/// The size of the measurements.
#[derive(Clone, Copy, Debug)]
struct Size {
    /// The number of alternating runs of each comparison.
    runs: usize,
    /// Batches in the ledger, of about 120 KiB each.
    batches: u64,
    /// The rows of the state.
    rows: u64,
    /// Cold reads per run and number of threads.
    reads: usize,
}

const QUICK: Size = Size { runs: 5, batches: 2_000, rows: 1_000_000, reads: 5_000 };
const FULL: Size = Size { runs: 5, batches: 10_000, rows: 3_000_000, reads: 40_000 };

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    let size = if options.quick { QUICK } else { FULL };
    let dir = options.temporary_dir()?;
    let mut report = Report { bench: "ledger", runs: size.runs, figures: Vec::new(), notes: Vec::new() };
    blobs::measure(&size, &dir.path().join("blobs"), progress, &mut report)?;
    points::measure(&size, &dir.path().join("points"), progress, &mut report)?;
    Ok(report)
}
