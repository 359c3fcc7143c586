//! [`Lie`]: a liar's change of an honest answer. Most are of the catalogue, [`PeerLie`].

mod announce;
mod expired;
mod tell;

use slipnet::scenario::fault::PeerLie;
use slipstream_sync::protocol::{Parts, Request};
use slipstream_types::Epoch;

use self::Lie::{Body, Expired, Peer, Receipts};
pub(super) use self::announce::{announcement, junk};
use super::fault::Fault;

/// A request to a liar, an honest peer's answer to it, and what both sides know.
#[derive(Clone, Copy)]
pub(super) struct Question<'a> {
    pub(super) request: &'a Request,
    pub(super) honest: &'a [u8],
    /// The last epoch whose validators the asker has stored.
    pub(super) known: Epoch,
}

/// A kind of lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lie {
    /// A lie of the catalogue.
    Peer(PeerLie),
    /// A body with bits flipped.
    Body,
    /// A delta with bits flipped.
    Delta,
    /// Another batch's receipts beside a true body.
    Receipts,
    /// Valid signatures of validators whose epoch is over.
    Expired,
}

impl Lie {
    /// The lies about the offers and rows of snapshots and range deltas. Range deltas are requested least.
    pub(super) const ABOUT_SNAPSHOTS: [Lie; 9] = [
        Peer(PeerLie::FalseOffers),
        Peer(PeerLie::SubtleOffers),
        Peer(PeerLie::ChangedAncestry),
        Peer(PeerLie::HiddenRows),
        Peer(PeerLie::ChangedRows),
        Peer(PeerLie::SwappedSiblings),
        Peer(PeerLie::OtherCode),
        Peer(PeerLie::CorruptRangeDeltas),
        Peer(PeerLie::CorruptRangeDeltas),
    ];

    /// Lies grouped by subject. A liar tells one lie of each group, because a liar that is found out could not tell
    /// another. Subjects that are rarely requested occur more than once.
    pub(super) const GROUPS: [&[Lie]; 18] = [
        &[
            Peer(PeerLie::ForgedHeads),
            Peer(PeerLie::UnsignedHeads),
            Peer(PeerLie::ForeignGenesis),
            Peer(PeerLie::EmptyPromises),
            Peer(PeerLie::FalseValidators),
        ],
        &[Peer(PeerLie::FalseValidators)],
        &[Lie::Delta, Peer(PeerLie::ChangedMoney)],
        &[Lie::Delta, Peer(PeerLie::ChangedMoney)],
        &[Peer(PeerLie::ChangedMoney)],
        &[Peer(PeerLie::GarbageAnswers)],
        &[Peer(PeerLie::ChangedHeaders), Peer(PeerLie::UnsignedRanges)],
        &[Peer(PeerLie::GraftedBatches), Peer(PeerLie::StrangeSignatures)],
        &[Peer(PeerLie::ChangedHeaders), Peer(PeerLie::GraftedBatches)],
        &[Body, Receipts, Peer(PeerLie::ShortRanges), Peer(PeerLie::EmptyRanges)],
        &[Peer(PeerLie::ShiftedRanges), Peer(PeerLie::MissingParts)],
        &[Peer(PeerLie::UselessHints), Peer(PeerLie::HugeHints)],
        &[Peer(PeerLie::FalseHints)],
        &[Peer(PeerLie::HugeHints)],
        &[Expired],
        &[Peer(PeerLie::LiteralBlobs)],
        &[Peer(PeerLie::UnaskedHints)],
        &Lie::ABOUT_SNAPSHOTS,
    ];

    /// Returns the lie's name in recordings.
    pub(super) fn name(self) -> String {
        match self {
            Peer(lie) => format!("{lie:?}"),
            lie => format!("{lie:?}"),
        }
    }

