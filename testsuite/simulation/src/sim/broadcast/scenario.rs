//! [`Scenario`]: the settings of one run of the event simulation, and [`Outcome`]: its result.

use slipstream_coding::CodecKind;

/// One batch among many nodes.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// All nodes, validators among them.
    pub nodes: usize,
    /// Of these, validators: they have the batch, one leads, the others lend.
    pub validators: usize,
    /// Connections that each node makes to others drawn at random; as many come in, on average.
    pub outbound: usize,
    /// How the leader codes the batch's body.
    pub codec: CodecKind,
    /// Bytes of the body as it is sent.
    pub payload_bytes: usize,
    /// Bits per second of each node's up-link. Down-links have twice as many.
    pub uplink_bits_per_second: u64,
    /// The share of the fullnodes that is connected and says nothing.
    pub silent: f64,
    /// The share of the fullnodes that pollutes.
    pub polluters: f64,
    /// Of places, neighbours, habits, and all nodes' secrets.
    pub seed: u64,
}

impl Scenario {
    /// So many nodes as an honest network has them.
    pub fn honest(nodes: usize, codec: CodecKind, payload_bytes: usize, mbit: u64, seed: u64) -> Scenario {
        Scenario {
            nodes,
            validators: 4,
            outbound: 8,
            codec,
            payload_bytes,
            uplink_bits_per_second: mbit * 1_000_000,
            silent: 0.0,
            polluters: 0.0,
            seed,
        }
    }
}

/// The honest fullnodes' times.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Milliseconds from the certificate until half of them had the body.
    pub p50_ms: f64,
    /// And until 99 % had it.
    pub p99_ms: f64,
    /// Bytes that one of them sent, on average, in payloads.
    pub sent_payloads: f64,
    /// How many had to fetch it in the end.
    pub fetched: usize,
    /// Times that one of them asked for missing chunks, on average.
    pub pulls: f64,
    /// Honest nodes that were cut off by somebody.
    pub wronged: usize,
    /// Polluters that were cut off by somebody.
    pub cut_off: usize,
}
