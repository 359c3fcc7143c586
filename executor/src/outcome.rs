//! [`execute`]: the results of a given batch.

use alloy_primitives::Address;
use slipstream_types::{
    CodecError, Conflicts, Delta, Hints, Log, Receipt, Receipts, RulesId,
    bounded::{BoundedBytes, BoundedVec},
    hints::Preimage,
    limits,
};

use crate::{
    access::{self, AccessSet},
    error::{ExecuteError, Rejection},
    evm::{
        BatchEnv, ExecutedTransaction, ExecutionState, FinishedBatch, Machine, ReadSet, RunError,
        SpeculativeReads, Verdict,
    },
    transaction::Transaction,
};

/// The results of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The rules that the batch was executed under.
    pub rules: RulesId,
    /// One receipt per transaction. Contract addresses and fees follow from the transactions.
    pub receipts: Receipts,
    /// The net effect on the state.
    pub delta: Delta,
    /// The working set, in first-use order. A proposer's hints also name the keys that the proposer read for the
    /// candidates that it left out. Other transactions may share these keys, and surplus hints cost little.
    pub hints: Hints,
    /// Preimages of hashed slots, in the order of hashing. Hints use the preimages to name the slots in a few bytes.
    pub preimages: Vec<Preimage>,
    /// The same working set with its values before the batch, for a [`crate::HotCache`].
    pub touched: ReadSet,
    /// The reads and writes of each transaction, in the order of the batch.
    pub accesses: Vec<AccessSet>,
    /// Gas used by all transactions.
    pub gas_used: u64,
}

impl Outcome {
    /// Returns the conflicts, which several threads need to execute the batch.
    pub fn conflicts(&self) -> Conflicts {
        let gas = self.receipts.receipts.iter().map(|receipt| receipt.gas_used);
        access::conflicts(&self.accesses, gas.collect())
    }
}

/// Executes a batch that another node made.
///
/// # Errors
/// On the first transaction that is invalid at its position, or if the state is unreadable.
pub fn execute(
    state: &dyn ExecutionState,
    env: &BatchEnv,
    transactions: &[Transaction],
) -> Result<Outcome, ExecuteError> {
    execute_on(Machine::new(state, env)?, env, transactions)
}

/// Executes as [`execute`] does, without recording anything for hints and conflicts. For benchmarks of execution alone.
///
/// # Errors
/// As [`execute`].
#[doc(hidden)]
pub fn execute_silently(
    state: &dyn ExecutionState,
    env: &BatchEnv,
    transactions: &[Transaction],
) -> Result<Outcome, ExecuteError> {
    execute_on(Machine::silent(state, env).with_system_calls()?, env, transactions)
}

fn execute_on(
    machine: Machine<'_>,
    env: &BatchEnv,
    transactions: &[Transaction],
) -> Result<Outcome, ExecuteError> {
    let mut batch = Batch::new(machine, env);
    for (index, transaction) in transactions.iter().enumerate() {
        batch.push(transaction).map_err(|refusal| batch.error(index, transaction, refusal))?;
    }
    batch.finish()
}

/// A batch under construction: the rules that following and proposing share.
pub(crate) struct Batch<'a> {
    machine: Machine<'a>,
    beneficiary: Address,
    tally: BatchTotals,
}

/// The running totals that the batch's limits apply to, and the records of each transaction apart from its changes.
pub(crate) struct BatchTotals {
    rules: RulesId,
    gas_limit: u64,
    /// Maximum gas that one transaction may ask for.
    transaction_gas_max: u64,
    gas_used: u64,
    receipts: Vec<Receipt>,
    receipts_bytes: usize,
    accesses: Vec<AccessSet>,
    /// An upper bound of the delta's bytes, for a proposer. A follower checks the real delta, which is shorter.
    delta_bytes: usize,
}

/// The record of one transaction apart from its changes.
pub(crate) struct TransactionRecord {
    receipt: Receipt,
    pub(crate) access: AccessSet,
    gas_used: u64,
    delta_bytes_max: usize,
}

/// The result of one transaction.
pub(crate) struct TransactionResult {
    pub(crate) executed: ExecutedTransaction,
    pub(crate) entry: TransactionRecord,
}

impl TransactionResult {
    /// Makes the result, with the receipt, and with the access set if it was observed.
    ///
    /// # Errors
    /// If its receipt does not fit its format.
    pub(crate) fn new(
        executed: ExecutedTransaction,
        transaction: &Transaction,
        beneficiary: Address,
        is_observed: bool,
    ) -> Result<TransactionResult, CodecError> {
        let receipt = receipt(transaction.tx_type(), &executed)?;
        let access = match is_observed {
            true => executed.access(transaction.sender, beneficiary),
            false => AccessSet::default(),
        };
        let (gas_used, delta_bytes_max) = (executed.gas_used, executed.delta_bytes_max);
        Ok(TransactionResult {
            executed,
            entry: TransactionRecord { receipt, access, gas_used, delta_bytes_max },
        })
    }
}

