//! [`PeerBook`]: what the node knows about each peer, and how a peer's conduct changes that. [`view`] answers questions
//! about the book.

mod explore;
mod reasons;
mod saved;
mod score;
mod service;
#[cfg(test)]
mod tests;
mod view;

use std::{collections::BTreeMap, time::Duration};

use slipstream_network::PeerId;
use slipstream_types::{BatchNumber, Certificate, CodecError};
use tokio::time::Instant;

use crate::{plan::RangeMode, protocol::Summary, work::HintUse};
use explore::Explorer;
use reasons::{Cause, Reasons};
pub(crate) use saved::KEY;
use score::Score;
use service::Service;
pub(crate) use service::ServiceKind;
pub(crate) use view::Holdings;

/// Longest pause of a peer that keeps failing.
const BENCH_MAX: Duration = Duration::from_secs(30);
/// First pause; it doubles with each failure in a row.
const BENCH_FIRST: Duration = Duration::from_millis(250);
/// Pause of a peer whose answer cannot be judged yet. Its next summary comes within about as long.
const UNJUDGED_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of bans remembered, so that a flood of fresh identities cannot fill memory.
const BANNED_MAX: usize = 256;
/// A peer with less weight than half a fresh request is unknown, or was measured long ago: exploration may pick it.
const KNOWN_WEIGHT: f64 = 0.5;

#[derive(Debug)]
struct Peer {
    summary: Option<Summary>,
    summary_at: Option<Instant>,
    /// When it last reported its head, by a summary or by a certificate that it showed.
    heard_at: Option<Instant>,
    /// Batches that it sent, by how they are followed: replayed, applied.
    batches: [u64; 2],
    verified_bytes: u64,
    failures_in_row: u32,
    failures: u64,
    benched_until: Option<Instant>,
    /// Why it was last paused, or proved unreliable, and when.
    last_reason: Option<(String, Instant)>,
    score: Score,
    service: Service,
    /// Its rank among equals: no peer can choose it, or know it.
    rank: u64,
    /// The points after the last change that got a reason.
    points: f64,
    reasons: Reasons,
}

#[derive(Debug)]
struct Ban {
    peer: PeerId,
    until: Instant,
    reason: String,
}

/// All peers of one follower.
#[derive(Debug)]
pub(crate) struct PeerBook {
    peers: BTreeMap<PeerId, Peer>,
    /// Peers that disconnected: they keep pauses and failures if they come back. Bounded by [`saved::PEERS_MAX`].
    away: BTreeMap<PeerId, Peer>,
    banned: Vec<Ban>,
    explorer: Explorer,
    /// Whether the scores changed since the last save.
    changed: bool,
}

impl PeerBook {
    /// An empty book. The seed decides which requests explore, and how equals rank.
    pub(crate) fn new(seed: u64) -> PeerBook {
        let explorer = Explorer::new(seed);
        PeerBook {
            peers: BTreeMap::new(),
            away: BTreeMap::new(),
            banned: Vec::new(),
            explorer,
            changed: false,
        }
    }

    /// Loads the scores of an earlier run. A damaged record leaves the book as it is.
    pub(crate) fn restore(&mut self, now: Instant, record: &[u8]) -> Result<(), CodecError> {
        for (id, score) in saved::decode(now, record)? {
            let rank = self.explorer.rank(&id);
            self.away.insert(id, Peer::new(now, score, rank));
        }
        Ok(())
    }

