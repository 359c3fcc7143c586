//! Requests, answers and announcements, between the engines and the peers.

use std::time::Duration;

use anyhow::{Context, Result};
use rand::Rng;
use slipstream_network::{NetworkError, PeerId};
use slipstream_sync::{
    answer,
    engine::{Effect, RequestId},
    protocol::{ANSWER_BYTES_MAX, Request, Summary},
};
use slipstream_types::{BatchNumber, codec};

use super::{
    explain::Kind,
    node::{PendingRequest, RequestSubject},
    oracle::ANCHOR,
    planted,
    queue::Moment,
    server::{Answer, Reaction, busy},
    world::{Event, Place, To, World},
};

/// The longest time until a banned peer comes back under another key.
const RENAME_MAX: Moment = 500_000;

impl World {
    /// Carries out an engine's effects, and schedules its next wake-up.
    pub(super) fn act(&mut self, node: usize) -> Result<()> {
        let now = self.instant();
        let life = self.nodes[node].life;
        let to = To { node, life };
        loop {
            let Some(up) = self.process(to) else { return Ok(()) };
            let Some(effect) = up.engine.poll_effect() else { break };
            self.effect(to, effect)?;
        }
        let at = self.now;
        let Some(up) = self.process(to) else { return Ok(()) };
        let timeout = up.engine.poll_timeout();
        let old = up.wake.take();
        if let Some(ticket) = old {
            self.queue.cancel(ticket);
        }
        let Some(timeout) = timeout else { return Ok(()) };
        let wake = at + (timeout.saturating_duration_since(now).as_micros() as Moment).max(1);
        let ticket = self.queue.push(wake, Event::Wake(to));
        if let Some(up) = self.process(to) {
            up.wake = Some(ticket);
        }
        Ok(())
    }

    fn effect(&mut self, to: To, effect: Effect) -> Result<()> {
        let node = to.node;
        match effect {
            Effect::Send { id, peer, request, deadline, .. } => {
                self.send(to, id, peer, &request, deadline)?
            }
            Effect::Cancel { id } => {
                self.trace.note(self.now, format_args!("node {node} cancels {}", id.0), &[]);
                if let Some(up) = self.process(to) {
                    up.requests.remove(&id);
                }
            }
            Effect::Run { id, job } => self.run_job(to, id, job)?,
            Effect::Ban { peer, reason, .. } => {
                let place = self.place(&peer)?;
                self.trace.mark(self.now, Kind::Ban, format_args!("node {node} bans {place}: {reason}"));
                let is_honest = self.servers.get(place).is_none_or(|server| server.habit.is_honest());
                if is_honest {
                    return self.fail(&format!("safety: node {node} bans honest peer {place}: {reason}"));
                }
                if let Some(up) = self.process(to) {
                    up.banned.insert(peer);
                }
                // Queued, because the transport reports the ban later, outside this engine's turn.
                self.queue.push(self.now, Event::Peers);
                if self.servers.get(place).is_some_and(|server| server.renames && server.id == peer) {
                    let pause = self.rng.random_range(RENAME_MAX / 4..RENAME_MAX);
                    self.queue.push(self.now + pause, Event::Rename { server: place, key: peer });
                }
            }
            Effect::Hear { forks, .. } => {
                if let Some(up) = self.process(to) {
                    up.store.hear_forks(&forks)?;
                }
            }
        }
        Ok(())
    }

