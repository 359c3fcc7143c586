//! Executes prepared batches in sequence, and checks each against its certified header.

use std::{mem, sync::Arc};

use parking_lot::Mutex;
use slipstream_executor::{
    BatchContext, Difference, ExecuteError, ExecutionMethod, HintsMode, Layer, Outcome, Overlay, ReadSet,
    SealedBatch, State, difference, seal,
};
use slipstream_network::PeerId;
use slipstream_storage::View;
use slipstream_types::{B256, BatchHeader, BatchNumber, BlobKind, Certificate, Delta, PublicKey, hints};

use super::{
    DISBELIEVED_MAX, HintUse, Worker,
    ahead::RangeAhead,
    prepare::{PreparedBatch, PreparedKind, PreparedRange, unreadable},
};
use crate::{SyncError, planted::Planted, protocol::RangeBatch, verify::VerifiedRange};

/// A range that was executed. Each batch gave what its header says; the state root is not checked yet.
#[derive(Debug)]
pub struct ExecutedRange {
    pub(super) from: PeerId,
    pub(super) certificate: Certificate,
    pub(super) batches: Vec<ExecutedBatch>,
    /// The rows that the batches read and wrote, or `None` without batches.
    pub(super) layer: Option<Arc<Layer>>,
}

/// The result of executing a range.
#[derive(Debug)]
pub enum ExecutionResult {
    /// It only has to be committed.
    Range(Box<ExecutedRange>),
    /// The state before it is not here: it has to be prepared again.
    Unprepared(VerifiedRange),
}

#[derive(Debug)]
pub(super) struct ExecutedBatch {
    pub(super) batch: RangeBatch,
    /// The validator that vouches for its hints.
    pub(super) maker: Option<PublicKey>,
    pub(super) delta: Delta,
    pub(super) sealed: SealedBatch,
    pub(super) hashes: Vec<B256>,
    pub(super) ahead: ReadAhead,
}

/// How useful a batch's read-ahead was: by its hints, or by predictions if it came without usable ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadAhead {
    pub(super) hints: HintUse,
    pub(super) foretold: HintUse,
}

/// A range in execution: its batches, and the state before them.
struct Replay<'a> {
    base: &'a View,
    /// The ranges between that state and the first batch.
    before: &'a Overlay,
    /// The header before the first batch.
    parent: &'a BatchHeader,
    batches: &'a [PreparedBatch],
}

/// The result of executing one batch.
struct BatchRun {
    delta: Delta,
    ahead: ReadAhead,
    checked: SealResult,
}

impl Replay<'_> {
    /// The header before a batch.
    fn parent(&self, index: usize) -> &BatchHeader {
        match index.checked_sub(1).and_then(|before| self.batches.get(before)) {
            Some(before) => &before.batch.header,
            None => self.parent,
        }
    }

    /// Adds a batch to an overlay. All batches of the range are one layer.
    fn add(&self, overlay: &mut Overlay, index: usize, touched: Option<&ReadSet>, delta: &Delta) {
        let header = &self.batches[index].batch.header;
        match index {
            0 => overlay.push(Arc::new(Layer::of(header, touched, delta))),
            _ => overlay.extend(header, touched, delta),
        }
    }
}

