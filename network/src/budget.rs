//! [`Budget`]: bounds the bytes that a node holds for its peers. So neither a peer, nor a host with many keys, nor all
//! peers together can fill its memory.
//!
//! ```text
//!   Budget: total ──┬── strangers' part ── network ──┬── host ──┬── Share of a peer ── Reservation
//!                   │                                │          └── Share of a peer
//!                   │                                └── host ───── Share of a peer
//!                   └── Share of a configured peer
//! ```
//!
//! Configured peers may use everything that strangers leave. If every peer is configured, no part lies idle.
//!
//! Bytes count from before they are allocated until they are freed. An answer counts from before it is made until the
//! peer has it. A request counts as its bytes arrive, until its handler has returned. A broadcast counts from when it
//! is pushed until its peer has it.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use crate::{MESSAGE_BYTES_MAX, origin::Origin, registry::Registry};

/// Bytes behind one permit; permits are 32-bit numbers.
const PERMIT_BYTES: usize = 1_024;
/// All peers of one host together may use this many peers' shares; likewise all peers of one network.
const PEERS_PER_HOST: usize = 2;
const PEERS_PER_NET: usize = 3;
/// Strangers leave 1/`CONFIGURED_PART` of the total to configured peers, if there are any.
const CONFIGURED_PART: usize = 4;
/// One configured peer may use 1/`CONFIGURED_PEER_PART` of the total, but at least one whole message. That is half of
/// the configured peers' own part, so a second configured peer has room too.
const CONFIGURED_PEER_PART: usize = 2 * CONFIGURED_PART;

/// Initial time for which a party ([`Origin::party`]) is barred after it did not receive what was held for it. The time
/// doubles with each offence, until the party has received everything for [`BAR_FORGOTTEN`]. Without the bar, the party
/// could at once make the node hold the same amount again, under another key.
const BAR_FIRST: Duration = Duration::from_secs(10);
const BAR_DOUBLINGS_MAX: u32 = 5;
const BAR_FORGOTTEN: Duration = Duration::from_secs(600);

/// Bounds the bytes that a node holds for all its peers in one direction.
pub(crate) struct Budget {
    peer_bytes_max: usize,
    configured_peer_bytes_max: usize,
    strangers: Arc<Semaphore>,
    total: Arc<Semaphore>,
    hosts: Registry<Semaphore>,
    nets: Registry<Semaphore>,
    bars: Registry<Mutex<Bar>>,
}

/// A time in which no long message is held for a party.
#[derive(Clone, Copy, Default)]
struct Bar {
    /// When the bar began, and how long it lasts.
    last: Option<(Instant, Duration)>,
}

/// Bounds the bytes that are held for one peer.
pub(crate) struct Share {
    /// From the peer's own level to the total: a waiter for the total already has its bytes in its own share.
    levels: Vec<Arc<Semaphore>>,
    /// Permits of the first level when it was created.
    most: u32,
    bar: Arc<Mutex<Bar>>,
}

/// Counted bytes, released when the reservation is dropped. The default counts none.
#[derive(Debug, Default)]
pub(crate) struct Reservation {
    permits: Vec<OwnedSemaphorePermit>,
}

impl Budget {
    /// Allows `peer_bytes_max` for one peer, and `total_bytes_max` for all of them. Raises a total that would leave
    /// strangers, or configured peers, less than one peer's bytes: otherwise a message could wait for ever.
    pub(crate) fn new(peer_bytes_max: usize, total_bytes_max: usize, has_configured: bool) -> Budget {
        let one_part = (total_bytes_max / CONFIGURED_PEER_PART).max(MESSAGE_BYTES_MAX);
        let configured_peer_bytes_max = peer_bytes_max.min(one_part);
        let (kept, kept_min) = match has_configured {
            true => (total_bytes_max / CONFIGURED_PART, configured_peer_bytes_max),
            false => (0, 0),
        };
        let strangers = (total_bytes_max - kept).max(peer_bytes_max);
        let total = total_bytes_max.max(strangers + kept_min);
        let pool = |bytes: usize| Arc::new(Semaphore::new(permits(bytes) as usize));
        Budget {
            peer_bytes_max,
            configured_peer_bytes_max,
            strangers: pool(strangers),
            total: pool(total),
            hosts: Registry::default(),
            nets: Registry::default(),
            bars: Registry::default(),
        }
    }

