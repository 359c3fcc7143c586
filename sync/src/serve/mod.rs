//! [`SyncServer`]: answers [`Request`]s from a store, most of them once for all who ask alike.
//!
//! ```text
//!  request ─ Meter: in debt? ─▶ prepare ─┬─▶ answer (summary, offer, origin, range proof)
//!                                        └─▶ PartCache ─ hit, or made once ─▶ certificate and proof before it ─▶ answer
//! ```
//!
//! `network` bounds the requests of one peer, the time for taking an answer, and the bytes of requests that wait. Here: how many
//! answers are made at once, how many bytes of them are kept, and how much one peer gets.

mod answer;
mod cache;
mod merges;
mod meter;
#[cfg(test)]
mod tests;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde::Serialize;
use slipstream_network::{Payload, PeerId, Refusal};
use slipstream_storage::Store;
use slipstream_types::codec;
use tokio::{sync::Semaphore, time::Instant};

use self::{
    answer::{Common, Prepared, Unserved, prepare},
    cache::{Outcome, Part, PartCache, Turn},
    merges::{Merge, MergeRange, Merges, merge},
    meter::{Allowance, Meter},
};
use crate::{
    SyncConfig,
    protocol::{REQUEST_BYTES_MAX, Request},
};

/// Requests of all peers that are worked on at once. Each holds an answer of up to 48 MiB and a thread that waits for the
/// disk; more of them would take memory from the node's own work without serving anybody sooner.
const ANSWERS_MAX: usize = 16;
/// A peer in debt waits this long for its answer; if that does not do, it is told to come back. Short beside any deadline, so
/// that a peer a little above its rate is slowed and not refused.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Bursts are what a peer may take within this many seconds at its rate.
const BURST_SECONDS: f64 = 2.0;

/// The serving side. `network` bounds how many requests of one peer wait here, this how many of all peers are worked on.
pub struct SyncServer {
    shared: Arc<Shared>,
    answers: Arc<Semaphore>,
}

struct Shared {
    store: Store,
    cache: Arc<PartCache>,
    merges: Merges,
    meter: Meter,
    answers: AtomicU64,
    bytes: AtomicU64,
    refused_busy: AtomicU64,
}

/// What was served since start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct ServeStatus {
    /// Answers.
    pub answers: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Parts of answers that were cached, or were being made for another peer.
    pub cache_hits: u64,
    /// Parts that had to be made.
    pub cache_misses: u64,
    /// Bytes of the parts that are kept now.
    pub cache_bytes: u64,
    /// Requests refused because their peer had taken more than its rate allows.
    pub refused_busy: u64,
}

impl SyncServer {
    /// Serves what the store has, with the default limits.
    pub fn new(store: Store) -> SyncServer {
        Self::with_config(store, &SyncConfig::default())
    }

    /// As [`SyncServer::new`], with the `serve_` limits of a configuration.
    pub fn with_config(store: Store, config: &SyncConfig) -> SyncServer {
        let allowance = |rate: f64| Allowance { rate, burst: rate * BURST_SECONDS };
        let bytes = allowance(f64::from(config.serve_peer_mib_per_second.get()) * f64::from(1 << 20));
        let work = allowance(f64::from(config.serve_peer_work_ms_per_second.get()) * 1_000.0);
        let shared = Shared {
            store,
            cache: Arc::new(PartCache::new(u64::from(config.serve_cache_mib) << 20)),
            merges: Merges::default(),
            meter: Meter::new(bytes, work),
            answers: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            refused_busy: AtomicU64::new(0),
        };
        SyncServer { shared: Arc::new(shared), answers: Arc::new(Semaphore::new(ANSWERS_MAX)) }
    }

    /// Answers one request.
    ///
    /// # Errors
    /// A text for the asker, if the request is malformed or asks for what is not kept here, or if the peer took more than its
    /// rate allows and should come back later.
    pub async fn handle(&self, peer: PeerId, payload: Vec<u8>) -> Result<Payload, Refusal> {
        let request: Request = codec::decode("sync request", &payload, REQUEST_BYTES_MAX)
            .map_err(|error| Refusal::malformed(error.to_string()))?;
        let wait = self.shared.meter.wait(peer, Instant::now());
        if wait > WAIT_MAX {
            self.shared.refused_busy.fetch_add(1, Ordering::Relaxed);
            return Err(Refusal::busy(wait, "you took more than your share here"));
        }
        tokio::time::sleep(wait).await;
        let answer = self.answer(peer, request).await?;
        self.shared.answers.fetch_add(1, Ordering::Relaxed);
        self.shared.bytes.fetch_add(answer.len() as u64, Ordering::Relaxed);
        self.shared.meter.charge(peer, answer.len(), Duration::ZERO, Instant::now());
        Ok(answer.into())
    }