    fn send(
        &mut self,
        to: To,
        id: RequestId,
        peer: PeerId,
        request: &Request,
        deadline: Duration,
    ) -> Result<()> {
        let place = self.place(&peer)?;
        self.check_request(to, request)?;
        let payload = codec::encode("sync request", request).context("a request exceeds its bounds")?;
        self.trace.note(self.now, format_args!("node {} asks {place} ({})", to.node, id.0), &payload);
        let at = self.now;
        if let Some(up) = self.process(to) {
            let (is_summary, thing) = (*request == Request::Summary, RequestSubject::of(request));
            up.requests.insert(id, PendingRequest { place, key: peer, at, is_summary, thing });
            if place == ANCHOR && thing.is_some() {
                up.free_since = None;
            }
        }
        self.expect_hand_over(to, id, place);
        if !self.is_connected(to.node, place) {
            let answer = Err(NetworkError::UnknownPeer { peer });
            self.queue.push(self.now, Event::Answer { to, id, peer: place, answer, is_lie: false });
            return Ok(());
        }
        let deadline_at = self.now + deadline.as_micros() as Moment;
        let late = Err(NetworkError::Deadline { peer, deadline });
        self.queue.push(deadline_at, Event::Answer { to, id, peer: place, answer: late, is_lie: false });
        if let Some(at) = self.carry(self.place_of(to.node), place, payload.len()) {
            self.queue.push(at, Event::Request { to, id, peer: place, payload, deadline_at });
        }
        Ok(())
    }

    /// Makes a peer's answer, and sends it when it is done.
    pub(super) fn requested(
        &mut self,
        to: To,
        id: RequestId,
        peer: Place,
        payload: &[u8],
        deadline_at: Moment,
    ) -> Result<()> {
        let waits = self.process(to).is_some_and(|up| up.requests.contains_key(&id));
        if !waits || !self.is_connected(to.node, peer) {
            return Ok(());
        }
        let Some((begins, Answer { bytes, is_lie, lie })) =
            self.make_answer(to, peer, payload, deadline_at)?
        else {
            return Ok(());
        };
        if let Some(lie) = lie {
            let proof = if is_lie { "the node can prove it" } else { "the node cannot prove it" };
            let what = format_args!("server {peer} lies to node {} ({}): {lie}; {proof}", to.node, id.0);
            self.trace.tell(self.now, Kind::Lie, what);
        }
        let id_of_peer = self.id(peer);
        let answer = bytes.map_err(|refusal| NetworkError::Refused { peer: id_of_peer, refusal });
        let len = answer.as_ref().map_or(64, Vec::len);
        let work = self.rng.random_range(50..2_000);
        if let Some(at) = self.carry(peer, self.place_of(to.node), len) {
            let at = at + (begins - self.now) + work;
            self.queue.push(at, Event::Answer { to, id, peer, answer, is_lie });
        }
        Ok(())
    }

    /// Returns a peer's answer, and when the peer begins to send it; `None` from a silent peer.
    fn make_answer(
        &mut self,
        to: To,
        peer: Place,
        payload: &[u8],
        deadline_at: Moment,
    ) -> Result<Option<(Moment, Answer)>> {
        let now = self.now;
        if let Some(other) = self.node_at(peer) {
            let Some(up) = &self.nodes[other].up else { return Ok(None) };
            return Ok(Some((now, Answer::honest(answer(&up.store, payload)))));
        }
        let manner = self.servers[peer].manner(payload, now, deadline_at, &mut self.fired)?;
        let Some(up) = self.process(to) else { return Ok(None) };
        let known = up.store.epoch();
        let at = match manner {
            Reaction::Silence => return Ok(None),
            Reaction::Busy(at) => return Ok(Some((at, Answer::honest(Err(busy()))))),
            Reaction::Answer(at) => at,
        };
        let server = &self.servers[peer];
        let answer = server.answer(self.certified, payload, known, &mut self.rng, &mut self.fired)?;
        Ok(Some((at, answer)))
    }

