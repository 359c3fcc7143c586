//! [`MeshStatus`]: the mesh's report to operators.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use slipstream_coding::CodecKind;
use slipstream_types::BatchNumber;

use super::payload::Moved;
use crate::message::Part;

/// Upper ends of the classes that times to decode are counted in, in milliseconds; one more class has the longer ones.
pub const DECODED_MS: [u64; 10] = [5, 10, 25, 50, 100, 200, 400, 800, 1_600, 3_200];

/// What was moved since the start.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct MeshStatus {
    /// Bytes of all messages sent.
    pub bytes_sent: u64,
    /// Bytes of chunks, by the part of a batch that they are of.
    pub parts: BTreeMap<Part, Moved>,
    /// Bytes of what is of no known batch: old, unknown, no message.
    pub bytes_useless: u64,
    /// Batches that were handed over.
    pub delivered: u64,
    /// Batches whose body did not come in time: sync fetched it.
    pub incomplete: u64,
    /// Requests for what did not come.
    pub pulls: u64,
    /// Peers that were not listened to for a while.
    pub muted: u64,
    /// Peers that were cut off.
    pub banned: u64,
    /// False payloads that validators signed.
    pub liars: u64,
    /// Payloads for which there was no room.
    pub refused: u64,
    /// Payloads that were put together here, by codec.
    pub codecs: BTreeMap<CodecKind, CodecStatus>,
    /// The payloads of the last batches, the oldest first.
    pub payloads: Vec<PayloadStatus>,
}

/// One payload.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PayloadStatus {
    /// Of which batch.
    pub number: BatchNumber,
    /// Which part of it.
    pub part: Part,
    /// How it is coded.
    pub codec: CodecKind,
    /// Its bytes.
    pub bytes: u32,
    /// Bytes of its chunks.
    pub moved: Moved,
    /// From the batch's certificate to the payload's last byte, in milliseconds; none if it is not whole, or this node's own.
    pub decoded_ms: Option<f64>,
}

/// Payloads of one codec that were put together here.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CodecStatus {
    /// Payloads by the time from the batch's certificate to their last byte, in the classes of [`DECODED_MS`] and one more.
    pub decoded: [u64; DECODED_MS.len() + 1],
    /// The sum of these times.
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
