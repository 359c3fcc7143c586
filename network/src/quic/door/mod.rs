//! [`Door`]: decides which handshakes may begin. A handshake costs a key exchange and some KiB, and its peer is still
//! unknown.
//!
//! ```text
//!   first packet ─▶ is the address proven, or are few in progress? ─▶ a place left, or one to displace? ─▶ handshake, in less
//!                       │ no                                              │ no                             time in a crowd
//!                     retry: a round trip that costs nothing here       ignore
//! ```
//!
//! A **place** is room for one handshake in progress. An address that is not proven may be forged. It is admitted only
//! where that shuts out no other peer: where places are scarce, proven addresses get them.
//!
//! The sender repeats a packet that was ignored, so an honest one only waits.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    PeerId,
    bucket::Bucket,
    origin::{Origin, canonical, is_this_machine},
};

/// Maximum number of inbound handshakes at once. It bounds the memory and CPU that a flood of connection attempts costs.
pub(super) const HANDSHAKES_MAX: usize = 64;
/// Maximum number of handshakes of strangers; the rest is for the addresses of configured peers.
const STRANGERS_MAX: usize = 48;
/// Above this number of handshakes, a stranger's address must be proven before any work is done for it. So forged
/// addresses get no further.
const UNPROVEN_MAX: usize = 16;
/// The same for one host, so that an attacker cannot fill a host's places by forging its address.
const UNPROVEN_PER_HOST_MAX: usize = 2;
/// The same for one network, and less than `PER_NET_MAX`.
const UNPROVEN_PER_NET_MAX: usize = 4;
/// Maximum number of handshakes of one host, of one network, and from this machine, where a whole devnet has one address.
const PER_HOST_MAX: usize = 8;
const PER_NET_MAX: usize = 16;
const PER_MACHINE_MAX: usize = 32;
/// Maximum number of handshakes from the exact address of a configured peer: one, and another one after a restart.
const PER_CONFIGURED_MAX: usize = 2;
/// Handshakes of one network: rate per second, and burst. A key exchange takes a third of a millisecond of CPU.
/// Connections that end at once hold no places, so the limits on places do not bound them.
const NET_PER_SECOND: f64 = 16.0;
const NET_BURST: f64 = 128.0;
/// The part of the burst that is reserved for proven addresses.
const NET_BURST_PROVEN: f64 = NET_BURST / 2.0;
/// Maximum number of networks whose rate is remembered. Those that were quiet for some seconds are forgotten first.
const RATES_MAX: usize = 4_096;
/// Time that a handshake around the world takes without packet loss. An older handshake makes room for another.
const HANDSHAKE_USUAL: Duration = Duration::from_millis(600);
/// Above this number of handshakes, each gets a quarter of the time: enough for some round trips around the world.
const CROWDED: usize = 24;

/// The decision on a first packet.
pub(super) enum KnockDecision {
    Enter(HandshakePlace),
    Prove,
    Ignore,
}

/// Counts the handshakes in progress.
pub(super) struct Door {
    configured: BTreeSet<SocketAddr>,
    state: Mutex<State>,
}

/// Maximum number of addresses that are remembered for a configured peer whose name is resolved at each attempt.
const NAMED_ADDRESSES_MAX: usize = 4;

#[derive(Default)]
struct State {
    /// The addresses of configured peers' names when they were last resolved.
    named: BTreeMap<PeerId, Vec<SocketAddr>>,
    under_way: BTreeMap<u64, Handshake>,
    next: u64,
    strangers: usize,
    addresses: BTreeMap<SocketAddr, usize>,
    hosts: BTreeMap<IpAddr, usize>,
    nets: BTreeMap<IpAddr, usize>,
    rates: BTreeMap<IpAddr, Bucket>,
}

/// A handshake that has a place.
struct Handshake {
    from: SocketAddr,
    is_configured: bool,
    is_proven: bool,
    since: Instant,
    displaced: CancellationToken,
}

/// The place of one handshake, freed when it is dropped.
pub(super) struct HandshakePlace {
    door: Arc<Door>,
    number: u64,
    is_crowded: bool,
    /// Cancelled when the place has gone to another handshake.
    pub(super) displaced: CancellationToken,
}

impl Door {
    /// Makes a door. `configured` are the addresses of configured peers, which dial from the address that they listen
    /// at.
    pub(super) fn new(configured: impl IntoIterator<Item = SocketAddr>) -> Arc<Door> {
        let configured = configured.into_iter().map(canonical).collect();
        Arc::new(Door { configured, state: Mutex::default() })
    }