    /// Delivers an answer, if its request still waits.
    pub(super) fn answered(
        &mut self,
        to: To,
        id: RequestId,
        peer: Place,
        answer: Result<Vec<u8>, NetworkError>,
        is_lie: bool,
    ) -> Result<()> {
        let Some(up) = self.process(to) else { return Ok(()) };
        let Some(asked) = up.requests.remove(&id) else { return Ok(()) };
        // The peer may have another key by now.
        let from = asked.key;
        let now = self.now;
        let Some(up) = self.process(to) else { return Ok(()) };
        if let (Some(thing), Ok(_)) = (asked.thing, &answer) {
            up.came.insert(thing, now);
        }
        if peer == ANCHOR {
            let owes = up.requests.values().any(|asked| asked.place == ANCHOR && asked.thing.is_some());
            let since = up.free_since.unwrap_or(now);
            up.free_since = (!owes && answer.is_ok()).then_some(since);
            if let (true, Ok(summary)) = (asked.is_summary, &answer) {
                up.offered = offered(summary)?;
            }
        }
        let bytes = answer.as_deref().unwrap_or_default();
        if !is_lie {
            *up.creditable.entry(from).or_default() += bytes.len() as u64;
        }
        let failed = answer.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let what = format_args!("{peer} answers node {} ({}) {failed}", to.node, id.0);
        self.trace.note(self.now, what, bytes);
        let told = if is_lie { bytes.to_vec() } else { Vec::new() };
        let answer = match answer {
            Ok(answer) if asked.is_summary => Ok(planted::summary(self.nodes[to.node].defences, answer)?),
            answer => answer,
        };
        self.with_engine(to, |engine, now| {
            engine.handle_answer(id, answer, now);
            Ok(())
        })?;
        if is_lie && asked.is_summary {
            self.check_disbelief(to, peer, &from, &told)?;
        }
        if is_lie { self.check_credit(to) } else { Ok(()) }
    }

    /// Delivers an announcement to a node.
    pub(super) fn heard(&mut self, to: To, from: Place, payload: Vec<u8>) -> Result<()> {
        if !self.is_connected(to.node, from) {
            return Ok(());
        }
        let peer = self.id(from);
        self.trace.note(self.now, format_args!("{from} announces to node {}", to.node), &payload);
        self.with_engine(to, |engine, now| {
            engine.handle_broadcast(peer, payload, now);
            Ok(())
        })
    }

    /// Ends the requests to a disconnected peer.
    pub(super) fn lose_requests(&mut self, to: To, place: Place) {
        let (now, peer) = (self.now, self.id(place));
        let Some(up) = self.process(to) else { return };
        let open = up.requests.iter().filter(|(_, asked)| asked.place == place);
        let open: Vec<RequestId> = open.map(|(id, _)| *id).collect();
        for id in open {
            let answer = Err(NetworkError::Closed { peer });
            self.queue.push(now, Event::Answer { to, id, peer: place, answer, is_lie: false });
        }
    }

    /// Passes a node's current connections to it, if they changed.
    pub(super) fn refresh_peers_of(&mut self, node: usize) -> Result<()> {
        let to = To { node, life: self.nodes[node].life };
        let places = 0..self.servers.len() + self.nodes.len();
        let connected: Vec<Place> = places.filter(|place| self.is_connected(node, *place)).collect();
        let peers: Vec<PeerId> = connected.into_iter().map(|place| self.id(place)).collect();
        let Some(up) = self.process(to) else { return Ok(()) };
        if up.peers == peers {
            return Ok(());
        }
        let gone: Vec<PeerId> = up.peers.iter().filter(|peer| !peers.contains(peer)).copied().collect();
        up.peers = peers.clone();
        self.trace.note(self.now, format_args!("node {node} has {} peers", peers.len()), &[]);
        for peer in gone {
            let place = self.place(&peer)?;
            self.lose_requests(to, place);
        }
        self.with_engine(to, |engine, now| {
            engine.handle_peers(&peers, now);
            Ok(())
        })
    }
}

/// Returns the head and the snapshots of a summary.
fn offered(summary: &[u8]) -> Result<(BatchNumber, Vec<BatchNumber>)> {
    let summary: Summary = codec::decode("summary", summary, ANSWER_BYTES_MAX)?;
    let head = summary.head.map(|head| head.info.number).unwrap_or_default();
    Ok((head, summary.snapshots.iter().map(|offer| offer.number).collect()))
}
