//! [`ChainConfig`]: the rules of a chain: its genesis fixes the first ones, and its schedule changes them.

use serde::{Deserialize, Serialize};

use crate::{limits, schedule::Schedule};

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

/// The rules that the batches of a chain are executed under: those of the genesis, and their changes.
/// [`ChainConfig::rules_at`] returns those of a batch.
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

fn transaction_gas_max() -> u64 {
    limits::TRANSACTION_GAS_MAX
}
