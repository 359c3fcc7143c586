//! Committing ranges that were executed or opened: groups of batches, each with one root and one durable write.

use std::{num::NonZeroUsize, sync::Arc};

use serde::{Deserialize, Serialize};
use slipstream_executor::{AheadUse, Layer};
use slipstream_network::PeerId;
use slipstream_storage::{CommitBatch, StorageError};
use slipstream_types::{BatchHeader, BatchNumber, Certificate};

use super::{
    Worker,
    audit::Audit,
    prepare::{OpenedBatch, PreparedKind, PreparedRange},
    replay::{ExecutedBatch, ExecutedRange, ReadAhead},
};
use crate::{SyncError, verify};

/// A range that only has to be committed.
#[derive(Debug)]
pub enum ReadyRange {
    /// The range was executed.
    Executed(Box<ExecutedRange>),
    /// The range was opened from its deltas: it is not prepared for replay.
    Opened(Box<PreparedRange>),
}

/// Maximum number of batches in one group, and its approximate bytes of deltas. A group has one root and one write, so a larger one
/// is cheaper for every batch. But it is committed later, and the next group can only be hashed while this one is
/// written.
const GROUP_BATCHES: usize = 64;
const GROUP_BYTES: usize = 1 << 20;

/// The result of a commit.
#[derive(Debug, Default)]
pub struct CommitResult {
    /// Number of the head afterwards.
    pub head: BatchNumber,
    /// Number of batches, executed ones included.
    pub batches: u64,
    /// Batches that were executed.
    pub replayed: u64,
    /// Number of their transactions.
    pub transactions: u64,
    /// The usefulness of batches' hints, by the validator that vouches for them, or else by the peer that sent them.
    pub hints: Vec<(PeerId, HintUse)>,
    /// The usefulness of predictions, for batches without hints.
    pub foretold: HintUse,
    /// Batches drawn for an audit.
    pub(crate) audits: Vec<Audit>,
}

/// How useful hints were, or predictions in their place, in keys and codes. What the hot cache had anyway does not
/// count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct HintUse {
    /// Keys and codes that were read ahead because they were named.
    pub named: u64,
    /// Those of them that execution read.
    pub used: u64,
    /// Keys and codes that execution read, named or not.
    pub reads: u64,
    /// Rows whose hinted values were wrong, so that the batch was executed again.
    pub values_wrong: u64,
}

impl From<AheadUse> for HintUse {
    fn from(AheadUse { named, used, reads }: AheadUse) -> HintUse {
        HintUse { named, used, reads, values_wrong: 0 }
    }
}

impl HintUse {
    /// Adds the use of other hints.
    pub fn add(&mut self, other: HintUse) {
        self.named += other.named;
        self.used += other.used;
        self.reads += other.reads;
        self.values_wrong += other.values_wrong;
    }

    /// The share of the read-ahead that execution asked for, or `None` without read-ahead.
    pub fn precision(&self) -> Option<f64> {
        (self.named > 0).then(|| self.used.min(self.named) as f64 / self.named as f64)
    }

    /// The share of execution's reads that were read ahead, or `None` without reads.
    pub fn recall(&self) -> Option<f64> {
        (self.reads > 0).then(|| self.used as f64 / self.reads as f64)
    }
}

/// A batch to commit, however it came.
struct Entry<'a> {
    commit: CommitBatch<'a>,
    certificate: &'a Certificate,
    /// The validator or peer that answers for its hints.
    hinted_by: PeerId,
    replayed: bool,
    /// The rows that the range touched; only for the range's last batch.
    layer: Option<&'a Arc<Layer>>,
    has_layer: bool,
    ahead: ReadAhead,
}

impl Worker {
    /// Commits ranges in order. Skips batches that a validator's consensus committed already.
    pub(super) fn commit(
        &self,
        ranges: Vec<ReadyRange>,
        target: BatchNumber,
    ) -> Result<CommitResult, SyncError> {
        let before = self.store.view()?;
        self.store.keep_history(target);
        let mut committed = self.commit_ranges(&ranges)?;
        if Arc::strong_count(&self.waiting) == 1 {
            // No range that waits for execution builds on these.
            self.executed.lock().forget_up_to(committed.head);
        }
        committed.audits = self.draw_audits(before, ranges);
        Ok(committed)
    }

    fn commit_ranges(&self, ranges: &[ReadyRange]) -> Result<CommitResult, SyncError> {
        let entries: Vec<Entry<'_>> = ranges.iter().flat_map(|ready| self.entries(ready)).collect();
        let mut committed = CommitResult::default();
        let mut left = &entries[..];
        loop {
            let head = self.store.head()?;
            committed.head = head.header.number;
            let passed = left.iter().take_while(|entry| entry.commit.header.number <= head.header.number);
            left = &left[passed.count()..];
            let Some(first) = left.first() else { break };
            let due = self.before_waypoint(&head, left)?;
            let run = &left[..due];
            let view = self.store.view()?;
            if *view.head() != head.header {
                continue;
            }
            self.check_succession(&view, run.iter().map(|entry| (entry.commit, entry.certificate)))?;
            drop(view);
            let commits: Vec<CommitBatch<'_>> = run.iter().map(|entry| entry.commit).collect();
            let result = self.store.commit_run(&commits, group_batches(&commits));
            let reached = self.store.head()?.header.number;
            let done = run.iter().take_while(|entry| entry.commit.header.number <= reached).count();
            match result {
                // A validator's consensus was faster: these batches are committed already.
                Err(StorageError::NotNext { head, .. }) if head >= first.commit.header.number => continue,
                Err(StorageError::StateRootMismatch { number, .. }) => {
                    return Err(SyncError::Diverged { number, field: "state_root" });
                }
                result => result?,
            }
            run[..done].iter().for_each(|entry| committed.count(entry));
            self.keep_hot(&run[..done]);
            left = &left[done..];
        }
        Ok(committed)
    }

