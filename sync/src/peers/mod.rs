//! [`PeerBook`]: what is known of each peer, who may be asked and in what order, and why somebody may not.

mod explore;
mod reasons;
mod saved;
mod score;
mod service;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use slipstream_network::PeerId;
use slipstream_types::{BatchNumber, BlobKind, Certificate, CodecError};
use tokio::time::Instant;

use crate::{
    plan::{
        Candidate, RangeMode,
        part::{PeerMode, PeerModeReason},
    },
    protocol::Summary,
    status::{PeerStatus, Serves},
    work::HintUse,
};
use explore::Explorer;
use reasons::{Cause, Reasons};
pub(crate) use saved::KEY;
use score::Score;
use service::Service;
pub(crate) use service::Ware;

/// Longest pause of a peer that keeps failing.
const BENCH_MAX: Duration = Duration::from_secs(30);
/// First pause; doubles with each failure in a row.
const BENCH_FIRST: Duration = Duration::from_millis(250);
/// Pause of a peer that showed what cannot be judged yet: its next summary comes within about as long.
const UNJUDGED_PAUSE: Duration = Duration::from_secs(1);
/// Reasons kept of banned peers, so that a flood of fresh identities cannot fill memory.
const BANNED_MAX: usize = 256;
/// A peer with less weight than half a fresh request is unknown, or known from long ago: exploration may pick it.
const KNOWN_WEIGHT: f64 = 0.5;

#[derive(Debug)]
struct Peer {
    summary: Option<Summary>,
    summary_at: Option<Instant>,
    /// When it last told of its head, by a summary or by a certificate that it showed.
    heard_at: Option<Instant>,
    /// Batches that came from it, by how they are followed: replayed, applied.
    batches: [u64; 2],
    verified_bytes: u64,
    failures_in_row: u32,
    failures: u64,
    benched_until: Option<Instant>,
    /// Why it was last paused, or proved unreliable, and when.
    last_reason: Option<(String, Instant)>,
    score: Score,
    service: Service,
    /// Its place among equals: no peer can choose it, or know it.
    place: u64,
    /// The points after the last change with a reason.
    points: f64,
    reasons: Reasons,
}

#[derive(Debug)]
struct Banned {
    peer: PeerId,
    until: Instant,
    reason: String,
}

/// All peers of one follower.
#[derive(Debug)]
pub(crate) struct PeerBook {
    peers: BTreeMap<PeerId, Peer>,
    /// Peers that went away: coming back ends no pause and clears no failure. Bounded by [`saved::PEERS_MAX`].
    away: BTreeMap<PeerId, Peer>,
    banned: Vec<Banned>,
    explorer: Explorer,
    /// There is something new to keep.
    changed: bool,
}

impl PeerBook {
    /// An empty book. The seed decides which requests explore, and the order of equals.
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

    /// Takes over the scores of an earlier run. The book stays as it is if the record is damaged.
    pub(crate) fn restore(&mut self, now: Instant, record: &[u8]) -> Result<(), CodecError> {
        for (id, score) in saved::decode(now, record)? {
            let place = self.explorer.place(&id);
            self.away.insert(id, Peer::new(now, score, place));
        }
        Ok(())
    }

