//! [`MeshStatus`]: what an operator is told.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;
use slipstream_coding::CodecKind;

/// Upper ends of the classes that times to decode are counted in, in milliseconds; what took longer is in one more.
pub const DECODED_MS: [u64; 10] = [5, 10, 25, 50, 100, 200, 400, 800, 1_600, 3_200];

/// What was moved since the start.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct MeshStatus {
    /// Bytes of all messages sent.
    pub bytes_sent: u64,
    /// Bytes of these that are chunks.
    pub chunk_bytes_sent: u64,
    /// Bytes of chunks that came and were needed, as far as was seen on arrival.
    pub bytes_useful: u64,
    /// Bytes of chunks of what was here already.
    pub bytes_duplicate: u64,
    /// Bytes of what nobody needs: old, malformed, of unknown payloads.
    pub bytes_useless: u64,
    /// Batches that were handed over.
    pub delivered: u64,
    /// Of these without the body that this node wants: sync fetches it.
    pub incomplete: u64,
    /// Requests for what did not come.
    pub pulls: u64,
    /// Peers that were not listened to for a while.
    pub muted: u64,
    /// Peers that were cut off.
    pub banned: u64,
    /// False payloads that validators signed.
    pub liars: u64,
    /// Payloads that were put together here, by codec.
    pub codecs: BTreeMap<CodecKind, CodecStatus>,
}

/// Payloads of one codec that were put together here.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct CodecStatus {
    /// Payloads by the time from their plan to their last byte, in the classes of [`DECODED_MS`] and one more.
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
