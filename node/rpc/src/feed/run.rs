//! How the feed follows the node. Each piece of news is read on a thread of the node's own rank, and announced on a
//! low-priority one: see [`Feed`].

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use alloy_primitives::B256;
use serde_json::json;
use slipstream_base::log_rate_limit::LogRateLimit;
use slipstream_executor::Transaction;
use slipstream_fair::{Blocking, Origin, Rank, WorkError};
use slipstream_types::BatchNumber;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::{Feed, HEADS_MAX, Head, SubscriptionKind, arrived::Arrival};
use crate::{
    RpcContext,
    batches::{BatchParts, Reader},
    errors::RpcError,
    syncing,
};

/// Arrivals within this time are announced together, so that ten thousand a second do not wake every socket ten
/// thousand times.
const GATHERED: Duration = Duration::from_millis(10);
/// How often the feed checks whether the node is syncing.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of arrivals that are copied from the pool at once, while the pool is blocked.
const COPIED_MAX: usize = 256;

/// The threads of the feed.
struct Threads {
    /// Reads the store and the pool, and takes no lock that sockets take.
    own: Blocking,
    /// Announces news to the sockets.
    behind: Blocking,
}

impl Threads {
    async fn tell(&self, telling: impl FnOnce() + Send + 'static) {
        made(self.behind.run(Origin::Trusted, telling).await.map(Ok));
    }
}

/// The arrivals in the pool since the last copy.
enum Copied {
    All(Vec<Transaction>),
    /// The pool has forgotten some transactions, but not their hashes, of which it keeps many more.
    Hashes(Vec<B256>),
    /// The pool has forgotten some of the hashes, too.
    Lost,
    /// Nobody listened, so nothing was copied.
    Unwanted,
}

impl Feed {
    /// Follows the node until `shutdown`.
    pub async fn run(self: Arc<Self>, context: Arc<RpcContext>, shutdown: CancellationToken) {
        let threads = Threads {
            own: Blocking::new("rpc feed", 1, Rank::Own),
            behind: Blocking::new("rpc shown", 1, Rank::Behind),
        };
        let _stopped = self.stopping.clone().drop_guard();
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.follow_head(&context, &threads) => {}
            () = self.follow_pool(&threads) => {}
            () = self.follow_health(&context, &threads) => {}
        }
    }

    /// Follows the head until the store is closed.
    async fn follow_head(self: &Arc<Self>, context: &Arc<RpcContext>, threads: &Threads) {
        let mut head = context.store.watch_head();
        let mut told = *self.tip.borrow();
        while head.changed().await.is_ok() {
            let number = *head.borrow_and_update();
            let mut heads = Vec::new();
            if self.is_wanted() {
                let (feed, context) = (self.clone(), context.clone());
                let making = move || feed.make(&context, told, number);
                heads = made(threads.own.run(Origin::Trusted, making).await).unwrap_or_default();
            }
            let feed = self.clone();
            threads.tell(move || feed.tell_heads(heads, number)).await;
            told = number;
        }
    }

    /// Follows the arrivals until the pool is closed.
    async fn follow_pool(self: &Arc<Self>, threads: &Threads) {
        let mut arrivals = self.pool.watch_arrivals();
        while arrivals.changed().await.is_ok() {
            let count = *arrivals.borrow_and_update();
            let mut copied = Copied::Unwanted;
            if self.listens(SubscriptionKind::Pending) {
                let feed = self.clone();
                let copying = move || Ok(feed.copy(count));
                copied = made(threads.own.run(Origin::Trusted, copying).await).unwrap_or(Copied::Lost);
            }
            let feed = self.clone();
            threads.tell(move || feed.tell_arrivals(copied, count)).await;
            sleep(GATHERED).await;
        }
    }

    /// Follows the sync status; never returns.
    async fn follow_health(self: &Arc<Self>, context: &Arc<RpcContext>, threads: &Threads) {
        let mut looks = interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            if self.listens(SubscriptionKind::Syncing) {
                let (feed, context) = (self.clone(), context.clone());
                let looking = move || look(&context);
                if let Some((is_syncing, text)) = made(threads.own.run(Origin::Trusted, looking).await) {
                    threads.tell(move || feed.tell_syncing(is_syncing, text)).await;
                }
            }
        }
    }

    /// Builds the heads after batch `told` up to batch `last`; only the latest of them if there are many. Wakes callers
    /// that await receipts.
    fn make(
        &self,
        context: &RpcContext,
        told: BatchNumber,
        last: BatchNumber,
    ) -> Result<Vec<(BatchNumber, Arc<Head>)>, RpcError> {
        let mut heads = Vec::new();
        for number in told.next().max(last.before(HEADS_MAX - 1)).through(last) {
            let parts = if self.waiting.is_empty() { BatchParts::Receipts } else { BatchParts::Both };
            if let Some(batch) = context.batches.get(number, parts, Reader::NODE)? {
                self.waiting.tell(batch.hashes());
                heads.push((number, Arc::new(Head::of(&context.chain, &batch)?)));
            }
        }
        Ok(heads)
    }

    fn tell_heads(&self, heads: Vec<(BatchNumber, Arc<Head>)>, tip: BatchNumber) {
        heads.into_iter().for_each(|(number, head)| self.keep(number, head));
        self.tip.send_replace(tip);
    }

    /// Copies the arrivals since the last announced one, up to `count`.
    fn copy(&self, count: u64) -> Copied {
        let from = self.pending.end();
        if let Some(whole) = in_parts(from, count, |next, max| self.pool.arrived_whole_since(next, max)) {
            return Copied::All(whole);
        }
        let hashes = in_parts(from, count, |next, max| {
            let (hashes, after) = self.pool.arrived_since(next, max);
            (after == next + hashes.len() as u64).then_some(hashes)
        });
        hashes.map_or(Copied::Lost, Copied::Hashes)
    }

    /// Announces the arrivals up to `count`.
    fn tell_arrivals(&self, copied: Copied, count: u64) {
        match copied {
            Copied::All(copied) => {
                let arrivals: Vec<_> = copied.into_iter().map(Arrival::new).collect();
                if self.whole_listeners.load(Ordering::SeqCst) > 0 {
                    // A reader that finds an unformatted transaction formats it, and reports the error.
                    arrivals.iter().for_each(|arrival| drop(arrival.whole()));
                }
                self.pending.push(arrivals);
            }
            Copied::Hashes(hashes) => self.pending.push_hashes(&hashes),
            Copied::Lost => self.pending.lose(count),
            Copied::Unwanted => self.pending.skip(count),
        }
        self.arrived.send_replace(self.pending.end());
    }

    fn tell_syncing(&self, is_syncing: bool, text: Arc<str>) {
        self.syncing.send_if_modified(|told| {
            let is_news = told.as_ref().is_none_or(|(was, _)| *was != is_syncing);
            if is_news {
                *told = Some((is_syncing, text));
            }
            is_news
        });
    }
}

