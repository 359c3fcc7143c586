//! [`SyncServer`]: answers [`Request`]s from a store. It makes most answers once for all peers that ask for the same.
//!
//! ```text
//!  request ─ check ─ Cost: cheap or disk? ─ Meter: charged; in debt? ─▶ Lane: in its peer's turn ─▶ check, prepare
//!              ┌────────────────────────────────────────────────────────────────────────────┘
//!              ├─▶ answer (summary, offer, origin, range proof)
//!              └─▶ PartCache ─ hit, or made once ─▶ certificate and proof before it ─▶ answer
//!                      └─ range delta, subtrees: Merges, charged again, in a lane and on threads (HeavyWork) of its own
//! ```
//!
//! Cheap and urgent requests (where the head is, what ends an epoch) never wait behind megabytes from the disk. Neither
//! kind waits for a merge of deltas or for a snapshot's tree to load. Within a lane peers take turns; see [`lane`]. A
//! request pays its presumed cost on admission; see [`meter`]. A busy node tells the peer when to retry, soon
//! enough that the peer does not take the silence for a failure.
//!
//! `network` bounds the requests of one peer, the time for taking an answer, and the bytes of requests and answers that
//! wait. This module bounds the work in progress, the bytes of cached answers, and how much one peer gets.

mod answer;
mod cache;
mod check;
mod cost;
mod error;
mod heavy;
mod lane;
mod merges;
mod meter;
mod steps;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
use slipstream_network::{Payload, PeerId, Refusal, Transport};
use slipstream_storage::Store;
use slipstream_types::codec;
use tokio::time::{Instant, timeout_at};

use self::{
    answer::{PreparedAnswer, prepare},
    cache::PartCache,
    cost::{Cost, Kind},
    error::ServeError,
    heavy::HeavyWork,
    lane::{Class, Lane, Limits, Permit},
    merges::{Merges, merge},
    meter::{Allowance, Allowances, ConnectedSince, Debit, Meter},
};
use crate::{
    SyncConfig,
    protocol::{REQUEST_BYTES_MAX, Request},
};

/// Cheap requests take a few reads each: they are over before the next one has waited.
const CHEAP: Limits = Limits { places: 4, of_peer: 3, waiting: 512, wait: Duration::from_secs(2) };
/// Each place holds an answer of up to 48 MiB and a thread that waits for the disk. More places would take memory from the node's own
/// work without serving any peer sooner.
const DISK: Limits = Limits { places: 12, of_peer: 9, waiting: 512, wait: Duration::from_secs(3) };
/// A peer in debt waits at most this long for its answer; beyond that it is told to retry. This is short compared with
/// any deadline, so a peer a little above its rate is slowed and not refused.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Maximum time that one request waits in all: for its debt, its places, and others' work. Askers have deadlines of at least 10 s; the rest
/// is for the work itself and for the transfer of the answer.
const REQUEST_WAIT: Duration = Duration::from_secs(7);
/// A burst is what a peer may take within this many seconds at its rate.
const BURST_SECONDS: f64 = 2.0;

/// The serving side. `network` bounds how many requests of one peer wait here; this type bounds how many requests of
/// all peers are worked on.
pub struct SyncServer {
    shared: Arc<Shared>,
}

struct Shared {
    store: Store,
    cache: Arc<PartCache>,
    merges: Merges,
    heavy: Arc<HeavyWork>,
    cheap: Lane,
    disk: Lane,
    meter: Arc<Meter>,
    answers: AtomicU64,
    bytes: AtomicU64,
    refused_busy: AtomicU64,
}

/// The asker of a request, and its purse.
#[derive(Clone)]
struct Asker {
    peer: PeerId,
    class: Class,
    kind: Kind,
    debit: Arc<Debit>,
    /// When its request is refused instead of waiting any longer.
    waits_until: Instant,
}

impl Asker {
    /// When a wait of `wait` from now on ends, or when the asker's request must be refused, whichever is earlier.
    fn until(&self, wait: Duration) -> Instant {
        self.waits_until.min(Instant::now() + wait)
    }
}

