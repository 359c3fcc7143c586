//! `slipnet bench growth`: the growth on disk of everything but the state as a ledger grows, and which compression
//! would pay.
//!
//! ```text
//!  chain (signed, executed, certified in process) ─▶ store ─▶ its files, by column      bytes per batch and per transaction
//!                                                      └────▶ contents of its blobs ─┐
//!  mainnet blocks, executed ───────────────────────────────▶ contents ───────────────┴▶ ratio and CPU of each way to pack them
//! ```

mod chains;
mod columns;
mod compression;
mod fields;
mod samples;
mod ways;

use anyhow::Result;
use slipstream_types::BlobKind;

use self::chains::{Chain, Traffic};
use super::{BenchOptions, Figure, Report, mainnet};
use slipnet::progress::Progress;

/// The blobs of a batch, in the order of figures.
const KINDS: [BlobKind; 4] = [BlobKind::Body, BlobKind::Receipts, BlobKind::Delta, BlobKind::Hints];

/// The size of the measurements.
#[derive(Clone, Copy, Debug)]
struct Size {
    /// The number of alternating runs of each timing.
    runs: usize,
    /// Batches of a chain with full batches.
    full_batches: u64,
    /// Batches of the chain with one transaction in each.
    single_batches: u64,
    senders: u32,
    /// Bytes of content of one kind that a dictionary is trained on, from the chain's first half.
    train_bytes_max: usize,
    /// Bytes of content of one kind that is packed, from the chain's second half.
    test_bytes_max: usize,
}

const QUICK: Size = Size {
    runs: 3,
    full_batches: 320,
    single_batches: 4_000,
    senders: 1_000,
    train_bytes_max: 4 << 20,
    test_bytes_max: 1 << 20,
};
const FULL: Size = Size {
    runs: 9,
    full_batches: 4_000,
    single_batches: 20_000,
    senders: 10_000,
    train_bytes_max: 16 << 20,
    test_bytes_max: 8 << 20,
};

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    let size = if options.quick { QUICK } else { FULL };
    let dir = options.temporary_dir()?;
    let mut report = Report { bench: "growth", runs: size.runs, figures: Vec::new(), notes: notes(&size) };
    if options.quick {
        let repeat = "--quick: a look; so few senders repeat in a group and in a dictionary that deltas pack better than they would";
        report.notes.push(repeat.to_owned());
    }
    let mut packed = Vec::new();
    for &traffic in Traffic::ALL {
        progress.step(&format!("making a chain: {}", traffic.name()));
        let chain = Chain::make(traffic, &size, &dir.path().join(traffic.name()), progress)?;
        report.figures.extend(columns::measure(&chain)?);
        progress.step("packing its blobs");
        for samples in samples::of_chain(&chain, &size)? {
            packed.extend(compression::measure(&samples, size.runs)?);
        }
        chain.remove()?;
    }
    match mainnet::data_dir(options.data.as_deref()) {
        Ok(data) => {
            progress.step("packing mainnet blocks");
            for samples in samples::of_mainnet(&data)? {
                packed.extend(compression::measure(&samples, size.runs)?);
            }
        }
        Err(error) if options.data.is_some() => return Err(error),
        Err(error) => {
            progress.step(&format!("skipping mainnet blocks: {error}"));
            report.notes.push(format!("mainnet blocks were left out: {error}"));
        }
    }
    report.figures.append(&mut packed);
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
        format!(
            "ratio: content over stored bytes, {} of them for each batch's kind and length; ns: CPU of one thread per byte of \
             content, in to pack, out to unpack",
            ways::PREFIX_BYTES
        ),
        format!(
            "zstd: level {}; dictionary: {} KiB, trained on the chain's first half, the second half is packed (mainnet: every other \
             block, years apart); groups: {} batches in one frame, all of which is unpacked to read one",
            ways::LEVEL,
            ways::DICTIONARY_BYTES >> 10,
            ways::GROUP_BATCHES
        ),
        "signatures_apart: r and s stored as they are, the rest by zstd; fields: the rest with each field of all transactions side \
         by side; signature_bound: the ratio if all but r and s took nothing"
            .to_owned(),
    ]
}
