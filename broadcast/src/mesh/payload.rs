//! [`Payload`]: one payload on its way here and onwards.
//!
//! For each useful chunk that arrives, the node sends as many chunks as the configured cap says, to the peers that got
//! the fewest. So every sent chunk was checked, and the payload moves on before it is whole. A node sends at most the
//! cap times the payload's size.

use std::collections::BTreeMap;

use rand::RngCore;
use serde::{Deserialize, Serialize};
use slipstream_coding::{Codec, CodecKind, Held};
use slipstream_network::PeerId;
use slipstream_types::{BatchNumber, PublicKey};
use tokio::time::{Duration, Instant};

use super::{effect::JobId, status::PayloadStatus};
use crate::message::{Part, PayloadId};

/// How long the mesh may wait between two useful chunks before it asks a peer. The time that a chunk takes at 8 Mbit/s
/// is added.
const PATIENCE: Duration = Duration::from_millis(120);
/// Maximum number of chunks of a coded payload that go out when the first one arrives. Measured with 2,000 nodes
/// (`slipnet sim broadcast`): without this burst, a batch of 119 KB takes 1.5 times as long at 50 Mbit/s. With twice as
/// many, the mesh sends more and delivers no sooner.
const BURST_CHUNKS: usize = 48;
/// Maximum bytes of that burst, so that large chunks do not choke an up-link of 50 Mbit/s.
const BURST_BYTES: usize = 512 << 10;
/// Maximum number of chunks that one peer gets on request, in multiples of the number that the payload needs.
const PULLED_MAX: usize = 2;
/// All peers that ask may together get at once, for each chunk that the payload needs, as many chunks as the configured
/// cap says. In each `PULLED_TIME` they may get the needed number once more. Keys are free, and an up-link is not.
const PULLED_TIME: Duration = Duration::from_millis(500);
/// Maximum number of chunks beyond the payload's needs that a peer may send: those that were in flight when the payload
/// became complete.
const CHUNKS_SPARE: usize = 8;

/// The state of a payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Chunks are missing.
    Assembling,
    /// The payload is whole, and is being compared with the batch's header.
    Opening,
    /// The payload is this node's own, and is being compared with the plan of the node that spreads it.
    Lent,
    /// The payload is whole.
    Whole,
    /// The payload is of no use: nobody should have signed it, or it differs from this node's own.
    Over,
}

/// The traffic between this node and a peer.
#[derive(Debug, Default)]
pub(super) struct PeerProgress {
    /// Whether the peer announced the plan: it has chunks, or soon will.
    pub(super) tells: bool,
    /// Whether the peer has the payload, or no longer needs it.
    pub(super) has: bool,
    /// Chunks that came from the peer, and the useful ones among them.
    received: usize,
    pub(super) useful: usize,
    /// Chunks that the peer was sent, unasked and on request.
    pub(super) sent: usize,
    pulled: usize,
    /// When the peer was last asked.
    pub(super) asked_at: Option<Instant>,
}

/// Bytes of chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Moved {
    /// Bytes sent.
    pub sent: u64,
    /// Bytes that came and were needed, as far as was seen on arrival.
    pub useful: u64,
    /// Bytes that came and were here already.
    pub duplicate: u64,
    /// Bytes that came and are useless: malformed, or of a payload that should not have been signed.
    pub useless: u64,
}

/// See the module.
pub(super) struct Payload {
    pub(super) id: PayloadId,
    pub(super) part: Part,
    pub(super) state: State,
    /// The validator that signed its plan.
    pub(super) signer: PublicKey,
    pub(super) codec: Box<dyn Codec>,
    /// The running check or comparison.
    pub(super) job: Option<JobId>,
    pub(super) sides: BTreeMap<PeerId, PeerProgress>,
    /// Whether any of its chunks could be sent before; `allowance` counts the chunks that may still be sent unasked.
    is_sent: bool,
    allowance: usize,
    /// Chunks that were sent on request.
    pulled: usize,
    /// Whether this node still needs it. If not, it merely passes the payload on.
    pub(super) is_wanted: bool,
    began_at: Instant,
    /// How long to wait for a chunk before a peer is asked.
    patience: Duration,
    /// Time from the batch's certificate to the payload's last byte.
    pub(super) took: Option<Duration>,
    pub(super) moved: Moved,
    /// When it became whole.
    pub(super) ended_at: Option<Instant>,
    /// When to ask a peer for what is missing.
    pub(super) repair_at: Instant,
    /// When to send chunks of a lent payload.
    pub(super) lend_at: Option<Instant>,
    /// Requests since the last useful chunk.
    pub(super) asked: u32,
}

impl Payload {
    pub(super) fn new(
        (id, part): (PayloadId, Part),
        signer: PublicKey,
        codec: Box<dyn Codec>,
        now: Instant,
    ) -> Payload {
        Payload {
            id,
            part,
            state: State::Assembling,
            signer,
            job: None,
            sides: BTreeMap::new(),
            is_sent: false,
            allowance: 0,
            pulled: 0,
            is_wanted: true,
            began_at: now,
            took: None,
            moved: Moved::default(),
            ended_at: None,
            patience: PATIENCE,
            repair_at: now,
            codec,
            lend_at: None,
            asked: 0,
        }
    }

    pub(super) fn side(&mut self, peer: PeerId) -> &mut PeerProgress {
        self.sides.entry(peer).or_default()
    }

    /// Begins to wait for chunks of `chunk_bytes` bytes.
    pub(super) fn wait_for(&mut self, chunk_bytes: usize, now: Instant) {
        self.patience = PATIENCE + Duration::from_micros(chunk_bytes as u64);
        self.repair_at = now + self.patience;
    }