/// What was served since start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ServeStatus {
    /// Number of answers.
    pub answers: u64,
    /// Bytes of these answers.
    pub bytes: u64,
    /// Parts of answers that were cached, or were in progress for another peer.
    pub cache_hits: u64,
    /// Parts that had to be made.
    pub cache_misses: u64,
    /// Bytes of the parts that are cached now.
    pub cache_bytes: u64,
    /// Requests that were told to retry later: their peer had exceeded its rate, or this node had no place in time.
    pub refused_busy: u64,
}

impl SyncServer {
    /// Serves what the store has, with the default limits.
    pub fn new(store: Store) -> SyncServer {
        Self::with_config(store, &SyncConfig::default())
    }

    /// As [`SyncServer::new`], with the `serve_` limits of a configuration.
    pub fn with_config(store: Store, config: &SyncConfig) -> SyncServer {
        Self::build(store, config, BTreeSet::new(), Box::new(|_| None))
    }

    /// As [`SyncServer::with_config`], but some peers are no strangers: those that the operator configured, and those
    /// that have been connected for long. When many ask at once, these peers get as many places as all strangers
    /// together, and do not pay for what strangers took before.
    pub fn with_peers(
        store: Store,
        config: &SyncConfig,
        known: impl IntoIterator<Item = PeerId>,
        transport: Arc<dyn Transport>,
    ) -> SyncServer {
        let connected_since = move |peer: &PeerId| transport.connected_since(peer);
        Self::build(store, config, known.into_iter().collect(), Box::new(connected_since))
    }

    fn build(
        store: Store,
        config: &SyncConfig,
        known: BTreeSet<PeerId>,
        connected_since: ConnectedSince,
    ) -> SyncServer {
        let allowance = |rate: f64| Allowance { rate, burst: rate * BURST_SECONDS };
        let bytes = allowance(f64::from(config.serve_peer_mib_per_second.get()) * f64::from(1 << 20));
        let work = allowance(f64::from(config.serve_peer_work_ms_per_second.get()) * 1_000.0);
        let shared = Shared {
            store,
            cache: Arc::new(PartCache::new(u64::from(config.serve_cache_mib) << 20)),
            merges: Merges::default(),
            heavy: Arc::default(),
            cheap: Lane::new(CHEAP),
            disk: Lane::new(DISK),
            meter: Arc::new(Meter::new(Allowances { bytes, work }, known, connected_since, Instant::now())),
            answers: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            refused_busy: AtomicU64::new(0),
        };
        SyncServer { shared: Arc::new(shared) }
    }

    /// Answers one request of a peer.
    ///
    /// # Errors
    /// A text for the asker. The request is malformed, or asks for content that is not kept here. Or the asker should
    /// retry later: it exceeded its rate, others are served first, or a tree is being loaded.
    pub async fn handle(&self, peer: PeerId, payload: Vec<u8>) -> Result<Payload, Refusal> {
        self.serve(peer, &payload).await.map_err(|unserved| {
            if matches!(unserved, ServeError::Busy { .. }) {
                self.shared.refused_busy.fetch_add(1, Ordering::Relaxed);
            }
            unserved.into_refusal()
        })
    }

    /// Counts what was served so far.
    pub fn status(&self) -> ServeStatus {
        let (cache_hits, cache_misses) = self.shared.cache.hits_and_misses();
        ServeStatus {
            answers: self.shared.answers.load(Ordering::Relaxed),
            bytes: self.shared.bytes.load(Ordering::Relaxed),
            cache_hits,
            cache_misses,
            cache_bytes: self.shared.cache.bytes(),
            refused_busy: self.shared.refused_busy.load(Ordering::Relaxed),
        }
    }

