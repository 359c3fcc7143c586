//! [`Feed`]: the news, produced once for all listeners.
//!
//! ```text
//!  store's head ────▶ the head as JSON ──────────┐
//!  pool's arrivals ─▶ copied, once in 10 ms ─────┼─▶ signal, low priority ──▶ every socket checks what its subscriptions lack
//!  health ──────────▶ checked once a second ─────┘                            └─▶ logs: in the lanes of callers, cached here
//!                                                                                 for subscriptions with the same criteria
//! ```
//!
//! Subscriptions have no queues. Like a filter, a subscription is a position in the ledger or in the pool's arrivals.
//! The feed builds a head for each batch, and the JSON of each transaction, once for all listeners, and only while
//! somebody listens. Work that grows with subscriptions runs on behalf of their owners.
//!
//! A low-priority thread serves the sockets and may be suspended at any point for long. It therefore reads neither pool
//! nor store. The data it reads here is written by another low-priority thread, so no other thread waits for a lock
//! that it holds.

mod arrived;
mod kind;
mod receipts;
mod run;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use alloy_primitives::B256;
use parking_lot::Mutex;
use quick_cache::{Weighter, sync::Cache};
use slipstream_consensus::Pool;
use slipstream_fair::Quota;
use slipstream_storage::{StorageError, Store};
use slipstream_types::{BatchNumber, ChainConfig};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::{arrived::RecentArrivals, receipts::Waiting};
pub(crate) use self::{kind::SubscriptionKind, receipts::ReceiptWait};
use super::{
    RpcContext,
    batches::{Batch, BatchParts, Reader},
    blocks,
    errors::RpcError,
    logs::bloom,
};

/// Maximum number of heads that are kept as text, some 200 KiB. A listener further behind builds them again.
const HEADS_MAX: u64 = 128;
/// Memory limit for logs that are cached as text for listeners with the same criteria.
const MATCHES_BYTES_MAX: u64 = 8 << 20;
/// The approximate number of cached entries: sizes the table.
const KEPT_EXPECTED: usize = 4_096;
/// The memory of one entry besides its text.
const KEPT_BYTES: u64 = 128;
/// The memory for the criteria of all subscriptions, and the part of it reserved for the operator's hosts.
const SUBSCRIPTIONS_BYTES_MAX: usize = 16 << 20;
const SUBSCRIPTIONS_BYTES_RESERVED: usize = SUBSCRIPTIONS_BYTES_MAX / 8;

/// A batch as listeners for new heads see it.
pub(super) struct Head {
    /// The header as JSON.
    pub(super) text: Arc<str>,
    /// The filter of its logs, in the index's form; `None` if its receipts are missing.
    pub(super) bloom: Option<Vec<u8>>,
}

impl Head {
    fn of(chain: &ChainConfig, batch: &Batch) -> Result<Head, RpcError> {
        let text = serde_json::to_string(&blocks::to_header(chain, batch));
        let text = text.map_err(|error| RpcError::internal("eth_subscribe", &error))?;
        Ok(Head { text: text.into(), bloom: batch.receipts().ok().map(bloom::of) })
    }
}

/// A batch's logs that match some criteria, as JSON.
pub(super) type MatchedLogs = Arc<[Arc<str>]>;

/// Weighs cached texts by their bytes.
#[derive(Clone)]
pub(super) struct Bytes;

impl Weighter<(BatchNumber, B256), MatchedLogs> for Bytes {
    fn weight(&self, _: &(BatchNumber, B256), logs: &MatchedLogs) -> u64 {
        KEPT_BYTES + logs.iter().map(|log| KEPT_BYTES + log.len() as u64).sum::<u64>()
    }
}

/// The feed of news, as the module describes.
pub struct Feed {
    pool: Pool,
    tip: watch::Sender<BatchNumber>,
    arrived: watch::Sender<u64>,
    syncing: watch::Sender<Syncing>,
    heads: Mutex<BTreeMap<BatchNumber, Arc<Head>>>,
    /// The latest arrivals in the pool.
    pub(super) pending: RecentArrivals,
    /// Matching logs, by batch and by the id of the criteria.
    pub(super) matches: Cache<(BatchNumber, B256), MatchedLogs, Bytes>,
    waiting: Waiting,
    listeners: [AtomicUsize; SubscriptionKind::ALL.len()],
    /// The number of listeners for full transactions.
    whole_listeners: AtomicUsize,
    /// The memory for the subscriptions' criteria.
    pub(super) room: Quota,
    stopping: CancellationToken,
}

/// The news of the node's own progress; `None` before the first check.
pub(super) type Syncing = Option<(bool, Arc<str>)>;

/// The current position of each kind of news.
pub(super) struct NewsPositions {
    pub(super) tip: BatchNumber,
    pub(super) arrived: u64,
    pub(super) syncing: Syncing,
}

