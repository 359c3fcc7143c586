//! [`ExecutorConfig`].

use serde::{Deserialize, Serialize};

/// Tuning of execution. None of it changes a result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExecutorConfig {
    /// Threads that read hinted keys ahead of execution; 0 counts as 1. A disk needs about 8 reads in flight before its
    /// rate stops growing, so this may well be above the number of cores.
    pub prefetch_threads: usize,
    /// Which hints are used.
    pub hints: HintsMode,
    /// Memory for rows and code that the last batches touched, in MiB; 0 keeps none. 32 blocks of mainnet touch 33,000 rows, which take
    /// 10 MiB, and 10 to 20 MiB of code.
    pub hot_cache_mib: usize,
}

impl Default for ExecutorConfig {
    fn default() -> Self {
        Self { prefetch_threads: 8, hints: HintsMode::Keys, hot_cache_mib: 64 }
    }
}

/// What is done with a batch's hints.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HintsMode {
    /// Hints are neither asked for nor used: every key is read when execution comes to it.
    Off,
    /// The hinted keys are read before the batch is executed.
    #[default]
    Keys,
}
