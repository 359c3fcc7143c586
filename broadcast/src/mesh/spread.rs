//! Takes arriving chunks, and sends chunks on.

use std::sync::Arc;

use slipstream_coding::{Accepted, Checked, Held, Verdict};
use slipstream_network::{PeerId, Priority};
use slipstream_types::{
    BatchNumber, Blob,
    bounded::{BoundedBytes, BoundedVec},
};
use tokio::time::{Duration, Instant};

use super::{
    LAZY, Mesh,
    batch::DeliveryStage,
    effect::{Effect, Job},
    payload::{Moved, State},
    peers::Neighbour,
};
use crate::message::{Message, Part, PayloadId};

/// How long a notice may take to arrive. A peer that still sends after that ignores the notice.
const NOTICE_TIME: Duration = Duration::from_secs(1);

/// How long a lent payload waits for its leader to serve everybody.
const LEND_PAUSE: Duration = Duration::from_millis(25);

impl Mesh {
    /// Takes a chunk of a known payload.
    pub(super) fn take_chunk(&mut self, from: PeerId, id: PayloadId, chunk: &[u8], now: Instant) {
        let Some(payload) = self.payload(&id) else { return self.take_declined(from, id, chunk, now) };
        let (is_within, part, bytes) = (payload.count(from), payload.part, chunk.len());
        if payload.state != State::Assembling || !is_within {
            // The chunk was on its way when the payload became complete here, or its sender ignores notices.
            let is_late = payload.ended_at.is_some_and(|at| now - at > NOTICE_TIME);
            self.moved(id, part, |moved| &mut moved.duplicate, bytes);
            if is_late || !is_within {
                self.charge(from, bytes, now);
            }
            return;
        }
        match payload.codec.accept(from, chunk) {
            Accepted::Useful => {
                self.moved(id, part, |moved| &mut moved.useful, bytes);
                self.was_useful(from, id, now);
                self.spread(id);
            }
            Accepted::Waiting => self.moved(id, part, |moved| &mut moved.useful, bytes),
            // Honest peers that do not know of each other send some; the check above bounds their number.
            Accepted::Duplicate | Accepted::Dependent | Accepted::Surplus => {
                self.moved(id, part, |moved| &mut moved.duplicate, bytes);
            }
            Accepted::Malformed(reason) => {
                self.moved(id, part, |moved| &mut moved.useless, bytes);
                self.ban(from, format!("it sent a chunk that cannot belong to the payload: {reason}"), now);
            }
        }
        self.check(id);
    }

    /// Takes a chunk of a payload that this node does not assemble. The sender learns that when it announces the
    /// payload, which it soon does.
    fn take_declined(&mut self, from: PeerId, id: PayloadId, chunk: &[u8], now: Instant) {
        let batch = self.places.get(&id).and_then(|number| self.batches.get(number));
        let declined_at = batch.and_then(|batch| batch.declined.get(&id));
        self.status.bytes_useless += chunk.len() as u64;
        if declined_at.is_none_or(|at| now - *at > NOTICE_TIME) {
            self.charge(from, chunk.len(), now);
        }
    }

    fn moved(&mut self, id: PayloadId, part: Part, which: fn(&mut Moved) -> &mut u64, bytes: usize) {
        *which(self.status.parts.entry(part).or_default()) += bytes as u64;
        if let Some(payload) = self.payload(&id) {
            *which(&mut payload.moved) += bytes as u64;
        }
    }

    /// Begins to serve this node's own payload under the plan of the node that spreads it.
    pub(super) fn begin_lending(&mut self, id: PayloadId, own: Arc<[u8]>, now: Instant) {
        let Some(payload) = self.payload(&id) else { return };
        payload.state = State::Lent;
        match payload.codec.supply(None, own) {
            Accepted::Malformed(_) => self.is_not_own(id, now),
            _ => self.check(id),
        }
    }

    /// Runs the next check of a payload, if there is one.
    fn check(&mut self, id: PayloadId) {
        let Some(number) = self.places.get(&id).copied() else { return };
        let Some(batch) = self.batches.get_mut(&number) else { return };
        let told = &batch.told;
        let Some(payload) = batch.payloads.iter_mut().find(|payload| payload.id == id) else { return };
        let lacks = |peer: &PeerId| payload.sides.get(peer).is_none_or(|side| !side.has);
        let serves = told.iter().any(|(peer, told)| told.plans.contains(&id) && lacks(peer));
        let is_due = match payload.state {
            State::Assembling | State::Lent => true,
            // The remaining check compares the whole payload with its commitment; only relays of chunks need it.
            State::Opening | State::Whole => serves,
            State::Over => false,
        };
        if payload.job.is_none()
            && is_due
            && let Some(check) = payload.codec.check(&mut self.rng)
        {
            let job = self.run(id, Job::Check(check));
            if let Some(payload) = self.payload(&id) {
                payload.job = Some(job);
            }
        }
    }

