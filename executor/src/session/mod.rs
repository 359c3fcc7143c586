//! [`Session`]: a node's means of execution, shared by sync, which follows, and a validator's consensus.
//!
//! ```text
//!  OrderedBatch ── prepare ──▶ Ahead (rows on their way, who waits for whom) ─┐
//!                    │ hints, or what predictors foretell                     ▼
//!                    └ without what the state or the cache has      State ─▶ execute ─▶ Executed
//!                                                                     ▲        │ learn: predictors
//!     batches ahead: Overlay ─────────────────────────────────────────┤        ▼
//!     committed ones: committed │ applied ─▶ HotCache ────────────────┘      Layer ─▶ Overlay, or committed
//! ```
//! A session never changes a batch's results. It decides how long execution waits, on how many threads it runs, and what is
//! kept for the next batch. A node has one, so that there is one cache to pay for, and it stays warm whoever commits.
//!
//! * Only commits change the cache ([`Session::committed`], [`Session::applied`]). Batches executed ahead stay in the caller's
//!   [`Overlay`](crate::Overlay). So a rollback, or a wrong row from hints, leaves no trace here.
//! * A commit does not wait for an execution: its rows are taken in before the next one. Only if sixteen commits have queued during one
//!   execution, the next commit waits.
//! * The session trusts its caller that a [`State`] is what it says, and nobody else. Hints are advice; values that they ship are used only
//!   with [`Trust::Values`], by who [confirms](Ahead::confirm) them.

mod ahead;
mod foretell;
mod known;
mod stall;

use std::{collections::VecDeque, sync::Arc};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use slipstream_storage::{StorageError, Store};
use slipstream_types::{BatchHeader, BatchNumber, Body, ChainConfig, Delta};

pub use self::ahead::{Ahead, AheadUse, OrderedBatch, Trust};
pub use self::stall::StallStats;
use self::{
    foretell::Foreteller,
    stall::{Stalls, Timed},
};
use crate::{
    assemble::{self, BuildClock, BuildLimits, Built, Candidates},
    body::{self, BodyError},
    config::{ExecutorConfig, HintsMode},
    env::Basis,
    error::ExecuteError,
    hot::{HotCache, HotStats},
    interrupt::Interrupt,
    outcome::{self, Outcome},
    overlay::{Layer, State},
    parallel::{self, ParallelStats, Workers},
    predict::PredictMode,
    prefetch::{Prefetcher, Warm},
    senders::Senders,
    transaction::Transaction,
};

/// Most commits that wait to be taken into the cache. If an execution outlasts so many commits, the next one waits for it, so
/// the layers do not fill the memory.
const TOLD_MAX: usize = 16;

/// See the module.
pub struct Session {
    chain: ChainConfig,
    hints: HintsMode,
    /// Whether batches are executed on several threads.
    is_parallel: bool,
    /// `None` if hints and predictions are both off, or if no threads read ahead.
    prefetcher: Option<Prefetcher>,
    foreteller: Foreteller,
    senders: Arc<Senders>,
    /// A pool of their own: while one batch executes, the one before it is sealed on the common one.
    workers: Workers,
    /// Held by whoever executes, and at each read by who foretells.
    hot: RwLock<Hot>,
    /// Committed and not taken in, oldest first. Locked only for a moment, and after `hot` by who needs both.
    told: Mutex<VecDeque<Told>>,
    stalls: Stalls,
}

/// The news that a commit brings to the cache.
enum Told {
    /// The batches of a layer were executed.
    Executed(Arc<Layer>),
    /// A batch came by its delta, which is all that the layer has.
    Applied(Box<Layer>),
}

struct Hot {
    cache: HotCache,
    /// The batch that the cache is behind, if it is behind any.
    number: BatchNumber,
}

/// The system gives no more threads.
#[derive(Debug, thiserror::Error)]
#[error("no thread to {purpose}: {source}; check the limits of this user and of the container")]
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

/// On how many threads a batch is executed. The outcome is the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// As configured, and as its conflicts let expect to be fastest.
    Fitting,
    /// On one thread, transaction by transaction: after validators came to different outcomes.
    Sequential,
}

/// The result of executing a batch.
#[derive(Debug)]
pub struct Executed {
    /// The batch's outcome.
    pub outcome: Outcome,
    /// Counts how useful the read-ahead was.
    pub ahead: AheadUse,
    /// Counts what other threads contributed.
    pub parallel: ParallelStats,
}

