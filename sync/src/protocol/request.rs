//! [`Request`], and how long its answer may be.

use serde::{Deserialize, Serialize};
use slipstream_storage::{LEVELS_MAX, PathPrefix};
use slipstream_types::{
    BatchHeader, BatchNumber, Digest, Epoch, Path, bounded::BoundedVec, codec, limits, state::ROW_BYTES_MAX,
};

use super::{
    ANSWER_BYTES_MAX, CHUNK_BYTES_MAX, CODES_MAX, EPOCH_ENDS_MAX, PLACES_MAX, RANGE_BATCHES_MAX,
    RANGE_BYTES_MAX, REQUEST_BYTES_MAX, SUBTREE_HASHES_MAX, SURVEY_HEADERS_MAX,
};

/// One request to a peer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, strum::VariantNames)]
pub enum Request {
    /// Answered by [`Summary`](super::Summary).
    Summary,
    /// Answered by [`Range`](super::Range).
    Range(RangeRequest),
    /// Headers up to a batch with their proof; answered by [`Headers`](super::Headers).
    Headers {
        /// Number of the first header.
        first: BatchNumber,
        /// The last header; the proof is against the ledger that ends with it.
        last: BatchNumber,
    },
    /// Answered by [`Offer`](super::Offer), the first part of a snapshot.
    Offer {
        /// Number of the snapshot's batch.
        number: BatchNumber,
        /// A batch before it whose place in its ledger the answer proves: the asker's waypoint.
        passing: Option<BatchNumber>,
    },
    /// Answered by a blob of kind `StateChunk` that holds a [`slipstream_storage::StateChunk`].
    Chunk {
        /// Number of the snapshot's batch.
        number: BatchNumber,
        /// Where the chunk begins.
        first: Path,
        /// Where it ends at the latest, so that ranges are fetched side by side.
        last: Path,
        /// Uncompressed bytes after which it ends.
        bytes_max: u32,
    },
    /// Contract code by hash; answered by [`Codes`](super::Codes).
    Codes {
        /// The snapshot that has the code. For a peer that compares subtrees, the batch of the compared state.
        number: BatchNumber,
        /// Keccak-256 of each code.
        hashes: BoundedVec<Digest, CODES_MAX>,
    },
    /// The genesis with its proof; answered by [`Origin`](super::Origin).
    Origin {
        /// Number of the waypoint's batch.
        number: BatchNumber,
    },
    /// The siblings beside a range of a snapshot, for a peer that has rows that may be the same; answered by a
    /// [`slipstream_types::tree::StateRangeProof`].
    RangeProof {
        /// Number of the snapshot's batch.
        number: BatchNumber,
        /// Where the range begins.
        first: Path,
        /// Where it ends, inclusive.
        last: Path,
    },
    /// The certificates that end epochs, for a peer that knows the validators of the first; answered by
    /// [`EpochEnds`](super::EpochEnds).
    Epochs {
        /// The first epoch whose end is wanted.
        first: Epoch,
    },
    /// The changes in a path range from one batch to a snapshot; answered by a blob of kind `RangeDelta` that holds a
    /// [`slipstream_storage::RangeDeltaChunk`].
    RangeDelta(RangeDeltaRequest),
    /// Subtrees of the state after a batch, for a peer that compares its own with them; answered by
    /// [`Subtrees`](super::Subtrees).
    Subtrees(SubtreesRequest),
    /// Scattered headers, for a peer that plans by the work between them; answered by [`Survey`](super::Survey).
    Survey {
        /// Numbers of the headers, in order.
        numbers: BoundedVec<BatchNumber, SURVEY_HEADERS_MAX>,
        /// The last batch of the ledger that the proofs are against: the last of the numbers.
        last: BatchNumber,
    },
    /// The rows that batches after `to` up to `from` changed, with their values after `to`; answered by a blob of kind
    /// `Delta`, see [`slipstream_storage::Store::reverse_delta`].
    ReverseDelta {
        /// The last batch whose changes are wanted.
        from: BatchNumber,
        /// The batch whose state the rows belong to.
        to: BatchNumber,
    },
}

/// Expected bytes of a reverse delta.
pub(crate) const REVERSE_DELTA_BYTES: u32 = 1 << 20;
/// Bytes that are added to what a request asks for: proofs, signatures, and part of the batch that passes its limit.
const ANSWER_SLACK_BYTES: usize = 256 << 10;
/// Bytes of a long contract's code.
const CODE_BYTES: usize = 24_576;

