//! Bringing transactions to the proposer.
//!
//! ```text
//!  JSON-RPC ─ submit ─▶ pool ─ newly added ─▶ bounded queue ─▶ proposer, or up to 3 peers ─ handle ─▶ their pool ─▶ ...
//! ```
//!
//! A node forwards only what was new to its own pool, and not to whom it has it from, so that a transaction crosses each node
//! once. What is still in the pool after [`LINGER`] is offered again: the proposer may have been away, or have lost its pool in
//! a restart. What ten minutes of batches leave out is dropped: the proposer must have refused it.

use std::{sync::Arc, time::Duration};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use slipstream_executor::Transaction;
use slipstream_network::{PeerId, Protocol, Refusal, RequestLimits, Transport};
use slipstream_types::{batch::RawTransaction, bounded::BoundedVec, codec, keccak256, limits};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::pool::{Pool, PoolError};

/// Transactions that wait for being sent; the rest stays in the pool and is offered again later.
const QUEUE_MAX: usize = 65_536;
/// Transactions in one message.
const MESSAGE_TRANSACTIONS_MAX: usize = 2_048;
/// Bytes of one message: that of the longest transaction still fits a last one.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// How long the first transaction of a message waits for others.
const GATHER: Duration = Duration::from_millis(5);
/// Messages under way at once; more would only queue up at the receiver.
const MESSAGES_MAX: usize = 8;
/// Peers that get a transaction when the proposer is not connected.
const FANOUT: usize = 3;
/// How long a peer may take to answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// Messages that are decoded at once: decoding takes all cores anyway.
const DECODERS_MAX: usize = 4;
/// After this long in the pool a transaction is offered again.
const LINGER: Duration = Duration::from_secs(3);
/// Transactions that are offered again at a time, so that an overloaded proposer is not loaded further.
const LINGERING_MAX: usize = 1_024;

/// How often a pool that is not the proposer's is swept of what the proposer does not execute. Ten sweeps find it.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// The payload of protocol TRANSACTIONS.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Message {
    transactions: BoundedVec<RawTransaction, MESSAGE_TRANSACTIONS_MAX>,
}

/// A transaction to be sent, and whom it came from.
type Item = (Transaction, Option<PeerId>);

/// Takes transactions into the pool and forwards those that were new.
pub struct Forwarder {
    pool: Pool,
    chain_id: u64,
    transport: Arc<dyn Transport>,
    proposer: PeerId,
    queue: mpsc::Sender<Item>,
    /// The other end of `queue`, until `run` takes it.
    queued: parking_lot::Mutex<Option<mpsc::Receiver<Item>>>,
    decoders: Arc<Semaphore>,
}

impl Forwarder {
    /// Forwards towards `proposer`; a node that is the proposer itself only collects.
    pub fn new(pool: Pool, chain_id: u64, transport: Arc<dyn Transport>, proposer: PeerId) -> Arc<Forwarder> {
        let (queue, queued) = mpsc::channel(QUEUE_MAX);
        let queued = parking_lot::Mutex::new(Some(queued));
        let decoders = Arc::new(Semaphore::new(DECODERS_MAX));
        Arc::new(Forwarder { pool, chain_id, transport, proposer, queue, queued, decoders })
    }

    /// Takes a transaction of a user of this node.
    pub fn submit(&self, transaction: Transaction) -> Result<(), PoolError> {
        self.pool.add(transaction.clone())?;
        self.enqueue(transaction, None);
        Ok(())
    }

    /// Bytes of the longest request that [`Forwarder::handle`] takes; what nodes send each other is never longer.
    pub const fn request_bytes_max() -> usize {
        MESSAGE_BYTES_MAX + limits::TRANSACTION_BYTES_MAX + MESSAGE_TRANSACTIONS_MAX * 3 + 5
    }

    fn enqueue(&self, transaction: Transaction, from: Option<PeerId>) {
        if self.transport.local() != self.proposer {
            // When the queue is full the transaction stays in the pool and is offered again later.
            _ = self.queue.try_send((transaction, from));
        }
    }

    /// Takes a peer's transactions; answers how many were new. Those that the pool does not want are left out silently: the
    /// peer may know another state.
    pub async fn handle(self: &Arc<Self>, peer: PeerId, payload: Vec<u8>) -> Result<Vec<u8>, Refusal> {
        let refuse = |error: codec::CodecError| Refusal::malformed(error.to_string());
        let message: Message =
            codec::decode("transactions", &payload, Self::request_bytes_max()).map_err(refuse)?;
        let decoders = self.decoders.clone();
        let permit = decoders.acquire_owned().await.map_err(|_| Refusal::failed("this node is stopping"))?;
        let forwarder = self.clone();
        // The permit goes along: the work runs on when the peer disconnects and this future is dropped.
        let take = move || {
            let _permit = permit;
            forwarder.take(peer, &message)
        };
        let added = tokio::task::spawn_blocking(take)
            .await
            .map_err(|_| Refusal::failed("the transactions could not be decoded"))?;
        codec::encode("count", &added?).map_err(refuse)
    }

