//! Who is connected, who is banned, and which of two connections stays: decisions only, no I/O and no clock of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use tokio::time::Instant;

use crate::PeerId;

/// Longest ban; beyond it an end cannot be told from forever, and the sum of times might overflow.
const BAN_MAX: Duration = Duration::from_secs(365 * 24 * 3_600);

/// Bans remembered at once; a peer makes keys for free, so their number must be bounded. When full, the ban that would end
/// first goes.
pub(crate) const BANS_MAX: usize = 4_096;

/// Connections of peers that are not configured from one address, so that a single host cannot take all places with keys that
/// it makes for free.
pub(crate) const CONNECTIONS_PER_ADDRESS_MAX: usize = 8;

/// Which side opened a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Dialled,
    Accepted,
}

/// Why a connection is not wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Unwanted {
    #[error("this is the node's own key")]
    Own,
    #[error("banned")]
    Banned,
    #[error("no free place for another peer")]
    Full,
    #[error("no free place for another peer of that address")]
    Crowded,
    #[error("another connection between the same two peers stays")]
    Duplicate,
}

/// A connection that was let in.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Admitted<L> {
    /// Names it in [`Peers::remove`].
    pub(crate) number: u64,
    /// The connection to the same peer that it replaces and that must be closed.
    pub(crate) replaced: Option<L>,
}

struct Entry<L> {
    number: u64,
    direction: Direction,
    since: Instant,
    /// Where it comes from; see [`host`].
    host: Option<IpAddr>,
    link: L,
}

/// The table of connected and banned peers; `L` is whatever the transport needs to reach a peer.
pub(crate) struct Peers<L> {
    local: PeerId,
    peers_max: usize,
    reserved: BTreeSet<PeerId>,
    /// How long after a connection was made a second one can still be a simultaneous attempt.
    crossing: Duration,
    links: BTreeMap<PeerId, Entry<L>>,
    bans: BTreeMap<PeerId, Instant>,
    next_number: u64,
}

impl<L> Peers<L> {
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
            crossing,
            links: BTreeMap::new(),
            bans: BTreeMap::new(),
            next_number: 0,
        }
    }

    /// Decides on a new connection, which comes from an address unless the transport has none.
    ///
    /// When there is one to the same peer already, both sides must come to the same answer without talking:
    /// * Opened by the same side: that side has lost the old one, so the new one stays.
    /// * Opened by both sides: if the old one is so young that the attempts may have crossed, the one that the lower id
    ///   dialled stays. Otherwise the peer, which dials only when it is not connected, has lost the old one.
    pub(crate) fn admit(
        &mut self,
        peer: PeerId,
        direction: Direction,
        address: Option<IpAddr>,
        link: L,
        now: Instant,
    ) -> Result<Admitted<L>, Unwanted> {
        if peer == self.local {
            return Err(Unwanted::Own);
        }
        if self.banned_until(peer, now).is_some() {
            return Err(Unwanted::Banned);
        }
        let host = address.and_then(host);
        match self.links.get(&peer) {
            Some(old) => {
                let crossed =
                    old.direction != direction && now.saturating_duration_since(old.since) <= self.crossing;
                if crossed && !self.lower_dialled(peer, direction) {
                    return Err(Unwanted::Duplicate);
                }
            }
            None if !self.has_place_for(peer) => return Err(Unwanted::Full),
            None if self.is_crowded(peer, host) => return Err(Unwanted::Crowded),
            None => {}
        }
        let number = self.next_number;
        self.next_number += 1;
        let replaced = self.links.insert(peer, Entry { number, direction, since: now, host, link });
        Ok(Admitted { number, replaced: replaced.map(|entry| entry.link) })
    }

    fn lower_dialled(&self, peer: PeerId, direction: Direction) -> bool {
        match direction {
            Direction::Dialled => self.local < peer,
            Direction::Accepted => peer < self.local,
        }
    }

    /// Configured peers always have one; the others share what is left.
    fn has_place_for(&self, peer: PeerId) -> bool {
        let others = self.links.keys().filter(|id| !self.reserved.contains(id)).count();
        self.reserved.contains(&peer) || others < self.peers_max.saturating_sub(self.reserved.len())
    }

    fn is_crowded(&self, peer: PeerId, host: Option<IpAddr>) -> bool {
        let others =
            self.links.iter().filter(|(id, entry)| !self.reserved.contains(id) && entry.host == host);
        host.is_some() && !self.reserved.contains(&peer) && others.count() >= CONNECTIONS_PER_ADDRESS_MAX
    }

    /// Forgets a connection that ended; false if another one has taken its place.
    pub(crate) fn remove(&mut self, peer: PeerId, number: u64) -> bool {
        let current = self.links.get(&peer).is_some_and(|entry| entry.number == number);
        if current {
            self.links.remove(&peer);
        }
        current
    }

    /// Takes a connection out, which the caller closes.
    pub(crate) fn disconnect(&mut self, peer: PeerId) -> Option<L> {
        self.links.remove(&peer).map(|entry| entry.link)
    }

    /// When the connection to a peer was made, if there is one.
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

    /// Bans a peer and returns its connection, which must be closed. A longer ban that stands already is kept.
    pub(crate) fn ban(&mut self, peer: PeerId, duration: Duration, now: Instant) -> Option<L> {
        let until = now + duration.min(BAN_MAX);
        let until = self.bans.get(&peer).map_or(until, |standing| until.max(*standing));
        self.bans.insert(peer, until);
        if self.bans.len() > BANS_MAX {
            self.bans.retain(|_, until| *until > now);
        }
        if self.bans.len() > BANS_MAX
            && let Some(first) = self.bans.iter().min_by_key(|(_, until)| **until).map(|(id, _)| *id)
        {
            self.bans.remove(&first);
        }
        self.disconnect(peer)
    }

    pub(crate) fn banned_until(&self, peer: PeerId, now: Instant) -> Option<Instant> {
        self.bans.get(&peer).copied().filter(|until| *until > now)
    }
}

