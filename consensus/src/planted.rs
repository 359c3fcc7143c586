//! [`Planted`]: defences that a simulator removes, to see that its oracles notice. [`Defences`]: the defences that a
//! validator has.
//!
//! Only a program built with the feature `planted` can remove one. In any other, [`Defences::lacks`] is a constant
//! `false`, and the code behind it is not compiled.

use std::{fmt, str::FromStr};

/// The defences of a validator: all, or all but one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Defences {
    lacking: Option<Planted>,
}

/// The error of a program that cannot remove a defence.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "this program has all of its defences and cannot leave {0} out; build one that can: \
     cargo build -p slipstream-simulation --features planted"
)]
pub struct NotPlantable(pub Planted);

impl Defences {
    /// Removes one defence, or none.
    ///
    /// # Errors
    /// If this program is built without the feature `planted`.
    pub fn without(lacking: Option<Planted>) -> Result<Defences, NotPlantable> {
        match lacking {
            Some(planted) if !cfg!(feature = "planted") => Err(NotPlantable(planted)),
            lacking => Ok(Defences { lacking }),
        }
    }

    /// Removes the defence, if it is the protocol's, from all validators that this thread runs.
    pub fn plant(self) {
        #[cfg(feature = "planted")]
        slipstream_eve::plant(self.lacking.and_then(Planted::of_the_protocol));
    }

    /// Whether a defence is missing.
    pub(crate) fn lacks(self, planted: Planted) -> bool {
        cfg!(feature = "planted") && self.lacking == Some(planted)
    }
}

/// One defence that is missing.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, strum::VariantArray, strum::IntoStaticStr,
)]
#[strum(serialize_all = "kebab-case")]
pub enum Planted {
    /// Votes are sent while their record is being written.
    EarlyVotes,
    /// Votes are not recorded.
    UnsavedVotes,
    /// A record is written beside the one before it, and outputs that wait for both are sent after the first.
    OvertakingVotes,
    /// A restarted validator does not know its earlier votes.
    ForgottenVotes,
    /// An outcome is announced before it is kept.
    UnkeptOutcome,
    /// A restarted validator does not know the outcomes that it kept.
    ForgottenOutcomes,
    /// Outcomes that are rolled back are no longer kept.
    DroppedOutcomes,
    /// A fetched outcome is not compared with the agreed one.
    UncheckedOutcome,
    /// A batch counts as committed when its commit begins.
    EarlyCommit,
    /// An order's body is not compared with the digest that it names.
    UncheckedBody,
    /// An order's time is not compared with the clock.
    UncheckedClock,
    /// Proofs of misbehaviour are not kept over a restart.
    ForgottenEvidence,
    /// In the protocol: the last prepare is not on record.
    ForgetPrepare,
    /// In the protocol: the view is not on record.
    ForgetView,
    /// In the protocol: decisions go unrecorded while they are uncommitted.
    ForgetDecisions,
    /// In the protocol: a quorum of prepares needs one fewer.
    FewPrepares,
    /// In the protocol: a quorum of commits needs one fewer.
    FewCommits,
    /// In the protocol: one vote counts twice.
    CountTwice,
    /// In the protocol: one executor's token is enough.
    OneToken,
    /// In the protocol: votes of other views count.
    AnyView,
    /// In the protocol: a view begins without the outcome that was prepared before.
    IgnorePrepared,
    /// In the protocol: nothing is sent again.
    NeverTell,
}

impl Planted {
    /// All defences that can be removed.
    pub const ALL: &'static [Planted] = <Planted as strum::VariantArray>::VARIANTS;

    /// The protocol's fault that removes the defence.
    #[cfg(feature = "planted")]
    fn of_the_protocol(self) -> Option<slipstream_eve::Fault> {
        use slipstream_eve::Fault;
        Some(match self {
            Planted::ForgetPrepare => Fault::ForgetPrepare,
            Planted::ForgetView => Fault::ForgetView,
            Planted::ForgetDecisions => Fault::ForgetDecisions,
            Planted::FewPrepares => Fault::FewPrepares,
            Planted::FewCommits => Fault::FewCommits,
            Planted::CountTwice => Fault::CountTwice,
            Planted::OneToken => Fault::OneToken,
            Planted::AnyView => Fault::AnyView,
            Planted::IgnorePrepared => Fault::IgnorePrepared,
            Planted::NeverTell => Fault::NeverTell,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        self.into()
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
        let named = Planted::ALL.iter().copied().find(|planted| planted.name() == text);
        let named = named.ok_or_else(|| {
            let names: Vec<_> = Planted::ALL.iter().map(|planted| planted.name()).collect();
            format!("{text:?} is not a defence; the defences are {}", names.join(", "))
        })?;
        Defences::without(Some(named)).map_err(|error| error.to_string())?;
        Ok(named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a program that is built as nodes are has every defence, and says how to build one that can remove some.
    #[test]
    fn a_defence_is_left_out_only_by_a_program_built_for_it() {
        let parsed = "early-votes".parse::<Planted>();
        let without = Defences::without(Some(Planted::EarlyVotes));
        if cfg!(feature = "planted") {
            assert_eq!(parsed, Ok(Planted::EarlyVotes));
            assert!(without.is_ok_and(|defences| defences.lacks(Planted::EarlyVotes)));
        } else {
            assert!(parsed.is_err_and(|text| text.contains("--features planted")));
            assert!(without.is_err());
        }
        assert!(!Defences::default().lacks(Planted::EarlyVotes));
        assert!("no-such-thing".parse::<Planted>().is_err_and(|text| text.contains("early-votes")));
    }
}
