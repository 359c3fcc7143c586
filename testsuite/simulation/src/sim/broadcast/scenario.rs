//! [`Scenario`]: the settings of one run of the event simulation, and [`Outcome`]: its result.

use slipstream_coding::CodecKind;

/// One batch among many nodes.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The number of nodes, including validators.
    pub nodes: usize,
    /// The number of validators: all of them have the batch, one leads, and the others lend their up-links.
    pub validators: usize,
    /// Connections that each node opens to nodes drawn at random; it accepts as many on average.
    pub outbound: usize,
    /// How the leader codes the batch's body.
    pub codec: CodecKind,
    /// Bytes of the encoded body.
    pub payload_bytes: usize,
    /// Bits per second of each node's up-link. Down-links have twice that.
    pub uplink_bits_per_second: u64,
    /// The share of the fullnodes that are connected and send nothing.
    pub silent: f64,
    /// The share of the fullnodes that send polluted messages.
    pub polluters: f64,
    /// The seed of positions, neighbours, habits, and all nodes' secrets.
    pub seed: u64,
}

impl Scenario {
    /// An honest network of `nodes` nodes.
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

/// The honest fullnodes' results.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Milliseconds from the certificate until half of the honest fullnodes had the body.
    pub p50_ms: f64,
    /// Milliseconds until 99 % of them had the body.
    pub p99_ms: f64,
    /// Bytes that an honest fullnode sent on average, in payloads.
    pub sent_payloads: f64,
    /// Honest fullnodes that had to fetch the body from sync in the end.
    pub fetched: usize,
    /// How often an honest fullnode asked for missing chunks, on average.
    pub pulls: f64,
    /// Honest nodes that some node cut off.
    pub wronged: usize,
    /// Polluters that some node cut off.
    pub cut_off: usize,
}