    /// What was served so far.
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

    async fn answer(&self, peer: PeerId, request: Request) -> Result<Vec<u8>, Refusal> {
        let prepared = self.work(peer, |shared| prepare(&shared.store, request).map_err(refusal)).await?;
        let common = match prepared {
            Prepared::Done(answer) => return Ok(answer),
            Prepared::Shared(common) => Arc::new(common),
        };
        let part = self.part(peer, &common).await?;
        self.work(peer, move |shared| common.answer(&shared.store, &part).map_err(refusal)).await
    }

    /// The part of a request, from the cache, from another asker who has it made, or made now.
    async fn part(&self, peer: PeerId, common: &Arc<Common>) -> Outcome {
        let key = common.key().map_err(refusal)?;
        loop {
            match self.shared.cache.turn(&key) {
                Turn::Hit(part) => return Ok(part),
                Turn::Wait(mut waiting) => {
                    // Who waits holds no place among the answers: its leader may still need one.
                    if let Ok(outcome) = waiting.wait_for(Option::is_some).await {
                        return outcome.clone().expect("waited for");
                    }
                }
                Turn::Lead(lead) => {
                    let merged = match common.merge_range() {
                        None => None,
                        Some(range) => match self.merged(peer, range).await {
                            Ok(merged) => Some(merged),
                            Err(refusal) => {
                                lead.land(Err(refusal.clone()));
                                return Err(refusal);
                            }
                        },
                    };
                    let common = common.clone();
                    let make = move |shared: &Shared| {
                        let made: Result<Part, Unserved> = common.make(&shared.store, merged.as_deref());
                        let outcome = made.map(Arc::new).map_err(refusal);
                        lead.land(outcome.clone());
                        outcome
                    };
                    return self.work(peer, make).await;
                }
            }
        }
    }

    /// The range delta of batches, made by one of all who ask for its chunks. Who waits holds no place among the answers.
    async fn merged(&self, peer: PeerId, range: MergeRange) -> Merge {
        let cell = self.shared.merges.cell(range);
        let make = || self.work(peer, move |shared| merge(&shared.store, range));
        let made = cell.get_or_try_init(make).await?.clone();
        self.shared.merges.trim();
        made
    }

    /// Works on a thread that may wait for the disk, in its turn, and charges the peer for the time.
    async fn work<T: Send + 'static>(
        &self,
        peer: PeerId,
        work: impl FnOnce(&Shared) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let answers = self.answers.clone();
        let permit = answers.acquire_owned().await.map_err(|_| Refusal::failed("this node is stopping"))?;
        let shared = self.shared.clone();
        // The permit goes along, and the charge is made there: the work runs on when the peer disconnects and this future is
        // dropped.
        let work = move || {
            let _permit = permit;
            let began = Instant::now();
            let done = work(&shared);
            let now = Instant::now();
            shared.meter.charge(peer, 0, now.duration_since(began), now);
            done
        };
        let worked = tokio::task::spawn_blocking(work).await;
        worked.map_err(|_| Refusal::failed("the request failed here"))?
    }
}

/// Answers one request from a store at once, without cache and limits: what a simulated server does.
///
/// # Errors
/// As [`SyncServer::handle`], but nobody is told to come back later.
#[doc(hidden)]
pub fn answer(store: &Store, payload: &[u8]) -> Result<Vec<u8>, Refusal> {
    let request: Request = codec::decode("sync request", payload, REQUEST_BYTES_MAX)
        .map_err(|error| Refusal::malformed(error.to_string()))?;
    match prepare(store, request).map_err(refusal)? {
        Prepared::Done(answer) => Ok(answer),
        Prepared::Shared(common) => {
            let merged = common.merge_range().map(|range| merge(store, range)).transpose()?.transpose()?;
            let part = common.make(store, merged.as_deref()).map_err(refusal)?;
            common.answer(store, &part).map_err(refusal)
        }
    }
}

fn refusal(error: Unserved) -> Refusal {
    error.into_refusal()
}
