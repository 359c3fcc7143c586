//! [`Planted`]: the defences that a simulator can leave out, to see that the simulator's oracles notice; [`Defences`]:
//! those of a node.
//!
//! Only a program built with the feature `planted` can leave one out. In any other program [`Defences::lacks`] is a
//! constant `false`, and the code behind it is not compiled. Where a seam of the daemon is enough, this crate has no
//! code for a defect. The simulator then plants it outside: at a node's start, in its jobs or in its transport.

use std::{fmt, str::FromStr};

/// The defences of a node: all, or all but one.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Defences {
    lacking: Option<Planted>,
}

/// The error of a program that cannot leave a defence out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "this program has all of its defences and cannot leave {0} out; build one that can: \
     cargo build -p slipstream-simulation --features planted"
)]
#[doc(hidden)]
pub struct NotPlantable(pub Planted);

impl Defences {
    /// All defences but one, or all of them.
    ///
    /// # Errors
    /// If this program is built without the feature `planted`.
    pub fn without(lacking: Option<Planted>) -> Result<Defences, NotPlantable> {
        match lacking {
            Some(planted) if !cfg!(feature = "planted") => Err(NotPlantable(planted)),
            lacking => Ok(Defences { lacking }),
        }
    }

    /// Whether a defence is left out.
    pub fn lacks(self, planted: Planted) -> bool {
        cfg!(feature = "planted") && self.lacking == Some(planted)
    }
}

/// A defence that is left out.
#[doc(hidden)]
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, strum::VariantArray, strum::IntoStaticStr,
)]
#[strum(serialize_all = "kebab-case")]
pub enum Planted {
    /// The certificate of a summary's head is not checked.
    UnsignedSummary,
    /// A summary's chain is not checked. Left out by the simulator's transport.
    ForeignSummary,
    /// The certificate of a range is not checked.
    UnsignedRange,
    /// The place of a range's headers in the certified ledger is not checked.
    UnprovenRange,
    /// The digests of a range's bodies are not checked.
    UnhashedBody,
    /// The digests of a range's deltas are not checked.
    UnhashedDelta,
    /// A range may lack parts that were asked for.
    MissingPart,
    /// A peer gets its credit before its answer is checked.
    CreditFirst,
    /// A range whose answer was lost is never asked for again.
    LostRange,
    /// A restarted node does not remember its restore. Left out by the simulator's start of a node.
    ForgottenRestore,
    /// Rows whose proof fails count as added. Left out by the simulator's jobs.
    UnprovenChunk,
    /// Code is not compared with its hash. Left out by the simulator's jobs.
    UnhashedCode,
    /// A refusal gets its sender banned.
    RefusalBans,
    /// A pause does not end.
    EndlessPause,
    /// Batches are committed whatever the operator's waypoint says. Left out by the simulator's start of a node.
    NoWaypoint,
    /// The values in hints are not compared with the store's.
    BelievedValues,
    /// No other peer is asked before a request's deadline, however late its answer is.
    LateHedge,
    /// Snapshots that peers promised and did not send are chosen again at once.
    RepeatedPromise,
}

impl Planted {
    /// All planted faults.
    pub const ALL: &'static [Planted] = <Planted as strum::VariantArray>::VARIANTS;

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

    /// Goal: a program built as nodes are has every defence, and says how to build one that can leave some out.
    #[test]
    fn a_defence_is_left_out_only_by_a_program_built_for_it() {
        let parsed = "unsigned-range".parse::<Planted>();
        let without = Defences::without(Some(Planted::UnsignedRange));
        if cfg!(feature = "planted") {
            assert_eq!(parsed, Ok(Planted::UnsignedRange));
            assert!(without.is_ok_and(|defences| defences.lacks(Planted::UnsignedRange)));
        } else {
            assert!(parsed.is_err_and(|text| text.contains("--features planted")));
            assert!(without.is_err());
        }
        assert!(!Defences::default().lacks(Planted::UnsignedRange));
        assert!("no-such-thing".parse::<Planted>().is_err_and(|text| text.contains("unsigned-range")));
    }
}
