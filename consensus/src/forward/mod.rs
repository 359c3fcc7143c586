//! Brings transactions to the proposer.
//!
//! ```text
//!  JSON-RPC ─ submit ─▶ pool, journal ─ newly added ─▶ bounded queue ─▶ proposer, or 3 peers ─ handle ─▶ meter ─▶ intake ─▶ their pool
//!                        ▲ drop what cannot be executed                     │
//!                        └──────────── what became of each ◀────────────────┘
//! ```
//!
//! A node forwards only transactions that were new to its own pool, and skips the peer that sent them. So a transaction
//! crosses each node once. Transactions still in the pool after [`sending::LINGER`] are offered again, a few of each
//! sender in turns. The proposer may have been away, or have lost its pool in a restart. The answer has each
//! transaction's outcome: this node also drops a transaction that the proposer could not execute. A node also drops
//! transactions that ten minutes of batches leave out; those of its own users have three hours. It refuses dropped
//! transactions from peers.

mod couriers;
mod intake;
mod memory;
mod message;
mod meter;
mod sending;
mod submit;
#[cfg(test)]
mod tests;
mod verdicts;

use std::{net::IpAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use slipstream_executor::{Admission, Transaction};
use slipstream_network::{PeerId, Refusal, Transport};
use slipstream_types::{Failures, ValidatorSet};
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};

use self::{
    couriers::Couriers,
    intake::{Intake, Job, Taker, recovery_of},
    memory::Memory,
    meter::{DECODE, JUNK, Meter, hashing},
    verdicts::Verdicts,
};
use crate::{
    journal::Journal,
    pool::{Pool, Refused},
};

pub use self::submit::SubmitError;

/// Maximum number of transactions that wait to be sent; the rest stays in the pool and is offered again later.
const QUEUE_MAX: usize = 65_536;
/// Maximum number of threads that take peers' transactions, at most half of the cores: one recovers 30,000 senders a second.
const THREADS_MAX: usize = 8;

/// Pause for a peer that finds no room: some messages are processed by then.
const BACKLOG_PAUSE: Duration = Duration::from_millis(200);

/// Charge for a message without any transaction, which silences its sender for some seconds.
const MALFORMED: i64 = 32 * JUNK;

/// A transaction to send, and the peer that it came from.
type Item = (Transaction, Option<PeerId>);

/// Takes transactions into the pool and forwards those that were new.
pub struct Forwarder {
    pool: Pool,
    admission: Admission,
    transport: Arc<dyn Transport>,
    journal: Option<Arc<Journal>>,
    taker: Arc<Taker>,
    intake: Intake,
    /// Bounds the useless work of wallets, by their address.
    wallets: Mutex<Meter<IpAddr>>,
    couriers: Mutex<Couriers>,
    verdicts: Mutex<Verdicts>,
    /// Notified when the proposer changes.
    led: Notify,
    /// When a refusal by the journal was last logged.
    journal_told: Mutex<Option<Instant>>,
    /// The receiving end of the taker's queue, until `run` takes it.
    queued: Mutex<Option<mpsc::Receiver<Item>>>,
}