impl Worker {
    /// Executes a range on the state after the batch before the range; that batch may be uncommitted. While one batch
    /// executes, the one before it is sealed and compared with its header.
    pub(super) fn execute(&self, prepared: PreparedRange) -> Result<ExecutionResult, SyncError> {
        let PreparedRange { from, certificate, kind } = prepared;
        let PreparedKind::Replay { base, applied, mut batches, _waits } = kind else {
            return Err(SyncError::Worker("a delta reached the executor".into()));
        };
        let committed = base.head().number;
        let first = batches.first().map_or(committed.next(), |batch| batch.batch.header.number);
        let before = match first == committed.next() {
            true => Some(Overlay::default()),
            false => self.layers_between(&base, first, &applied),
        };
        let Some(before) = before.filter(|before| State::on(&base, before).is_some()) else {
            let batches = batches.into_iter().map(|prepared| (prepared.batch, prepared.maker)).collect();
            return Ok(ExecutionResult::Unprepared(VerifiedRange::again(certificate, batches)));
        };
        let parent = before.header().unwrap_or(base.head());
        let mut ahead =
            RangeAhead::new(batches.iter_mut().map(|batch| mem::take(&mut batch.ahead)).collect());
        let range = Replay { base: &base, before: &before, parent, batches: &batches };
        let (done, layer) = self.replay(&range, &mut ahead, from)?;
        let executed = batches.into_iter().zip(done).map(|(prepared, ran)| {
            let (sealed, hashes) = ran.checked?;
            let PreparedBatch { batch, maker, .. } = prepared;
            Ok(ExecutedBatch { batch, maker, delta: ran.delta, sealed, hashes, ahead: ran.ahead })
        });
        let batches = executed.collect::<Result<_, SyncError>>()?;
        if let Some(layer) = &layer {
            let mut executed = self.executed.lock();
            executed.push(Arc::clone(layer));
            // Ranges are prepared in order, so the next one builds on this state or on a later one.
            executed.forget_up_to(committed);
        }
        Ok(ExecutionResult::Range(Box::new(ExecutedRange { from, certificate, batches, layer })))
    }

    /// Returns the layers between a committed state and a batch, of executed and applied batches; `None` if a part is
    /// missing.
    fn layers_between(&self, base: &View, first: BatchNumber, applied: &[Arc<Layer>]) -> Option<Overlay> {
        let last = first.before(1);
        let mut executed = self.executed.lock();
        let mut before = executed.clone();
        before.forget_above(last);
        let tip = before.header().map_or(base.head().number, |header| header.number);
        for layer in applied.iter().filter(|layer| (tip.next()..=last).contains(&layer.header().number)) {
            before.push(Arc::clone(layer));
        }
        let before = before.up_to(last)?;
        executed.clone_from(&before);
        Some(before)
    }

    /// Executes the batches, and repeats those that used wrong values of a peer. Neither a result nor an error counts
    /// before the values prove right.
    fn replay(
        &self,
        range: &Replay<'_>,
        ahead: &mut RangeAhead,
        from: PeerId,
    ) -> Result<(Vec<BatchRun>, Option<Arc<Layer>>), SyncError> {
        let mut done = Vec::with_capacity(range.batches.len());
        let layer = loop {
            let run = self.replay_once(range, ahead, &mut done);
            let wrong = ahead.confirm(range.batches.len(), true)?;
            let wrong = wrong.filter(|_| !self.defences.lacks(Planted::BelievedValues));
            let Some(wrong) = wrong else { break run? };
            let number = range.batches[wrong.index].batch.header.number;
            let (rows, first) = (wrong.keys.len(), wrong.keys.first());
            let maker = range.batches[wrong.index].maker.unwrap_or(from);
            tracing::warn!(%number, by = %maker, peer = %from, rows, ?first, "hints had wrong values: executing the batch again");
            self.disbelieve(maker);
            done.truncate(wrong.index);
            ahead.distrust(&wrong);
        };
        for (ran, wrong) in done.iter_mut().zip(&ahead.wrong) {
            ran.ahead.hints.values_wrong = *wrong;
        }
        Ok((done, layer))
    }

    /// Stops using the values of a validator, or of a peer whose values no validator vouches for.
    fn disbelieve(&self, peer: PeerId) {
        let mut disbelieved = self.disbelieved.lock();
        if disbelieved.len() >= DISBELIEVED_MAX {
            disbelieved.clear();
        }
        disbelieved.insert(peer);
    }

