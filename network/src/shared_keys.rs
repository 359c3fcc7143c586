//! [`SharedKeys`]: detects keys that more than one node uses. Such nodes displace each other's connections for ever.
//!
//! ```text
//!  a peer of both             a displaced address returns and displaces the other in turn
//!  one of them                a peer that it dials ends its connections in favour of another one with its key
//!  two that meet              the other side proves this node's own key
//! ```
//!
//! Only the owner of a key can raise an alarm about it; a configured peer can also raise one about this node's own key.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    net::SocketAddr,
    time::Duration,
};

use tokio::time::Instant;

use crate::PeerId;

/// How long an observation counts.
const SEEN_FOR: Duration = Duration::from_secs(60);
/// Returns of displaced addresses that prove two users. A node that restarts, or whose address changes, displaces its
/// own old connection. Its old address does not return repeatedly.
const RETURNS: usize = 2;
/// Connections in a row that a peer ends in favour of another one with this node's key.
const OUSTINGS: usize = 3;
/// Maximum number of keys watched at once. A stranger makes keys for free; when full, the least recently seen key is dropped.
const KEYS_MAX: usize = 64;
/// The same key is not reported again within this time.
const TOLD_FOR: Duration = Duration::from_secs(600);

/// A key that more than one node uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedKey {
    /// The key that several nodes use.
    pub id: PeerId,
    /// Whether it is this node's own key.
    pub own: bool,
    /// Addresses of its users, at most [`SharedKey::ADDRESSES_MAX`]; empty if only a peer's goodbye reveals the other
    /// user.
    pub addresses: Vec<SocketAddr>,
}

impl SharedKey {
    /// Maximum number of addresses kept for one key.
    pub const ADDRESSES_MAX: usize = 4;
}

impl fmt::Display for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.own {
            true => write!(f, "another node uses this node's key {}", self.id)?,
            false => write!(f, "more than one node uses the key {}", self.id)?,
        }
        for (index, address) in self.addresses.iter().enumerate() {
            write!(f, "{}{address}", if index == 0 { ", seen at " } else { " and " })?;
        }
        f.write_str(
            "; they displace each other's connections: stop all but one, and give each its own key_file",
        )
    }
}

/// The detector. It only decides; the caller supplies the clock and does the I/O.
#[derive(Debug)]
pub(crate) struct SharedKeys {
    local: PeerId,
    keys: BTreeMap<PeerId, KeyHistory>,
    /// When each configured peer ended this node's connection in favour of another one.
    oustings: BTreeMap<PeerId, VecDeque<Instant>>,
}

#[derive(Debug, Default)]
struct KeyHistory {
    /// Addresses whose connection was displaced by another address, and the last time; oldest first.
    displaced: Vec<(SocketAddr, Instant)>,
    /// When a displaced address displaced another in turn.
    returns: VecDeque<Instant>,
    shared_at: Option<Instant>,
    told_at: Option<Instant>,
}

impl SharedKeys {
    pub(crate) fn new(local: PeerId) -> SharedKeys {
        SharedKeys { local, keys: BTreeMap::new(), oustings: BTreeMap::new() }
    }

    /// Records that a peer's connection from `new` replaced the one from `old`. Returns the key to report in the log.
    pub(crate) fn displaced(
        &mut self,
        peer: PeerId,
        old: SocketAddr,
        new: SocketAddr,
        now: Instant,
    ) -> Option<SharedKey> {
        if old == new {
            return None;
        }
        let watched = self.watch(peer, now);
        let is_back = watched.displaced.iter().any(|(address, _)| *address == new);
        watched.add(old, now);
        if is_back && happened(&mut watched.returns, RETURNS, now) {
            return self.found(peer, now);
        }
        None
    }

    /// Records that a configured peer ended this node's connection in favour of another one with this node's key.
    pub(crate) fn ousted(&mut self, by: PeerId, now: Instant) -> Option<SharedKey> {
        let often = happened(self.oustings.entry(by).or_default(), OUSTINGS, now);
        if often { self.found(self.local, now) } else { None }
    }

    /// Records that another node proved to have this node's own key.
    pub(crate) fn met_itself(&mut self, address: SocketAddr, now: Instant) -> Option<SharedKey> {
        self.watch(self.local, now).add(address, now);
        self.found(self.local, now)
    }

    /// The keys that more than one node uses now.
    pub(crate) fn list(&self, now: Instant) -> Vec<SharedKey> {
        let shared = self.keys.iter().filter(|(_, watched)| is_within(watched.shared_at, SEEN_FOR, now));
        shared.map(|(id, watched)| self.describe(*id, watched)).collect()
    }

    fn describe(&self, id: PeerId, watched: &KeyHistory) -> SharedKey {
        let addresses = watched.displaced.iter().map(|(address, _)| *address).collect();
        SharedKey { id, own: id == self.local, addresses }
    }

    fn watch(&mut self, peer: PeerId, now: Instant) -> &mut KeyHistory {
        self.keys.retain(|_, watched| {
            watched.displaced.retain(|(_, at)| is_within(Some(*at), SEEN_FOR, now));
            !watched.displaced.is_empty()
                || is_within(watched.shared_at, SEEN_FOR, now)
                || is_within(watched.told_at, TOLD_FOR, now)
        });
        if self.keys.len() >= KEYS_MAX
            && !self.keys.contains_key(&peer)
            && let Some(oldest) =
                self.keys.iter().min_by_key(|(_, watched)| watched.last()).map(|(id, _)| *id)
        {
            self.keys.remove(&oldest);
        }
        self.keys.entry(peer).or_default()
    }

