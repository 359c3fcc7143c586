//! [`PartCache`]: reads, proves and compresses once what many peers request alike.

use std::{collections::HashMap, sync::Arc};

use alloy_primitives::bytes::Bytes;
use parking_lot::Mutex;
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter, unsync};
use slipstream_network::Refusal;
use tokio::sync::watch;

/// Bytes of memory that an entry takes beside its key and its content, about.
const ENTRY_BYTES: u64 = 256;
/// Bytes of an entry on average, about: sizes the cache's memory of keys that it dropped lately.
const PART_BYTES_EXPECTED: u64 = 1 << 20;
/// Share of the cache for parts that were asked for repeatedly. Followers pass over a chain once, so past favourites are
/// never asked for again. With the crate's default of 0.97, the next parts would have no room.
const HOT_SHARE: f64 = 0.5;

/// The bytes of a normalised request: equal keys have equal parts, on every day and under every head.
pub(super) type Key = Box<[u8]>;

/// An answer, or of a range the part that does not change with the server's head.
#[derive(Debug)]
pub(super) struct Part {
    /// Encoded. Every asker gets these same bytes.
    pub(super) bytes: Bytes,
    /// Batches in it, of a range; else 0.
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

/// Encoded parts up to a number of bytes, and those under way: further askers wait for such a part (single flight). Refusals
/// are not kept.
pub(super) struct PartCache {
    inner: Mutex<Inner>,
}

struct Inner {
    parts: unsync::Cache<Key, Arc<Part>, Weight>,
    /// Each made by one [`Lead`], so there are no more of them than requests under way.
    flights: HashMap<Key, watch::Receiver<Option<Outcome>>>,
    hits: u64,
    misses: u64,
}

/// An asker's next step.
pub(super) enum Turn {
    /// The cached part.
    Hit(Arc<Part>),
    /// Somebody makes it. The channel closes without it when that asker leaves before the work begins.
    Wait(watch::Receiver<Option<Outcome>>),
    /// This asker is to make the part.
    Lead(Lead),
}

/// The duty to make one part. Dropped without [`Lead::land`], it passes to the next asker.
pub(super) struct Lead {
    cache: Arc<PartCache>,
    key: Key,
    waiting: watch::Sender<Option<Outcome>>,
}

impl PartCache {
    /// Keeps parts of at most this many bytes; with 0 it only lets those who ask at the same time share.
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

    /// The part, or how to get it. One lock over both maps: a part that lands between two looks would be made twice.
    pub(super) fn turn(self: &Arc<Self>, key: &Key) -> Turn {
        let mut inner = self.inner.lock();
        if let Some(part) = inner.parts.get(key).cloned() {
            inner.hits += 1;
            return Turn::Hit(part);
        }
        if let Some(flight) = inner.flights.get(key).cloned() {
            inner.hits += 1;
            return Turn::Wait(flight);
        }
        let (waiting, flight) = watch::channel(None);
        inner.flights.insert(key.clone(), flight);
        inner.misses += 1;
        Turn::Lead(Lead { cache: self.clone(), key: key.clone(), waiting })
    }

    /// Whether a part is there, or being made.
    pub(super) fn has(&self, key: &Key) -> bool {
        let inner = self.inner.lock();
        inner.flights.contains_key(key) || inner.parts.peek(key).is_some()
    }

    /// Parts that were there or under way, and parts that had to be made.
    pub(super) fn hits_and_misses(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.hits, inner.misses)
    }

    /// Bytes of the parts that are kept.
    pub(super) fn bytes(&self) -> u64 {
        self.inner.lock().parts.weight()
    }
}

impl Lead {
    /// Keeps the part and hands it to all who wait. They get a refusal too, which goes unkept; so it must concern them all.
    pub(super) fn land(self, outcome: Outcome) {
        if let Ok(part) = &outcome {
            self.cache.inner.lock().parts.insert(self.key.clone(), part.clone());
        }
        self.waiting.send_replace(Some(outcome));
    }
}

impl Drop for Lead {
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

    /// Gets a part as an asker does who asks alone. True if it was there.
    fn get(cache: &Arc<PartCache>, number: u64, bytes: usize) -> bool {
        match cache.turn(&key(number)) {
            Turn::Hit(_) => true,
            Turn::Wait(_) => panic!("nobody else asks"),
            Turn::Lead(lead) => {
                lead.land(Ok(part(bytes)));
                false
            }
        }
    }

    #[test]
    fn one_makes_a_part_and_the_others_wait_for_it() {
        let cache = Arc::new(PartCache::new(1 << 20));
        let Turn::Lead(lead) = cache.turn(&key(1)) else { panic!("the first one leads") };
        let Turn::Wait(waiting) = cache.turn(&key(1)) else { panic!("the second one waits") };
        lead.land(Ok(part(100)));
        assert_eq!(waiting.borrow().as_ref().unwrap().as_ref().unwrap().bytes, vec![7; 100]);
        assert!(matches!(cache.turn(&key(1)), Turn::Hit(_)));
        assert!(matches!(cache.turn(&key(2)), Turn::Lead(_)));
        assert_eq!(cache.hits_and_misses(), (2, 2));
    }

    #[test]
    fn refusals_are_shared_but_not_kept() {
        let cache = Arc::new(PartCache::new(1 << 20));
        let Turn::Lead(lead) = cache.turn(&key(1)) else { panic!("the first one leads") };
        let Turn::Wait(waiting) = cache.turn(&key(1)) else { panic!("the second one waits") };
        lead.land(Err(Refusal::not_kept("not kept")));
        assert!(waiting.borrow().as_ref().unwrap().is_err());
        assert!(matches!(cache.turn(&key(1)), Turn::Lead(_)));
    }

    #[tokio::test]
    async fn when_the_leader_leaves_the_next_asker_leads() {
        let cache = Arc::new(PartCache::new(1 << 20));
        let Turn::Lead(lead) = cache.turn(&key(1)) else { panic!("the first one leads") };
        let Turn::Wait(mut waiting) = cache.turn(&key(1)) else { panic!("the second one waits") };
        drop(lead);
        assert!(waiting.wait_for(Option::is_some).await.is_err());
        assert!(matches!(cache.turn(&key(1)), Turn::Lead(_)));
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

    /// Goal: a part that peers a little apart ask for stays until the last of them comes. It stays too when the cache has
    /// long been full of abandoned parts.
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
