//! [`ChainConfig`]: the rules of a chain. Its genesis fixes the first ones, and its schedule changes them.

use serde::{Deserialize, Serialize};

use crate::{
    batch::BatchNumber,
    chain::{Fork, Rules, RulesId},
    limits,
    schedule::{Activation, Schedule, ScheduleError, ScheduledFork},
};

/// The rules under which a chain executes its batches: the rules of the genesis, and their later changes.
/// [`ChainConfig::rules_at`] returns the rules of one batch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChainConfig {
    /// EIP-155 chain id, which every transaction names.
    pub chain_id: u64,
    /// EVM rules of the first batches; the schedule may name later ones.
    #[serde(default)]
    pub fork: Fork,
    /// Maximum gas that one batch may use.
    pub gas_limit: u64,
    /// Maximum gas that one transaction may ask for: from 21,000 to [`limits::TRANSACTION_GAS_MAX`], the default of a
    /// genesis file. A lower value keeps one transaction from taking most of a batch.
    #[serde(default = "transaction_gas_max")]
    pub transaction_gas_max: u64,
    /// Base fee of every batch, in wei per gas. It is fixed, so that a node that joins from a snapshot knows it without
    /// history.
    pub base_fee_wei: u64,
    /// The forks after the genesis. The node's configuration names them; genesis bytes and genesis file omit them.
    #[serde(skip)]
    pub schedule: Schedule,
    /// Whether legacy transactions without a chain id (from before EIP-155) are admitted. No fork changes this. The
    /// genesis and its file have it beside `chain`, not inside: see [`Genesis`](crate::Genesis).
    #[serde(skip)]
    pub unprotected_transactions: bool,
}

impl Default for ChainConfig {
    fn default() -> Self {
        Self {
            chain_id: 7_357,
            fork: Fork::default(),
            gas_limit: 300_000_000,
            transaction_gas_max: limits::TRANSACTION_GAS_MAX,
            base_fee_wei: 10_000_000,
            schedule: Schedule::default(),
            unprotected_transactions: false,
        }
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

fn transaction_gas_max() -> u64 {
    limits::TRANSACTION_GAS_MAX
}