    /// Returns the record of the best measured scores, if it changed since the last call.
    pub(crate) fn save(&mut self, now: Instant) -> Option<Result<Vec<u8>, CodecError>> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let all = self.peers.iter().chain(&self.away).map(|(id, peer)| (*id, &peer.score));
        let mut all: Vec<_> = all.filter(|(_, score)| score.weight(now) > 0.0).collect();
        all.sort_by(|(_, one), (_, other)| other.weight(now).total_cmp(&one.weight(now)));
        Some(saved::encode(now, all.into_iter().take(saved::PEERS_MAX)))
    }

    /// Sets the peers of the book to the connected ones, without those that are banned.
    pub(crate) fn retain(&mut self, now: Instant, connected: &[PeerId]) {
        self.banned.retain(|ban| now < ban.until);
        let gone: Vec<_> = self.peers.keys().filter(|id| !connected.contains(id)).copied().collect();
        for id in gone {
            if let Some(mut peer) = self.peers.remove(&id)
                && (peer.score.weight(now) > 0.0 || !peer.asked(now) || peer.service.share(now) < 1.0)
            {
                (peer.summary, peer.summary_at, peer.heard_at) = (None, None, None);
                self.away.insert(id, peer);
            }
        }
        for id in connected {
            if !self.peers.contains_key(id) && self.banned.iter().all(|ban| ban.peer != *id) {
                let rank = self.explorer.rank(id);
                let peer = self.away.remove(id).unwrap_or_else(|| Peer::new(now, Score::new(now), rank));
                self.peers.insert(*id, peer);
            }
        }
        while self.away.len() > saved::PEERS_MAX {
            let weight = |peer: &Peer| peer.score.weight(now);
            let least = self.away.iter().min_by(|(_, one), (_, other)| weight(one).total_cmp(&weight(other)));
            let Some(least) = least.map(|(id, _)| *id) else { break };
            self.away.remove(&least);
        }
    }

    /// Stores a checked summary. Summaries are free to make, so they change no score.
    pub(crate) fn summarize(&mut self, id: PeerId, now: Instant, summary: Summary) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.summary = Some(summary);
        (peer.summary_at, peer.heard_at) = (Some(now), Some(now));
        self.compare_head(&id, now);
    }

    /// Records that a peer showed a certificate of a newer batch.
    pub(crate) fn advance(&mut self, id: &PeerId, now: Instant, certificate: &Certificate) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        let Some(summary) = &mut peer.summary else { return };
        peer.heard_at = Some(now);
        if summary.head.as_ref().is_none_or(|head| head.info.number < certificate.info.number) {
            summary.head = Some(certificate.clone());
            self.compare_head(id, now);
        }
    }

    /// Judges how far a peer's head is behind the best certified one.
    fn compare_head(&mut self, id: &PeerId, now: Instant) {
        let best = self.peers.values().filter_map(Peer::head).max().unwrap_or_default();
        let Some(peer) = self.peers.get_mut(id) else { return };
        let head = peer.head().unwrap_or_default();
        let behind = best.since(head);
        let points = peer.score.points(now);
        let mut judged = peer.score.clone();
        judged.head_behind(behind);
        if (judged.points(now) - points).abs() < 1e-9 {
            peer.score = judged;
            return;
        }
        peer.change(now, Cause::Head, |score| {
            *score = judged;
            format!("its head {head} is {behind} batches behind the best certified head")
        });
    }

    /// Marks a peer's summary as outdated: the peer probably has more than its summary says.
    pub(crate) fn expire(&mut self, id: &PeerId) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.summary_at = None;
        }
    }

    /// Records that a peer refused what its summary says it keeps. It is asked for nothing before its next summary.
    pub(crate) fn refute(&mut self, id: &PeerId) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        peer.summary_at = None;
        if let Some(summary) = &mut peer.summary {
            (summary.bodies_from, summary.receipts_from, summary.deltas_from) = (None, None, None);
            summary.snapshots = Default::default();
        }
    }

    /// Credits a peer. Call only after the proofs were checked.
    pub(crate) fn credit(
        &mut self,
        id: &PeerId,
        kind: Option<ServiceKind>,
        now: Instant,
        bytes: usize,
        took: Duration,
    ) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        if let Some(kind) = kind {
            peer.service.delivered(kind, now);
        }
        peer.verified_bytes += bytes as u64;
        peer.failures_in_row = 0;
        peer.change(now, Cause::Verified, |score| {
            score.verified(now, bytes, took);
            format!("verified answers, the last of {bytes} bytes in {} ms", took.as_millis())
        });
        self.changed = true;
    }

    /// Judges the hints of replayed batches: how many of their reads they named, and how many keys they named in vain.
    /// Wrong values count as a failure, even if they changed nothing: they cost an execution.
    pub(crate) fn judge_hints(&mut self, id: &PeerId, now: Instant, hints: &HintUse) {
        let HintUse { named, used, reads, values_wrong } = *hints;
        let Some(peer) = self.peers.get_mut(id).filter(|_| reads > 0) else { return };
        if values_wrong > 0 {
            let reason =
                format!("its hints had {values_wrong} wrong values: their batches were executed twice");
            peer.failures += 1;
            peer.last_reason = Some((reason.clone(), now));
            peer.change(now, Cause::Failed, |score| {
                score.failed(now);
                reason
            });
        }
        peer.change(now, Cause::Hints, |score| {
            score.hints(now, hints);
            format!(
                "replayed batches; in the last, its hints named {used} of {reads} reads, and {} keys in vain",
                named.saturating_sub(used)
            )
        });
        self.changed = true;
    }

    /// Pauses a peer for an answer that was late, lost or refused. Returns the length of the pause. Requests sent
    /// earlier may fail for the same reason during the pause; such a failure does not extend it.
    pub(crate) fn bench(&mut self, id: &PeerId, now: Instant, reason: String) -> Duration {
        let Some(peer) = self.peers.get_mut(id) else { return Duration::ZERO };
        let paused = peer.benched_until.filter(|until| *until > now && peer.failures_in_row > 0);
        let until = paused.unwrap_or_else(|| {
            let pause = BENCH_FIRST * 2u32.saturating_pow(peer.failures_in_row.min(8));
            peer.failures_in_row += 1;
            now + pause.min(BENCH_MAX)
        });
        peer.failures += 1;
        peer.benched_until = Some(until);
        peer.last_reason = Some((reason.clone(), now));
        peer.change(now, Cause::Failed, |score| {
            score.failed(now);
            reason
        });
        self.changed = true;
        until.saturating_duration_since(now)
    }

    /// Pauses a peer that is too busy for what it offers. Being busy is no failure. A peer that is busy again and again
    /// rests longer than it asks for, and ranks by what it delivers. See [`Service`].
    pub(crate) fn busy(
        &mut self,
        id: &PeerId,
        kind: Option<ServiceKind>,
        now: Instant,
        wanted: Duration,
        reason: String,
    ) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        // Requests that were sent before its pause are refused for the same reason.
        let pause = match kind.filter(|_| peer.asked(now)) {
            Some(kind) => peer.service.refused(kind, now, wanted),
            None => wanted,
        };
        peer.benched_until = peer.benched_until.max(Some(now + pause));
        peer.last_reason = Some((reason, now));
    }

    /// Pauses a peer whose answer cannot be judged yet. This pause never shortens a longer one.
    pub(crate) fn unjudged(&mut self, id: &PeerId, now: Instant, reason: String) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.benched_until = peer.benched_until.max(Some(now + UNJUDGED_PAUSE));
            peer.last_reason = Some((reason, now));
        }
    }

    /// Records that this peer was late, and that another one was asked too and answered first.
    pub(crate) fn overtaken(&mut self, id: &PeerId, now: Instant) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        peer.failures += 1;
        peer.change(now, Cause::Failed, |score| {
            score.failed(now);
            "late: another peer was also asked, and answered first".into()
        });
        self.changed = true;
    }

    /// Counts batches that a peer sent, to be followed in a mode.
    pub(crate) fn sent(&mut self, id: &PeerId, mode: RangeMode, batches: u64) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.batches[usize::from(mode == RangeMode::Delta)] += batches;
        }
    }

    /// Drops a peer that proved itself wrong, with its score. The transport keeps it out. Until `until`, the book does
    /// not take it back either, should it still be connected for a moment.
    pub(crate) fn ban(&mut self, id: PeerId, until: Instant, reason: String) {
        self.peers.remove(&id);
        self.away.remove(&id);
        self.changed = true;
        if self.banned.len() == BANNED_MAX {
            self.banned.remove(0);
        }
        self.banned.push(Ban { peer: id, until, reason });
    }

    /// Lifts the ban of a peer that the operator trusts again. It comes back as an unknown peer.
    pub(crate) fn unban(&mut self, id: &PeerId) {
        self.banned.retain(|ban| ban.peer != *id);
    }
}

