//! [`Session`]: a node's execution environment. Sync, which follows batches, shares it with a validator's consensus.
//!
//! ```text
//!  OrderedBatch ── prepare ──▶ Ahead (rows in flight, conflicts) ─────────────┐
//!                    │ hints, or predictions                                  ▼
//!                    └ minus keys in the state or the cache         State ─▶ execute ─▶ BatchExecution
//!                                                                     ▲        │ learn: predictors
//!     batches ahead: Overlay ─────────────────────────────────────────┤        ▼
//!     committed ones: committed │ applied ─▶ HotCache ────────────────┘      Layer ─▶ Overlay, or committed
//! ```
//! A session never changes a batch's results. The session decides how long execution waits, on how many threads
//! execution runs, and what is kept for the next batch. A node has one session, so it pays for one cache, which stays
//! warm whichever part of the node commits.
//!
//! * Only commits change the cache ([`Session::committed`], [`Session::applied`]). Batches executed ahead stay in the
//!   caller's [`Overlay`](crate::Overlay). So a rollback, or a wrong row from hints, leaves no trace in the session.
//! * A commit does not wait for an execution: its rows enter the cache before the next execution. The next commit waits
//!   only if sixteen commits have queued during one execution.
//! * The session trusts only its caller, to pass the right [`State`]. Hints are advice; values in hints are used only
//!   with [`Trust::Values`], by callers that [confirm](Ahead::confirm) them.

mod ahead;
mod prediction_state;
mod predictor;
mod stall;

use std::{collections::VecDeque, sync::Arc};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use slipstream_predict::PredictMode;
use slipstream_storage::{StorageError, Store};
use slipstream_types::{BatchHeader, BatchNumber, Body, ChainConfig, Delta};

pub use self::ahead::{Ahead, AheadUse, OrderedBatch, Trust};
pub use self::stall::StallStats;
use self::{
    predictor::BatchPredictor,
    stall::{Stalls, TimedReader},
};
use crate::{
    assemble::{self, AssembledBatch, BuildClock, BuildLimits, Candidates},
    body::{self, BodyError},
    config::{ExecutorConfig, HintsMode},
    error::ExecuteError,
    hot::{HotCache, HotStats},
    interrupt::Interrupt,
    outcome::{self, Outcome},
    overlay::{Layer, State},
    parallel::{self, ParallelStats, Workers},
    prefetch::{Prefetcher, WarmState},
    seal::BatchContext,
    senders::Senders,
    transaction::Transaction,
};

/// Maximum number of commits that wait to enter the cache. If more commits arrive during one execution, the next commit
/// waits for the execution, so that the layers do not fill the memory.
const CACHE_UPDATES_MAX: usize = 16;

/// A node's execution environment; see the module.
pub struct Session {
    chain: ChainConfig,
    hints: HintsMode,
    /// Whether batches are executed on several threads.
    is_parallel: bool,
    /// `None` if hints and predictions are both off, or if no threads read ahead.
    prefetcher: Option<Prefetcher>,
    predictor: BatchPredictor,
    senders: Arc<Senders>,
    /// A separate pool: while one batch executes, the previous batch is sealed on the common pool.
    workers: Workers,
    /// Executions hold a read lock throughout; predictions hold it only during each read.
    hot: RwLock<HotState>,
    /// Commits that have not entered the cache, oldest first. Locked only briefly; a thread that needs both locks takes
    /// `hot` first.
    cache_updates: Mutex<VecDeque<CacheUpdate>>,
    stalls: Stalls,
}

/// A commit that must still be applied to the cache.
enum CacheUpdate {
    /// Executed batches were committed, as a layer.
    Executed(Arc<Layer>),
    /// A batch was applied by its delta, so the layer has no reads.
    Applied(Box<Layer>),
}

struct HotState {
    cache: HotCache,
    /// Number of the batch whose resulting state the cache holds.
    number: BatchNumber,
}

/// The system cannot start more threads.
#[derive(Debug, thiserror::Error)]
#[error("cannot start a thread to {purpose}: {source}; check the limits of this user and of the container")]
pub struct SessionError {
    /// The thread's purpose, in words.
    pub purpose: &'static str,
    /// The operating system's error.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

impl SessionError {
    fn of<E>(purpose: &'static str) -> impl Fn(E) -> SessionError
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        move |source| SessionError { purpose, source: Box::new(source) }
    }
}

/// How many threads execute a batch. The outcome does not depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExecutionMethod {
    /// The configured threads, with the method that the conflicts suggest to be fastest.
    Fitting,
    /// One thread, transaction by transaction. Used after validators came to different outcomes.
    Sequential,
}

