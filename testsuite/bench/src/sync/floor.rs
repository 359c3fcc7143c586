//! The floors: a mode's own work, on batches that are already in memory. They leave out fetching and verification. The
//! next batch is prepared while the previous one commits, as in the node.

use std::{num::NonZeroUsize, path::Path, time::Instant};

use anyhow::{Context, Result, ensure};
use rayon::prelude::*;
use slipnet::cpu;
use slipstream_executor::{BatchContext, HintsMode, Transaction, decode_body, execute, seal};
use slipstream_storage::{CommitBatch, StorageConfig, Store};
use slipstream_types::{B256, BatchHeader, BatchNumber, Blob, BlobKind, Body, Delta};

use crate::harness::chain::Source;

/// Deltas that are opened while earlier ones are committed.
const DELTAS_OPENED: usize = 64;
/// Batches that share one root and one write, as in the node.
const GROUP_BATCHES: NonZeroUsize = NonZeroUsize::new(16).expect("not zero");

/// A chain's batches, as if just fetched.
pub(super) struct Loaded {
    batches: Vec<Batch>,
}

struct Batch {
    header: BatchHeader,
    body: Blob,
    delta: Blob,
}

/// The cost of a floor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Floor {
    pub(super) seconds: f64,
    pub(super) cpu_s: f64,
    /// Seconds of the sequential parts; for deltas, all are in `commit`.
    pub(super) execute: f64,
    pub(super) root: f64,
    pub(super) commit: f64,
}

impl Loaded {
    /// Reads the batches of a store.
    ///
    /// # Errors
    /// If the store lacks a batch.
    pub(super) fn read(store: &Store) -> Result<Loaded> {
        let head = store.head()?.header.number;
        let (first, count) = (BatchNumber::new(1), head.since(BatchNumber::GENESIS) as usize);
        let mut bodies = store.blobs(BlobKind::Body, first, count);
        let mut deltas = store.blobs(BlobKind::Delta, first, count);
        let mut batch = |number| {
            let header = store.header(number)?.context("the chain lacks a header")?;
            let (body, delta) = (
                bodies.of(number)?.context("the chain lacks a body")?,
                deltas.of(number)?.context("the chain lacks a delta")?,
            );
            Ok(Batch { header, body, delta })
        };
        Ok(Loaded { batches: first.through(head).map(&mut batch).collect::<Result<_>>()? })
    }

    /// Executes all batches into a new store.
    pub(super) fn replay(&self, source: &Source, dir: &Path) -> Result<Floor> {
        let store = self.fresh(source, dir)?;
        let (mut executing, mut rooting, mut committing) = (0.0, 0.0, 0.0);
        let (begin, cpu_before) = (Instant::now(), cpu::of_this_process());
        let prepare = |batch: &Batch| -> Result<Vec<Transaction>> {
            let body: Body = batch.body.open(BlobKind::Body)?;
            Ok(decode_body(&body, &source.genesis.chain)?)
        };
        let mut batches = self.batches.iter().peekable();
        let mut next = batches.peek().map(|batch| prepare(batch));
        while let Some(batch) = batches.next() {
            let transactions = next.take().context("a batch has no prepared transactions")??;
            let work = || -> Result<[f64; 3]> {
                let start = Instant::now();
                let head = store.head()?;
                let header = &batch.header;
                let chain = &source.genesis.chain;
                let basis = BatchContext::of(&head.header, header);
                let outcome = execute(&store.view()?, &basis.env(chain), &transactions)?;
                let executed = Instant::now();
                let speculation = store.speculate(&outcome.delta)?;
                let rooted = Instant::now();
                let sealed = seal(HintsMode::Keys, &basis, &transactions, &outcome, speculation.root())?;
                ensure!(
                    sealed.header == *header,
                    "the execution of batch {} gave another header",
                    header.number
                );
                let hashes: Vec<B256> = transactions.iter().map(|transaction| transaction.hash).collect();
                store.commit(sealed.commit_batch(&outcome.delta, &hashes), Some(speculation))?;
                Ok([executed - start, rooted - executed, rooted.elapsed()].map(|time| time.as_secs_f64()))
            };
            let (done, following) = rayon::join(work, || batches.peek().map(|batch| prepare(batch)));
            next = following;
            let [execute, root, commit] = done?;
            executing += execute;
            rooting += root;
            committing += commit;
        }
        let (seconds, cpu_s) = (begin.elapsed().as_secs_f64(), cpu::of_this_process() - cpu_before);
        check(&store, source)?;
        Ok(Floor { seconds, cpu_s, execute: executing, root: rooting, commit: committing })
    }

    /// Applies all deltas to a new store. It keeps no bodies and receipts, like a node with `sync.history: false`.
    pub(super) fn delta(&self, source: &Source, dir: &Path) -> Result<Floor> {
        let store = self.fresh(source, dir)?;
        let mut committing = 0.0;
        let (begin, cpu_before) = (Instant::now(), cpu::of_this_process());
        let open = |batches: &[Batch]| -> Result<Vec<Delta>> {
            batches.par_iter().map(|batch| Ok(Delta::open(&batch.delta)?)).collect()
        };
        let mut groups = self.batches.chunks(DELTAS_OPENED).peekable();
        let mut next = groups.peek().map(|group| open(group));
        while let Some(group) = groups.next() {
            let deltas = next.take().context("a group has no opened deltas")??;
            let work = || -> Result<f64> {
                let start = Instant::now();
                let commits = group.iter().zip(&deltas).map(|(batch, delta)| CommitBatch {
                    delta_blob: Some(&batch.delta),
                    ..CommitBatch::new(&batch.header, delta)
                });
                store.commit_run(&commits.collect::<Vec<_>>(), GROUP_BATCHES)?;
                Ok(start.elapsed().as_secs_f64())
            };
            let (done, following) = rayon::join(work, || groups.peek().map(|group| open(group)));
            next = following;
            committing += done?;
        }
        let (seconds, cpu_s) = (begin.elapsed().as_secs_f64(), cpu::of_this_process() - cpu_before);
        check(&store, source)?;
        Ok(Floor { seconds, cpu_s, execute: 0.0, root: 0.0, commit: committing })
    }

    /// Returns a store at the genesis. Like a node's, it keeps past states only in the window before the final head.
    fn fresh(&self, source: &Source, dir: &Path) -> Result<Store> {
        let config = StorageConfig { snapshot_interval_batches: 0, ..Default::default() };
        let store = Store::open(&config, dir)?;
        store.initialize(&source.genesis)?;
        if let Some(last) = self.batches.last() {
            store.keep_history(last.header.number);
        }
        Ok(store)
    }
}

fn check(store: &Store, source: &Source) -> Result<()> {
    let head = store.head()?.header;
    store.close();
    ensure!(
        head.state_root == source.state_root,
        "the floor ended at batch {} with another state",
        head.number
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::workload::Workload;
    use slipnet::progress::Progress;

    /// Goal: the floor does all of the work: it ends in the chain's state.
    #[test]
    fn floors_end_in_the_state_of_the_chain() {
        let store = Store::memory(&StorageConfig::default());
        let source = Source::make(&store, Workload::Erc20, 20, 50, Progress::Quiet).unwrap();
        let loaded = Loaded::read(&store).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let replay = loaded.replay(&source, &dir.path().join("replay")).unwrap();
        assert!(replay.execute + replay.root + replay.commit <= replay.seconds);
        let delta = loaded.delta(&source, &dir.path().join("delta")).unwrap();
        assert!(delta.commit > 0.0 && delta.commit <= delta.seconds);
    }
}
