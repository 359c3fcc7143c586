//! The kinds of liars: names, behaviours, and numbers.

use slipnet::devnet::SyncMode;

use super::super::attack::Attack;

pub(in super::super) fn all() -> impl Iterator<Item = &'static dyn Attack> {
    ALL.iter().map(|liars| liars as &dyn Attack)
}

/// A liar's behaviour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lie {
    /// Offers a snapshot that is free and endless, holds every request, and then refuses it as busy.
    Lure,
    /// Serves the snapshot in pieces of a kibibyte, one every few seconds.
    Drip,
    /// Sends a true summary, and never answers anything else.
    Stall,
    /// Adds hints that were not requested.
    Hints,
    /// Answers every request with 40 MiB of zeros.
    Oversized,
    /// Sends true parts uncompressed.
    Literal,
    /// Changes a byte of every chunk and part.
    Corrupt,
    /// Announces a head far ahead, under the signatures of the true one.
    Forged,
    /// Answers every request with random bytes.
    Garbage,
    /// Claims another chain's genesis, and is otherwise truthful.
    ForeignGenesis,
    /// Replaces the signatures of ranges by a stranger's.
    StrangeSignatures,
    /// Sends other headers, each linked to its predecessor, under the true certificate.
    GraftedBatches,
    /// Sends deltas that give every account one wei more.
    ChangedMoney,
    /// Leaves one row out of each chunk.
    HiddenRows,
    /// Changes one row of each chunk.
    ChangedRows,
    /// Adds a false value of each key to hints.
    FalseHints,
    /// Announces the true head with too few of its signatures.
    UnsignedHeads,
    /// Promises to keep everything, and offers snapshots that it does not have.
    EmptyPromises,
    /// Sends half of the batches.
    ShortRanges,
    /// Sends no batch.
    EmptyRanges,
    /// Sends the batches after the first one.
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
    /// Changes an offered header in a field that no certificate covers.
    SubtleOffers,
    /// Changes a header before each snapshot.
    ChangedAncestry,
    /// Swaps the siblings of the two ends of a range of rows.
    SwappedSiblings,
    /// Sends code other than what was requested.
    OtherCode,
    /// Changes a byte of each range delta.
    CorruptRangeDeltas,
    /// Adds unchanged rows to range deltas.
    PaddedRangeDeltas,
    /// Puts a stranger among the validators of the next epoch.
    FalseValidators,
    /// Repeats each epoch end.
    RepeatedEpochs,
    /// Sends epoch ends in reverse order.
    ReversedEpochs,
    /// Sends a genesis with 100,000 extra accounts beside the true ledger.
    FalseGenesis,
    /// Holds each true answer, except summaries, until just before the deadline.
    LateAnswers,
    /// Refuses all requests except summaries as busy.
    BusyServers,
}

impl Lie {
    /// Returns the sync mode in which the lie matters most: for lies about ranges one that only fetches ranges, and so
    /// on. Range deltas need a mode that no node joins with here.
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

    /// Whether it changes the batches of a range, or its certificate.
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

/// The `count` peers that tell the same lie.
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

/// In the order in which `--list` shows them.
static ALL: [Liars; 40] = [
    liars(
        "snapshot-lure",
        "a server that offers a snapshot of 0 bytes and 2^64-1 rows, holds every request for 9.5 s, and then says that it is busy",
        Lie::Lure,
        1,
    ),
    Liars {
        is_ground: true,
        ..liars(
            "snapshot-lure-ground",
            "three such servers, with keys ground so that nodes that draw peers from their public key ask them first",
            Lie::Lure,
            3,
        )
    },
    liars(
        "snapshot-drip",
        "a server that offers a cheap snapshot and sends 1 KiB of it every 4 s",
        Lie::Drip,
        1,
    ),
    liars("stalling-servers", "six fresh servers that promise everything and answer nothing", Lie::Stall, 6),
    liars(
        "unasked-hints",
        "two servers that add 4 MiB of unrequested hints to each of eight batches",
        Lie::Hints,
        2,
    ),
    liars("oversized-answers", "four servers that answer every request with 40 MiB", Lie::Oversized, 4),
    liars("literal-blobs", "a server that sends true batches without their compression", Lie::Literal, 1),
    liars("corrupt-answers", "three servers that change a byte of all batches and chunks", Lie::Corrupt, 3),
    liars(
        "forged-heads",
        "three servers that announce a head 1,000 batches ahead, under the signatures of the true one",
        Lie::Forged,
        3,
    ),
    liars("garbage-answers", "three servers that answer every request with random bytes", Lie::Garbage, 3),
    liars("foreign-genesis", "three servers that report another chain's genesis", Lie::ForeignGenesis, 3),
    liars(
        "strange-signatures",
        "three servers that put a stranger's signatures under all ranges",
        Lie::StrangeSignatures,
        3,
    ),
    liars(
        "grafted-batches",
        "three servers that send other headers under true certificates",
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
    liars("false-hints", "two servers whose hints give a false value for each key", Lie::FalseHints, 2),
    liars(
        "unsigned-heads",
        "three servers that announce the true head with too few of its signatures",
        Lie::UnsignedHeads,
        3,
    ),
    liars(
        "empty-promises",
        "three servers that promise all batches, and snapshots of the newest, but have no more than others",
        Lie::EmptyPromises,
        3,
    ),
    liars("short-ranges", "three servers that send half of the requested batches", Lie::ShortRanges, 3),
    liars("empty-ranges", "three servers that send ranges without a batch", Lie::EmptyRanges, 3),
    liars(
        "shifted-ranges",
        "three servers that send ranges that start one batch late",
        Lie::ShiftedRanges,
        3,
    ),
    liars(
        "missing-parts",
        "three servers that leave out requested bodies and state changes",
        Lie::MissingParts,
        3,
    ),
    liars("changed-headers", "three servers that change a header of each range", Lie::ChangedHeaders, 3),
    liars(
        "unsigned-ranges",
        "three servers that send ranges under a certificate with too few signatures",
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
        "three servers that change an offered snapshot's header where no certificate covers it",
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
        "three servers that swap the siblings of rows that a node already has",
        Lie::SwappedSiblings,
        3,
    ),
    liars("other-code", "three servers that send other code than requested", Lie::OtherCode, 3),
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
        "three servers that add a stranger to the validators that the end of an epoch names",
        Lie::FalseValidators,
        3,
    ),
    liars(
        "repeated-epochs",
        "three servers that repeat each end of an epoch, up to 64 in all",
        Lie::RepeatedEpochs,
        3,
    ),
    liars(
        "reversed-epochs",
        "three servers that send the ends of epochs in reverse order",
        Lie::ReversedEpochs,
        3,
    ),
    liars(
        "false-genesis",
        "16 servers that send a genesis with 100,000 additional accounts to a newcomer that trusts a waypoint, with the true ledger",
        Lie::FalseGenesis,
        16,
    ),
    liars(
        "late-answers",
        "three servers that hold each true answer except summaries for 9.5 s",
        Lie::LateAnswers,
        3,
    ),
    liars(
        "busy-servers",
        "three servers that say they are busy to every request except summaries",
        Lie::BusyServers,
        3,
    ),
];
