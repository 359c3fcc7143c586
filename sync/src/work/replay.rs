//! Executing prepared batches, one behind the other, and checking each against its certified header.

use std::sync::Arc;

use parking_lot::Mutex;
use slipstream_executor::{
    Basis, BatchEnv, ExecuteError, HintsMode, Outcome, PrefetchStats, Sealed, StateReader, Transaction, Warm,
    WarmStats, execute, parallel, seal,
};
use slipstream_network::PeerId;
use slipstream_storage::View;
use slipstream_types::{B256, BatchHeader, BatchNumber, Certificate, Conflicts, Delta};

use super::{
    DISBELIEVED_MAX, HintUse, Worker,
    ahead::Ahead,
    layers::{Layer, Stacked},
    prepare::{Kind, Prepared, PreparedBatch, unreadable},
};
use crate::{SyncError, planted::Planted, protocol::RangeBatch, verify::VerifiedRange};

/// A range that was executed; each batch gave what its header says, the state root apart.
#[derive(Debug)]
pub struct ExecutedRange {
    pub(super) from: PeerId,
    pub(super) certificate: Certificate,
    pub(super) batches: Vec<ExecutedBatch>,
}

/// What came of executing a range.
#[derive(Debug)]
pub enum Executed {
    /// It only has to be committed.
    Range(Box<ExecutedRange>),
    /// The state before it is not here: it has to be prepared again.
    Unprepared(VerifiedRange),
}

#[derive(Debug)]
pub(super) struct ExecutedBatch {
    pub(super) batch: RangeBatch,
    pub(super) delta: Delta,
    pub(super) sealed: Sealed,
    pub(super) hashes: Vec<B256>,
    pub(super) ahead: ReadAhead,
}

/// What reading ahead of a batch was worth: by its hints, or, if it came without usable ones, by what was foretold of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadAhead {
    pub(super) hints: HintUse,
    pub(super) foretold: HintUse,
}

/// A range in execution: its batches, and the state before them.
struct Replay<'a> {
    base: &'a View,
    middle: &'a [Arc<Layer>],
    /// The header before the first batch.
    parent: &'a BatchHeader,
    batches: &'a [PreparedBatch],
}

/// What came of executing one batch.
struct Ran {
    delta: Delta,
    ahead: ReadAhead,
    checked: Checked,
}

impl Replay<'_> {
    /// The header before a batch.
    fn parent(&self, index: usize) -> &BatchHeader {
        match index.checked_sub(1).and_then(|before| self.batches.get(before)) {
            Some(before) => &before.batch.header,
            None => self.parent,
        }
    }
}

impl Worker {
    /// Executes a range on the state behind the batch before it, which may not be committed. While one batch executes, the
    /// one before it is sealed and compared with its header.
    pub(super) fn execute(&self, prepared: Prepared) -> Result<Executed, SyncError> {
        let Prepared { from, certificate, kind } = prepared;
        let Kind::Replay { base, mut batches } = kind else {
            return Err(SyncError::Worker("a delta is not executed".into()));
        };
        let committed = base.head().number;
        let first = batches.first().map_or(committed.next(), |batch| batch.batch.header.number);
        let (middle, parent) = match self.layers.between(committed, first) {
            _ if committed.next() == first => (Vec::new(), base.head().clone()),
            Some(found) => found,
            None => {
                let batches = batches.into_iter().map(|prepared| prepared.batch).collect();
                return Ok(Executed::Unprepared(VerifiedRange::again(certificate, batches)));
            }
        };
        let mut ahead = Ahead::new(batches.iter_mut().map(|batch| batch.warm.take()).collect());
        let range = Replay { base: &base, middle: &middle, parent: &parent, batches: &batches };
        let (done, layer) = self.replay(&range, &mut ahead, from)?;
        let last = range.parent(batches.len()).clone();
        let executed = batches.into_iter().zip(done).map(|(prepared, ran)| {
            let (sealed, hashes) = ran.checked?;
            Ok(ExecutedBatch { batch: prepared.batch, delta: ran.delta, sealed, hashes, ahead: ran.ahead })
        });
        let batches = executed.collect::<Result<_, SyncError>>()?;
        self.layers.push(first, last, layer);
        Ok(Executed::Range(Box::new(ExecutedRange { from, certificate, batches })))
    }

    /// Executes the batches, and those again that stand on wrong values of a peer. Nothing of them is used before it is known
    /// that they are right; no error counts, either.
    fn replay(
        &self,
        range: &Replay<'_>,
        ahead: &mut Ahead,
        from: PeerId,
    ) -> Result<(Vec<Ran>, Layer), SyncError> {
        let mut done = Vec::with_capacity(range.batches.len());
        let layer = loop {
            let run = self.replay_once(range, ahead, &mut done);
            // What the cache has seen is not known to be right then.
            let confirmed = ahead.confirm(range.batches.len(), true);
            let wrong = confirmed.inspect_err(|_| self.hot.write().clear())?;
            let wrong = wrong.filter(|_| !self.defences.lacks(Planted::BelievedValues));
            let Some(wrong) = wrong else { break run? };
            let number = range.batches[wrong.index].batch.header.number;
            let (rows, first) = (wrong.keys.len(), wrong.keys.first());
            tracing::warn!(%number, peer = %from, rows, ?first, "hints told wrong values: the batch is executed again");
            self.disbelieve(from);
            // It has seen the values, too.
            self.hot.write().clear();
            done.truncate(wrong.index);
            ahead.distrust(&wrong);
        };
        for (ran, wrong) in done.iter_mut().zip(&ahead.wrong) {
            ran.ahead.hints.values_wrong = *wrong;
        }
        Ok((done, layer))
    }