impl Session {
    /// Makes the session of one chain, with nothing learned yet.
    ///
    /// # Errors
    /// If the system gives no threads.
    pub fn new(config: &ExecutorConfig, chain: ChainConfig) -> Result<Session, SessionError> {
        let has_keys = config.hints != HintsMode::Off || config.predict != PredictMode::Off;
        let reads_ahead = has_keys && config.prefetch_threads > 0;
        let prefetcher = reads_ahead.then(|| Prefetcher::new(config.prefetch_limits())).transpose();
        Ok(Session {
            chain,
            hints: config.hints,
            is_parallel: config.execution_threads() > 1,
            prefetcher: prefetcher.map_err(SessionError::of("read ahead"))?,
            foreteller: Foreteller::new(config)?,
            senders: Arc::default(),
            workers: Workers::new(config.execution_threads()).map_err(SessionError::of("execute on"))?,
            hot: RwLock::new(Hot {
                cache: HotCache::new(config.hot_cache_mib << 20),
                number: BatchNumber::GENESIS,
            }),
            told: Mutex::default(),
            stalls: Stalls::default(),
        })
    }

    /// The hints that the session uses and makes.
    pub fn hints(&self) -> HintsMode {
        self.hints
    }

    /// The chain whose batches it executes.
    pub fn chain(&self) -> &ChainConfig {
        &self.chain
    }

    /// The same with senders that others know, too: those who meet transactions before they are executed, and after.
    pub fn with_senders(mut self, senders: Arc<Senders>) -> Session {
        self.senders = senders;
        self
    }

    /// The same with the programs of predictors that a store has of an earlier run, and keeping there what is learned from now on.
    ///
    /// # Errors
    /// Errors of the disk, or damage in the store.
    pub fn with_saved(mut self, store: &Store) -> Result<Session, StorageError> {
        self.foreteller = self.foreteller.with_saved(store)?;
        Ok(self)
    }

    /// Decodes and checks every envelope of a body; only senders that are not known are recovered.
    ///
    /// # Errors
    /// Those of [`decode_body`](crate::decode_body).
    pub fn decode(&self, body: &Body) -> Result<Vec<Transaction>, BodyError> {
        body::decode_body_with(body, (&self.chain).into(), &self.senders)
    }

    /// Executes a batch on the state behind its parent. The read-ahead is used only if the state covers the state that it read from.
    ///
    /// With values of hints ([`Trust::Values`]), outcome and error count only once [`Ahead::confirm`] has found all values
    /// right.
    ///
    /// # Errors
    /// Those of [`execute`](crate::execute).
    pub fn execute(
        &self,
        ahead: &Ahead,
        basis: &Basis<'_>,
        transactions: &[Transaction],
        state: &State<'_>,
        way: Way,
    ) -> Result<Executed, ExecuteError> {
        self.execute_until(&Interrupt::never(), ahead, basis, transactions, state, way)
    }

    /// As [`Session::execute`], unless the interrupt says that nobody waits for the outcome any more.
    ///
    /// # Errors
    /// As [`Session::execute`], and [`ExecuteError::Interrupted`].
    pub fn execute_until(
        &self,
        interrupt: &Interrupt,
        ahead: &Ahead,
        basis: &Basis<'_>,
        transactions: &[Transaction],
        state: &State<'_>,
        way: Way,
    ) -> Result<Executed, ExecuteError> {
        debug_assert_eq!(basis.parent.digest(), state.tip(), "the state is not that of the batch's parent");
        let env = basis.env(&self.chain);
        let warm = ahead.warm(state);
        let before = warm.map(Warm::stats).unwrap_or_default();
        let (hot, base) = (self.hot(), self.stalls.of(state.base(warm)));
        let reader = state.reader_with(&hot.cache, &base).watched(self.foreteller.watch());
        let reader = reader.interrupted_by(interrupt.clone());
        let (outcome, parallel) = match ahead.conflicts().filter(|_| way == Way::Fitting) {
            Some(conflicts) => parallel::execute(&reader, &env, transactions, conflicts, &self.workers)?,
            None => (outcome::execute(&reader, &env, transactions)?, ParallelStats::default()),
        };
        drop(hot);
        self.noted(warm, &base);
        self.foreteller.learn(transactions, &outcome.touched);
        let ahead = warm.map(|warm| AheadUse::since(before, warm)).unwrap_or_default();
        Ok(Executed { outcome, ahead, parallel })
    }

