//! The requests of peers under [`slipstream_network::Protocol::SYNC`], their answers, and broadcasts.
//!
//! A request is one BCS [`Request`]; the answer is the BCS of the type that its doc names. See docs/formats.md.

mod request;

use serde::{Deserialize, Serialize};
use slipstream_storage::OpenedSubtree;
use slipstream_types::{
    BatchHeader, BatchNumber, Blob, Certificate, CodecError, Digest, LedgerInfo,
    accumulator::AccumulatorRangeProof, bounded::BoundedVec, codec, delta::Code, limits, schedule::Forks,
};

pub(crate) use self::request::REVERSE_DELTA_BYTES;
pub use self::request::{
    Parts, RangeDeltaRequest, RangeRequest, Request, SubtreesRequest, answer_bytes_expected,
};

/// Maximum bytes of a request; the longest asks for [`CODES_MAX`] codes.
pub const REQUEST_BYTES_MAX: usize = 4096;
/// Maximum bytes of an answer: one batch of the largest size must fit, whatever the asker's budget.
pub const ANSWER_BYTES_MAX: usize = slipstream_network::MESSAGE_BYTES_MAX;
/// Bytes of parts that a server puts into one range answer before it stops, whatever the asker's budget.
pub const RANGE_BYTES_MAX: u32 = 16 << 20;
/// Maximum number of batches in one range answer.
pub const RANGE_BATCHES_MAX: u32 = 1024;
/// Maximum number of uncompressed bytes of rows or changes in a chunk that a server makes.
pub const CHUNK_BYTES_MAX: u32 = 4 << 20;
/// Maximum number of codes in one request.
pub const CODES_MAX: usize = 64;
/// Maximum number of places of a state in one request; this many places of a usual state fill the request.
pub const PLACES_MAX: usize = 256;
/// Maximum number of hashes in one answer about places: about 70 KB.
pub const SUBTREE_HASHES_MAX: usize = 1_024;
/// Maximum number of epoch ends in one answer; with the most validators they have 1 MB.
pub const EPOCH_ENDS_MAX: usize = 64;
/// Maximum number of headers in one survey; with their proofs about 40 KB.
pub const SURVEY_HEADERS_MAX: usize = 32;
/// Maximum number of snapshots in a summary.
pub const SNAPSHOTS_MAX: usize = 8;

/// Approximate average bytes of a row: a slot has 86, an account 63, with code 95.
pub(crate) const ROW_BYTES: u64 = 80;

/// Subtrees in the order in which their places were asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Subtrees {
    /// One opened subtree per place.
    pub opened: BoundedVec<OpenedSubtree, PLACES_MAX>,
}

/// Consecutive batches under one certificate.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Range {
    /// Certificate of the last batch, or of a later one.
    pub certificate: Certificate,
    /// Proves that the headers are at their places in the ledger that the certificate signs.
    pub proof: AccumulatorRangeProof,
    /// The batches, in order, from the first one asked for.
    pub batches: BoundedVec<RangeBatch, { RANGE_BATCHES_MAX as usize }>,
}

/// One batch with the parts that were asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RangeBatch {
    /// Header of the batch.
    pub header: BatchHeader,
    /// The body, if it was asked for.
    pub body: Option<Blob>,
    /// The receipts, if they were asked for.
    pub receipts: Option<Blob>,
    /// The delta, if it was asked for.
    pub delta: Option<Blob>,
    /// The hints, if they were asked for and are known.
    pub hints: Option<Blob>,
}

impl RangeBatch {
    /// The parts that are here.
    pub(crate) fn parts(&self) -> Parts {
        let parts = [
            (Parts::BODY, &self.body),
            (Parts::RECEIPTS, &self.receipts),
            (Parts::DELTA, &self.delta),
            (Parts::HINTS, &self.hints),
        ];
        let here = parts.into_iter().filter(|(_, blob)| blob.is_some());
        here.fold(Parts(0), |parts, (part, _)| parts.with(part))
    }

    /// Compressed bytes of all parts that are here, hints included: the memory that they take.
    pub fn held_bytes(&self) -> usize {
        self.certified_bytes() + self.hints.as_ref().map_or(0, |hints| hints.len())
    }

    /// Compressed bytes of the parts that its header commits to. Hints are left out: they are unverifiable, so they must
    /// neither fill an answer nor earn credit.
    pub fn certified_bytes(&self) -> usize {
        let parts = [&self.body, &self.receipts, &self.delta];
        parts.into_iter().flatten().map(|blob| blob.len()).sum()
    }
}

