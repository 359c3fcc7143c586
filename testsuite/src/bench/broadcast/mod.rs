//! `slipnet bench broadcast`: what it costs to code, check, pass on and decode a payload, for each codec.
//!
//! Beside it the path that the paper on network coding describes, in constant-time arithmetic and chunk by chunk. All on one thread; in
//! each run all operations are measured one after the other.

mod codecs;
mod reference;

pub(crate) use codecs::{Operations, timed};

use anyhow::Result;

use super::{BenchOptions, Report};
use crate::progress::Progress;

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    let runs = if options.quick { 3 } else { 21 };
    Ok(Report { bench: "broadcast", runs, figures: codecs::figures(runs, progress)?, notes: notes() })
}

fn notes() -> Vec<String> {
    [
        "us are microseconds on one thread; verify_N is a chunk's share of N that are verified as one, decoding of the plan's points aside.",
        "rlnc: a receiver verifies the first chunk alone (first), decodes once enough are here (decode), and then compares the payload with the",
        "commitments to serve all of it (vouch). The ratio has all three, opening the plan (open) and parsing all chunks (accept_all).",
        "reed_solomon: accept_all checks every shard's path; decode restores all data shards from parity, which is the worst case.",
        "reference: 10 pieces of scalars of 31 bytes, constant-time multiplication, one chunk after the other, Gauss's elimination.",
    ]
    .map(str::to_owned)
    .to_vec()
}
