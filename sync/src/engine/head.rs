//! At the head: batches that arrive by broadcast.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use slipstream_network::{MESSAGE_BYTES_MAX, PeerId};
use slipstream_types::{BatchNumber, Epoch, codec};
use tokio::time::Instant;

use super::{Engine, jobs::CheckAnnounced};
use crate::{error::Fault, protocol::Announcement, verify, work::Job};

/// Batches ahead of the head whose announcements wait for their predecessors. A later announcement is of no use before
/// its batch is fetched.
const ANNOUNCED_MAX: u64 = 8;
/// Maximum number of peers whose announcement of one batch is kept. A certificate is true whichever peer shows it, but the rest may
/// be false. Then the next peer's announcement is taken.
const ANNOUNCERS_MAX: usize = 3;
/// Maximum bytes of all waiting announcements. Beyond this, the peer that holds the most loses its last one.
const ANNOUNCED_BYTES_MAX: usize = 64 << 20;
/// Maximum number of announced batches between their check and their commit.
const AHEAD_MAX: u64 = 4;
/// A batch this far behind the head is old news: a peer that lags fetches batches and does not pass them on.
const STALE_BATCHES: u64 = 1_024;

/// An announcement whose certificate was checked and belongs to its header. Its body and its place in the ledger were
/// not checked.
#[derive(Debug)]
struct PendingAnnouncement {
    from: PeerId,
    /// Whether it came from a peer that had delivered something.
    is_proven: bool,
    announcement: Box<Announcement>,
    /// Length of its message in bytes.
    bytes: usize,
}

/// Announcements that wait for the batch before them.
#[derive(Debug, Default)]
pub(super) struct Announcements {
    /// Announcements by batch: at most one from each peer, those of proven peers first.
    waiting: BTreeMap<BatchNumber, Vec<PendingAnnouncement>>,
    /// The last batch that passed its checks: a node that applies deltas may hear of the batch again before it commits
    /// that batch.
    passed: BatchNumber,
    /// The last batch that went on to execution. Its successor can be checked before it is committed.
    taken: BatchNumber,
}

impl Announcements {
    /// Records a batch that passed its checks: other announcements of it are of no use.
    pub(super) fn passed(&mut self, number: BatchNumber) {
        self.waiting.remove(&number);
        self.passed = self.passed.max(number);
    }

    /// Records that a batch goes on to execution as it was announced.
    pub(super) fn taken(&mut self, number: BatchNumber) {
        self.taken = number;
    }

    /// Whether a peer's announcement of a batch is waiting.
    fn has(&self, number: BatchNumber, from: &PeerId) -> bool {
        self.waiting.get(&number).is_some_and(|all| all.iter().any(|other| other.from == *from))
    }

    /// Adds an announcement to those of other peers. Beyond [`ANNOUNCERS_MAX`] of them, a proven peer's announcement
    /// evicts a stranger's.
    fn add(&mut self, announced: PendingAnnouncement) {
        let all = self.waiting.entry(announced.announcement.header.number).or_default();
        let place = all.partition_point(|other| other.is_proven >= announced.is_proven);
        all.insert(place, announced);
        all.truncate(ANNOUNCERS_MAX);
        while self.bytes() > ANNOUNCED_BYTES_MAX {
            self.drop_one();
        }
    }

    /// The batches with a waiting announcement from a peer.
    #[cfg(test)]
    pub(super) fn waiting_of(&self, peer: &PeerId) -> Vec<u64> {
        let has = |all: &[PendingAnnouncement]| all.iter().any(|announced| announced.from == *peer);
        self.waiting.iter().filter(|(_, all)| has(all)).map(|(number, _)| number.get()).collect()
    }

    fn bytes(&self) -> usize {
        self.waiting.values().flatten().map(|announced| announced.bytes).sum()
    }

    /// Drops the last announcement of the peer that holds the most bytes.
    fn drop_one(&mut self) {
        let mut held = BTreeMap::<PeerId, usize>::new();
        for announced in self.waiting.values().flatten() {
            *held.entry(announced.from).or_default() += announced.bytes;
        }
        let Some((most, _)) = held.into_iter().max_by_key(|(_, bytes)| *bytes) else { return };
        let mut all = self.waiting.values_mut().rev();
        let of_most =
            |all: &&mut Vec<PendingAnnouncement>| all.iter().any(|announced| announced.from == most);
        if let Some(all) = all.find(of_most) {
            all.retain(|announced| announced.from != most);
        }
    }

    /// The highest batch with a waiting announcement; batch 0 if none waits.
    fn last(&self) -> BatchNumber {
        let mut waiting = self.waiting.iter().rev();
        waiting.find(|(_, all)| !all.is_empty()).map_or(BatchNumber::GENESIS, |(number, _)| *number)
    }

    /// Takes the best announcement of a batch, and drops those of earlier batches.
    fn take(&mut self, number: BatchNumber) -> Option<PendingAnnouncement> {
        self.waiting = self.waiting.split_off(&number);
        let all = self.waiting.get_mut(&number)?;
        (!all.is_empty()).then(|| all.remove(0))
    }
}

