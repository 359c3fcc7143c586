//! [`Schedule`]: how the rules of a chain change after its genesis, without another genesis.
//!
//! The genesis fixes the chain's identity and its first rules. A schedule names the later forks in order. Operators
//! extend its file, which is not part of the identity. Every header has the [`RulesId`] of its execution, which binds
//! all forks up to then: so nodes see at each batch whether they agree. A node that lacks a fork follows up to it,
//! stops there, and reports why.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    batch::BatchNumber,
    bounded::BoundedVec,
    chain::{Fork, Rules, RulesId},
    digest::Digest,
    limits,
};

/// The forks of a schedule, or those that a peer lists.
pub type Forks = BoundedVec<ScheduledFork, { limits::FORKS_MAX }>;

/// The point from which a fork holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// The fork holds from this batch on.
    Batch(BatchNumber),
    /// From the first batch on whose timestamp is this or later, in milliseconds since 1970.
    TimeMs(u64),
}

impl Activation {
    /// Whether the fork holds for a batch.
    pub fn holds(self, number: BatchNumber, timestamp_ms: u64) -> bool {
        match self {
            Activation::Batch(first) => number >= first,
            Activation::TimeMs(first_ms) => timestamp_ms >= first_ms,
        }
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Activation::Batch(first) => write!(f, "batch {first}"),
            Activation::TimeMs(first_ms) => write!(f, "{first_ms} ms since 1970"),
        }
    }
}

/// One change of the rules. Omitted fields stay as they are.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduledFork {
    /// The operators' name for the fork: 1 to 32 of `a-z`, `0-9` and `-`.
    pub name: String,
    /// The point from which the fork holds, if the earlier forks do.
    pub at: Activation,
    /// New EVM rules, if they change.
    #[serde(default)]
    pub fork: Option<Fork>,
    /// Maximum gas that one batch may use.
    #[serde(default)]
    pub gas_limit: Option<u64>,
    /// Maximum gas that one transaction may ask for.
    #[serde(default)]
    pub transaction_gas_max: Option<u64>,
    /// Base fee of every batch, in wei per gas.
    #[serde(default)]
    pub base_fee_wei: Option<u64>,
}

impl ScheduledFork {
    /// A change of the EVM's rules.
    pub fn evm(name: &str, at: Activation, fork: Fork) -> ScheduledFork {
        let [gas_limit, transaction_gas_max, base_fee_wei] = [None; 3];
        ScheduledFork {
            name: name.into(),
            at,
            fork: Some(fork),
            gas_limit,
            transaction_gas_max,
            base_fee_wei,
        }
    }

    /// Whether its name is well-formed, so that it can be shown and distinguished.
    pub fn has_good_name(&self) -> bool {
        let is_good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        (1..=limits::FORK_NAME_BYTES_MAX).contains(&self.name.len()) && self.name.bytes().all(is_good)
    }
}

impl fmt::Display for ScheduledFork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fork {} at {}", self.name, self.at)
    }
}

/// Why forks do not form a chain's schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("fork {index} of the schedule, \"{name}\", {rule}")]
pub struct ScheduleError {
    /// Position of the refused fork, from 1.
    pub index: usize,
    /// Name of the refused fork.
    pub name: String,
    /// The rule that it breaks.
    pub rule: &'static str,
}

/// The forks after a chain's genesis, in order. Each is active only once those before it are. Clones share it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Schedule {
    /// The forks in order, each with the id of the rules from there on.
    forks: Arc<[(ScheduledFork, RulesId)]>,
}

impl Schedule {
    /// Takes forks in order. Unchecked: see [`ChainConfig::check_schedule`](crate::ChainConfig::check_schedule).
    pub fn new(forks: Forks) -> Schedule {
        Schedule { forks: RulesIds::from(RulesId::GENESIS, forks).collect() }
    }

    /// The forks in order, each with the id of the rules from there on.
    pub fn forks(&self) -> &[(ScheduledFork, RulesId)] {
        &self.forks
    }

    /// Returns the forks in the form in which nodes send them to peers.
    pub fn told(&self) -> Forks {
        let forks = self.forks.iter().map(|(fork, _)| fork.clone()).collect();
        BoundedVec::new(forks).unwrap_or_default()
    }

    /// Returns the other schedule's forks from the first one that this schedule lacks at the same position. Each has
    /// the id of the rules from there on.
    pub fn unknown_of(&self, other: &Forks) -> Vec<(ScheduledFork, RulesId)> {
        let same = self.forks.iter().zip(other).take_while(|((own, _), theirs)| own == *theirs).count();
        let id = same.checked_sub(1).map_or(RulesId::GENESIS, |last| self.forks[last].1);
        RulesIds::from(id, other.iter().skip(same).cloned()).collect()
    }

    /// The forks that hold for a batch.
    pub(crate) fn active(&self, number: BatchNumber, timestamp_ms: u64) -> &[(ScheduledFork, RulesId)] {
        let active = self.forks.iter().take_while(|(fork, _)| fork.at.holds(number, timestamp_ms)).count();
        &self.forks[..active]
    }
}

/// Forks with their ids.
struct RulesIds<I> {
    id: RulesId,
    forks: I,
}

impl<I: Iterator<Item = ScheduledFork>> RulesIds<I> {
    fn from(id: RulesId, forks: impl IntoIterator<IntoIter = I>) -> Self {
        RulesIds { id, forks: forks.into_iter() }
    }
}

impl<I: Iterator<Item = ScheduledFork>> Iterator for RulesIds<I> {
    type Item = (ScheduledFork, RulesId);

    fn next(&mut self) -> Option<Self::Item> {
        let fork = self.forks.next()?;
        self.id = self.id.after(&fork);
        Some((fork, self.id))
    }
}

impl RulesId {
    /// The id of the rules after one more fork.
    pub fn after(self, fork: &ScheduledFork) -> RulesId {
        let bytes = bcs::to_bytes(&(self, fork)).expect("a fork is within the limits of BCS");
        let digest = Digest::tagged("slipstream/fork/1", &bytes);
        let mut id = [0; 8];
        id.copy_from_slice(&digest.0[..8]);
        RulesId(id)
    }
}

impl Rules {
    /// The rules after one more fork, with their id.
    pub(crate) fn after(self, fork: &ScheduledFork, id: RulesId) -> Rules {
        Rules {
            id,
            fork: fork.fork.unwrap_or(self.fork),
            gas_limit: fork.gas_limit.unwrap_or(self.gas_limit),
            transaction_gas_max: fork.transaction_gas_max.unwrap_or(self.transaction_gas_max),
            base_fee_wei: fork.base_fee_wei.unwrap_or(self.base_fee_wei),
        }
    }
}