    /// The record of the best measured scores, if there is anything new since the last one.
    pub(crate) fn save(&mut self, now: Instant) -> Option<Result<Vec<u8>, CodecError>> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let all = self.peers.iter().chain(&self.away).map(|(id, peer)| (*id, &peer.score));
        let mut all: Vec<_> = all.filter(|(_, score)| score.weight(now) > 0.0).collect();
        all.sort_by(|(_, one), (_, other)| other.weight(now).total_cmp(&one.weight(now)));
        Some(saved::encode(now, all.into_iter().take(saved::PEERS_MAX)))
    }

    /// Keeps the book to the peers that are connected, none of them banned.
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
                let place = self.explorer.place(id);
                let peer = self.away.remove(id).unwrap_or_else(|| Peer::new(now, Score::new(now), place));
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

    /// Peers whose summary is older than `age` and who are not pausing.
    pub(crate) fn stale(&self, now: Instant, age: Duration) -> Vec<PeerId> {
        let stale = |peer: &Peer| peer.summary_at.is_none_or(|at| now.duration_since(at) >= age);
        self.peers.iter().filter(|(_, peer)| peer.asked(now) && stale(peer)).map(|(id, _)| *id).collect()
    }

    /// The last batch that a peer's summary has.
    pub(crate) fn head_of(&self, id: &PeerId) -> Option<BatchNumber> {
        self.peers.get(id)?.head()
    }

    /// Stores a checked summary. It forgives no failure and earns nothing: a summary costs its maker nothing.
    pub(crate) fn summarize(&mut self, id: PeerId, now: Instant, summary: Summary) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.summary = Some(summary);
        (peer.summary_at, peer.heard_at) = (Some(now), Some(now));
        self.compare_head(&id, now);
    }

    /// Notes that a peer showed a certificate of a newer batch.
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

    /// Whether it is a peer, rather than somebody whose word came by others.
    pub(crate) fn knows(&self, id: &PeerId) -> bool {
        self.peers.contains_key(id)
    }

    /// Notes that a peer probably has more than its summary says.
    pub(crate) fn expire(&mut self, id: &PeerId) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.summary_at = None;
        }
    }

    /// Notes that a peer refused what its summary says it keeps: it is asked for nothing before it has told again what that is.
    pub(crate) fn refute(&mut self, id: &PeerId) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        peer.summary_at = None;
        if let Some(summary) = &mut peer.summary {
            (summary.bodies_from, summary.receipts_from, summary.deltas_from) = (None, None, None);
            summary.snapshots = Default::default();
        }
    }

    /// Credit, given only after the proofs were checked.
    pub(crate) fn credit(
        &mut self,
        id: &PeerId,
        ware: Option<Ware>,
        now: Instant,
        bytes: usize,
        took: Duration,
    ) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        if let Some(ware) = ware {
            peer.service.delivered(ware, now);
        }
        peer.verified_bytes += bytes as u64;
        peer.failures_in_row = 0;
        peer.change(now, Cause::Verified, |score| {
            score.verified(now, bytes, took);
            format!("verified answers, the last of {bytes} bytes in {} ms", took.as_millis())
        });
        self.changed = true;
    }

    /// Judges the hints of batches that were replayed: how many of their reads they had named, and how many keys in vain. Wrong values
    /// count as a failure, whether they changed anything or not: they cost an execution.
    pub(crate) fn judge_hints(&mut self, id: &PeerId, now: Instant, hints: &HintUse) {
        let HintUse { named, used, reads, values_wrong } = *hints;
        let Some(peer) = self.peers.get_mut(id).filter(|_| reads > 0) else { return };
        if values_wrong > 0 {
            let reason =
                format!("its hints told {values_wrong} wrong values: their batches were executed twice");
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
                "replayed batches, the last with {used} of {reads} reads hinted, and {} in vain",
                named.saturating_sub(used)
            )
        });
        self.changed = true;
    }

    /// A pause for an answer that was late, lost or refused. Returns how long. While it lasts, what was asked for before it may
    /// fail for the same reason: that makes no pause longer.
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

    /// A pause for a peer that has no time for what it says that it serves. It is no failure; but a peer that has none again and again
    /// rests longer than it wants, and ranks by what it delivers. See [`Service`].
    pub(crate) fn busy(
        &mut self,
        id: &PeerId,
        ware: Option<Ware>,
        now: Instant,
        wanted: Duration,
        reason: String,
    ) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        // What was asked for before its pause is refused for the same reason.
        let pause = match ware.filter(|_| peer.asked(now)) {
            Some(ware) => peer.service.refused(ware, now, wanted),
            None => wanted,
        };
        peer.benched_until = peer.benched_until.max(Some(now + pause));
        peer.last_reason = Some((reason, now));
    }

    /// A pause for a peer that showed what cannot be judged yet. It ends no longer one.
    pub(crate) fn unjudged(&mut self, id: &PeerId, now: Instant, reason: String) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.benched_until = peer.benched_until.max(Some(now + UNJUDGED_PAUSE));
            peer.last_reason = Some((reason, now));
        }
    }

    /// Notes that another peer was asked too, because this one was late, and answered first.
    pub(crate) fn overtaken(&mut self, id: &PeerId, now: Instant) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        peer.failures += 1;
        peer.change(now, Cause::Failed, |score| {
            score.failed(now);
            "late: another peer was asked as well, and answered first".into()
        });
        self.changed = true;
    }

    /// So many batches came from a peer, to be followed in a mode.
    pub(crate) fn sent(&mut self, id: &PeerId, mode: RangeMode, batches: u64) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.batches[usize::from(mode == RangeMode::Delta)] += batches;
        }
    }

    /// The share of requests to a peer that are answered, in time and well, as far as it has shown; half for an unknown one.
    pub(crate) fn reliability(&self, id: &PeerId, now: Instant) -> f64 {
        self.peers.get(id).map_or(0.5, |peer| peer.score.reliability(now) * peer.service.share(now))
    }

    /// Whether a peer delivered what passed its checks, of late.
    pub(crate) fn is_proven(&self, id: &PeerId, now: Instant) -> bool {
        self.peers.get(id).is_some_and(|peer| peer.is_proven(now))
    }

    /// What all but the slowest of its answers take, for a MiB or less; zero for an unknown one.
    pub(crate) fn tail(&self, id: &PeerId) -> Duration {
        let seconds = self.peers.get(id).map_or(0.0, |peer| peer.score.tail_seconds());
        Duration::from_secs_f64(seconds.clamp(0.0, 3_600.0))
    }

    /// The certificate of a batch, if it is the head that some peer showed.
    pub(crate) fn certificate(&self, number: BatchNumber) -> Option<&Certificate> {
        let heads = self.peers.values().filter_map(|peer| peer.summary.as_ref()?.head.as_ref());
        heads.into_iter().find(|certificate| certificate.info.number == number)
    }

    /// The highest certified head that a peer showed, paused ones included.
    pub(crate) fn target(&self) -> BatchNumber {
        self.peers.values().filter_map(Peer::head).max().unwrap_or_default()
    }

    /// Whether some connected peer, paused ones included, has a snapshot.
    pub(crate) fn is_offered(&self, number: BatchNumber) -> bool {
        let summaries = self.peers.values().filter_map(|peer| peer.summary.as_ref());
        summaries.into_iter().any(|summary| summary.snapshots.iter().any(|offered| offered.number == number))
    }

    /// The connected peers, paused ones included, that say they have a snapshot and the deltas after a batch.
    pub(crate) fn serving_range_delta(
        &self,
        base: BatchNumber,
        number: BatchNumber,
    ) -> impl Iterator<Item = PeerId> {
        let serves = move |summary: &Summary| {
            let keeps = summary.deltas_from.is_some_and(|from| from <= base.next());
            keeps && summary.snapshots.iter().any(|offered| offered.number == number)
        };
        let serving = self.peers.iter().filter(move |(_, peer)| peer.summary.as_ref().is_some_and(serves));
        serving.map(|(id, _)| *id)
    }

    /// Whether nobody is connected.
    pub(crate) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// Whether a peer is connected, and not pausing.
    pub(crate) fn may_ask(&self, id: &PeerId, now: Instant) -> bool {
        self.peers.get(id).is_some_and(|peer| peer.asked(now))
    }

    /// When the next pause ends.
    pub(crate) fn next_unpaused(&self, now: Instant) -> Option<Instant> {
        self.peers.values().filter_map(|peer| peer.benched_until).filter(|until| *until > now).min()
    }

    /// When the next ban ends.
    pub(crate) fn next_unbanned(&self) -> Option<Instant> {
        self.banned.iter().map(|ban| ban.until).min()
    }

    /// When the next peer's summary is older than `age` and may be asked for, of those whom nobody `is_asked` yet.
    pub(crate) fn next_stale(
        &self,
        now: Instant,
        age: Duration,
        is_asked: impl Fn(&PeerId) -> bool,
    ) -> Option<Instant> {
        let idle = self.peers.iter().filter(|(id, _)| !is_asked(id)).map(|(_, peer)| peer);
        let due = |peer: &Peer| {
            let old = peer.summary_at.map_or(now, |at| at + age);
            old.max(peer.benched_until.unwrap_or(now))
        };
        idle.map(due).min()
    }

    /// Whether there are peers, and all of them pause.
    pub(crate) fn all_paused(&self, now: Instant) -> bool {
        !self.peers.is_empty() && self.peers.values().all(|peer| !peer.asked(now))
    }

    /// Drops a peer that proved itself wrong, with its score. The transport keeps it out; the book does not take it back before
    /// `until` either, should it still be connected for a moment.
    pub(crate) fn ban(&mut self, id: PeerId, until: Instant, reason: String) {
        self.peers.remove(&id);
        self.away.remove(&id);
        self.changed = true;
        if self.banned.len() == BANNED_MAX {
            self.banned.remove(0);
        }
        self.banned.push(Banned { peer: id, until, reason });
    }

    /// Who may be asked, by score and by how much of what it offers it delivers; equals in an order that no peer can choose for itself.
    pub(crate) fn candidates(&self, now: Instant, history: bool) -> Vec<Candidate> {
        let mut ranked: Vec<_> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.asked(now))
            .filter_map(|(id, peer)| {
                let share = peer.service.share(now);
                let mut candidate = candidate(*id, peer.summary.as_ref()?, history, &peer.score);
                candidate.bytes_per_second *= share;
                candidate.is_proven = peer.is_proven(now);
                Some((peer.score.points(now) * share, peer.place, candidate))
            })
            .collect();
        ranked.sort_by(|(one, a, _), (other, b, _)| other.total_cmp(one).then_with(|| a.cmp(b)));
        ranked.into_iter().map(|(_, _, candidate)| candidate).collect()
    }

    /// Picks whom to send a request, out of candidates in their order: the best, but once in [`explore::ONE_IN`] requests one that is
    /// unknown or was not measured for long. So a better peer is found, and many unknown ones cost only that share. What everything else
    /// waits for (`urgent`) explores nobody.
    pub(crate) fn choose(&mut self, now: Instant, serving: &[Candidate], urgent: bool) -> Option<Candidate> {
        let best = serving.first()?;
        if urgent {
            return Some(best.clone());
        }
        let unknown = |candidate: &&Candidate| {
            self.peers.get(&candidate.peer).is_some_and(|peer| peer.score.weight(now) < KNOWN_WEIGHT)
        };
        let unknown: Vec<_> = serving.iter().skip(1).filter(unknown).collect();
        let draw = self.explorer.turn().filter(|_| !unknown.is_empty());
        Some(draw.map_or(best, |draw| unknown[draw % unknown.len()]).clone())
    }

    /// For operators. `history` is whether this node keeps it, which decides who serves deltas as they are needed; `part` tells what a
    /// peer that may be asked is asked for.
    pub(crate) fn statuses(
        &self,
        now: Instant,
        history: bool,
        part: impl Fn(&Candidate) -> (PeerMode, PeerModeReason),
    ) -> Vec<PeerStatus> {
        let current = self.peers.iter().map(|(id, peer)| peer.status(*id, now, history, &part));
        let banned = self.banned.iter().map(|ban| PeerStatus {
            id: ban.peer,
            head: None,
            heard_ms_ago: None,
            serves: Serves::default(),
            mode: PeerMode::Nothing,
            mode_reason: PeerModeReason::Banned,
            batches_replayed: 0,
            batches_applied: 0,
            verified_bytes: 0,
            bytes_per_second: 0,
            tail_ms: 0,
            score: 0,
            reasons: Vec::new(),
            failures: 0,
            pause_ms: 0,
            banned: true,
            last_reason: Some(ban.reason.clone()),
            last_reason_seconds_ago: None,
        });
        current.chain(banned).collect()
    }
}

