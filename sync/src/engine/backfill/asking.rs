//! Requests for the pieces of a backfill: how long each piece is, and which peer is asked.

use std::time::Duration;

use slipstream_network::PeerId;
use slipstream_storage::Backlog;
use tokio::time::Instant;

use super::{
    REST,
    pieces::{Pieces, State},
    span::next_span,
};
use crate::{
    engine::{Engine, links::Links, streams::Subject},
    peers::{Holdings, PeerBook},
    protocol::{RANGE_BYTES_MAX, RangeRequest, Request},
};

/// A range has as many bytes as its peer delivers in this time. For that long, the head may have to share the link.
const PIECE_SECONDS: f64 = 0.25;
/// Bounds of a range in compressed bytes. Shorter ranges would not be worth a request; longer ones would make a commit
/// wait for their write.
const PIECE_BYTES_MIN: f64 = 128e3;
const PIECE_BYTES_MAX: f64 = 2e6;
/// A peer is late once its answer takes this many times the expected time, and at least [`LATE_MIN`]. Asking another
/// peer costs the same bytes again, so a peer of the backfill gets more time than one that the head waits for.
const LATE_FACTOR: f64 = 4.0;
const LATE_MIN: Duration = Duration::from_secs(2);

impl Engine {
    /// Handles a late answer for the newest piece, if no other peer keeps all parts of that piece. Asks the other peers
    /// for the parts that they keep, and leaves the late peer alone for [`REST`]. So a peer that claims everything and
    /// sends nothing delays the others once.
    pub(super) fn rest_late(&mut self, backlog: &[Backlog; 4], peers: &mut Vec<Holdings>, now: Instant) {
        let Some(newest) = self.backfill.pieces.iter().next() else { return };
        let State::Asked { peer: late, late_at } = newest.state else { return };
        let is_other = |peer: &&Holdings| peer.peer != late;
        if late_at > now || peers.iter().filter(is_other).any(|peer| newest.span.is_kept_by(peer)) {
            return;
        }
        let others: Vec<Holdings> = peers.iter().filter(is_other).cloned().collect();
        if next_span(backlog, &others).is_some() {
            self.backfill.resting.insert(late, now + REST);
            self.backfill.pieces = Pieces::default();
            *peers = others;
        }
    }

    /// Whether the newest piece waits for a peer, and no connected peer keeps it.
    pub(super) fn is_unserved(&self, peers: &[Holdings]) -> bool {
        let newest = self.backfill.pieces.iter().next();
        newest.is_some_and(|piece| {
            matches!(piece.state, State::Wanted) && !peers.iter().any(|peer| piece.span.is_kept_by(peer))
        })
    }

    /// Batches of a piece: a power of two, as many as the fastest peer sends in [`PIECE_SECONDS`].
    pub(super) fn past_batches(&self, peers: &[Holdings], now: Instant) -> u64 {
        let rates = peers.iter().filter_map(|peer| self.streams.links.rate(&peer.peer, now));
        let bytes_max = f64::from(self.config.range_bytes_max.get()).min(PIECE_BYTES_MAX);
        let bytes = (rates.fold(0.0, f64::max) * PIECE_SECONDS).max(PIECE_BYTES_MIN).min(bytes_max);
        let most = u64::from(self.config.range_batches_max.get()).min(self.backfill.batches_max);
        let batches = ((bytes / self.backfill.batch_bytes) as u64).clamp(1, most.max(1));
        1 << batches.ilog2()
    }

    /// Asks for the pieces that need a request, each from the idle peer that is expected to answer first.
    pub(super) fn ask_past(&mut self, peers: &[Holdings], now: Instant) {
        let (backfill, streams) = (&mut self.backfill, &mut self.streams);
        if backfill.throttle.end(now).is_some() {
            return;
        }
        let bytes_max = self.config.range_bytes_max.get().min(RANGE_BYTES_MAX);
        for piece in backfill.pieces.wanted(now) {
            let bytes = (piece.span.batches() as f64 * backfill.batch_bytes) as u64;
            let is_free = |peer: &&Holdings| piece.span.is_kept_by(peer) && streams.links.is_idle(&peer.peer);
            // A late piece goes to a peer that has delivered, if one is free: all strangers may be keys of one
            // attacker.
            let is_late = matches!(piece.state, State::Asked { .. });
            let rank = |peer: &&Holdings| {
                let expected = expected(&self.book, &streams.links, &peer.peer, (now, bytes));
                (is_late && !self.book.is_proven(&peer.peer, now), expected)
            };
            let Some(peer) = peers.iter().filter(is_free).min_by_key(rank) else { continue };
            let (first, batches_max) = (piece.span.first, piece.span.batches() as u32);
            let request = RangeRequest { first, batches_max, bytes_max, parts: piece.span.parts };
            let late_at = now + late_after(streams.links.expected(&peer.peer, bytes));
            piece.state = State::Asked { peer: peer.peer, late_at };
            let about = Subject::Past { request, head: peer.head };
            streams.ask(peer.peer, about, Request::Range(request), (now, bytes), &mut self.effects);
        }
    }
}

/// How long an answer of `bytes` bytes is expected to take, including retries of a peer that fails at times.
pub(super) fn expected(
    book: &PeerBook,
    links: &Links,
    peer: &PeerId,
    (now, bytes): (Instant, u64),
) -> Duration {
    links.expected(peer, bytes).mul_f64(1.0 / book.reliability(peer, now).max(0.05))
}

/// How long a peer may take before it is late, given its expected time.
pub(super) fn late_after(expected: Duration) -> Duration {
    expected.mul_f64(LATE_FACTOR).max(LATE_MIN)
}