    /// The share of a peer with a new connection. Peers of one host, and of one network, share some bytes, unless
    /// `origin` is `None`.
    pub(crate) fn share(&self, origin: Option<Origin>, is_configured: bool) -> Share {
        let own = if is_configured { self.configured_peer_bytes_max } else { self.peer_bytes_max };
        let mut levels = vec![Arc::new(Semaphore::new(permits(own) as usize))];
        let mut bar = Arc::default();
        if let Some(origin) = origin.filter(|_| !is_configured) {
            levels.push(self.hosts.of(origin.host, || self.room_for(PEERS_PER_HOST), |_| false));
            levels.push(self.nets.of(origin.net, || self.room_for(PEERS_PER_NET), |_| false));
            let now = Instant::now();
            bar = self.bars.of(origin.party(), Mutex::default, |bar| bar.lock().is_remembered(now));
        }
        if !is_configured {
            levels.push(self.strangers.clone());
        }
        levels.push(self.total.clone());
        Share { levels, most: permits(own), bar }
    }

    fn room_for(&self, peers: usize) -> Semaphore {
        Semaphore::new(permits(self.peer_bytes_max.saturating_mul(peers)) as usize)
    }
}

impl Bar {
    /// The remaining time of the bar.
    fn left(&self, now: Instant) -> Duration {
        self.last.map_or(Duration::ZERO, |(from, time)| (from + time).saturating_duration_since(now))
    }

    fn is_remembered(&self, now: Instant) -> bool {
        self.last.is_some_and(|(from, time)| now < from + time + BAR_FORGOTTEN)
    }

    /// Raises the bar, unless it is already up: bytes held at the same time are one offence.
    fn raise(&mut self, now: Instant) {
        if self.left(now).is_zero() {
            let longer = self.last.filter(|_| self.is_remembered(now)).map(|(_, time)| 2 * time);
            let time = longer.unwrap_or(BAR_FIRST).min(BAR_FIRST * (1 << BAR_DOUBLINGS_MAX));
            self.last = Some((now, time));
        }
    }
}

impl Share {
    /// The remaining time in which the peer gets no long messages, because its party left earlier ones unread. Zero if
    /// the party is not barred.
    pub(crate) fn barred(&self, now: Instant) -> Duration {
        self.bar.lock().left(now)
    }

    /// Records that the peer did not receive what was held for it.
    pub(crate) fn bar(&self, now: Instant) {
        self.bar.lock().raise(now);
    }

    /// Counts bytes as soon as there is room for them, first come, first served. Cancel-safe. More bytes than a peer's
    /// whole share count as the whole share.
    pub(crate) async fn hold(&self, bytes: usize) -> Reservation {
        let count = self.count(bytes);
        let mut held = Reservation { permits: Vec::with_capacity(self.levels.len()) };
        for level in &self.levels {
            let permit = level.clone().acquire_many_owned(count).await;
            held.permits.push(permit.expect("the semaphores are never closed"));
        }
        held
    }

    /// Counts bytes if there is room for them now.
    pub(crate) fn try_hold(&self, bytes: usize) -> Option<Reservation> {
        let count = self.count(bytes);
        let permits = self.levels.iter().map(|level| level.clone().try_acquire_many_owned(count).ok());
        permits.collect::<Option<Vec<_>>>().map(|permits| Reservation { permits })
    }