    fn found(&mut self, peer: PeerId, now: Instant) -> Option<SharedKey> {
        let watched = self.watch(peer, now);
        watched.shared_at = Some(now);
        if is_within(watched.told_at, TOLD_FOR, now) {
            return None;
        }
        watched.told_at = Some(now);
        self.keys.get(&peer).map(|watched| self.describe(peer, watched))
    }
}

impl KeyHistory {
    fn add(&mut self, address: SocketAddr, now: Instant) {
        self.displaced.retain(|(other, _)| *other != address);
        if self.displaced.len() == SharedKey::ADDRESSES_MAX {
            self.displaced.remove(0);
        }
        self.displaced.push((address, now));
    }

    fn last(&self) -> Option<Instant> {
        self.displaced.last().map(|(_, at)| *at).max(self.shared_at)
    }
}

/// Records an event. Returns whether it has happened `often` times within [`SEEN_FOR`].
fn happened(events: &mut VecDeque<Instant>, often: usize, now: Instant) -> bool {
    events.push_back(now);
    if events.len() > often {
        events.pop_front();
    }
    events.len() == often && is_within(events.front().copied(), SEEN_FOR, now)
}

fn is_within(at: Option<Instant>, time: Duration, now: Instant) -> bool {
    at.is_some_and(|at| now.saturating_duration_since(at) < time)
}

#[cfg(test)]
mod tests {
    use slipstream_types::SecretKey;

    use super::*;

    fn id(n: u8) -> PeerId {
        SecretKey::from_seed([n; 32]).public()
    }

    fn address(n: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], n))
    }

    /// Goal: two nodes that displace each other are reported once, and no longer listed when one of them has stopped.
    #[test]
    fn two_nodes_with_one_key_are_named_once() {
        let start = Instant::now();
        let mut keys = SharedKeys::new(id(0));
        let mut told = Vec::new();
        for round in 0..40u64 {
            let now = start + Duration::from_secs(5 * round);
            let (old, new) = if round % 2 == 0 { (1, 2) } else { (2, 1) };
            told.extend(keys.displaced(id(7), address(old), address(new), now).map(|it| (round, it)));
            assert_eq!(keys.list(now).len(), usize::from(round >= 2), "round {round}");
        }
        let [(2, shared)] = &told[..] else { panic!("{told:?}") };
        assert_eq!((shared.id, shared.own), (id(7), false));
        let text = shared.to_string();
        assert!(text.contains("more than one node uses the key") && text.contains("key_file"), "{text}");
        assert!(text.contains("192.0.2.1:1") && text.contains("192.0.2.1:2"), "{text}");
        let later = start + Duration::from_secs(5 * 39) + SEEN_FOR;
        assert!(keys.list(later).is_empty());
    }

    /// Goal: a node is not accused for restarting, on the same address or on others, or for moving occasionally.
    #[test]
    fn a_node_that_restarts_or_moves_is_one_node() {
        let start = Instant::now();
        let mut keys = SharedKeys::new(id(0));
        for second in 0..600 {
            let now = start + Duration::from_secs(second);
            let port = second as u16;
            assert_eq!(keys.displaced(id(1), address(5), address(5), now), None, "restarts");
            assert_eq!(
                keys.displaced(id(2), address(port), address(port + 1), now),
                None,
                "restarts elsewhere"
            );
            if second % 100 == 0 {
                let (old, new) = if second % 200 == 0 { (1, 2) } else { (2, 1) };
                assert_eq!(keys.displaced(id(3), address(old), address(new), now), None, "moves");
            }
            assert!(keys.list(now).is_empty());
        }
    }

    /// Goal: this node learns that its own key is used elsewhere, from a peer that ends its connections or from the
    /// other node.
    #[test]
    fn the_own_key_is_named_by_whoever_tells_of_it() {
        let start = Instant::now();
        let mut keys = SharedKeys::new(id(0));
        // At the start, crossing attempts end one connection with each of many peers.
        assert!((1..20).all(|peer| keys.ousted(id(peer), start).is_none()));
        assert_eq!(keys.ousted(id(1), start + Duration::from_secs(3)), None);
        let shared = keys.ousted(id(1), start + Duration::from_secs(9)).unwrap();
        assert!(
            shared.own && shared.to_string().starts_with("another node uses this node's key"),
            "{shared}"
        );
        assert_eq!(keys.ousted(id(1), start + Duration::from_secs(15)), None, "told already");

        let mut keys = SharedKeys::new(id(0));
        let shared = keys.met_itself(address(9), start).unwrap();
        assert_eq!((shared.own, shared.addresses.as_slice()), (true, &[address(9)][..]));
        assert_eq!(keys.met_itself(address(9), start), None);
        assert_eq!(keys.list(start).len(), 1);
    }

    /// Goal: an attacker that makes keys for free cannot fill the memory.
    #[test]
    fn strangers_fill_nothing() {
        let now = Instant::now();
        let mut keys = SharedKeys::new(id(0));
        for n in 0..1_000u32 {
            let mut key = [7; 32];
            key[..4].copy_from_slice(&n.to_le_bytes());
            let peer = slipstream_types::PublicKey(key);
            for port in 0..50 {
                keys.displaced(peer, address(port), address(port + 1), now);
            }
        }
        assert_eq!(keys.keys.len(), KEYS_MAX);
        assert!(keys.keys.values().all(|watched| watched.displaced.len() <= SharedKey::ADDRESSES_MAX));
    }
}