impl Forwarder {
    /// Forwards towards the first of `validators`, the proposer until [`Forwarder::lead`] names another. A node that
    /// itself proposes only collects. With a journal, its users' transactions outlive the process.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn new(
        pool: Pool,
        admission: impl Into<Admission>,
        transport: Arc<dyn Transport>,
        validators: &[PeerId],
        journal: Option<Journal>,
    ) -> std::io::Result<Arc<Forwarder>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / 2).clamp(1, THREADS_MAX);
        Self::with_threads(pool, admission.into(), transport, validators, journal, threads)
    }

    /// Does the same as [`Forwarder::new`], with that number of threads for peers' transactions; with 0, the caller's
    /// thread does the work.
    pub(crate) fn with_threads(
        pool: Pool,
        admission: Admission,
        transport: Arc<dyn Transport>,
        validators: &[PeerId],
        journal: Option<Journal>,
        threads: usize,
    ) -> std::io::Result<Arc<Forwarder>> {
        let (queue, queued) = mpsc::channel(QUEUE_MAX);
        let (meter, refused) = (Mutex::new(Meter::new()), Mutex::new(Memory::new(Instant::now())));
        let taker = Arc::new(Taker { pool: pool.clone(), admission, meter, refused, queue });
        let couriers = Couriers::new(transport.local(), validators);
        // Until the set is known, up to a third of the validators is assumed to fail.
        let enough = usize::from(Failures::thirds(validators.len()).any) + 1;
        Ok(Arc::new(Forwarder {
            pool,
            admission,
            transport,
            journal: journal.map(Arc::new),
            intake: Intake::start(taker.clone(), threads)?,
            taker,
            wallets: Mutex::new(Meter::new()),
            couriers: Mutex::new(couriers),
            journal_told: Mutex::new(None),
            verdicts: Mutex::new(Verdicts::new(validators, enough)),
            led: Notify::new(),
            queued: Mutex::new(Some(queued)),
        }))
    }

    /// Bytes of the longest request that [`Forwarder::handle`] takes; nodes never send longer ones.
    pub const fn request_bytes_max() -> usize {
        message::PAYLOAD_BYTES_MAX
    }

    /// Bytes of the longest answer that [`Forwarder::handle`] gives.
    pub const fn answer_bytes_max() -> usize {
        message::ANSWER_BYTES_MAX
    }

    /// Sets the validators, and the primary of that view as the proposer. This node offers all its transactions to a
    /// new proposer at once: no node but the former proposer may have them.
    pub fn lead(&self, set: &ValidatorSet, view: u64) {
        let mut validators: Vec<PeerId> =
            set.validators.iter().map(|validator| validator.public_key).collect();
        validators.rotate_left(usize::from(set.primary(view)));
        self.verdicts.lock().follow(&validators, set.matching());
        if self.couriers.lock().handle_validators(&validators) {
            self.led.notify_one();
        }
    }

    /// Whether this node itself proposes.
    fn is_proposer(&self) -> bool {
        self.couriers.lock().is_proposer()
    }

    /// Queues a transaction of a user of this node for sending.
    fn enqueue(&self, transaction: Transaction) {
        if !self.is_proposer() {
            // When the queue is full the transaction stays in the pool and is offered again later.
            _ = self.taker.queue.try_send((transaction, None));
        }
    }

    /// Takes a peer's transactions; answers with the outcome of each. A peer that asked for too much useless work is
    /// told when to retry, before anything is decoded.
    ///
    /// # Errors
    /// Busy if the peer has to wait, malformed if it sent no transactions.
    pub async fn handle(&self, peer: PeerId, payload: Vec<u8>) -> Result<Vec<u8>, Refusal> {
        let opening = DECODE + hashing(payload.len());
        self.charge(peer, opening)?;
        let transactions = message::decode(&payload).map_err(|error| {
            self.taker.meter.lock().settle(&peer, opening, opening + MALFORMED);
            self.pool.count_refused(Refused::Malformed, 1);
            Refusal::malformed(error.to_string())
        })?;
        drop(payload);
        let recovery = recovery_of(&transactions);
        if let Err(busy) = self.charge(peer, recovery) {
            self.taker.meter.lock().settle(&peer, opening, opening);
            return Err(busy);
        }
        let (job, answered) = Job::new(peer, transactions, opening + recovery);
        if self.intake.push(job).is_err() {
            self.taker.meter.lock().settle(&peer, opening + recovery, opening);
            self.pool.count_refused(Refused::Busy, 1);
            return Err(Refusal::busy(BACKLOG_PAUSE, "too many transactions wait here for checks"));
        }
        let outcomes = answered.await.map_err(|_| Refusal::failed("this node is stopping"))?;
        message::encode_answer(&outcomes).map_err(|error| Refusal::failed(error.to_string()))
    }

    fn charge(&self, peer: PeerId, units: i64) -> Result<(), Refusal> {
        let charged = self.taker.meter.lock().charge(peer, units, Instant::now());
        charged.map_err(|wait| {
            self.pool.count_refused(Refused::Busy, 1);
            Refusal::busy(wait, "most of this peer's transactions were useless; it may send more later")
        })
    }
}