    /// Changes the reservation to `bytes`: a smaller number always succeeds, a larger one only if there is room.
    pub(crate) fn resize(&self, held: &mut Reservation, bytes: usize) -> bool {
        let (count, before) =
            (self.count(bytes) as usize, held.permits.first().map_or(0, |it| it.num_permits()));
        if count <= before {
            held.permits.iter_mut().for_each(|permit| drop(permit.split(before - count)));
            return true;
        }
        let Some(more) = self.try_hold((count - before) * PERMIT_BYTES) else { return false };
        match held.permits.is_empty() {
            true => *held = more,
            false => held.permits.iter_mut().zip(more.permits).for_each(|(permit, more)| permit.merge(more)),
        }
        true
    }

    /// Bytes that could be held now.
    pub(crate) fn room(&self) -> usize {
        self.levels
            .iter()
            .map(|level| level.available_permits())
            .min()
            .unwrap_or(0)
            .saturating_mul(PERMIT_BYTES)
    }

    /// Bytes that the budget charges for `bytes`, which is rounded up to whole permits.
    pub(crate) fn charged(&self, bytes: usize) -> usize {
        self.count(bytes) as usize * PERMIT_BYTES
    }

    fn count(&self, bytes: usize) -> u32 {
        permits(bytes).min(self.most)
    }
}

impl Reservation {
    /// Number of counted bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.permits.first().map_or(0, OwnedSemaphorePermit::num_permits) * PERMIT_BYTES
    }
}

fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn budget() -> Budget {
        Budget::new(10 * MIB, 80 * MIB, true)
    }

    /// Goal: neither a peer nor a host with many keys takes more than its share, and configured peers have theirs.
    #[test]
    fn shares_are_bounded_by_peer_by_host_and_in_total() {
        let (budget, host) = (budget(), |n: u8| Some(Origin::of([203, 0, n, 1].into())));
        let keys: Vec<Share> = (0..8).map(|_| budget.share(host(1), false)).collect();
        let first = keys[0].try_hold(10 * MIB).unwrap();
        assert!(keys[0].try_hold(1).is_none(), "the peer has its share");
        let second = keys[1].try_hold(10 * MIB).unwrap();
        assert!(keys[2].try_hold(1).is_none(), "the host has its share");
        let others: Vec<_> = (2..6).map(|n| budget.share(host(n), false).try_hold(10 * MIB)).collect();
        assert!(others.iter().all(Option::is_some));
        let late = budget.share(None, false);
        assert!(late.try_hold(1).is_none(), "strangers have theirs");
        assert!(budget.share(host(1), true).try_hold(10 * MIB).is_some(), "a configured peer is let in");
        drop(first);
        assert!(late.try_hold(10 * MIB).is_some());
        assert!(keys[2].try_hold(10 * MIB).is_some());
        drop((second, keys, others));
        drop(budget.share(host(9), false));
        assert_eq!(
            (budget.hosts.len(), budget.nets.len(), budget.bars.len()),
            (1, 1, 1),
            "hosts without peers are forgotten"
        );
    }

    /// Goal: a network with many hosts takes no more than its share either.
    #[test]
    fn a_network_has_its_share() {
        let budget = budget();
        let host = |n: u16| Some(Origin::of(std::net::Ipv6Addr::new(0x2001, 0xdb8, 7, n, 0, 0, 0, 1).into()));
        let held: Vec<_> = (0..9).filter_map(|n| budget.share(host(n), false).try_hold(10 * MIB)).collect();
        assert_eq!(held.len(), PEERS_PER_NET);
        assert!(budget.share(None, false).try_hold(10 * MIB).is_some());
        budget.share(host(1), false).bar(Instant::now());
        assert!(budget.share(host(2), false).barred(Instant::now()) > Duration::ZERO, "of one party");
    }

    /// Goal: configured peers may use the whole budget, and each leaves room for another. Strangers always leave them some.
    #[test]
    fn configured_peers_have_what_strangers_leave() {
        let budget = Budget::new(96 * MIB, 512 * MIB, true);
        let friends: Vec<Share> = (0..9).map(|_| budget.share(None, true)).collect();
        let strangers: Vec<Share> = (0..6).map(|_| budget.share(None, false)).collect();
        let hold = |shares: &[Share], bytes| -> Vec<Reservation> {
            shares.iter().filter_map(|share| share.try_hold(bytes)).collect()
        };
        let held = hold(&friends, 64 * MIB);
        assert_eq!(held.len(), 8, "all of it");
        assert!(hold(&strangers, 1).is_empty());
        drop(held);
        let held = hold(&strangers, 96 * MIB);
        assert_eq!(held.len(), 4, "their part");
        let greedy: Vec<_> = (0..200).filter_map(|_| friends[0].try_hold(MIB)).collect();
        assert_eq!(greedy.len(), 64);
        assert!(friends[1].try_hold(MESSAGE_BYTES_MAX).is_some(), "a message has room beside it");
        drop((held, greedy));
        // A total that is too small for both parts is raised.
        let small = Budget::new(96 * MIB, 96 * MIB, true);
        let stranger = small.share(None, false).try_hold(96 * MIB);
        assert!(stranger.is_some() && small.share(None, true).try_hold(MESSAGE_BYTES_MAX).is_some());
    }

    /// Goal: an answer that is shorter than estimated frees the rest, a longer one needs more room.
    #[test]
    fn what_is_held_is_counted_anew() {
        let budget = budget();
        let share = budget.share(None, false);
        let mut held = share.try_hold(8 * MIB).unwrap();
        assert!(share.resize(&mut held, MIB));
        let other = share.try_hold(9 * MIB).unwrap();
        assert!(!share.resize(&mut held, 2 * MIB));
        drop(other);
        assert!(share.resize(&mut held, 10 * MIB) && share.try_hold(1).is_none());
        drop(held);
        assert!(share.try_hold(usize::MAX).is_some(), "more than there is counts as all");
        let mut nothing = Reservation::default();
        assert!(share.resize(&mut nothing, 5 * MIB) && share.try_hold(6 * MIB).is_none());
    }

    /// Goal: a host that leaves its answers unread cannot return under another key, and is barred longer each time.
    /// Others are not barred.
    #[test]
    fn a_host_that_takes_nothing_is_barred() {
        let (budget, start) = (budget(), Instant::now());
        let (host, seconds) = (Some(Origin::of([203, 0, 113, 1].into())), Duration::from_secs);
        let first = budget.share(host, false);
        assert_eq!(first.barred(start), Duration::ZERO);
        first.bar(start);
        first.bar(start + seconds(1));
        drop(first);
        let second = budget.share(host, false);
        assert_eq!(second.barred(start + seconds(4)), seconds(6));
        assert_eq!(budget.share(None, false).barred(start), Duration::ZERO);
        assert_eq!(budget.share(host, true).barred(start), Duration::ZERO);
        second.bar(start + seconds(10));
        assert_eq!(second.barred(start + seconds(10)), seconds(20));
        let mut now = start + seconds(30);
        for _ in 0..20 {
            second.bar(now);
            now += second.barred(now);
        }
        second.bar(now);
        assert_eq!(second.barred(now), seconds(320));
        let later = now + seconds(320) + BAR_FORGOTTEN;
        second.bar(later);
        assert_eq!(second.barred(later), BAR_FIRST, "forgotten");
    }

    #[tokio::test]
    async fn who_waits_gets_its_turn() {
        let share = Arc::new(budget().share(None, false));
        let held = share.try_hold(10 * MIB).unwrap();
        let waiting = tokio::spawn({
            let share = share.clone();
            async move { share.hold(6 * MIB).await }
        });
        tokio::task::yield_now().await;
        drop(held);
        let later = waiting.await.unwrap();
        assert!(share.try_hold(5 * MIB).is_none() && share.try_hold(4 * MIB).is_some());
        drop(later);
    }
}
