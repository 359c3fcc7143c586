//! [`Ledger`]: the inputs of execution and commit, and their work with the store. Everything here blocks.

use std::sync::Arc;

use slipstream_executor::{Overlay, Session, State};
use slipstream_storage::{CommitBatch, SpeculatedState, StorageError, Store, View};
use slipstream_types::{
    Address, B256, BatchNumber, BlobKind, Body, Certificate, ChainConfig, Delta, Digest, SecretKey,
    ValidatorSet, keccak256,
};

use super::{
    executed::{DurableOutcome, Executed},
    kept,
    message::OutcomeParts,
    tip::Tip,
};
use crate::{error::RecordError, planted::Planted, pool::Pool, seams::Seams};

/// See the module.
pub(super) struct Ledger {
    pub(super) chain: ChainConfig,
    pub(super) store: Store,
    pub(super) set: ValidatorSet,
    /// The key that signs orders.
    pub(super) key: SecretKey,
    /// The domain of signatures in this chain and epoch.
    pub(super) domain: Digest,
    /// The executor's session, which sync shares.
    pub(super) session: Arc<Session>,
    /// The contract that names the validators of the next epoch, if the genesis names one.
    pub(super) contract: Option<Address>,
    /// The hooks of a simulator.
    pub(super) seams: Seams,
}

/// The base of an execution: a committed state, and the batches executed since.
pub(super) struct ExecutionBase {
    pub(super) view: View,
    pub(super) overlay: Overlay,
    /// The parent of the next batch.
    pub(super) parent: Tip,
    /// The state after the parent; `None` if the parent is committed.
    pub(super) before: Option<SpeculatedState>,
}

impl ExecutionBase {
    /// The state after the parent.
    pub(super) fn state(&self) -> State<'_> {
        State::on(&self.view, &self.overlay).expect("a ground is whole when it is made")
    }
}

impl Ledger {
    /// The domain of signatures in an epoch of a chain.
    pub(super) fn domain(genesis: Digest, set: &ValidatorSet) -> Digest {
        let place = [genesis.as_bytes(), &set.epoch.0.to_le_bytes()[..]].concat();
        Digest::tagged("slipstream/consensus/1", &place)
    }

    /// The account that gets the fees of a view's batches.
    pub(super) fn proposer(&self, view: u64) -> Address {
        self.set.validators[usize::from(self.set.primary(view))].fee_recipient
    }

    /// The head, with the next validators if it ended its epoch.
    pub(super) fn tip(&self) -> Result<Tip, StorageError> {
        let head = self.store.head()?;
        let info = self.store.ledger_info(head.header.number)?;
        Ok(Tip::of(head, info.and_then(|info| info.next_validators)))
    }

    /// The base of a batch: the last of the chain, or the head if the chain is empty. Returns `None` if the head moved
    /// past the batch, or the chain does not lead to the head.
    pub(super) fn base(
        &self,
        chain: &[Arc<Executed>],
        number: BatchNumber,
    ) -> Result<Option<ExecutionBase>, StorageError> {
        let view = self.store.view()?;
        let mut overlay = Overlay::default();
        chain.iter().for_each(|executed| overlay.push(Arc::clone(&executed.layer)));
        let (parent, before) = match chain.last() {
            Some(last) => (last.tip.clone(), Some(last.state.clone())),
            None => (self.tip()?, None),
        };
        let is_whole = match chain.is_empty() {
            true => parent.header == *view.head(),
            false => State::on(&view, &overlay).is_some(),
        };
        let is_next = is_whole && parent.number().next() == number;
        Ok(is_next.then_some(ExecutionBase { view, overlay, parent, before }))
    }

    /// Whether a simulator removes a defence.
    pub(super) fn lacks(&self, planted: Planted) -> bool {
        self.seams.defences.lacks(planted)
    }

    /// Makes an outcome durable before it is announced.
    pub(super) fn keep(&self, parts: &DurableOutcome) -> Result<(), RecordError> {
        if self.lacks(Planted::UnkeptOutcome) { Ok(()) } else { kept::write(&self.store, parts) }
    }

    /// Commits a certified batch. A batch that sync has committed meanwhile is no error. The kept outcome is removed
    /// after the commit. So a power cut, which takes the last writes, leaves the committed batch or the kept outcome.
    pub(super) fn commit(
        &self,
        executed: &Executed,
        certificate: &Certificate,
        pool: &Pool,
    ) -> Result<(), StorageError> {
        let batch = executed.parts.sealed.commit_batch(&executed.delta, &executed.hashes);
        let speculation = executed.speculation.lock().take();
        self.commit_batch(CommitBatch { certificate: Some(certificate), ..batch }, speculation)?;
        self.session.committed(&executed.layer);
        if !pool.on_batch(executed.number(), &executed.delta) {
            pool.catch_up()?;
        }
        pool.reject(&executed.rejected);
        self.forget_outcomes(executed.number())
    }

    /// Does the same as [`Ledger::commit`] with a batch that was rolled back here.
    pub(super) fn commit_parts(
        &self,
        parts: &DurableOutcome,
        certificate: &Certificate,
    ) -> Result<(), StorageError> {
        let sealed = &parts.sealed;
        let delta = Delta::open(&sealed.delta)?;
        let hashes = hashes(&sealed.body.open::<Body>(BlobKind::Body)?);
        let batch = sealed.commit_batch(&delta, &hashes);
        self.commit_batch(CommitBatch { certificate: Some(certificate), ..batch }, None)?;
        self.session.applied(&sealed.header, &delta);
        self.forget_outcomes(parts.number())
    }

    /// Removes the kept outcomes from number `first` up to the head. A batch that was left to sync keeps its outcomes.
    pub(super) fn forget_outcomes(&self, first: BatchNumber) -> Result<(), StorageError> {
        kept::remove(&self.store, first..=self.store.head()?.header.number)
    }

    fn commit_batch(
        &self,
        batch: CommitBatch<'_>,
        speculation: Option<slipstream_storage::Speculation>,
    ) -> Result<(), StorageError> {
        match self.store.commit_recorded(batch, speculation) {
            // Sync was faster, or must bring the batch: an earlier batch was not available here.
            Err(StorageError::NotNext { head, number }) => {
                tracing::debug!(%head, %number, "leaving a decided batch to sync");
                Ok(())
            }
            result => result,
        }
    }

    /// A committed batch, if it has this outcome and all its parts are stored.
    pub(super) fn committed(
        &self,
        number: BatchNumber,
        token: Digest,
    ) -> Result<Option<OutcomeParts>, StorageError> {
        let blob = |kind| self.store.blob(kind, number);
        let info = self.store.ledger_info(number)?;
        if info.is_none_or(|info| info.digest() != token) {
            return Ok(None);
        }
        let parts = (
            self.store.header(number)?,
            blob(BlobKind::Body)?,
            blob(BlobKind::Receipts)?,
            blob(BlobKind::Delta)?,
        );
        let (Some(header), Some(body), Some(receipts), Some(delta)) = parts else { return Ok(None) };
        Ok(Some(OutcomeParts { header, body, receipts, delta }))
    }
}

/// Hashes of a body's transactions, in order.
pub(super) fn hashes(body: &Body) -> Vec<B256> {
    body.transactions.iter().map(|raw| keccak256(&raw[..])).collect()
}
