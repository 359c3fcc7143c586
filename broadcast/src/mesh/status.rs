//! [`MeshStatus`]: the mesh's report to operators.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use slipstream_coding::CodecKind;
use slipstream_types::BatchNumber;

use super::payload::Moved;
use crate::message::Part;

/// Upper bounds of the classes in which times to decode are counted, in milliseconds; one more class has the longer
/// ones.
pub const DECODED_MS: [u64; 10] = [5, 10, 25, 50, 100, 200, 400, 800, 1_600, 3_200];

/// Traffic and incidents since the start.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct MeshStatus {
    /// Bytes of all messages sent.
    pub bytes_sent: u64,
    /// Bytes of chunks, by the part of a batch that they belong to.
    pub parts: BTreeMap<Part, Moved>,
    /// Bytes of messages about no known batch: old, unknown, or unreadable.
    pub bytes_useless: u64,
    /// Batches that were handed over.
    pub delivered: u64,
    /// Batches whose body did not arrive in time: sync fetched it.
    pub incomplete: u64,
    /// Requests for chunks that did not arrive.
    pub pulls: u64,
    /// Times that a peer was ignored for a while.
    pub muted: u64,
    /// Times that a peer was cut off.
    pub banned: u64,
    /// Validators that signed something false.
    pub liars: u64,
    /// Payloads that were declined for lack of room.
    pub refused: u64,
    /// Payloads that were assembled here, by codec.
    pub codecs: BTreeMap<CodecKind, CodecStatus>,
    /// The payloads of the last batches, the oldest first.
    pub payloads: Vec<PayloadStatus>,
}

/// One payload.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PayloadStatus {
    /// Number of the batch.
    pub number: BatchNumber,
    /// The part of the batch.
    pub part: Part,
    /// How it is coded.
    pub codec: CodecKind,
    /// Size of the payload, in bytes.
    pub bytes: u32,
    /// Bytes of its chunks.
    pub moved: Moved,
    /// Milliseconds from the batch's certificate to the payload's last byte; `None` if it is not whole, or is this node's
    /// own.
    pub decoded_ms: Option<f64>,
}

/// Payloads of one codec that were assembled here.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CodecStatus {
    /// Payloads by the time from the batch's certificate to their last byte, in the classes of [`DECODED_MS`] and one more.
    pub decoded: [u64; DECODED_MS.len() + 1],
    /// The sum of these times, in seconds.
    pub decoded_s: f64,
}

impl CodecStatus {
    pub(super) fn count(&mut self, took: Duration) {
        let class = DECODED_MS.partition_point(|ms| took > Duration::from_millis(*ms));
        self.decoded[class] += 1;
        self.decoded_s += took.as_secs_f64();
    }
}

impl MeshStatus {
    pub(super) fn codec(&mut self, kind: CodecKind) -> &mut CodecStatus {
        self.codecs.entry(kind).or_default()
    }
}
