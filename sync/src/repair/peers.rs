//! [`Peers`]: which peer is asked next.
//!
//! A peer that gave nothing comes after all reliable ones, and rests longer after each silence. A secret of this run
//! orders equals, so a peer cannot make itself a key that goes first.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use slipstream_network::{NetworkError, PeerId, RefusalKind};
use tokio::time::Instant;

/// Maximum number of questions in flight to one peer.
const OF_PEER_MAX: usize = 2;
/// First rest of a peer that is late or not there; it doubles each time.
const REST: Duration = Duration::from_secs(3);
const REST_MAX: Duration = Duration::from_secs(60);
/// How long a peer rests if it does not keep the requested state, or failed.
const NOT_KEPT_REST: Duration = Duration::from_secs(20);
/// Bounds of the rest that a busy peer asks for.
const BUSY_REST_LEAST: Duration = Duration::from_millis(100);
const BUSY_REST_MAX: Duration = Duration::from_secs(10);
/// Maximum number of peers whose answers stand in one line, and most peers remembered. Of the peers that are gone, resting ones are
/// remembered too, up to four times as many.
const ANSWERS_SHOWN_MAX: usize = 16;
const PEERS_MAX: usize = 1_024;

/// What is known about one peer.
#[derive(Default)]
struct PeerRecord {
    /// Number of questions in flight to it.
    asked: usize,
    /// Of these, the ones that took so long that another peer was asked as well.
    late: usize,
    /// Questions that it did not answer; every answer halves the number.
    failures: u32,
    /// Questions in a row that it left unanswered.
    silences: u32,
    /// Whether it ever opened less than it was asked for.
    is_shallow: bool,
    rests_until: Option<Instant>,
    /// Why it gave nothing the last time.
    said: Option<String>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Peers {
    known: BTreeMap<PeerId, PeerRecord>,
    secret: RandomState,
}

impl Peers {
    /// The connected peer to ask next; those in `but` are asked already.
    pub(super) fn free(&mut self, connected: Vec<PeerId>, but: &[PeerId]) -> Option<PeerId> {
        let now = Instant::now();
        self.forget(&connected, now);
        let free = connected.into_iter().filter(|peer| {
            let is_free = |known: &PeerRecord| known.asked < OF_PEER_MAX && !known.rests(now);
            !but.contains(peer) && self.known.get(peer).is_none_or(is_free)
        });
        free.min_by_key(|peer| {
            let (lost, asked) =
                self.known.get(peer).map_or((0, 0), |it| (it.failures as usize + it.late, it.asked));
            (lost, asked, self.secret.hash_one(peer.0))
        })
    }

    /// Forgets peers that are gone, once they are many. Peers with an open question stay, and, up to a bound, peers
    /// that rest.
    fn forget(&mut self, connected: &[PeerId], now: Instant) {
        if self.known.len() > PEERS_MAX {
            let many = self.known.len() > 4 * PEERS_MAX;
            self.known.retain(|peer, known| {
                known.asked > 0 || connected.contains(peer) || (known.rests(now) && !many)
            });
        }
    }

    /// Counts a question to a peer.
    pub(super) fn ask(&mut self, peer: PeerId) {
        self.known.entry(peer).or_default().asked += 1;
    }

    /// Counts a question as late: another peer is asked too.
    pub(super) fn is_late(&mut self, peer: PeerId) {
        self.known.entry(peer).or_default().late += 1;
    }

    /// Counts the end of a question to a peer.
    pub(super) fn end(&mut self, peer: PeerId, was_late: bool) {
        let known = self.known.entry(peer).or_default();
        known.asked = known.asked.saturating_sub(1);
        known.late = known.late.saturating_sub(usize::from(was_late));
    }

    /// Records a peer's answer. Returns whether the answer extends the repair's patience: not if the peer ever opened
    /// less than it was asked for.
    pub(super) fn gave(&mut self, peer: PeerId) -> bool {
        let known = self.known.entry(peer).or_default();
        (known.failures, known.silences, known.said) = (known.failures / 2, 0, None);
        !known.is_shallow
    }

    /// Records that a peer gave nothing, and lets it rest.
    pub(super) fn refused(&mut self, peer: PeerId, error: &NetworkError) {
        let known = self.known.entry(peer).or_default();
        let rest = match error.refusal().map(|refusal| refusal.kind()) {
            Some(RefusalKind::Busy { retry_after_ms }) => {
                Duration::from_millis(retry_after_ms.into()).clamp(BUSY_REST_LEAST, BUSY_REST_MAX)
            }
            Some(RefusalKind::NotKept | RefusalKind::Malformed | RefusalKind::Failed) => NOT_KEPT_REST,
            None => known.silent(),
        };
        self.fail(peer, error.to_string(), rest);
    }

