//! [`Entry`]: the node's knowledge about one peer that may be dialled.

use std::net::{IpAddr, SocketAddr};

use super::table::{Cell, Host};
use crate::exchange::{PeerRecord, Reach};

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// How long after its signature a record is passed on: its peer signs a new one every hour while it runs.
pub(crate) const PASSED_ON_MS: u64 = DAY_MS;
/// How long a record is dialled after its signature, or after its peer was last reached.
pub(crate) const KEPT_MS: u64 = 14 * DAY_MS;
/// How far ahead of this node's clock a record may be dated.
pub(crate) const AHEAD_MS: u64 = 10 * MINUTE_MS;
/// A peer that was reached this recently keeps its slot in the table of reached peers, and is not dialled for it.
pub(crate) const FRESH_MS: u64 = 4 * HOUR_MS;

/// Wait after the first failed attempt; it doubles each time.
const RETRY_MS: u64 = MINUTE_MS;
const RETRY_MS_MAX: u64 = 4 * HOUR_MS;
/// Failed attempts in a row that make an entry worthless: one that was never reached, and one that was last reached
/// long ago.
const FAILURES_HEARD_MAX: u32 = 3;
const FAILURES_REACHED_MAX: u32 = 10;
const REACHED_LONG_AGO_MS: u64 = 7 * DAY_MS;

/// This node's own experience with a peer, beside the peer's record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// Another peer reported it.
    Heard,
    /// It connected from an address of its record, with its key.
    Met,
    /// This node dialled it there.
    Reached {
        /// Last time, in milliseconds since 1970.
        at_ms: u64,
    },
}

/// The table and cell of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TableCell {
    Heard(Cell),
    Reached(Cell),
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) record: PeerRecord,
    /// The block of the peer that reported it.
    pub(super) teller: IpAddr,
    /// The host that its slot is counted for.
    pub(super) host: Host,
    pub(super) standing: Standing,
    /// Number of failed attempts in a row.
    pub(super) failures: u32,
    /// Earliest time of the next attempt, in milliseconds since 1970.
    pub(super) not_before_ms: u64,
    /// Whether it was a long-standing neighbour when the book was saved.
    pub(super) is_anchor: bool,
    pub(super) at: TableCell,
}

impl Entry {
    /// The address to dial next: those of its addresses that are within reach, in turn.
    pub(super) fn address(&self, reach: Reach) -> Option<SocketAddr> {
        let within: Vec<_> =
            self.record.addresses().iter().filter(|address| reach.allows(**address)).collect();
        let turn = (self.failures as usize).checked_rem(within.len())?;
        within.get(turn).map(|address| **address)
    }

    /// Records a failed attempt. It counts against the peer only if this node is connected at all.
    pub(super) fn failed(&mut self, counts: bool, now_ms: u64) {
        self.failures = self.failures.saturating_add(counts.into());
        let wait = RETRY_MS << self.failures.saturating_sub(1).min(16);
        self.not_before_ms = now_ms + wait.min(RETRY_MS_MAX);
    }

    pub(super) fn reached(&mut self, now_ms: u64) {
        (self.standing, self.failures) = (Standing::Reached { at_ms: now_ms }, 0);
    }

    /// Whether it is too early to dial it again. A wait above the maximum can only come from a clock that was set back.
    pub(super) fn rests(&self, now_ms: u64) -> bool {
        (1..=RETRY_MS_MAX).contains(&self.not_before_ms.saturating_sub(now_ms))
    }

    /// When this node last reached the peer; 0 if never.
    pub(super) fn reached_ms(&self) -> u64 {
        match self.standing {
            Standing::Reached { at_ms } => at_ms,
            Standing::Heard | Standing::Met => 0,
        }
    }

    pub(super) fn is_passed_on(&self, now_ms: u64) -> bool {
        self.standing != Standing::Heard
            && self.failures == 0
            && now_ms.saturating_sub(self.record.issued_ms()) <= PASSED_ON_MS
    }

    /// Whether it is no longer worth its slot.
    pub(super) fn is_spent(&self, now_ms: u64) -> bool {
        let since = |ms: u64| now_ms.saturating_sub(ms);
        if since(self.record.issued_ms().max(self.reached_ms())) > KEPT_MS {
            return true;
        }
        match self.standing {
            Standing::Heard | Standing::Met => self.failures >= FAILURES_HEARD_MAX,
            Standing::Reached { at_ms } => {
                self.failures >= FAILURES_REACHED_MAX && since(at_ms) > REACHED_LONG_AGO_MS
            }
        }
    }
}
