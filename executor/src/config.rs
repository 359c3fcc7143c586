//! [`ExecutorConfig`].

use serde::{Deserialize, Serialize};
use slipstream_predict::PredictMode;

use crate::prefetch::PrefetchLimits;

/// Tuning of execution. None of it changes a result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExecutorConfig {
    /// Threads that read hinted keys ahead of execution; 0 reads them on the thread that prepares the batch. A disk
    /// needs 16 to 64 reads in flight before its rate stops growing, so this may exceed the number of cores. Where
    /// io_uring is faster (a probe over the first batches decides), the threads have 512 reads in flight together. With
    /// one or two cores, nothing is read ahead while the block cache holds nearly everything.
    pub prefetch_threads: usize,
    /// Batches that are read ahead, beside the one that executes next. More batches hide a slower disk; each holds its
    /// rows and code in memory.
    pub readahead_batches: usize,
    /// Memory for data that was read ahead and is not executed yet. Above it, only the next batch is read ahead.
    pub readahead_mib: usize,
    /// `keys`: the keys that a batch's proposer read are read before the batch is executed. `conflicts`: in addition,
    /// transactions that do not wait for each other are executed on several threads. For a batch without hints, its
    /// transactions' own fields decide that, or with `predict: full` the changes that their programs predict. `values`:
    /// in addition, execution does not wait for rows that are not read yet if the hints ship their values. It uses the
    /// shipped values, and each is compared with the store's before the batch is committed. If one is wrong, the batch
    /// is executed again without them. The score of the validator that signed the hints is reduced, or their sender's if
    /// nobody signed, and its values are not trusted again until the node restarts. Hints made here then ship values
    /// too, which takes four times the bytes (17 KB for a block of mainnet), so set it on validators whose
    /// followers should profit. `off`: a key that is not foretold is read when execution needs it.
    pub hints: HintsMode,
    /// The reads that are foretold for batches without usable hints, so that they happen before execution. `accounts`:
    /// the accounts that the transactions name (sender, recipient and its code, access list); costs next to nothing.
    /// `full`: also the slots and calls that the contracts will use. Contracts called four times, in batches that were
    /// executed or only prepared, are analysed in the background. Their programs take at most 64 MiB and are kept in
    /// the store across restarts. Another `prefetch_threads` threads run these programs on the call data, over
    /// uncommitted executed batches, the hot cache and the rows. For nodes whose peers have no hints. `off`: nothing.
    pub predict: PredictMode,
    /// Threads that execute one batch where `hints` is `conflicts` or `values`; 1 executes as with `keys`. 0 takes one
    /// fewer than the number of cores, at least 1 and at most 8. So two cores execute on one thread, because a second
    /// one gained nothing there (`slipnet bench replay`, `parallel_warm`). Chains of transactions that wait for each
    /// other leave further threads without work. Batches that are small, or whose transactions do little each, stay on
    /// one thread.
    pub threads: usize,
    /// Memory for rows and code that the last batches touched, so that the next ones need not read them; 0 keeps none.
    /// For scale: 32 blocks of mainnet touch 33,000 rows, which take 10 MiB, and their code.
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
    /// The limits of readahead.
    pub fn prefetch_limits(&self) -> PrefetchLimits {
        PrefetchLimits {
            threads: self.prefetch_threads,
            readahead_batches: self.readahead_batches,
            readahead_bytes: self.readahead_mib << 20,
            backend: None,
        }
    }

    /// Threads that execute one batch; 1 if the mode does not use hints' conflicts.
    pub fn execution_threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        match (self.hints, self.threads) {
            (HintsMode::Off | HintsMode::Keys, _) => 1,
            // A busy node on two cores gains nothing from a second execution thread.
            (HintsMode::Conflicts | HintsMode::Values, 0) => (cores() - 1).clamp(1, THREADS_DEFAULT_MAX),
            (HintsMode::Conflicts | HintsMode::Values, threads) => threads,
        }
    }
}

/// Maximum number of threads that are used by default.
const THREADS_DEFAULT_MAX: usize = 8;

/// How a node uses a batch's hints.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HintsMode {
    /// Hints are neither requested nor used: a key that is not foretold is read when execution needs it.
    Off,
    /// The hinted keys are read before the batch is executed.
    Keys,
    /// As `Keys`; in addition, transactions that do not wait for each other are executed on several threads.
    #[default]
    Conflicts,
    /// As `Conflicts`; in addition, a batch is executed on the values that its hints ship, for rows that are not read
    /// yet. Each value is compared with the store's before the batch is committed. The hints that are made here ship
    /// values too.
    Values,
}
