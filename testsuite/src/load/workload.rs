//! [`Workload`] and [`Mix`]: kinds of transactions, and their shares.

use std::{fmt, str::FromStr};

use clap::ValueEnum;
use rand::Rng;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The highest weight of one kind: shares are then exact to a thousandth of a percent, and sums do not overflow.
const WEIGHT_MAX: u32 = 100_000;

/// A kind of transaction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Plain transfers, half of them to new addresses, half in legacy envelopes and half in those of EIP-1559.
    Transfers,
    /// Transfers of an ERC-20, half of them to new addresses: conflicts are rare.
    Erc20,
    /// Swaps at one constant-product pair: every transaction conflicts with every other.
    Amm,
    /// Twenty slots read and twenty written, chosen from a million: the state is read and grows.
    Storage,
    /// Plain transfers to one account: every transaction conflicts with every other.
    HotSpot,
    /// Creations of a small contract.
    Deploy,
    /// Replays of the slots that mainnet transactions touched; needs a directory of access lists.
    AccessLists,
}

impl Workload {
    /// The kind's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Transfers => "transfers",
            Workload::Erc20 => "erc20",
            Workload::Amm => "amm",
            Workload::Storage => "storage",
            Workload::HotSpot => "hot-spot",
            Workload::Deploy => "deploy",
            Workload::AccessLists => "access-lists",
        }
    }
}

/// Kinds of transactions with their weights: at least one kind, each named once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mix(Vec<(Workload, u32)>);

/// The reason why a text is no mix.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum MixError {
    /// An unknown kind.
    #[error("{0}: there is no such workload; the workloads are {all}", all = all_names())]
    Unknown(String),
    /// A weight that is not a number within the bounds.
    #[error("{kind}={weight}: a weight is a whole number from 1 to {WEIGHT_MAX}")]
    Weight {
        /// The kind with this weight.
        kind: String,
        /// The text after the `=`.
        weight: String,
    },
    /// A kind that is named twice.
    #[error("{0} is named twice: add its weights up")]
    Twice(&'static str),
}

fn all_names() -> String {
    Workload::value_variants().iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ")
}

impl Mix {
    /// Returns the kinds, in the order in which they were named.
    pub fn kinds(&self) -> impl Iterator<Item = Workload> {
        self.0.iter().map(|(kind, _)| *kind)
    }

    /// Whether any transaction is of this kind.
    pub fn has(&self, kind: Workload) -> bool {
        self.kinds().any(|other| other == kind)
    }

    /// Draws the kind of one transaction, by weight.
    pub(super) fn choose(&self, random: &mut impl Rng) -> Workload {
        let sum: u32 = self.0.iter().map(|(_, weight)| *weight).sum();
        let mut dice = random.random_range(0..sum);
        for (kind, weight) in &self.0 {
            match dice.checked_sub(*weight) {
                Some(rest) => dice = rest,
                None => return *kind,
            }
        }
        self.0[0].0
    }
}

impl From<Workload> for Mix {
    fn from(kind: Workload) -> Self {
        Self(vec![(kind, 1)])
    }
}

impl FromStr for Mix {
    type Err = MixError;

    /// Parses `transfers`, or `transfers=7,erc20=2,amm=1`. A kind without a weight weighs 1.
    fn from_str(text: &str) -> Result<Self, MixError> {
        let mut kinds: Vec<(Workload, u32)> = Vec::new();
        for part in text.split(',') {
            let (name, weight) = part.split_once('=').unwrap_or((part, "1"));
            let (name, weight) = (name.trim(), weight.trim());
            let kind = Workload::value_variants().iter().find(|kind| kind.name() == name);
            let kind = *kind.ok_or_else(|| MixError::Unknown(name.to_owned()))?;
            let number = weight.parse::<u32>().ok().filter(|number| (1..=WEIGHT_MAX).contains(number));
            let wrong = || MixError::Weight { kind: name.to_owned(), weight: weight.to_owned() };
            if kinds.iter().any(|(other, _)| *other == kind) {
                return Err(MixError::Twice(kind.name()));
            }
            kinds.push((kind, number.ok_or_else(wrong)?));
        }
        Ok(Self(kinds))
    }
}

impl TryFrom<String> for Mix {
    type Error = MixError;

    fn try_from(text: String) -> Result<Self, MixError> {
        text.parse()
    }
}

impl From<Mix> for String {
    fn from(mix: Mix) -> Self {
        mix.to_string()
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [(kind, _)] = self.0.as_slice() {
            return f.write_str(kind.name());
        }
        for (index, (kind, weight)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{}={weight}", kind.name())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    #[test]
    fn a_mix_survives_its_text_and_chooses_by_weight() {
        let mix: Mix = "transfers=7, erc20=2,amm".parse().unwrap();
        assert_eq!(mix.to_string(), "transfers=7,erc20=2,amm=1");
        assert_eq!(mix.to_string().parse(), Ok(mix.clone()));
        let mut random = StdRng::seed_from_u64(1);
        let chosen: Vec<_> = (0..10_000).map(|_| mix.choose(&mut random)).collect();
        let share = |kind| chosen.iter().filter(|it| **it == kind).count() as f64 / 10_000.0;
        assert!((share(Workload::Transfers) - 0.7).abs() < 0.03);
        assert!((share(Workload::Amm) - 0.1).abs() < 0.03);
        assert_eq!(Mix::from(Workload::HotSpot).to_string(), "hot-spot");
    }

    #[test]
    fn every_kind_has_the_same_name_everywhere() {
        for kind in Workload::value_variants() {
            assert_eq!(kind.to_possible_value().unwrap().get_name(), kind.name());
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }

    #[test]
    fn what_is_no_mix_is_refused_with_what_to_do() {
        let error = |text: &str| text.parse::<Mix>().unwrap_err().to_string();
        assert!(error("transfer").contains("hot-spot"), "{}", error("transfer"));
        assert!(error("").contains("no such workload"));
        assert!(error("amm=0").contains("1 to 100000"));
        assert!(error("amm=1,amm=2").contains("twice"));
    }
}
