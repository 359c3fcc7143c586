//! `slipnet bench broadcast`: the cost to code, check, forward and decode a payload, for each codec, and each codec's
//! performance among sixty nodes.
//!
//! The codecs are compared with a reference: the algorithm of the paper on network coding, in constant-time arithmetic
//! and chunk by chunk. All run on one thread; each run measures all operations one after another. The mesh is compared
//! with flooding, which it replaced.

mod codecs;
mod fabric;
mod reference;

use anyhow::Result;

use super::{BenchOptions, Report};
use slipnet::progress::Progress;

/// The block of the paper on network coding, and a megabyte.
const SIZES: [(&str, usize); 2] = [("119k", 121_600), ("1m", 1 << 20)];

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    let (runs, seeds) = if options.quick { (3, 1) } else { (21, 3) };
    let mut figures = codecs::figures(runs, progress)?;
    figures.extend(fabric::figures(seeds, progress)?);
    Ok(Report { bench: "broadcast", runs, figures, notes: notes() })
}

fn notes() -> Vec<String> {
    [
        "us are microseconds on one thread; verify_N is a chunk's share of N that are verified as one, decoding of the plan's points aside.",
        "rlnc: a receiver verifies the first chunk alone (first), decodes once enough are here (decode), and then compares the payload with the",
        "commitments to serve all of it (vouch). The ratio has all three, opening the plan (open) and parsing all chunks (accept_all).",
        "reed_solomon: accept_all checks every shard's path; decode restores all data shards from parity, which is the worst case.",
        "reference: 10 pieces of scalars of 31 bytes, constant-time multiplication, one chunk after the other, Gauss's elimination.",
        "fabric: 60 nodes (4 validators, 8 connections out of each), the network and the mesh that ship, in virtual time on a wire in memory: up-links of",
        "50 Mbit/s, down-links of 100, 10 to 150 ms between nodes, an up-link drops what would wait for 350 ms. p50, p99: from the certificate to the body, of 4",
        "batches. sent: bytes of a node for a batch, in payloads. lost: of all datagrams. cpu: of this process for one node and batch, QUIC and all; coding: of it the",
        "codec's, as measured before. flood: who has a batch sends it whole to every peer, once. p50_vs_events: to the event simulation of `slipnet sim broadcast`.",
    ]
    .map(str::to_owned)
    .to_vec()
}