    /// Whether the lie can be told in answer to a request.
    pub(super) fn fits(self, request: &Request) -> bool {
        let asks = |parts: Parts| matches!(request, Request::Range(range) if range.parts.has(parts));
        let is_range = matches!(request, Request::Range(_));
        let lie = match self {
            Body => return asks(Parts::BODY),
            Receipts => return asks(Parts::RECEIPTS),
            Lie::Delta => return asks(Parts::DELTA),
            Expired => return is_range || *request == Request::Summary,
            Peer(lie) => lie,
        };
        match lie {
            PeerLie::ForgedHeads
            | PeerLie::UnsignedHeads
            | PeerLie::ForeignGenesis
            | PeerLie::EmptyPromises => *request == Request::Summary,
            PeerLie::ChangedMoney => asks(Parts::DELTA),
            PeerLie::UselessHints | PeerLie::HugeHints | PeerLie::FalseHints => asks(Parts::HINTS),
            PeerLie::UnaskedHints => is_range && !asks(Parts::HINTS),
            PeerLie::LiteralBlobs
            | PeerLie::ShortRanges
            | PeerLie::EmptyRanges
            | PeerLie::ShiftedRanges
            | PeerLie::MissingParts
            | PeerLie::ChangedHeaders
            | PeerLie::GraftedBatches
            | PeerLie::StrangeSignatures
            | PeerLie::UnsignedRanges => is_range,
            PeerLie::FalseOffers | PeerLie::SubtleOffers => matches!(request, Request::Offer { .. }),
            PeerLie::ChangedAncestry => matches!(request, Request::Headers { .. } | Request::Survey { .. }),
            PeerLie::HiddenRows | PeerLie::ChangedRows => matches!(request, Request::Chunk { .. }),
            PeerLie::SwappedSiblings => matches!(request, Request::RangeProof { .. }),
            PeerLie::OtherCode => matches!(request, Request::Codes { .. }),
            PeerLie::CorruptRangeDeltas | PeerLie::PaddedRangeDeltas => {
                matches!(request, Request::RangeDelta(_) | Request::ReverseDelta { .. })
            }
            PeerLie::FalseValidators => matches!(request, Request::Epochs { .. }),
            PeerLie::GarbageAnswers => true,
            // No server of a world tells the others: habits of the servers stand for them.
            _ => false,
        }
    }

    /// Returns the kind of fault that the lie counts as; `None` if no server of a world tells this lie.
    pub(super) fn fault(self) -> Option<Fault> {
        let lie = match self {
            Body | Receipts => return Some(Fault::FalseRange),
            Lie::Delta => return Some(Fault::FalseDelta),
            Expired => return Some(Fault::ExpiredKeys),
            Peer(lie) => lie,
        };
        Some(match lie {
            PeerLie::ForgedHeads | PeerLie::UnsignedHeads | PeerLie::ForeignGenesis => Fault::FalseSummary,
            PeerLie::EmptyPromises => Fault::BrokenPromise,
            PeerLie::ShortRanges | PeerLie::EmptyRanges | PeerLie::ShiftedRanges | PeerLie::MissingParts => {
                Fault::FalseRange
            }
            PeerLie::ChangedMoney => Fault::FalseDelta,
            PeerLie::ChangedHeaders
            | PeerLie::GraftedBatches
            | PeerLie::StrangeSignatures
            | PeerLie::UnsignedRanges => Fault::FalseProof,
            PeerLie::UselessHints | PeerLie::HugeHints => Fault::BadHints,
            PeerLie::FalseHints => Fault::FalseValues,
            PeerLie::FalseOffers | PeerLie::SubtleOffers | PeerLie::ChangedAncestry => Fault::FalseOffer,
            PeerLie::HiddenRows | PeerLie::ChangedRows | PeerLie::SwappedSiblings => Fault::FalseChunk,
            PeerLie::OtherCode => Fault::FalseCode,
            PeerLie::CorruptRangeDeltas => Fault::FalseRangeDelta,
            PeerLie::FalseValidators => Fault::FalseEpochs,
            PeerLie::PaddedRangeDeltas => Fault::PaddedDelta,
            PeerLie::LiteralBlobs => Fault::LiteralOnly,
            PeerLie::UnaskedHints => Fault::UnaskedHints,
            PeerLie::GarbageAnswers => Fault::Garbage,
            _ => return None,
        })
    }

    /// Whether a check of the answer must detect the lie. Other lies cost time at most: promises and hints are
    /// advisory. A short answer may be all that its sender had. The rows that follow reveal false offers and siblings.
    /// Wasteful answers are true.
    pub(super) fn is_provable(self) -> bool {
        match self {
            Peer(lie) => lie.can_be_proven(),
            Body | Lie::Delta | Receipts | Expired => true,
        }
    }
}