/// The result of executing a batch.
#[derive(Debug)]
pub struct BatchExecution {
    /// The batch's outcome.
    pub outcome: Outcome,
    /// How useful the read-ahead was.
    pub ahead: AheadUse,
    /// What other threads contributed.
    pub parallel: ParallelStats,
}

impl Session {
    /// Makes the session of one chain, with nothing learned yet.
    ///
    /// # Errors
    /// If the system cannot start the threads.
    pub fn new(config: &ExecutorConfig, chain: ChainConfig) -> Result<Session, SessionError> {
        let has_keys = config.hints != HintsMode::Off || config.predict != PredictMode::Off;
        let reads_ahead = has_keys && config.prefetch_threads > 0;
        let prefetcher = reads_ahead.then(|| Prefetcher::new(config.prefetch_limits())).transpose();
        Ok(Session {
            chain,
            hints: config.hints,
            is_parallel: config.execution_threads() > 1,
            prefetcher: prefetcher.map_err(SessionError::of("read ahead"))?,
            predictor: BatchPredictor::new(config)?,
            senders: Arc::default(),
            workers: Workers::new(config.execution_threads()).map_err(SessionError::of("execute on"))?,
            hot: RwLock::new(HotState {
                cache: HotCache::new(config.hot_cache_mib << 20),
                number: BatchNumber::GENESIS,
            }),
            cache_updates: Mutex::default(),
            stalls: Stalls::default(),
        })
    }

    /// The hints that the session uses and makes.
    pub fn hints(&self) -> HintsMode {
        self.hints
    }

    /// The chain whose batches the session executes.
    pub fn chain(&self) -> &ChainConfig {
        &self.chain
    }

    /// Shares a cache of senders with other parts of the node, which see transactions before and after their execution.
    pub fn with_senders(mut self, senders: Arc<Senders>) -> Session {
        self.senders = senders;
        self
    }

    /// Loads the predictors' programs that an earlier run saved in the store, and saves new programs there from now on.
    ///
    /// # Errors
    /// If the disk fails, or the store is damaged.
    pub fn with_saved(mut self, store: &Store) -> Result<Session, StorageError> {
        self.predictor = self.predictor.with_saved(store)?;
        Ok(self)
    }

    /// Decodes and checks every envelope of a body; only unknown senders are recovered.
    ///
    /// # Errors
    /// Those of [`decode_body`](crate::decode_body).
    pub fn decode(&self, body: &Body) -> Result<Vec<Transaction>, BodyError> {
        body::decode_body_with(body, (&self.chain).into(), &self.senders)
    }

    /// Executes a batch on the state after its parent. Uses the read-ahead only if `state` covers the state that it was
    /// read from.
    ///
    /// With values of hints ([`Trust::Values`]), outcome and error are valid only once [`Ahead::confirm`] has found all
    /// values right.
    ///
    /// # Errors
    /// Those of [`execute`](crate::execute).
    pub fn execute(
        &self,
        ahead: &Ahead,
        basis: &BatchContext<'_>,
        transactions: &[Transaction],
        state: &State<'_>,
        way: ExecutionMethod,
    ) -> Result<BatchExecution, ExecuteError> {
        self.execute_until(&Interrupt::never(), ahead, basis, transactions, state, way)
    }

    /// As [`Session::execute`], but stops when the interrupt is due, because nobody waits for the outcome any more.
    ///
    /// # Errors
    /// As [`Session::execute`], and [`ExecuteError::Interrupted`].
    pub fn execute_until(
        &self,
        interrupt: &Interrupt,
        ahead: &Ahead,
        basis: &BatchContext<'_>,
        transactions: &[Transaction],
        state: &State<'_>,
        way: ExecutionMethod,
    ) -> Result<BatchExecution, ExecuteError> {
        debug_assert_eq!(basis.parent.digest(), state.tip(), "the state is not that of the batch's parent");
        let env = basis.env(&self.chain);
        let warm = ahead.warm(state);
        let before = warm.map(WarmState::stats).unwrap_or_default();
        let (hot, base) = (self.hot(), self.stalls.of(state.base(warm)));
        let reader = state.reader_with(&hot.cache, &base).watched(self.predictor.watch());
        let reader = reader.interrupted_by(interrupt.clone());
        let (outcome, parallel) = match ahead.conflicts().filter(|_| way == ExecutionMethod::Fitting) {
            Some(conflicts) => {
                parallel::execute_parallel(&reader, &env, transactions, conflicts, &self.workers)?
            }
            None => (outcome::execute(&reader, &env, transactions)?, ParallelStats::default()),
        };
        drop(hot);
        self.noted(warm, &base);
        self.predictor.learn(transactions, &outcome.touched);
        let ahead = warm.map(|warm| AheadUse::since(before, warm)).unwrap_or_default();
        Ok(BatchExecution { outcome, ahead, parallel })
    }

