//! Answers questions about the book: which peers may be asked and in what order, what they have shown, and when time alone
//! changes that.

use std::time::Duration;

use slipstream_network::PeerId;
use slipstream_types::{BatchNumber, BlobKind, Certificate};
use tokio::time::Instant;

use super::{KNOWN_WEIGHT, Peer, PeerBook, score::Score};
use crate::{
    plan::{
        Candidate,
        part::{PeerMode, PeerModeReason},
    },
    protocol::Summary,
    status::{PeerStatus, Serves},
};

/// What a peer that may be asked claims to keep, up to its head.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Holdings {
    pub(crate) peer: PeerId,
    /// Its certified head.
    pub(crate) head: BatchNumber,
    /// The first bodies, receipts and deltas that it keeps; `None` for a part that it does not keep.
    pub(crate) from: [Option<BatchNumber>; 3],
    /// The first batch whose resulting state it knows.
    pub(crate) states_from: Option<BatchNumber>,
}

impl PeerBook {
    /// The holdings of each peer that may be asked.
    pub(crate) fn holdings(&self, now: Instant) -> Vec<Holdings> {
        let asked = self.peers.iter().filter(|(_, peer)| peer.asked(now));
        let holdings = asked.filter_map(|(id, peer)| {
            let Summary { bodies_from, receipts_from, deltas_from, states_from, .. } =
                *peer.summary.as_ref()?;
            let from = [bodies_from, receipts_from, deltas_from];
            Some(Holdings { peer: *id, head: peer.head()?, from, states_from })
        });
        holdings.collect()
    }

    /// Peers that are not paused and whose summary is at least `age` old.
    pub(crate) fn stale(&self, now: Instant, age: Duration) -> Vec<PeerId> {
        let stale = |peer: &Peer| peer.summary_at.is_none_or(|at| now.duration_since(at) >= age);
        self.peers.iter().filter(|(_, peer)| peer.asked(now) && stale(peer)).map(|(id, _)| *id).collect()
    }

    /// The head in a peer's summary.
    pub(crate) fn head_of(&self, id: &PeerId) -> Option<BatchNumber> {
        self.peers.get(id)?.head()
    }

    /// Whether this node has the peer in its book, rather than only its word through others.
    pub(crate) fn knows(&self, id: &PeerId) -> bool {
        self.peers.contains_key(id)
    }

    /// The share of requests that a peer answers well and in time, by what it has shown; half for an unknown one.
    pub(crate) fn reliability(&self, id: &PeerId, now: Instant) -> f64 {
        self.peers.get(id).map_or(0.5, |peer| peer.score.reliability(now) * peer.service.share(now))
    }

    /// Whether a peer lately delivered answers that passed their checks.
    pub(crate) fn is_proven(&self, id: &PeerId, now: Instant) -> bool {
        self.peers.get(id).is_some_and(|peer| peer.is_proven(now))
    }

    /// The time in which all but the slowest of its answers arrive, for a MiB or less; zero for an unknown peer.
    pub(crate) fn tail(&self, id: &PeerId) -> Duration {
        let seconds = self.peers.get(id).map_or(0.0, |peer| peer.score.tail_seconds());
        Duration::from_secs_f64(seconds.clamp(0.0, 3_600.0))
    }

    /// The certificate of a batch, if a peer showed it as its head.
    pub(crate) fn certificate(&self, number: BatchNumber) -> Option<&Certificate> {
        let heads = self.peers.values().filter_map(|peer| peer.summary.as_ref()?.head.as_ref());
        heads.into_iter().find(|certificate| certificate.info.number == number)
    }

    /// The highest certified head that a peer showed, paused ones included.
    pub(crate) fn target(&self) -> BatchNumber {
        self.peers.values().filter_map(Peer::head).max().unwrap_or_default()
    }

    /// Whether a connected peer, paused ones included, has a snapshot.
    pub(crate) fn is_offered(&self, number: BatchNumber) -> bool {
        let summaries = self.peers.values().filter_map(|peer| peer.summary.as_ref());
        summaries.into_iter().any(|summary| summary.snapshots.iter().any(|offered| offered.number == number))
    }

    /// The connected peers, paused ones included, that claim a snapshot and the deltas after a batch.
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

    /// Whether no peer is connected.
    pub(crate) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// Whether a peer is connected and not paused.
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

    /// When the next peer's summary is `age` old and the peer may be asked. Leaves out peers that `is_asked` holds for.
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

    /// Whether there are peers and all of them are paused.
    pub(crate) fn all_paused(&self, now: Instant) -> bool {
        !self.peers.is_empty() && self.peers.values().all(|peer| !peer.asked(now))
    }

    /// The peers that may be asked, ranked by score and by the share of their offers that they deliver. No peer can
    /// choose its rank among equals.
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
                Some((peer.score.points(now) * share, peer.rank, candidate))
            })
            .collect();
        ranked.sort_by(|(one, a, _), (other, b, _)| other.total_cmp(one).then_with(|| a.cmp(b)));
        ranked.into_iter().map(|(_, _, candidate)| candidate).collect()
    }

    /// Picks the peer for a request among ranked candidates: the best one, but in one of [`super::explore::ONE_IN`]
    /// requests a peer that is unknown or was last measured long ago. So a better peer is found, and many unknown peers
    /// cost only that share of requests. An `urgent` request, which everything else waits for, explores no peer.
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

    /// The peers' status for operators. `history` says whether this node keeps history, which decides the peers that
    /// serve suitable deltas. `part` returns the mode of a peer that may be asked, and the reason for that mode.
    pub(crate) fn statuses(
        &self,
        now: Instant,
        history: bool,
        part: impl Fn(&Candidate) -> (PeerMode, PeerModeReason),
    ) -> Vec<PeerStatus> {
        let current = self.peers.iter().map(|(id, peer)| peer.status(*id, now, history, &part));
        let banned = self.banned.iter().map(|ban| PeerStatus {
            id: ban.peer,
            name: None,
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
            name: None,
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
}

pub(super) fn candidate(peer: PeerId, summary: &Summary, history: bool, score: &Score) -> Candidate {
    let from = |kind: BlobKind| match kind {
        BlobKind::Receipts => summary.receipts_from,
        BlobKind::Delta => summary.deltas_from,
        _ => summary.bodies_from,
    };
    let all = [BlobKind::Body, BlobKind::Receipts, BlobKind::Delta].map(from);
    let all_from = all.into_iter().max().flatten().filter(|_| all.iter().all(Option::is_some));
    let head = summary.head.as_ref().map_or(BatchNumber::GENESIS, |certificate| certificate.info.number);
    Candidate {
        peer,
        head,
        replay_from: summary.bodies_from,
        delta_from: summary.deltas_from,
        whole_from: all_from.filter(|_| history),
        range_delta_from: summary.deltas_from,
        // A claim beyond the certified head does not count.
        snapshots: summary.snapshots.iter().copied().filter(|offered| offered.number <= head).collect(),
        bytes_per_second: score.rate().unwrap_or_default(),
        is_proven: false,
    }
}
