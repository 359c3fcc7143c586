//! [`Entry`]: the node's knowledge about one peer that may be dialled.

use std::net::{IpAddr, SocketAddr};

use super::table::{Cell, Host};
use crate::exchange::{PeerRecord, Reach};

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// How long after it was signed a record is passed on. A running peer signs a new record every hour.
pub(crate) const PASSED_ON_MS: u64 = DAY_MS;
/// How long a record's addresses are dialled after it was signed, or after its peer was last reached.
pub(crate) const KEPT_MS: u64 = 14 * DAY_MS;
/// How far ahead of this node's clock a record may be dated.
pub(crate) const AHEAD_MS: u64 = 10 * MINUTE_MS;
/// A peer that was reached this recently keeps its slot in the table of reached peers without being dialled again.
pub(crate) const FRESH_MS: u64 = 4 * HOUR_MS;

/// Wait after the first failed attempt; it doubles each time.
const RETRY_MS: u64 = MINUTE_MS;
const RETRY_MS_MAX: u64 = 4 * HOUR_MS;
/// Number of failed attempts in a row that make an entry worthless. The first number is for peers that were never
/// reached, the second one for peers that were last reached long ago.
const FAILURES_HEARD_MAX: u32 = 3;
const FAILURES_REACHED_MAX: u32 = 10;
const REACHED_LONG_AGO_MS: u64 = 7 * DAY_MS;

/// This node's own experience with a peer, beside the peer's record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// Another peer reported it.
    Heard,
    /// The peer connected from an address of its record, with its key.
    Met,
    /// This node dialled the peer at such an address.
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
    /// The address block of the peer that reported the record.
    pub(super) teller: IpAddr,
    /// The host against which the slot counts.
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
    /// The address to dial next. Each failure moves on to the next of the record's addresses that are within reach.
    pub(super) fn address(&self, reach: Reach) -> Option<SocketAddr> {
        let within: Vec<_> =
            self.record.addresses().iter().filter(|address| reach.allows(**address)).collect();
        let turn = (self.failures as usize).checked_rem(within.len())?;
        within.get(turn).map(|address| **address)
    }

    /// Records a failed attempt. `counts` says whether it counts against the peer, which it does only if this node is
    /// connected at all.
    pub(super) fn failed(&mut self, counts: bool, now_ms: u64) {
        self.failures = self.failures.saturating_add(counts.into());
        let wait = RETRY_MS << self.failures.saturating_sub(1).min(16);
        self.not_before_ms = now_ms + wait.min(RETRY_MS_MAX);
    }

    pub(super) fn reached(&mut self, now_ms: u64) {
        (self.standing, self.failures) = (Standing::Reached { at_ms: now_ms }, 0);
    }

    /// Whether it is too early to dial the peer again. A wait above the maximum can only come from a clock that was set
    /// back.
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

    /// Whether the entry is **spent**: no longer worth its slot.
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
