//! [`Couriers`]: chooses the receivers of each message on its way to the proposer.
//!
//! Messages go to the proposer if it is connected and answers. They also go to the validator that proposes next, so
//! that a transaction survives a proposer that fails or omits it. Otherwise they go to a few peers, drawn anew for
//! every message, so that no peer sees all transactions. A peer that hangs or fails rests, longer each time, and delays
//! nobody else.
//!
//! Events go in through `handle_…`, and `now` is an argument: there is neither I/O nor a clock here. The driver
//! (`sending`) asks [`Couriers::poll_readiness`] whether to send now, or when at the latest to ask again. Then it asks
//! [`Couriers::choose`] for the receivers of a message. `now` never decreases between calls, but it may stay the same.

#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::BuildHasher,
    time::Duration,
};

use slipstream_network::PeerId;
use tokio::time::Instant;

/// Maximum number of messages in flight to the proposer; more would only queue up there.
const PROPOSER_MESSAGES_MAX: usize = 8;
/// Maximum number of messages in flight to any other peer.
const PEER_MESSAGES_MAX: usize = 2;
/// Maximum number of messages in flight to all peers but the proposer.
const ALL_MESSAGES_MAX: usize = 64;
/// Peers that get a message when the proposer does not.
const FANOUT: usize = 3;
/// Validators among those [`FANOUT`] peers, if any are connected: validators know the proposer. The rest is drawn from
/// all peers.
const VALIDATORS: usize = 2;
/// How long a peer rests after a failure; the rest doubles with each further one.
const REST: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(300);
/// The longest rest of the proposer: every transaction must reach it, so it is tried again soon after it is back.
const PROPOSER_REST_MAX: Duration = Duration::from_secs(5);
/// Maximum number of failed peers that are remembered after they have disconnected.
const REMEMBERED_MAX: usize = 1_024;

/// The state of the peers that transactions are sent to.
pub(super) struct Couriers {
    local: PeerId,
    /// The current validators, the proposer first.
    validators: Vec<PeerId>,
    peers: HashMap<PeerId, Courier>,
    /// The validators that were connected at the last [`Couriers::handle_peers`].
    connected: Vec<PeerId>,
    /// Keys the draw, so that a peer cannot raise its chances by its choice of key.
    secret: RandomState,
    round: u64,
}

#[derive(Clone, Copy, Default)]
struct Courier {
    under_way: usize,
    failures: u32,
    rests_until: Option<Instant>,
    /// Whether the peer took a transaction from here that was new to it.
    accepted: bool,
}

/// Whether a message can be sent now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SendReadiness {
    /// A receiver has room, or there is nobody to wait for.
    Now,
    /// Ask again when a message in flight ends, or at the given time at the latest.
    Later(Option<Instant>),
}

/// How a message ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SendOutcome {
    /// The peer answered; `taken` transactions were new.
    Answered { taken: usize },
    /// The peer is busy for this long.
    Busy(Duration),
    /// The answer is missing or unreadable.
    Failed,
}

impl Couriers {
    pub(super) fn new(local: PeerId, validators: &[PeerId]) -> Couriers {
        let (peers, secret) = (HashMap::new(), RandomState::new());
        Couriers { local, validators: validators.to_vec(), peers, connected: Vec::new(), secret, round: 0 }
    }

    /// Sets the validators, the first of which proposes. Returns whether the proposer changed. If it did, the old and
    /// the new proposer stop resting, because their failures were in another role.
    pub(super) fn handle_validators(&mut self, validators: &[PeerId]) -> bool {
        let before = std::mem::replace(&mut self.validators, validators.to_vec());
        if before.first() == validators.first() {
            return false;
        }
        for proposer in before.first().into_iter().chain(validators.first()) {
            if let Some(courier) = self.peers.get_mut(proposer) {
                (courier.failures, courier.rests_until) = (0, None);
            }
        }
        true
    }

    /// Whether this node itself proposes, and so sends nothing.
    pub(super) fn is_proposer(&self) -> bool {
        self.validators.first() == Some(&self.local)
    }

    /// Whether the peer is the proposer, whose verdict on a transaction counts.
    pub(super) fn is_from_proposer(&self, peer: &PeerId) -> bool {
        self.validators.first() == Some(peer)
    }

    /// The validator that proposes next, unless it is this node.
    fn next(&self) -> Option<PeerId> {
        self.validators.get(1).copied().filter(|next| *next != self.local)
    }

    /// Whether this node proposes next. A peer that gives it a transaction gives it to the proposer, too.
    pub(super) fn is_next(&self) -> bool {
        self.validators.get(1) == Some(&self.local)
    }

    /// Whether this node is a validator that does not propose now.
    pub(super) fn waits_for_proposer(&self) -> bool {
        self.validators.contains(&self.local) && !self.is_proposer()
    }

    /// The other connected validators with room. They may learn of transactions that stay out of batches.
    pub(super) fn others(&self, connected: &[PeerId], now: Instant) -> Vec<PeerId> {
        let others = self.validators.iter().filter(|peer| **peer != self.local && connected.contains(peer));
        others.filter(|peer| self.has_room(peer, now)).copied().collect()
    }

    /// Notes which peers are connected. A validator that has just connected stops resting.
    pub(super) fn handle_peers(&mut self, connected: &[PeerId]) {
        let validators: Vec<PeerId> =
            self.validators.iter().filter(|validator| connected.contains(validator)).copied().collect();
        for validator in validators.iter().filter(|validator| !self.connected.contains(validator)) {
            if let Some(courier) = self.peers.get_mut(validator) {
                courier.rests_until = None;
            }
        }
        self.connected = validators;
    }

