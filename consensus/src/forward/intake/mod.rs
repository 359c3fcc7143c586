//! [`Intake`]: takes peers' transactions into the pool, on a few threads of its own, with the peers in turns.
//!
//! ```text
//!  handle ─ charge ─▶ one queue a peer ─ in turns, a slice at a time ─▶ threads: look up, decode, recover, add ─▶ outcomes
//! ```
//!
//! Most of the work that strangers can cause is the recovery of senders. It runs on threads of its own, with a lower
//! priority. A busy peer waits behind its own messages only.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    thread,
};

use parking_lot::{Condvar, Mutex};
use slipstream_executor::{Admission, Transaction, TransactionError};
use slipstream_network::PeerId;
use slipstream_types::{batch::RawTransaction, keccak256};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{
    Item,
    memory::Memory,
    message::Outcome,
    meter::{DECODE, JUNK, LOOKUP, Meter, RECOVERY, hashing},
};
use crate::pool::{Pool, Refused};

/// One turn in this many goes to a peer whose transactions were mostly useless. The other turns go to peers with useful
/// transactions. So strangers that have used up their allowances, however many, do not delay useful peers.
const USELESS_TURN: u64 = 8;
/// Transactions of one peer that are processed in one turn: two milliseconds.
const SLICE: usize = 64;
/// Maximum bytes of one peer that wait: two of the longest messages.
const PEER_BYTES_MAX: usize = 9 << 20;
/// Maximum number of messages of one peer that wait.
const PEER_JOBS_MAX: usize = 16;
/// Maximum bytes of all peers that wait.
const ALL_BYTES_MAX: usize = 64 << 20;
/// Niceness of the threads, out of 19.
const NICENESS: i32 = 5;

/// A message that waits or is in progress.
pub(super) struct Job {
    pub(super) peer: PeerId,
    transactions: Vec<RawTransaction>,
    bytes: usize,
    outcomes: Vec<Outcome>,
    /// The charge for work that is not done yet.
    held: i64,
    /// Whether the peer's transactions have been useful until now.
    is_useful: bool,
    answer: oneshot::Sender<Vec<Outcome>>,
}

impl Job {
    pub(super) fn new(
        peer: PeerId,
        transactions: Vec<RawTransaction>,
        charged: i64,
    ) -> (Job, oneshot::Receiver<Vec<Outcome>>) {
        let (answer, answered) = oneshot::channel();
        let bytes = transactions.iter().map(|raw| raw.len() + size_of::<RawTransaction>()).sum();
        let outcomes = Vec::with_capacity(transactions.len());
        (Job { peer, transactions, bytes, outcomes, held: charged, is_useful: true, answer }, answered)
    }
}

/// The charge for transactions if all of them are new, without their hashing.
pub(super) fn recovery_of(transactions: &[RawTransaction]) -> i64 {
    RECOVERY * transactions.len() as i64
}

fn hashing_of(transactions: &[RawTransaction]) -> i64 {
    transactions.iter().map(|raw| hashing(raw.len())).sum()
}

/// The messages that wait, each peer's in order, the peers in turns.
#[derive(Default)]
struct Queue {
    peers: HashMap<PeerId, Waiting>,
    /// The peers whose transactions are useful.
    useful: VecDeque<PeerId>,
    useless: VecDeque<PeerId>,
    turns: u64,
    bytes: usize,
    is_closed: bool,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    bytes: usize,
}

impl Queue {
    /// Takes a message, or gives it back if the peer, or all peers together, have too much here.
    fn push(&mut self, job: Job) -> Result<(), Job> {
        let waiting = self.peers.entry(job.peer).or_default();
        let is_empty = waiting.jobs.is_empty();
        let is_full = waiting.jobs.len() >= PEER_JOBS_MAX || waiting.bytes + job.bytes > PEER_BYTES_MAX;
        if !is_empty && is_full || self.bytes + job.bytes > ALL_BYTES_MAX {
            if is_empty {
                self.peers.remove(&job.peer);
            }
            return Err(job);
        }
        self.admit(job, false);
        Ok(())
    }

