//! [`Door`]: who may begin a handshake. A handshake costs a key exchange and some KiB, and whoever begins it is nobody yet.
//!
//! ```text
//!   first packet ─▶ places left? ─▶ is the address proven, or is it quiet? ─▶ handshake, in less time when it is crowded
//!                       │ no             │ no
//!                     ignore           retry: a round trip that costs nothing here
//! ```
//!
//! A packet that is ignored is sent again by its sender, so that an honest one only waits.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    bucket::Bucket,
    origin::{Origin, is_this_machine},
};

/// Inbound handshakes at once; a flood of connection attempts costs no more memory and CPU than that.
pub(super) const HANDSHAKES_MAX: usize = 64;
/// Handshakes of strangers; the rest is for the addresses of configured peers.
const STRANGERS_MAX: usize = 48;
/// Above this many a stranger's address must be proven before any work is done for it: who forges addresses gets no further.
const UNPROVEN_MAX: usize = 16;
/// The same for one host, so that nobody fills a host's places in its name.
const UNPROVEN_PER_HOST_MAX: usize = 2;
/// Handshakes of one host, of one network, and from this machine, where a whole devnet has one address.
const PER_HOST_MAX: usize = 8;
const PER_NET_MAX: usize = 16;
const PER_MACHINE_MAX: usize = 32;
/// Handshakes from the very address of a configured peer: one, and another one if it has restarted.
const PER_CONFIGURED_MAX: usize = 2;
/// Handshakes of one network per second, and at once: a key exchange takes a third of a millisecond of CPU, and connections that end
/// at once leave their places free.
const NET_PER_SECOND: f64 = 16.0;
const NET_BURST: f64 = 128.0;
/// Networks whose rate is remembered; those that were quiet for some seconds are forgotten first.
const RATES_MAX: usize = 4_096;
/// Above this many handshakes each has a fourth of the time: enough for some round trips around the world.
const CROWDED: usize = 24;

/// What becomes of a first packet.
pub(super) enum Welcome {
    Enter(Place),
    Prove,
    Ignore,
}

/// Counts the handshakes under way.
pub(super) struct Door {
    configured: BTreeSet<SocketAddr>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    total: usize,
    strangers: usize,
    addresses: BTreeMap<SocketAddr, usize>,
    hosts: BTreeMap<IpAddr, usize>,
    nets: BTreeMap<IpAddr, usize>,
    rates: BTreeMap<IpAddr, Bucket>,
}

/// The place of one handshake; given back when it is dropped.
pub(super) struct Place {
    door: Arc<Door>,
    from: SocketAddr,
    is_crowded: bool,
}

impl Door {
    /// The addresses are those of configured peers, which dial from where they listen.
    pub(super) fn new(configured: impl IntoIterator<Item = SocketAddr>) -> Arc<Door> {
        let configured = configured.into_iter().map(canonical).collect();
        Arc::new(Door { configured, state: Mutex::default() })
    }

    /// Decides on a first packet, of which quinn says whether its address is proven.
    pub(super) fn knock(self: &Arc<Self>, from: SocketAddr, is_proven: bool, now: Instant) -> Welcome {
        let from = canonical(from);
        let is_configured = self.configured.contains(&from);
        let mut state = self.state.lock();
        if !state.has_place(from, is_configured) {
            return Welcome::Ignore;
        }
        if !is_proven && state.is_busy(from) {
            return Welcome::Prove;
        }
        if !is_configured && !state.is_within_rate(from, now) {
            return Welcome::Ignore;
        }
        state.enter(from, is_configured);
        let is_crowded = state.total > CROWDED;
        drop(state);
        Welcome::Enter(Place { door: self.clone(), from, is_crowded })
    }
}

impl State {
    fn has_place(&self, from: SocketAddr, is_configured: bool) -> bool {
        if is_configured {
            return self.total < HANDSHAKES_MAX && count(&self.addresses, &from) < PER_CONFIGURED_MAX;
        }
        let Origin { host, net } = Origin::of(from.ip());
        let is_free = match is_this_machine(from.ip()) {
            true => count(&self.hosts, &host) < PER_MACHINE_MAX,
            false => count(&self.hosts, &host) < PER_HOST_MAX && count(&self.nets, &net) < PER_NET_MAX,
        };
        is_free && self.strangers < STRANGERS_MAX
    }

    fn is_busy(&self, from: SocketAddr) -> bool {
        self.total >= UNPROVEN_MAX || count(&self.hosts, &Origin::of(from.ip()).host) >= UNPROVEN_PER_HOST_MAX
    }

    /// Counts a handshake by its network; those of this machine have no limit.
    fn is_within_rate(&mut self, from: SocketAddr, now: Instant) -> bool {
        let Some(Origin { net, .. }) = Origin::of_remote(from.ip()) else { return true };
        if self.rates.len() >= RATES_MAX {
            self.rates.retain(|_, rate| !rate.is_full(now));
        }
        if self.rates.len() >= RATES_MAX && !self.rates.contains_key(&net) {
            return false;
        }
        self.rates.entry(net).or_insert_with(|| Bucket::full(NET_PER_SECOND, NET_BURST, now)).take(1.0, now)
    }

    fn enter(&mut self, from: SocketAddr, is_configured: bool) {
        self.total += 1;
        if is_configured {
            return add(&mut self.addresses, from);
        }
        let Origin { host, net } = Origin::of(from.ip());
        self.strangers += 1;
        add(&mut self.hosts, host);
        add(&mut self.nets, net);
    }

