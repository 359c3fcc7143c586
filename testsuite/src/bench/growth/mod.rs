//! `slipnet bench growth`: what everything but the state takes on disk as a ledger grows.
//!
//! ```text
//!  chain (signed, executed, certified in process) ─▶ store ─▶ its files, by column      bytes per batch and per transaction
//! ```

mod chains;
mod columns;

use anyhow::{Context, Result};
use slipstream_types::BlobKind;

use self::chains::{Chain, Traffic};
use super::{BenchOptions, Figure, Report};
use crate::progress::Progress;

/// What a batch holds, in the order of figures.
const KINDS: [BlobKind; 4] = [BlobKind::Body, BlobKind::Receipts, BlobKind::Delta, BlobKind::Hints];

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Size {
    /// Batches of a chain of full batches.
    full_batches: u64,
    /// Batches of the chain with one transaction in each.
    single_batches: u64,
    senders: u32,
}

const QUICK: Size = Size { full_batches: 320, single_batches: 4_000, senders: 1_000 };
const FULL: Size = Size { full_batches: 4_000, single_batches: 20_000, senders: 10_000 };

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    let size = if options.quick { QUICK } else { FULL };
    let dir = tempfile::Builder::new()
        .prefix("slipnet-bench-")
        .tempdir_in(&options.dir)
        .with_context(|| format!("cannot make a directory in {}", options.dir.display()))?;
    let mut report = Report { bench: "growth", runs: 1, figures: Vec::new(), notes: notes(&size) };
    for traffic in Traffic::ALL {
        progress.step(&format!("making a chain: {}", traffic.name()));
        let chain = Chain::make(traffic, &size, &dir.path().join(traffic.name()), progress)?;
        report.figures.extend(columns::measure(&chain)?);
        chain.remove()?;
    }
    Ok(report)
}

fn notes(size: &Size) -> Vec<String> {
    let Size { full_batches, single_batches, senders, .. } = size;
    vec![
        format!(
            "chains: {full_batches} batches of 250 transactions ({senders} senders), and {single_batches} batches of 1 (single); \
             certified, with body, receipts, delta, hints and index; default configuration"
        ),
        "bytes: of the column's files, closed and opened again, so that nothing is in the log alone; compacted: each column's files \
         merged into one level; blobs of the genesis and of the batches that deploy and mint do not count"
            .to_owned(),
        "a certificate has one signature here; each further one is 66 bytes a batch".to_owned(),
    ]
}
