//! The oracles: invariants that every run must keep, whatever the peers do.
//!
//! Safety, after every check, commit, restore and start:
//! * whatever passed a check is the ledger's;
//! * headers, certificates, blobs, rows and root of a store are the ledger's, and nothing is stored past the certified
//!   head;
//! * lies earn no credit, and honest peers are never banned ([`World::act`]);
//! * a committed batch survives every crash;
//! * a node serves the ledger's data, and every target that it accepts is certified.
//!
//! Liveness is in [`super::world`]: every node catches up within a fixed time after the last fault.

mod expect;
mod served;
mod waiting;

use anyhow::{Context, Result, ensure};
use slipstream_network::PeerId;
use slipstream_storage::{RestoreError, Span, StorageError};
use slipstream_sync::{
    SyncError,
    protocol::{ANSWER_BYTES_MAX, RangeRequest, Request, Summary},
    work::{Done, Job, RestoreJob, RestoreOutcome},
};
use slipstream_types::{BatchNumber, BlobKind, Digest, StateKey, codec};

use self::{
    expect::{changed, expect_batch, expect_chunk, expect_codes, expect_range, expect_rows},
    served::{expect_served, expect_states},
};
use super::{
    chain::{Chain, epoch},
    fault::Fault,
    world::{Place, To, World},
};

/// The first server: honest, always connected, and with all that any node of its world needs.
pub(super) const ANCHOR: Place = 0;

/// The subject of a job, for judging its result by the ledger.
pub(super) enum Claim {
    /// A requested range, and the number of batches due.
    Range(RangeRequest, u64),
    /// Rows of a range.
    Chunk(Vec<u8>, Span),
    /// Code, with its hashes.
    Codes(Vec<u8>, Vec<Digest>),
    /// A restore of a snapshot.
    Begin(BatchNumber),
    /// A result that the ledger cannot judge.
    Nothing,
}

impl Claim {
    pub(super) fn of(job: &Job) -> Claim {
        match job {
            Job::CheckRange { request, due, .. } => Claim::Range(*request, *due),
            Job::Restore(RestoreJob::Chunk { answer, request: Request::Chunk { first, last, .. } }) => {
                Claim::Chunk(answer.clone(), Span { first: *first, last: *last })
            }
            Job::Restore(RestoreJob::Codes { answer, hashes }) => {
                Claim::Codes(answer.clone(), hashes.clone())
            }
            Job::Restore(RestoreJob::Begin { target, .. }) => Claim::Begin(target.header.number),
            _ => Claim::Nothing,
        }
    }
}

impl World {
    /// Compares a job's result with the ledger.
    pub(super) fn check_done(&mut self, to: To, claim: &Claim, done: &Done) -> Result<()> {
        let node = to.node;
        let checked = match (claim, done) {
            (Claim::Range(request, due), Done::Range(Ok(range))) => {
                expect_range(range, Some((request, *due)))
            }
            (_, Done::Announced(Ok(Some(range)))) => expect_range(range, None),
            (Claim::Chunk(bytes, span), Done::Restored(Ok(restored))) => {
                match (&restored.step, &restored.progress) {
                    (RestoreOutcome::Chunk { checked: Ok(()), .. }, Some(progress)) => {
                        expect_chunk(bytes, *span, progress.number)
                    }
                    _ => Ok(()),
                }
            }
            (Claim::Codes(bytes, hashes), Done::Restored(Ok(restored))) => match restored.step {
                RestoreOutcome::Codes(Ok(())) => expect_codes(bytes, hashes),
                _ => Ok(()),
            },
            (Claim::Begin(number), Done::Restored(Ok(_))) => {
                let last = self.process(to).and_then(|up| up.restoring.replace(*number));
                if last.is_some_and(|last| last != *number) {
                    self.fired.insert(Fault::Retarget);
                }
                Ok(())
            }
            // A simulated disk has no bit rot, so rows that miss the root were never checked.
            (
                _,
                Done::Restored(Err(SyncError::Storage(
                    error @ StorageError::Restore(RestoreError::DamagedRows { .. }),
                ))),
            ) => {
                return self.fail(&format!("safety: a restore of node {node} kept unchecked rows: {error}"));
            }
            _ => Ok(()),
        };
        checked.with_context(|| {
            format!("safety: a check of node {node} accepted data that differs from the ledger")
        })
    }

