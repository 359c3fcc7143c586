//! [`Seats`]: the places of chosen peers, and [`RecentDials`]: the hosts dialled recently.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use tokio::time::Instant;

use super::Neighbour;
use crate::{
    PeerAddress, PeerId,
    exchange::Scope,
    origin::{Origin, block_of},
};

/// 1/`ROUND_PART` of the places rotates, and the same share is kept by the peers that served most. The
/// longest-connected peers keep the others.
const ROUND_PART: usize = 4;
/// After a restart, 1/`ANCHOR_PART` of the places goes to anchors first. So an attacker that causes a restart cannot
/// choose all neighbours.
const ANCHOR_PART: usize = 2;
/// A host is not dialled twice within this time, whatever keys are reported there.
const KNOCK_EVERY: Duration = Duration::from_secs(60);

/// A peer that has a place, or is being dialled for one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seat {
    address: SocketAddr,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Dialling,
    Connected(ChosenConnection),
}

#[derive(Clone, Copy, Debug)]
struct ChosenConnection {
    since: Instant,
    used: Instant,
    /// Bytes of recent answers.
    served: f64,
}

/// A chosen peer whose connection ended.
pub(super) struct EndedConnection {
    pub(super) id: PeerId,
    pub(super) since: Instant,
}

/// The places of chosen peers.
pub(super) struct Seats {
    most: usize,
    seats: BTreeMap<PeerId, Seat>,
    /// Connections made since the last query.
    arrived: usize,
}

impl Seats {
    pub(super) fn new(most: usize) -> Seats {
        Seats { most, seats: BTreeMap::new(), arrived: 0 }
    }

    pub(super) fn has_free(&self) -> bool {
        self.seats.len() < self.most
    }

    pub(super) fn has(&self, id: &PeerId) -> bool {
        self.seats.contains_key(id)
    }

    /// Whether a peer with a public address of the same block has a place.
    pub(super) fn has_block_of(&self, address: SocketAddr) -> bool {
        let block = block_of(address.ip());
        Scope::of(address) == Some(Scope::Public)
            && self.seats.values().any(|seat| block_of(seat.address.ip()) == block)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = PeerId> {
        self.seats.keys().copied()
    }

    pub(super) fn dialling(&self) -> usize {
        self.seats.values().filter(|seat| matches!(seat.state, State::Dialling)).count()
    }

    pub(super) fn is_dialling(&self, id: &PeerId) -> bool {
        self.seats.get(id).is_some_and(|seat| matches!(seat.state, State::Dialling))
    }

    pub(super) fn dial(&mut self, peer: PeerAddress) {
        self.seats.insert(peer.id, Seat { address: peer.address, state: State::Dialling });
    }

    pub(super) fn release(&mut self, id: &PeerId) -> Option<Seat> {
        self.seats.remove(id)
    }

    pub(super) fn put_back(&mut self, id: PeerId, seat: Option<Seat>) {
        self.seats.extend(seat.map(|seat| (id, seat)));
    }

    /// Updates the places from the current connections. Returns the connections that ended.
    pub(super) fn observe(&mut self, neighbours: &[Neighbour]) -> Vec<EndedConnection> {
        let mut lost = Vec::new();
        for peer in neighbours {
            let Some(seat) = self.seats.get_mut(&peer.id) else { continue };
            self.arrived += usize::from(matches!(seat.state, State::Dialling));
            let used = peer.used.unwrap_or(peer.since).max(peer.since);
            seat.state = State::Connected(ChosenConnection { since: peer.since, used, served: peer.served });
        }
        self.seats.retain(|id, seat| match seat.state {
            State::Connected(it) if !neighbours.iter().any(|peer| peer.id == *id) => {
                lost.push(EndedConnection { id: *id, since: it.since });
                false
            }
            State::Connected(_) | State::Dialling => true,
        });
        lost
    }

    pub(super) fn take_arrived(&mut self) -> usize {
        std::mem::take(&mut self.arrived)
    }

    /// The connected peers, the longest-connected first.
    fn by_age(&self) -> Vec<(PeerId, ChosenConnection)> {
        let connected = self.seats.iter().filter_map(|(id, seat)| match seat.state {
            State::Connected(it) => Some((*id, it)),
            State::Dialling => None,
        });
        let mut connected: Vec<_> = connected.collect();
        connected.sort_by_key(|(_, it)| it.since);
        connected
    }

    pub(super) fn connected(&self) -> Vec<PeerId> {
        self.by_age().into_iter().map(|(id, _)| id).collect()
    }

    /// The peer that gives up its place when all places are taken: one that was useless for longer than `idle_max`.
    /// Otherwise it is the longest-connected of the peers with rotating places, if it has been connected for `turn`.
    /// Rotating places are those of the young peers that served least.
    pub(super) fn leaving(&self, now: Instant, turn: Duration, idle_max: Duration) -> Option<PeerId> {
        let by_age = self.by_age();
        if by_age.len() < self.most {
            return None;
        }
        let idle = by_age.iter().filter(|(_, it)| now.saturating_duration_since(it.used) > idle_max);
        if let Some((id, _)) = idle.min_by_key(|(_, it)| it.used) {
            return Some(*id);
        }
        let part = self.most / ROUND_PART;
        let mut younger = by_age.get(self.most - 2 * part..)?.to_vec();
        younger.sort_by(|(_, one), (_, other)| other.served.total_cmp(&one.served));
        let (id, it) = younger.get(part..)?.iter().min_by_key(|(_, it)| it.since)?;
        (now.saturating_duration_since(it.since) >= turn).then_some(*id)
    }

    /// The peers that are dialled first after a restart: the oldest half, if they have been connected for a while.
    pub(super) fn anchors(&self, now: Instant, age_min: Duration) -> BTreeSet<PeerId> {
        let is_old = |it: &ChosenConnection| now.saturating_duration_since(it.since) >= age_min;
        let old = self.by_age().into_iter().filter(|(_, it)| is_old(it));
        old.take(self.most.div_ceil(ANCHOR_PART)).map(|(id, _)| id).collect()
    }
}

/// The hosts dialled recently. Nodes do not flood a host, even if an attacker claims that many keys are there.
#[derive(Debug, Default)]
pub(super) struct RecentDials(VecDeque<(IpAddr, Instant)>);

impl RecentDials {
    pub(super) fn note(&mut self, address: SocketAddr, now: Instant) {
        while self.0.front().is_some_and(|(_, at)| now.saturating_duration_since(*at) >= KNOCK_EVERY) {
            self.0.pop_front();
        }
        // This machine's own address is not recorded: a whole devnet may be behind it.
        self.0.extend(Origin::of_remote(address.ip()).map(|origin| (origin.host, now)));
    }

    pub(super) fn is_lately(&self, address: SocketAddr, now: Instant) -> bool {
        let Some(origin) = Origin::of_remote(address.ip()) else { return false };
        let mut recent_dials = self.0.iter();
        recent_dials
            .any(|(host, at)| *host == origin.host && now.saturating_duration_since(*at) < KNOCK_EVERY)
    }
}
