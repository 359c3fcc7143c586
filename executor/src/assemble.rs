//! [`build`]: makes a batch out of candidates.

use slipstream_types::limits;

use crate::{
    env::BatchEnv,
    error::ExecuteError,
    outcome::{Batch, Outcome, Refusal},
    reader::StateReader,
    transaction::Transaction,
};

/// The least gas that any transaction uses: with less left the batch is full.
const TRANSACTION_GAS_MIN: u64 = 21_000;
/// Candidates in a row that fit no more before the batch counts as full, so that a pool of large transactions does not make
/// the proposer look at all of them for the last bit of room.
const MISFITS_MAX: usize = 64;
/// BCS writes the number of transactions in at most this many bytes, and so each one's length.
const LENGTH_BYTES_MAX: usize = 5;

/// What a batch may hold. The chain's own limits hold besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BuildLimits {
    /// Gas of all transactions.
    pub gas: u64,
    /// Bytes of the body, uncompressed.
    pub body_bytes: usize,
    /// Transactions.
    pub transactions: usize,
}

/// A batch that is ready to be sealed.
#[derive(Clone, Debug)]
pub struct Built {
    /// The batch's transactions, in order.
    pub included: Vec<Transaction>,
    /// Candidates that are invalid on this state and may be forgotten, and why. A candidate that is in neither list may
    /// come again: there was no room, or one before it is missing.
    pub rejected: Vec<(alloy_primitives::B256, String)>,
    /// What the batch does.
    pub outcome: Outcome,
}

/// Executes candidates one after the other and keeps those that are valid, until a limit is reached.
///
/// # Errors
/// Only if the state cannot be read or the outcome does not fit its formats: no candidate can make it fail.
pub fn build(
    state: &dyn StateReader,
    env: &BatchEnv,
    candidates: &mut dyn Iterator<Item = Transaction>,
    limits: &BuildLimits,
) -> Result<Built, ExecuteError> {
    let mut batch = Batch::bounded(state, env)?;
    let reserved = env.gas_limit.saturating_sub(limits.gas);
    let transactions_max = limits.transactions.min(limits::BATCH_TRANSACTIONS_MAX);
    let body_bytes_max = limits.body_bytes.min(limits::BODY_BYTES_MAX);
    let mut body_bytes = LENGTH_BYTES_MAX;
    let (mut included, mut rejected) = (Vec::new(), Vec::new());
    let mut misfits = 0;
    loop {
        let gas_left = batch.gas_left().saturating_sub(reserved);
        let full = included.len() >= transactions_max || gas_left < TRANSACTION_GAS_MIN;
        if full || misfits >= MISFITS_MAX {
            break;
        }
        let Some(transaction) = candidates.next() else { break };
        let bytes = LENGTH_BYTES_MAX + transaction.raw.len();
        let fits_gas = transaction.gas_limit() <= gas_left || transaction.gas_limit() > env.gas_limit;
        if body_bytes + bytes > body_bytes_max || !fits_gas {
            misfits += 1;
            continue;
        }
        match batch.push(&transaction) {
            Ok(()) => {
                body_bytes += bytes;
                misfits = 0;
                included.push(transaction);
            }
            Err(Refusal::Rejected(reason)) if reason.is_premature() => {}
            Err(Refusal::Rejected(reason)) => rejected.push((transaction.hash, reason.to_string())),
            Err(Refusal::Gas { .. } | Refusal::Receipts | Refusal::Delta) => misfits += 1,
            Err(Refusal::Failed(error)) => return Err(error),
        }
    }
    Ok(Built { included, rejected, outcome: batch.finish()? })
}