    fn leave(&mut self, from: SocketAddr, is_configured: bool) {
        self.total -= 1;
        if is_configured {
            return subtract(&mut self.addresses, from);
        }
        let Origin { host, net } = Origin::of(from.ip());
        self.strangers -= 1;
        subtract(&mut self.hosts, host);
        subtract(&mut self.nets, net);
    }
}

impl Place {
    /// The time that this handshake has, of the time that there is when it is quiet.
    pub(super) fn patience(&self, quiet: Duration) -> Duration {
        if self.is_crowded { quiet / 4 } else { quiet }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.door.state.lock().leave(self.from, self.door.configured.contains(&self.from));
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn count<K: Ord>(counts: &BTreeMap<K, usize>, key: &K) -> usize {
    counts.get(key).copied().unwrap_or_default()
}

fn add<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    *counts.entry(key).or_default() += 1;
}

fn subtract<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ip: &str, port: u16) -> SocketAddr {
        SocketAddr::new(ip.parse().unwrap(), port)
    }

    /// Knocks so often from ever new ports, and proves the address when asked to. Keeps the places.
    fn knock(door: &Arc<Door>, ip: &str, times: u16) -> Vec<Place> {
        let enter = |port| match door.knock(at(ip, port), true, Instant::now()) {
            Welcome::Enter(place) => Some(place),
            Welcome::Prove | Welcome::Ignore => None,
        };
        (0..times).filter_map(enter).collect()
    }

    /// Goal: a host, a network and all strangers have some places and no more; configured peers have theirs whatever happens.
    #[test]
    fn places_are_shared_by_host_by_network_and_kept_for_configured_peers() {
        let friend = at("198.51.100.7", 7400);
        let door = Door::new([friend]);
        let one = knock(&door, "203.0.113.1", 100);
        assert_eq!(one.len(), PER_HOST_MAX);
        let two: Vec<_> = (2..50).flat_map(|n| knock(&door, &format!("203.0.113.{n}"), 4)).collect();
        assert_eq!(one.len() + two.len(), PER_NET_MAX);
        let six: Vec<_> = (0..200).flat_map(|n| knock(&door, &format!("2001:db8:0:{n}::1"), 4)).collect();
        assert_eq!(six.len(), PER_NET_MAX, "an IPv6 network of 48 bits");
        let rest: Vec<_> = (0..99).flat_map(|n| knock(&door, &format!("192.0.{n}.1"), 9)).collect();
        assert_eq!(one.len() + two.len() + six.len() + rest.len(), STRANGERS_MAX);
        assert!(knock(&door, "198.51.100.7", 9).is_empty(), "only the very address is the configured peer's");
        let mapped = at("::ffff:198.51.100.7", 7400);
        let Welcome::Enter(first) = door.knock(friend, true, Instant::now()) else { panic!("refused") };
        let Welcome::Enter(second) = door.knock(mapped, true, Instant::now()) else { panic!("refused") };
        assert!(matches!(door.knock(friend, true, Instant::now()), Welcome::Ignore));
        assert_eq!(first.patience(Duration::from_secs(4)), Duration::from_secs(1));
        drop((one, two, six, rest, first, second));
        let state = door.state.lock();
        assert_eq!((state.total, state.strangers), (0, 0));
        assert!(state.hosts.is_empty() && state.nets.is_empty() && state.addresses.is_empty());
    }

    /// Goal: who forges addresses gets a few places and fills those of nobody; who is proven is not asked again.
    #[test]
    fn an_address_has_to_be_proven_when_it_is_busy() {
        let door = Door::new([]);
        let mut places = Vec::new();
        for port in 0..20 {
            match door.knock(at("203.0.113.1", port), false, Instant::now()) {
                Welcome::Enter(place) => places.push(place),
                Welcome::Prove => {}
                Welcome::Ignore => panic!("a forged address has filled the places of its host"),
            }
        }
        assert_eq!(places.len(), UNPROVEN_PER_HOST_MAX);
        assert_eq!(places[0].patience(Duration::from_secs(4)), Duration::from_secs(4), "it is quiet");
        for n in 0..200u16 {
            if let Welcome::Enter(place) = door.knock(at(&format!("192.0.{n}.1"), 1), false, Instant::now()) {
                places.push(place);
            }
        }
        assert_eq!(places.len(), UNPROVEN_MAX);
        assert!(matches!(door.knock(at("198.51.100.1", 1), true, Instant::now()), Welcome::Enter(_)));
    }

    /// Goal: a network whose handshakes end at once, so that none of its places is taken, has a rate; who forges networks fills no
    /// memory.
    #[test]
    fn handshakes_that_end_at_once_have_a_rate() {
        let (door, start) = (Door::new([]), Instant::now());
        let enters = |ip: &str, now| matches!(door.knock(at(ip, 1), true, now), Welcome::Enter(_));
        let entered = (0..10_000u64).filter(|ms| enters("203.0.113.9", start + Duration::from_millis(*ms)));
        assert!((280..300).contains(&entered.count()), "10 s");
        let later = start + Duration::from_secs(10);
        assert!(enters("203.0.114.9", later) && enters("127.0.0.1", later));
        for n in 0..20_000u32 {
            enters(&std::net::Ipv4Addr::from_bits(n << 12).to_string(), later);
        }
        assert!(door.state.lock().rates.len() <= RATES_MAX);
        assert!(enters("198.51.100.1", later + Duration::from_secs(1)), "they are forgotten");
    }

    /// Goal: a devnet on one machine may start at once.
    #[test]
    fn this_machine_may_be_many_hosts() {
        let door = Door::new([]);
        assert_eq!(knock(&door, "127.0.0.1", 100).len(), PER_MACHINE_MAX);
    }
}