    /// Puts a message that was begun in front of the others of its peer, for its next turn.
    fn put_back(&mut self, job: Job) {
        self.admit(job, true);
    }

    fn admit(&mut self, job: Job, is_begun: bool) {
        let waiting = self.peers.entry(job.peer).or_default();
        if waiting.jobs.is_empty() {
            if job.is_useful { &mut self.useful } else { &mut self.useless }.push_back(job.peer);
        }
        waiting.bytes += job.bytes;
        self.bytes += job.bytes;
        if is_begun { waiting.jobs.push_front(job) } else { waiting.jobs.push_back(job) }
    }

    fn pop(&mut self) -> Option<Job> {
        self.turns += 1;
        let turns = [&mut self.useful, &mut self.useless];
        let [first, second] = if self.turns.is_multiple_of(USELESS_TURN) {
            let [useful, useless] = turns;
            [useless, useful]
        } else {
            turns
        };
        let peer = first.pop_front().or_else(|| second.pop_front())?;
        let waiting = self.peers.get_mut(&peer)?;
        let job = waiting.jobs.pop_front()?;
        waiting.bytes -= job.bytes;
        self.bytes -= job.bytes;
        match waiting.jobs.front() {
            None => drop(self.peers.remove(&peer)),
            Some(next) if next.is_useful => self.useful.push_back(peer),
            Some(_) => self.useless.push_back(peer),
        }
        Some(job)
    }
}

/// Processes transactions. Dropping it ends its threads once they are at the end of a slice.
pub(super) struct Intake {
    shared: Arc<Shared>,
    /// Number of threads. With 0, the caller's thread does the work: tests with their own clock need that.
    threads: usize,
}

struct Shared {
    taker: Arc<Taker>,
    queue: Mutex<Queue>,
    arrived: Condvar,
}

impl Intake {
    /// # Errors
    /// If the system cannot start a thread.
    pub(super) fn start(taker: Arc<Taker>, threads: usize) -> std::io::Result<Intake> {
        let shared = Arc::new(Shared { taker, queue: Mutex::default(), arrived: Condvar::new() });
        let intake = Intake { shared, threads };
        for index in 0..threads {
            let shared = intake.shared.clone();
            thread::Builder::new().name(format!("intake-{index}")).spawn(move || shared.work())?;
        }
        Ok(intake)
    }

    /// Takes a message, or gives it back if too much waits.
    pub(super) fn push(&self, mut job: Job) -> Result<(), Job> {
        job.is_useful = self.shared.taker.meter.lock().is_useful(&job.peer);
        self.shared.queue.lock().push(job)?;
        self.shared.arrived.notify_one();
        while self.threads == 0
            && let Some(job) = self.next_now()
        {
            self.shared.advance(job);
        }
        Ok(())
    }

    fn next_now(&self) -> Option<Job> {
        self.shared.queue.lock().pop()
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        self.shared.queue.lock().is_closed = true;
        self.shared.arrived.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        // If the system does not support this, the threads are like any other.
        let _ = rustix::process::setpriority_process(None, NICENESS);
        while let Some(job) = self.next() {
            self.advance(job);
        }
    }

    /// Waits for a message; `None` once the intake is dropped.
    fn next(&self) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            if queue.is_closed {
                return None;
            }
            if let Some(job) = queue.pop() {
                return Some(job);
            }
            self.arrived.wait(&mut queue);
        }
    }

    /// Processes one slice of a message, and answers the message at its end.
    fn advance(&self, mut job: Job) {
        self.taker.take_slice(&mut job);
        if job.outcomes.len() < job.transactions.len() {
            self.queue.lock().put_back(job);
            self.arrived.notify_one();
        } else {
            // The asker may be gone; the transactions count all the same.
            let _ = job.answer.send(job.outcomes);
        }
    }
}

