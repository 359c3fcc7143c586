//! [`PartCache`]: reads, proves and compresses once what many peers request alike.

use std::{collections::HashMap, sync::Arc};

use alloy_primitives::bytes::Bytes;
use parking_lot::Mutex;
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter, unsync};
use slipstream_network::Refusal;
use tokio::sync::watch;

/// Approximate bytes of memory that an entry takes besides its key and its content.
const ENTRY_BYTES: u64 = 256;
/// Approximate average bytes of an entry. This sizes the cache's memory of recently evicted keys.
const PART_BYTES_EXPECTED: u64 = 1 << 20;
/// Share of the cache for parts that were requested repeatedly. Followers pass over a chain once, so past favourites
/// are never requested again. With the crate's default of 0.97, the next parts would have no room.
const HOT_SHARE: f64 = 0.5;

/// The bytes of a normalised request. Equal keys have equal parts, at any time and under any head.
pub(super) type Key = Box<[u8]>;

/// An answer; for a range, the part of it that does not change with the server's head.
#[derive(Debug)]
pub(super) struct Part {
    /// Encoded. Every asker gets these same bytes.
    pub(super) bytes: Bytes,
    /// Number of batches in a range; 0 for other answers.
    pub(super) batches: usize,
}

impl Part {
    /// The whole answer to a request other than for a range.
    pub(super) fn whole(mut bytes: Vec<u8>) -> Part {
        bytes.shrink_to_fit();
        Part { bytes: bytes.into(), batches: 0 }
    }
}

/// The result of asking for a part.
pub(super) type Outcome = Result<Arc<Part>, Refusal>;

/// Encoded parts up to a number of bytes, and parts in progress. Further askers wait for a part in progress (single
/// flight). Refusals are not cached.
pub(super) struct PartCache {
    inner: Mutex<Inner>,
}

struct Inner {
    parts: unsync::Cache<Key, Arc<Part>, Weight>,
    /// Parts in progress. One [`PartGuard`] makes each part, so there are at most as many as requests in progress.
    flights: HashMap<Key, watch::Receiver<Option<Outcome>>>,
    hits: u64,
    misses: u64,
}

/// An asker's next step.
pub(super) enum PartLookup {
    /// The cached part.
    Hit(Arc<Part>),
    /// Another asker makes it. The channel closes without a part if that asker leaves before the work begins.
    Wait(watch::Receiver<Option<Outcome>>),
    /// This asker must make the part.
    Lead(PartGuard),
}

/// The duty to make one part. If it is dropped without [`PartGuard::land`], the next asker gets it.
pub(super) struct PartGuard {
    cache: Arc<PartCache>,
    key: Key,
    waiting: watch::Sender<Option<Outcome>>,
}

impl PartCache {
    /// A cache of at most this many bytes. With 0, only simultaneous askers share parts.
    pub(super) fn new(bytes_max: u64) -> PartCache {
        let options = OptionsBuilder::new()
            .estimated_items_capacity((bytes_max / PART_BYTES_EXPECTED) as usize)
            .weight_capacity(bytes_max)
            .hot_allocation(HOT_SHARE)
            .build()
            .expect("all that has no default is set");
        let (hasher, lifecycle) = (DefaultHashBuilder::default(), unsync::DefaultLifecycle::default());
        let inner = Inner {
            parts: unsync::Cache::with_options(options, Weight, hasher, lifecycle),
            flights: HashMap::new(),
            hits: 0,
            misses: 0,
        };
        PartCache { inner: Mutex::new(inner) }
    }

    /// Returns the part, or how to get it. One lock covers both maps: otherwise a part that lands between two look-ups
    /// would be made twice.
    pub(super) fn turn(self: &Arc<Self>, key: &Key) -> PartLookup {
        let mut inner = self.inner.lock();
        if let Some(part) = inner.parts.get(key).cloned() {
            inner.hits += 1;
            return PartLookup::Hit(part);
        }
        if let Some(flight) = inner.flights.get(key).cloned() {
            inner.hits += 1;
            return PartLookup::Wait(flight);
        }
        let (waiting, flight) = watch::channel(None);
        inner.flights.insert(key.clone(), flight);
        inner.misses += 1;
        PartLookup::Lead(PartGuard { cache: self.clone(), key: key.clone(), waiting })
    }

    /// Whether a part is cached or in progress.
    pub(super) fn has(&self, key: &Key) -> bool {
        let inner = self.inner.lock();
        inner.flights.contains_key(key) || inner.parts.peek(key).is_some()
    }

    /// Number of requests for parts that were cached or in progress, and of parts that had to be made.
    pub(super) fn hits_and_misses(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.hits, inner.misses)
    }

    /// Bytes of the cached parts.
    pub(super) fn bytes(&self) -> u64 {
        self.inner.lock().parts.weight()
    }
}