    /// Builds a batch on the state after its parent, within the time that `clock` allows. Also returns how useful the
    /// read-ahead was.
    ///
    /// # Errors
    /// Those of [`build`](crate::build), and [`ExecuteError::Interrupted`] if the clock ends the build.
    pub fn build(
        &self,
        clock: &mut dyn BuildClock,
        ahead: &Ahead,
        basis: &BatchContext<'_>,
        candidates: &mut dyn Candidates,
        limits: &BuildLimits,
        state: &State<'_>,
    ) -> Result<(AssembledBatch, AheadUse), ExecuteError> {
        debug_assert_eq!(basis.parent.digest(), state.tip(), "the state is not that of the batch's parent");
        let warm = ahead.warm(state);
        let before = warm.map(WarmState::stats).unwrap_or_default();
        let (hot, base) = (self.hot(), self.stalls.of(state.base(warm)));
        let reader = state.reader_with(&hot.cache, &base).watched(self.predictor.watch());
        let reader = reader.interrupted_by(clock.interrupt());
        let built = assemble::build_by(clock, &reader, &basis.env(&self.chain), candidates, limits)?;
        drop(hot);
        self.noted(warm, &base);
        self.predictor.learn(&built.included, &built.outcome.touched);
        let ahead = warm.map(|warm| AheadUse::since(before, warm)).unwrap_or_default();
        Ok((built, ahead))
    }

    /// Records the times of plain reads, which show whether reading ahead would have paid.
    fn noted(&self, warm: Option<&WarmState>, reads: &TimedReader<'_>) {
        if let (Some(prefetcher), None) = (&self.prefetcher, warm) {
            prefetcher.pace().executed(reads.reads());
        }
    }

    /// Reports that executed batches are committed: their rows are kept for the next batch. Callers report them in the
    /// order of the ledger. Repeated and late calls are ignored.
    pub fn committed(&self, layer: &Arc<Layer>) {
        self.enqueue(CacheUpdate::Executed(Arc::clone(layer)));
    }

    /// Reports a batch that was committed by its delta, without execution here. Updates a cache that is at the batch's
    /// parent, and never fills an empty cache.
    pub fn applied(&self, header: &BatchHeader, delta: &Delta) {
        let Some(mut hot) = self.hot.try_write() else {
            return self.enqueue(CacheUpdate::Applied(Box::new(Layer::of(header, None, delta))));
        };
        self.apply_updates(&mut hot);
        if hot.cache.is_at(header.parent) {
            hot.cache.apply(header.parent, header.digest(), None, delta);
            hot.number = header.number;
        }
    }

    /// Applies the update now if no execution runs, otherwise before the next execution.
    fn enqueue(&self, update: CacheUpdate) {
        let waiting = {
            let mut queue = self.cache_updates.lock();
            queue.push_back(update);
            queue.len()
        };
        let hot = if waiting > CACHE_UPDATES_MAX { Some(self.hot.write()) } else { self.hot.try_write() };
        if let Some(mut hot) = hot {
            self.apply_updates(&mut hot);
        }
    }

    /// Empties the cache: the head's state did not come from batches.
    pub fn forget(&self) {
        let mut hot = self.hot.write();
        self.cache_updates.lock().clear();
        hot.cache.clear();
    }

    /// Statistics of the cache of the last batches' rows.
    pub fn hot_stats(&self) -> HotStats {
        self.hot().cache.stats()
    }

    /// How long execution has waited for rows and code since the session began.
    pub fn stall_stats(&self) -> StallStats {
        self.stalls.stats()
    }

    /// The cache after all commits. If an execution holds the cache, later commits are missing.
    fn hot(&self) -> RwLockReadGuard<'_, HotState> {
        if !self.cache_updates.lock().is_empty()
            && let Some(mut hot) = self.hot.try_write()
        {
            self.apply_updates(&mut hot);
            return RwLockWriteGuard::downgrade(hot);
        }
        self.hot.read()
    }

    fn apply_updates(&self, hot: &mut HotState) {
        loop {
            // The queue is not locked while rows are copied.
            let Some(update) = self.cache_updates.lock().pop_front() else { return };
            let (layer, is_due) = match &update {
                CacheUpdate::Executed(layer) => {
                    (&**layer, hot.cache.at().is_none() || layer.header().number > hot.number)
                }
                CacheUpdate::Applied(layer) => (&**layer, hot.cache.is_at(layer.header().parent)),
            };
            if is_due {
                layer.add_to(&mut hot.cache);
                hot.number = layer.header().number;
            }
        }
    }
}
