//! [`Lie`]: a liar's change of an honest answer.

mod announce;
mod expired;
mod tell;
mod waste;

use slipstream_sync::protocol::{Parts, Request};
use slipstream_types::{BatchNumber, Epoch};

pub(super) use self::announce::{announcement, junk};
use super::fault::Fault;

/// A request to a liar, an honest peer's answer to it, and what both sides know.
#[derive(Clone, Copy)]
pub(super) struct Question<'a> {
    pub(super) request: &'a Request,
    pub(super) honest: &'a [u8],
    /// The head of the liar.
    pub(super) head: BatchNumber,
    /// The last epoch whose validators the asker has stored.
    pub(super) known: Epoch,
}

/// A kind of lie.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Lie {
    /// A head far ahead, under the signatures of an older one.
    ForgedHead,
    /// A head with too few signatures.
    NoQuorum,
    /// Another genesis beside a valid head.
    ForeignChain,
    /// The promise to have all batches and every snapshot.
    Promises,
    /// A body with bits flipped.
    Body,
    /// A delta with bits flipped.
    Delta,
    /// A delta that adds money to an account.
    Money,
    /// Fewer batches than requested.
    Short,
    /// An answer without batches.
    Empty,
    /// Batches that start one too late.
    Shifted,
    /// Another batch's receipts beside a true body.
    Receipts,
    /// A requested part left out.
    Missing,
    /// Batches with a changed header.
    Header,
    /// Forged batches under a valid certificate.
    Grafted,
    /// Forged batches under the strangers' certificate.
    Stranger,
    /// A range's certificate with one signature less than a quorum.
    RangeNoQuorum,
    /// Missing hints, or empty ones.
    UselessHints,
    /// As many hints as the protocol allows.
    HugeHints,
    /// Hints with false values.
    FalseValues,
    /// An offer with another state root.
    Offer,
    /// An offer that differs in a field that its certificate does not cover.
    SubtleOffer,
    /// Changed headers before a snapshot.
    Headers,
    /// A row left out.
    HiddenRow,
    /// A chunk with a changed row.
    ChangedRow,
    /// Another state's siblings.
    Siblings,
    /// Other code than was requested.
    Code,
    /// Range deltas with bits flipped.
    RangeDelta,
    /// Validators that were never appointed.
    Epochs,
    /// Valid signatures of validators whose epoch is over.
    Expired,
    /// Range deltas that name unchanged rows.
    Padded,
    /// Uncompressed parts.
    Literal,
    /// Hints that were not requested, beside the requested parts.
    UnaskedHints,
    /// Random bytes as an answer.
    Garbage,
}

impl Lie {
    /// The lies about the offers and rows of snapshots and range deltas. Range deltas are requested least.
    pub(super) const ABOUT_SNAPSHOTS: [Lie; 9] = [
        Lie::Offer,
        Lie::SubtleOffer,
        Lie::Headers,
        Lie::HiddenRow,
        Lie::ChangedRow,
        Lie::Siblings,
        Lie::Code,
        Lie::RangeDelta,
        Lie::RangeDelta,
    ];

    /// Lies grouped by subject. A liar tells one of each group, because one that is found out could not tell another.
    /// Subjects that are rarely requested occur more than once.
    pub(super) const GROUPS: [&[Lie]; 18] = [
        &[Lie::ForgedHead, Lie::NoQuorum, Lie::ForeignChain, Lie::Promises, Lie::Epochs],
        &[Lie::Epochs],
        &[Lie::Delta, Lie::Money],
        &[Lie::Delta, Lie::Money],
        &[Lie::Money],
        &[Lie::Garbage],
        &[Lie::Header, Lie::RangeNoQuorum],
        &[Lie::Grafted, Lie::Stranger],
        &[Lie::Header, Lie::Grafted],
        &[Lie::Body, Lie::Receipts, Lie::Short, Lie::Empty],
        &[Lie::Shifted, Lie::Missing],
        &[Lie::UselessHints, Lie::HugeHints],
        &[Lie::FalseValues],
        &[Lie::HugeHints],
        &[Lie::Expired],
        &[Lie::Literal],
        &[Lie::UnaskedHints],
        &Lie::ABOUT_SNAPSHOTS,
    ];