    fn take(&self, peer: PeerId, message: &Message) -> Result<u32, Refusal> {
        let decode = |raw: &RawTransaction| {
            // Known ones are recognised before their signature is recovered.
            let known = self.pool.contains(&keccak256(&raw[..]));
            (!known).then(|| Transaction::decode(raw, self.chain_id)).transpose()
        };
        let decoded: Result<Vec<_>, _> = message.transactions.par_iter().map(decode).collect();
        // A peer forwards what its own pool took, so that an undecodable one is its fault.
        let decoded = decoded.map_err(|error| Refusal::malformed(error.to_string()))?;
        let mut added = 0;
        for transaction in decoded.into_iter().flatten() {
            match self.pool.add(transaction.clone()) {
                Ok(()) => {
                    added += 1;
                    self.enqueue(transaction, Some(peer));
                }
                Err(error) => {
                    tracing::trace!(hash = %transaction.hash, %error, "forwarded transaction not taken")
                }
            }
        }
        Ok(added)
    }

    /// Sends what is queued, until shutdown. Runs once; a second call returns at once.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let Some(mut queued) = self.queued.lock().take() else { return };
        let mut sends = JoinSet::new();
        let (mut mark, mut remind) = (self.pool.sequence(), Instant::now() + LINGER);
        let mut sweep = Instant::now() + SWEEP_INTERVAL;
        while !shutdown.is_cancelled() {
            while sends.len() >= MESSAGES_MAX {
                sends.join_next().await;
            }
            while sends.try_join_next().is_some() {}
            let mut items = Vec::new();
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep_until(sweep) => {
                    sweep = Instant::now() + SWEEP_INTERVAL;
                    self.expire();
                }
                () = tokio::time::sleep_until(remind) => {
                    items = self.pool.lingering(mark, LINGERING_MAX).into_iter().map(|item| (item, None)).collect();
                    (mark, remind) = (self.pool.sequence(), Instant::now() + LINGER);
                }
                Some(item) = queued.recv() => {
                    items.push(item);
                    tokio::time::sleep(GATHER).await;
                    while items.len() < MESSAGE_TRANSACTIONS_MAX && let Ok(item) = queued.try_recv() {
                        items.push(item);
                    }
                }
            }
            self.send(items, &mut sends);
        }
    }

    /// The proposer itself sees what it cannot execute, and drops it at once.
    fn expire(&self) {
        let expired = if self.transport.local() == self.proposer { 0 } else { self.pool.expire() };
        if expired > 0 {
            tracing::info!(expired, "dropped transactions that the proposer does not execute");
        }
    }

    fn send(&self, items: Vec<Item>, sends: &mut JoinSet<()>) {
        for target in self.targets() {
            for payload in
                messages(items.iter().filter(|(_, from)| *from != Some(target)).map(|(item, _)| item))
            {
                let transport = self.transport.clone();
                sends.spawn(async move {
                    let limits = RequestLimits { deadline: DEADLINE, response_bytes_max: 64 };
                    if let Err(error) =
                        transport.request(target, Protocol::TRANSACTIONS, payload, limits).await
                    {
                        tracing::debug!(peer = %target.short(), %error, "transactions were not forwarded");
                    }
                });
            }
        }
    }

    /// The proposer if it is connected, else the first few peers.
    fn targets(&self) -> Vec<PeerId> {
        if self.transport.local() == self.proposer {
            return Vec::new();
        }
        let peers = self.transport.peers();
        match peers.contains(&self.proposer) {
            true => vec![self.proposer],
            false => peers.into_iter().take(FANOUT).collect(),
        }
    }
}

/// Packs transactions into payloads within the limits.
fn messages<'a>(transactions: impl Iterator<Item = &'a Transaction>) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    let (mut packed, mut bytes) = (Vec::new(), 0);
    let mut flush = |packed: &mut Vec<RawTransaction>| {
        let transactions = BoundedVec::new(std::mem::take(packed));
        let encoded =
            transactions.and_then(|transactions| codec::encode("transactions", &Message { transactions }));
        payloads.extend(encoded.ok());
    };
    for transaction in transactions {
        // Decoded transactions are within the limit on one.
        let Ok(raw) = RawTransaction::new(transaction.raw.to_vec()) else { continue };
        bytes += raw.len();
        packed.push(raw);
        if packed.len() >= MESSAGE_TRANSACTIONS_MAX || bytes >= MESSAGE_BYTES_MAX {
            flush(&mut packed);
            bytes = 0;
        }
    }
    if !packed.is_empty() {
        flush(&mut packed);
    }
    payloads
}

#[cfg(test)]
mod tests {
    use slipstream_network::MemoryHub;

    use super::*;
    use crate::testing::{Account, Node, clock, genesis, join, store, until, validator_key};

