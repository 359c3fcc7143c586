//! From an order to an outcome: builds a batch, executes one, or adopts one. Everything here blocks.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use slipstream_eve::{NoOutcome, Order, SignedOrder, Work};
use slipstream_executor::{
    self as executor, Ahead, Basis, BuildLimits, ExecuteError, Interrupt, Layer, OrderedBatch, Sealed,
    Transaction, Trust, Way,
};
use slipstream_storage::{Speculation, StorageError};
use slipstream_types::{
    B256, BatchHeader, BatchNumber, BlobKind, Body, CodecError, Delta, Digest, batch::content_digest, codec,
    limits,
};
use tokio::time::Instant;

use super::{
    build_timer::BuildTimer,
    executed::{Executed, Parts},
    ledger::{ExecutionBase, Ledger, hashes},
    message::{Ordered, OutcomeParts},
    pace::Pace,
    stop::Stop,
    times,
};
use crate::{
    error::{ConsensusError, ProposalError, RecordError},
    planted::Planted,
    pool::{self, Pool},
    seams,
};

/// Bytes of a body that are left free for the length prefixes.
const BODY_BYTES_SLACK: usize = 1 << 20;

/// The inputs from which the primary builds a batch.
pub(super) struct Making {
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
pub(super) struct Built {
    pub(super) batch: BuiltBatch,
    /// Candidates that take longer than any batch may.
    pub(super) too_slow: Vec<B256>,
}

/// How a build ended.
pub(super) enum BuiltBatch {
    Made(Box<Executed>),
    /// The batch would be empty; these candidates could not be executed.
    Nothing(Vec<B256>),
    /// The head moved meanwhile, or the batch is no longer wanted.
    Overtaken,
}

/// Why an execution has no outcome.
#[derive(Debug)]
pub(super) enum Failure {
    /// The order, or the outcome shown, cannot come from an honest validator.
    Refused(Box<ProposalError>),
    /// The head moved meanwhile, or the outcome is no longer wanted.
    Overtaken,
    /// This validator cannot continue.
    Broken(ConsensusError),
}

impl Failure {
    /// Translates the failure for the protocol.
    ///
    /// # Errors If this validator cannot continue.
    pub(super) fn no_outcome(self) -> Result<(NoOutcome, Option<Box<ProposalError>>), ConsensusError> {
        match self {
            Failure::Refused(error) => Ok((NoOutcome::Refused, Some(error))),
            Failure::Overtaken => Ok((NoOutcome::Overtaken, None)),
            Failure::Broken(error) => Err(error),
        }
    }
}

impl From<ProposalError> for Failure {
    fn from(error: ProposalError) -> Self {
        Failure::Refused(Box::new(error))
    }
}

impl From<StorageError> for Failure {
    fn from(error: StorageError) -> Self {
        Failure::Broken(error.into())
    }
}

impl From<RecordError> for Failure {
    fn from(error: RecordError) -> Self {
        Failure::Broken(error.into())
    }
}

/// All parts of an outcome.
struct Made {
    order: Option<SignedOrder>,
    sealed: Sealed,
    delta: Delta,
    layer: Layer,
    hashes: Vec<B256>,
    speculation: Speculation,
    rejected: Vec<B256>,
}

impl Ledger {
    /// Builds the batch after `chain` from the pool, and its order. Without a transaction it builds one only if it may
    /// be empty.
    pub(super) fn build(
        &self,
        chain: &[Arc<Executed>],
        pool: &Pool,
        making: &Making,
    ) -> Result<Built, ConsensusError> {
        let begun = Instant::now();
        let mut timer = BuildTimer::new(
            Arc::clone(&making.pace),
            making.stop.clone(),
            self.seams.clone(),
            making.patience,
        );
        let batch = self.build_by(&mut timer, chain, pool, making)?;
        if let BuiltBatch::Made(executed) = &batch {
            let took = begun.elapsed() + making.stop.spent();
            making.pace.lock().executed(executed.number(), took, true);
        }
        Ok(Built { batch, too_slow: timer.finish() })
    }