/// Maximum bytes that accompany a chunk, a range of headers or a certificate: ends, counts, and proofs of the greatest
/// depth on both sides.
const PROOF_BYTES_MAX: usize = 128 << 10;
/// Maximum bytes of a header.
const HEADER_BYTES_MAX: usize = 512;
const _: () = assert!(HEADER_BYTES_MAX >= BatchHeader::BYTES);
/// Maximum bytes of a header with its place in the accumulator: a proof has 64 hashes on either side.
const PLACED_HEADER_BYTES_MAX: usize = HEADER_BYTES_MAX + 2 * 64 * 32 + 64;
/// Maximum bytes of an epoch's end: the signatures of the most validators, and the validators of the next epoch.
const EPOCH_END_BYTES_MAX: usize = limits::VALIDATORS_MAX * 256;

impl Request {
    /// Maximum bytes that the answer may have. The asker takes no more, so its request bounds the answer.
    pub fn answer_bytes_max(&self) -> usize {
        let content = match self {
            Request::Summary | Request::Offer { .. } | Request::RangeProof { .. } => EPOCH_END_BYTES_MAX,
            Request::Range(range) => range.answer_bytes_max(),
            Request::Headers { first, last } => {
                let count = last.since(*first).saturating_add(1).min(limits::HEADERS_MAX as u64);
                count as usize * HEADER_BYTES_MAX
            }
            Request::Chunk { bytes_max, .. } => chunk_bytes_max(*bytes_max),
            Request::RangeDelta(delta) => chunk_bytes_max(delta.bytes_max),
            Request::Codes { hashes, .. } => hashes.len() * (limits::CODE_BYTES_MAX + 8),
            Request::Survey { numbers, .. } => numbers.len() * PLACED_HEADER_BYTES_MAX,
            Request::Epochs { .. } => EPOCH_ENDS_MAX * EPOCH_END_BYTES_MAX,
            Request::Origin { .. } => ANSWER_BYTES_MAX,
            Request::Subtrees(request) => request.answer_bytes(),
            Request::ReverseDelta { .. } => limits::DELTA_BYTES_MAX,
        };
        content.saturating_add(PROOF_BYTES_MAX).min(ANSWER_BYTES_MAX)
    }

    /// Approximate bytes of the answer: a server keeps room for them before it makes the answer. Few answers are
    /// longer, none by the asker's choice.
    pub fn answer_bytes_expected(&self) -> usize {
        let content = match self {
            Request::Summary => return ANSWER_SLACK_BYTES / 4,
            Request::Range(range) => range.bytes_max.min(RANGE_BYTES_MAX) as usize,
            Request::Chunk { bytes_max, .. } => (*bytes_max).min(CHUNK_BYTES_MAX) as usize,
            Request::RangeDelta(delta) => delta.bytes_max.min(CHUNK_BYTES_MAX) as usize,
            Request::Codes { hashes, .. } => hashes.len() * CODE_BYTES,
            Request::Headers { .. } | Request::RangeProof { .. } | Request::Epochs { .. } => 1 << 20,
            Request::Survey { numbers, .. } => numbers.len() * PLACED_HEADER_BYTES_MAX,
            Request::Offer { .. } => 0,
            Request::Origin { .. } => return ANSWER_BYTES_MAX,
            Request::Subtrees(request) => return request.answer_bytes(),
            Request::ReverseDelta { .. } => REVERSE_DELTA_BYTES as usize,
        };
        content + ANSWER_SLACK_BYTES
    }
}

/// As [`Request::answer_bytes_expected`], for an encoded request; an unreadable one gets a refusal, which is short.
pub fn answer_bytes_expected(request: &[u8]) -> usize {
    let request = codec::decode::<Request>("sync request", request, REQUEST_BYTES_MAX);
    request.map_or(0, |request| request.answer_bytes_expected())
}

/// Asks for a chunk of a range delta. The chunk ends at `last`, or where one more change would pass `bytes_max`; an
/// answer that ends earlier breaks the protocol. See [`crate::range_delta`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RangeDeltaRequest {
    /// The batch after which changes count; at or below the asker's head.
    pub from: BatchNumber,
    /// The snapshot whose values the changes have.
    pub to: BatchNumber,
    /// Where the chunk begins.
    pub first: Path,
    /// Where it ends at the latest, so that ranges are fetched side by side.
    pub last: Path,
    /// Uncompressed bytes of changes; the server's own limit is [`CHUNK_BYTES_MAX`].
    pub bytes_max: u32,
}

