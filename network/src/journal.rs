//! [`Journal`]: decides which connection events are logged. So neither a peer that comes and goes, nor strangers with
//! ever new keys, can fill the log.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use crate::PeerId;

/// Lines about one peer: a burst, as when it restarts, then one a minute.
const PEER_LINES: u32 = 6;
const PEER_LINE_EVERY: Duration = Duration::from_secs(60);
/// Lines about all peers: a burst, as when a node with many peers starts, then some a minute.
const ALL_LINES: u32 = 256;
const ALL_LINE_EVERY: Duration = Duration::from_secs(10);
/// Maximum number of peers with an allowance of their own. Further peers get no lines. That happens only if more than
/// this number of peers came and went within minutes.
const PEERS_MAX: usize = 1_024;

/// Decides which events are logged at the usual level; the others appear only at the debug level.
#[derive(Debug)]
pub(crate) struct Journal {
    all: Ration,
    peers: BTreeMap<PeerId, Ration>,
}

impl Journal {
    pub(crate) fn new(now: Instant) -> Journal {
        Journal { all: Ration::new(ALL_LINES, ALL_LINE_EVERY, now), peers: BTreeMap::new() }
    }

    /// Whether an event of a peer is logged.
    pub(crate) fn tells(&mut self, peer: PeerId, now: Instant) -> bool {
        if self.peers.len() >= PEERS_MAX {
            self.peers.retain(|_, ration| !ration.is_full(now));
        }
        if self.peers.len() >= PEERS_MAX && !self.peers.contains_key(&peer) {
            return false;
        }
        let ration = self.peers.entry(peer).or_insert_with(|| Ration::new(PEER_LINES, PEER_LINE_EVERY, now));
        ration.take(now) && self.all.take(now)
    }
}

/// A burst, then one line per interval.
#[derive(Debug)]
struct Ration {
    most: u32,
    every: Duration,
    left: u32,
    /// When the last line was added to the allowance. Time adds nothing to a full allowance.
    counted: Instant,
}

impl Ration {
    fn new(most: u32, every: Duration, now: Instant) -> Ration {
        Ration { most, every, left: most, counted: now }
    }

    fn take(&mut self, now: Instant) -> bool {
        self.refill(now);
        let is_left = self.left > 0;
        self.left = self.left.saturating_sub(1);
        is_left
    }

    fn is_full(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.left == self.most
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.counted);
        let added = u32::try_from(passed.as_millis() / self.every.as_millis()).unwrap_or(u32::MAX);
        self.left = self.left.saturating_add(added).min(self.most);
        self.counted = if self.left == self.most { now } else { self.counted + self.every * added };
    }
}

#[cfg(test)]
mod tests {
    use slipstream_types::PublicKey;

    use super::*;

    fn id(n: u32) -> PeerId {
        let mut key = [7; 32];
        key[..4].copy_from_slice(&n.to_le_bytes());
        PublicKey(key)
    }

    /// Goal: a peer that comes and goes for ever causes one line a minute, and the others keep their allowance.
    #[test]
    fn a_peer_that_comes_and_goes_does_not_fill_the_log() {
        let start = Instant::now();
        let mut journal = Journal::new(start);
        let hour = 0..3_600;
        let told = hour.filter(|second| journal.tells(id(1), start + Duration::from_secs(*second))).count();
        assert_eq!(told, PEER_LINES as usize + 59);
        assert!(journal.tells(id(2), start + Duration::from_secs(3_600)));
    }

    /// Goal: strangers that make a key for every connection fill neither the log nor the memory.
    #[test]
    fn strangers_do_not_fill_the_log() {
        let start = Instant::now();
        let mut journal = Journal::new(start);
        let at = |n: u32| start + Duration::from_millis(u64::from(n));
        let told = (0..100_000).filter(|n| journal.tells(id(*n), at(*n))).count();
        assert!(told <= ALL_LINES as usize + 10, "{told}");
        assert!(journal.peers.len() <= PEERS_MAX);
        assert!(journal.tells(id(1), at(1_000_000)));
    }
}