/// Why a transaction was not added. The batch is unchanged.
pub(crate) enum Refusal {
    /// The transaction breaks a rule.
    Rejected(Rejection),
    /// The transaction may use more gas than the batch has left.
    Gas {
        /// Gas that the batch has left.
        left: u64,
    },
    /// The transaction's receipt exceeds the format, alone or together with the earlier receipts.
    Receipts(CodecError),
    /// Execution cannot go on with any transaction.
    Failed(ExecuteError),
}

impl<'a> Batch<'a> {
    pub(crate) fn new(machine: Machine<'a>, env: &BatchEnv) -> Self {
        Self { machine, beneficiary: env.beneficiary, tally: BatchTotals::new(env) }
    }

    pub(crate) fn gas_left(&self) -> u64 {
        self.tally.gas_left()
    }

    /// Returns the maximum gas limit with which the next transaction's receipt and changes certainly fit. Executing a
    /// transaction that does not fit would be wasted work.
    pub(crate) fn gas_with_room(&self) -> u64 {
        let receipts = limits::RECEIPTS_BYTES_MAX.saturating_sub(self.tally.receipts_bytes + RECEIPT_BYTES);
        let delta = limits::DELTA_BYTES_MAX.saturating_sub(self.tally.delta_bytes + FREE_DELTA_BYTES);
        (receipts as u64 * GAS_PER_RECEIPT_BYTE).min(delta as u64 * GAS_PER_DELTA_BYTE)
    }

    /// Executes a transaction and makes it part of the batch.
    pub(crate) fn push(&mut self, transaction: &Transaction) -> Result<(), Refusal> {
        let done = self.run(transaction)?;
        self.add(done)
    }

    /// Executes a transaction; only [`Batch::add`] makes it part of the batch.
    pub(crate) fn run(&mut self, transaction: &Transaction) -> Result<TransactionResult, Refusal> {
        self.tally.check_gas(transaction.gas_limit())?;
        let executed = self.machine.run(transaction).map_err(|error| match error {
            RunError::Rejected(reason) => Refusal::Rejected(reason),
            RunError::Failed(error) => Refusal::Failed(error),
        })?;
        let is_observed = self.machine.is_observed();
        TransactionResult::new(executed, transaction, self.beneficiary, is_observed)
            .map_err(Refusal::Receipts)
    }

    /// Whether a transaction that ran ahead of its turn would do the same now. If so, its result may be added.
    ///
    /// # Errors
    /// If the transaction is not allowed at this position at all.
    pub(crate) fn accept(
        &mut self,
        done: &mut TransactionResult,
        reads: &SpeculativeReads,
        transaction: &Transaction,
    ) -> Result<bool, Refusal> {
        self.tally.check_gas(transaction.gas_limit())?;
        let verdict = self.machine.accept(&mut done.executed, reads, transaction);
        if verdict == Verdict::Moved {
            done.entry.access = done.executed.access(transaction.sender, self.beneficiary);
        }
        Ok(verdict != Verdict::Refused)
    }

    /// Makes a transaction part of the batch if the batch has room.
    pub(crate) fn add(&mut self, done: TransactionResult) -> Result<(), Refusal> {
        self.tally.add(done.entry)?;
        self.machine.commit(done.executed);
        Ok(())
    }

    /// The error of a batch that has this refused transaction at this position.
    pub(crate) fn error(&self, index: usize, transaction: &Transaction, refusal: Refusal) -> ExecuteError {
        let hash = transaction.hash;
        match refusal {
            Refusal::Rejected(reason) => ExecuteError::InvalidTransaction { index, hash, reason },
            Refusal::Gas { left } => {
                ExecuteError::GasLimit { index, hash, gas_limit: transaction.gas_limit(), left }
            }
            Refusal::Receipts(reason) => ExecuteError::ReceiptsTooLong { index, hash, reason },
            Refusal::Failed(error) => error,
        }
    }

    pub(crate) fn finish(self) -> Result<Outcome, ExecuteError> {
        self.tally.finish(self.machine.finish()?)
    }
}

