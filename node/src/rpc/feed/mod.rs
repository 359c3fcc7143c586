//! [`Feed`]: the news, made once for all listeners.
//!
//! ```text
//!  store's head ────▶ run: the head as JSON ─▶ tip moves ──────┐
//!  pool's arrivals ─▶ run: gathers for 10 ms ─▶ arrived moves ─┼─▶ every socket looks what its subscriptions lack
//!  health ──────────▶ run: once a second ──────▶ syncing ──────┘        │
//!                                                                        └─▶ logs: in the lanes of callers, kept here for the next who wants
//!                                                                            the same
//! ```
//!
//! Subscriptions have no queues: a subscription is a place in the ledger or in the pool's arrivals, as a filter is. The feed makes
//! a head for each batch, and the JSON of each transaction, once for all listeners, and only while somebody listens. Work that
//! grows with subscriptions runs in their owners' names.

mod receipts;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use alloy_primitives::B256;
use parking_lot::Mutex;
use quick_cache::{Weighter, sync::Cache};
use serde_json::json;
use slipstream_consensus::Pool;
use slipstream_executor::Transaction;
use slipstream_storage::{StorageError, Store};
use slipstream_types::{BatchNumber, ChainConfig};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tokio_util::sync::CancellationToken;

pub(crate) use self::receipts::Awaited;
use self::receipts::Waiting;
use super::{
    RpcContext, batches::Batch, blocks, errors::RpcError, logs::bloom, subscriptions::Kind, syncing,
    transactions,
};
use crate::{api::room::Room, blocking::Blocking, origin::Origin, sparse::Sparse, workers::Rank};

/// Heads that are kept as text, some 200 KiB: a listener that is further behind makes them again.
const HEADS_MAX: u64 = 128;
/// Arrivals of so long are told at once, so that ten thousand a second do not wake every socket as often.
const GATHERED: Duration = Duration::from_millis(10);
/// How often it is looked whether the node is syncing.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Logs and transactions that are kept as text for others who want the same.
const MATCHES_BYTES_MAX: u64 = 8 << 20;
const SHOWN_BYTES_MAX: u64 = 8 << 20;
/// How many of them there are, about: sizes the tables.
const KEPT_EXPECTED: usize = 4_096;
/// The memory of one entry beside its text.
const KEPT_BYTES: u64 = 128;
/// The room for the criteria of all subscriptions, and the part of it that strangers leave to the operator's hosts.
const SUBSCRIPTIONS_BYTES_MAX: usize = 16 << 20;
const SUBSCRIPTIONS_BYTES_RESERVED: usize = SUBSCRIPTIONS_BYTES_MAX / 8;

/// A batch as those see it who listen for new ones.
pub(super) struct Head {
    /// The header as JSON.
    pub(super) text: Arc<str>,
    /// The filter of its logs, as the index has it; `None` if its receipts are missing.
    pub(super) bloom: Option<Vec<u8>>,
}

impl Head {
    fn of(chain: &ChainConfig, batch: &Batch) -> Result<Head, RpcError> {
        let mut header = blocks::to_header(chain, batch);
        // A size is a block's, and geth's heads have none.
        header.size = None;
        let text =
            serde_json::to_string(&header).map_err(|error| RpcError::internal("eth_subscribe", &error))?;
        Ok(Head { text: text.into(), bloom: batch.receipts.as_ref().map(bloom::of) })
    }
}

/// The logs of a batch that some criteria find, as JSON.
pub(super) type Matched = Arc<[Arc<str>]>;

/// Weighs kept texts by their bytes.
#[derive(Clone)]
pub(super) struct Bytes;

impl Weighter<(BatchNumber, B256), Matched> for Bytes {
    fn weight(&self, _: &(BatchNumber, B256), logs: &Matched) -> u64 {
        KEPT_BYTES + logs.iter().map(|log| KEPT_BYTES + log.len() as u64).sum::<u64>()
    }
}

impl Weighter<B256, Arc<str>> for Bytes {
    fn weight(&self, _: &B256, text: &Arc<str>) -> u64 {
        KEPT_BYTES + text.len() as u64
    }
}

/// The feed of news, as the module describes.
pub(crate) struct Feed {
    pub(super) pool: Pool,
    tip: watch::Sender<BatchNumber>,
    arrived: watch::Sender<u64>,
    syncing: watch::Sender<Syncing>,
    heads: Mutex<BTreeMap<BatchNumber, Arc<Head>>>,
    /// By batch and by the name of the criteria.
    pub(super) matches: Cache<(BatchNumber, B256), Matched, Bytes>,
    shown: Cache<B256, Arc<str>, Bytes>,
    waiting: Waiting,
    listeners: [AtomicUsize; Kind::ALL.len()],
    /// Those who want transactions whole.
    whole_listeners: AtomicUsize,
    /// The room for the subscriptions' criteria.
    pub(super) room: Room,
    stopping: CancellationToken,
}

