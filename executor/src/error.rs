//! Why executing a batch failed, and why a batch may not contain a transaction.

use alloy_primitives::{Address, B256, U256};
use slipstream_storage::StorageError;
use slipstream_types::{CodecError, Digest};

/// Why a batch (or a call) has no outcome.
#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// The batch has a transaction that is invalid at its position: the batch's proposer broke the rules.
    #[error("transaction {index} ({hash}) is invalid: {reason}")]
    InvalidTransaction {
        /// Position in the batch.
        index: usize,
        /// Hash of the transaction.
        hash: B256,
        /// The rule that it breaks.
        reason: Rejection,
    },
    /// The transaction's gas limit exceeds the gas that the batch has left.
    #[error(
        "transaction {index} ({hash}) has a gas limit of {gas_limit}, but the batch has only {left} gas left"
    )]
    GasLimit {
        /// Position in the batch.
        index: usize,
        /// Hash of the transaction.
        hash: B256,
        /// The gas limit that the transaction names.
        gas_limit: u64,
        /// The gas that the batch has left.
        left: u64,
    },
    /// The receipts exceed the limit for one transaction or for the whole batch.
    #[error("transaction {index} ({hash}) makes the receipts too long: {reason}")]
    ReceiptsTooLong {
        /// Position in the batch.
        index: usize,
        /// Hash of the transaction.
        hash: B256,
        /// The limit, and the length that exceeds it.
        reason: CodecError,
    },
    /// A call that breaks a rule of transactions.
    #[error("the call is invalid: {0}")]
    InvalidCall(Rejection),
    /// A call's override moves a precompile to an impossible address.
    #[error(transparent)]
    Move(#[from] MoveError),
    /// An execution was stopped early, because its [`Interrupt`](crate::Interrupt) was due.
    #[error("the call was interrupted")]
    Interrupted,
    /// The state could not be read. The batch itself may be good.
    #[error("cannot read the state: {0}")]
    State(#[from] StorageError),
    /// An account names code that the state does not have: the store is damaged.
    #[error("an account has code {hash}, which the state does not hold; restore the node from a snapshot")]
    MissingCode {
        /// Keccak-256 of the code.
        hash: Digest,
    },
    /// The batch destroyed an older account's storage, which this state cannot enumerate. This cannot happen from
    /// Cancun on.
    #[error(
        "the batch destroyed contract {address}, which existed before it: a delta cannot name all of its slots"
    )]
    StorageWiped {
        /// Address of the contract.
        address: Address,
    },
    /// The outcome exceeds a limit of the formats.
    #[error("cannot encode the outcome: {0}")]
    Format(#[from] CodecError),
    /// The EVM refused to run for a reason outside the transaction: a bug or a wrong environment.
    #[error("the EVM failed: {0}")]
    Evm(String),
}

impl ExecuteError {
    /// Whether the same batch may succeed later on the same state.
    pub fn is_retryable(&self) -> bool {
        match self {
            ExecuteError::State(error) => error.is_retryable(),
            _ => false,
        }
    }
}

/// Why a call cannot move a precompile. The texts begin like geth's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MoveError {
    /// The address has no precompile.
    #[error("account {0} is not a precompile")]
    NoPrecompile(Address),
    /// The new address is the old one.
    #[error("account {0} is already overridden: its precompile cannot move to itself")]
    ToItself(Address),
    /// The new address has an override of its own.
    #[error("account {0} is already overridden")]
    ToOverridden(Address),
    /// Two precompiles cannot be at one address.
    #[error("account {0} has already been overridden by a precompile")]
    ToTheSame(Address),
}

