//! The kinds of liars: names, what each does, and how many there are.

use slipnet::devnet::SyncMode;

use super::super::attack::Attack;

pub(in super::super) fn all() -> impl Iterator<Item = &'static dyn Attack> {
    ALL.iter().map(|liars| liars as &dyn Attack)
}

/// A liar's way with requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lie {
    /// Offers a snapshot that is free and endless, holds every request, and is busy then.
    Lure,
    /// Serves the snapshot in pieces of a kibibyte, one every few seconds.
    Drip,
    /// Tells the truth about what it has, and answers nothing else.
    Stall,
    /// Adds hints that nobody asked for.
    Hints,
    /// Answers 40 MiB of zeros to every request.
    Oversized,
    /// Sends true parts with their compression undone.
    Literal,
    /// Changes a byte of every chunk and part.
    Corrupt,
    /// Tells of a head far ahead, under the signatures of the true one.
    Forged,
    /// Answers random bytes to every request.
    Garbage,
    /// Tells of another chain's genesis, and the truth otherwise.
    ForeignGenesis,
    /// Puts a stranger's signatures under ranges.
    StrangeSignatures,
    /// Sends other headers, each on the one before, under the true certificate.
    GraftedBatches,
    /// Sends deltas that give every account one wei more.
    ChangedMoney,
    /// Leaves one row out of each chunk.
    HiddenRows,
    /// Changes one row of each chunk.
    ChangedRows,
    /// Adds a false value of each key to hints.
    FalseHints,
    /// Tells of the true head with too few of its signatures.
    UnsignedHeads,
    /// Promises to keep everything, and snapshots that it has not.
    EmptyPromises,
    /// Sends half of the batches.
    ShortRanges,
    /// Sends no batch.
    EmptyRanges,
    /// Sends the batches behind the first one.
    ShiftedRanges,
    /// Leaves out bodies and deltas.
    MissingParts,
    /// Changes a header of each range.
    ChangedHeaders,
    /// Sends ranges under too few signatures.
    UnsignedRanges,
    /// Sends hints that name nothing.
    UselessHints,
    /// Sends hints that name 20,000 addresses.
    HugeHints,
    /// Offers snapshots of another state.
    FalseOffers,
    /// Changes an offered header where no certificate looks.
    SubtleOffers,
    /// Changes a header before each snapshot.
    ChangedAncestry,
    /// Swaps the siblings of both ends of a range of rows.
    SwappedSiblings,
    /// Sends other code than was asked for.
    OtherCode,
    /// Changes a byte of each range delta.
    CorruptRangeDeltas,
    /// Adds unchanged rows to range deltas.
    PaddedRangeDeltas,
    /// Puts a stranger among the validators of the next epoch.
    FalseValidators,
    /// Tells each end of an epoch over and over.
    RepeatedEpochs,
    /// Tells the ends of epochs from the last to the first.
    ReversedEpochs,
    /// Sends a genesis with 100,000 more accounts beside the true ledger.
    FalseGenesis,
    /// Holds each true answer but summaries until just before the deadline.
    LateAnswers,
    /// Is busy for all but summaries.
    BusyServers,
}

impl Lie {
    /// How a node joins that it shows best in: lies about ranges where ranges are the only way, and so on. Range deltas take a mode that
    /// no node joins with here.
    pub(super) fn shows_in(self) -> SyncMode {
        match self {
            Lie::ChangedMoney => SyncMode::Delta,
            Lie::HiddenRows
            | Lie::ChangedRows
            | Lie::FalseOffers
            | Lie::SubtleOffers
            | Lie::ChangedAncestry
            | Lie::SwappedSiblings
            | Lie::OtherCode => SyncMode::Snapshot,
            lie if lie.is_about_ranges() || matches!(lie, Lie::ShortRanges | Lie::ShiftedRanges) => {
                SyncMode::Replay
            }
            _ => SyncMode::Auto,
        }
    }

    /// Whether it changes the batches of a range, or what signs them.
    pub(super) fn is_about_ranges(self) -> bool {
        matches!(
            self,
            Lie::Hints
                | Lie::Literal
                | Lie::Corrupt
                | Lie::StrangeSignatures
                | Lie::GraftedBatches
                | Lie::ChangedMoney
                | Lie::FalseHints
                | Lie::EmptyRanges
                | Lie::MissingParts
                | Lie::ChangedHeaders
                | Lie::UnsignedRanges
                | Lie::UselessHints
                | Lie::HugeHints
        )
    }
}

/// So many peers that lie alike.
pub(super) struct Liars {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) lie: Lie,
    pub(super) count: usize,
    pub(super) is_ground: bool,
}

const fn liars(name: &'static str, about: &'static str, lie: Lie, count: usize) -> Liars {
    Liars { name, about, lie, count, is_ground: false }
}