    /// Whether it can be told in answer to a request.
    pub(super) fn fits(self, request: &Request) -> bool {
        match self {
            Lie::ForgedHead | Lie::NoQuorum | Lie::ForeignChain | Lie::Promises => {
                matches!(request, Request::Summary)
            }
            Lie::Body => matches!(request, Request::Range(range) if range.parts.has(Parts::BODY)),
            Lie::Receipts => matches!(request, Request::Range(range) if range.parts.has(Parts::RECEIPTS)),
            Lie::Delta | Lie::Money => {
                matches!(request, Request::Range(range) if range.parts.has(Parts::DELTA))
            }
            Lie::UselessHints | Lie::HugeHints | Lie::FalseValues => {
                matches!(request, Request::Range(range) if range.parts.has(Parts::HINTS))
            }
            Lie::UnaskedHints => {
                matches!(request, Request::Range(range) if !range.parts.has(Parts::HINTS))
            }
            Lie::Expired => matches!(request, Request::Summary | Request::Range(_)),
            Lie::Literal
            | Lie::Short
            | Lie::Empty
            | Lie::Shifted
            | Lie::Missing
            | Lie::Header
            | Lie::Grafted
            | Lie::Stranger
            | Lie::RangeNoQuorum => matches!(request, Request::Range(_)),
            Lie::Offer | Lie::SubtleOffer => matches!(request, Request::Offer { .. }),
            Lie::Headers => matches!(request, Request::Headers { .. } | Request::Survey { .. }),
            Lie::HiddenRow | Lie::ChangedRow => matches!(request, Request::Chunk { .. }),
            Lie::Siblings => matches!(request, Request::RangeProof { .. }),
            Lie::Code => matches!(request, Request::Codes { .. }),
            Lie::RangeDelta | Lie::Padded => {
                matches!(request, Request::RangeDelta(_) | Request::ReverseDelta { .. })
            }
            Lie::Epochs => matches!(request, Request::Epochs { .. }),
            Lie::Garbage => true,
        }
    }

    /// The kind of fault that it counts as.
    pub(super) fn fault(self) -> Fault {
        match self {
            Lie::ForgedHead | Lie::NoQuorum | Lie::ForeignChain => Fault::FalseSummary,
            Lie::Promises => Fault::BrokenPromise,
            Lie::Body | Lie::Receipts | Lie::Short | Lie::Empty | Lie::Shifted | Lie::Missing => {
                Fault::FalseRange
            }
            Lie::Delta | Lie::Money => Fault::FalseDelta,
            Lie::Header | Lie::Grafted | Lie::Stranger | Lie::RangeNoQuorum => Fault::FalseProof,
            Lie::UselessHints | Lie::HugeHints => Fault::BadHints,
            Lie::FalseValues => Fault::FalseValues,
            Lie::Offer | Lie::SubtleOffer | Lie::Headers => Fault::FalseOffer,
            Lie::HiddenRow | Lie::ChangedRow | Lie::Siblings => Fault::FalseChunk,
            Lie::Code => Fault::FalseCode,
            Lie::RangeDelta => Fault::FalseRangeDelta,
            Lie::Epochs => Fault::FalseEpochs,
            Lie::Expired => Fault::ExpiredKeys,
            Lie::Padded => Fault::PaddedDelta,
            Lie::Literal => Fault::LiteralOnly,
            Lie::UnaskedHints => Fault::UnaskedHints,
            Lie::Garbage => Fault::Garbage,
        }
    }

    /// Whether a check of the answer must detect it. The others cost time at most: promises and hints are advisory. A
    /// short answer may be all that its sender had. The rows that follow reveal false offers and siblings. Wasteful
    /// answers are true.
    pub(super) fn is_provable(self) -> bool {
        !matches!(
            self,
            Lie::Promises
                | Lie::Short
                | Lie::UselessHints
                | Lie::HugeHints
                | Lie::FalseValues
                | Lie::SubtleOffer
                | Lie::Siblings
                | Lie::Padded
                | Lie::Literal
                | Lie::UnaskedHints
        )
    }
}
