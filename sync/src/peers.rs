//! [`PeerBook`]: what is known of each peer, who may be asked, and why somebody may not.

use std::{collections::BTreeMap, time::Duration};

use slipstream_network::PeerId;
use slipstream_types::{BatchNumber, BlobKind};
use tokio::time::Instant;

use crate::{plan::Candidate, protocol::Summary, status::PeerStatus};

/// Longest pause of a peer that keeps failing.
const BENCH_MAX: Duration = Duration::from_secs(30);
/// First pause; doubles with each failure in a row.
const BENCH_FIRST: Duration = Duration::from_millis(250);
/// Reasons kept of banned peers, so that a flood of fresh identities cannot fill memory.
const BANNED_MAX: usize = 256;

#[derive(Debug)]
struct Peer {
    summary: Option<Summary>,
    summary_at: Option<Instant>,
    verified_bytes: u64,
    busy: Duration,
    failures_in_row: u32,
    failures: u64,
    benched_until: Option<Instant>,
    last_reason: Option<String>,
}

/// All peers of one follower.
#[derive(Debug, Default)]
pub(crate) struct PeerBook {
    peers: BTreeMap<PeerId, Peer>,
    banned: Vec<(PeerId, String)>,
}

impl PeerBook {
    /// Keeps the book to the peers that are connected.
    pub(crate) fn retain(&mut self, connected: &[PeerId]) {
        self.peers.retain(|id, _| connected.contains(id));
        for id in connected {
            self.peers.entry(*id).or_insert_with(|| Peer {
                summary: None,
                summary_at: None,
                verified_bytes: 0,
                busy: Duration::ZERO,
                failures_in_row: 0,
                failures: 0,
                benched_until: None,
                last_reason: None,
            });
        }
    }

    /// Peers whose summary is older than `age` and who are not pausing.
    pub(crate) fn stale(&self, now: Instant, age: Duration) -> Vec<PeerId> {
        let stale = |peer: &Peer| peer.summary_at.is_none_or(|at| now.duration_since(at) >= age);
        self.peers.iter().filter(|(_, peer)| peer.asked(now) && stale(peer)).map(|(id, _)| *id).collect()
    }

    /// Stores a checked summary. It forgives no failure: a summary costs its maker nothing.
    pub(crate) fn summarize(&mut self, id: PeerId, now: Instant, summary: Summary) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.summary = Some(summary);
            peer.summary_at = Some(now);
        }
    }

    /// Notes that a peer showed a certificate of a newer batch.
    pub(crate) fn advance(&mut self, id: &PeerId, certificate: &slipstream_types::Certificate) {
        if let Some(summary) = self.peers.get_mut(id).and_then(|peer| peer.summary.as_mut())
            && summary.head.as_ref().is_none_or(|head| head.info.number < certificate.info.number)
        {
            summary.head = Some(certificate.clone());
        }
    }

    /// Notes that a peer probably has more than its summary says.
    pub(crate) fn expire(&mut self, id: &PeerId) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.summary_at = None;
        }
    }

    /// Credit, given only after the proofs were checked.
    pub(crate) fn credit(&mut self, id: &PeerId, bytes: usize, took: Duration) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.verified_bytes += bytes as u64;
            peer.busy += took;
            peer.failures_in_row = 0;
        }
    }

    /// A pause for an answer that was late, lost or refused. Returns how long.
    pub(crate) fn bench(&mut self, id: &PeerId, now: Instant, reason: String) -> Duration {
        let Some(peer) = self.peers.get_mut(id) else { return Duration::ZERO };
        let pause = (BENCH_FIRST * 2u32.saturating_pow(peer.failures_in_row.min(8))).min(BENCH_MAX);
        peer.failures_in_row += 1;
        peer.failures += 1;
        peer.benched_until = Some(now + pause);
        peer.last_reason = Some(reason);
        pause
    }

    /// Drops a peer that proved itself wrong. The transport keeps it out.
    pub(crate) fn ban(&mut self, id: PeerId, reason: String) {
        self.peers.remove(&id);
        if self.banned.len() == BANNED_MAX {
            self.banned.remove(0);
        }
        self.banned.push((id, reason));
    }

    /// Who may be asked, fastest first; those not yet measured come before, or nobody new would ever be tried.
    pub(crate) fn candidates(&self, now: Instant, history: bool) -> Vec<Candidate> {
        let mut ranked: Vec<_> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.asked(now))
            .filter_map(|(id, peer)| Some((peer.rank(), candidate(*id, peer.summary.as_ref()?, history))))
            .collect();
        ranked.sort_by_key(|(rank, candidate)| (*rank, candidate.peer));
        ranked.into_iter().map(|(_, candidate)| candidate).collect()
    }

    /// For operators.
    pub(crate) fn statuses(&self, now: Instant) -> Vec<PeerStatus> {
        let current = self.peers.iter().map(|(id, peer)| PeerStatus {
            id: *id,
            head: peer.head(),
            verified_bytes: peer.verified_bytes,
            bytes_per_second: peer.rate(),
            failures: peer.failures,
            pause_ms: peer
                .benched_until
                .map_or(0, |until| until.saturating_duration_since(now).as_millis() as u64),
            banned: false,
            last_reason: peer.last_reason.clone(),
        });
        let banned = self.banned.iter().map(|(id, reason)| PeerStatus {
            id: *id,
            head: None,
            verified_bytes: 0,
            bytes_per_second: 0,
            failures: 0,
            pause_ms: 0,
            banned: true,
            last_reason: Some(reason.clone()),
        });
        current.chain(banned).collect()
    }
}