    // Many transactions make several messages, none above its limit, and nothing is lost or reordered.
    #[test]
    fn messages_are_bounded_and_complete() {
        let account = Account::new(0);
        let transactions: Vec<_> = (0..3).map(|nonce| account.transfer(nonce, 1)).collect();
        let many = transactions.iter().cycle().take(MESSAGE_TRANSACTIONS_MAX * 2 + 1);
        let payloads = messages(many.clone());
        let decoded: Vec<_> = payloads
            .iter()
            .flat_map(|payload| {
                codec::decode::<Message>("m", payload, Forwarder::request_bytes_max()).unwrap().transactions
            })
            .collect();
        assert_eq!(payloads.len(), 3);
        assert!(decoded.iter().map(|raw| &raw[..]).eq(many.map(|transaction| &transaction.raw[..])));
    }

    // A transaction given to a node two hops away from the proposer is executed; garbage is refused; what is known is not
    // counted again.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn transactions_reach_the_proposer() {
        let (hub, genesis, clock) = (MemoryHub::new(), genesis(1), clock());
        let proposer = Node::start(&hub, &genesis, 0, store(&genesis), clock);
        let shutdown = CancellationToken::new();
        let fullnode = |index: usize| {
            let (transport, endpoint) = join(&hub, validator_key(index).public());
            let pool = Pool::new(Default::default(), genesis.chain.clone(), store(&genesis)).unwrap();
            let key = validator_key(0).public();
            let forwarder = Forwarder::new(pool, genesis.chain.chain_id, transport, key);
            tokio::spawn(forwarder.clone().run(shutdown.clone()));
            endpoint.serve(forwarder.clone());
            forwarder
        };
        let (near, far) = (fullnode(1), fullnode(2));
        hub.connect(validator_key(0).public(), validator_key(1).public());
        hub.connect(validator_key(1).public(), validator_key(2).public());
        let account = Account::new(0);
        for nonce in 0..3 {
            far.submit(account.transfer(nonce, 1)).unwrap();
        }
        until("the middle node has them", || near.pool.status().pending == 3).await;
        proposer.reaches(1).await;
        let executed = || proposer.store.view().unwrap().account(&account.address).unwrap().unwrap().nonce;
        until("all are executed", || executed() == 3).await;

        let known = messages([account.transfer(0, 1)].iter()).remove(0);
        let count = near.handle(validator_key(2).public(), known).await.unwrap();
        assert_eq!(codec::decode::<u32>("count", &count, 4).unwrap(), 0);
        let refusal = near.handle(validator_key(2).public(), vec![1, 3, 0xff, 0xff, 0xff]).await.unwrap_err();
        assert!(refusal.text().contains("malformed transaction"), "{}", refusal.text());
        shutdown.cancel();
    }

    // A peer that disconnects drops the request, not the work behind it: that goes on to count.
    #[test]
    fn a_dropped_request_holds_its_permit_until_its_work_ends() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (hub, genesis) = (MemoryHub::new(), genesis(1));
            let (transport, _) = join(&hub, validator_key(1).public());
            let pool = Pool::new(Default::default(), genesis.chain.clone(), store(&genesis)).unwrap();
            let key = validator_key(0).public();
            let forwarder = Forwarder::new(pool, genesis.chain.chain_id, transport, key);
            let (open, gate) = std::sync::mpsc::channel::<()>();
            // The only thread for such work is taken, so that the request's own work cannot begin.
            let blocker = tokio::task::spawn_blocking(move || gate.recv());
            let payload = messages([Account::new(0).transfer(0, 1)].iter()).remove(0);
            let request = forwarder.handle(key, payload);
            assert!(tokio::time::timeout(Duration::from_millis(20), request).await.is_err());
            assert_eq!(forwarder.decoders.available_permits(), DECODERS_MAX - 1);
            open.send(()).unwrap();
            blocker.await.unwrap().unwrap();
            until("its work is done", || forwarder.decoders.available_permits() == DECODERS_MAX).await;
            assert_eq!(forwarder.pool.status().pending, 1);
        });
    }

    // What the proposer lost is offered to it again.
    #[tokio::test(start_paused = true)]
    async fn lingering_transactions_are_offered_again() {
        let (hub, genesis) = (MemoryHub::new(), genesis(1));
        let (transport, _) = join(&hub, validator_key(1).public());
        let pool = Pool::new(Default::default(), genesis.chain.clone(), store(&genesis)).unwrap();
        let proposer = validator_key(0).public();
        let forwarder = Forwarder::new(pool, genesis.chain.chain_id, transport, proposer);
        tokio::spawn(forwarder.clone().run(CancellationToken::new()));
        forwarder.submit(Account::new(0).transfer(0, 1)).unwrap();
        tokio::time::sleep(LINGER / 2).await;
        let (transport, endpoint) = join(&hub, proposer);
        let pool = Pool::new(Default::default(), genesis.chain.clone(), store(&genesis)).unwrap();
        endpoint.serve(Forwarder::new(pool.clone(), genesis.chain.chain_id, transport, proposer));
        hub.connect(proposer, validator_key(1).public());
        until("the proposer has it", || pool.status().pending == 1).await;
    }
}