impl Peer {
    fn status(
        &self,
        id: PeerId,
        now: Instant,
        history: bool,
        part: impl Fn(&Candidate) -> (PeerMode, PeerModeReason),
    ) -> PeerStatus {
        let offer = self.summary.as_ref().map(|summary| candidate(id, summary, history, &self.score));
        let (mode, mode_reason) = match &offer {
            _ if !self.asked(now) => (PeerMode::Nothing, PeerModeReason::Paused),
            Some(offer) => part(offer),
            None => (PeerMode::Nothing, PeerModeReason::Unheard),
        };
        let passed = |at: Instant| now.saturating_duration_since(at);
        PeerStatus {
            id,
            head: self.head(),
            heard_ms_ago: self.heard_at.map(|at| passed(at).as_millis() as u64),
            serves: offer.map_or(Serves::default(), |offer| Serves {
                replay_from: offer.replay_from,
                delta_from: offer.delta_from,
            }),
            mode,
            mode_reason,
            batches_replayed: self.batches[0],
            batches_applied: self.batches[1],
            verified_bytes: self.verified_bytes,
            bytes_per_second: self.score.bytes_per_second() as u64,
            tail_ms: (self.score.tail_seconds() * 1_000.0) as u64,
            score: self.score.points(now).round() as u32,
            reasons: self.reasons.list(now),
            failures: self.failures,
            pause_ms: self
                .benched_until
                .map_or(0, |until| until.saturating_duration_since(now).as_millis() as u64),
            banned: false,
            last_reason: self.last_reason.as_ref().map(|(reason, _)| reason.clone()),
            last_reason_seconds_ago: self.last_reason.as_ref().map(|(_, at)| passed(*at).as_secs()),
        }
    }