    /// Notes that a peer announced the payload's plan.
    pub(super) fn told_by(&mut self, peer: PeerId) {
        self.side(peer).tells = true;
    }

    /// How it is coded.
    pub(super) fn kind(&self) -> CodecKind {
        self.codec.plan().commitment.kind()
    }

    /// When to ask for what is missing, or to send chunks of a lent payload.
    pub(super) fn due_at(&self) -> Option<Instant> {
        match self.state {
            State::Assembling => Some(self.repair_at).filter(|_| self.is_wanted),
            _ => self.lend_at,
        }
    }

    /// Notes a useful chunk of a peer. Returns when the peer was asked for the chunk, if it was asked.
    pub(super) fn progress(&mut self, from: PeerId, now: Instant) -> Option<Instant> {
        (self.asked, self.repair_at) = (0, now + self.patience);
        let side = self.side(from);
        side.useful += 1;
        side.asked_at.take()
    }

    /// The payload's state for operators.
    pub(super) fn status(&self, number: BatchNumber) -> PayloadStatus {
        PayloadStatus {
            number,
            part: self.part,
            codec: self.kind(),
            bytes: self.codec.plan().bytes,
            moved: self.moved,
            decoded_ms: self.took.map(|took| took.as_secs_f64() * 1e3),
        }
    }

    /// Bytes that the payload takes here. While it is still coming, the maximum that it may take.
    pub(super) fn held_bytes(&self) -> usize {
        if self.is_coming() { self.codec.held_bytes_max() } else { self.codec.held_bytes() }
    }

    /// Forgets a peer that left, or was cut off.
    pub(super) fn forget(&mut self, peer: &PeerId) {
        self.sides.remove(peer);
        self.codec.forget(peer);
    }

    /// Forgets what a restarted peer had.
    pub(super) fn restarted(&mut self, peer: &PeerId) {
        if let Some(side) = self.sides.get_mut(peer) {
            (side.tells, side.has) = (false, false);
        }
        self.codec.forget(peer);
    }

    /// Whether it may still become whole.
    pub(super) fn is_coming(&self) -> bool {
        matches!(self.state, State::Assembling | State::Opening)
    }

    /// Counts a chunk. Returns false if the peer sent more than any honest one.
    pub(super) fn count(&mut self, from: PeerId) -> bool {
        let most = self.codec.chunks_needed() * (1 + PULLED_MAX) + CHUNKS_SPARE;
        let side = self.side(from);
        side.received += 1;
        side.received <= most
    }

    /// Raises the allowance, because a chunk was useful or the payload is this node's own. A whole payload goes to `degree` peers. The
    /// first chunks of a coded payload go to many peers at once, because a wide tree is low. Then `cap` chunks follow for each that
    /// arrives.
    pub(super) fn allow(&mut self, degree: usize, cap: usize) {
        let all = cap * self.codec.chunks_needed();
        let more = match (self.kind(), std::mem::replace(&mut self.is_sent, true)) {
            (CodecKind::Gossip, true) => 0,
            (CodecKind::Gossip, false) => degree,
            (_, false) if self.state == State::Assembling => {
                all.min(BURST_CHUNKS).min((BURST_BYTES / self.codec.chunk_bytes()).max(cap))
            }
            (_, false) => all,
            (_, true) => cap,
        };
        self.allowance += more;
    }

    /// Returns the next chunk to send unasked, and its receiver: one of these peers that can use it. Marked peers come
    /// first; among equals, the peer that got the fewest chunks.
    pub(super) fn push(
        &mut self,
        peers: &[(PeerId, bool)],
        rng: &mut dyn RngCore,
    ) -> Option<(PeerId, Vec<u8>)> {
        if self.allowance == 0 {
            return None;
        }
        let needed = self.codec.chunks_needed();
        let mut order = Vec::with_capacity(peers.len());
        for (peer, is_first) in peers {
            let side = self.side(*peer);
            // A peer that got enough chunks has the payload, or will ask.
            if !side.has && side.sent + side.useful < needed {
                order.push((!is_first, side.sent + side.useful, rng.next_u32(), *peer));
            }
        }
        order.sort_unstable();
        order.into_iter().find_map(|(_, _, _, peer)| {
            let chunk = self.codec.next_chunk(&peer, rng)?;
            self.allowance -= 1;
            self.side(peer).sent += 1;
            Some((peer, chunk))
        })
    }

    /// The number of chunks that a peer with `held` lacks.
    pub(super) fn lacks(&self, held: &Held) -> usize {
        let has = match held {
            Held::Chunks(count) => usize::from(*count),
            Held::Shards(map) => map.iter().map(|byte| byte.count_ones() as usize).sum(),
            Held::Whole => return 0,
        };
        self.codec.chunks_needed().saturating_sub(has)
    }

    /// Returns a chunk for a peer that asked. Returns `None` if no chunk is useful, or the peer had its share. Also if
    /// all peers together had as many chunks as may go out by `now`.
    pub(super) fn pull(
        &mut self,
        peer: PeerId,
        cap: usize,
        now: Instant,
        rng: &mut dyn RngCore,
    ) -> Option<Vec<u8>> {
        let needed = self.codec.chunks_needed();
        let times = cap as f64 + (now - self.began_at).div_duration_f64(PULLED_TIME);
        if self.side(peer).pulled >= PULLED_MAX * needed || self.pulled as f64 >= times * needed as f64 {
            return None;
        }
        let chunk = self.codec.next_chunk(&peer, rng)?;
        self.side(peer).pulled += 1;
        self.pulled += 1;
        Some(chunk)
    }
}