    /// Sets the current addresses of a configured peer that has a name. A host that answers for the name gains only
    /// this peer's places for handshakes: the key must still be proven.
    pub(super) fn expect(&self, peer: PeerId, addresses: &[SocketAddr]) {
        let addresses = addresses.iter().copied().map(canonical).take(NAMED_ADDRESSES_MAX).collect();
        self.state.lock().named.insert(peer, addresses);
    }

    /// Forgets the addresses of a peer's name.
    pub(super) fn forget(&self, peer: &PeerId) {
        self.state.lock().named.remove(peer);
    }

    /// Decides on a first packet. `is_proven` is quinn's verdict on its address.
    pub(super) fn knock(self: &Arc<Self>, from: SocketAddr, is_proven: bool, now: Instant) -> KnockDecision {
        let from = canonical(from);
        let mut state = self.state.lock();
        let is_named = || state.named.values().any(|addresses| addresses.contains(&from));
        let is_configured = self.configured.contains(&from) || is_named();
        if !is_proven && (state.is_busy(from) || !state.is_within_rate(from, is_proven, now)) {
            return KnockDecision::Prove;
        }
        let leaving = match state.full_for(from, is_configured) {
            None => None,
            Some(full) => match state.displaceable(full, from, now) {
                Some(leaving) => Some(leaving),
                None => return KnockDecision::Ignore,
            },
        };
        if is_proven && !is_configured && !state.is_within_rate(from, is_proven, now) {
            return KnockDecision::Ignore;
        }
        if let Some(displaced) = leaving.and_then(|number| state.leave(number)) {
            displaced.cancel();
        }
        let (number, displaced) = state.enter(Handshake {
            from,
            is_configured,
            is_proven,
            since: now,
            displaced: CancellationToken::new(),
        });
        let is_crowded = state.under_way.len() > CROWDED;
        drop(state);
        KnockDecision::Enter(HandshakePlace { door: self.clone(), number, is_crowded, displaced })
    }
}

/// The origin that has used all its places.
#[derive(Clone, Copy)]
enum ExhaustedOrigin {
    /// The address of a configured peer.
    Address(SocketAddr),
    All,
    Host(IpAddr),
    Net(IpAddr),
    Strangers,
}

impl ExhaustedOrigin {
    /// Whether a handshake holds one of these places.
    fn has(self, it: &Handshake) -> bool {
        let Origin { host, net } = Origin::of(it.from.ip());
        match self {
            ExhaustedOrigin::All => true,
            ExhaustedOrigin::Address(address) => it.from == address,
            ExhaustedOrigin::Host(full) => !it.is_configured && host == full,
            ExhaustedOrigin::Net(full) => !it.is_configured && net == full,
            ExhaustedOrigin::Strangers => !it.is_configured,
        }
    }
}

impl State {
    /// The narrowest origin of the packet's address that has used all its places.
    fn full_for(&self, from: SocketAddr, is_configured: bool) -> Option<ExhaustedOrigin> {
        if is_configured {
            let full = (count(&self.addresses, &from) >= PER_CONFIGURED_MAX)
                .then_some(ExhaustedOrigin::Address(from));
            return full.or_else(|| (self.under_way.len() >= HANDSHAKES_MAX).then_some(ExhaustedOrigin::All));
        }
        let Origin { host, net } = Origin::of(from.ip());
        let is_here = is_this_machine(from.ip());
        let per_host = if is_here { PER_MACHINE_MAX } else { PER_HOST_MAX };
        let bounds = [
            (count(&self.hosts, &host) >= per_host, ExhaustedOrigin::Host(host)),
            (!is_here && count(&self.nets, &net) >= PER_NET_MAX, ExhaustedOrigin::Net(net)),
            (self.strangers >= STRANGERS_MAX, ExhaustedOrigin::Strangers),
        ];
        bounds.into_iter().find_map(|(is_full, full)| is_full.then_some(full))
    }

