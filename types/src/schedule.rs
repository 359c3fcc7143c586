//! [`Schedule`]: how the rules of a chain change after its genesis, without another genesis.
//!
//! The genesis fixes the chain's identity and its first rules. A schedule names the later forks in order. Operators
//! extend its file, which is not part of the identity. Every header has the [`RulesId`] of its execution, which binds
//! all forks up to then: so nodes see at each batch whether they agree. A node that lacks a fork follows up to it,
//! stops there, and reports why.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{
    batch::BatchNumber,
    bounded::BoundedVec,
    chain::{ChainConfig, Fork},
    codec::raw,
    digest::{Digest, parse_hex},
    limits,
};

/// The forks of a schedule, or those that a peer lists.
pub type Forks = BoundedVec<ScheduledFork, { limits::FORKS_MAX }>;

/// Identifies the rules that a batch was executed under: the genesis' own, or the digest of all forks up to the last active one.
/// Text: 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RulesId(pub [u8; 8]);

impl RulesId {
    /// The id of the genesis' own rules.
    pub const GENESIS: RulesId = RulesId([0; 8]);

    /// The id of the rules after one more fork.
    pub fn after(self, fork: &ScheduledFork) -> RulesId {
        let bytes = bcs::to_bytes(&(self, fork)).expect("a fork is within the limits of BCS");
        let digest = Digest::tagged("slipstream/fork/1", &bytes);
        let mut id = [0; 8];
        id.copy_from_slice(&digest.0[..8]);
        RulesId(id)
    }
}

impl fmt::Display for RulesId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for RulesId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for RulesId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => serializer.collect_str(self),
            false => raw::serialize(&self.0, serializer),
        }
    }
}

impl<'de> Deserialize<'de> for RulesId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match deserializer.is_human_readable() {
            true => parse_hex(&String::deserialize(deserializer)?).map(RulesId).map_err(de::Error::custom),
            false => raw::deserialize(deserializer).map(RulesId),
        }
    }
}

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
    /// Its position, from 1.
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
    /// Takes forks in order. Unchecked: see [`ChainConfig::check_schedule`].
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

    fn active(&self, number: BatchNumber, timestamp_ms: u64) -> &[(ScheduledFork, RulesId)] {
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

/// The rules of one batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Binds everything up to the last active fork.
    pub id: RulesId,
    /// EVM rules that the batch runs under.
    pub fork: Fork,
    /// Maximum gas that the batch may use.
    pub gas_limit: u64,
    /// Maximum gas that one transaction may ask for.
    pub transaction_gas_max: u64,
    /// Base fee, in wei per gas.
    pub base_fee_wei: u64,
}

impl Rules {
    fn after(self, fork: &ScheduledFork, id: RulesId) -> Rules {
        Rules {
            id,
            fork: fork.fork.unwrap_or(self.fork),
            gas_limit: fork.gas_limit.unwrap_or(self.gas_limit),
            transaction_gas_max: fork.transaction_gas_max.unwrap_or(self.transaction_gas_max),
            base_fee_wei: fork.base_fee_wei.unwrap_or(self.base_fee_wei),
        }
    }

    /// Returns the rule of a chain that these rules break, if any.
    pub(crate) fn broken(&self) -> Option<&'static str> {
        let transaction_gas = limits::TRANSACTION_GAS_MIN..=limits::TRANSACTION_GAS_MAX;
        if self.gas_limit < limits::TRANSACTION_GAS_MIN {
            return Some("gas_limit must be at least 21,000");
        }
        (!transaction_gas.contains(&self.transaction_gas_max))
            .then_some("transaction_gas_max must be from 21,000 to 16,777,216")
    }
}

impl ChainConfig {
    /// The rules of the genesis, before any fork.
    pub fn first_rules(&self) -> Rules {
        let ChainConfig { fork, gas_limit, transaction_gas_max, base_fee_wei, .. } = *self;
        Rules { id: RulesId::GENESIS, fork, gas_limit, transaction_gas_max, base_fee_wei }
    }

    /// Returns the rules of a batch, from its number and time.
    pub fn rules_at(&self, number: BatchNumber, timestamp_ms: u64) -> Rules {
        let active = self.schedule.active(number, timestamp_ms).iter();
        active.fold(self.first_rules(), |rules, (fork, id)| rules.after(fork, *id))
    }

    /// Returns the first fork that does not hold yet at a batch, with the rules' id from there on.
    pub fn next_fork(&self, number: BatchNumber, timestamp_ms: u64) -> Option<&(ScheduledFork, RulesId)> {
        self.schedule.forks().get(self.schedule.active(number, timestamp_ms).len())
    }

    /// Checks that the chain's schedule obeys all rules.
    ///
    /// # Errors
    /// Names the first fork that breaks a rule. Its name may be taken or malformed, its point may precede the previous
    /// fork's, or its rules may be unchanged or out of bounds.
    pub fn check_schedule(&self) -> Result<(), ScheduleError> {
        let mut rules = self.first_rules();
        let forks = self.schedule.forks();
        for (place, (fork, id)) in forks.iter().enumerate() {
            let refused = |rule| Err(ScheduleError { index: place + 1, name: fork.name.clone(), rule });
            let earlier = forks[..place].iter().map(|(fork, _)| fork);
            if !fork.has_good_name() {
                return refused("needs a name of 1 to 32 of a-z, 0-9 and -");
            }
            if earlier.clone().any(|earlier| earlier.name == fork.name) {
                return refused("has the name of an earlier fork");
            }
            let comes_late = |earlier: &ScheduledFork| match (earlier.at, fork.at) {
                (Activation::Batch(earlier), Activation::Batch(own)) => earlier < own,
                (Activation::TimeMs(earlier), Activation::TimeMs(own)) => earlier < own,
                _ => true,
            };
            if fork.at == Activation::Batch(BatchNumber::GENESIS) || !earlier.clone().all(comes_late) {
                return refused("must begin after the genesis and after the forks before it");
            }
            let after = rules.after(fork, *id);
            if (Rules { id: rules.id, ..after }) == rules {
                return refused("changes nothing");
            }
            if let Some(rule) = after.broken() {
                return refused(rule);
            }
            rules = after;
        }
        Ok(())
    }
}