impl BatchTotals {
    pub(crate) fn new(env: &BatchEnv) -> BatchTotals {
        BatchTotals {
            rules: env.rules,
            gas_limit: env.gas_limit,
            transaction_gas_max: env.transaction_gas_max.min(env.gas_limit),
            gas_used: 0,
            receipts: Vec::new(),
            // The number of receipts, as BCS writes it.
            receipts_bytes: LENGTH_BYTES_MAX,
            accesses: Vec::new(),
            delta_bytes: SYSTEM_DELTA_BYTES,
        }
    }

    fn gas_left(&self) -> u64 {
        self.gas_limit.saturating_sub(self.gas_used)
    }

    /// Checks that the next transaction may have this gas limit.
    pub(crate) fn check_gas(&self, gas_limit: u64) -> Result<(), Refusal> {
        let (left, max) = (self.gas_left(), self.transaction_gas_max);
        if gas_limit > max {
            return Err(Refusal::Rejected(Rejection::GasLimitTooHigh { gas_limit, max }));
        }
        if gas_limit > left { Err(Refusal::Gas { left }) } else { Ok(()) }
    }

    /// Counts the next transaction if the batch has room.
    pub(crate) fn add(&mut self, entry: TransactionRecord) -> Result<(), Refusal> {
        let TransactionRecord { receipt, access, gas_used, delta_bytes_max } = entry;
        let receipts_bytes = self.receipts_bytes + receipt_bytes(&receipt);
        if receipts_bytes > limits::RECEIPTS_BYTES_MAX {
            let (what, len, max) = ("receipts", receipts_bytes, limits::RECEIPTS_BYTES_MAX);
            return Err(Refusal::Receipts(CodecError::TooLong { what, len, max }));
        }
        self.receipts_bytes = receipts_bytes;
        self.delta_bytes += delta_bytes_max;
        self.gas_used += gas_used;
        self.receipts.push(receipt);
        self.accesses.push(access);
        Ok(())
    }

    /// Turns the counted transactions into the batch's outcome.
    pub(crate) fn finish(self, finished: FinishedBatch) -> Result<Outcome, ExecuteError> {
        let FinishedBatch { delta, hints, preimages, touched } = finished;
        let receipts = Receipts { receipts: BoundedVec::new(self.receipts)? };
        let (rules, accesses, gas_used) = (self.rules, self.accesses, self.gas_used);
        Ok(Outcome { rules, receipts, delta, hints, preimages, touched, accesses, gas_used })
    }
}

/// Maximum bytes that BCS takes for the length of a sequence.
const LENGTH_BYTES_MAX: usize = 5;
/// An upper bound for the changes of the system calls and the delta's own length fields.
const SYSTEM_DELTA_BYTES: usize = 1024;
/// Bytes of a receipt without logs.
const RECEIPT_BYTES: usize = 1 + 1 + 8 + LENGTH_BYTES_MAX;
/// Gas for a byte of a log's data. The rest of a log is 26 bytes and 32 for each topic; the log and each topic cost 375
/// gas.
const GAS_PER_RECEIPT_BYTE: u64 = 8;
/// A lower bound of the gas for a byte of delta. The cheapest change per byte is an account called without effect. Its
/// 100 bytes cost 2,400 gas in the access list and 100 for the call. A slot's 90 bytes cost 4,800 gas, and code costs
/// 200 gas a byte.
pub(crate) const GAS_PER_DELTA_BYTE: u64 = 25;
/// An upper bound for the delta bytes that a transaction changes without paying. Precompiles cause such changes; others
/// happen at the sender, the fee recipient and the called account.
pub(crate) const FREE_DELTA_BYTES: usize = 4096;

/// Makes a transaction's receipt, if it fits the format.
pub(crate) fn receipt(tx_type: u8, executed: &ExecutedTransaction) -> Result<Receipt, CodecError> {
    let log = |log: &alloy_primitives::Log| {
        let topics = log.data.topics().iter().map(|topic| (*topic).into()).collect();
        let data = BoundedBytes::new(log.data.data.to_vec())?;
        Ok(Log { address: log.address, topics: BoundedVec::new(topics)?, data })
    };
    let logs = executed.logs.iter().map(log).collect::<Result<_, CodecError>>()?;
    let (success, gas_used) = (executed.success, executed.gas_used);
    Ok(Receipt { tx_type, success, gas_used, logs: BoundedVec::new(logs)? })
}

/// An upper bound of a receipt's BCS length that needs no encoding. This bound is part of the rules, because it decides
/// which batches are valid.
fn receipt_bytes(receipt: &Receipt) -> usize {
    let log = |log: &Log| 20 + 1 + 32 * log.topics.len() + LENGTH_BYTES_MAX + log.data.len();
    RECEIPT_BYTES + receipt.logs.iter().map(log).sum::<usize>()
}
