//! [`ExecutorConfig`].

use serde::{Deserialize, Serialize};

use crate::{predict::PredictMode, prefetch::PrefetchLimits};

/// Tuning of execution. None of it changes a result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExecutorConfig {
    /// Threads that read hinted keys ahead of execution; 0 reads them where the batch is prepared. A disk needs 16 to 64 reads in
    /// flight before its rate stops growing, so this may be above the number of cores. Where io_uring is faster (a probe over the
    /// first batches tells), they have 512 in flight together. On two cores or one nothing is read ahead as long as the block cache
    /// has nearly everything.
    pub prefetch_threads: usize,
    /// Batches that are read for beside the one that executes next. More hide a slower disk; each holds its rows and code.
    pub readahead_batches: usize,
    /// Memory for what was read ahead and is not executed yet. Above it only the next batch is read for.
    pub readahead_mib: usize,
    /// `keys`: the keys that a batch's proposer read are read before the batch is executed. `conflicts`: and transactions that do
    /// not wait for each other are executed on several threads; of a batch without hints by what its transactions tell of
    /// themselves, or with `predict: full` by what their programs change. `values`: and execution does not wait for rows that are
    /// not read yet, if the hints ship them: it goes on with these, and before the batch is committed each is compared with the
    /// store's; if one is wrong, the batch is executed again without them, the score of the validator who signed the hints pays, or
    /// of their sender if nobody did, and it is not believed again until the node restarts. Hints made here then ship values too,
    /// which takes four times the bytes (17 KB for a block of mainnet), so set it at the validators whose followers are to profit.
    /// `off`: what is not foretold is read when execution comes to it.
    pub hints: HintsMode,
    /// What is foretold of batches that come without usable hints, to be read before they are executed. `accounts`: what stands in
    /// the transactions (sender, recipient and its code, access list); costs next to nothing. `full`: the slots and calls that the
    /// contracts come to as well. Contracts that four calls came to, in batches that were executed or only prepared, are analysed
    /// in the background, into at most 64 MiB of programs, which are kept in the store over restarts, and `prefetch_threads`
    /// threads more run these on the call data, over what is executed and not committed, the hot cache and the rows. For nodes
    /// whose peers have no hints. `off`: nothing.
    pub predict: PredictMode,
    /// Threads that execute one batch where `hints` is `conflicts` or `values`; 0 takes as many as there are cores but one, at most
    /// 8, so that on two cores batches are executed on one thread, where a second one gained nothing (`slipnet bench replay`,
    /// `parallel_warm`): chains of transactions that wait for each other leave more without work. 1 executes as with `keys`.
    /// Batches that are small, or whose transactions do little each, stay on one thread.
    pub threads: usize,
    /// Memory for rows and code that the last batches touched, so that the next ones need not read them; 0 keeps none. 32 blocks of
    /// mainnet touch 33,000 rows, which take 10 MiB, and their code.
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
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
