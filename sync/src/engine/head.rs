//! At the head: batches that arrive by broadcast.

use std::{collections::BTreeMap, sync::Arc};

use slipstream_network::{MESSAGE_BYTES_MAX, PeerId};
use slipstream_types::{BatchNumber, codec};
use tokio::time::Instant;

use super::{Engine, effect::Job, jobs::CheckAnnounced};
use crate::{config::Mode, error::Fault, protocol::Announcement, verify};

/// Announcements that wait for the batch before them.
const ANNOUNCED_MAX: usize = 8;

/// Announced batches on their way to their commit.
const AHEAD_MAX: u64 = 4;

/// An announcement whose certificate was checked, and that the header is its; body and place in the ledger were not.
#[derive(Debug)]
struct Announced {
    from: PeerId,
    announcement: Box<Announcement>,
    payload: Vec<u8>,
}

/// Announcements that wait for the batch before them: the lowest few, as they are needed first.
#[derive(Debug, Default)]
pub(super) struct Announcements {
    waiting: BTreeMap<BatchNumber, Announced>,
    /// The last batch that was relayed: a node that applies deltas hears of a batch from all its peers before it commits it.
    relayed: BatchNumber,
    /// The last one that went on to execution: the one behind it can be checked before it is committed.
    taken: BatchNumber,
}

impl Announcements {
    /// Whether this is the first time that the batch is relayed.
    pub(super) fn relay(&mut self, number: BatchNumber) -> bool {
        let first = number > self.relayed;
        self.relayed = self.relayed.max(number);
        first
    }

    /// Notes that a batch goes on to execution as it was announced.
    pub(super) fn taken(&mut self, number: BatchNumber) {
        self.taken = number;
    }

    fn add(&mut self, announced: Announced) {
        self.waiting.entry(announced.announcement.header.number).or_insert(announced);
        while self.waiting.len() > ANNOUNCED_MAX {
            self.waiting.pop_last();
        }
    }

    /// The highest that waits; batch 0 if there is none.
    fn last(&self) -> BatchNumber {
        self.waiting.last_key_value().map_or(BatchNumber(0), |(number, _)| *number)
    }

    fn take(&mut self, number: BatchNumber) -> Option<Announced> {
        self.waiting = self.waiting.split_off(&number);
        self.waiting.remove(&number)
    }
}

impl Engine {
    pub(super) fn heard_of(&mut self, from: PeerId, payload: Vec<u8>, now: Instant) {
        let decoded = codec::decode::<Announcement>("announcement", &payload, MESSAGE_BYTES_MAX);
        let announcement = match decoded {
            Ok(announcement) => announcement,
            Err(error) => return self.punish(from, "announcement", &Fault::Codec(error), now),
        };
        let number = announcement.header.number;
        // The cheap check first: most announcements are copies of what is here already.
        if number <= self.head {
            return;
        }
        // A peer relays before it commits: its own head is what its next summary says. So it does when this node lags an epoch behind.
        self.book.expire(&from);
        self.heard.insert(from);
        let is_known = number <= self.announcements.relayed;
        if is_known || announcement.certificate.info.epoch > self.trust.epoch() {
            return;
        }
        if let Err(fault) = verify::announcement(&announcement, &self.trust) {
            return self.punish(from, "announcement", &fault.into(), now);
        }
        self.announcements.add(Announced { from, announcement: Box::new(announcement), payload });
    }

    /// Notes the highest certified batch that is known, and since when one after the head is.
    pub(super) fn look_ahead(&mut self, now: Instant) {
        self.newest = self.newest.max(self.book.target());
        let known = self.announcements.last().max(self.book.target());
        self.ahead_at = (known > self.head).then(|| self.ahead_at.unwrap_or(now));
    }

    /// Whether the next batch is known for so short a time that others in this process may still commit it. The time since the last
    /// batch says nothing: on a chain with seconds between its batches it is long whenever the next one comes.
    pub(super) fn is_patient(&self, now: Instant) -> bool {
        self.ahead_at.is_some_and(|at| now.saturating_duration_since(at) < self.patience)
    }

    /// Hands the announcement of the batch after the head to the worker, or of the one after the last that went on.
    pub(super) fn start_announced(&mut self, now: Instant) {
        // Consensus in this process commits the batch sooner than executing it again here would.
        if self.jobs.announced.is_any() || self.is_patient(now) {
            return;
        }
        let last = match self.announcements.taken {
            taken if self.tail.last() == taken && taken.0 < self.head.0 + AHEAD_MAX => taken.max(self.head),
            _ => self.head,
        };
        let Some(announced) = self.announcements.take(last.next()) else { return };
        let Announced { from, announcement, payload } = announced;
        let trust = Arc::clone(&self.trust);
        self.run(CheckAnnounced { from, payload }, Job::CheckAnnounced { announcement, trust });
    }

    /// Whether announced batches are executed as they come.
    pub(super) fn executes_head(&self) -> bool {
        match self.config.mode {
            Mode::Replay => true,
            Mode::Delta => false,
            _ => !self.config.forbid.contains(&Mode::Replay),
        }
    }
}
