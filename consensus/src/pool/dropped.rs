//! [`Dropped`]: remembers transactions that left the pool unexecuted, so that they do not come back at once.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    time::Duration,
};

use alloy_primitives::B256;
use tokio::time::Instant;

use super::error::Refused;

/// Hashes that are kept, some 5 MiB: more than half of the content of a full pool.
const DROPPED_MAX: usize = 65_536;
/// How long an expired transaction stays away: longer than another node may still offer it before it expires there.
const EXPIRED_FOR: Duration = Duration::from_secs(30 * 60);
/// How long a transaction that the proposer could not execute stays away. After that, the state may be another.
const NOT_EXECUTABLE_FOR: Duration = Duration::from_secs(5 * 60);

/// Why a transaction left the pool without being executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DropReason {
    /// The proposer tried it, and it broke a rule that only execution finds.
    NotExecutable,
    /// It was here for long, and no proposer executed it.
    Expired,
    /// It alone takes longer than the validators have for a batch.
    TooSlow,
}

impl DropReason {
    /// The reason as reported to others.
    pub(crate) fn refused(self) -> Refused {
        match self {
            DropReason::NotExecutable => Refused::NotExecutable,
            DropReason::Expired => Refused::Expired,
            DropReason::TooSlow => Refused::TooSlow,
        }
    }

    fn stays_away(self) -> Duration {
        match self {
            DropReason::NotExecutable | DropReason::TooSlow => NOT_EXECUTABLE_FOR,
            DropReason::Expired => EXPIRED_FOR,
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DropReason::NotExecutable => {
                "failed to execute at the proposer; send it again after five minutes"
            }
            DropReason::TooSlow => {
                "takes longer than the validators have for a batch: do less in it, and send it again after five minutes"
            }
            DropReason::Expired => "waited too long for execution; only its owner can send it again",
        })
    }
}

/// The transactions that were dropped last. Only transactions that were in the pool get here, so junk cannot drive
/// others out.
#[derive(Debug, Default)]
pub(super) struct Dropped {
    by_hash: HashMap<B256, (DropReason, Instant)>,
    order: VecDeque<(B256, Instant)>,
}

impl Dropped {
    pub(super) fn insert(&mut self, hash: B256, reason: DropReason, now: Instant) {
        while self.order.len() >= DROPPED_MAX
            && let Some((oldest, at)) = self.order.pop_front()
        {
            // The hash may have been dropped again since.
            if self.by_hash.get(&oldest).is_some_and(|(_, dropped)| *dropped == at) {
                self.by_hash.remove(&oldest);
            }
        }
        self.by_hash.insert(hash, (reason, now));
        self.order.push_back((hash, now));
    }

    /// Why the transaction must stay away, if it still must.
    pub(super) fn get(&self, hash: &B256, now: Instant) -> Option<DropReason> {
        let (reason, at) = self.by_hash.get(hash)?;
        (now.saturating_duration_since(*at) < reason.stays_away()).then_some(*reason)
    }

    pub(super) fn forget(&mut self, hash: &B256) {
        self.by_hash.remove(hash);
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::U256;

    use super::*;

    /// Goal: the memory is bounded and lasts as long as it should, and a transaction that is dropped again is
    /// remembered anew.
    #[test]
    fn memory_is_bounded_in_number_and_time() {
        let (mut dropped, now) = (Dropped::default(), Instant::now());
        let hash = |number: usize| B256::from(U256::from(number));
        dropped.insert(hash(0), DropReason::Expired, now);
        dropped.insert(hash(1), DropReason::NotExecutable, now);
        let later = now + NOT_EXECUTABLE_FOR;
        assert_eq!(dropped.get(&hash(0), later), Some(DropReason::Expired));
        assert_eq!(dropped.get(&hash(1), later), None);
        dropped.insert(hash(0), DropReason::NotExecutable, later);
        for number in 2..DROPPED_MAX + 1 {
            dropped.insert(hash(number), DropReason::Expired, later);
        }
        assert_eq!(dropped.get(&hash(0), later), Some(DropReason::NotExecutable), "dropped twice");
        assert_eq!((dropped.by_hash.len(), dropped.order.len()), (DROPPED_MAX, DROPPED_MAX));
        dropped.forget(&hash(0));
        assert_eq!(dropped.get(&hash(0), later), None);
    }
}
