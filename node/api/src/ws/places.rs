//! [`Sockets`]: the number of sockets, their owners, and which one is closed when all places are taken.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use slipstream_base::log_rate_limit::LogRateLimit;
use slipstream_config::ApiConfig;
use slipstream_fair::Origin;
use slipstream_rpc::{Feed, Subscriptions, Tallies};
use slipstream_status::metrics::Metrics;
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::thread::Thread;

/// The part of the connections that may be sockets, as a divisor: the others are left to HTTP.
const CONNECTIONS_SHARE: usize = 2;
/// The part of the sockets that is reserved for the operator's own hosts, as a divisor.
const RESERVED_SHARE: usize = 8;

/// All sockets of the API.
pub(crate) struct Sockets {
    sockets_max: usize,
    /// Whether pages of other sites may open sockets.
    are_pages_welcome: bool,
    feed: Arc<Feed>,
    started: Instant,
    taken: Mutex<TakenSockets>,
    sessions: TaskTracker,
    /// Started with the first socket.
    thread: Mutex<Option<Thread>>,
    closing: CancellationToken,
    pub(super) metrics: Arc<Metrics>,
}

#[derive(Default)]
struct TakenSockets {
    next: u64,
    places: BTreeMap<u64, One>,
}

struct One {
    owner: Origin,
    /// The time of its last request, or of its opening, in microseconds from the start. The sockets' thread writes it
    /// without the lock, because new sockets wait for that lock on threads of higher priority.
    asked: Arc<AtomicU64>,
    dismissed: CancellationToken,
}

impl Sockets {
    /// Creates places for the share of the configured connections that may be sockets.
    pub(crate) fn new(config: &ApiConfig, metrics: Arc<Metrics>, feed: &Arc<Feed>) -> Arc<Sockets> {
        Arc::new(Sockets {
            sockets_max: (config.max_connections.get() / CONNECTIONS_SHARE).max(1),
            are_pages_welcome: config.cors,
            feed: feed.clone(),
            started: Instant::now(),
            taken: Mutex::default(),
            sessions: TaskTracker::new(),
            thread: Mutex::default(),
            closing: CancellationToken::new(),
            metrics,
        })
    }

    pub(super) fn are_pages_welcome(&self) -> bool {
        self.are_pages_welcome
    }

    /// Returns a place for a socket of this owner. If all are taken, a socket of the address with most sockets is
    /// closed for it. An owner that would then have as many sockets as that address is refused. The operator's sockets
    /// always stay.
    pub(super) fn take(self: &Arc<Self>, owner: Origin) -> Option<SocketPlace> {
        let mut taken = self.taken.lock();
        let own = taken.places.values().filter(|one| one.owner == owner).count();
        let reserved = if owner.is_stranger() { self.sockets_max / RESERVED_SHARE } else { 0 };
        let free = self.sockets_max.saturating_sub(taken.places.len() + reserved);
        if !owner.may_take(own, 1, free) {
            let victim = taken.least_missed(owner, own)?;
            if let Some(one) = taken.places.remove(&victim) {
                one.dismissed.cancel();
            }
        }
        let (number, dismissed) = (taken.next, CancellationToken::new());
        taken.next += 1;
        let asked = Arc::new(AtomicU64::new(self.age_us()));
        taken.places.insert(number, One { owner, asked: asked.clone(), dismissed: dismissed.clone() });
        self.metrics.ws_sockets.inc();
        Some(SocketPlace { sockets: self.clone(), number, asked, dismissed })
    }

    fn age_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Creates the subscriptions of one of this owner's sockets.
    pub(super) fn subscriptions(&self, owner: Origin) -> Arc<Subscriptions> {
        let tallies = Tallies {
            subscriptions: self.metrics.ws_subscriptions.clone(),
            notifications: self.metrics.ws_notifications.clone(),
        };
        Subscriptions::new(owner, self.feed.clone(), tallies)
    }

    /// Serves a session on the sockets' thread; [`Sockets::close`] waits for it. Without a thread the socket is closed.
    pub(super) fn serve(&self, session: impl Future<Output = ()> + Send + 'static) {
        let session = self.sessions.track_future(session);
        let mut thread = self.thread.lock();
        let started = match thread.take() {
            Some(started) => Ok(started),
            None => Thread::start(),
        };
        match started {
            Ok(started) => thread.insert(started).spawn(session),
            Err(error) => {
                static FAILURES: LogRateLimit = LogRateLimit::per_second();
                if let Some(more) = FAILURES.pass(std::time::Instant::now()) {
                    tracing::error!(%error, more, "cannot start a thread for WebSockets");
                }
            }
        }
    }

