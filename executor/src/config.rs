//! [`ExecutorConfig`].

use serde::{Deserialize, Serialize};

use crate::{predict::PredictMode, prefetch::PrefetchLimits};

/// Tuning of execution. None of it changes a result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExecutorConfig {
    /// Threads that read hinted keys ahead of execution; 0 reads them where the batch is prepared. A disk needs 16 to 64 reads in
    /// flight before its rate stops growing, so this may well be above the number of cores. Where io_uring is faster, they
    /// have 512 in flight together.
    pub prefetch_threads: usize,
    /// Batches that are read for beside the one that executes next. More hide a slower disk; each holds its rows and code.
    pub readahead_batches: usize,
    /// What was read ahead and is not executed yet may take so much memory.
    pub readahead_mib: usize,
    /// Which hints are used.
    pub hints: HintsMode,
    /// What is foretold of batches that come without usable hints. `accounts` costs next to nothing and waits for nothing; `full` runs
    /// the programs of contracts that are called often, on as many threads as read ahead, and analyses contracts in the background.
    pub predict: PredictMode,
    /// Threads that execute one batch where `hints` is `conflicts` or `values`; 0 takes as many as there are cores but one, which the other
    /// stages need, and at most 8: chains of transactions that wait for each other leave more without work.
    pub threads: usize,
    /// Memory for rows and code that the last batches touched, in MiB; 0 keeps none. 32 blocks of mainnet touch 33,000 rows, which take
    /// 10 MiB, and 10 to 20 MiB of code.
    pub hot_cache_mib: usize,
}

impl Default for ExecutorConfig {
    fn default() -> Self {
        let hot_cache_mib = 64;
        Self {
            prefetch_threads: 16,
            readahead_batches: 8,
            readahead_mib: 64,
            hints: HintsMode::default(),
            predict: PredictMode::Accounts,
            threads: 0,
            hot_cache_mib,
        }
    }
}

impl ExecutorConfig {
    /// How far is read ahead.
    pub fn prefetch_limits(&self) -> PrefetchLimits {
        PrefetchLimits {
            threads: self.prefetch_threads,
            readahead_batches: self.readahead_batches,
            readahead_bytes: self.readahead_mib << 20,
            backend: None,
        }
    }

    /// Threads that execute one batch; 1 if hints do not say which transactions can run beside each other.
    pub fn execution_threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        match (self.hints, self.threads) {
            (HintsMode::Off | HintsMode::Keys, _) => 1,
            // A node that is busy with everything else gains nothing by a second thread on its second core.
            (HintsMode::Conflicts | HintsMode::Values, 0) => (cores() - 1).clamp(1, THREADS_DEFAULT_MAX),
            (HintsMode::Conflicts | HintsMode::Values, threads) => threads,
        }
    }
}

/// Most threads that are taken without being asked for.
const THREADS_DEFAULT_MAX: usize = 8;

/// What is done with a batch's hints.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HintsMode {
    /// Hints are neither asked for nor used: what is not foretold is read when execution comes to it.
    Off,
    /// The hinted keys are read before the batch is executed.
    Keys,
    /// And transactions that do not wait for each other are executed on several threads.
    #[default]
    Conflicts,
    /// And a batch is executed on the values that its hints ship, as far as they are not read yet: each is compared with the store's before
    /// the batch is committed. The hints that are made here ship values too.
    Values,
}
