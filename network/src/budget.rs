//! [`Budget`]: how many bytes a node holds for its peers, so that neither a peer, nor a host with many keys, nor all peers together
//! can fill its memory.
//!
//! ```text
//!   Budget ── strangers' total ──┬── host ──┬── Share of a peer ── Held
//!          │                     │          └── Share of a peer
//!          └─ configured total ──┴───────────── Share of a configured peer
//! ```
//!
//! Bytes count from before they exist until they are gone: an answer from before it is made until the peer has it, a request from
//! its head until its handler has returned.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes behind one permit; permits are 32-bit numbers.
const PERMIT_BYTES: usize = 1_024;
/// Peers' worth of bytes that all peers of one host have together.
const PEERS_PER_HOST: usize = 2;
/// The part of the total that is kept for configured peers, if there are any: one in so many.
const CONFIGURED_PART: usize = 4;

/// What a node holds for all its peers in one direction.
pub(crate) struct Budget {
    peer_bytes_max: usize,
    strangers: Arc<Semaphore>,
    configured: Arc<Semaphore>,
    hosts: Mutex<BTreeMap<IpAddr, Weak<Semaphore>>>,
}

/// What may be held for one peer.
pub(crate) struct Share {
    /// From the peer's own to the total: who waits for the total already has its place in its own share.
    levels: Vec<Arc<Semaphore>>,
    /// What the first of them began with.
    most: u32,
}

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    permits: Vec<OwnedSemaphorePermit>,
}

impl Budget {
    /// Holds so many bytes for one peer, and so many for all of them. A total below one peer's bytes is raised to them, so that no
    /// message waits for ever.
    pub(crate) fn new(peer_bytes_max: usize, total_bytes_max: usize, has_configured: bool) -> Budget {
        let kept = if has_configured { total_bytes_max / CONFIGURED_PART } else { 0 };
        let pool = |bytes: usize| Arc::new(Semaphore::new(permits(bytes.max(peer_bytes_max)) as usize));
        Budget {
            peer_bytes_max,
            strangers: pool(total_bytes_max - kept),
            configured: pool(kept),
            hosts: Mutex::default(),
        }
    }

    /// The share of a peer with a new connection. Those of one host, if it has one, have some bytes together.
    pub(crate) fn share(&self, host: Option<IpAddr>, is_configured: bool) -> Share {
        let own = Arc::new(Semaphore::new(permits(self.peer_bytes_max) as usize));
        let levels = match (is_configured, host) {
            (true, _) => vec![own, self.configured.clone()],
            (false, None) => vec![own, self.strangers.clone()],
            (false, Some(host)) => vec![own, self.host(host), self.strangers.clone()],
        };
        Share { levels, most: permits(self.peer_bytes_max) }
    }

    fn host(&self, host: IpAddr) -> Arc<Semaphore> {
        let mut hosts = self.hosts.lock();
        hosts.retain(|_, semaphore| semaphore.strong_count() > 0);
        if let Some(semaphore) = hosts.get(&host).and_then(Weak::upgrade) {
            return semaphore;
        }
        let bytes = self.peer_bytes_max.saturating_mul(PEERS_PER_HOST);
        let semaphore = Arc::new(Semaphore::new(permits(bytes) as usize));
        hosts.insert(host, Arc::downgrade(&semaphore));
        semaphore
    }
}

impl Share {
    /// Counts bytes as soon as there is room for them, first come, first served. Cancel-safe. More than a peer may have at all
    /// counts as that much.
    pub(crate) async fn hold(&self, bytes: usize) -> Held {
        let count = self.count(bytes);
        let mut held = Held { permits: Vec::with_capacity(self.levels.len()) };
        for level in &self.levels {
            let permit = level.clone().acquire_many_owned(count).await;
            held.permits.push(permit.expect("the semaphores are never closed"));
        }
        held
    }

    /// Counts bytes if there is room for them now.
    pub(crate) fn try_hold(&self, bytes: usize) -> Option<Held> {
        let count = self.count(bytes);
        let permits = self.levels.iter().map(|level| level.clone().try_acquire_many_owned(count).ok());
        permits.collect::<Option<Vec<_>>>().map(|permits| Held { permits })
    }

    /// Counts other bytes in place of those that are held: fewer always, more if there is room.
    pub(crate) fn resize(&self, held: &mut Held, bytes: usize) -> bool {
        let (count, before) =
            (self.count(bytes) as usize, held.permits.first().map_or(0, |it| it.num_permits()));
        if count <= before {
            held.permits.iter_mut().for_each(|permit| drop(permit.split(before - count)));
            return true;
        }
        let Some(more) = self.try_hold((count - before) * PERMIT_BYTES) else { return false };
        held.permits.iter_mut().zip(more.permits).for_each(|(permit, more)| permit.merge(more));
        true
    }

    fn count(&self, bytes: usize) -> u32 {
        permits(bytes).min(self.most)
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
        let (budget, host) = (budget(), |n: u8| Some(IpAddr::from([203, 0, 113, n])));
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
        assert_eq!(budget.hosts.lock().len(), 1, "hosts without peers are forgotten");
    }

    /// Goal: an answer that is shorter than was thought gives back the rest, a longer one needs room.
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
        let mut nothing = share.try_hold(0).unwrap();
        assert!(share.resize(&mut nothing, 5));
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