    /// Takes the result of a check.
    pub(super) fn checked(&mut self, id: PayloadId, checked: Checked, now: Instant) {
        let Some(payload) = self.payload(&id) else { return };
        payload.job = None;
        for verdict in payload.codec.checked(checked) {
            match verdict {
                Verdict::Useful(peer) => self.was_useful(peer, id, now),
                Verdict::Forged(peer) => {
                    self.ban(peer, "it sent a forged chunk, which it should have checked".into(), now);
                    // Honest chunks that found no room beside the forged one are requested again.
                    if let Some(payload) = self.payload(&id) {
                        payload.repair_at = payload.repair_at.min(now);
                    }
                }
                Verdict::NotThis => self.is_not_own(id, now),
                Verdict::WrongPlan => {
                    self.is_false(id, "its commitment and its digest belong to different payloads", now)
                }
            }
        }
        let Some(payload) = self.payload(&id) else { return };
        match (payload.state, payload.codec.payload()) {
            (State::Assembling, Some(whole)) => self.is_whole(id, whole, now),
            (State::Lent, Some(_)) => {
                (payload.state, payload.lend_at) = (State::Whole, Some(now + LEND_PAUSE));
            }
            _ => {}
        }
        self.spread(id);
        self.check(id);
    }

    /// Ends the assembly of a payload, all of whose bytes are here: nobody needs to send more. Then compares them with
    /// the header.
    fn is_whole(&mut self, id: PayloadId, whole: Arc<[u8]>, now: Instant) {
        let Some(number) = self.places.get(&id).copied() else { return };
        let Some(payload) = self.payload(&id) else { return };
        payload.state = State::Opening;
        payload.ended_at = Some(now);
        let (part, kind) = (payload.part, payload.kind());
        if let Some(batch) = self.batches.get_mut(&number) {
            let (header, took) = (Arc::clone(&batch.header), now - batch.began_at);
            if let Some(payload) = batch.payload(&id) {
                payload.took = Some(took);
            }
            self.status.codec(kind).count(took);
            self.run(id, Job::Open { part, header, payload: whole });
        }
        self.say_have(id);
    }

    /// Takes the result of the comparison with the header.
    pub(super) fn opened(&mut self, id: PayloadId, opened: Result<Blob, String>, now: Instant) {
        let Some(number) = self.places.get(&id).copied() else { return };
        let Some(payload) = self.payload(&id) else { return };
        let (part, signer) = (payload.part, payload.signer);
        if payload.state != State::Opening {
            return;
        }
        match opened {
            Ok(blob) => {
                payload.state = State::Whole;
                if let Some(batch) = self.batches.get_mut(&number) {
                    batch.keep((part, signer), blob, now);
                }
                self.deliver(number, now);
            }
            Err(reason) => self.is_false(id, &format!("its {part} is invalid: {reason}"), now),
        }
    }

    /// Hands a batch over once nothing more is awaited, or reports that its body is missing.
    pub(super) fn deliver(&mut self, number: BatchNumber, now: Instant) {
        let Some(batch) = self.batches.get_mut(&number) else { return };
        if batch.deliver_at(self.wants).is_none_or(|at| at > now) {
            return;
        }
        if let Some(delivery) = batch.deliver() {
            self.status.delivered += 1;
            return self.effects.push_back(Effect::Deliver(Box::new(delivery)));
        }
        batch.handed = DeliveryStage::GaveUp;
        self.status.incomplete += 1;
        let heard = batch.tellers.iter().map(|peer| Effect::Heard { peer: *peer, number });
        self.effects.extend(heard);
        self.effects.push_back(Effect::GaveUp(number));
    }

    /// Notes that a validator signed a payload that is not the batch's.
    fn is_false(&mut self, id: PayloadId, what: &str, now: Instant) {
        let Some(number) = self.places.get(&id).copied() else { return };
        let Some(payload) = self.payload(&id) else { return };
        payload.state = State::Over;
        let signer = payload.signer;
        self.lied(signer, number, what, now);
    }

    /// Stops lending, because this node's content differs from the signed payload. That proves no lie: the same content
    /// may be packed in two ways. If no peer completes the payload soon, this node spreads its own.
    fn is_not_own(&mut self, id: PayloadId, now: Instant) {
        let Some(number) = self.places.get(&id).copied() else { return };
        let Some(batch) = self.batches.get_mut(&number) else { return };
        batch.lead_at = Some(now + LAZY);
        if let Some(payload) = batch.payload(&id) {
            payload.state = State::Over;
        }
    }

    /// Begins to send at a source, which may at once send everything that it will ever send unasked.
    pub(super) fn begin_at_source(&mut self, id: PayloadId) {
        let (degree, cap) = (usize::from(self.config.degree), usize::from(self.config.send_cap));
        let Some(payload) = self.payload(&id) else { return };
        payload.allow(degree, cap);
        self.spread(id);
    }

