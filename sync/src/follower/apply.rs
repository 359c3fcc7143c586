//! Committing verified batches, by execution or by their deltas.

use std::num::NonZeroUsize;

use rayon::prelude::*;
use slipstream_executor::{
    BatchEnv, ExecuteError, ExecutorConfig, HintsMode, Outcome, Transaction, decode_body, execute, prefetch,
    seal,
};
use slipstream_network::PeerId;
use slipstream_storage::{CommitBatch, Head, StorageError, Store};
use slipstream_types::{
    B256, BatchHeader, BatchNumber, BlobKind, Body, Certificate, ChainConfig, Delta, Hints, Waypoint,
    keccak256,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Follower;
use crate::{
    SyncError,
    plan::RangeMode,
    protocol::RangeBatch,
    verify::{self, VerifiedRange},
};

/// Batches of deltas that are opened and committed at a time, by one root: bounds their memory, and how long a stop waits.
const DELTA_BATCHES: NonZeroUsize = NonZeroUsize::new(16).expect("it is not 0");

/// Commits batches to the store. Blocking: it runs on a worker thread.
pub(super) struct Applier {
    store: Store,
    chain: ChainConfig,
    executor: ExecutorConfig,
    history: bool,
    waypoint: Option<Waypoint>,
}

/// What one batch cost and gave.
pub(super) struct Applied {
    pub(super) transactions: u64,
    pub(super) replayed: bool,
    /// Reads of execution that hints had foreseen.
    pub(super) hinted_reads: u64,
    /// All reads of execution, where there were hints.
    pub(super) reads: u64,
}

impl Applied {
    fn by_delta(header: &BatchHeader) -> Applied {
        Applied { transactions: header.tx_count.into(), replayed: false, hinted_reads: 0, reads: 0 }
    }
}

/// A delta, and what the index needs of the body beside it.
struct OpenedDelta {
    delta: Delta,
    hashes: Vec<B256>,
}

/// A body made ready while the batch before it executes.
struct Prepared {
    body: Body,
    transactions: Vec<Transaction>,
    hints: Option<Hints>,
}

impl Follower {
    /// Commits a range of a peer on a worker thread, up to the batch during which the node is told to stop.
    pub(super) async fn apply(
        &self,
        peer: PeerId,
        range: VerifiedRange,
        mode: RangeMode,
        shutdown: &CancellationToken,
    ) -> Result<(), SyncError> {
        let (applier, stop, state) = (self.applier.clone(), shutdown.clone(), self.state.clone());
        let work = tokio::task::spawn_blocking(move || {
            applier.apply(&range, mode, &stop, &|batch| {
                let mut state = state.lock();
                state.counters.add(&batch);
                state.book.judge_hints(&peer, Instant::now(), batch.hinted_reads, batch.reads);
            })
        });
        work.await.map_err(|error| SyncError::Worker(error.to_string()))?
    }
}

impl Applier {
    pub(super) fn new(
        store: Store,
        chain: ChainConfig,
        executor: ExecutorConfig,
        history: bool,
        waypoint: Option<Waypoint>,
    ) -> Applier {
        Applier { store, chain, executor, history, waypoint }
    }

    fn apply(
        &self,
        range: &VerifiedRange,
        mode: RangeMode,
        stop: &CancellationToken,
        done: &dyn Fn(Applied),
    ) -> Result<(), SyncError> {
        if mode == RangeMode::Delta {
            return self.apply_deltas(range, stop, done);
        }
        let mut batches = range.batches().iter().peekable();
        let mut next = batches.peek().map(|batch| self.prepare(batch));
        while let Some(batch) = batches.next() {
            let prepared = next.take().expect("one was prepared for every batch")?;
            if stop.is_cancelled() {
                return Ok(());
            }
            let (committed, following) = rayon::join(
                || self.commit(batch, prepared, range.certificate()),
                || batches.peek().map(|batch| self.prepare(batch)),
            );
            next = following;
            match committed {
                Ok(applied) => done(applied),
                // A validator's consensus was faster: the same batch is there already.
                Err(SyncError::Storage(StorageError::NotNext { head, .. }))
                    if head >= batch.header.number => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Decodes a body, recovers its senders and opens its hints.
    fn prepare(&self, batch: &RangeBatch) -> Result<Prepared, SyncError> {
        let unreadable = |reason: String| SyncError::Unreadable { number: batch.header.number, reason };
        let blob = batch.body.as_ref().ok_or_else(|| unreadable("the body is missing".into()))?;
        let body: Body = blob.open(BlobKind::Body).map_err(|error| unreadable(error.to_string()))?;
        let transactions =
            decode_body(&body, self.chain.chain_id).map_err(|error| unreadable(error.to_string()))?;
        let hints = match self.executor.hints {
            HintsMode::Off => None,
            // Hints are advice: malformed ones are as good as none.
            HintsMode::Keys => {
                let opened = batch.hints.as_ref().and_then(|blob| blob.open::<Hints>(BlobKind::Hints).ok());
                opened.filter(|hints| {
                    hints.keys().count() + hints.codes.len() <= hinted_keys_max(&batch.header)
                })
            }
        };
        Ok(Prepared { body, transactions, hints })
    }

    fn commit(
        &self,
        batch: &RangeBatch,
        prepared: Prepared,
        certificate: &Certificate,
    ) -> Result<Applied, SyncError> {
        let head = self.store.head()?;
        if head.header.number.next() != batch.header.number {
            return Err(
                StorageError::NotNext { head: head.header.number, number: batch.header.number }.into()
            );
        }
        self.check_waypoint(&head, &batch.header, certificate)?;
        let certificate = (certificate.info.number == batch.header.number).then_some(certificate);
        match self.replay(batch, prepared, &head, certificate) {
            // Consensus committed the batch while it was executed here, on a state that was its own result already.
            Err(SyncError::Execute { .. } | SyncError::Diverged { .. })
                if self.store.head()?.header.number >= batch.header.number =>
            {
                let head = self.store.head()?.header.number;
                Err(StorageError::NotNext { head, number: batch.header.number }.into())
            }
            done => done,
        }
    }

    fn replay(
        &self,
        batch: &RangeBatch,
        prepared: Prepared,
        head: &Head,
        certificate: Option<&Certificate>,
    ) -> Result<Applied, SyncError> {
        let header = &batch.header;
        let env = BatchEnv::new(&self.chain, &head.header, header.timestamp_ms, header.proposer);
        let view = self.store.view()?;
        let Prepared { body, transactions, hints } = prepared;
        let failed = |source| execute_error(header.number, source);
        let (outcome, reads) = match hints {
            Some(hints) => {
                let (warm, _) = prefetch(&view, &hints, self.executor.prefetch_threads)?;
                let outcome = execute(&warm, &env, &transactions).map_err(failed)?;
                (outcome, warm.stats())
            }
            None => (execute(&view, &env, &transactions).map_err(failed)?, Default::default()),
        };
        self.commit_outcome(batch, &head.header, &body, &transactions, &outcome, certificate)?;
        Ok(Applied {
            transactions: transactions.len() as u64,
            replayed: true,
            hinted_reads: reads.hits,
            reads: reads.hits + reads.misses,
        })
    }

    /// Commits what execution gave, if it is what the certified header says.
    fn commit_outcome(
        &self,
        batch: &RangeBatch,
        parent: &BatchHeader,
        body: &Body,
        transactions: &[Transaction],
        outcome: &Outcome,
        certificate: Option<&Certificate>,
    ) -> Result<(), SyncError> {
        let header = &batch.header;
        let speculation = self.store.speculate(&outcome.delta)?;
        let root = speculation.root();
        let sealed = seal(parent, header.epoch, header.timestamp_ms, header.proposer, body, outcome, root)
            .map_err(|error| SyncError::Unreadable { number: header.number, reason: error.to_string() })?;
        if let Some(field) = difference(header, &sealed.header) {
            return Err(SyncError::Diverged { number: header.number, field });
        }
        let hashes: Vec<B256> = transactions.iter().map(|transaction| transaction.hash).collect();
        let commit = CommitBatch {
            header,
            delta: &outcome.delta,
            body: batch.body.as_ref(),
            receipts: Some(&sealed.receipts),
            delta_blob: Some(&sealed.delta),
            hints: sealed.hints.as_ref(),
            transaction_hashes: &hashes,
            certificate,
        };
        Ok(self.store.commit(commit, Some(speculation))?)
    }

    fn apply_deltas(
        &self,
        range: &VerifiedRange,
        stop: &CancellationToken,
        done: &dyn Fn(Applied),
    ) -> Result<(), SyncError> {
        // A waypoint is checked on the head right before its batch.
        let waypoint = self.waypoint.map(|waypoint| waypoint.number);
        let parts = range.batches().chunk_by(|_, batch| Some(batch.header.number) != waypoint);
        for batches in parts.flat_map(|part| part.chunks(DELTA_BATCHES.get())) {
            if stop.is_cancelled() {
                return Ok(());
            }
            let opened: Vec<OpenedDelta> =
                batches.par_iter().map(|batch| self.open_delta(batch)).collect::<Result<_, SyncError>>()?;
            self.commit_deltas(batches, &opened, range.certificate(), done)?;
        }
        Ok(())
    }

    fn commit_deltas(
        &self,
        batches: &[RangeBatch],
        opened: &[OpenedDelta],
        certificate: &Certificate,
        done: &dyn Fn(Applied),
    ) -> Result<(), SyncError> {
        let mut commits: Vec<CommitBatch<'_>> = batches
            .iter()
            .zip(opened)
            .map(|(batch, opened)| self.delta_commit(batch, opened, certificate))
            .collect();
        while let Some(first) = commits.first() {
            let head = self.store.head()?;
            if head.header.number.next() == first.header.number {
                self.check_waypoint(&head, first.header, certificate)?;
            }
            let committed = self.store.commit_run(&commits, DELTA_BATCHES);
            let head = self.store.head()?.header.number;
            let passed = commits.iter().take_while(|commit| commit.header.number <= head).count();
            let passed: Vec<_> = commits.drain(..passed).collect();
            match committed {
                // A validator's consensus was faster: these batches are there already.
                Err(StorageError::NotNext { head, number }) if head >= number => {}
                Err(StorageError::StateRootMismatch { number, .. }) => {
                    return Err(SyncError::Diverged { number, field: "state root" });
                }
                committed => {
                    passed.iter().for_each(|commit| done(Applied::by_delta(commit.header)));
                    committed?;
                }
            }
        }
        Ok(())
    }

    fn open_delta(&self, batch: &RangeBatch) -> Result<OpenedDelta, SyncError> {
        let unreadable = |reason: String| SyncError::Unreadable { number: batch.header.number, reason };
        let blob = batch.delta.as_ref().ok_or_else(|| unreadable("the delta is missing".into()))?;
        let delta = Delta::open(blob).map_err(|error| unreadable(error.to_string()))?;
        let hashes = match batch.body.as_ref().filter(|_| self.history) {
            Some(body) => {
                let body: Body = body.open(BlobKind::Body).map_err(|error| unreadable(error.to_string()))?;
                body.transactions.iter().map(|raw| keccak256(&raw[..])).collect()
            }
            None => Vec::new(),
        };
        Ok(OpenedDelta { delta, hashes })
    }

    fn delta_commit<'a>(
        &self,
        batch: &'a RangeBatch,
        opened: &'a OpenedDelta,
        certificate: &'a Certificate,
    ) -> CommitBatch<'a> {
        CommitBatch {
            header: &batch.header,
            delta: &opened.delta,
            body: batch.body.as_ref().filter(|_| self.history),
            receipts: batch.receipts.as_ref().filter(|_| self.history),
            delta_blob: batch.delta.as_ref(),
            hints: None,
            transaction_hashes: &opened.hashes,
            certificate: (certificate.info.number == batch.header.number).then_some(certificate),
        }
    }

    /// The ledger must pass through the operator's waypoint; checked before its batch is committed.
    fn check_waypoint(
        &self,
        head: &Head,
        header: &BatchHeader,
        certificate: &Certificate,
    ) -> Result<(), SyncError> {
        let Some(waypoint) = self.waypoint.filter(|waypoint| waypoint.number == header.number) else {
            return Ok(());
        };
        let mut accumulator = head.accumulator.clone();
        accumulator.append(header.digest());
        expect_waypoint(&waypoint, verify::waypoint_at(header, &accumulator, certificate))
    }
}

/// Most keys that hints of a batch may name: its first read of a key costs a transaction at least 1,900 gas (EIP-2930), and
/// every transaction reads a few that it pays for with its 21,000. Twice that, and a little for an empty batch, leaves room
/// for what the proposer read of transactions that it left out.
fn hinted_keys_max(header: &BatchHeader) -> usize {
    1_024 + 2 * (header.gas_used / 1_900) as usize
}

/// Checks a ledger that is already past the waypoint, as far as its certificate is kept.
pub(super) fn check_stored_waypoint(store: &Store, waypoint: &Waypoint) -> Result<(), SyncError> {
    let found = match waypoint.number {
        BatchNumber(0) => store.genesis()?.ledger_info().ok(),
        number => store.certificate(number)?.map(|certificate| certificate.info),
    };
    found.map_or(Ok(()), |info| expect_waypoint(waypoint, Waypoint::of(&info)))
}

fn expect_waypoint(waypoint: &Waypoint, found: Waypoint) -> Result<(), SyncError> {
    if found == *waypoint {
        return Ok(());
    }
    Err(SyncError::WrongWaypoint { waypoint: *waypoint, number: waypoint.number, found })
}

fn execute_error(number: BatchNumber, source: ExecuteError) -> SyncError {
    match source {
        ExecuteError::State(error) => error.into(),
        source => SyncError::Execute { number, source: Box::new(source) },
    }
}

/// The first field in which what was executed differs from what is certified.
fn difference(certified: &BatchHeader, executed: &BatchHeader) -> Option<&'static str> {
    let differs = [
        ("receipts root", certified.receipts_root != executed.receipts_root),
        ("gas used", certified.gas_used != executed.gas_used),
        ("delta digest", certified.delta_digest != executed.delta_digest),
        ("state root", certified.state_root != executed.state_root),
        ("header", certified != executed),
    ];
    differs.into_iter().find(|(_, differs)| *differs).map(|(field, _)| field)
}
