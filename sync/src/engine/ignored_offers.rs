//! [`IgnoredOffers`]: snapshots that could not be fetched, and the peers that promised them.
//!
//! If a peer promises a snapshot and fails to send it, its snapshots are ignored for a while, twice as long each time.
//! So offering many snapshots in turn delays a node no longer than offering one. The peer may still serve batches, and
//! keeps its score. An honest server that lacked time suffers no harm, and a node that needs it is back in a minute. A
//! peer that cannot merge a range delta is asked for no range delta for a minute. A peer that delivered is also ignored
//! for that minute if another way was faster, but never longer. Strangers' promises of a faster way can end a
//! progressing restore, or batches in flight, but ever more seldom. Otherwise a liar that returns under a new key after
//! each ban would keep a node from the batches that it could have.

use std::{collections::BTreeMap, time::Duration};

use slipstream_network::PeerId;
use slipstream_types::BatchNumber;
use tokio::time::Instant;

use crate::{
    plan::Candidate,
    planted::{Defences, Planted},
};

/// Length of the first pause.
const FIRST: Duration = Duration::from_secs(60);
/// Longest pause. The count of broken promises is remembered for this long after a pause.
const LONGEST: Duration = Duration::from_secs(3_600);
/// Maximum number of peers remembered. Beyond this, the peer whose pause ends first is forgotten.
const PEERS_MAX: usize = 1_024;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct IgnoredOffers {
    defences: Defences,
    /// Snapshots for which no peer has proved that their ledger contains the waypoint, with the time until which each is
    /// ignored.
    unproved: BTreeMap<BatchNumber, Instant>,
    peers: BTreeMap<PeerId, Pause>,
    /// Peers that cannot merge a range delta, and until when they are asked for none. Their snapshots still count.
    unmerged: BTreeMap<PeerId, Instant>,
    /// Until when strangers' promises of a faster way count for nothing, and how often such a promise was followed in
    /// vain.
    word: Option<Pause>,
    /// Number of snapshots and peers that are ignored now.
    active: usize,
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Instant,
    times: u32,
}

impl IgnoredOffers {
    pub(super) fn new(defences: Defences) -> IgnoredOffers {
        IgnoredOffers { defences, ..IgnoredOffers::default() }
    }

    /// Ignores a snapshot for a minute, whichever peer offers it.
    pub(super) fn unproved(&mut self, number: BatchNumber, now: Instant) {
        self.unproved.insert(number, now + FIRST);
    }

    /// Ignores the snapshots of peers that broke their promises.
    pub(super) fn broken(&mut self, peers: impl IntoIterator<Item = PeerId>, now: Instant) {
        if self.defences.lacks(Planted::RepeatedPromise) {
            return;
        }
        for peer in peers {
            let times = self.peers.get(&peer).map_or(0, |promised| promised.times);
            let pause = FIRST.saturating_mul(2u32.saturating_pow(times)).min(LONGEST);
            self.peers.insert(peer, Pause { until: now + pause, times: times.saturating_add(1) });
        }
        self.trim();
    }

    /// Asks a peer for no range delta for a while: the last one had more deltas than it can merge.
    pub(super) fn cannot_merge(&mut self, peer: PeerId, now: Instant) {
        self.unmerged.insert(peer, now + FIRST);
        while self.unmerged.len() > PEERS_MAX {
            self.unmerged.pop_first();
        }
    }

    /// Whether a peer has lately shown that it cannot merge a range delta.
    pub(super) fn is_unmerged(&self, peer: &PeerId, now: Instant) -> bool {
        self.unmerged.get(peer).is_some_and(|until| *until > now)
    }

    /// Ignores the snapshots of peers that kept their promises but were slower than another way. This pause does not
    /// grow.
    pub(super) fn rest(&mut self, peers: impl IntoIterator<Item = PeerId>, now: Instant) {
        let promised = Pause { until: now + FIRST, times: 0 };
        self.peers.extend(peers.into_iter().map(|peer| (peer, promised)));
        self.trim();
    }

    /// Forgets a peer's broken promises, because it delivered part of a snapshot.
    pub(super) fn kept(&mut self, peer: &PeerId) {
        self.peers.remove(peer);
    }

    /// Whether a stranger's promise of a faster way may end work that makes progress.
    pub(super) fn takes_word(&self, now: Instant) -> bool {
        self.word.is_none_or(|word| word.until <= now)
    }

    /// Records that strangers' promises ended progressing work in vain. The pause before the next time doubles each
    /// time.
    pub(super) fn took_word(&mut self, now: Instant) {
        let times = self.word.map_or(0, |word| word.times);
        let pause = (2 * FIRST).saturating_mul(2u32.saturating_pow(times)).min(LONGEST);
        self.word = Some(Pause { until: now + pause, times: times.saturating_add(1) });
    }

    fn trim(&mut self) {
        while self.peers.len() > PEERS_MAX {
            let soonest = self.peers.iter().min_by_key(|(_, promised)| promised.until);
            let Some(soonest) = soonest.map(|(peer, _)| *peer) else { return };
            self.peers.remove(&soonest);
        }
    }

    /// Forgets pauses that ended long ago, and counts the current ones.
    pub(super) fn expire(&mut self, now: Instant) {
        self.unproved.retain(|_, until| *until > now);
        self.unmerged.retain(|_, until| *until > now);
        self.peers.retain(|_, promised| promised.until + LONGEST > now);
        self.word = self.word.filter(|word| word.until + LONGEST > now);
        self.active =
            self.unproved.len() + self.peers.values().filter(|promised| promised.until > now).count();
    }

    /// Number of ignored snapshots and peers, as of the last [`IgnoredOffers::expire`].
    pub(super) fn len(&self) -> usize {
        self.active
    }

    /// When the next pause ends.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        let peers = self.peers.values().map(|promised| promised.until);
        let apart = self.unproved.values().chain(self.unmerged.values()).copied();
        apart.chain(peers).filter(|until| *until > now).min()
    }

    /// Removes ignored snapshots from a peer's offers, and range deltas that it cannot merge.
    pub(super) fn filter(&self, peer: &mut Candidate, now: Instant) {
        let is_believed = self.peers.get(&peer.peer).is_none_or(|promised| promised.until <= now);
        peer.range_delta_from = peer.range_delta_from.filter(|_| !self.is_unmerged(&peer.peer, now));
        peer.snapshots.retain(|offered| is_believed && !self.unproved.contains_key(&offered.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::rig::{A, B};

    /// Goal: the second broken promise costs twice the time of the first, whichever snapshot it was.
    #[test]
    fn broken_promises_add_up() {
        let mut now = Instant::now();
        let mut ignored = IgnoredOffers::default();
        for pause in [60, 120, 240, 480, 960, 1_920, 3_600, 3_600] {
            ignored.broken([A], now);
            assert_eq!(ignored.next(now), Some(now + Duration::from_secs(pause)));
            now += Duration::from_secs(pause);
            ignored.expire(now);
            assert_eq!(ignored.next(now), None);
        }
        ignored.broken([B], now);
        assert_eq!(ignored.next(now), Some(now + FIRST), "another peer's are its own");
        ignored.expire(now + 2 * LONGEST);
        assert!(ignored.peers.is_empty());
    }
}
