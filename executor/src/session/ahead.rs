//! [`Session::prepare`]: prepares a batch before earlier batches have been executed.

use slipstream_storage::{StorageError, View};
use slipstream_types::{
    Address, BatchHeader, BatchNumber, Blob, Conflicts, Digest, Hints, StateKey, hints::DecodedHints,
};

use super::{Session, prediction_state::PredictionState};
use crate::{
    access::announced_conflicts,
    config::HintsMode,
    hinting::open_hints,
    hot,
    overlay::{Overlay, State},
    prediction::Prediction,
    prefetch::{PrefetchRequest, WarmState, WarmStats},
    transaction::Transaction,
};

/// A batch as it is known before its execution: its position, its content, and perhaps hints.
#[derive(Clone, Copy, Debug)]
pub struct OrderedBatch<'a> {
    /// Number of the batch.
    pub number: BatchNumber,
    /// Timestamp in milliseconds since 1970, which the proposer sets.
    pub timestamp_ms: u64,
    /// The account that receives the fees.
    pub proposer: Address,
    /// Maximum gas that the batch may use. This limit bounds the keys that hints may name, and the work of predictors.
    pub gas_max: u64,
    /// The transactions to execute, in order.
    pub transactions: &'a [Transaction],
    /// The keys that the batch reads, as its proposer claims.
    pub hints: Option<&'a Blob>,
}

impl<'a> OrderedBatch<'a> {
    /// A batch whose header is known.
    pub fn of(
        header: &BatchHeader,
        transactions: &'a [Transaction],
        hints: Option<&'a Blob>,
    ) -> OrderedBatch<'a> {
        let BatchHeader { number, timestamp_ms, proposer, gas_used: gas_max, .. } = *header;
        OrderedBatch { number, timestamp_ms, proposer, gas_max, transactions, hints }
    }

    /// A batch without a header. Its `gas_max` is the gas that its transactions ask for, or that the chain allows if
    /// that is less.
    pub fn without_header(
        number: BatchNumber,
        timestamp_ms: u64,
        proposer: Address,
        gas_limit: u64,
        transactions: &'a [Transaction],
        hints: Option<&'a Blob>,
    ) -> OrderedBatch<'a> {
        let asked = transactions.iter().fold(0_u64, |sum, it| sum.saturating_add(it.gas_limit()));
        OrderedBatch { number, timestamp_ms, proposer, gas_max: asked.min(gas_limit), transactions, hints }
    }
}

/// How far hints are trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trust {
    /// Uses the keys and conflicts that hints name; wrong ones only cost time.
    Keys,
    /// Also uses the values that hints ship, if the configuration says so. The values must be
    /// [confirmed](Ahead::confirm).
    Values,
}

/// The hints of a batch and its read-ahead; empty by default. Dropping this ends the read-ahead.
#[derive(Debug, Default)]
pub struct Ahead {
    /// `None` if no read-ahead was begun, or after [`Ahead::release`].
    warm: Option<WarmState>,
    /// Digest of the header of the batch after which the rows are read.
    at: Digest,
    /// The conflicts of the batch, if several threads may execute it.
    conflicts: Option<Conflicts>,
    is_hinted: bool,
}

/// Counts of rows and code that show how useful the read-ahead was. Hits in the cache or in uncommitted batches do not
/// count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AheadUse {
    /// Rows and code that hints or predictions named and that were read ahead.
    pub named: u64,
    /// Rows and code that were named and that execution then read.
    pub used: u64,
    /// Rows and code that execution read, named or not.
    pub reads: u64,
}

impl AheadUse {
    /// The use that an execution made of the read-ahead; `before` has the counts before the execution.
    pub(super) fn since(before: WarmStats, warm: &WarmState) -> AheadUse {
        let (after, read) = (warm.stats(), warm.prefetched());
        let (used, missed) = (after.hits - before.hits, after.misses - before.misses);
        AheadUse { named: (read.keys + read.codes) as u64, used, reads: used + missed }
    }
}

impl Ahead {
    /// Whether the batch came with usable hints. Without them, the keys were predicted here.
    pub fn is_hinted(&self) -> bool {
        self.is_hinted
    }

    /// The conflicts of the batch, if several threads should execute it.
    pub fn conflicts(&self) -> Option<&Conflicts> {
        self.conflicts.as_ref()
    }

    /// The read-ahead, if it serves a batch on `state`.
    pub(super) fn warm(&self, state: &State<'_>) -> Option<&WarmState> {
        self.warm.as_ref().filter(|_| state.covers(self.at))
    }

    /// Whether [`Ahead::confirm`] would neither read nor wait.
    pub fn is_confirmable(&self) -> bool {
        self.warm.as_ref().is_none_or(WarmState::is_confirmable)
    }

    /// Compares the values of hints that execution used with the store's rows. Returns the keys of wrong values. See
    /// [`WarmState::confirm`].
    ///
    /// # Errors
    /// If a read fails.
    pub fn confirm(&self) -> Result<Vec<StateKey>, StorageError> {
        self.warm.as_ref().map_or(Ok(Vec::new()), WarmState::confirm)
    }

    /// Stops using values of hints, and forgets which were used.
    pub fn distrust(&self) {
        if let Some(warm) = &self.warm {
            warm.distrust();
        }
    }

    /// Frees the rows' memory, once the batch is executed and confirmed.
    pub fn release(&mut self) {
        self.warm = None;
    }
}

