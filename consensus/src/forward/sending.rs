//! Sends queued and lingering transactions, and takes their outcomes.

use std::{collections::HashSet, sync::Arc, time::Duration};

use alloy_primitives::B256;
use slipstream_network::{NetworkError, PeerId, Protocol, RequestLimits};
use tokio::{sync::mpsc, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    Forwarder, Item, QUEUE_MAX,
    couriers::{SendOutcome, SendReadiness},
    message::{self, ANSWER_BYTES_MAX, MESSAGE_TRANSACTIONS_MAX, Outcome, Packed},
};
use crate::pool::{DropReason, Refused};

/// How long the first transaction of a message waits for others.
const GATHER: Duration = Duration::from_millis(5);
/// How long a peer may take to answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// Time in the pool after which a transaction is offered again.
pub(super) const LINGER: Duration = Duration::from_secs(3);
/// How often a validator that does not propose offers the other validators the transactions in its pool from before the
/// last offer. So enough validators learn what a primary omits, and can end its view.
const SPREAD_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of transactions that are spread at a time. Under load most of the pool merely waits for its turn, and
/// a few transactions suffice to show an omission.
const SPREAD_MAX: usize = 64;
/// Maximum number of transactions that are offered again at a time, so that an overloaded proposer is not loaded further.
const LINGERING_MAX: usize = 1_024;
/// How often a node that does not propose sweeps its pool for transactions that stay out of batches. Ten sweeps expire
/// a peer's executable transaction.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// How often the node looks for a peer with room while none has any: a peer's rest may be over.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Longer than any wait.
const FAR: Duration = Duration::from_secs(365 * 24 * 3_600);

/// A message that has ended.
struct FinishedSend {
    peer: PeerId,
    hashes: Vec<B256>,
    answer: Result<Vec<u8>, NetworkError>,
}

/// When the loop acts by itself.
struct Timers {
    /// Transactions that arrived before this mark are offered again at `remind`.
    mark: u64,
    remind: Instant,
    /// The same mark for spreading.
    spread_mark: u64,
    spread: Instant,
    sweep: Instant,
    sweeps: u32,
}

