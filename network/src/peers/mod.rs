//! Decides which peers are connected, which are banned, and which of two connections to one peer stays. The caller
//! supplies the clock and does the I/O. A **place** is room for one connection: a node has `peers_max` of them.
//!
//! ```text
//!   configured, or chosen by this node ─────────────▶ a reserved place
//!   stranger ─▶ host and network have a place left? ─▶ a free place ─▶ a useless peer's ─▶ a crowd's ─▶ one whose turn is over ─▶ full
//! ```

mod tenure;
mod turns;

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use tokio::time::Instant;

use self::{
    tenure::{Stranger, kept},
    turns::{Home, TURN_AT_WORK, TURN_MIN, Turns},
};
use crate::{BanEnd, BannedBy, PeerChanges, PeerId, bans::Bans, origin::Origin};

/// Maximum number of connections of strangers from one host, so that it cannot take all places with free keys.
pub(crate) const CONNECTIONS_PER_HOST_MAX: usize = 8;

/// One network may take 1/`NETWORK_PART` of the strangers' places, but at least as many as a host may. A network gets
/// new hosts as easily as a host gets new keys.
const NETWORK_PART: usize = 4;

/// A peer that was not useful for this long makes room for another one.
const IDLE_MAX: Duration = Duration::from_secs(300);

/// A peer that asked, answered or reported something within this time is at work.
const AT_WORK_MAX: Duration = Duration::from_secs(10);

/// The side that opened a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Dialled,
    Accepted,
}

/// Why a connection is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum AdmissionError {
    #[error("this is the node's own key")]
    Own,
    #[error("banned")]
    Banned,
    #[error("no free place for another peer")]
    Full,
    #[error("no free place for another peer of that host or network")]
    Crowded,
    #[error("another connection between these two peers is kept")]
    Duplicate,
}

/// A connection that was admitted.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Admission<L> {
    /// Identifies it in [`Peers::remove`].
    pub(crate) number: u64,
    /// The connection to the same peer that it replaces and that must be closed.
    pub(crate) replaced: Option<L>,
    /// The connection that makes room for it and that must be closed.
    pub(crate) evicted: Option<L>,
}

/// The usefulness of a connection.
pub(crate) trait Useful {
    /// When its peer last asked, answered or reported something.
    fn used(&self) -> Option<Instant>;

    /// Bytes of its peer's recent answers to this node.
    fn served(&self, _now: Instant) -> f64 {
        0.0
    }
}

struct Entry<L> {
    number: u64,
    direction: Direction,
    since: Instant,
    /// The host and network that it comes from. `None` for this machine, and for a transport without addresses.
    origin: Option<Origin>,
    link: L,
}

/// The table of connected and banned peers; `L` is the transport's handle of a connection.
pub(crate) struct Peers<L> {
    local: PeerId,
    peers_max: usize,
    reserved: BTreeSet<PeerId>,
    /// The peers that this node dials by its own choice. `chosen_max` places are reserved for them.
    chosen: BTreeSet<PeerId>,
    chosen_max: usize,
    /// How long after a connection was made a second one may still come from a simultaneous attempt.
    crossing: Duration,
    links: BTreeMap<PeerId, Entry<L>>,
    pub(crate) bans: Bans,
    /// Reports every change of the connected peers and of the bans.
    pub(crate) changes: PeerChanges,
    turns: Turns,
    next_number: u64,
}

impl<L: Useful> Peers<L> {
    pub(crate) fn new(
        local: PeerId,
        peers_max: usize,
        reserved: impl IntoIterator<Item = PeerId>,
        crossing: Duration,
    ) -> Self {
        let reserved = reserved.into_iter().filter(|id| *id != local).collect();
        Peers {
            local,
            peers_max,
            reserved,
            chosen: BTreeSet::new(),
            chosen_max: 0,
            crossing,
            links: BTreeMap::new(),
            bans: Bans::default(),
            changes: PeerChanges::default(),
            turns: Turns::default(),
            next_number: 0,
        }
    }

    /// Reserves `chosen_max` places for peers of this node's own choice.
    pub(crate) fn keep_places(&mut self, chosen_max: usize) {
        self.chosen_max = chosen_max;
    }

    /// Sets the chosen peers. [Places](Self::keep_places) must be reserved for all of them.
    pub(crate) fn choose(&mut self, chosen: BTreeSet<PeerId>) {
        debug_assert!(chosen.len() <= self.chosen_max, "places are kept for all of them");
        self.chosen = chosen;
    }