impl Session {
    /// Begins to read the keys that the batch will probably need, and returns at once; without prefetch threads it
    /// reads before it returns. Reads nothing ahead if memory delivers rows as fast as another thread could. `base` is
    /// committed, and may be some batches behind the state that the batch will execute on. `overlay` has the batches in
    /// between that were executed by now; rows in its layers are not read.
    ///
    /// # Errors
    /// If this node's disk fails. Hints that are malformed, or name more than the batch's gas allows, are ignored.
    pub fn prepare(
        &self,
        batch: &OrderedBatch<'_>,
        base: &View,
        overlay: &Overlay,
        trust: Trust,
    ) -> Result<Ahead, StorageError> {
        let uses_conflicts = self.is_parallel;
        let reads_ahead = self.prefetcher.as_ref().is_none_or(|prefetcher| prefetcher.pace().reads_ahead());
        if !reads_ahead && !uses_conflicts {
            return Ok(Ahead::default());
        }
        let opened = self.open(batch);
        let is_hinted = opened.is_some();
        if !reads_ahead {
            let conflicts = opened.and_then(|decoded| decoded.conflicts);
            let conflicts = Some(conflicts.unwrap_or_else(|| announced_conflicts(batch.transactions)));
            return Ok(Ahead { conflicts, is_hinted, ..Ahead::default() });
        }
        let decoded = opened.or_else(|| {
            let foretold = self.predict(batch, base, overlay)?;
            let conflicts = uses_conflicts.then(|| foretold.conflicts(batch.transactions));
            Some(DecodedHints { hints: foretold.hints, conflicts, ..DecodedHints::default() })
        });
        let Some(DecodedHints { mut hints, conflicts, mut values }) = decoded else {
            let conflicts = uses_conflicts.then(|| announced_conflicts(batch.transactions));
            return Ok(Ahead { conflicts, ..Ahead::default() });
        };
        self.leave_out(&mut hints, overlay);
        if self.hints != HintsMode::Values || trust != Trust::Values {
            values.clear();
        }
        let was_read = !is_hinted && self.predictor.reads();
        let wanted = PrefetchRequest { values, was_read, ..PrefetchRequest::from(&hints) };
        // Without hints, the transactions themselves show enough conflicts to begin with.
        let conflicts =
            uses_conflicts.then(|| conflicts.unwrap_or_else(|| announced_conflicts(batch.transactions)));
        let warm = Some(self.read_ahead(batch.number, base.clone(), wanted)?);
        Ok(Ahead { warm, at: base.head().digest(), conflicts, is_hinted })
    }

    /// Begins to read the keys of a future batch, [built](Session::build) from the best candidates so far, which are
    /// the transactions of `batch`. The batch's real content decides only how useful the reads were.
    ///
    /// # Errors
    /// If this node's disk fails.
    pub fn prepare_candidates(
        &self,
        batch: &OrderedBatch<'_>,
        base: &View,
        overlay: &Overlay,
    ) -> Result<Ahead, StorageError> {
        let foretold = if self.reads_candidates_ahead() { self.predict(batch, base, overlay) } else { None };
        let Some(Prediction { mut hints, .. }) = foretold else { return Ok(Ahead::default()) };
        self.leave_out(&mut hints, overlay);
        let wanted = PrefetchRequest { was_read: self.predictor.reads(), ..PrefetchRequest::from(&hints) };
        let warm = Some(self.read_ahead(batch.number, base.clone(), wanted)?);
        Ok(Ahead { warm, at: base.head().digest(), ..Ahead::default() })
    }

    /// Whether [`Session::prepare_candidates`] would read anything now. Returns false without threads: the reads would
    /// come one after another, as in the batch.
    pub fn reads_candidates_ahead(&self) -> bool {
        let prefetcher = self.prefetcher.as_ref().filter(|prefetcher| prefetcher.pace().reads_ahead());
        prefetcher.is_some() && self.predictor.predicts()
    }

    fn open(&self, batch: &OrderedBatch<'_>) -> Option<DecodedHints> {
        let blob = batch.hints.filter(|_| self.hints != HintsMode::Off)?;
        open_hints(blob, batch.gas_max, batch.proposer, batch.transactions).ok()
    }

    /// Predicts from the state that execution will see, if that state is known: uncommitted batches, the cache, and the
    /// rows.
    fn predict(&self, batch: &OrderedBatch<'_>, base: &View, overlay: &Overlay) -> Option<Prediction> {
        match State::on(base, overlay) {
            Some(state) => {
                self.predictor.predict(&self.chain, batch, &PredictionState::new(state, &self.hot))
            }
            None => self.predictor.predict(&self.chain, batch, base),
        }
    }

    /// Removes known rows from hints. By the time of execution, the cache and layers may be after another batch. Rows
    /// that they have now will probably stay until then; otherwise a plain read follows.
    fn leave_out(&self, hints: &mut Hints, layers: &Overlay) {
        let hot = self.hot();
        let row = |key: &StateKey| layers.row(key).or_else(|| hot.cache.peek(key));
        hot::leave_out(hints, row, |hash| layers.code(hash).is_some() || hot.cache.has_code(hash));
    }

    /// Reads a batch's rows while earlier batches execute. Without threads, reads now, or defers the reads if the hints
    /// ship values.
    fn read_ahead(
        &self,
        number: BatchNumber,
        base: View,
        wanted: PrefetchRequest,
    ) -> Result<WarmState, StorageError> {
        match &self.prefetcher {
            Some(prefetcher) => Ok(prefetcher.read_ahead(number, base, wanted)),
            None if wanted.values.is_empty() => WarmState::complete(base, wanted),
            None => Ok(WarmState::deferred(base, wanted)),
        }
    }
}
