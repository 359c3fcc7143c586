//! From an order to an outcome: executes a batch, or adopts an outcome. Everything here blocks.

use std::sync::Arc;

use slipstream_eve::{NoOutcome, SignedOrder};
use slipstream_executor::{
    self as executor, BatchContext, ExecuteError, ExecutionMethod, Interrupt, Layer, OrderedBatch,
    SealedBatch, Transaction, Trust,
};
use slipstream_storage::{Speculation, StorageError};
use slipstream_types::{
    B256, BatchHeader, BatchNumber, BlobKind, Body, CodecError, Delta, batch::content_digest, codec, limits,
};

use super::{
    executed::{DurableOutcome, Executed},
    ledger::{ExecutionBase, Ledger, hashes},
    message::{Ordered, OutcomeParts},
    stop::Stop,
    times,
};
use crate::{
    error::{ConsensusError, ProposalError, RecordError},
    planted::Planted,
    seams,
};

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
    /// # Errors
    /// If this validator cannot continue.
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

/// An outcome that is computed, before its ledger info is known.
pub(super) struct ComputedOutcome {
    pub(super) order: Option<SignedOrder>,
    pub(super) sealed: SealedBatch,
    pub(super) delta: Delta,
    pub(super) layer: Layer,
    pub(super) hashes: Vec<B256>,
    pub(super) speculation: Speculation,
    pub(super) rejected: Vec<B256>,
}

impl Ledger {
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
        let base = self.base(chain, number)?.ok_or(Failure::Overtaken)?;
        if base.parent.is_over(&self.set) {
            return Err(ProposalError::EpochOver { number, epoch: self.set.epoch }.into());
        }
        if !self.lacks(Planted::UncheckedClock) {
            times::check(order, &base.parent.header, now_ms)?;
        }
        let body: Body =
            ordered.body.open(BlobKind::Body).map_err(|source| ProposalError::Body { number, source })?;
        let transactions =
            self.session.decode(&body).map_err(|source| ProposalError::Transactions { number, source })?;
        stop.spend(self.seams.takes(seams::Work::Execute, &transactions));
        let basis = self.basis(&base, order.view, order.timestamp_ms);
        let way = if sequential { ExecutionMethod::Sequential } else { ExecutionMethod::Fitting };
        let outcome = self.run(&base, &basis, &transactions, ordered, way, &stop.interrupt())?;
        let speculation = self.speculate(&base, &outcome.delta)?.ok_or(Failure::Overtaken)?;
        let mut sealed =
            executor::seal(self.session.hints(), &basis, &transactions, &outcome, speculation.root())
                .map_err(|source| ProposalError::Body { number, source })?;
        self.vouch(&mut sealed);
        let made = ComputedOutcome {
            order: Some(ordered.order.clone()),
            layer: Layer::of(&sealed.header, Some(&outcome.touched), &outcome.delta),
            sealed,
            delta: outcome.delta,
            hashes: transactions.iter().map(|transaction| transaction.hash).collect(),
            speculation,
            rejected: Vec::new(),
        };
        Ok(self.finish(&base, made)?)
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
        base: &ExecutionBase,
        basis: &BatchContext<'_>,
        transactions: &[Transaction],
        ordered: &Ordered,
        way: ExecutionMethod,
        interrupt: &Interrupt,
    ) -> Result<executor::Outcome, Failure> {
        let number = ordered.order.order.number;
        let BatchContext { timestamp_ms, proposer, .. } = *basis;
        let gas_limit = self.chain.rules_at(number, timestamp_ms).gas_limit;
        let hints = ordered.hints.as_ref();
        let batch =
            OrderedBatch::without_header(number, timestamp_ms, proposer, gas_limit, transactions, hints);
        let ahead = self.session.prepare(&batch, &base.view, &base.overlay, Trust::Keys)?;
        let state = base.state();
        let executed = self.session.execute_until(interrupt, &ahead, basis, transactions, &state, way);
        let outcome = executed.map(|executed| executed.outcome).map_err(|source| match source {
            ExecuteError::State(_) | ExecuteError::MissingCode { .. } => {
                Failure::Broken(ConsensusError::Execute { number, source })
            }
            ExecuteError::Interrupted => Failure::Overtaken,
            source => ProposalError::Execute { number, source }.into(),
        })?;
        Ok(self.as_the_machine_does(number, way == ExecutionMethod::Sequential, outcome))
    }

    /// Returns the outcome. If a simulator lets this machine err, it is as if the machine had executed another
    /// transaction.
    pub(super) fn as_the_machine_does(
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
        let base = self.base(chain, number)?.ok_or(Failure::Overtaken)?;
        let differs = |field| Failure::from(ProposalError::NotTheOutcome { number, field });
        if header.parent != base.parent.digest || header.epoch != self.set.epoch {
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
        let speculation = self.speculate(&base, &changes)?.ok_or(Failure::Overtaken)?;
        if speculation.root() != header.state_root {
            return Err(differs("state_root"));
        }
        let made = ComputedOutcome {
            order,
            layer: Layer::of(&header, None, &changes),
            sealed: SealedBatch { header, body, receipts, delta, hints: None },
            delta: changes,
            hashes: hashes(&opened),
            speculation,
            rejected: Vec::new(),
        };
        Ok(self.finish(&base, made)?)
    }

    /// Signs the hints, for nodes that keep them and cannot try them.
    pub(super) fn vouch(&self, sealed: &mut SealedBatch) {
        let own = self.key.public();
        if let Some(index) = self.set.validators.iter().position(|it| it.public_key == own) {
            sealed.vouch(index as u16, &self.key);
        }
    }

    /// The parts of the batch that are settled before its execution.
    pub(super) fn basis<'a>(
        &self,
        base: &'a ExecutionBase,
        view: u64,
        timestamp_ms: u64,
    ) -> BatchContext<'a> {
        let parent: &BatchHeader = &base.parent.header;
        BatchContext { parent, epoch: self.set.epoch, timestamp_ms, proposer: self.proposer(view) }
    }

    /// Computes the state after the batch. Returns `None` if a batch was committed meanwhile: the batch's own root is
    /// then out of reach.
    pub(super) fn speculate(
        &self,
        base: &ExecutionBase,
        delta: &Delta,
    ) -> Result<Option<Speculation>, StorageError> {
        if let Some(before) = &base.before {
            return self.store.speculate_after(before, delta).map(Some);
        }
        let speculation = self.store.speculate(delta)?;
        // The head only moves forward: if it still is the view's, the speculation was made on it.
        Ok((self.store.head()?.header == *base.view.head()).then_some(speculation))
    }

    pub(super) fn finish(
        &self,
        base: &ExecutionBase,
        made: ComputedOutcome,
    ) -> Result<Executed, StorageError> {
        let ComputedOutcome { order, sealed, delta, layer, hashes, speculation, rejected } = made;
        let before = base.state().reader();
        let next = executor::validators::next_validators(self.contract, &sealed.header, &before, &delta)?;
        let tip = base.parent.followed_by(sealed.header.clone(), next);
        Ok(Executed {
            parts: Arc::new(DurableOutcome::new(order, sealed, tip.info())),
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