    async fn serve(&self, peer: PeerId, payload: &[u8]) -> Result<Payload, ServeError> {
        let request: Request = codec::decode("sync request", payload, REQUEST_BYTES_MAX)
            .map_err(|error| ServeError::Malformed(error.to_string()))?;
        check::form(&request)?;
        let (kind, cost) = Cost::of(&request);
        let asker = self.admit(peer, kind, cost).await?;
        let answer = self.answer(&asker, request).await?;
        let bytes = answer.len() as u64;
        self.shared.answers.fetch_add(1, Ordering::Relaxed);
        self.shared.bytes.fetch_add(bytes, Ordering::Relaxed);
        asker.debit.spend(Cost { bytes, work: Duration::ZERO });
        Ok(answer)
    }

    /// Charges a peer, and waits until its earlier debt is paid.
    async fn admit(&self, peer: PeerId, kind: Kind, cost: Cost) -> Result<Asker, ServeError> {
        let now = Instant::now();
        let class = self.shared.meter.class(&peer, now);
        let admitted = self.shared.meter.admit(peer, kind, cost, WAIT_MAX, now);
        let (debit, wait) = admitted.map_err(in_debt)?;
        tokio::time::sleep(wait).await;
        Ok(Asker { peer, class, kind, debit: Arc::new(debit), waits_until: now + REQUEST_WAIT })
    }

    /// Works in the asker's turn, on a thread that may wait for the disk, and charges the asker for the time.
    async fn work<T: Send + 'static>(
        &self,
        asker: &Asker,
        work: impl FnOnce(&Shared) -> Result<T, ServeError> + Send + 'static,
    ) -> Result<T, ServeError> {
        let lane = match asker.kind {
            Kind::Cheap => &self.shared.cheap,
            Kind::Disk => &self.shared.disk,
        };
        let late = ServeError::Busy { retry_after: merges::RETRY, why: "other peers are served first" };
        let entered = timeout_at(asker.waits_until, lane.enter(asker.peer, asker.class)).await;
        let place = entered.map_err(|_| late)??;
        self.work_in(place, asker, 1, work).await
    }

    /// As [`SyncServer::work`], in a place that the asker has. The work takes `threads` threads.
    async fn work_in<T: Send + 'static>(
        &self,
        place: Permit,
        asker: &Asker,
        threads: u32,
        work: impl FnOnce(&Shared) -> Result<T, ServeError> + Send + 'static,
    ) -> Result<T, ServeError> {
        let (shared, debit) = (Arc::clone(&self.shared), Arc::clone(&asker.debit));
        // The work owns the place and makes the charge, because it runs on when the peer disconnects and this future is
        // dropped.
        let work = move || {
            let _place = place;
            let began = Instant::now();
            let done = work(&shared);
            debit.spend(Cost { bytes: 0, work: began.elapsed() * threads });
            done
        };
        let worked = tokio::task::spawn_blocking(work).await;
        worked.map_err(|_| ServeError::Failed("the request failed on this node"))?
    }
}

fn in_debt(wait: Duration) -> ServeError {
    ServeError::Busy { retry_after: wait, why: "you have used more than your share of this node" }
}

/// Answers one request from a store at once, without cache and limits. Simulated servers use it.
///
/// # Errors
/// As [`SyncServer::handle`], but no asker is told to retry later.
#[doc(hidden)]
pub fn answer(store: &Store, payload: &[u8]) -> Result<Vec<u8>, Refusal> {
    let request: Request = codec::decode("sync request", payload, REQUEST_BYTES_MAX)
        .map_err(|error| Refusal::malformed(error.to_string()))?;
    answer_at_once(store, request).map(Payload::into_vec).map_err(ServeError::into_refusal)
}

fn answer_at_once(store: &Store, request: Request) -> Result<Payload, ServeError> {
    check::form(&request)?;
    check::kept(store, &request)?;
    let common = match prepare(store, request)? {
        PreparedAnswer::Done(answer) => return Ok(answer),
        PreparedAnswer::Shared(common) => common,
    };
    let merged = common
        .merge()
        .map(|range| merge(store, range))
        .transpose()?
        .transpose()
        .map_err(ServeError::Refused)?;
    common.answer(store, &common.make(store, merged.as_ref())?)
}
