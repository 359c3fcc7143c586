//! Executing prepared batches, one behind the other, and checking each against its certified header.

use parking_lot::Mutex;
use slipstream_executor::{
    BatchEnv, ExecuteError, Outcome, PrefetchStats, Sealed, StateReader, Transaction, WarmStats, execute,
    parallel, seal,
};
use slipstream_network::PeerId;
use slipstream_types::{B256, BatchHeader, BatchNumber, Certificate, Conflicts, Delta};

use super::{
    HintUse, Worker,
    layers::{Layer, Stacked},
    prepare::{Kind, Prepared, PreparedBatch, unreadable},
};
use crate::{SyncError, protocol::RangeBatch, verify::VerifiedRange};

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
    pub(super) hints: HintUse,
}

impl Worker {
    /// Executes a range on the state behind the batch before it, which may not be committed. While one batch executes, the
    /// one before it is sealed and compared with its header.
    pub(super) fn execute(&self, prepared: Prepared) -> Result<Executed, SyncError> {
        let Prepared { from, certificate, kind } = prepared;
        let Kind::Replay { base, batches } = kind else {
            return Err(SyncError::Worker("a delta is not executed".into()));
        };
        let committed = base.head().number;
        let first = batches.first().map_or(committed.next(), |batch| batch.batch.header.number);
        let (middle, mut parent) = match self.layers.between(committed, first) {
            _ if committed.next() == first => (Vec::new(), base.head().clone()),
            Some(found) => found,
            None => {
                let batches = batches.into_iter().map(|prepared| prepared.batch).collect();
                return Ok(Executed::Unprepared(VerifiedRange::again(certificate, batches)));
            }
        };
        let mut layer = Layer::default();
        let count = batches.len();
        let sealed = Mutex::new((0..count).map(|_| None).collect::<Vec<_>>());
        let mut executed = Vec::with_capacity(count);
        let run = rayon::in_place_scope(|scope| -> Result<(), SyncError> {
            for (index, prepared) in batches.into_iter().enumerate() {
                let PreparedBatch { batch, transactions, warm, conflicts } = prepared;
                let header = batch.header.clone();
                let below: &dyn StateReader = match &warm {
                    Some(warm) => warm,
                    None => &base,
                };
                let state = Stacked { top: &layer, middle: &middle, base: below };
                let env = BatchEnv::new(&self.chain, &parent, header.timestamp_ms, header.proposer);
                let (before, digest) = (parent.digest(), header.digest());
                let hot = self.hot.read();
                let state = hot.reader(before, &state);
                let outcome = self
                    .execute_batch(&state, &env, &transactions, conflicts.as_ref())
                    .map_err(|source| execute_error(header.number, source))?;
                drop(hot);
                self.hot.write().apply(before, digest, Some(&outcome.touched), &outcome.delta);
                self.foreteller.learn(&outcome.touched);
                layer.push(&header, digest, &outcome.delta);
                let delta = outcome.delta.clone();
                let hinted = warm.filter(|_| batch.hints.is_some());
                let hints = hinted.map(|warm| hint_use(warm.stats(), warm.prefetched())).unwrap_or_default();
                let sealed = &sealed;
                let (before, certified) = (std::mem::replace(&mut parent, header.clone()), header);
                scope.spawn(move |_| {
                    let checked = check(&before, &certified, &transactions, &outcome);
                    sealed.lock()[index] = Some(checked);
                });
                executed.push((batch, delta, hints));
            }
            Ok(())
        });
        let mut batches = Vec::with_capacity(count);
        let checked = sealed.into_inner();
        for ((batch, delta, hints), sealed) in executed.into_iter().zip(checked) {
            let lost = || SyncError::Worker("a batch was not sealed".into());
            let (sealed, hashes) = sealed.ok_or_else(lost)??;
            batches.push(ExecutedBatch { batch, delta, sealed, hashes, hints });
        }
        run?;
        self.layers.push(first, parent, layer);
        Ok(Executed::Range(Box::new(ExecutedRange { from, certificate, batches })))
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

fn hint_use(asked: WarmStats, read: PrefetchStats) -> HintUse {
    HintUse { named: (read.keys + read.codes) as u64, used: asked.hits, reads: asked.hits + asked.misses }
}

type Checked = Result<(Sealed, Vec<B256>), SyncError>;

/// Seals what execution gave and compares it with the certified header. The root is compared when the batch's group is committed.
fn check(
    parent: &BatchHeader,
    certified: &BatchHeader,
    transactions: &[Transaction],
    outcome: &Outcome,
) -> Checked {
    let number = certified.number;
    let (epoch, root) = (certified.epoch, certified.state_root);
    let sealed = seal(parent, epoch, certified.timestamp_ms, certified.proposer, transactions, outcome, root)
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