impl Peer {
    fn asked(&self, now: Instant) -> bool {
        self.benched_until.is_none_or(|until| until <= now)
    }

    fn head(&self) -> Option<BatchNumber> {
        self.summary.as_ref()?.head.as_ref().map(|certificate| certificate.info.number)
    }

    fn rate(&self) -> u64 {
        if self.busy.is_zero() { 0 } else { (self.verified_bytes as f64 / self.busy.as_secs_f64()) as u64 }
    }

    /// Smaller is better. Powers of two, so that noise does not shuffle peers of about the same speed.
    fn rank(&self) -> (u32, u32) {
        let slowness = if self.busy.is_zero() { 0 } else { 64 - self.rate().checked_ilog2().unwrap_or(0) };
        (self.failures_in_row, slowness)
    }
}

fn candidate(peer: PeerId, summary: &Summary, history: bool) -> Candidate {
    let from = |kind: BlobKind| match kind {
        BlobKind::Receipts => summary.receipts_from,
        BlobKind::Delta => summary.deltas_from,
        _ => summary.bodies_from,
    };
    let delta_from = match history {
        true => [BlobKind::Body, BlobKind::Receipts, BlobKind::Delta].map(from).into_iter().max().flatten(),
        false => from(BlobKind::Delta),
    };
    let all_kept =
        [summary.bodies_from, summary.receipts_from, summary.deltas_from].iter().all(Option::is_some);
    let head = summary.head.as_ref().map_or(BatchNumber(0), |certificate| certificate.info.number);
    Candidate {
        peer,
        head,
        replay_from: summary.bodies_from,
        delta_from: delta_from.filter(|_| !history || all_kept),
        // A claim beyond the certified head is none.
        snapshots: summary.snapshots.iter().copied().filter(|number| *number <= head).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slipstream_types::{Digest, PublicKey, bounded::BoundedVec};

    fn summary() -> Summary {
        let from = Some(BatchNumber(1));
        Summary {
            genesis: Digest::ZERO,
            head: None,
            bodies_from: from,
            receipts_from: Some(BatchNumber(5)),
            deltas_from: from,
            snapshots: BoundedVec::default(),
        }
    }

    #[test]
    fn failures_pause_longer_and_success_forgives() {
        let id = PublicKey([1; 32]);
        let mut book = PeerBook::default();
        book.retain(&[id]);
        let now = Instant::now();
        let asked = |book: &PeerBook, now| !book.stale(now, Duration::ZERO).is_empty();
        let mut last = Duration::ZERO;
        for _ in 0..20 {
            let pause = book.bench(&id, now, "late".into());
            assert!(pause >= last && pause <= BENCH_MAX);
            assert!(!asked(&book, now + pause / 2));
            last = pause;
        }
        assert_eq!(last, BENCH_MAX);
        assert!(asked(&book, now + BENCH_MAX));
        book.credit(&id, 10, Duration::from_secs(1));
        assert_eq!(book.bench(&id, Instant::now(), "late".into()), BENCH_FIRST);
    }

    #[test]
    fn fast_peers_come_first_and_unknown_ones_before() {
        let ids: Vec<_> = (1..=3).map(|i| PublicKey([i; 32])).collect();
        let mut book = PeerBook::default();
        book.retain(&ids);
        for id in &ids {
            book.summarize(*id, Instant::now(), summary());
        }
        book.credit(&ids[0], 1_000, Duration::from_secs(1));
        book.credit(&ids[1], 1_000_000, Duration::from_secs(1));
        let order: Vec<_> = book.candidates(Instant::now(), false).into_iter().map(|c| c.peer).collect();
        assert_eq!(order, [ids[2], ids[1], ids[0]]);
    }

    #[test]
    fn history_needs_all_parts() {
        let id = PublicKey([1; 32]);
        let from = |history, summary| candidate(id, &summary, history).delta_from.map(|n| n.0);
        assert_eq!(from(false, summary()), Some(1));
        assert_eq!(from(true, summary()), Some(5));
        assert_eq!(from(true, Summary { receipts_from: None, ..summary() }), None);
        assert_eq!(from(false, Summary { receipts_from: None, ..summary() }), Some(1));
    }

    #[test]
    fn bans_are_remembered_by_name_and_bounded() {
        let mut book = PeerBook::default();
        for i in 0..1_000u32 {
            let mut id = [0; 32];
            id[..4].copy_from_slice(&i.to_le_bytes());
            book.retain(&[PublicKey(id)]);
            book.ban(PublicKey(id), "lied".into());
        }
        assert_eq!(book.statuses(Instant::now()).len(), BANNED_MAX);
        assert!(book.statuses(Instant::now()).iter().all(|peer| peer.banned));
    }
}