    /// The handshake that makes room for a newcomer: the oldest unproven one that holds a place of the `full` origin.
    /// If strangers use all their places, a proven one may also make room for a newcomer from elsewhere.
    fn displaceable(&self, full: ExhaustedOrigin, newcomer: SocketAddr, now: Instant) -> Option<u64> {
        let unproven = self.under_way.iter().find(|(_, it)| !it.is_proven && full.has(it));
        unproven.map(|(number, _)| *number).or_else(|| match full {
            ExhaustedOrigin::Strangers => self.displaceable_stranger(newcomer, now),
            ExhaustedOrigin::Address(_)
            | ExhaustedOrigin::All
            | ExhaustedOrigin::Host(_)
            | ExhaustedOrigin::Net(_) => None,
        })
    }

    /// The stranger's handshake that makes room for a newcomer from elsewhere. It is the oldest handshake of the most
    /// crowded network, if that network keeps at least as many as the newcomer's network then has. Otherwise it is the
    /// oldest handshake of all strangers, if that took longer than [`HANDSHAKE_USUAL`].
    fn displaceable_stranger(&self, newcomer: SocketAddr, now: Instant) -> Option<u64> {
        let net = |from: SocketAddr| Origin::of(from.ip()).net;
        let (crowd, most) = self.nets.iter().max_by_key(|(_, count)| **count)?;
        let strangers = self.under_way.iter().filter(|(_, it)| !it.is_configured);
        let oldest = strangers.clone().find(|(_, it)| net(it.from) == *crowd).filter(|_| {
            let own = count(&self.nets, &net(newcomer));
            *most >= own + 2
        });
        let is_late = |it: &Handshake| now.saturating_duration_since(it.since) > HANDSHAKE_USUAL;
        oldest.or_else(|| strangers.clone().next().filter(|(_, it)| is_late(it))).map(|(number, _)| *number)
    }

    /// Whether an unproven packet from this address must prove it first.
    fn is_busy(&self, from: SocketAddr) -> bool {
        let Origin { host, net } = Origin::of(from.ip());
        let of_net = |it: &&Handshake| !it.is_proven && Origin::of(it.from.ip()).net == net;
        self.under_way.len() >= UNPROVEN_MAX
            || count(&self.addresses, &from) > 0
            || count(&self.hosts, &host) >= UNPROVEN_PER_HOST_MAX
            || self.under_way.values().filter(of_net).count() >= UNPROVEN_PER_NET_MAX
    }

    /// Counts a handshake against its network's rate; handshakes from this machine have no limit. An unproven handshake
    /// must leave part of the rate to proven ones.
    fn is_within_rate(&mut self, from: SocketAddr, is_proven: bool, now: Instant) -> bool {
        let Some(Origin { net, .. }) = Origin::of_remote(from.ip()) else { return true };
        if self.rates.len() >= RATES_MAX {
            self.rates.retain(|_, rate| !rate.is_full(now));
        }
        if self.rates.len() >= RATES_MAX && !self.rates.contains_key(&net) {
            return false;
        }
        let rate = self.rates.entry(net).or_insert_with(|| Bucket::full(NET_PER_SECOND, NET_BURST, now));
        (is_proven || rate.has(NET_BURST_PROVEN + 1.0, now)) && rate.take(1.0, now)
    }

    fn enter(&mut self, newcomer: Handshake) -> (u64, CancellationToken) {
        let Handshake { from, is_configured, .. } = newcomer;
        let (number, displaced) = (self.next, newcomer.displaced.clone());
        self.next += 1;
        self.under_way.insert(number, newcomer);
        if is_configured {
            add(&mut self.addresses, from);
        } else {
            let Origin { host, net } = Origin::of(from.ip());
            self.strangers += 1;
            add(&mut self.hosts, host);
            add(&mut self.nets, net);
        }
        (number, displaced)
    }

    /// Frees a place, once.
    fn leave(&mut self, number: u64) -> Option<CancellationToken> {
        let Handshake { from, is_configured, displaced, .. } = self.under_way.remove(&number)?;
        if is_configured {
            subtract(&mut self.addresses, from);
        } else {
            let Origin { host, net } = Origin::of(from.ip());
            self.strangers -= 1;
            subtract(&mut self.hosts, host);
            subtract(&mut self.nets, net);
        }
        Some(displaced)
    }
}

impl HandshakePlace {
    /// The time for this handshake. `quiet` is the time that a handshake gets while few are in progress.
    pub(super) fn patience(&self, quiet: Duration) -> Duration {
        if self.is_crowded { quiet / 4 } else { quiet }
    }
}

impl Drop for HandshakePlace {
    fn drop(&mut self) {
        self.door.state.lock().leave(self.number);
    }
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
mod tests;