impl PartGuard {
    /// Caches the part and hands it to all waiters. All waiters also get a refusal, which is not cached, so a refusal
    /// must concern all of them.
    pub(super) fn land(self, outcome: Outcome) {
        if let Ok(part) = &outcome {
            self.cache.inner.lock().parts.insert(self.key.clone(), part.clone());
        }
        self.waiting.send_replace(Some(outcome));
    }
}

impl Drop for PartGuard {
    fn drop(&mut self) {
        self.cache.inner.lock().flights.remove(&self.key);
    }
}

#[derive(Clone)]
struct Weight;

impl Weighter<Key, Arc<Part>> for Weight {
    fn weight(&self, key: &Key, part: &Arc<Part>) -> u64 {
        ENTRY_BYTES + (key.len() + part.bytes.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> Key {
        number.to_be_bytes().into()
    }

    fn part(bytes: usize) -> Arc<Part> {
        Arc::new(Part { bytes: vec![7; bytes].into(), batches: 1 })
    }

    /// Gets a part as a lone asker does. Returns whether it was cached.
    fn get(cache: &Arc<PartCache>, number: u64, bytes: usize) -> bool {
        match cache.turn(&key(number)) {
            PartLookup::Hit(_) => true,
            PartLookup::Wait(_) => panic!("nobody else asks"),
            PartLookup::Lead(lead) => {
                lead.land(Ok(part(bytes)));
                false
            }
        }
    }

    #[test]
    fn one_makes_a_part_and_the_others_wait_for_it() {
        let cache = Arc::new(PartCache::new(1 << 20));
        let PartLookup::Lead(lead) = cache.turn(&key(1)) else { panic!("the first one leads") };
        let PartLookup::Wait(waiting) = cache.turn(&key(1)) else { panic!("the second one waits") };
        lead.land(Ok(part(100)));
        assert_eq!(waiting.borrow().as_ref().unwrap().as_ref().unwrap().bytes, vec![7; 100]);
        assert!(matches!(cache.turn(&key(1)), PartLookup::Hit(_)));
        assert!(matches!(cache.turn(&key(2)), PartLookup::Lead(_)));
        assert_eq!(cache.hits_and_misses(), (2, 2));
    }

    #[test]
    fn refusals_are_shared_but_not_kept() {
        let cache = Arc::new(PartCache::new(1 << 20));
        let PartLookup::Lead(lead) = cache.turn(&key(1)) else { panic!("the first one leads") };
        let PartLookup::Wait(waiting) = cache.turn(&key(1)) else { panic!("the second one waits") };
        lead.land(Err(Refusal::not_kept("not kept")));
        assert!(waiting.borrow().as_ref().unwrap().is_err());
        assert!(matches!(cache.turn(&key(1)), PartLookup::Lead(_)));
    }

    #[tokio::test]
    async fn when_the_leader_leaves_the_next_asker_leads() {
        let cache = Arc::new(PartCache::new(1 << 20));
        let PartLookup::Lead(lead) = cache.turn(&key(1)) else { panic!("the first one leads") };
        let PartLookup::Wait(mut waiting) = cache.turn(&key(1)) else { panic!("the second one waits") };
        drop(lead);
        assert!(waiting.wait_for(Option::is_some).await.is_err());
        assert!(matches!(cache.turn(&key(1)), PartLookup::Lead(_)));
    }

    #[test]
    fn the_bytes_are_bounded_whatever_the_parts() {
        let cache = Arc::new(PartCache::new(10_000));
        for number in 0..1_000 {
            get(&cache, number, (number as usize * 37) % 4_000);
            assert!(cache.bytes() <= 10_000, "{} bytes", cache.bytes());
        }
        assert!(cache.bytes() > 5_000, "it is used: {} bytes", cache.bytes());
        assert!(!get(&cache, 5_000, 20_000) && !get(&cache, 5_000, 20_000), "too long to be kept");
        let off = Arc::new(PartCache::new(0));
        assert!(!get(&off, 1, 10) && !get(&off, 1, 10));
        assert_eq!(off.bytes(), 0);
    }

    /// Goal: a part stays cached until the last of several peers asks for it, each a little behind the one before. This
    /// holds even when the cache has long been full of abandoned parts.
    #[test]
    fn peers_that_pass_one_after_another_share_parts() {
        const PEERS: u64 = 20;
        let cache = Arc::new(PartCache::new(32 << 20));
        let mut hits = 0;
        for turn in PEERS..500 {
            // Each peer is one part behind the one before it: 20 parts of 1 MiB lie between the first and the last.
            hits += (0..PEERS).filter(|peer| get(&cache, turn - peer, 1 << 20)).count();
        }
        let share = hits as f64 / ((500 - PEERS) * PEERS) as f64;
        assert!(share > 0.94, "hit rate {share}");
    }
}
