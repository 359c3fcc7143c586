//! [`Rules`]: what a chain demands of its batches, with its hard fork and its id.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{codec::raw, digest::parse_hex, limits};

/// The Ethereum hard fork whose rules the EVM follows.
///
/// Only tests on mainnet blocks use older forks: before Cancun, SELFDESTRUCT deletes all slots of an account, which a
/// state without per-account enumeration cannot express as a delta.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Fork {
    /// March 2024: transient storage, MCOPY.
    Cancun,
    /// May 2025: EIP-7702, BLS precompiles, block hashes in state (EIP-2935).
    Prague,
    /// December 2025: CLZ, P-256, and MODEXP with prices close to its run time (EIP-7883) and sizes up to 1 KiB
    /// (EIP-7823). Its gas cap per transaction (EIP-7825) applies to every fork here. New chains use this fork: before
    /// it, calls of MODEXP paid as little as an eightieth of this price.
    #[default]
    Osaka,
}

impl Fork {
    /// Returns the serialized name.
    pub fn name(self) -> &'static str {
        match self {
            Fork::Cancun => "cancun",
            Fork::Prague => "prague",
            Fork::Osaka => "osaka",
        }
    }
}

/// Identifies the rules that a batch was executed under: the genesis' own, or the digest of all forks up to the last
/// active one. Text: 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RulesId(pub [u8; 8]);

impl RulesId {
    /// The id of the genesis' own rules.
    pub const GENESIS: RulesId = RulesId([0; 8]);
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
    /// Returns the bound on a chain's gas that these rules violate, if any.
    pub(crate) fn broken(&self) -> Option<&'static str> {
        let transaction_gas = limits::TRANSACTION_GAS_MIN..=limits::TRANSACTION_GAS_MAX;
        if self.gas_limit < limits::TRANSACTION_GAS_MIN {
            return Some("gas_limit must be at least 21,000");
        }
        (!transaction_gas.contains(&self.transaction_gas_max))
            .then_some("transaction_gas_max must be from 21,000 to 16,777,216")
    }
}