impl Forwarder {
    /// Takes the journal's transactions, and then sends what is queued, until shutdown. Runs once; a second call
    /// returns at once.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let Some(mut queued) = self.queued.lock().take() else { return };
        let replayed = self.clone();
        let mut replay = tokio::task::spawn_blocking(move || replayed.replay(0));
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = &mut replay => {}
        }
        let mut sends = JoinSet::new();
        let mut peer_watch = self.transport.peer_changes().watch();
        let now = Instant::now();
        let mut timers = Timers {
            mark: self.pool.sequence(),
            remind: now + LINGER,
            spread_mark: self.pool.sequence(),
            spread: now + SPREAD_INTERVAL,
            sweep: now + SWEEP_INTERVAL,
            sweeps: 0,
        };
        loop {
            let connected = self.transport.peers();
            let (outlook, now) = (self.outlook(&connected), Instant::now());
            // A message that ends wakes the loop, too.
            let room = match outlook {
                SendReadiness::Later(room) => (now + LOOK_INTERVAL).min(room.unwrap_or(now + FAR)),
                SendReadiness::Now => now + FAR,
            };
            let items = tokio::select! {
                () = shutdown.cancelled() => return,
                Some(sent) = sends.join_next() => {
                    if let Ok(sent) = sent {
                        self.ended(sent);
                    }
                    continue;
                }
                () = tokio::time::sleep_until(timers.sweep) => {
                    self.sweep(&mut timers);
                    continue;
                }
                () = tokio::time::sleep_until(timers.spread) => {
                    self.spread(&mut timers, &connected, &mut sends);
                    continue;
                }
                () = tokio::time::sleep_until(room) => continue,
                () = peer_watch.changed() => continue,
                () = self.led.notified() => {
                    self.enqueue_all();
                    continue;
                }
                () = tokio::time::sleep_until(timers.remind), if outlook == SendReadiness::Now => {
                    let lingering = self.pool.lingering(timers.mark, LINGERING_MAX);
                    (timers.mark, timers.remind) = (self.pool.sequence(), Instant::now() + LINGER);
                    lingering.into_iter().map(|transaction| (transaction, None)).collect()
                }
                Some(item) = queued.recv(), if outlook == SendReadiness::Now => gather(item, &mut queued).await,
            };
            self.send(&items, &mut sends);
        }
    }

    /// Offers the other validators some transactions that stay out of batches.
    fn spread(&self, timers: &mut Timers, connected: &[PeerId], sends: &mut JoinSet<FinishedSend>) {
        let mark = std::mem::replace(&mut timers.spread_mark, self.pool.sequence());
        timers.spread = Instant::now() + SPREAD_INTERVAL;
        let targets = {
            let couriers = self.couriers.lock();
            match couriers.waits_for_proposer() {
                true => couriers.others(connected, Instant::now()),
                false => return,
            }
        };
        let lingering: Vec<Item> = self
            .pool
            .lingering(mark, SPREAD_MAX)
            .into_iter()
            .map(|transaction| (transaction, None))
            .collect();
        if !lingering.is_empty() {
            self.send_to(targets, &lingering, sends);
        }
    }

    /// Queues everything that the pool has, while the queue has room.
    fn enqueue_all(&self) {
        let (mark, mut enqueued) = (self.pool.sequence(), HashSet::new());
        while enqueued.len() < QUEUE_MAX {
            let before = enqueued.len();
            for transaction in self.pool.lingering(mark, QUEUE_MAX) {
                if enqueued.insert(transaction.hash) {
                    self.enqueue(transaction);
                }
            }
            if enqueued.len() == before {
                return;
            }
        }
    }

    fn outlook(&self, connected: &[PeerId]) -> SendReadiness {
        let mut couriers = self.couriers.lock();
        couriers.handle_peers(connected);
        couriers.poll_readiness(connected, Instant::now())
    }

    /// Drops transactions that stay out of batches. The proposer itself sees what it cannot execute, and drops it at
    /// once.
    fn sweep(self: &Arc<Self>, timers: &mut Timers) {
        timers.sweep = Instant::now() + SWEEP_INTERVAL;
        timers.sweeps = timers.sweeps.saturating_add(1);
        let expired = if self.is_proposer() { self.pool.expire_waiting() } else { self.pool.expire() };
        if expired > 0 {
            tracing::info!(expired, "dropped transactions that waited too long for execution");
        }
        if self.journal.as_ref().is_some_and(|journal| journal.has_recovered()) {
            let (forwarder, attempt) = (self.clone(), timers.sweeps);
            tokio::task::spawn_blocking(move || forwarder.replay(attempt));
        }
    }

    /// Sends the transactions to the receivers chosen for this message. If nobody has room, they stay in the pool and
    /// are offered again.
    fn send(&self, items: &[Item], sends: &mut JoinSet<FinishedSend>) {
        let connected = self.transport.peers();
        let (targets, is_next) = {
            let mut couriers = self.couriers.lock();
            (couriers.choose(&connected, Instant::now()), couriers.is_next())
        };
        match is_next {
            // The proposer already has what others gave to this node.
            true => {
                let own: Vec<Item> = items.iter().filter(|(_, from)| from.is_none()).cloned().collect();
                self.send_to(targets, &own, sends);
            }
            false => self.send_to(targets, items, sends),
        }
    }

    fn send_to(&self, targets: Vec<PeerId>, items: &[Item], sends: &mut JoinSet<FinishedSend>) {
        for peer in targets {
            let news = items.iter().filter(|(_, from)| *from != Some(peer)).map(|(item, _)| item);
            for Packed { payload, hashes } in message::pack(news) {
                let mut couriers = self.couriers.lock();
                if !couriers.has_room(&peer, Instant::now()) {
                    break;
                }
                couriers.handle_sent(peer);
                let transport = self.transport.clone();
                let limits = RequestLimits { deadline: DEADLINE, response_bytes_max: ANSWER_BYTES_MAX };
                sends.spawn(async move {
                    let answer = transport.request(peer, Protocol::TRANSACTIONS, payload, limits).await;
                    FinishedSend { peer, hashes, answer }
                });
            }
        }
    }

    fn ended(&self, FinishedSend { peer, hashes, answer }: FinishedSend) {
        let ended = match answer {
            Ok(bytes) => self.heard(peer, &hashes, &bytes),
            Err(error) => {
                tracing::debug!(peer = %peer.short(), %error, "cannot forward transactions");
                error
                    .refusal()
                    .and_then(|refusal| refusal.retry_after())
                    .map_or(SendOutcome::Failed, SendOutcome::Busy)
            }
        };
        let mut couriers = self.couriers.lock();
        couriers.handle_ended(&peer, ended, Instant::now());
        if matches!(ended, SendOutcome::Busy(_)) && couriers.is_from_proposer(&peer) {
            drop(couriers);
            // The busy proposer processed none of the transactions. Sending them through other peers would take as long
            // as a retry.
            hashes
                .iter()
                .filter_map(|hash| self.pool.get(hash))
                .for_each(|transaction| self.enqueue(transaction));
        }
    }

    /// Takes a peer's outcome of each transaction.
    fn heard(&self, peer: PeerId, hashes: &[B256], bytes: &[u8]) -> SendOutcome {
        let outcomes = match message::decode_answer(bytes) {
            Ok(outcomes) if outcomes.len() == hashes.len() => outcomes,
            Ok(outcomes) => {
                tracing::debug!(peer = %peer.short(), sent = hashes.len(), told = outcomes.len(), "a peer's answer to transactions is malformed");
                return SendOutcome::Failed;
            }
            Err(error) => {
                tracing::debug!(peer = %peer.short(), %error, "a peer's answer to transactions is malformed");
                return SendOutcome::Failed;
            }
        };
        let verdict = |outcome: &Outcome| match outcome {
            Some(Refused::NotExecutable) => Some(DropReason::NotExecutable),
            Some(Refused::TooSlow) => Some(DropReason::TooSlow),
            _ => None,
        };
        let refused = hashes.iter().zip(&outcomes).filter_map(|(hash, it)| Some((hash, verdict(it)?)));
        let settled = refused.filter(|(hash, _)| self.verdicts.lock().is_settled_by(&peer, **hash));
        let dropped: Vec<_> =
            settled.filter(|(hash, reason)| self.pool.refuse(hash, *reason)).map(|(hash, _)| hash).collect();
        if let Some(first) = dropped.first() {
            tracing::info!(dropped = dropped.len(), %first, "dropped transactions that the proposer could not execute");
        }
        SendOutcome::Answered { taken: outcomes.iter().filter(|outcome| outcome.is_none()).count() }
    }
}

/// Gathers items that are queued shortly after the first, up to a full message.
async fn gather(first: Item, queued: &mut mpsc::Receiver<Item>) -> Vec<Item> {
    let mut items = vec![first];
    tokio::time::sleep(GATHER).await;
    while items.len() < MESSAGE_TRANSACTIONS_MAX
        && let Ok(item) = queued.try_recv()
    {
        items.push(item);
    }
    items
}