/// Reads the epoch of an announcement's header, which follows number and parent, without decoding a long message.
fn epoch_of(payload: &[u8]) -> Option<Epoch> {
    payload.get(8 + 32..)?.first_chunk().map(|bytes| Epoch(u64::from_le_bytes(*bytes)))
}

/// Reads the batch of an announcement from its first bytes. Most announcements are refused by this number alone.
fn number_of(payload: &[u8]) -> Option<BatchNumber> {
    payload.first_chunk().map(|bytes| BatchNumber::new(u64::from_le_bytes(*bytes)))
}

impl Engine {
    /// Takes an announcement, the cheap checks first. Returns whether the engine has to act on it.
    pub(super) fn heard_of(&mut self, from: PeerId, payload: Vec<u8>, now: Instant) -> bool {
        match number_of(&payload) {
            // Nothing is added to this number: a peer may have invented it, and it can be the highest possible.
            Some(number) if self.head.since(number) > STALE_BATCHES => {
                let reason = format!("announcement: batch {number} is far behind the head {}", self.head);
                self.book.bench(&from, now, reason);
                return false;
            }
            // Most are copies of batches that are here already.
            Some(number) if number <= self.head || self.announcements.has(number, &from) => return false,
            _ => {}
        }
        let is_far = number_of(&payload).is_some_and(|number| number.since(self.head) > ANNOUNCED_MAX);
        let is_known = number_of(&payload).is_some_and(|number| number <= self.announcements.passed);
        if is_far || is_known {
            return self.expect_more(from);
        }
        match self.opened(&payload) {
            Ok(Some(announcement)) => {
                self.expect_more(from);
                let (announcement, is_proven) = (Box::new(announcement), self.book.is_proven(&from, now));
                self.announcements.add(PendingAnnouncement {
                    from,
                    is_proven,
                    announcement,
                    bytes: payload.len(),
                });
                true
            }
            Ok(None) => self.expect_more(from),
            Err(fault) => {
                self.punish(from, "announcement", &fault, now);
                true
            }
        }
    }

    /// Decodes an announcement and makes the checks that need no ledger. Returns `None` if its epoch is still unknown;
    /// the announcement then stays undecoded.
    fn opened(&mut self, payload: &[u8]) -> Result<Option<Announcement>, Fault> {
        if epoch_of(payload).is_some_and(|epoch| epoch > self.trust.epoch()) {
            return Ok(None);
        }
        let announcement: Announcement = codec::decode("announcement", payload, MESSAGE_BYTES_MAX)?;
        verify::announcement_agrees(&announcement)?;
        self.trust.verify(&announcement.certificate)?;
        Ok(Some(announcement))
    }

    /// Handles an announcement that shows a peer ahead. A peer announces a batch before it commits it, and may be an
    /// epoch ahead, so only its next summary reports its own head. Returns whether to ask for that summary. However
    /// much a peer announces, one request is open at a time.
    fn expect_more(&mut self, from: PeerId) -> bool {
        if self.streams.is_asked(&from) || !self.book.knows(&from) {
            return false;
        }
        self.book.expire(&from);
        self.heard.insert(from)
    }

    /// Updates the highest known certified batch, and since when a batch after the head is known.
    pub(super) fn look_ahead(&mut self, now: Instant) {
        self.newest = self.newest.max(self.book.target());
        let known = self.announcements.last().max(self.book.target());
        self.ahead_at = (known > self.head).then(|| self.ahead_at.unwrap_or(now));
    }

    /// Sets how long a new batch is left to others in this process.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Whether the next batch became known so recently that others in this process may still commit it. The time since
    /// the last batch says nothing: on a chain with seconds between its batches it is long whenever the next one comes.
    pub(super) fn is_patient(&self, now: Instant) -> bool {
        self.ahead_at.is_some_and(|at| now.saturating_duration_since(at) < self.patience)
    }

    /// Hands the worker the announcement of the batch after the head, or after the last announced batch that went on to
    /// execution.
    pub(super) fn start_announced(&mut self, now: Instant) {
        // Consensus in this process commits the batch sooner than a second execution here would.
        if self.jobs.announced.is_any() || self.is_patient(now) {
            return;
        }
        let last = match self.announcements.taken {
            taken if self.pipeline.last() == taken && taken < self.head.after(AHEAD_MAX) => {
                taken.max(self.head)
            }
            _ => self.head,
        };
        let number = last.next();
        let Some(announced) = self.announcements.take(number) else { return };
        let PendingAnnouncement { from, announcement, .. } = announced;
        let trust = Arc::clone(&self.trust);
        self.run(CheckAnnounced { from, number }, Job::CheckAnnounced { announcement, trust });
    }

    /// Whether the node executes announced batches as they come.
    pub(super) fn executes_head(&self) -> bool {
        self.config.executes_head()
    }
}