    fn build_by(
        &self,
        timer: &mut BuildTimer,
        chain: &[Arc<Executed>],
        pool: &Pool,
        making: &Making,
    ) -> Result<BuiltBatch, ConsensusError> {
        pool.catch_up()?;
        let Making { work: Work { view, number, .. }, parent, now_ms, .. } = *making;
        let Some(ground) = self.ground(chain, number)?.filter(|ground| !ground.parent.is_over(&self.set))
        else {
            return Ok(BuiltBatch::Overtaken);
        };
        let timestamp_ms = times::next(&ground.parent.header, now_ms);
        let basis = self.basis(&ground, view, timestamp_ms);
        let limits = BuildLimits {
            gas: self.chain.rules_at(number, timestamp_ms).gas_limit,
            body_bytes: limits::BODY_BYTES_MAX - BODY_BYTES_SLACK,
            transactions: making.transactions_max.min(limits::BATCH_TRANSACTIONS_MAX),
        };
        let ahead = self.read_ahead(&ground, pool, making, timestamp_ms, &limits)?;
        let mut candidates = pool.candidates_after(making.ahead.clone());
        timer.start();
        let built = self.session.build(timer, &ahead, &basis, &mut candidates, &limits, &ground.state());
        let (built, read) = match built {
            Err(ExecuteError::Interrupted) => return Ok(BuiltBatch::Overtaken),
            built => built.map_err(|source| ConsensusError::Execute { number, source })?,
        };
        tracing::trace!(%number, named = read.named, used = read.used, reads = read.reads, "read ahead");
        for (hash, reason) in &built.rejected {
            tracing::debug!(%number, %hash, %reason, "transaction left out");
        }
        let rejected = built.rejected.into_iter().map(|(hash, _)| hash).collect();
        if built.included.is_empty() && !making.may_be_empty {
            return Ok(BuiltBatch::Nothing(rejected));
        }
        let outcome = self.as_the_machine_does(number, making.work.sequential, built.outcome);
        let Some(speculation) = self.speculate(&ground, &outcome.delta)? else {
            return Ok(BuiltBatch::Overtaken);
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
        let made = Made {
            order: Some(SignedOrder::new(order, &self.domain, &self.key)),
            layer: Layer::of(&sealed.header, Some(&outcome.touched), &outcome.delta),
            sealed,
            delta: outcome.delta,
            hashes: built.included.iter().map(|transaction| transaction.hash).collect(),
            speculation,
            rejected,
        };
        Ok(BuiltBatch::Made(Box::new(self.finish(&ground, made)?)))
    }

    /// Makes a built batch durable, unless the work was cut short.
    pub(super) fn keep_built(&self, built: Built, is_cut: bool) -> Result<Built, ConsensusError> {
        let batch = match built.batch {
            _ if is_cut => BuiltBatch::Overtaken,
            BuiltBatch::Made(executed) => {
                self.keep(&executed.parts)?;
                BuiltBatch::Made(executed)
            }
            batch => batch,
        };
        Ok(Built { batch, ..built })
    }

    /// Begins to read what the pool's best transactions name, so that proposing waits for the disk no longer than
    /// following does.
    fn read_ahead(
        &self,
        ground: &ExecutionBase,
        pool: &Pool,
        making: &Making,
        timestamp_ms: u64,
        limits: &BuildLimits,
    ) -> Result<Ahead, StorageError> {
        // Reads for the next batch too, which then finds its rows in the block cache.
        let limits = &BuildLimits {
            gas: 2 * limits.gas,
            body_bytes: 2 * limits.body_bytes,
            transactions: 2 * limits.transactions,
        };
        let Some(likely) = self.likely(pool, making, limits) else { return Ok(Ahead::default()) };
        let Work { view, number, .. } = making.work;
        let proposer = self.proposer(view);
        let batch = OrderedBatch::without_header(number, timestamp_ms, proposer, limits.gas, &likely, None);
        self.session.prepare_candidates(&batch, &ground.view, &ground.overlay)
    }

    /// The transactions to read ahead for. `None` if nothing is read ahead, which saves a draw under the pool's lock
    /// for each.
    pub(super) fn likely(
        &self,
        pool: &Pool,
        making: &Making,
        limits: &BuildLimits,
    ) -> Option<Vec<Transaction>> {
        let reads_ahead = self.session.reads_candidates_ahead();
        reads_ahead.then(|| pool.candidates_after(making.ahead.clone()).peek(limits))
    }

    /// Executes an ordered batch on the chain of batches before it.
    pub(super) fn execute(
        &self,
        chain: &[Arc<Executed>],
        ordered: &Ordered,
        sequential: bool,
        now_ms: u64,
        stop: &Stop,
    ) -> Result<Executed, Failure> {
        let order = &ordered.order.order;
        let number = order.number;
        let ground = self.ground(chain, number)?.ok_or(Failure::Overtaken)?;
        if ground.parent.is_over(&self.set) {
            return Err(ProposalError::EpochOver { number, epoch: self.set.epoch }.into());
        }
        if !self.lacks(Planted::UncheckedClock) {
            times::check(order, &ground.parent.header, now_ms)?;
        }
        let body: Body =
            ordered.body.open(BlobKind::Body).map_err(|source| ProposalError::Body { number, source })?;
        let transactions =
            self.session.decode(&body).map_err(|source| ProposalError::Transactions { number, source })?;
        stop.spend(self.seams.takes(seams::Work::Execute, &transactions));
        let basis = self.basis(&ground, order.view, order.timestamp_ms);
        let way = if sequential { Way::Sequential } else { Way::Fitting };
        let outcome = self.run(&ground, &basis, &transactions, ordered, way, &stop.interrupt())?;
        let speculation = self.speculate(&ground, &outcome.delta)?.ok_or(Failure::Overtaken)?;
        let mut sealed =
            executor::seal(self.session.hints(), &basis, &transactions, &outcome, speculation.root())
                .map_err(|source| ProposalError::Body { number, source })?;
        self.vouch(&mut sealed);
        let made = Made {
            order: Some(ordered.order.clone()),
            layer: Layer::of(&sealed.header, Some(&outcome.touched), &outcome.delta),
            sealed,
            delta: outcome.delta,
            hashes: transactions.iter().map(|transaction| transaction.hash).collect(),
            speculation,
            rejected: Vec::new(),
        };
        Ok(self.finish(&ground, made)?)
    }

    /// Makes an executed batch durable, unless the work was cut short.
    pub(super) fn keep_executed(&self, executed: Executed, is_cut: bool) -> Result<Box<Executed>, Failure> {
        if is_cut {
            return Err(Failure::Overtaken);
        }
        self.keep(&executed.parts)?;
        Ok(Box::new(executed))
    }

    /// Executes the transactions. Nobody vouches for the order's hints, so their values stay unused.
    fn run(
        &self,
        ground: &ExecutionBase,
        basis: &Basis<'_>,
        transactions: &[Transaction],
        ordered: &Ordered,
        way: Way,
        interrupt: &Interrupt,
    ) -> Result<executor::Outcome, Failure> {
        let number = ordered.order.order.number;
        let Basis { timestamp_ms, proposer, .. } = *basis;
        let gas_limit = self.chain.rules_at(number, timestamp_ms).gas_limit;
        let hints = ordered.hints.as_ref();
        let batch =
            OrderedBatch::without_header(number, timestamp_ms, proposer, gas_limit, transactions, hints);
        let ahead = self.session.prepare(&batch, &ground.view, &ground.overlay, Trust::Keys)?;
        let state = ground.state();
        let executed = self.session.execute_until(interrupt, &ahead, basis, transactions, &state, way);
        let outcome = executed.map(|executed| executed.outcome).map_err(|source| match source {
            ExecuteError::State(_) | ExecuteError::MissingCode { .. } => {
                Failure::Broken(ConsensusError::Execute { number, source })
            }
            ExecuteError::Interrupted => Failure::Overtaken,
            source => ProposalError::Execute { number, source }.into(),
        })?;
        Ok(self.as_the_machine_does(number, way == Way::Sequential, outcome))
    }

    /// Returns the outcome. If a simulator lets this machine err, it is as if the machine had executed another
    /// transaction.
    fn as_the_machine_does(
        &self,
        number: BatchNumber,
        sequential: bool,
        outcome: executor::Outcome,
    ) -> executor::Outcome {
        if !self.seams.errs(number, sequential) {
            return outcome;
        }
        let wrong = slipstream_types::delta::DeltaEntry {
            key: slipstream_types::StateKey::Slot(slipstream_types::Address::repeat_byte(0xdd), B256::ZERO),
            value: Some(slipstream_types::StateValue::Slot(slipstream_types::U256::from(1))),
        };
        let entries = outcome.delta.entries().iter().copied().chain([wrong]).collect();
        let codes = outcome.delta.codes().iter().map(|code| code.to_vec()).collect();
        match Delta::new(entries, codes) {
            Ok(delta) => executor::Outcome { delta, ..outcome },
            Err(_) => outcome,
        }
    }

    /// Adopts an outcome that others show, or that was kept over a restart. The caller compares its ledger info with
    /// the agreed one.
    pub(super) fn adopt(
        &self,
        chain: &[Arc<Executed>],
        order: Option<SignedOrder>,
        parts: OutcomeParts,
    ) -> Result<Executed, Failure> {
        let OutcomeParts { header, body, receipts, delta } = parts;
        let number = header.number;
        let ground = self.ground(chain, number)?.ok_or(Failure::Overtaken)?;
        let differs = |field| Failure::from(ProposalError::NotTheOutcome { number, field });
        if header.parent != ground.parent.digest || header.epoch != self.set.epoch {
            return Err(differs("parent or epoch"));
        }
        let content = |blob: &slipstream_types::Blob, kind, digest, field| -> Result<Vec<u8>, Failure> {
            let content = blob.content(kind).map_err(|_| differs(field))?;
            if content_digest(kind, &content) == digest { Ok(content) } else { Err(differs(field)) }
        };
        let transactions = content(&body, BlobKind::Body, header.transactions_root, "transactions_root")?;
        content(&receipts, BlobKind::Receipts, header.receipts_root, "receipts_root")?;
        let changes = content(&delta, BlobKind::Delta, header.delta_digest, "delta_digest")?;
        let malformed = |_: CodecError| differs("content");
        let opened: Body = codec::decode("body", &transactions, limits::BODY_BYTES_MAX).map_err(malformed)?;
        let changes = Delta::decode(&changes).map_err(malformed)?;
        let speculation = self.speculate(&ground, &changes)?.ok_or(Failure::Overtaken)?;
        if speculation.root() != header.state_root {
            return Err(differs("state_root"));
        }
        let made = Made {
            order,
            layer: Layer::of(&header, None, &changes),
            sealed: Sealed { header, body, receipts, delta, hints: None },
            delta: changes,
            hashes: hashes(&opened),
            speculation,
            rejected: Vec::new(),
        };
        Ok(self.finish(&ground, made)?)
    }

    /// Signs the hints, for nodes that keep them and cannot try them.
    fn vouch(&self, sealed: &mut Sealed) {
        let own = self.key.public();
        if let Some(index) = self.set.validators.iter().position(|it| it.public_key == own) {
            sealed.vouch(index as u16, &self.key);
        }
    }

    /// The parts of the batch that are settled before its execution.
    fn basis<'a>(&self, ground: &'a ExecutionBase, view: u64, timestamp_ms: u64) -> Basis<'a> {
        let parent: &BatchHeader = &ground.parent.header;
        Basis { parent, epoch: self.set.epoch, timestamp_ms, proposer: self.proposer(view) }
    }

    /// Computes the state after the batch. Returns `None` if a batch was committed meanwhile: the batch's own root is
    /// then out of reach.
    fn speculate(&self, ground: &ExecutionBase, delta: &Delta) -> Result<Option<Speculation>, StorageError> {
        if let Some(before) = &ground.before {
            return self.store.speculate_after(before, delta).map(Some);
        }
        let speculation = self.store.speculate(delta)?;
        // The head only moves forward: if it still is the view's, the speculation was made on it.
        Ok((self.store.head()?.header == *ground.view.head()).then_some(speculation))
    }

    fn finish(&self, ground: &ExecutionBase, made: Made) -> Result<Executed, StorageError> {
        let Made { order, sealed, delta, layer, hashes, speculation, rejected } = made;
        let before = ground.state().reader();
        let next = executor::validators::next_validators(self.contract, &sealed.header, &before, &delta)?;
        let tip = ground.parent.followed_by(sealed.header.clone(), next);
        Ok(Executed {
            parts: Arc::new(Parts::new(order, sealed, tip.info())),
            tip,
            delta,
            hashes,
            layer: Arc::new(layer),
            state: speculation.state(),
            speculation: parking_lot::Mutex::new(Some(speculation)),
            rejected,
        })
    }
}