/// The holdings of a node. Only the certificate can be checked; a broken promise about the rest costs its maker.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// Digest of batch 0: the chain's identity.
    pub genesis: Digest,
    /// Its last certified batch; `None` if that is genesis.
    pub head: Option<Certificate>,
    /// First batch whose body it keeps, if any; it keeps all bodies from there on.
    pub bodies_from: Option<BatchNumber>,
    /// The same for receipts.
    pub receipts_from: Option<BatchNumber>,
    /// The same for deltas.
    pub deltas_from: Option<BatchNumber>,
    /// First batch whose state it knows, besides its head's; it knows all states from there on.
    pub states_from: Option<BatchNumber>,
    /// Snapshots it serves, newest first.
    pub snapshots: BoundedVec<SnapshotOffer, SNAPSHOTS_MAX>,
    /// The forks of its schedule, so that a node that lacks one learns of it in time. No node believes them: headers
    /// say what holds.
    pub forks: Forks,
}

/// A snapshot with its cost. The sizes are unproven: they decide the next request, never the stored content.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotOffer {
    /// Number of the snapshot's batch.
    pub number: BatchNumber,
    /// Approximate rows of its state; 0 if the server does not know.
    pub rows: u64,
    /// Uncompressed bytes of these rows, estimated from their number.
    pub bytes: u64,
}

impl SnapshotOffer {
    /// The offer of a snapshot with `rows` rows.
    pub fn new(number: BatchNumber, rows: u64) -> SnapshotOffer {
        SnapshotOffer { number, rows, bytes: rows.saturating_mul(ROW_BYTES) }
    }
}

/// Consecutive headers. The asker has the certificate already.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Headers {
    /// As many as were asked for.
    pub headers: BoundedVec<BatchHeader, { limits::HEADERS_MAX }>,
    /// Proof against the accumulator that ends with the last of them.
    pub proof: AccumulatorRangeProof,
}

/// Scattered headers, each with its place. The asker has the certificate already.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Survey {
    /// The headers that the server can prove, in order; the last requested one is among them.
    pub headers: BoundedVec<PassedBatch, SURVEY_HEADERS_MAX>,
}

/// The target of a restore.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Offer {
    /// Certificate of the snapshot's batch.
    pub certificate: Certificate,
    /// The batch, with the state root that all chunks prove against.
    pub header: BatchHeader,
    /// Proves that the chain's genesis is the first batch of the ledger that the certificate signs. The restoring node keeps it,
    /// to prove the genesis to others.
    pub genesis_proof: AccumulatorRangeProof,
    /// The batch that the request names, if it names one.
    pub passed: Option<PassedBatch>,
}

/// A batch with the proof of its place in a later ledger.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PassedBatch {
    /// Header of the batch.
    pub header: BatchHeader,
    /// Proof against the accumulator of the later ledger. The siblings on its left are the ledger up to this batch.
    pub proof: AccumulatorRangeProof,
}

/// Contract code, in the order asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Codes {
    /// One code per hash.
    pub codes: BoundedVec<Code, CODES_MAX>,
}

/// The certificates that end consecutive epochs: each names the validators that sign the next.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EpochEnds {
    /// From the requested epoch on, as many as are known and fit.
    pub certificates: BoundedVec<Certificate, EPOCH_ENDS_MAX>,
}

/// The data with which a node starts from a waypoint alone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Origin {
    /// The ledger info that the waypoint names.
    pub info: LedgerInfo,
    /// The genesis, a blob of kind `Genesis`.
    pub genesis: Blob,
    /// Proof that the genesis is leaf 0 of the ledger info's accumulator.
    pub proof: AccumulatorRangeProof,
}

/// A new batch, broadcast once it is certified.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Announcement {
    /// Header of the batch.
    pub header: BatchHeader,
    /// The batch's own certificate.
    pub certificate: Certificate,
    /// The batch's transactions, as a blob.
    pub body: Blob,
    /// The keys that executing it reads, if the maker recorded them.
    pub hints: Option<Blob>,
}

/// Encodes the announcement of a decided batch.
///
/// # Errors
/// Never fails for batches within [`limits`].
pub fn announcement(
    header: BatchHeader,
    certificate: Certificate,
    body: Blob,
    hints: Option<Blob>,
) -> Result<Vec<u8>, CodecError> {
    codec::encode("announcement", &Announcement { header, certificate, body, hints })
}