    /// Reports the committed batches to the session, in order.
    fn keep_hot(&self, entries: &[Entry<'_>]) {
        for entry in entries {
            match (entry.layer, entry.has_layer) {
                (Some(layer), _) => self.session.committed(layer),
                (None, false) => self.session.applied(entry.commit.header, entry.commit.delta),
                // It is in the layer that comes with the last batch of its range.
                (None, true) => {}
            }
        }
    }

    fn entries<'a>(&self, ready: &'a ReadyRange) -> Vec<Entry<'a>> {
        match ready {
            ReadyRange::Executed(range) => {
                range.batches.iter().map(|batch| executed_entry(range, batch)).collect()
            }
            ReadyRange::Opened(prepared) => match &prepared.kind {
                PreparedKind::Delta(range) => {
                    let layer = range.made_layer();
                    range.batches.iter().map(|batch| self.opened_entry(prepared, batch, layer)).collect()
                }
                PreparedKind::Replay { .. } => Vec::new(),
            },
        }
    }

    fn opened_entry<'a>(
        &self,
        prepared: &'a PreparedRange,
        opened: &'a OpenedBatch,
        layer: Option<&'a Arc<Layer>>,
    ) -> Entry<'a> {
        let OpenedBatch { batch, delta, hashes } = opened;
        let commit = CommitBatch {
            header: &batch.header,
            delta,
            body: batch.body.as_ref().filter(|_| self.history),
            receipts: batch.receipts.as_ref().filter(|_| self.history),
            delta_blob: batch.delta.as_ref(),
            hints: batch.hints.as_ref(),
            transaction_hashes: hashes,
            certificate: of_batch(&prepared.certificate, &batch.header),
        };
        let (certificate, hinted_by) = (&prepared.certificate, prepared.from);
        let (ends, has_layer) = (ending_in(layer, &batch.header), layer.is_some());
        Entry {
            commit,
            certificate,
            hinted_by,
            replayed: false,
            layer: ends,
            has_layer,
            ahead: ReadAhead::default(),
        }
    }

    /// Number of leading entries that may be committed: all, unless the ledger misses the operator's waypoint at one of
    /// them. Then only the batches before that one are stored.
    fn before_waypoint(
        &self,
        head: &slipstream_storage::Head,
        entries: &[Entry<'_>],
    ) -> Result<usize, SyncError> {
        let Some(waypoint) = self.waypoint else { return Ok(entries.len()) };
        let at = |entry: &Entry<'_>| entry.commit.header.number == waypoint.number;
        let Some(place) = entries.iter().position(at) else { return Ok(entries.len()) };
        let mut accumulator = head.accumulator.clone();
        for entry in &entries[..=place] {
            accumulator.append(entry.commit.header.digest());
        }
        let entry = &entries[place];
        let header = entry.commit.header;
        // The waypoint of a batch that ends its epoch names the next validators, which a later certificate does not repeat.
        let end = self.store.epoch_ends(header.epoch, 1)?.pop();
        let end = end.filter(|end| end.info.number == header.number);
        let found = verify::waypoint_at(header, &accumulator, end.as_ref().unwrap_or(entry.certificate));
        match super::expect_waypoint(&waypoint, found) {
            Ok(()) => {
                tracing::info!(%waypoint, "the ledger passes through the waypoint");
                Ok(entries.len())
            }
            Err(_) if place > 0 => Ok(place),
            Err(error) => Err(error),
        }
    }
}

impl CommitResult {
    fn count(&mut self, entry: &Entry<'_>) {
        self.head = entry.commit.header.number;
        self.batches += 1;
        self.replayed += u64::from(entry.replayed);
        self.transactions += u64::from(entry.commit.header.tx_count);
        self.foretold.add(entry.ahead.foretold);
        match self.hints.last_mut().filter(|(peer, ..)| *peer == entry.hinted_by) {
            Some((_, sum)) => sum.add(entry.ahead.hints),
            None => self.hints.push((entry.hinted_by, entry.ahead.hints)),
        }
    }
}

fn executed_entry<'a>(range: &'a ExecutedRange, executed: &'a ExecutedBatch) -> Entry<'a> {
    let ExecutedBatch { batch, maker, delta, sealed, hashes, ahead } = executed;
    // The blobs are as this node compressed them, even the body: a received blob has the same content, perhaps
    // uncompressed.
    let commit = CommitBatch {
        header: &batch.header,
        certificate: of_batch(&range.certificate, &batch.header),
        ..sealed.commit_batch(delta, hashes)
    };
    let (certificate, hinted_by) = (&range.certificate, maker.unwrap_or(range.from));
    let layer = ending_in(range.layer.as_ref(), &batch.header);
    Entry { commit, certificate, hinted_by, replayed: true, layer, has_layer: true, ahead: *ahead }
}

fn ending_in<'a>(layer: Option<&'a Arc<Layer>>, header: &BatchHeader) -> Option<&'a Arc<Layer>> {
    layer.filter(|layer| layer.header().number == header.number)
}

fn of_batch<'a>(certificate: &'a Certificate, header: &BatchHeader) -> Option<&'a Certificate> {
    (certificate.info.number == header.number).then_some(certificate)
}

/// Number of batches in one group of a run.
fn group_batches(run: &[CommitBatch<'_>]) -> NonZeroUsize {
    let bytes: usize = run.iter().map(|commit| commit.header.delta_bytes as usize).sum();
    let average = (bytes / run.len().max(1)).max(1);
    NonZeroUsize::new((GROUP_BYTES / average).clamp(1, GROUP_BATCHES)).unwrap_or(NonZeroUsize::MIN)
}