/// Asks for the subtrees at some places of the state after a batch. A place is a path prefix, and the answer opens each
/// by `levels` levels.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SubtreesRequest {
    /// The batch, up to the server's head.
    pub number: BatchNumber,
    /// Its state root, as the asker has it: nothing is revealed about another ledger's state.
    pub root: Digest,
    /// Levels by which each place is opened, 1 to [`slipstream_storage::LEVELS_MAX`]. All places together may then have
    /// up to [`SUBTREE_HASHES_MAX`] hashes.
    pub levels: u8,
    /// The places whose subtrees are wanted.
    pub places: BoundedVec<PathPrefix, PLACES_MAX>,
}

impl SubtreesRequest {
    /// Maximum number of hashes in its answer.
    pub fn hashes(&self) -> usize {
        self.places.len() << self.levels.min(LEVELS_MAX)
    }

    /// Maximum bytes of its answer: a hash with the path to it for every side, and a row for every place.
    fn answer_bytes(&self) -> usize {
        const HASH_BYTES: usize = 2 * (1 + 32) + 1;
        self.hashes().min(SUBTREE_HASHES_MAX) * HASH_BYTES + self.places.len() * (ROW_BYTES_MAX + 8) + 8
    }
}

/// The parts of a batch, as bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Parts(pub u8);

impl Parts {
    /// The batch's transactions.
    pub const BODY: Parts = Parts(1);
    /// The receipts of its transactions.
    pub const RECEIPTS: Parts = Parts(2);
    /// Its state changes.
    pub const DELTA: Parts = Parts(4);
    /// The hints. A batch may lack them.
    pub const HINTS: Parts = Parts(8);

    /// The parts of this and of `other` together.
    pub const fn with(self, other: Parts) -> Parts {
        Parts(self.0 | other.0)
    }

    /// Whether this has all parts of `other`.
    pub const fn has(self, other: Parts) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Asks for consecutive batches. The answer ends at `batches_max` batches, at the server's last certified batch, or once its
/// certified parts reach `bytes_max`. An answer that ends earlier breaks the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RangeRequest {
    /// Number of the first batch.
    pub first: BatchNumber,
    /// Maximum number of batches; the server's own limit is [`RANGE_BATCHES_MAX`].
    pub batches_max: u32,
    /// Compressed bytes of certified parts; the server's own limit is [`RANGE_BYTES_MAX`].
    pub bytes_max: u32,
    /// The parts to send of each batch.
    pub parts: Parts,
}

impl RangeRequest {
    /// Bytes of the longest answer: certified parts up to the limit, those of the batch that passes it, and hints up to the limit.
    fn answer_bytes_max(&self) -> usize {
        let parts = [
            (Parts::BODY, limits::BODY_BYTES_MAX),
            (Parts::RECEIPTS, limits::RECEIPTS_BYTES_MAX),
            (Parts::DELTA, limits::DELTA_BYTES_MAX),
        ];
        let batch: usize =
            parts.iter().filter(|(part, _)| self.parts.has(*part)).map(|(_, bytes)| bytes).sum();
        let headers = self.batches_max.min(RANGE_BATCHES_MAX) as usize * HEADER_BYTES_MAX;
        let parts = self.bytes_max.min(RANGE_BYTES_MAX) as usize;
        let hints = limits::HINTS_BYTES_MAX * self.batches_max.min(RANGE_BATCHES_MAX) as usize;
        let hints = if self.parts.has(Parts::HINTS) { hints.min(parts) } else { 0 };
        (parts + batch + hints).saturating_add(headers + EPOCH_END_BYTES_MAX)
    }
}

/// Maximum number of compressed bytes of a chunk of `bytes_max` uncompressed ones. Incompressible content grows a little, and the
/// last row may pass the limit.
fn chunk_bytes_max(bytes_max: u32) -> usize {
    let bytes = bytes_max.min(CHUNK_BYTES_MAX) as usize;
    bytes + bytes / 16
}

#[cfg(test)]
mod tests {
    use strum::VariantNames as _;

    use super::*;

    /// Goal: a variant is its tag on the wire: new ones come last, and raise the ALPN.
    #[test]
    fn tags_follow_the_order() {
        assert_eq!(
            Request::VARIANTS,
            [
                "Summary",
                "Range",
                "Headers",
                "Offer",
                "Chunk",
                "Codes",
                "Origin",
                "RangeProof",
                "Epochs",
                "RangeDelta",
                "Subtrees",
                "Survey",
                "ReverseDelta"
            ]
        );
    }

    /// Goal: what a peer can take with each request is documented.
    #[test]
    fn every_request_has_its_row() {
        let page = include_str!("../../../docs/security.md");
        for name in Request::VARIANTS {
            assert!(
                page.contains(&format!("\n| SYNC `{name}` |")),
                "docs/security.md has no row for `{name}`"
            );
        }
    }
}