    /// Makes a batch on the state behind its parent, by a clock; tells, too, what reading ahead was worth.
    ///
    /// # Errors
    /// Those of [`build`](crate::build), and [`ExecuteError::Interrupted`] if the clock ends the build.
    pub fn build(
        &self,
        clock: &mut dyn BuildClock,
        ahead: &Ahead,
        basis: &Basis<'_>,
        candidates: &mut dyn Candidates,
        limits: &BuildLimits,
        state: &State<'_>,
    ) -> Result<(Built, AheadUse), ExecuteError> {
        debug_assert_eq!(basis.parent.digest(), state.tip(), "the state is not that of the batch's parent");
        let warm = ahead.warm(state);
        let before = warm.map(Warm::stats).unwrap_or_default();
        let (hot, base) = (self.hot(), self.stalls.of(state.base(warm)));
        let reader = state.reader_with(&hot.cache, &base).watched(self.foreteller.watch());
        let reader = reader.interrupted_by(clock.interrupt());
        let built = assemble::build_by(clock, &reader, &basis.env(&self.chain), candidates, limits)?;
        drop(hot);
        self.noted(warm, &base);
        self.foreteller.learn(&built.included, &built.outcome.touched);
        let ahead = warm.map(|warm| AheadUse::since(before, warm)).unwrap_or_default();
        Ok((built, ahead))
    }

    /// The time of plain reads shows whether reading ahead would have paid.
    fn noted(&self, warm: Option<&Warm>, reads: &Timed<'_>) {
        if let (Some(prefetcher), None) = (&self.prefetcher, warm) {
            prefetcher.pace().executed(reads.reads());
        }
    }

    /// Executed batches are committed: their rows are kept for the next one. Callers tell them in the order of the ledger; repeated
    /// and late calls are ignored.
    pub fn committed(&self, layer: &Arc<Layer>) {
        self.tell(Told::Executed(Arc::clone(layer)));
    }

    /// A batch that was not executed here is committed by its delta. Keeps what the cache has up to date, and starts none.
    pub fn applied(&self, header: &BatchHeader, delta: &Delta) {
        let Some(mut hot) = self.hot.try_write() else {
            return self.tell(Told::Applied(Box::new(Layer::of(header, None, delta))));
        };
        self.take_in(&mut hot);
        if hot.cache.is_at(header.parent) {
            hot.cache.apply(header.parent, header.digest(), None, delta);
            hot.number = header.number;
        }
    }

    /// Takes it in now if nobody executes, and before the next execution otherwise.
    fn tell(&self, told: Told) {
        let waiting = {
            let mut queue = self.told.lock();
            queue.push_back(told);
            queue.len()
        };
        let hot = if waiting > TOLD_MAX { Some(self.hot.write()) } else { self.hot.try_write() };
        if let Some(mut hot) = hot {
            self.take_in(&mut hot);
        }
    }

    /// Forgets what the last batches touched: the head's state came by another way than by batches.
    pub fn forget(&self) {
        let mut hot = self.hot.write();
        self.told.lock().clear();
        hot.cache.clear();
    }

    /// Counts how many of a batch's reads the last batches had.
    pub fn hot_stats(&self) -> HotStats {
        self.hot().cache.stats()
    }

    /// How long executing waited for rows and code, since the session began.
    pub fn stall_stats(&self) -> StallStats {
        self.stalls.stats()
    }

    /// The cache with all commits in it, unless somebody executes on it: then theirs are in it that were told before.
    fn hot(&self) -> RwLockReadGuard<'_, Hot> {
        if !self.told.lock().is_empty()
            && let Some(mut hot) = self.hot.try_write()
        {
            self.take_in(&mut hot);
            return RwLockWriteGuard::downgrade(hot);
        }
        self.hot.read()
    }

    fn take_in(&self, hot: &mut Hot) {
        loop {
            // Not held while rows are copied.
            let Some(told) = self.told.lock().pop_front() else { return };
            let (layer, is_due) = match &told {
                Told::Executed(layer) => {
                    (&**layer, hot.cache.at().is_none() || layer.header().number > hot.number)
                }
                Told::Applied(layer) => (&**layer, hot.cache.is_at(layer.header().parent)),
            };
            if is_due {
                hot.cache.take(layer);
                hot.number = layer.header().number;
            }
        }
    }
}