impl Peer {
    fn new(now: Instant, score: Score, rank: u64) -> Peer {
        Peer {
            summary: None,
            summary_at: None,
            heard_at: None,
            batches: [0; 2],
            verified_bytes: 0,
            failures_in_row: 0,
            failures: 0,
            benched_until: None,
            last_reason: None,
            points: score.points(now),
            score,
            service: Service::new(now),
            rank,
            reasons: Reasons::default(),
        }
    }

    /// Changes the score and records the change in points. A fading of a point or more since the last change is
    /// recorded apart.
    fn change(&mut self, now: Instant, cause: Cause, change: impl FnOnce(&mut Score) -> String) {
        let before = self.score.points(now);
        let faded = before - self.points;
        if faded.abs() >= 1.0 {
            self.reasons.note(now, Cause::Faded, faded, "older measurements count less".into());
        }
        let what = change(&mut self.score);
        self.points = self.score.points(now);
        // A fading of less than a point is added to the change, so that no point is lost.
        let small = if faded.abs() < 1.0 { faded } else { 0.0 };
        self.reasons.note(now, cause, self.points - before + small, what);
    }

    /// Whether it delivered enough lately for its answers to say something about the next ones.
    fn is_proven(&self, now: Instant) -> bool {
        self.verified_bytes > 0 && self.score.weight(now) >= KNOWN_WEIGHT
    }

    fn asked(&self, now: Instant) -> bool {
        self.benched_until.is_none_or(|until| until <= now)
    }

    fn head(&self) -> Option<BatchNumber> {
        self.summary.as_ref()?.head.as_ref().map(|certificate| certificate.info.number)
    }
}
