//! [`Subscriptions`]: the subscriptions of one socket, which share its memory and its owner's threads.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;
use prometheus::{IntCounterVec, IntGaugeVec};
use slipstream_fair::{Leash, Origin, QuotaShare};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::watch::{SUBSCRIPTION_BYTES, SubscriptionError, SubscriptionStep, Watch, Worker};
use crate::{
    RpcContext,
    errors::RpcError,
    feed::{Feed, ListenerRegistration, NewsPositions, NewsSignal, SubscriptionKind},
    lanes::Lane,
};

/// Maximum number of subscriptions of one socket: more than a page or an indexer has, few enough that a scan of all
/// takes no time.
const SUBSCRIPTIONS_MAX: usize = 256;
/// Maximum number of subscriptions of one socket of a kind without criteria. More would repeat the same news and let a
/// client draw much traffic for little.
const SUBSCRIPTIONS_ALIKE_MAX: usize = 8;

/// Bytes of a notice besides its result: the rest of its message, and its entry in the socket's queue.
const NOTICE_BYTES: usize = 192;

/// The number of subscriptions, and of notifications, by kind.
#[derive(Clone)]
pub struct Tallies {
    /// Open subscriptions by kind.
    pub subscriptions: IntGaugeVec,
    /// Notifications by kind.
    pub notifications: IntCounterVec,
}

/// One piece of news for one subscription.
pub struct Notice {
    /// The id of the subscription.
    pub id: u128,
    kind: SubscriptionKind,
    /// The result as JSON.
    result: Arc<str>,
}

impl Notice {
    /// The message that carries the notice.
    pub fn text(&self) -> String {
        let (id, result) = (self.id, &self.result);
        format!(
            r#"{{"jsonrpc":"2.0","method":"eth_subscription","params":{{"subscription":"0x{id:x}","result":{result}}}}}"#
        )
    }
}

/// The news that one step could produce.
#[derive(Default)]
pub struct NewsStep {
    /// The news for the subscriptions, in order.
    pub notices: Vec<Notice>,
    /// The lane whose thread must continue; `None` if all known news is in the step, or the step is full.
    pub needs: Option<Lane>,
    /// Whether the step ended because it was full.
    pub is_full: bool,
    bytes: usize,
    bytes_max: usize,
}

impl NewsStep {
    fn new(bytes_max: usize) -> NewsStep {
        NewsStep { bytes_max, ..NewsStep::default() }
    }

    /// Whether the step has room for another notice. The last notice may exceed the limit.
    pub(super) fn has_room(&mut self) -> bool {
        self.is_full |= self.bytes >= self.bytes_max;
        !self.is_full
    }

    pub(super) fn push(&mut self, id: u128, kind: SubscriptionKind, result: Arc<str>) {
        self.bytes += NOTICE_BYTES + result.len();
        self.notices.push(Notice { id, kind, result });
    }

    /// Notes that the rest needs a thread of `lane`; of two lanes, the costlier one wins.
    pub(super) fn needs(&mut self, lane: Lane) {
        self.needs = self.needs.max(Some(lane));
    }
}

/// The stages of a subscription up to its first news.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// The subscription may still be dropped: see [`PendingSubscription`].
    Made,
    /// The answer with its id belongs to this body, and may not be in the queue yet.
    Told(u64),
    Active,
}

struct Subscription {
    watch: Watch,
    stage: Stage,
    _share: QuotaShare,
    _listens: ListenerRegistration,
}

#[derive(Default)]
struct Set {
    all: BTreeMap<u128, Subscription>,
    /// The subscription that was served last. The next step starts after it, so that each gets its turn.
    last: u128,
}

/// The subscriptions of a socket, as the module describes.
pub struct Subscriptions {
    origin: Origin,
    feed: Arc<Feed>,
    tallies: Tallies,
    set: Mutex<Set>,
    /// One permit, held by the costly body of this socket that runs or whose answer is still unread.
    turns: Arc<Semaphore>,
}