    /// Records that a peer opened less than it was asked for, which is no lie, but takes others' time.
    pub(super) fn shallow(&mut self, peer: PeerId) {
        let known = self.known.entry(peer).or_default();
        known.is_shallow = true;
        let rest = known.silent();
        self.fail(peer, "it opened fewer levels than requested".into(), rest);
    }

    /// Records that a peer gave no answer. It rests for a while.
    pub(super) fn fail(&mut self, peer: PeerId, said: String, rest: Duration) {
        let known = self.known.entry(peer).or_default();
        known.failures = known.failures.saturating_add(1);
        // A second question that ends meanwhile must not shorten the rest.
        known.rests_until = known.rests_until.max(Some(Instant::now() + rest));
        known.said = Some(said);
    }

    /// What each peer last said; `None` if no peer refused.
    pub(super) fn answers(&self) -> Option<String> {
        let said = |(peer, known): (&PeerId, &PeerRecord)| {
            known.said.as_ref().map(|said| format!("{}: {said}", peer.short()))
        };
        let told: Vec<String> = self.known.iter().filter_map(said).take(ANSWERS_SHOWN_MAX).collect();
        (!told.is_empty()).then(|| told.join("; "))
    }
}

impl PeerRecord {
    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }

    /// Counts a silence. Returns how long the peer rests for it.
    fn silent(&mut self) -> Duration {
        self.silences = self.silences.saturating_add(1);
        REST.saturating_mul(1 << (self.silences - 1).min(5)).min(REST_MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use slipstream_types::PublicKey;

    use super::*;

    fn peer(id: u16) -> PeerId {
        let mut key = [0; 32];
        key[..2].copy_from_slice(&id.to_be_bytes());
        PublicKey(key)
    }

    fn fails(peers: &mut Peers, peer: PeerId) {
        peers.ask(peer);
        peers.end(peer, false);
        let rest = peers.known.get_mut(&peer).unwrap().silent();
        peers.fail(peer, "silent".into(), rest);
    }

    /// Goal: no key always goes first, so a peer that makes itself a low key is asked no more often than any other.
    #[tokio::test(start_paused = true)]
    async fn equals_are_drawn() {
        let connected: Vec<_> = (0..64).map(peer).collect();
        let first = |_| Peers::default().free(connected.clone(), &[]).unwrap();
        assert!((0..50).map(first).collect::<BTreeSet<_>>().len() > 10);
    }

    /// Goal: two silent peers do not hold up the third one's question, and are asked more and more seldom.
    #[tokio::test(start_paused = true)]
    async fn who_is_silent_comes_last_and_rests_longer_each_time() {
        let mut peers = Peers::default();
        let began = Instant::now();
        let mut asked = 0;
        while began.elapsed() < Duration::from_secs(600) {
            while let Some(silent) = peers.free(vec![peer(1), peer(2)], &[]) {
                fails(&mut peers, silent);
                asked += 1;
            }
            tokio::time::advance(Duration::from_secs(1)).await;
            assert_eq!(peers.free(vec![peer(1), peer(2), peer(3)], &[]), Some(peer(3)));
        }
        assert!(asked < 2 * 15, "asked {asked} times");
        peers.is_late(peer(3));
        assert_eq!(peers.free(vec![peer(3), peer(4)], &[]), Some(peer(4)), "who is late comes after others");
    }

    /// Goal: thousands of keys that come and go neither fill the memory nor break the count of questions in flight.
    #[tokio::test(start_paused = true)]
    async fn who_is_gone_is_forgotten_but_not_its_question() {
        let mut peers = Peers::default();
        peers.ask(peer(0));
        for id in 1..6_000 {
            fails(&mut peers, peer(id));
            peers.free(vec![peer(id)], &[]);
        }
        assert!(peers.known.len() <= 4 * PEERS_MAX + 1);
        assert_eq!(peers.known[&peer(0)].asked, 1, "it is still under way");
        peers.end(peer(0), false);
        peers.end(peer(0), true);
        assert_eq!(peers.known[&peer(0)].asked, 0);
    }

    /// Goal: a peer that says it is busy for no time at all, or for weeks, is believed within bounds.
    #[tokio::test(start_paused = true)]
    async fn a_busy_peer_rests_within_bounds() {
        for busy in [Duration::ZERO, Duration::from_secs(1 << 20)] {
            let mut peers = Peers::default();
            let refusal = slipstream_network::Refusal::busy(busy, "others");
            peers.refused(peer(1), &NetworkError::Refused { peer: peer(1), refusal });
            assert_eq!(peers.free(vec![peer(1)], &[]), None);
            tokio::time::advance(BUSY_REST_MAX).await;
            assert_eq!(peers.free(vec![peer(1)], &[]), Some(peer(1)));
        }
    }
}
