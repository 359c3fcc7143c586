//! [`Planted`]: defences that a simulator leaves out, to see that its oracles notice. A node never does: nothing sets one but
//! [`crate::engine::Setup::planted`] and [`crate::work::Worker::with_planted`], which only `slipnet sim` uses.

use std::{fmt, str::FromStr};

/// One defence that is missing.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Planted {
    /// The certificate of a summary's head is not checked.
    UnsignedSummary,
    /// Nor whether a summary is of this chain.
    ForeignSummary,
    /// The certificate of a range is not checked.
    UnsignedRange,
    /// Nor whether its headers stand in the certified ledger.
    UnprovenRange,
    /// Nor the digests of its bodies.
    UnhashedBody,
    /// Nor those of its deltas.
    UnhashedDelta,
    /// Nor whether parts are there that were asked for.
    MissingPart,
    /// A peer has its credit before its answer is checked.
    CreditFirst,
    /// A range whose answer did not come is not asked for again.
    LostRange,
    /// A restarted node does not know its restore.
    ForgottenRestore,
    /// Rows whose proof fails count as added.
    UnprovenChunk,
    /// Code is not compared with its hash.
    UnhashedCode,
    /// A refusal bans.
    RefusalBans,
    /// A pause does not end.
    EndlessPause,
    /// Batches are committed whatever the operator's waypoint says.
    NoWaypoint,
    /// The values that hints tell are not compared with the store's.
    BelievedValues,
}

impl Planted {
    /// Every one.
    pub const ALL: [Planted; 16] = [
        Planted::UnsignedSummary,
        Planted::ForeignSummary,
        Planted::UnsignedRange,
        Planted::UnprovenRange,
        Planted::UnhashedBody,
        Planted::UnhashedDelta,
        Planted::MissingPart,
        Planted::CreditFirst,
        Planted::LostRange,
        Planted::ForgottenRestore,
        Planted::UnprovenChunk,
        Planted::UnhashedCode,
        Planted::RefusalBans,
        Planted::EndlessPause,
        Planted::NoWaypoint,
        Planted::BelievedValues,
    ];

    fn name(self) -> &'static str {
        match self {
            Planted::UnsignedSummary => "unsigned-summary",
            Planted::ForeignSummary => "foreign-summary",
            Planted::UnsignedRange => "unsigned-range",
            Planted::UnprovenRange => "unproven-range",
            Planted::UnhashedBody => "unhashed-body",
            Planted::UnhashedDelta => "unhashed-delta",
            Planted::MissingPart => "missing-part",
            Planted::CreditFirst => "credit-first",
            Planted::LostRange => "lost-range",
            Planted::ForgottenRestore => "forgotten-restore",
            Planted::UnprovenChunk => "unproven-chunk",
            Planted::UnhashedCode => "unhashed-code",
            Planted::RefusalBans => "refusal-bans",
            Planted::EndlessPause => "endless-pause",
            Planted::NoWaypoint => "no-waypoint",
            Planted::BelievedValues => "believed-values",
        }
    }
}

impl fmt::Display for Planted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Planted {
    type Err = String;

    fn from_str(text: &str) -> Result<Planted, String> {
        let named = Planted::ALL.into_iter().find(|planted| planted.name() == text);
        named.ok_or_else(|| {
            let names: Vec<_> = Planted::ALL.iter().map(|planted| planted.name()).collect();
            format!("{text:?} is no defence; they are {}", names.join(", "))
        })
    }
}