    /// Uses no more values of a peer.
    fn disbelieve(&self, peer: PeerId) {
        let mut disbelieved = self.disbelieved.lock();
        if disbelieved.len() >= DISBELIEVED_MAX {
            disbelieved.clear();
        }
        disbelieved.insert(peer);
    }

    /// Executes the batches behind those that are done, up to one that is known to stand on wrong values. Gives what all of them
    /// changed.
    fn replay_once(
        &self,
        range: &Replay<'_>,
        ahead: &mut Ahead,
        done: &mut Vec<Ran>,
    ) -> Result<Layer, SyncError> {
        let mut layer = Layer::default();
        for (ran, prepared) in done.iter().zip(range.batches) {
            let header = &prepared.batch.header;
            layer.push(header, header.digest(), &ran.delta);
        }
        let first = done.len();
        let mut executed = Vec::new();
        let sealed = Mutex::new(range.batches[first..].iter().map(|_| None).collect::<Vec<_>>());
        let run = rayon::in_place_scope(|scope| -> Result<(), SyncError> {
            for (place, prepared) in range.batches[first..].iter().enumerate() {
                let (index, header) = (first + place, &prepared.batch.header);
                let (outcome, ahead_of_it) = self.replay_batch(range, index, ahead.of(index), &layer)?;
                layer.push(header, header.digest(), &outcome.delta);
                executed.push((outcome.delta.clone(), ahead_of_it));
                let (sealed, parent, mode) = (&sealed, range.parent(index), self.executor.hints);
                scope.spawn(move |_| {
                    let checked = check(mode, parent, header, &prepared.transactions, &outcome);
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
            done.push(Ran { delta, ahead, checked: checked.ok_or_else(lost).flatten() });
        }
        run.map(|()| layer)
    }

    fn replay_batch(
        &self,
        range: &Replay<'_>,
        index: usize,
        warm: Option<&Warm>,
        layer: &Layer,
    ) -> Result<(Outcome, ReadAhead), SyncError> {
        let (prepared, parent) = (&range.batches[index], range.parent(index));
        let PreparedBatch { batch, transactions, conflicts, .. } = prepared;
        let header = &batch.header;
        let below: &dyn StateReader = match warm {
            Some(warm) => warm,
            None => range.base,
        };
        let asked = warm.map(Warm::stats).unwrap_or_default();
        let state = Stacked { top: layer, middle: range.middle, base: below };
        let env = Basis::of(parent, header).env(&self.chain);
        let (before, digest) = (parent.digest(), header.digest());
        let hot = self.hot.read();
        let state = hot.reader(before, &state);
        let outcome = self
            .execute_batch(&state, &env, transactions, conflicts.as_ref())
            .map_err(|source| execute_error(header.number, source))?;
        drop(hot);
        self.hot.write().apply(before, digest, Some(&outcome.touched), &outcome.delta);
        self.foreteller.learn(&outcome.touched);
        let used = warm.map(|warm| hint_use(asked, warm.stats(), warm.prefetched())).unwrap_or_default();
        let ahead = match batch.hints {
            Some(_) => ReadAhead { hints: used, ..ReadAhead::default() },
            None => ReadAhead { foretold: used, ..ReadAhead::default() },
        };
        Ok((outcome, ahead))
    }

    /// On several threads if hints say which transactions wait for which; the outcome is the same.
    fn execute_batch(
        &self,
        state: &dyn StateReader,
        env: &BatchEnv,
        transactions: &[Transaction],
        conflicts: Option<&Conflicts>,
    ) -> Result<Outcome, ExecuteError> {
        match conflicts {
            Some(conflicts) => {
                let executed = parallel::execute(state, env, transactions, conflicts, &self.workers);
                executed.map(|(outcome, _)| outcome)
            }
            None => execute(state, env, transactions),
        }
    }
}

/// What an execution made of hints: `before` and `after` are what was asked for until then.
fn hint_use(before: WarmStats, after: WarmStats, read: PrefetchStats) -> HintUse {
    let (used, missed) = (after.hits - before.hits, after.misses - before.misses);
    HintUse { named: (read.keys + read.codes) as u64, used, reads: used + missed, values_wrong: 0 }
}

type Checked = Result<(Sealed, Vec<B256>), SyncError>;

/// Seals what execution gave and compares it with the certified header. The root is compared when the batch's group is committed.
fn check(
    mode: HintsMode,
    parent: &BatchHeader,
    certified: &BatchHeader,
    transactions: &[Transaction],
    outcome: &Outcome,
) -> Checked {
    let number = certified.number;
    let basis = Basis::of(parent, certified);
    let sealed = seal(mode, &basis, transactions, outcome, certified.state_root)
        .map_err(|error| unreadable(number, error))?;
    if let Some(field) = difference(certified, &sealed.header) {
        return Err(SyncError::Diverged { number, field });
    }
    Ok((sealed, transactions.iter().map(|transaction| transaction.hash).collect()))
}

pub(super) fn execute_error(number: BatchNumber, source: ExecuteError) -> SyncError {
    match source {
        ExecuteError::State(error) => error.into(),
        source => SyncError::Execute { number, source: Box::new(source) },
    }
}

/// The first field in which what was executed differs from what is certified.
pub(super) fn difference(certified: &BatchHeader, executed: &BatchHeader) -> Option<&'static str> {
    let differs = [
        ("receipts root", certified.receipts_root != executed.receipts_root),
        ("gas used", certified.gas_used != executed.gas_used),
        ("delta digest", certified.delta_digest != executed.delta_digest),
        ("state root", certified.state_root != executed.state_root),
        ("header", certified != executed),
    ];
    differs.into_iter().find(|(_, differs)| *differs).map(|(field, _)| field)
}
