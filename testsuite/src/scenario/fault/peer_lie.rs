//! [`PeerLie`]: the catalogue of peers' lies. Scenarios name them, servers of the siege and of simulations tell them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The lie of peers that a fault gives to nodes. They get true data from an honest node.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::VariantArray,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "kebab-case")]
pub enum PeerLie {
    /// They announce a head 1,000 batches ahead, with the signatures of the true one.
    ForgedHeads,
    /// They answer every request with random bytes.
    GarbageAnswers,
    /// They change a byte in all batches and chunks.
    CorruptAnswers,
    /// They answer every request with 40 MiB of zeros.
    OversizedAnswers,
    /// They announce truthfully what they have, and answer nothing else.
    StallingServers,
    /// They offer an endless snapshot at no cost, hold every request for 9.5 s, and then say that they are busy.
    SnapshotLure,
    /// As `snapshot_lure`, with keys chosen by search: a node whose draws depend on its public key asks these peers
    /// first.
    SnapshotLureGround,
    /// They send a small snapshot in pieces of one KiB, one every four seconds.
    SnapshotDrip,
    /// They add 4 MiB of unrequested hints to each batch.
    UnaskedHints,
    /// They send true batches without compression.
    LiteralBlobs,
    /// They announce another chain's genesis with the true head.
    ForeignGenesis,
    /// They put a stranger's signatures on the batches that they send.
    StrangeSignatures,
    /// They send batches with other headers, each on top of the previous one, under the true certificate.
    GraftedBatches,
    /// They send state changes that give every account one wei more.
    ChangedMoney,
    /// They omit a row from each chunk of a snapshot.
    HiddenRows,
    /// They change a row of each chunk of a snapshot.
    ChangedRows,
    /// They send hints with a false value for each key.
    FalseHints,
    /// They announce the true head with too few of its signatures.
    UnsignedHeads,
    /// They claim to keep everything, and snapshots that they do not have.
    EmptyPromises,
    /// They send half of the requested batches.
    ShortRanges,
    /// They send no batches.
    EmptyRanges,
    /// They send the batches after the first requested one.
    ShiftedRanges,
    /// They omit requested bodies and state changes.
    MissingParts,
    /// They change a header among the batches that they send.
    ChangedHeaders,
    /// They send batches under a certificate with too few signatures.
    UnsignedRanges,
    /// They send hints that name nothing.
    UselessHints,
    /// They send hints that name 20,000 addresses that no transaction touches.
    HugeHints,
    /// They offer snapshots of another state.
    FalseOffers,
    /// They change a part of an offered snapshot's header that no certificate covers.
    SubtleOffers,
    /// They change a header before each snapshot.
    ChangedAncestry,
    /// They swap the siblings of rows that a node already has.
    SwappedSiblings,
    /// They send different code than requested.
    OtherCode,
    /// They change a byte of all range deltas.
    CorruptRangeDeltas,
    /// They add unchanged rows to range deltas.
    PaddedRangeDeltas,
    /// They put a stranger among the validators that an epoch's end names.
    FalseValidators,
    /// They send each epoch end over and over.
    RepeatedEpochs,
    /// They send epoch ends from the last to the first.
    ReversedEpochs,
    /// They send a genesis with 100,000 more accounts, with the true ledger.
    FalseGenesis,
    /// They hold each true answer except summaries for 9.5 s.
    LateAnswers,
    /// They are busy for all requests except summaries.
    BusyServers,
}

impl PeerLie {
    /// All of them.
    pub const ALL: &'static [PeerLie] = <PeerLie as strum::VariantArray>::VARIANTS;

    /// Returns the lie's name in the liars' program.
    pub fn of_program(self) -> &'static str {
        self.into()
    }

    /// Its name in the file.
    pub fn name(self) -> String {
        self.of_program().replace('-', "_")
    }

    /// Returns the lie with this name in the file.
    pub(in crate::scenario) fn named(name: &str) -> Option<PeerLie> {
        PeerLie::ALL.iter().copied().find(|lie| lie.name() == name)
    }

    /// Returns the lie of an attack of the siege; `None` if the attack is not by servers.
    pub fn of_attack(name: &str) -> Option<PeerLie> {
        PeerLie::ALL.iter().copied().find(|lie| lie.of_program() == name)
    }

    /// Whether a node that hears it has proof.
    pub fn can_be_proven(self) -> bool {
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

    /// Whether every node hears it. Each node asks its peers twice a second what they have, but asks for batches only
    /// when it lacks some.
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
        for &lie in PeerLie::ALL {
            assert_eq!(json!(lie), json!(lie.name()));
            assert_eq!(PeerLie::named(&lie.name()), Some(lie));
            assert_eq!(PeerLie::of_attack(lie.of_program()), Some(lie));
            assert!(lie.can_be_proven() || !lie.is_told_to_all(), "{lie:?}");
        }
    }
}