    fn was_useful(&mut self, from: PeerId, id: PayloadId, now: Instant) {
        let (degree, cap) = (usize::from(self.config.degree), usize::from(self.config.send_cap));
        let Some(payload) = self.payload(&id) else { return };
        payload.allow(degree, cap);
        let asked_at = payload.progress(from, now);
        let bytes = payload.codec.chunk_bytes();
        self.effects.push_back(Effect::Credit { peer: from, bytes });
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.credit();
            if let Some(at) = asked_at {
                peer.answered(now - at);
            }
        }
    }

    /// Sends the allowed chunks of a payload to the peers that want it.
    pub(super) fn spread(&mut self, id: PayloadId) {
        let Some(number) = self.places.get(&id).copied() else { return };
        let Some(payload) = self.payload(&id).filter(|payload| payload.state != State::Over) else { return };
        let part = payload.part;
        let wanting = self.peers.iter().filter(|(_, it)| it.wants.has(part));
        let peers: Vec<_> = wanting.map(|(peer, it)| (*peer, it.comes_first(self.wants))).collect();
        loop {
            let Some(batch) = self.batches.get_mut(&number) else { return };
            let Some(payload) = batch.payload(&id) else { return };
            let Some((peer, chunk)) = payload.push(&peers, &mut self.rng) else { return };
            if payload.side(peer).sent == 1
                && let Some(neighbour) = self.peers.get_mut(&peer)
            {
                neighbour.begins();
            }
            self.send_chunk(peer, number, (id, part), chunk);
        }
    }

    fn send_chunk(
        &mut self,
        peer: PeerId,
        number: BatchNumber,
        (id, part): (PayloadId, Part),
        chunk: Vec<u8>,
    ) {
        self.tell(peer, number);
        let priority = match part {
            Part::Body => Priority::Second,
            Part::Hints => Priority::Third,
        };
        self.moved(id, part, |moved| &mut moved.sent, chunk.len());
        let Ok(chunk) = BoundedBytes::new(chunk) else { return };
        self.send(peer, &Message::Chunk { id, chunk }, priority);
    }

    /// Answers a peer that asks for what it lacks.
    pub(super) fn give(&mut self, peer: PeerId, id: PayloadId, held: &Held, now: Instant) {
        let Some(number) = self.places.get(&id).copied() else { return self.charge(peer, 0, now) };
        let cap = usize::from(self.config.send_cap);
        let batch = self.batches.get_mut(&number);
        let payload = batch.and_then(|batch| batch.payload(&id));
        let Some(payload) = payload.filter(|payload| payload.state != State::Over) else {
            return self.charge(peer, 0, now);
        };
        payload.codec.peer_holds(&peer, held, true);
        let (part, lacks) = (payload.part, payload.lacks(held));
        let mut chunks = Vec::new();
        while chunks.len() < lacks
            && let Some(chunk) = payload.pull(peer, cap, now, &mut self.rng)
        {
            chunks.push(chunk);
        }
        if chunks.is_empty() {
            return self.charge(peer, 0, now);
        }
        chunks.into_iter().for_each(|chunk| self.send_chunk(peer, number, (id, part), chunk));
        self.check(id);
    }

    /// Notes that a peer has a payload, or no longer needs it.
    pub(super) fn peer_has(&mut self, peer: PeerId, id: PayloadId, now: Instant) {
        let number = self.places.get(&id);
        let Some(batch) = number.and_then(|number| self.batches.get_mut(number)) else {
            return self.charge(peer, 0, now);
        };
        batch.told.entry(peer).or_default().plans.insert(id);
        let Some(payload) = batch.payload(&id) else { return self.charge(peer, 0, now) };
        payload.codec.peer_holds(&peer, &Held::Whole, false);
        if std::mem::replace(&mut payload.side(peer).has, true) {
            return self.charge(peer, 0, now);
        }
        if let Some(neighbour) = self.peers.get_mut(&peer) {
            neighbour.took();
        }
    }

    /// Stops the peers that may send chunks of a payload: this node needs no more of them.
    fn say_have(&mut self, id: PayloadId) {
        let Some(batch) = self.places.get(&id).and_then(|number| self.batches.get(number)) else { return };
        let Some(payload) = batch.payloads.iter().find(|payload| payload.id == id) else { return };
        let Ok(ids) = BoundedVec::new(vec![id]) else { return };
        let sends = |(peer, it): &(&PeerId, &Neighbour)| {
            let lacks = payload.sides.get(peer).is_none_or(|side| !side.has);
            it.wants.has(payload.part) && batch.knows(peer, &id) && lacks
        };
        let peers: Vec<_> = self.peers.iter().filter(sends).map(|(peer, _)| *peer).collect();
        for peer in peers {
            self.send(peer, &Message::Have(ids.clone()), Priority::First);
        }
    }

    /// Stops asking for a committed batch's incomplete payloads. The node still passes them on to peers behind it.
    pub(super) fn need_no_more(&mut self, number: BatchNumber) {
        let Some(batch) = self.batches.get_mut(&number) else { return };
        batch.handed = DeliveryStage::All;
        batch.payloads.iter_mut().for_each(|payload| payload.is_wanted = false);
    }
}