/// The rule that a transaction breaks, on the state and in the environment where it was tried.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The nonce is used: this transaction or another one with the same nonce was executed before.
    #[error("nonce too low: the transaction has {found}, but the account is at {expected}")]
    NonceTooLow {
        /// The sender's next nonce.
        expected: u64,
        /// The transaction's nonce.
        found: u64,
    },
    /// Earlier transactions of the same sender are missing.
    #[error("nonce too high: the transaction has {found}, but the account is at {expected}")]
    NonceTooHigh {
        /// The sender's next nonce.
        expected: u64,
        /// The transaction's nonce.
        found: u64,
    },
    /// The sender cannot pay the value and the fee.
    #[error("insufficient funds for gas * price + value: needs {needed} wei, but has {balance}")]
    InsufficientFunds {
        /// Value plus the highest possible fee, in wei.
        needed: U256,
        /// Balance of the sender, in wei.
        balance: U256,
    },
    /// The offered fee is below the chain's base fee.
    #[error("max fee per gas less than block base fee")]
    FeeBelowBase,
    /// The gas limit does not even cover the intrinsic gas.
    #[error("intrinsic gas too low: needs {needed}, but the limit is {gas_limit}")]
    IntrinsicGas {
        /// Gas before the first instruction.
        needed: u64,
        /// The gas limit that the transaction names.
        gas_limit: u64,
    },
    /// The gas limit is above what a batch or a transaction may use.
    #[error("transaction gas limit too high (cap: {max}, tx: {gas_limit})")]
    GasLimitTooHigh {
        /// The gas limit that the transaction names.
        gas_limit: u64,
        /// The most that the chain allows.
        max: u64,
    },
    /// The sender is a contract (EIP-3607).
    #[error("sender not an eoa: it is a contract (EIP-3607)")]
    SenderHasCode,
    /// The tip's cap is above the cap on the whole fee.
    #[error("max priority fee per gas higher than max fee per gas")]
    TipAboveFeeCap,
    /// The code that creates a contract is longer than EIP-3860 allows.
    #[error("max initcode size exceeded")]
    InitCodeTooLong,
    /// A type 4 transaction without authorizations (EIP-7702).
    #[error("EIP-7702 transaction with empty auth list")]
    NoAuthorizations,
    /// A type that the chain's fork does not know.
    #[error("transaction type not supported")]
    UnsupportedType,
    /// The account's nonce is at its maximum (EIP-2681).
    #[error("nonce has max value")]
    LastNonce,
    /// Any other rule of the EVM.
    #[error("{0}")]
    Other(String),
}

impl Rejection {
    /// Whether earlier transactions may still make this one valid, so that a pool should keep it.
    pub fn is_premature(&self) -> bool {
        matches!(self, Rejection::NonceTooHigh { .. })
    }
}

/// Why a trace failed.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The transaction differs from its first execution, so the trace would show something that never happened.
    #[error(
        "executing transaction {hash} again contradicts its receipt ({found} instead of {expected}), so its trace \
        would be wrong: the state or the batch in this store is damaged; `slipstream db check` finds the damage"
    )]
    Differs {
        /// Hash of the transaction.
        hash: B256,
        /// The value in its receipt.
        expected: String,
        /// The value of the new execution.
        found: String,
    },
    /// The traces of one request exceed their limit.
    #[error("the trace takes more than {} MiB", max >> 20)]
    TooLong {
        /// Maximum bytes of all traces together.
        max: usize,
    },
    /// A JavaScript tracer, which the caller supplies.
    #[error(
        "this node does not run tracers in JavaScript; use callTracer, prestateTracer, 4byteTracer, flatCallTracer, \
        muxTracer, noopTracer, or name no tracer for the struct logger"
    )]
    JavaScript,
    /// A tracer that this node does not have, though geth may.
    #[error(
        "this node does not know this tracer; use callTracer, prestateTracer, 4byteTracer, flatCallTracer, \
        muxTracer, noopTracer, or name no tracer for the struct logger"
    )]
    UnknownTracer,
    /// The tracer cannot run with the requested options.
    #[error("{0}")]
    Tracer(String),
    /// The transaction cannot be executed at all.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
}

impl From<CodecError> for TraceError {
    fn from(error: CodecError) -> Self {
        TraceError::Execute(error.into())
    }
}
