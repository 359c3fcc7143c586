//! Builds the primary's own batches from the pool. Everything here blocks.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use slipstream_eve::{Order, SignedOrder, Work};
use slipstream_executor::{
    self as executor, Ahead, BuildLimits, ExecuteError, Layer, OrderedBatch, Transaction,
};
use slipstream_storage::StorageError;
use slipstream_types::{B256, Digest, limits};
use tokio::time::Instant;

use super::{
    build_timer::BuildTimer,
    executed::Executed,
    execution::ComputedOutcome,
    ledger::{ExecutionBase, Ledger},
    pace::Pace,
    stop::Stop,
    times,
};
use crate::{
    error::ConsensusError,
    pool::{self, Pool},
};

/// Bytes of a body that are left free for the length prefixes.
const BODY_BYTES_SLACK: usize = 1 << 20;

/// The inputs from which the primary builds a batch.
pub(super) struct BuildRequest {
    pub(super) work: Work,
    /// [`Order::parent`] of the new batch.
    pub(super) parent: Digest,
    pub(super) begun: Instant,
    pub(super) transactions_max: usize,
    pub(super) may_be_empty: bool,
    pub(super) now_ms: u64,
    /// The pool's transactions that uncommitted batches before this one hold.
    pub(super) ahead: pool::Ahead,
    /// The patience of the present view. A build may take a share of it.
    pub(super) patience: Duration,
    pub(super) pace: Arc<Mutex<Pace>>,
    pub(super) stop: Stop,
}

/// The result of a build.
pub(super) struct BuildResult {
    pub(super) batch: BuildOutcome,
    /// Candidates that take longer than any batch may.
    pub(super) too_slow: Vec<B256>,
}

/// How a build ended.
pub(super) enum BuildOutcome {
    Made(Box<Executed>),
    /// The batch would be empty; these candidates could not be executed.
    Nothing(Vec<B256>),
    /// The head moved meanwhile, or the batch is no longer wanted.
    Overtaken,
}

impl Ledger {
    /// Builds the batch after `chain` from the pool, and its order. Without a transaction it builds a batch only if the
    /// batch may be empty.
    pub(super) fn build(
        &self,
        chain: &[Arc<Executed>],
        pool: &Pool,
        request: &BuildRequest,
    ) -> Result<BuildResult, ConsensusError> {
        let begun = Instant::now();
        let mut timer = BuildTimer::new(
            Arc::clone(&request.pace),
            request.stop.clone(),
            self.seams.clone(),
            request.patience,
        );
        let batch = self.build_by(&mut timer, chain, pool, request)?;
        if let BuildOutcome::Made(executed) = &batch {
            let took = begun.elapsed() + request.stop.spent();
            request.pace.lock().executed(executed.number(), took, true);
        }
        Ok(BuildResult { batch, too_slow: timer.finish() })
    }

    fn build_by(
        &self,
        timer: &mut BuildTimer,
        chain: &[Arc<Executed>],
        pool: &Pool,
        request: &BuildRequest,
    ) -> Result<BuildOutcome, ConsensusError> {
        pool.catch_up()?;
        let BuildRequest { work: Work { view, number, .. }, parent, now_ms, .. } = *request;
        let Some(base) = self.base(chain, number)?.filter(|base| !base.parent.is_over(&self.set)) else {
            return Ok(BuildOutcome::Overtaken);
        };
        let timestamp_ms = times::next(&base.parent.header, now_ms);
        let basis = self.basis(&base, view, timestamp_ms);
        let limits = BuildLimits {
            gas: self.chain.rules_at(number, timestamp_ms).gas_limit,
            body_bytes: limits::BODY_BYTES_MAX - BODY_BYTES_SLACK,
            transactions: request.transactions_max.min(limits::BATCH_TRANSACTIONS_MAX),
        };
        let ahead = self.read_ahead(&base, pool, request, timestamp_ms, &limits)?;
        let mut candidates = pool.candidates_after(request.ahead.clone());
        timer.start();
        let built = self.session.build(timer, &ahead, &basis, &mut candidates, &limits, &base.state());
        let (built, read) = match built {
            Err(ExecuteError::Interrupted) => return Ok(BuildOutcome::Overtaken),
            built => built.map_err(|source| ConsensusError::Execute { number, source })?,
        };
        tracing::trace!(%number, named = read.named, used = read.used, reads = read.reads, "read ahead");
        for (hash, reason) in &built.rejected {
            tracing::debug!(%number, %hash, %reason, "transaction left out");
        }
        let rejected = built.rejected.into_iter().map(|(hash, _)| hash).collect();
        if built.included.is_empty() && !request.may_be_empty {
            return Ok(BuildOutcome::Nothing(rejected));
        }
        let outcome = self.as_the_machine_does(number, request.work.sequential, built.outcome);
        let Some(speculation) = self.speculate(&base, &outcome.delta)? else {
            return Ok(BuildOutcome::Overtaken);
        };
        let mut sealed =
            executor::seal(self.session.hints(), &basis, &built.included, &outcome, speculation.root())?;
        self.vouch(&mut sealed);
        let order = Order {
            epoch: self.set.epoch,
            view,
            number,
            parent,
            timestamp_ms,
            transactions: sealed.header.transactions_root,
        };
        let made = ComputedOutcome {
            order: Some(SignedOrder::new(order, &self.domain, &self.key)),
            layer: Layer::of(&sealed.header, Some(&outcome.touched), &outcome.delta),
            sealed,
            delta: outcome.delta,
            hashes: built.included.iter().map(|transaction| transaction.hash).collect(),
            speculation,
            rejected,
        };
        Ok(BuildOutcome::Made(Box::new(self.finish(&base, made)?)))
    }

    /// Makes a built batch durable, unless the work was cut short.
    pub(super) fn keep_built(&self, built: BuildResult, is_cut: bool) -> Result<BuildResult, ConsensusError> {
        let batch = match built.batch {
            _ if is_cut => BuildOutcome::Overtaken,
            BuildOutcome::Made(executed) => {
                self.keep(&executed.parts)?;
                BuildOutcome::Made(executed)
            }
            batch => batch,
        };
        Ok(BuildResult { batch, ..built })
    }

    /// Begins to read the state that the pool's best transactions name, so that a primary waits for the disk no longer
    /// than the others do.
    fn read_ahead(
        &self,
        base: &ExecutionBase,
        pool: &Pool,
        request: &BuildRequest,
        timestamp_ms: u64,
        limits: &BuildLimits,
    ) -> Result<Ahead, StorageError> {
        // Reads for the next batch too, which then finds its rows in the block cache.
        let limits = &BuildLimits {
            gas: 2 * limits.gas,
            body_bytes: 2 * limits.body_bytes,
            transactions: 2 * limits.transactions,
        };
        let Some(likely) = self.likely(pool, request, limits) else { return Ok(Ahead::default()) };
        let Work { view, number, .. } = request.work;
        let proposer = self.proposer(view);
        let batch = OrderedBatch::without_header(number, timestamp_ms, proposer, limits.gas, &likely, None);
        self.session.prepare_candidates(&batch, &base.view, &base.overlay)
    }

    /// The transactions to read ahead for. `None` if nothing is read ahead, which saves a draw under the pool's lock
    /// for each.
    pub(super) fn likely(
        &self,
        pool: &Pool,
        request: &BuildRequest,
        limits: &BuildLimits,
    ) -> Option<Vec<Transaction>> {
        let reads_ahead = self.session.reads_candidates_ahead();
        reads_ahead.then(|| pool.candidates_after(request.ahead.clone()).peek(limits))
    }
}