impl Subscriptions {
    /// An empty set for a socket of this owner.
    pub fn new(origin: Origin, feed: Arc<Feed>, tallies: Tallies) -> Arc<Subscriptions> {
        let (set, turns) = (Mutex::default(), Arc::new(Semaphore::new(1)));
        Arc::new(Subscriptions { origin, feed, tallies, set, turns })
    }

    /// The socket's owner.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Whether the socket has no subscriptions.
    pub fn is_empty(&self) -> bool {
        self.set.lock().all.is_empty()
    }

    /// Whether the subscription `id` still exists.
    pub fn has(&self, id: u128) -> bool {
        self.set.lock().all.contains_key(&id)
    }

    /// Signals news.
    pub fn news(&self) -> NewsSignal {
        self.feed.news()
    }

    /// Call when the answers of `body` are in the socket's queue: subscriptions that they started may be served from
    /// now on.
    pub fn activate(&self, body: u64) {
        let mut set = self.set.lock();
        let told = set.all.values_mut().filter(|one| one.stage == Stage::Told(body));
        told.for_each(|one| one.stage = Stage::Active);
    }

    /// The news that can be sent without another thread.
    ///
    /// # Errors
    /// If one of the subscriptions cannot continue.
    pub fn step(&self, bytes_max: usize) -> Result<NewsStep, SubscriptionError> {
        self.go(None, bytes_max)
    }

    /// The news, built on a thread of callers.
    pub(super) fn work(
        &self,
        context: &RpcContext,
        leash: &Leash,
        bytes_max: usize,
    ) -> Result<NewsStep, SubscriptionError> {
        self.go(Some(Worker { context, leash }), bytes_max)
    }

    fn go(&self, worker: Option<Worker<'_>>, bytes_max: usize) -> Result<NewsStep, SubscriptionError> {
        let (now, mut step) = (self.feed.now(), NewsStep::new(bytes_max));
        for id in self.due(&now)? {
            if !step.has_room() {
                break;
            }
            let Some(mut watch) = self.set.lock().all.get(&id).map(|one| one.watch.clone()) else { continue };
            watch.go(SubscriptionStep { id, feed: &self.feed, now: &now, worker, step: &mut step })?;
            let mut set = self.set.lock();
            set.last = id;
            if let Some(one) = set.all.get_mut(&id) {
                one.watch = watch;
            }
        }
        for notice in &step.notices {
            self.tallies.notifications.with_label_values(&[notice.kind.name()]).inc();
        }
        Ok(step)
    }

    /// The subscriptions that may have news, starting after the one that was served last. Every arrival in the pool
    /// runs this, even at sockets with hundreds of subscriptions to other news.
    fn due(&self, now: &NewsPositions) -> Result<Vec<u128>, SubscriptionError> {
        let set = self.set.lock();
        let behind = set.all.range((Bound::Excluded(set.last), Bound::Unbounded));
        let active = behind.chain(set.all.range(..=set.last)).filter(|(_, one)| one.stage == Stage::Active);
        let mut due = Vec::new();
        for (id, one) in active {
            one.watch.check(now)?;
            if one.watch.is_behind(now) {
                due.push(*id);
            }
        }
        Ok(due)
    }

    fn remove(&self, id: u128) -> bool {
        let removed = self.set.lock().all.remove(&id);
        if let Some(one) = &removed {
            self.tallies.subscriptions.with_label_values(&[one.watch.kind().name()]).dec();
        }
        removed.is_some()
    }
}

impl Drop for Subscriptions {
    fn drop(&mut self) {
        for one in self.set.get_mut().all.values() {
            self.tallies.subscriptions.with_label_values(&[one.watch.kind().name()]).dec();
        }
    }
}

/// A requesting socket, with the number of its body.
#[derive(Clone)]
pub struct SubscriberSocket {
    subscriptions: Arc<Subscriptions>,
    body: u64,
    turn: CostlyTurn,
}

/// The turn of a costly body, held until the last clone is dropped.
pub type CostlyTurn = Arc<OnceLock<OwnedSemaphorePermit>>;

impl SubscriberSocket {
    /// The body of this number, on a socket with these subscriptions.
    pub fn new(subscriptions: Arc<Subscriptions>, body: u64) -> SubscriberSocket {
        SubscriberSocket { subscriptions, body, turn: CostlyTurn::default() }
    }