    fn new(now: Instant, score: Score, place: u64) -> Peer {
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
            place,
            reasons: Reasons::default(),
        }
    }

    /// Changes the score and notes by how much, apart from what time alone did since the last change.
    fn change(&mut self, now: Instant, cause: Cause, change: impl FnOnce(&mut Score) -> String) {
        let before = self.score.points(now);
        let faded = before - self.points;
        if faded.abs() >= 1.0 {
            self.reasons.note(now, Cause::Faded, faded, "older measurements count less".into());
        }
        let what = change(&mut self.score);
        self.points = self.score.points(now);
        // What faded by less than a point goes with the change, so that nothing is lost.
        let small = if faded.abs() < 1.0 { faded } else { 0.0 };
        self.reasons.note(now, cause, self.points - before + small, what);
    }

    /// Whether it delivered enough of late for its answers to say something of the next ones.
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

/// What a peer is thought to deliver while nobody knows, bytes per second.
pub(crate) const RATE_UNKNOWN: f64 = 2e6;

fn candidate(peer: PeerId, summary: &Summary, history: bool, score: &Score) -> Candidate {
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
    let head = summary.head.as_ref().map_or(BatchNumber::GENESIS, |certificate| certificate.info.number);
    Candidate {
        peer,
        head,
        replay_from: summary.bodies_from,
        delta_from: delta_from.filter(|_| !history || all_kept),
        range_delta_from: summary.deltas_from,
        // A claim beyond the certified head is none.
        snapshots: summary.snapshots.iter().copied().filter(|offered| offered.number <= head).collect(),
        bytes_per_second: match score.bytes_per_second() {
            rate if rate > 0.0 => rate,
            _ => RATE_UNKNOWN,
        },
        is_proven: false,
    }
}
