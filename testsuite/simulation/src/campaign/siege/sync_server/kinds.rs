//! The kinds of liars: their lies and numbers.

use slipnet::{devnet::SyncMode, scenario::fault::PeerLie};

use super::super::attack::Attack;

pub(in super::super) fn all() -> impl Iterator<Item = &'static dyn Attack> {
    ALL.iter().map(|liars| liars as &dyn Attack)
}

/// Returns the sync mode in which a lie matters most: for lies about ranges, a mode that only fetches ranges, and so
/// on. Range deltas need a mode that no node joins with here.
pub(super) fn shows_in(lie: PeerLie) -> SyncMode {
    match lie {
        PeerLie::ChangedMoney => SyncMode::Delta,
        PeerLie::HiddenRows
        | PeerLie::ChangedRows
        | PeerLie::FalseOffers
        | PeerLie::SubtleOffers
        | PeerLie::ChangedAncestry
        | PeerLie::SwappedSiblings
        | PeerLie::OtherCode => SyncMode::Snapshot,
        PeerLie::UnaskedHints
        | PeerLie::LiteralBlobs
        | PeerLie::CorruptAnswers
        | PeerLie::StrangeSignatures
        | PeerLie::GraftedBatches
        | PeerLie::FalseHints
        | PeerLie::EmptyRanges
        | PeerLie::MissingParts
        | PeerLie::ChangedHeaders
        | PeerLie::UnsignedRanges
        | PeerLie::UselessHints
        | PeerLie::HugeHints
        | PeerLie::ShortRanges
        | PeerLie::ShiftedRanges => SyncMode::Replay,
        _ => SyncMode::Auto,
    }
}

/// The `count` peers that tell the same lie.
pub(super) struct Liars {
    pub(super) lie: PeerLie,
    pub(super) count: usize,
    pub(super) about: &'static str,
}

const fn liars(lie: PeerLie, count: usize, about: &'static str) -> Liars {
    Liars { lie, count, about }
}

/// In the order in which `--list` shows them.
static ALL: [Liars; 40] = [
    liars(
        PeerLie::SnapshotLure,
        1,
        "a server that offers a snapshot of 0 bytes and 2^64-1 rows, holds every request for 9.5 s, and then says that it is busy",
    ),
    liars(
        PeerLie::SnapshotLureGround,
        3,
        "three such servers, with keys ground so that nodes that draw peers from their public key ask them first",
    ),
    liars(PeerLie::SnapshotDrip, 1, "a server that offers a cheap snapshot and sends 1 KiB of it every 4 s"),
    liars(PeerLie::StallingServers, 6, "six fresh servers that promise everything and answer nothing"),
    liars(
        PeerLie::UnaskedHints,
        2,
        "two servers that add 4 MiB of unrequested hints to each of eight batches",
    ),
    liars(PeerLie::OversizedAnswers, 4, "four servers that answer every request with 40 MiB"),
    liars(PeerLie::LiteralBlobs, 1, "a server that sends true batches without their compression"),
    liars(PeerLie::CorruptAnswers, 3, "three servers that change a byte of all batches and chunks"),
    liars(
        PeerLie::ForgedHeads,
        3,
        "three servers that announce a head 1,000 batches ahead, under the signatures of the true one",
    ),
    liars(PeerLie::GarbageAnswers, 3, "three servers that answer every request with random bytes"),
    liars(PeerLie::ForeignGenesis, 3, "three servers that report another chain's genesis"),
    liars(PeerLie::StrangeSignatures, 3, "three servers that put a stranger's signatures under all ranges"),
    liars(PeerLie::GraftedBatches, 3, "three servers that send other headers under true certificates"),
    liars(PeerLie::ChangedMoney, 3, "three servers whose deltas give every account one wei more"),
    liars(PeerLie::HiddenRows, 3, "three servers that leave a row out of each chunk of a snapshot"),
    liars(PeerLie::ChangedRows, 3, "three servers that change a row of each chunk of a snapshot"),
    liars(PeerLie::FalseHints, 2, "two servers whose hints give a false value for each key"),
    liars(
        PeerLie::UnsignedHeads,
        3,
        "three servers that announce the true head with too few of its signatures",
    ),
    liars(
        PeerLie::EmptyPromises,
        3,
        "three servers that promise all batches, and snapshots of the newest, but have no more than others",
    ),
    liars(PeerLie::ShortRanges, 3, "three servers that send half of the requested batches"),
    liars(PeerLie::EmptyRanges, 3, "three servers that send ranges without a batch"),
    liars(PeerLie::ShiftedRanges, 3, "three servers that send ranges that start one batch late"),
    liars(PeerLie::MissingParts, 3, "three servers that leave out requested bodies and state changes"),
    liars(PeerLie::ChangedHeaders, 3, "three servers that change a header of each range"),
    liars(
        PeerLie::UnsignedRanges,
        3,
        "three servers that send ranges under a certificate with too few signatures",
    ),
    liars(PeerLie::UselessHints, 2, "two servers whose hints name nothing"),
    liars(PeerLie::HugeHints, 2, "two servers whose hints name 20,000 addresses that no transaction touches"),
    liars(PeerLie::FalseOffers, 3, "three servers that offer snapshots of another state"),
    liars(
        PeerLie::SubtleOffers,
        3,
        "three servers that change an offered snapshot's header where no certificate covers it",
    ),
    liars(PeerLie::ChangedAncestry, 3, "three servers that change a header before each snapshot"),
    liars(
        PeerLie::SwappedSiblings,
        3,
        "three servers that swap the siblings of rows that a node already has",
    ),
    liars(PeerLie::OtherCode, 3, "three servers that send other code than requested"),
    liars(PeerLie::CorruptRangeDeltas, 3, "three servers that change a byte of all range deltas"),
    liars(PeerLie::PaddedRangeDeltas, 3, "three servers that add rows that did not change to range deltas"),
    liars(
        PeerLie::FalseValidators,
        3,
        "three servers that add a stranger to the validators that the end of an epoch names",
    ),
    liars(PeerLie::RepeatedEpochs, 3, "three servers that repeat each end of an epoch, up to 64 in all"),
    liars(PeerLie::ReversedEpochs, 3, "three servers that send the ends of epochs in reverse order"),
    liars(
        PeerLie::FalseGenesis,
        16,
        "16 servers that send a genesis with 100,000 additional accounts to a newcomer that trusts a waypoint, with the true ledger",
    ),
    liars(PeerLie::LateAnswers, 3, "three servers that hold each true answer except summaries for 9.5 s"),
    liars(PeerLie::BusyServers, 3, "three servers that say they are busy to every request except summaries"),
];