    /// Decides on a new connection. Its address is `None` only if the transport has none.
    ///
    /// If the same peer is already connected, both sides must reach the same decision without communicating:
    /// * Both opened by the same side: that side has lost the old connection, so the new one stays.
    /// * Opened by both sides: the attempts may have crossed if the old connection is young enough. Then the connection
    ///   that the lower id dialled stays. Otherwise the peer, which dials only when it is not connected, has lost the
    ///   old one.
    pub(crate) fn admit(
        &mut self,
        peer: PeerId,
        direction: Direction,
        address: Option<IpAddr>,
        link: L,
        now: Instant,
    ) -> Result<Admission<L>, AdmissionError> {
        if peer == self.local {
            return Err(AdmissionError::Own);
        }
        if self.bans.until(peer, now).is_some() {
            return Err(AdmissionError::Banned);
        }
        let origin = address.and_then(Origin::of_remote);
        let mut leaving = None;
        match self.links.get(&peer) {
            Some(old) => {
                let crossed =
                    old.direction != direction && now.saturating_duration_since(old.since) <= self.crossing;
                if crossed && !self.lower_dialled(peer, direction) {
                    return Err(AdmissionError::Duplicate);
                }
            }
            None => leaving = self.make_room(peer, origin, now)?,
        }
        let number = self.next_number;
        self.next_number += 1;
        let replaced = self.disconnect(peer, now);
        self.links.insert(peer, Entry { number, direction, since: now, origin, link });
        self.changes.report();
        let evicted = leaving.and_then(|peer| self.disconnect(peer, now));
        Ok(Admission { number, replaced, evicted })
    }

    fn lower_dialled(&self, peer: PeerId, direction: Direction) -> bool {
        match direction {
            Direction::Dialled => self.local < peer,
            Direction::Accepted => peer < self.local,
        }
    }

    /// Finds a place for a new peer. Returns the peer that must leave for it, if any. Configured and chosen peers
    /// always have a place; the others share the rest.
    fn make_room(
        &self,
        peer: PeerId,
        origin: Option<Origin>,
        now: Instant,
    ) -> Result<Option<PeerId>, AdmissionError> {
        if !self.is_stranger(&peer) {
            return Ok(None);
        }
        let places = self.places();
        if let Some(Origin { host, net }) = origin {
            let hosts = self.strangers().filter(|(_, entry)| entry.origin.is_some_and(|it| it.host == host));
            let per_net_max = CONNECTIONS_PER_HOST_MAX.max(places / NETWORK_PART);
            if hosts.count() >= CONNECTIONS_PER_HOST_MAX || self.count_of(Some(net)) >= per_net_max {
                return Err(AdmissionError::Crowded);
            }
        }
        if self.strangers().count() < places {
            return Ok(None);
        }
        let net = origin.map(|it| it.net);
        let leaving = self.idle_longest(now).or_else(|| self.youngest_of_a_crowd(net));
        leaving.or_else(|| self.turn_over(net?, now)).map(Some).ok_or(AdmissionError::Full)
    }

    fn strangers(&self) -> impl Iterator<Item = (&PeerId, &Entry<L>)> {
        self.links.iter().filter(|(id, _)| self.is_stranger(id))
    }

    fn is_stranger(&self, peer: &PeerId) -> bool {
        !self.reserved.contains(peer) && !self.chosen.contains(peer)
    }

    fn count_of(&self, net: Option<IpAddr>) -> usize {
        self.strangers().filter(|(_, entry)| entry.net() == net).count()
    }

    /// The stranger that has been useless for longest, if that is longer than [`IDLE_MAX`].
    fn idle_longest(&self, now: Instant) -> Option<PeerId> {
        let used = |entry: &Entry<L>| entry.link.used().map_or(entry.since, |used| used.max(entry.since));
        let idle = self.strangers().map(|(id, entry)| (used(entry), *id));
        let (used, id) = idle.min_by_key(|(used, _)| *used)?;
        (now.saturating_duration_since(used) > IDLE_MAX).then_some(id)
    }

    /// The newest stranger of the most crowded network, if a newcomer from another network makes the distribution more
    /// even. To get all places, an attacker needs as many networks as places, and old strangers stay. Each such
    /// eviction evens the distribution, so evictions cannot cycle.
    fn youngest_of_a_crowd(&self, newcomer: Option<IpAddr>) -> Option<PeerId> {
        let mut counts = BTreeMap::new();
        for (_, entry) in self.strangers() {
            *counts.entry(entry.net()).or_insert(0) += 1;
        }
        let (crowd, most) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        if most < self.count_of(newcomer) + 2 {
            return None;
        }
        let crowd = self.strangers().filter(|(_, entry)| entry.net() == crowd);
        crowd.max_by_key(|(_, entry)| entry.number).map(|(id, _)| *id)
    }