    /// Returns whether the next message should wait for room at its receivers. A waiting message keeps its place in the
    /// queue. If it found no receivers, the pool would have to offer its transactions again.
    pub(super) fn poll_readiness(&self, connected: &[PeerId], now: Instant) -> SendReadiness {
        let proposer = connected.iter().find(|peer| self.is_from_proposer(peer));
        let wanted = match proposer {
            _ if self.is_proposer() || connected.is_empty() => return SendReadiness::Now,
            Some(proposer) if self.courier(proposer).failures == 0 => std::slice::from_ref(proposer),
            _ => connected,
        };
        if wanted.iter().any(|peer| self.has_room(peer, now)) {
            return SendReadiness::Now;
        }
        let rests_until = |peer| self.courier(peer).rests_until.filter(|until| now < *until);
        match wanted.iter().all(|peer| rests_until(peer).is_some()) {
            true => SendReadiness::Later(wanted.iter().filter_map(rests_until).min()),
            false => SendReadiness::Later(None),
        }
    }

    /// Chooses the receivers of the next message. The list is empty if this node proposes, or if every peer is full: the pool
    /// keeps the transactions, and offers them again.
    pub(super) fn choose(&mut self, connected: &[PeerId], now: Instant) -> Vec<PeerId> {
        self.forget(connected, now);
        if self.is_proposer() {
            return Vec::new();
        }
        let proposer = self.validators.first().copied().filter(|proposer| connected.contains(proposer));
        match proposer.map(|proposer| (proposer, self.courier(&proposer))) {
            Some((proposer, courier)) if courier.failures == 0 => {
                // While a proposer has all the messages that it may have, the next proposer gets none either.
                let chosen = [Some(proposer), self.next().filter(|next| connected.contains(next))];
                match self.has_room(&proposer, now) {
                    true => chosen.into_iter().flatten().filter(|peer| self.has_room(peer, now)).collect(),
                    false => Vec::new(),
                }
            }
            Some((proposer, _)) => {
                let mut chosen = self.draw(connected, now);
                chosen.extend(Some(proposer).filter(|proposer| self.has_room(proposer, now)));
                chosen
            }
            None => self.draw(connected, now),
        }
    }

    fn draw(&mut self, connected: &[PeerId], now: Instant) -> Vec<PeerId> {
        self.round += 1;
        let mut free: Vec<PeerId> = connected
            .iter()
            .filter(|peer| !self.is_from_proposer(peer) && self.has_room(peer, now))
            .copied()
            .collect();
        free.sort_by_key(|peer| self.secret.hash_one((self.round, peer)));
        let validators = free.iter().filter(|peer| self.validators.contains(peer)).take(VALIDATORS);
        let mut chosen: Vec<PeerId> = validators.copied().collect();
        if chosen.is_empty() {
            chosen.extend(free.iter().find(|peer| self.courier(peer).accepted));
        }
        for peer in free {
            if chosen.len() < FANOUT && !chosen.contains(&peer) {
                chosen.push(peer);
            }
        }
        chosen
    }

    /// Whether the peer may have one more message now.
    pub(super) fn has_room(&self, peer: &PeerId, now: Instant) -> bool {
        let courier = self.courier(peer);
        if courier.rests_until.is_some_and(|until| now < until) {
            return false;
        }
        if self.is_from_proposer(peer) {
            return courier.under_way < PROPOSER_MESSAGES_MAX;
        }
        let others = self.peers.iter().filter(|(peer, _)| !self.is_from_proposer(peer));
        let under_way: usize = others.map(|(_, courier)| courier.under_way).sum();
        courier.under_way < PEER_MESSAGES_MAX && under_way < ALL_MESSAGES_MAX
    }

    /// Notes that a message to the peer is in flight.
    pub(super) fn handle_sent(&mut self, peer: PeerId) {
        self.peers.entry(peer).or_default().under_way += 1;
    }

    /// Notes that a message to the peer has ended.
    pub(super) fn handle_ended(&mut self, peer: &PeerId, ended: SendOutcome, now: Instant) {
        let rest_max = if self.is_from_proposer(peer) { PROPOSER_REST_MAX } else { REST_MAX };
        let Some(courier) = self.peers.get_mut(peer) else { return };
        courier.under_way = courier.under_way.saturating_sub(1);
        match ended {
            SendOutcome::Answered { taken } => {
                (courier.failures, courier.rests_until) = (0, None);
                courier.accepted |= taken > 0;
            }
            SendOutcome::Busy(pause) => {
                // Messages of one moment bring several answers: the longest pause counts.
                courier.rests_until = courier.rests_until.max(Some(now + pause.min(rest_max)));
            }
            // Several messages in flight that fail together count as one failure.
            SendOutcome::Failed if courier.rests_until.is_some_and(|until| now < until) => {}
            SendOutcome::Failed => {
                let rest = REST.saturating_mul(1 << courier.failures.min(16)).min(rest_max);
                courier.failures += 1;
                courier.accepted = false;
                courier.rests_until = Some(now + rest);
            }
        }
    }

    fn courier(&self, peer: &PeerId) -> Courier {
        self.peers.get(peer).copied().unwrap_or_default()
    }

    fn forget(&mut self, connected: &[PeerId], now: Instant) {
        let crowded = self.peers.len() > REMEMBERED_MAX;
        self.peers.retain(|peer, courier| {
            let rests = courier.rests_until.is_some_and(|until| now < until);
            connected.contains(peer) || courier.under_way > 0 || rests && !crowded
        });
    }
}
