//! [`PredictConfig`]: how much is predicted, and at what cost.

use serde::{Deserialize, Serialize};

/// How much is predicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PredictMode {
    /// Predicts nothing.
    Off,
    /// Predicts the accounts in the transaction: sender, recipient and its code, fee recipient, access list,
    /// authorities.
    #[default]
    Accounts,
    /// As `Accounts`, and runs the called contracts' programs.
    Full,
}

/// Limits of the cost of one transaction's prediction. Keys found before a limit are valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PredictLimits {
    /// Operations of programs. A mainnet transaction takes some 330 on average; one in 700 reaches the default.
    pub steps_max: u64,
    /// Bytes of memory of all nested calls together.
    pub memory_bytes_max: usize,
    /// Depth of nested calls. It bounds the thread's stack too: a call takes less than 2 KiB of it.
    pub depth_max: usize,
    /// Maximum number of keys that one prediction names.
    pub keys_max: u64,
    /// Maximum number of rows read to continue the prediction.
    pub reads_max: u64,
}

impl Default for PredictLimits {
    fn default() -> Self {
        Self {
            steps_max: 100_000,
            memory_bytes_max: 1 << 20,
            depth_max: 24,
            keys_max: 4_096,
            reads_max: 4_096,
        }
    }
}

/// Tuning of predictors. It changes no execution result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PredictConfig {
    /// Maximum bytes of programs that are kept; the least recently used are evicted first.
    pub programs_bytes_max: usize,
    /// Calls of a contract after which its code is analysed.
    pub calls_min: u32,
    /// Whether a prediction that meets an unanalysed contract analyses it at once. That costs a read of the code, which
    /// execution needs too, and some milliseconds of analysis for a large contract.
    pub builds_at_once: bool,
    /// Whether the prediction reads slots to continue with their values. If not, it predicts only keys that depend on
    /// no value, and never waits.
    pub reads_slots: bool,
    /// Limits of one transaction's prediction.
    pub limits: PredictLimits,
}

impl Default for PredictConfig {
    fn default() -> Self {
        Self {
            programs_bytes_max: 64 << 20,
            calls_min: 4,
            builds_at_once: false,
            reads_slots: true,
            limits: PredictLimits::default(),
        }
    }
}