    /// The stranger that loses its place to a newcomer from a network without a place. Idle strangers go before working
    /// ones; then the one goes whose home has had places for longest. Strangers that are [kept] stay, and their time
    /// does not count against newcomers of their blocks. An owner of many networks gets no more turns by making new
    /// keys. So it cannot shut out peers that had no place recently.
    fn turn_over(&self, newcomer: IpAddr, now: Instant) -> Option<PeerId> {
        if self.count_of(Some(newcomer)) > 0 {
            return None;
        }
        let stranger = |(id, entry): (&PeerId, &Entry<L>)| Stranger {
            id: *id,
            number: entry.number,
            block: entry.home().map(|home| home.block),
            served: entry.link.served(now),
        };
        let kept = kept(self.strangers().map(stranger).collect());
        let places =
            self.strangers().filter_map(|(id, entry)| Some((entry.home()?, entry.since, !kept.contains(id))));
        let tally = self.turns.tally(places, now);
        let newcomer = Home::of(newcomer);
        let over = self.strangers().filter(|(id, _)| !kept.contains(id)).filter_map(|(id, entry)| {
            let (home, at_work) = (entry.home()?, entry.is_at_work(now));
            let turn = if at_work { TURN_AT_WORK } else { TURN_MIN };
            tally.is_turn_of(newcomer, home, turn).then(|| (!at_work, tally.rank(home), *id))
        });
        let by_rank = |one: &(bool, (f64, f64), PeerId), other: &(bool, (f64, f64), PeerId)| {
            let ranks = one.1.partial_cmp(&other.1).unwrap_or(Ordering::Equal);
            one.0.cmp(&other.0).then(ranks)
        };
        over.max_by(by_rank).map(|(_, _, id)| id)
    }

    /// Removes a connection that ended. Returns false if another one has replaced it.
    pub(crate) fn remove(&mut self, peer: PeerId, number: u64, now: Instant) -> bool {
        let current = self.links.get(&peer).is_some_and(|entry| entry.number == number);
        if current {
            self.disconnect(peer, now);
        }
        current
    }

    /// Removes a connection, which the caller must close.
    pub(crate) fn disconnect(&mut self, peer: PeerId, now: Instant) -> Option<L> {
        let entry = self.links.remove(&peer)?;
        self.changes.report();
        if let Some(home) = entry.home().filter(|_| self.is_stranger(&peer)) {
            self.turns.had(home, entry.since, now);
        }
        Some(entry.link)
    }

    /// The time of the connection to a peer, or `None` if it is not connected.
    pub(crate) fn since(&self, peer: PeerId) -> Option<Instant> {
        self.links.get(&peer).map(|entry| entry.since)
    }

    pub(crate) fn get(&self, peer: PeerId) -> Option<&L> {
        self.links.get(&peer).map(|entry| &entry.link)
    }

    /// The connected peers in the order of their ids, each with the time of its connection.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PeerId, Instant, &L)> {
        self.links.iter().map(|(id, entry)| (*id, entry.since, &entry.link))
    }

    /// Bans a peer and returns its connection, which must be closed. A longer ban already in effect is kept.
    pub(crate) fn ban(
        &mut self,
        peer: PeerId,
        by: BannedBy,
        reason: &str,
        duration: Duration,
        now: Instant,
    ) -> Option<L> {
        self.bans.add(peer, by, reason, BanEnd::after(duration, now), now);
        self.changes.report();
        self.disconnect(peer, now)
    }

    pub(crate) fn banned_until(&self, peer: PeerId, now: Instant) -> Option<BanEnd> {
        self.bans.until(peer, now)
    }

    /// Whether a place is reserved for a peer because the configuration or the operator names it.
    pub(crate) fn is_reserved(&self, peer: &PeerId) -> bool {
        self.reserved.contains(peer)
    }

    /// Reserves a place for one more peer. Returns the stranger that leaves for it, if all places are taken; the caller
    /// closes its connection.
    ///
    /// # Errors
    /// If no place would be left for strangers.
    pub(crate) fn reserve(&mut self, peer: PeerId, now: Instant) -> Result<Option<L>, AdmissionError> {
        if self.reserved.contains(&peer) {
            return Ok(None);
        }
        if self.places() <= 1 {
            return Err(AdmissionError::Full);
        }
        self.reserved.insert(peer);
        let newest = self.strangers().max_by_key(|(_, entry)| entry.number).map(|(id, _)| *id);
        let leaving = newest.filter(|_| self.strangers().count() > self.places());
        Ok(leaving.and_then(|stranger| self.disconnect(stranger, now)))
    }

    /// Ends the reservation of a peer's place.
    pub(crate) fn release(&mut self, peer: &PeerId) {
        self.reserved.remove(peer);
    }

    /// Number of places that strangers share.
    fn places(&self) -> usize {
        self.peers_max.saturating_sub(self.reserved.len() + self.chosen_max)
    }
}

impl<L> Entry<L> {
    fn net(&self) -> Option<IpAddr> {
        self.origin.map(|origin| origin.net)
    }

    fn home(&self) -> Option<Home> {
        self.net().map(Home::of)
    }
}

impl<L: Useful> Entry<L> {
    fn is_at_work(&self, now: Instant) -> bool {
        self.link.used().is_some_and(|used| now.saturating_duration_since(used) <= AT_WORK_MAX)
    }
}

#[cfg(test)]
mod tests;
