//! Bringing transactions to the proposer.
//!
//! ```text
//!  JSON-RPC ─ submit ─▶ pool, journal ─ newly added ─▶ bounded queue ─▶ proposer, or 3 peers ─ handle ─▶ meter ─▶ intake ─▶ their pool
//!                        ▲ drop what cannot be executed                     │
//!                        └──────────── what became of each ◀────────────────┘
//! ```
//!
//! A node forwards only transactions that were new to its own pool, and skips the peer that sent them. So a transaction crosses
//! each node once. Transactions still in the pool after [`LINGER`] are offered again, a few of each sender in turns. The proposer
//! may have been away, or have lost its pool in a restart. The answer has each transaction's outcome: if the proposer could not
//! execute it, this node drops it too. A node also drops transactions that ten minutes of batches leave out; those of its own users
//! have three hours. It refuses dropped ones from peers.

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

/// Transactions that wait for being sent; the rest stays in the pool and is offered again later.
const QUEUE_MAX: usize = 65_536;
/// Threads that take peers' transactions are at most this many, and at most half of the cores: one recovers 30,000 senders a second.
const THREADS_MAX: usize = 8;

/// When a peer comes back for which there is no room: some messages are worked off by then.
const BACKLOG_PAUSE: Duration = Duration::from_millis(200);

/// Charge for a message without any transaction: its sender is silent for some seconds.
const MALFORMED: i64 = 32 * JUNK;

/// A transaction to be sent, and whom it came from.
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
    /// Told when another node proposes than before.
    led: Notify,
    /// When it was last told that the journal takes nothing.
    journal_told: Mutex<Option<Instant>>,
    /// The other end of the taker's queue, until `run` takes it.
    queued: Mutex<Option<mpsc::Receiver<Item>>>,
}

impl Forwarder {
    /// Forwards towards the first of `validators`, the proposer until [`Forwarder::lead`] names another. A node that proposes itself
    /// only collects. With a journal, its users' transactions outlive it.
    ///
    /// # Errors
    /// If the system gives no threads.
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

    /// As [`Forwarder::new`], with so many threads that look at peers' transactions; without any, whoever brings a message looks.
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
        // Until a set is told, as many as a third of them makes it.
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

    /// Bytes of the longest answer that it gives.
    pub const fn answer_bytes_max() -> usize {
        message::ANSWER_BYTES_MAX
    }

    /// From now on these are the validators, and the primary of that view proposes. If that is another than before, it is offered what
    /// waits here at once: the one before may have been its only holder.
    pub fn lead(&self, set: &ValidatorSet, view: u64) {
        let mut validators: Vec<PeerId> =
            set.validators.iter().map(|validator| validator.public_key).collect();
        validators.rotate_left(usize::from(set.primary(view)));
        self.verdicts.lock().follow(&validators, set.matching());
        if self.couriers.lock().lead(&validators) {
            self.led.notify_one();
        }
    }

    /// Whether this node proposes itself.
    fn is_proposer(&self) -> bool {
        self.couriers.lock().is_proposer()
    }

    /// Puts a transaction of a user of this node on its way.
    fn enqueue(&self, transaction: Transaction) {
        if !self.is_proposer() {
            // When the queue is full the transaction stays in the pool and is offered again later.
            _ = self.taker.queue.try_send((transaction, None));
        }
    }

    /// Takes a peer's transactions; answers with the outcome of each. A peer that asked for too much useless work is told when to
    /// come back, before anything is decoded.
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
            return Err(Refusal::busy(BACKLOG_PAUSE, "too many transactions wait here to be looked at"));
        }
        let outcomes = answered.await.map_err(|_| Refusal::failed("this node is stopping"))?;
        message::encode_answer(&outcomes).map_err(|error| Refusal::failed(error.to_string()))
    }

    fn charge(&self, peer: PeerId, units: i64) -> Result<(), Refusal> {
        let charged = self.taker.meter.lock().charge(peer, units, Instant::now());
        charged.map_err(|wait| {
            self.pool.count_refused(Refused::Busy, 1);
            Refusal::busy(wait, "this peer's transactions were mostly of no use; it may send more later")
        })
    }
}