    /// Cancelled when all sockets must close.
    pub(super) fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// Closes all sockets, and returns when they are closed.
    pub(crate) async fn close(&self) {
        self.closing.cancel();
        self.sessions.close();
        self.sessions.wait().await;
    }
}

impl TakenSockets {
    /// The socket with the oldest last request, among the sockets of the stranger that has most. `None` unless that
    /// stranger has more sockets than the newcomer would have.
    fn least_missed(&self, newcomer: Origin, own: usize) -> Option<u64> {
        let mut counts = HashMap::<Origin, usize>::new();
        self.places.values().for_each(|one| *counts.entry(one.owner).or_default() += 1);
        let more = if newcomer.is_stranger() { own + 1 } else { 0 };
        let strangers = counts.iter().filter(|(owner, count)| owner.is_stranger() && **count > more);
        let (heaviest, _) = strangers.max_by_key(|(owner, count)| (**count, **owner))?;
        let theirs = self.places.iter().filter(|(_, one)| one.owner == *heaviest);
        theirs
            .min_by_key(|(number, one)| (one.asked.load(Ordering::Relaxed), **number))
            .map(|(number, _)| *number)
    }
}

/// A socket's place, released on drop.
pub(super) struct SocketPlace {
    pub(super) sockets: Arc<Sockets>,
    number: u64,
    asked: Arc<AtomicU64>,
    dismissed: CancellationToken,
}

impl SocketPlace {
    /// Notes a request of the socket.
    pub(super) fn asks(&self) {
        self.asked.store(self.sockets.age_us(), Ordering::Relaxed);
    }

    /// Returns when another socket takes the place.
    pub(super) async fn lost(&self) {
        self.dismissed.cancelled().await;
    }
}

impl Drop for SocketPlace {
    fn drop(&mut self) {
        self.sockets.taken.lock().places.remove(&self.number);
        self.sockets.metrics.ws_sockets.dec();
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, num::NonZeroUsize};

    use super::*;
    use slipstream_rpc::fixture::context;

    fn host(number: u8) -> Origin {
        Origin::V4(Ipv4Addr::new(192, 0, 2, number))
    }

    fn sockets(connections: usize) -> Arc<Sockets> {
        let config =
            ApiConfig { max_connections: NonZeroUsize::new(connections).unwrap(), ..ApiConfig::default() };
        Sockets::new(&config, Arc::new(Metrics::new().unwrap()), &context().feed)
    }

    fn all(sockets: &Arc<Sockets>, owner: Origin) -> Vec<SocketPlace> {
        std::iter::from_fn(|| sockets.take(owner)).take(200).collect()
    }

    /// Goal: one address leaves places to others. When all are taken, an owner with few gets one from the owner with
    /// most, and the operator always gets one.
    #[tokio::test(start_paused = true)]
    async fn places_are_shared_by_address() {
        let sockets = sockets(64);
        let many = all(&sockets, host(1));
        assert_eq!(many.len(), 9, "a third of 28");
        let some = all(&sockets, host(2));
        assert_eq!(some.len(), 7, "a third of 19, and one of whoever has two more");
        let crowd: Vec<_> = (10..80).filter_map(|number| sockets.take(host(number))).collect();
        assert_eq!(crowd.len(), 26, "whoever has most gives way, one by one, until each has one");
        let lost =
            |places: &[SocketPlace]| places.iter().filter(|place| place.dismissed.is_cancelled()).count();
        assert_eq!((lost(&many), lost(&some), lost(&crowd)), (8, 6, 0));
        assert_eq!(sockets.taken.lock().places.len(), 28);

        let own = all(&sockets, Origin::Trusted);
        assert_eq!((own.len(), lost(&own), lost(&crowd)), (32, 0, 26));
        drop((many, some, crowd, own));
        assert_eq!((sockets.taken.lock().places.len(), sockets.metrics.ws_sockets.get()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_silent_one_goes_first() {
        let sockets = sockets(16);
        let many = all(&sockets, host(1));
        assert!(many.len() > 1);
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        many[0].asks();
        let mut others = Vec::new();
        for number in 2..9 {
            others.extend(sockets.take(host(number)));
        }
        assert!(many[1].dismissed.is_cancelled() && !many[0].dismissed.is_cancelled());
        many[1].lost().await;
    }
}