/// Signals fresh news.
pub struct NewsSignal {
    tip: watch::Receiver<BatchNumber>,
    arrived: watch::Receiver<u64>,
    syncing: watch::Receiver<Syncing>,
}

impl NewsSignal {
    /// Returns when there is news since the last call; never returns after the feed has ended.
    pub async fn changed(&mut self) {
        let changed = tokio::select! {
            changed = self.tip.changed() => changed,
            changed = self.arrived.changed() => changed,
            changed = self.syncing.changed() => changed,
        };
        if changed.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// A listener's registration, until this is dropped.
pub(super) struct ListenerRegistration {
    feed: Arc<Feed>,
    kind: SubscriptionKind,
    is_whole: bool,
}

impl ListenerRegistration {
    /// Listens for full transactions, not only for their hashes.
    pub(super) fn whole(mut self) -> ListenerRegistration {
        if !std::mem::replace(&mut self.is_whole, true) {
            self.feed.whole_listeners.fetch_add(1, Ordering::SeqCst);
        }
        self
    }
}

impl Drop for ListenerRegistration {
    fn drop(&mut self) {
        self.feed.listeners[self.kind as usize].fetch_sub(1, Ordering::SeqCst);
        if self.is_whole {
            self.feed.whole_listeners.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Feed {
    /// Builds the feed of a store and a pool, starting at their present positions.
    ///
    /// # Errors
    /// If the store has no head.
    pub fn new(store: &Store, pool: Pool) -> Result<Arc<Feed>, StorageError> {
        let head = store.head()?.header.number;
        let arrivals = pool.arrivals();
        Ok(Arc::new(Feed {
            tip: watch::Sender::new(head),
            arrived: watch::Sender::new(arrivals),
            syncing: watch::Sender::new(None),
            pool,
            heads: Mutex::default(),
            pending: RecentArrivals::new(arrivals),
            matches: Cache::with_weighter(KEPT_EXPECTED, MATCHES_BYTES_MAX, Bytes),
            waiting: Waiting::default(),
            listeners: Default::default(),
            whole_listeners: AtomicUsize::new(0),
            room: Quota::new(SUBSCRIPTIONS_BYTES_MAX, SUBSCRIPTIONS_BYTES_RESERVED),
            stopping: CancellationToken::new(),
        }))
    }

    fn listens(&self, kind: SubscriptionKind) -> bool {
        self.listeners[kind as usize].load(Ordering::SeqCst) > 0
    }

    /// Whether anyone wants to hear of new batches.
    fn is_wanted(&self) -> bool {
        self.listens(SubscriptionKind::NewHeads)
            || self.listens(SubscriptionKind::Logs)
            || !self.waiting.is_empty()
    }

    fn keep(&self, number: BatchNumber, head: Arc<Head>) {
        let mut heads = self.heads.lock();
        heads.insert(number, head);
        while heads.len() as u64 > HEADS_MAX {
            heads.pop_first();
        }
    }

    /// Registers a listener for a kind of news. A caller must register before it reads its position, or it misses the
    /// news in between.
    pub(super) fn listen(self: &Arc<Self>, kind: SubscriptionKind) -> ListenerRegistration {
        self.listeners[kind as usize].fetch_add(1, Ordering::SeqCst);
        ListenerRegistration { feed: self.clone(), kind, is_whole: false }
    }

    /// Returns a signal that fires on news later than now.
    pub fn news(&self) -> NewsSignal {
        NewsSignal {
            tip: self.tip.subscribe(),
            arrived: self.arrived.subscribe(),
            syncing: self.syncing.subscribe(),
        }
    }

    pub(super) fn now(&self) -> NewsPositions {
        let (tip, arrived) = (*self.tip.borrow(), *self.arrived.borrow());
        NewsPositions { tip, arrived, syncing: self.syncing.borrow().clone() }
    }

    /// The number after the last announced arrival.
    pub(super) fn arrivals(&self) -> u64 {
        self.pending.end()
    }

    /// Returns a cached head.
    pub(super) fn head(&self, number: BatchNumber) -> Option<Arc<Head>> {
        self.heads.lock().get(&number).cloned()
    }

    /// Returns the head of a batch and builds it if it is not cached; `None` if the batch is missing.
    pub(super) fn head_made(
        &self,
        context: &RpcContext,
        number: BatchNumber,
    ) -> Result<Option<Arc<Head>>, RpcError> {
        if let Some(head) = self.head(number) {
            return Ok(Some(head));
        }
        let batch = context.batches.get(number, BatchParts::Receipts, Reader::NODE)?;
        let Some(batch) = batch else { return Ok(None) };
        let head = Arc::new(Head::of(&context.chain, &batch)?);
        self.keep(number, head.clone());
        Ok(Some(head))
    }
}