/// The news of the node's own progress; `None` before the first look.
pub(super) type Syncing = Option<(bool, Arc<str>)>;

/// The present state of all that is told.
pub(super) struct Now {
    pub(super) tip: BatchNumber,
    pub(super) arrived: u64,
    pub(super) syncing: Syncing,
}

/// Tells that there is more than before.
pub(crate) struct News {
    tip: watch::Receiver<BatchNumber>,
    arrived: watch::Receiver<u64>,
    syncing: watch::Receiver<Syncing>,
}

impl News {
    /// Returns when there is more than at the last time; never after the feed has ended.
    pub(crate) async fn changed(&mut self) {
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

/// Somebody listens, until this is dropped.
pub(super) struct Listens {
    feed: Arc<Feed>,
    kind: Kind,
    is_whole: bool,
}

impl Listens {
    /// For transactions whole, and not for their hashes alone.
    pub(super) fn whole(mut self) -> Listens {
        if !std::mem::replace(&mut self.is_whole, true) {
            self.feed.whole_listeners.fetch_add(1, Ordering::SeqCst);
        }
        self
    }
}

impl Drop for Listens {
    fn drop(&mut self) {
        self.feed.listeners[self.kind as usize].fetch_sub(1, Ordering::SeqCst);
        if self.is_whole {
            self.feed.whole_listeners.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Feed {
    /// The feed of a store and a pool, from now on.
    ///
    /// # Errors
    /// If the store has no head.
    pub(crate) fn new(store: &Store, pool: Pool) -> Result<Arc<Feed>, StorageError> {
        let head = store.head()?.header.number;
        Ok(Arc::new(Feed {
            tip: watch::Sender::new(head),
            arrived: watch::Sender::new(pool.arrivals()),
            syncing: watch::Sender::new(None),
            pool,
            heads: Mutex::default(),
            matches: Cache::with_weighter(KEPT_EXPECTED, MATCHES_BYTES_MAX, Bytes),
            shown: Cache::with_weighter(KEPT_EXPECTED, SHOWN_BYTES_MAX, Bytes),
            waiting: Waiting::default(),
            listeners: Default::default(),
            whole_listeners: AtomicUsize::new(0),
            room: Room::new(SUBSCRIPTIONS_BYTES_MAX, SUBSCRIPTIONS_BYTES_RESERVED),
            stopping: CancellationToken::new(),
        }))
    }

    /// Follows the node until it is told to stop.
    pub(crate) async fn run(self: Arc<Self>, context: Arc<RpcContext>, shutdown: CancellationToken) {
        let (blocking, behind) =
            (Blocking::new("rpc feed", 1, Rank::Own), Blocking::new("rpc shown", 1, Rank::Behind));
        let (mut head, mut arrivals) = (context.store.watch_head(), context.pool.watch_arrivals());
        let mut looks = interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut resumes = Instant::now();
        let _stopped = self.stopping.clone().drop_guard();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                changed = head.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let number = *head.borrow_and_update();
                    if self.is_wanted() {
                        let (feed, context) = (self.clone(), context.clone());
                        told(blocking.run(Origin::Trusted, move || feed.make(&context, number)).await);
                    }
                    self.tip.send_replace(number);
                }
                changed = async { sleep_until(resumes).await; arrivals.changed().await } => {
                    if changed.is_err() {
                        return;
                    }
                    let count = *arrivals.borrow_and_update();
                    if self.whole_listeners.load(Ordering::SeqCst) > 0 {
                        let feed = self.clone();
                        told(behind.run(Origin::Trusted, move || feed.show(count)).await);
                    }
                    self.arrived.send_replace(count);
                    resumes = Instant::now() + GATHERED;
                }
                _ = looks.tick(), if self.listens(Kind::Syncing) => {
                    let (feed, context) = (self.clone(), context.clone());
                    told(blocking.run(Origin::Trusted, move || feed.look(&context)).await);
                }
            }
        }
    }

    fn listens(&self, kind: Kind) -> bool {
        self.listeners[kind as usize].load(Ordering::SeqCst) > 0
    }

    /// Whether anybody wants to know of new batches.
    fn is_wanted(&self) -> bool {
        self.listens(Kind::NewHeads) || self.listens(Kind::Logs) || !self.waiting.is_empty()
    }

    /// The heads behind the tip up to a batch, the last ones if they are many.
    fn make(&self, context: &RpcContext, last: BatchNumber) -> Result<(), RpcError> {
        let tip = *self.tip.borrow();
        for number in tip.next().max(last.before(HEADS_MAX - 1)).through(last) {
            if let Some(batch) = context.batches.get(number)? {
                self.keep(number, Head::of(&context.chain, &batch)?);
                self.waiting.tell(&batch.hashes);
            }
        }
        Ok(())
    }

    /// The arrivals behind the last one that was told, as far as they are whole.
    fn show(&self, count: u64) -> Result<(), RpcError> {
        let told = *self.arrived.borrow();
        let arrived =
            self.pool.arrived_whole_since(told, count.saturating_sub(told) as usize).unwrap_or_default();
        arrived.iter().try_for_each(|transaction| self.shown_made(transaction).map(drop))
    }

    fn keep(&self, number: BatchNumber, head: Head) -> Arc<Head> {
        let head = Arc::new(head);
        let mut heads = self.heads.lock();
        heads.insert(number, head.clone());
        while heads.len() as u64 > HEADS_MAX {
            heads.pop_first();
        }
        head
    }

    /// Whether the node is syncing, told when that changes.
    fn look(&self, context: &RpcContext) -> Result<(), RpcError> {
        let status = syncing(context).map_err(|error| RpcError::Rejected(error.message().to_owned()))?;
        let is_syncing = status.is_object();
        let text = if is_syncing {
            json!({ "syncing": true, "status": status }).to_string()
        } else {
            "false".into()
        };
        self.syncing.send_if_modified(|told| {
            let is_news = told.as_ref().is_none_or(|(was, _)| *was != is_syncing);
            if is_news {
                *told = Some((is_syncing, text.into()));
            }
            is_news
        });
        Ok(())
    }

    /// Listens for a kind of news. A caller must listen before it reads its place, or it misses the news in between.
    pub(super) fn listen(self: &Arc<Self>, kind: Kind) -> Listens {
        self.listeners[kind as usize].fetch_add(1, Ordering::SeqCst);
        Listens { feed: self.clone(), kind, is_whole: false }
    }

    /// Tells when there is more than now.
    pub(crate) fn news(&self) -> News {
        News {
            tip: self.tip.subscribe(),
            arrived: self.arrived.subscribe(),
            syncing: self.syncing.subscribe(),
        }
    }

    pub(super) fn now(&self) -> Now {
        let (tip, arrived) = (*self.tip.borrow(), *self.arrived.borrow());
        Now { tip, arrived, syncing: self.syncing.borrow().clone() }
    }

    /// A head that is kept.
    pub(super) fn head(&self, number: BatchNumber) -> Option<Arc<Head>> {
        self.heads.lock().get(&number).cloned()
    }

    /// The head of a batch, made if it is not kept; `None` if the batch is missing.
    pub(super) fn head_made(
        &self,
        context: &RpcContext,
        number: BatchNumber,
    ) -> Result<Option<Arc<Head>>, RpcError> {
        if let Some(head) = self.head(number) {
            return Ok(Some(head));
        }
        let Some(batch) = context.batches.get(number)? else { return Ok(None) };
        Ok(Some(self.keep(number, Head::of(&context.chain, &batch)?)))
    }

    /// A transaction that reached the pool, as JSON, if somebody wanted it before.
    pub(super) fn shown(&self, hash: &B256) -> Option<Arc<str>> {
        self.shown.get(hash)
    }

    /// The same, written by the first one that wants it.
    pub(super) fn shown_made(&self, transaction: &Transaction) -> Result<Arc<str>, RpcError> {
        self.shown.get_or_insert_with(&transaction.hash, || {
            let text = serde_json::to_string(&transactions::pending(transaction));
            text.map(Into::into).map_err(|error| RpcError::internal("eth_subscribe", &error))
        })
    }
}

/// If the feed cannot make a text, its reader makes it again, and reports the error there.
fn told(made: Result<Result<(), RpcError>, crate::workers::WorkError>) {
    static FAILURES: Sparse = Sparse::new();
    let reason = match made {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    if let Some(more) = FAILURES.pass(std::time::Instant::now()) {
        tracing::warn!(%reason, more, "news for subscriptions could not be made");
    }
}

#[cfg(test)]
impl Feed {
    /// Does at once what [`Feed::run`] does when the head moves.
    pub(crate) fn advance(&self, context: &RpcContext) {
        let head = context.store.head().unwrap().header.number;
        if self.is_wanted() {
            self.make(context, head).unwrap();
        }
        self.tip.send_replace(head);
        self.arrived.send_replace(context.pool.arrivals());
        self.look(context).unwrap();
    }
}