/// What counts as one host: an IPv4 address or an IPv6 network of 64 bits, which a host chooses its addresses from. None for
/// loopback, where a whole devnet has one address.
fn host(address: IpAddr) -> Option<IpAddr> {
    match address.to_canonical() {
        address if address.is_loopback() => None,
        IpAddr::V6(address) => Some(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into()),
        address => Some(address),
    }
}

#[cfg(test)]
mod tests {
    use slipstream_types::SecretKey;

    use super::*;

    fn id(n: u8) -> PeerId {
        SecretKey::from_seed([n; 32]).public()
    }

    /// Two ids, the lower one first.
    fn pair() -> (PeerId, PeerId) {
        let (a, b) = (id(1), id(2));
        if a < b { (a, b) } else { (b, a) }
    }

    const CROSSING: Duration = Duration::from_secs(10);

    fn table(local: PeerId, peers_max: usize, reserved: &[PeerId]) -> Peers<&'static str> {
        Peers::new(local, peers_max, reserved.iter().copied(), CROSSING)
    }

    // Goal: whatever order the two crossing connections are seen in, both sides keep the same one.
    #[test]
    fn both_sides_of_a_crossing_keep_the_same_connection() {
        use Direction::{Accepted, Dialled};
        let ((low, high), now) = (pair(), Instant::now());
        for low_first in ["by low", "by high"] {
            for high_first in ["by low", "by high"] {
                let mut kept = Vec::new();
                for (local, peer, first) in [(low, high, low_first), (high, low, high_first)] {
                    let mut peers = table(local, 8, &[]);
                    let second = if first == "by low" { "by high" } else { "by low" };
                    for link in [first, second] {
                        let dialled = (link == "by low") == (local == low);
                        let _ = peers.admit(peer, if dialled { Dialled } else { Accepted }, None, link, now);
                    }
                    kept.push(*peers.get(peer).unwrap());
                }
                assert_eq!(kept, ["by low", "by low"], "first seen: {low_first}, {high_first}");
            }
        }
    }

    #[test]
    fn a_peer_that_lost_its_connection_gets_in_again() {
        let ((low, high), now) = (pair(), Instant::now());
        let mut peers = table(low, 8, &[]);
        assert_eq!(peers.admit(high, Direction::Accepted, None, "1", now).unwrap().replaced, None);
        // It restarted and dials again at once.
        assert_eq!(peers.admit(high, Direction::Accepted, None, "2", now).unwrap().replaced, Some("1"));
        // Later this node's own attempt is not a crossing any more, nor is the peer's.
        let later = now + CROSSING + Duration::from_millis(1);
        let third = peers.admit(high, Direction::Dialled, None, "3", later).unwrap();
        assert_eq!(third.replaced, Some("2"));
        let much_later = later + CROSSING + Duration::from_millis(1);
        assert_eq!(
            peers.admit(high, Direction::Accepted, None, "4", much_later).unwrap().replaced,
            Some("3")
        );
        // The end of a replaced connection does not remove its successor.
        assert!(!peers.remove(high, third.number));
        assert_eq!(peers.get(high), Some(&"4"));
    }

    #[test]
    fn strangers_share_what_configured_peers_leave() {
        let now = Instant::now();
        let mut peers = table(id(0), 3, &[id(1), id(0), id(2)]);
        assert!(peers.admit(id(3), Direction::Accepted, None, "", now).is_ok());
        assert_eq!(peers.admit(id(4), Direction::Accepted, None, "", now), Err(Unwanted::Full));
        assert!(peers.admit(id(1), Direction::Accepted, None, "", now).is_ok());
        assert!(peers.admit(id(2), Direction::Dialled, None, "", now).is_ok());
        assert!(
            peers.admit(id(3), Direction::Accepted, None, "", now).is_ok(),
            "a reconnection keeps its place"
        );
        assert_eq!(peers.admit(id(0), Direction::Accepted, None, "", now), Err(Unwanted::Own));
    }

    // One host gets some places and no more, whatever keys it makes; its configured peer and a devnet are let in.
    #[test]
    fn one_address_cannot_take_all_places() {
        let now = Instant::now();
        let same = |n: u8| [format!("2001:db8::{n}").parse().unwrap(), "203.0.113.7".parse().unwrap()];
        for version in 0..2 {
            let mut peers = table(id(0), 64, &[id(1)]);
            let mut admit = |n: u8, address| {
                peers
                    .admit(id(n), Direction::Accepted, Some(address), "", now)
                    .map(|admitted| admitted.number)
            };
            for n in 10..18 {
                assert!(admit(n, same(n)[version]).is_ok());
            }
            assert_eq!(admit(18, same(18)[version]), Err(Unwanted::Crowded));
            assert!(admit(10, same(10)[version]).is_ok(), "a reconnection keeps its place");
            assert!(admit(1, same(1)[version]).is_ok(), "a configured peer");
            assert!(admit(19, "203.0.113.8".parse().unwrap()).is_ok());
            for n in 20..40 {
                let loopback = ["127.0.0.1", "::1", "::ffff:127.0.0.1"][usize::from(n % 3)];
                assert!(admit(n, loopback.parse().unwrap()).is_ok());
            }
        }
    }

    #[test]
    fn bans_disconnect_expire_and_stay_bounded() {
        let now = Instant::now();
        let mut peers = table(id(0), 8, &[]);
        peers.admit(id(1), Direction::Accepted, None, "link", now).unwrap();
        assert_eq!(peers.ban(id(1), Duration::from_secs(9), now), Some("link"));
        peers.ban(id(1), Duration::from_secs(1), now);
        let early = now + Duration::from_secs(8);
        assert_eq!(peers.admit(id(1), Direction::Accepted, None, "", early), Err(Unwanted::Banned));
        assert!(peers.admit(id(1), Direction::Accepted, None, "", now + Duration::from_secs(9)).is_ok());

        for n in 0..(BANS_MAX as u32 + 10) {
            let mut key = [7; 32];
            key[..4].copy_from_slice(&n.to_le_bytes());
            peers.ban(slipstream_types::PublicKey(key), Duration::from_secs(60 + u64::from(n)), now);
        }
        assert_eq!(peers.bans.len(), BANS_MAX);
        assert!(peers.banned_until(id(1), now).is_none(), "the ban that would have ended first went");
    }
}