/// Reads the arrivals from `from` up to `count` in parts; `None` if a part is gone.
fn in_parts<T>(from: u64, count: u64, read: impl Fn(u64, usize) -> Option<Vec<T>>) -> Option<Vec<T>> {
    let (mut all, mut next) = (Vec::new(), from);
    while next < count {
        let max = COPIED_MAX.min(usize::try_from(count - next).unwrap_or(COPIED_MAX));
        let part = read(next, max).filter(|part| !part.is_empty())?;
        next += part.len() as u64;
        all.extend(part);
    }
    Some(all)
}

/// Whether the node is syncing, and the text that says so.
fn look(context: &RpcContext) -> Result<(bool, Arc<str>), RpcError> {
    let status = syncing(context).map_err(|error| RpcError::Rejected(error.message().to_owned()))?;
    let is_syncing = status.is_object();
    let text =
        if is_syncing { json!({ "syncing": true, "status": status }).to_string() } else { "false".into() };
    Ok((is_syncing, text.into()))
}

/// Returns the value, or logs the failure. The feed's reader then builds the value again and reports its error.
fn made<T>(made: Result<Result<T, RpcError>, WorkError>) -> Option<T> {
    static FAILURES: LogRateLimit = LogRateLimit::per_second();
    let reason = match made {
        Ok(Ok(made)) => return Some(made),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    if let Some(more) = FAILURES.pass(std::time::Instant::now()) {
        tracing::warn!(%reason, more, "cannot make the notifications for subscriptions");
    }
    None
}

#[cfg(test)]
impl Feed {
    /// Does at once what [`Feed::run`] does when the head moves.
    pub fn advance(&self, context: &RpcContext) {
        let (told, head) = (*self.tip.borrow(), context.store.head().unwrap().header.number);
        let heads = if self.is_wanted() { self.make(context, told, head).unwrap() } else { Vec::new() };
        self.tell_heads(heads, head);
        let count = context.pool.arrivals();
        let is_wanted = self.listens(SubscriptionKind::Pending);
        self.tell_arrivals(if is_wanted { self.copy(count) } else { Copied::Unwanted }, count);
        let (is_syncing, text) = look(context).unwrap();
        self.tell_syncing(is_syncing, text);
    }
}