    /// Compares the store's new content with the ledger.
    pub(super) fn check_state(&mut self, index: usize) -> Result<()> {
        let chain = Chain::canonical();
        let (certified, seen) = (self.certified, self.nodes[index].seen);
        let Some(up) = &self.nodes[index].up else { return Ok(()) };
        let store = &up.store;
        // A store that failed as planned refuses every call; the check is made when it is opened again.
        if up.has_failed() {
            return Ok(());
        }
        let head = store.head()?;
        let number = head.header.number;
        let check = || -> Result<()> {
            ensure!(
                number <= certified,
                "its head {number} is beyond batch {certified}, the last certified one"
            );
            ensure!(head.header == chain.header(number)?, "batch {number} has another header");
            ensure!(store.header(number.next())?.is_none(), "a header is stored beyond the head {number}");
            for number in seen.through(number) {
                expect_batch(store, number)?;
            }
            // After a restore all rows are new.
            let whole = store.lowest(BlobKind::Delta)?.is_none_or(|lowest| lowest > seen.next());
            let keys: Vec<StateKey> = match whole {
                true => chain.keys().to_vec(),
                false => changed(seen, number)?,
            };
            expect_rows(store, number, &keys)
        };
        check().with_context(|| format!("safety: the store of node {index}"))?;
        self.nodes[index].seen = seen.max(number);
        Ok(())
    }

    /// Checks that no peer has more credit than its possibly true answers earned.
    pub(super) fn check_credit(&mut self, to: To) -> Result<()> {
        let now = self.instant();
        let node = to.node;
        let Some(up) = self.process(to) else { return Ok(()) };
        for peer in up.engine.status(now).peers {
            let most = up.creditable.get(&peer.id).copied().unwrap_or_default();
            let found = peer.verified_bytes;
            let peer = peer.id.short();
            ensure!(
                found <= most,
                "safety: node {node} credits peer {peer} with {found} bytes, but at most {most} bytes of its answers can be true"
            );
        }
        Ok(())
    }

    /// Checks that a peer with a false summary is banned at once. A summary of an epoch that the node does not know yet
    /// is exempt: the node cannot tell whether it is false.
    pub(super) fn check_disbelief(&mut self, to: To, peer: Place, key: &PeerId, told: &[u8]) -> Result<()> {
        let Some(up) = self.process(to) else { return Ok(()) };
        let known = epoch(up.engine.head());
        let summary = codec::decode::<Summary>("summary", told, ANSWER_BYTES_MAX);
        let head = summary.ok().and_then(|summary| summary.head);
        let is_ahead = head.is_some_and(|head| head.info.epoch > known);
        if up.banned.contains(key) || is_ahead {
            return Ok(());
        }
        self.fail(&format!("safety: node {} believes a false summary of server {peer}", to.node))
    }

    /// Checks the conditions at the end of a run.
    pub(super) fn check_end(&mut self) -> Result<()> {
        let now = self.instant();
        for index in 0..self.nodes.len() {
            let Some(up) = self.nodes[index].up.as_ref().filter(|up| !up.has_failed()) else { continue };
            let (store, status) = (up.store.clone(), up.engine.status(now));
            let certified = self.certified;
            ensure!(
                status.target <= certified,
                "safety: node {index} trusts batch {}, but the last certified one is {certified}",
                status.target
            );
            ensure!(status.alarm.is_none(), "safety: an audit of node {index} finds {:?}", status.alarm);
            self.check_state(index)?;
            expect_rows(&store, certified, Chain::canonical().keys())
                .with_context(|| format!("safety: the store of node {index}"))?;
            expect_served(&store).with_context(|| format!("safety: what node {index} serves"))?;
            expect_states(&store).with_context(|| format!("safety: the past states of node {index}"))?;
        }
        Ok(())
    }
}