/// Takes single transactions into the pool. The threads share it.
pub(super) struct Taker {
    pub(super) pool: Pool,
    pub(super) admission: Admission,
    pub(super) meter: Mutex<Meter<PeerId>>,
    pub(super) refused: Mutex<Memory>,
    /// New transactions on their way to others.
    pub(super) queue: mpsc::Sender<Item>,
}

impl Taker {
    fn take_slice(&self, job: &mut Job) {
        let begin = job.outcomes.len();
        let end = (begin + SLICE).min(job.transactions.len());
        let slice = &job.transactions[begin..end];
        // The rest of a message that began with junk is refused unread.
        let skips = self.meter.lock().is_in_debt(&job.peer);
        let charged = match end == job.transactions.len() {
            true => job.held,
            false => (recovery_of(slice) + hashing_of(slice)).min(job.held),
        };
        let mut cost = 0;
        for raw in slice {
            let (outcome, spent) =
                if skips { (Some(Refused::Busy), LOOKUP) } else { self.take(job.peer, raw) };
            job.outcomes.push(outcome);
            // A transaction that the pool takes also pays for its hashing.
            cost += if outcome.is_none() { 0 } else { spent + hashing(raw.len()) };
        }
        job.held -= charged;
        let mut meter = self.meter.lock();
        meter.settle(&job.peer, charged, cost);
        job.is_useful = meter.is_useful(&job.peer);
    }

    /// Decides on a transaction; returns the outcome and the cost of useless work.
    fn take(&self, peer: PeerId, raw: &RawTransaction) -> (Outcome, i64) {
        let hash = keccak256(&raw[..]);
        if self.pool.contains(&hash) {
            return (Some(Refused::Known), LOOKUP);
        }
        let now = Instant::now();
        if let Some(reason) = self.refused.lock().get(&hash, now) {
            self.pool.count_refused(reason, 1);
            return (Some(reason), LOOKUP);
        }
        let (outcome, cost) = self.take_new(peer, raw);
        if let Some(reason) = outcome {
            self.refused.lock().insert(&hash, reason, now);
        }
        (outcome, cost)
    }

    fn take_new(&self, peer: PeerId, raw: &RawTransaction) -> (Outcome, i64) {
        // A peer passes on only what its own pool took, so a malformed or unsigned transaction is its fault.
        let junk = |error: TransactionError| {
            let reason = reason_of(&error);
            tracing::trace!(peer = %peer.short(), %error, "forwarded transaction is malformed or unsigned");
            self.pool.count_refused(reason, 1);
            (Some(reason), JUNK)
        };
        let unrecovered = match Transaction::decode_known(raw, self.admission, Default::default()) {
            Ok(transaction) => transaction,
            Err(error) => return junk(error),
        };
        let checked = match self.pool.check_unrecovered(&unrecovered) {
            Ok(checked) => checked,
            Err(error) => return (Some(error.reason()), DECODE),
        };
        let cost = RECOVERY * (1 + unrecovered.authorizations() as i64);
        let transaction = match unrecovered.recovered() {
            Ok(transaction) => transaction,
            Err(error) => return junk(error),
        };
        match self.pool.add_checked(transaction.clone(), checked) {
            Ok(()) => {
                // When the queue is full the transaction stays in the pool and is offered again later.
                _ = self.queue.try_send((transaction, Some(peer)));
                (None, 0)
            }
            Err(error) => {
                tracing::trace!(hash = %transaction.hash, %error, "forwarded transaction not taken");
                (Some(error.reason()), cost)
            }
        }
    }
}

/// The kind of refusal of bytes that are no transaction of the chain.
pub(super) fn reason_of(error: &TransactionError) -> Refused {
    match error {
        TransactionError::InvalidSignature => Refused::Signature,
        _ => Refused::Malformed,
    }
}

#[cfg(test)]
mod tests;