    /// The turn of the body; empty until the body turns out to be costly.
    pub fn turn(&self) -> CostlyTurn {
        self.turn.clone()
    }

    /// Waits until none of the socket's other costly bodies has the turn.
    pub async fn take_turn(&self) {
        // The semaphore is never closed.
        if let Ok(permit) = self.subscriptions.turns.clone().acquire_owned().await {
            let _ = self.turn.set(permit);
        }
    }

    /// Checks that there is room for a subscription with parameters of `params_bytes` bytes. Parsing long parameters
    /// costs much more than this check, and a refused caller may retry again and again.
    ///
    /// # Errors
    /// The errors of [`SubscriberSocket::begin`].
    pub(super) fn check(&self, kind: SubscriptionKind, params_bytes: usize) -> Result<(), RpcError> {
        check_count(&self.subscriptions.set.lock(), kind)?;
        let mut share = self.subscriptions.feed.room.share(self.subscriptions.origin);
        if share.grow_to(SUBSCRIPTION_BYTES + params_bytes) { Ok(()) } else { Err(too_much()) }
    }

    /// Creates a subscription, which starts when its answer is on its way.
    ///
    /// # Errors
    /// [`RpcError::TooMuch`] if the socket has too many subscriptions, or if the criteria of all listeners exceed their
    /// memory.
    pub(super) fn begin(
        &self,
        watch: Watch,
        listens: ListenerRegistration,
    ) -> Result<PendingSubscription, RpcError> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| {
            RpcError::Rejected(format!("cannot draw a random id from the operating system: {error}"))
        })?;
        let (id, kind) = (u128::from_le_bytes(random), watch.kind());
        let mut share = self.subscriptions.feed.room.share(self.subscriptions.origin);
        let mut set = self.subscriptions.set.lock();
        check_count(&set, kind)?;
        if !share.grow_to(watch.bytes()) {
            return Err(too_much());
        }
        let made = Subscription { watch, stage: Stage::Made, _share: share, _listens: listens };
        set.all.insert(id, made);
        drop(set);
        self.subscriptions.tallies.subscriptions.with_label_values(&[kind.name()]).inc();
        Ok(PendingSubscription { listening: self.clone(), id, is_told: false })
    }

    pub(super) fn end(&self, id: u128) -> bool {
        self.subscriptions.remove(id)
    }
}

/// Checks that a socket may have one more subscription of a kind.
fn check_count(set: &Set, kind: SubscriptionKind) -> Result<(), RpcError> {
    let alike = set.all.values().filter(|one| one.watch.kind() == kind).count();
    if set.all.len() >= SUBSCRIPTIONS_MAX
        || (kind != SubscriptionKind::Logs && alike >= SUBSCRIPTIONS_ALIKE_MAX)
    {
        let text = format!(
            "too many subscriptions: one connection may have {SUBSCRIPTIONS_MAX}, and {SUBSCRIPTIONS_ALIKE_MAX} of {}; end some",
            if kind == SubscriptionKind::Logs { "each other kind" } else { kind.name() }
        );
        return Err(RpcError::TooMuch(text));
    }
    Ok(())
}

fn too_much() -> RpcError {
    let text = "too many subscriptions on this node: subscribe to less, or poll eth_getLogs instead";
    RpcError::TooMuch(text.into())
}

/// A subscription whose answer is being built. Dropping this without [`PendingSubscription::told`] removes the
/// subscription.
pub struct PendingSubscription {
    listening: SubscriberSocket,
    id: u128,
    is_told: bool,
}

impl PendingSubscription {
    pub(super) fn id(&self) -> u128 {
        self.id
    }

    /// Call when the answer is on its way.
    pub(crate) fn told(mut self) {
        self.is_told = true;
        let mut set = self.listening.subscriptions.set.lock();
        if let Some(one) = set.all.get_mut(&self.id) {
            one.stage = Stage::Told(self.listening.body);
        }
    }
}

impl Drop for PendingSubscription {
    fn drop(&mut self) {
        if !self.is_told {
            self.listening.subscriptions.remove(self.id);
        }
    }
}
