//! [`ChainConfig`]: the rules of a chain: the first are fixed by its genesis, its schedule changes them.

use serde::{Deserialize, Serialize};

use crate::{limits, schedule::Schedule};

/// The Ethereum hard fork whose rules the EVM follows.
///
/// Older forks are left to tests on mainnet blocks: before Cancun, SELFDESTRUCT deletes all slots of an account, which a
/// state without per-account enumeration cannot express as a delta.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Fork {
    /// March 2024: transient storage, MCOPY.
    Cancun,
    /// May 2025: EIP-7702, BLS precompiles, block hashes in state (EIP-2935).
    Prague,
    /// December 2025: CLZ, P-256, and MODEXP at prices near its time (EIP-7883), of sizes up to 1 KiB (EIP-7823). Its gas cap per transaction
    /// (EIP-7825) is that of every fork here. The fork of new chains: before it, calls of MODEXP paid as little as an eightieth of this.
    #[default]
    Osaka,
}

impl Fork {
    /// As it is serialized.
    pub fn name(self) -> &'static str {
        match self {
            Fork::Cancun => "cancun",
            Fork::Prague => "prague",
            Fork::Osaka => "osaka",
        }
    }
}

/// The rules that the batches of a chain are executed under: those of the genesis, and how they change. [`ChainConfig::rules_at`] has those of
/// a batch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChainConfig {
    /// EIP-155 chain id, which every transaction names.
    pub chain_id: u64,
    /// EVM rules of the first batches; the schedule may name later ones.
    #[serde(default)]
    pub fork: Fork,
    /// Most gas that one batch may use.
    pub gas_limit: u64,
    /// Most gas that one transaction may ask for: from 21,000 to [`limits::TRANSACTION_GAS_MAX`], which holds if a genesis file names
    /// none. Lower, it keeps one transaction from taking most of a batch.
    #[serde(default = "transaction_gas_max")]
    pub transaction_gas_max: u64,
    /// Base fee of every batch, in wei per gas. Fixed, so that a node which joins from a snapshot knows it without history.
    pub base_fee_wei: u64,
    /// The forks after the genesis. The node's configuration names them; genesis bytes and genesis file leave them out.
    #[serde(skip)]
    pub schedule: Schedule,
    /// Whether legacy transactions without a chain id (from before EIP-155) are admitted. For good: no fork changes it. It stands in the
    /// genesis and its file, but beside `chain`: see [`Genesis`](crate::Genesis).
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
