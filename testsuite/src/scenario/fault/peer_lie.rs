//! [`PeerLie`]: how the peers lie that a fault gives to nodes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How peers lie that a fault gives to nodes. They take the truth from an honest node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PeerLie {
    /// They tell of a head 1,000 batches ahead, under the signatures of the true one.
    ForgedHeads,
    /// They answer random bytes, whatever is asked.
    GarbageAnswers,
    /// They change a byte of all batches and chunks.
    CorruptAnswers,
    /// They answer 40 MiB of zeros, whatever is asked.
    OversizedAnswers,
    /// They tell the truth about what they have, and answer nothing else.
    StallingServers,
    /// They offer a snapshot that is free and endless, hold every request for 9.5 s, and are busy then.
    SnapshotLure,
    /// The same, under keys that are ground to be asked first by a node whose draws come from its public key.
    SnapshotLureGround,
    /// They send a cheap snapshot in pieces of a KiB, one every four seconds.
    SnapshotDrip,
    /// They add 4 MiB of hints that nobody asked for to each batch.
    UnaskedHints,
    /// They send true batches whose compression they have undone.
    LiteralBlobs,
    /// They tell of another chain's genesis beside the true head.
    ForeignGenesis,
    /// They put a stranger's signatures under the batches that they send.
    StrangeSignatures,
    /// They send batches with other headers, each on the one before, under the true certificate.
    GraftedBatches,
    /// They send state changes that give every account one wei more.
    ChangedMoney,
    /// They leave a row out of each chunk of a snapshot.
    HiddenRows,
    /// They change a row of each chunk of a snapshot.
    ChangedRows,
    /// They send hints that tell a false value of each key.
    FalseHints,
    /// They tell of the true head with too few of its signatures.
    UnsignedHeads,
    /// They promise to keep everything, and snapshots that they have not.
    EmptyPromises,
    /// They send half of the batches that were asked for.
    ShortRanges,
    /// They send no batch.
    EmptyRanges,
    /// They send the batches behind the first that was asked for.
    ShiftedRanges,
    /// They leave out bodies and state changes that were asked for.
    MissingParts,
    /// They change a header among the batches that they send.
    ChangedHeaders,
    /// They send batches under a certificate with too few signatures.
    UnsignedRanges,
    /// They send hints that name nothing.
    UselessHints,
    /// They send hints that name 20,000 addresses which no transaction touches.
    HugeHints,
    /// They offer snapshots of another state.
    FalseOffers,
    /// They change an offered snapshot's header where no certificate looks.
    SubtleOffers,
    /// They change a header before each snapshot.
    ChangedAncestry,
    /// They swap the siblings of rows that a node has already.
    SwappedSiblings,
    /// They send other code than was asked for.
    OtherCode,
    /// They change a byte of all range deltas.
    CorruptRangeDeltas,
    /// They add rows that did not change to range deltas.
    PaddedRangeDeltas,
    /// They put a stranger among the validators that an epoch's end names.
    FalseValidators,
    /// They tell each end of an epoch over and over.
    RepeatedEpochs,
    /// They tell the ends of epochs from the last to the first.
    ReversedEpochs,
    /// They send a genesis with 100,000 more accounts beside the true ledger.
    FalseGenesis,
    /// They hold each true answer but summaries for 9.5 s.
    LateAnswers,
    /// They are busy for all but summaries.
    BusyServers,
}

impl PeerLie {
    /// All of them.
    pub const ALL: [PeerLie; 40] = [
        PeerLie::ForgedHeads,
        PeerLie::GarbageAnswers,
        PeerLie::CorruptAnswers,
        PeerLie::OversizedAnswers,
        PeerLie::StallingServers,
        PeerLie::SnapshotLure,
        PeerLie::SnapshotLureGround,
        PeerLie::SnapshotDrip,
        PeerLie::UnaskedHints,
        PeerLie::LiteralBlobs,
        PeerLie::ForeignGenesis,
        PeerLie::StrangeSignatures,
        PeerLie::GraftedBatches,
        PeerLie::ChangedMoney,
        PeerLie::HiddenRows,
        PeerLie::ChangedRows,
        PeerLie::FalseHints,
        PeerLie::UnsignedHeads,
        PeerLie::EmptyPromises,
        PeerLie::ShortRanges,
        PeerLie::EmptyRanges,
        PeerLie::ShiftedRanges,
        PeerLie::MissingParts,
        PeerLie::ChangedHeaders,
        PeerLie::UnsignedRanges,
        PeerLie::UselessHints,
        PeerLie::HugeHints,
        PeerLie::FalseOffers,
        PeerLie::SubtleOffers,
        PeerLie::ChangedAncestry,
        PeerLie::SwappedSiblings,
        PeerLie::OtherCode,
        PeerLie::CorruptRangeDeltas,
        PeerLie::PaddedRangeDeltas,
        PeerLie::FalseValidators,
        PeerLie::RepeatedEpochs,
        PeerLie::ReversedEpochs,
        PeerLie::FalseGenesis,
        PeerLie::LateAnswers,
        PeerLie::BusyServers,
    ];