/// In the order in which a list shows them.
static ALL: [Liars; 40] = [
    liars(
        "snapshot-lure",
        "a server that offers a snapshot of 0 bytes and 2^64-1 rows, holds every request for 9.5 s and is busy then",
        Lie::Lure,
        1,
    ),
    Liars {
        is_ground: true,
        ..liars(
            "snapshot-lure-ground",
            "three of them under keys that are ground to be asked first by nodes whose draws come from their public key",
            Lie::Lure,
            3,
        )
    },
    liars(
        "snapshot-drip",
        "a server of a cheap snapshot that sends a kibibyte of it every 4 s",
        Lie::Drip,
        1,
    ),
    liars("stalling-servers", "six fresh servers that promise everything and answer nothing", Lie::Stall, 6),
    liars(
        "unasked-hints",
        "two servers that add 4 MiB of hints that nobody asked for to each of eight batches",
        Lie::Hints,
        2,
    ),
    liars("oversized-answers", "four servers that answer 40 MiB, whatever was asked", Lie::Oversized, 4),
    liars("literal-blobs", "a server of true batches whose compression it has undone", Lie::Literal, 1),
    liars("corrupt-answers", "three servers that change a byte of everything", Lie::Corrupt, 3),
    liars(
        "forged-heads",
        "three servers that tell of a head 1,000 batches ahead, under the signatures of the true one",
        Lie::Forged,
        3,
    ),
    liars("garbage-answers", "three servers that answer random bytes, whatever was asked", Lie::Garbage, 3),
    liars("foreign-genesis", "three servers that tell of another chain's genesis", Lie::ForeignGenesis, 3),
    liars(
        "strange-signatures",
        "three servers that put a stranger's signatures under all ranges",
        Lie::StrangeSignatures,
        3,
    ),
    liars(
        "grafted-batches",
        "three servers of other headers under true certificates",
        Lie::GraftedBatches,
        3,
    ),
    liars(
        "changed-money",
        "three servers whose deltas give every account one wei more",
        Lie::ChangedMoney,
        3,
    ),
    liars(
        "hidden-rows",
        "three servers that leave a row out of each chunk of a snapshot",
        Lie::HiddenRows,
        3,
    ),
    liars("changed-rows", "three servers that change a row of each chunk of a snapshot", Lie::ChangedRows, 3),
    liars("false-hints", "two servers whose hints tell a false value of each key", Lie::FalseHints, 2),
    liars(
        "unsigned-heads",
        "three servers that tell of the true head with too few of its signatures",
        Lie::UnsignedHeads,
        3,
    ),
    liars(
        "empty-promises",
        "three servers that promise all batches and snapshots of the newest, and have what others have",
        Lie::EmptyPromises,
        3,
    ),
    liars(
        "short-ranges",
        "three servers that send half of the batches that were asked for",
        Lie::ShortRanges,
        3,
    ),
    liars("empty-ranges", "three servers that send ranges without a batch", Lie::EmptyRanges, 3),
    liars(
        "shifted-ranges",
        "three servers that send the batches behind the first that was asked for",
        Lie::ShiftedRanges,
        3,
    ),
    liars(
        "missing-parts",
        "three servers that leave out bodies and state changes that were asked for",
        Lie::MissingParts,
        3,
    ),
    liars("changed-headers", "three servers that change a header of each range", Lie::ChangedHeaders, 3),
    liars(
        "unsigned-ranges",
        "three servers of ranges under a certificate with too few signatures",
        Lie::UnsignedRanges,
        3,
    ),
    liars("useless-hints", "two servers whose hints name nothing", Lie::UselessHints, 2),
    liars(
        "huge-hints",
        "two servers whose hints name 20,000 addresses that no transaction touches",
        Lie::HugeHints,
        2,
    ),
    liars("false-offers", "three servers that offer snapshots of another state", Lie::FalseOffers, 3),
    liars(
        "subtle-offers",
        "three servers that change an offered snapshot's header where no certificate looks",
        Lie::SubtleOffers,
        3,
    ),
    liars(
        "changed-ancestry",
        "three servers that change a header before each snapshot",
        Lie::ChangedAncestry,
        3,
    ),
    liars(
        "swapped-siblings",
        "three servers that swap the siblings of rows that a node has already",
        Lie::SwappedSiblings,
        3,
    ),
    liars("other-code", "three servers that send other code than was asked for", Lie::OtherCode, 3),
    liars(
        "corrupt-range-deltas",
        "three servers that change a byte of all range deltas",
        Lie::CorruptRangeDeltas,
        3,
    ),
    liars(
        "padded-range-deltas",
        "three servers that add rows that did not change to range deltas",
        Lie::PaddedRangeDeltas,
        3,
    ),
    liars(
        "false-validators",
        "three servers that put a stranger among the validators that an epoch's end names",
        Lie::FalseValidators,
        3,
    ),
    liars(
        "repeated-epochs",
        "three servers that tell each end of an epoch over and over, 64 in all",
        Lie::RepeatedEpochs,
        3,
    ),
    liars(
        "reversed-epochs",
        "three servers that tell the ends of epochs from the last to the first",
        Lie::ReversedEpochs,
        3,
    ),
    liars(
        "false-genesis",
        "16 servers that send a newcomer by a waypoint a genesis with 100,000 accounts more, beside the true ledger",
        Lie::FalseGenesis,
        16,
    ),
    liars(
        "late-answers",
        "three servers of true answers that hold each but summaries for 9.5 s",
        Lie::LateAnswers,
        3,
    ),
    liars("busy-servers", "three servers that are busy for all but summaries", Lie::BusyServers, 3),
];