    /// Executes the batches behind those in `done`, up to one that is known to rest on wrong values. Returns the layer
    /// of all that they touched.
    fn replay_once(
        &self,
        range: &Replay<'_>,
        ahead: &mut RangeAhead,
        done: &mut Vec<BatchRun>,
    ) -> Result<Option<Arc<Layer>>, SyncError> {
        let mut overlay = range.before.clone();
        for (index, ran) in done.iter().enumerate() {
            range.add(&mut overlay, index, None, &ran.delta);
        }
        let first = done.len();
        let mut executed = Vec::new();
        let sealed = Mutex::new(range.batches[first..].iter().map(|_| None).collect::<Vec<_>>());
        let run = rayon::in_place_scope(|scope| -> Result<(), SyncError> {
            for (place, prepared) in range.batches[first..].iter().enumerate() {
                let index = first + place;
                let (outcome, ahead_of_it) = self.replay_batch(range, index, ahead, &overlay)?;
                range.add(&mut overlay, index, Some(&outcome.touched), &outcome.delta);
                executed.push((outcome.delta.clone(), ahead_of_it));
                let (sealed, parent, mode) = (&sealed, range.parent(index), self.session.hints());
                scope.spawn(move |_| {
                    let checked = check(mode, parent, prepared, &outcome);
                    sealed.lock()[place] = Some(checked);
                });
                if ahead.confirm(index + 1, false)?.is_some() {
                    break;
                }
            }
            Ok(())
        });
        let lost = || SyncError::Worker("a batch was not sealed".into());
        for ((delta, ahead), checked) in executed.into_iter().zip(sealed.into_inner()) {
            done.push(BatchRun { delta, ahead, checked: checked.ok_or_else(lost).flatten() });
        }
        run.map(|()| overlay.newest().filter(|_| !range.batches.is_empty()).map(Arc::clone))
    }

    fn replay_batch(
        &self,
        range: &Replay<'_>,
        index: usize,
        ahead: &RangeAhead,
        overlay: &Overlay,
    ) -> Result<(Outcome, ReadAhead), SyncError> {
        let PreparedBatch { batch, transactions, .. } = &range.batches[index];
        let number = batch.header.number;
        let basis = BatchContext::of(range.parent(index), &batch.header);
        let state = State::on(range.base, overlay).ok_or_else(|| gap(number))?;
        let executed = self
            .session
            .execute(ahead.of(index), &basis, transactions, &state, ExecutionMethod::Fitting)
            .map_err(|source| execute_error(number, source))?;
        let used = HintUse::from(executed.ahead);
        let ahead = match ahead.of(index).is_hinted() {
            true => ReadAhead { hints: used, ..ReadAhead::default() },
            false => ReadAhead { foretold: used, ..ReadAhead::default() },
        };
        Ok((executed.outcome, ahead))
    }
}

type SealResult = Result<(SealedBatch, Vec<B256>), SyncError>;

/// Seals the outcome of an execution and compares it with the certified header. The root is compared when the batch's
/// group is committed. If the hints that a validator signed equal those made here, its signature is kept.
fn check(mode: HintsMode, parent: &BatchHeader, prepared: &PreparedBatch, outcome: &Outcome) -> SealResult {
    let PreparedBatch {
        batch: RangeBatch { header: certified, hints: theirs, .. }, maker, transactions, ..
    } = prepared;
    let number = certified.number;
    let basis = BatchContext::of(parent, certified);
    let signed = theirs.as_ref().filter(|_| maker.is_some());
    // Made in the form in which they came, so that they can be equal.
    let content = signed.and_then(|hints| hints.content(BlobKind::Hints).ok());
    let mode = content.map_or(mode, |content| match hints::has_values(&content) {
        true => HintsMode::Values,
        false => HintsMode::Keys,
    });
    let mut sealed = seal(mode, &basis, transactions, outcome, certified.state_root)
        .map_err(|error| unreadable(number, error))?;
    if let Some(Difference { field, .. }) = difference(certified, &sealed.header) {
        return Err(SyncError::Diverged { number, field });
    }
    if let Some(hints) = signed {
        sealed.keep_voucher(hints);
    }
    Ok((sealed, transactions.iter().map(|transaction| transaction.hash).collect()))
}

pub(super) fn execute_error(number: BatchNumber, source: ExecuteError) -> SyncError {
    match source {
        ExecuteError::State(error) => error.into(),
        source => SyncError::Execute { number, source: Box::new(source) },
    }
}

/// The error if the state before a batch has a gap although that state's layers were found.
pub(super) fn gap(number: BatchNumber) -> SyncError {
    SyncError::Worker(format!("the state before batch {number} has a gap"))
}
