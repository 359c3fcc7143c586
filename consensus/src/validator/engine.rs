//! [`Engine`]: what a validator executes with. None of it changes what a batch does.

use parking_lot::RwLock;
use slipstream_executor::{
    BatchEnv, BuildLimits, Built, ExecuteError, ExecutorConfig, HintsMode, HotCache, HotStats, Outcome,
    Prefetcher, StateReader, Touched, Transaction, Wanted, Workers, announced_conflicts, build, execute,
    open_hints, parallel,
};
use slipstream_storage::View;
use slipstream_types::{BatchHeader, Blob, Delta, Digest};

use crate::{error::ConsensusError, pool::Candidates};

/// Below this many transactions a batch is executed sooner than its hints are read.
const PREFETCH_TRANSACTIONS_MIN: usize = 32;

/// See the module.
pub(super) struct Engine {
    hints: HintsMode,
    /// Reads what the proposer's hints name. None if they are not used, or nothing is to read ahead.
    prefetcher: Option<Prefetcher>,
    workers: Workers,
    /// Behind the batch that was committed last.
    hot: RwLock<HotCache>,
}

impl Engine {
    /// # Errors
    /// If the system gives no threads.
    pub(super) fn new(config: &ExecutorConfig) -> Result<Engine, ConsensusError> {
        let reads_ahead = config.hints != HintsMode::Off && config.prefetch_threads > 0;
        let prefetcher = reads_ahead.then(|| Prefetcher::new(config.prefetch_limits())).transpose();
        let no_threads = |what, reason: String| ConsensusError::Task {
            task: what,
            reason: format!("no thread: {reason}"),
        };
        Ok(Engine {
            hints: config.hints,
            prefetcher: prefetcher.map_err(|error| no_threads("reading ahead", error.to_string()))?,
            workers: Workers::new(config.execution_threads())
                .map_err(|error| no_threads("execution", error.to_string()))?,
            hot: RwLock::new(HotCache::new(config.hot_cache_mib << 20)),
        })
    }

    /// Which hints are used, and made.
    pub(super) fn hints(&self) -> HintsMode {
        self.hints
    }

    /// Makes a batch on the state behind the one with the digest `parent`.
    pub(super) fn build(
        &self,
        parent: Digest,
        view: &View,
        env: &BatchEnv,
        mut candidates: Candidates,
        limits: &BuildLimits,
    ) -> Result<Built, ExecuteError> {
        let hot = self.hot.read();
        build(&hot.reader(parent, view), env, &mut candidates, limits)
    }

    /// Executes a proposed batch on the state behind its parent. Nobody vouches for the hints, so that values in them are not used.
    pub(super) fn execute(
        &self,
        view: &View,
        env: &BatchEnv,
        header: &BatchHeader,
        transactions: &[Transaction],
        hints: Option<&Blob>,
    ) -> Result<Outcome, ExecuteError> {
        let hot = self.hot.read();
        let is_used =
            |_: &&Blob| self.hints != HintsMode::Off && transactions.len() >= PREFETCH_TRANSACTIONS_MIN;
        let opened = hints
            .filter(is_used)
            .and_then(|blob| open_hints(blob, header.gas_used, header.proposer, transactions).ok());
        let (keys, conflicts) = opened.map(|decoded| (decoded.hints, decoded.conflicts)).unzip();
        let warm = keys.zip(self.prefetcher.as_ref()).map(|(mut keys, prefetcher)| {
            if hot.is_at(header.parent) {
                hot.leave_out(&mut keys);
            }
            prefetcher.read_ahead(header.number, view.clone(), Wanted::from(&keys))
        });
        let below: &dyn StateReader = match &warm {
            Some(warm) => warm,
            None => view,
        };
        let state = hot.reader(header.parent, below);
        if !self.hints.uses_conflicts() {
            return execute(&state, env, transactions);
        }
        let conflicts = conflicts.flatten().unwrap_or_else(|| announced_conflicts(transactions));
        let executed = parallel::execute(&state, env, transactions, &conflicts, &self.workers);
        executed.map(|(outcome, _)| outcome)
    }

    /// A batch that was executed here is committed.
    pub(super) fn committed(&self, header: &BatchHeader, touched: &Touched, delta: &Delta) {
        self.hot.write().apply(header.parent, header.digest(), Some(touched), delta);
    }

    /// How often the last batches had what the next one reads.
    pub(super) fn hot_stats(&self) -> HotStats {
        self.hot.read().stats()
    }
}
