//! [`build`]: makes a batch from candidates.

use slipstream_types::limits;

use crate::{
    error::ExecuteError,
    evm::{BatchEnv, ExecutionState, Machine},
    interrupt::Interrupt,
    outcome::{Batch, Outcome, Refusal},
    transaction::Transaction,
};

/// Maximum bytes of a length prefix in BCS. The transaction list has one, and so has each transaction.
const LENGTH_BYTES_MAX: usize = 5;

/// Limits of one batch, set by the proposer's configuration. The chain's own limits apply as well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BuildLimits {
    /// Gas of all transactions.
    pub gas: u64,
    /// Bytes of the body, uncompressed.
    pub body_bytes: usize,
    /// Maximum number of transactions in the batch.
    pub transactions: usize,
}

/// The capacity that a batch has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemainingCapacity {
    /// Gas left: the chain's limit minus the gas that the batch's transactions used, not the gas that they might have
    /// used. When the receipts or changes are nearly full, this number is lower.
    pub gas: u64,
    /// Bytes left for one more envelope.
    pub bytes: usize,
}

impl RemainingCapacity {
    /// Whether a transaction with this gas limit and this number of bytes may be tried.
    pub fn fits(&self, gas_limit: u64, bytes: usize) -> bool {
        gas_limit <= self.gas && bytes <= self.bytes
    }
}

/// The source of [`build`]'s transactions, which yields the best first. Any iterator will do; a pool skips transactions
/// that do not fit.
pub trait Candidates {
    /// Returns the next transaction, one that fits if the source can choose. `None` ends the batch. The previously
    /// drawn transaction is in the batch, unless [`Candidates::leave_out`] was called.
    fn draw(&mut self, room: RemainingCapacity) -> Option<Transaction>;

    /// Reports that the last drawn transaction stays out of the batch. Its sender's later transactions must stay out
    /// too.
    fn leave_out(&mut self);
}

impl<I: Iterator<Item = Transaction>> Candidates for I {
    fn draw(&mut self, _: RemainingCapacity) -> Option<Transaction> {
        self.next()
    }

    fn leave_out(&mut self) {}
}

/// Decides what a build has time for. [`NoTimeLimit`] has time for everything.
pub trait BuildClock {
    /// The interrupt that ends a transaction that takes too long, or the whole build.
    fn interrupt(&self) -> Interrupt;

    /// Whether a further candidate may be drawn.
    fn is_open(&self) -> bool;

    /// Whether the build has time for this candidate. If so, the candidate's time starts now.
    fn begin(&mut self, transaction: &Transaction) -> bool;

    /// Reports that the candidate ended. Returns whether the candidate ended in time.
    fn end(&mut self, transaction: &Transaction) -> bool;

    /// Reports that the candidate was interrupted. Returns whether the build goes on.
    fn interrupted(&mut self, transaction: &Transaction) -> bool;
}

/// A clock that never runs out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoTimeLimit;

impl BuildClock for NoTimeLimit {
    fn interrupt(&self) -> Interrupt {
        Interrupt::never()
    }

    fn is_open(&self) -> bool {
        true
    }

    fn begin(&mut self, _: &Transaction) -> bool {
        true
    }

    fn end(&mut self, _: &Transaction) -> bool {
        true
    }

    fn interrupted(&mut self, _: &Transaction) -> bool {
        false
    }
}

/// A batch that is ready to be sealed.
#[derive(Clone, Debug)]
pub struct AssembledBatch {
    /// The batch's transactions, in order.
    pub included: Vec<Transaction>,
    /// Candidates that are invalid on this state, with the reason; the pool may forget them. Any other candidate
    /// outside the batch lacked room or a predecessor, and may be drawn again.
    pub rejected: Vec<(alloy_primitives::B256, String)>,
    /// The results of the batch.
    pub outcome: Outcome,
}

/// Executes candidates one after the other and keeps those that are valid, until a limit is reached.
///
/// Executes a candidate only if the batch has room for everything that the candidate's gas can do. So a proposer never
/// works unpaid.
///
/// # Errors
/// If the state is unreadable, or the outcome exceeds its formats. Candidates never cause errors.
pub fn build(
    state: &dyn ExecutionState,
    env: &BatchEnv,
    candidates: &mut dyn Candidates,
    limits: &BuildLimits,
) -> Result<AssembledBatch, ExecuteError> {
    build_by(&mut NoTimeLimit, state, env, candidates, limits)
}

/// Builds as [`build`] does, within the time that `clock` allows. Candidates that the clock interrupts or leaves out
/// may be drawn again.
///
/// # Errors
/// As [`build`], and [`ExecuteError::Interrupted`] if the clock ends the whole build.
pub fn build_by(
    clock: &mut dyn BuildClock,
    state: &dyn ExecutionState,
    env: &BatchEnv,
    candidates: &mut dyn Candidates,
    limits: &BuildLimits,
) -> Result<AssembledBatch, ExecuteError> {
    let mut batch = Batch::new(Machine::new(state, env)?, env);
    let gas_max = env.transaction_gas_max.min(env.gas_limit);
    let reserved = env.gas_limit.saturating_sub(limits.gas);
    let transactions_max = limits.transactions.min(limits::BATCH_TRANSACTIONS_MAX);
    let mut bytes_left = limits.body_bytes.min(limits::BODY_BYTES_MAX).saturating_sub(LENGTH_BYTES_MAX);
    let (mut included, mut rejected) = (Vec::new(), Vec::new());
    loop {
        let gas = batch.gas_left().saturating_sub(reserved).min(batch.gas_with_room());
        let room = RemainingCapacity { gas, bytes: bytes_left.saturating_sub(LENGTH_BYTES_MAX) };
        let is_full = included.len() >= transactions_max || room.gas < limits::TRANSACTION_GAS_MIN;
        if is_full || !clock.is_open() {
            break;
        }
        let Some(transaction) = candidates.draw(room) else { break };
        let (gas_limit, bytes) = (transaction.gas_limit(), transaction.raw.len());
        // A transaction too large for any batch is tried, so that it is rejected. Any other transaction is executed
        // only if it will be part of the batch and so pay for its execution.
        if !room.fits(gas_limit, bytes) && gas_limit <= gas_max {
            candidates.leave_out();
            continue;
        }
        if !clock.begin(&transaction) {
            candidates.leave_out();
            continue;
        }
        let added = batch.run(&transaction).and_then(|done| {
            let is_in_time = clock.end(&transaction);
            if is_in_time { batch.add(done).map(|()| true) } else { Ok(false) }
        });
        match added {
            Ok(false) => {}
            Ok(true) => {
                bytes_left -= LENGTH_BYTES_MAX + bytes;
                included.push(transaction);
                continue;
            }
            Err(Refusal::Rejected(reason)) if reason.is_premature() => {}
            Err(Refusal::Rejected(reason)) => rejected.push((transaction.hash, reason.to_string())),
            // Impossible: the capacity was checked before.
            Err(Refusal::Gas { .. } | Refusal::Receipts(_)) => {}
            Err(Refusal::Failed(ExecuteError::Interrupted)) if clock.interrupted(&transaction) => {}
            Err(Refusal::Failed(error)) => return Err(error),
        }
        candidates.leave_out();
    }
    Ok(AssembledBatch { included, rejected, outcome: batch.finish()? })
}