    /// As the program of the liars knows it.
    pub fn of_program(self) -> &'static str {
        match self {
            PeerLie::ForgedHeads => "forged-heads",
            PeerLie::GarbageAnswers => "garbage-answers",
            PeerLie::CorruptAnswers => "corrupt-answers",
            PeerLie::OversizedAnswers => "oversized-answers",
            PeerLie::StallingServers => "stalling-servers",
            PeerLie::SnapshotLure => "snapshot-lure",
            PeerLie::SnapshotLureGround => "snapshot-lure-ground",
            PeerLie::SnapshotDrip => "snapshot-drip",
            PeerLie::UnaskedHints => "unasked-hints",
            PeerLie::LiteralBlobs => "literal-blobs",
            PeerLie::ForeignGenesis => "foreign-genesis",
            PeerLie::StrangeSignatures => "strange-signatures",
            PeerLie::GraftedBatches => "grafted-batches",
            PeerLie::ChangedMoney => "changed-money",
            PeerLie::HiddenRows => "hidden-rows",
            PeerLie::ChangedRows => "changed-rows",
            PeerLie::FalseHints => "false-hints",
            PeerLie::UnsignedHeads => "unsigned-heads",
            PeerLie::EmptyPromises => "empty-promises",
            PeerLie::ShortRanges => "short-ranges",
            PeerLie::EmptyRanges => "empty-ranges",
            PeerLie::ShiftedRanges => "shifted-ranges",
            PeerLie::MissingParts => "missing-parts",
            PeerLie::ChangedHeaders => "changed-headers",
            PeerLie::UnsignedRanges => "unsigned-ranges",
            PeerLie::UselessHints => "useless-hints",
            PeerLie::HugeHints => "huge-hints",
            PeerLie::FalseOffers => "false-offers",
            PeerLie::SubtleOffers => "subtle-offers",
            PeerLie::ChangedAncestry => "changed-ancestry",
            PeerLie::SwappedSiblings => "swapped-siblings",
            PeerLie::OtherCode => "other-code",
            PeerLie::CorruptRangeDeltas => "corrupt-range-deltas",
            PeerLie::PaddedRangeDeltas => "padded-range-deltas",
            PeerLie::FalseValidators => "false-validators",
            PeerLie::RepeatedEpochs => "repeated-epochs",
            PeerLie::ReversedEpochs => "reversed-epochs",
            PeerLie::FalseGenesis => "false-genesis",
            PeerLie::LateAnswers => "late-answers",
            PeerLie::BusyServers => "busy-servers",
        }
    }

    /// Its name in the file.
    pub fn name(self) -> String {
        self.of_program().replace('-', "_")
    }

    /// The one of a name in the file.
    pub(in crate::scenario) fn named(name: &str) -> Option<PeerLie> {
        PeerLie::ALL.into_iter().find(|lie| lie.name() == name)
    }

    /// The one of an attack of the siege; none if that attacks by itself.
    pub(in crate::scenario) fn of_attack(name: &str) -> Option<PeerLie> {
        PeerLie::ALL.into_iter().find(|lie| lie.of_program() == name)
    }

    /// Whether a node that is told it has proof.
    pub(in crate::scenario) fn can_be_proven(self) -> bool {
        matches!(
            self,
            PeerLie::ForgedHeads
                | PeerLie::GarbageAnswers
                | PeerLie::CorruptAnswers
                | PeerLie::ForeignGenesis
                | PeerLie::StrangeSignatures
                | PeerLie::GraftedBatches
                | PeerLie::ChangedMoney
                | PeerLie::HiddenRows
                | PeerLie::ChangedRows
                | PeerLie::UnsignedHeads
                | PeerLie::EmptyRanges
                | PeerLie::ShiftedRanges
                | PeerLie::MissingParts
                | PeerLie::ChangedHeaders
                | PeerLie::UnsignedRanges
                | PeerLie::FalseOffers
                | PeerLie::ChangedAncestry
                | PeerLie::OtherCode
                | PeerLie::CorruptRangeDeltas
                | PeerLie::FalseValidators
                | PeerLie::RepeatedEpochs
                | PeerLie::ReversedEpochs
                | PeerLie::FalseGenesis
        )
    }

    /// Whether a node hears it, whatever it does: each asks its peers what they have twice a second, and batches only when it lacks some.
    pub(in crate::scenario) fn is_told_to_all(self) -> bool {
        matches!(
            self,
            PeerLie::ForgedHeads | PeerLie::GarbageAnswers | PeerLie::ForeignGenesis | PeerLie::UnsignedHeads
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lies_of_peers_have_one_name_in_files_and_reports() {
        for lie in PeerLie::ALL {
            assert_eq!(json!(lie), json!(lie.name()));
            assert_eq!(PeerLie::named(&lie.name()), Some(lie));
            assert_eq!(PeerLie::of_attack(lie.of_program()), Some(lie));
            assert!(lie.can_be_proven() || !lie.is_told_to_all(), "{lie:?}");
        }
    }
}
