//! Why a transaction was refused, in words and as a closed set.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use alloy_primitives::{Address, B256, U256};
use slipstream_executor::Rejection;
use slipstream_storage::StorageError;

use super::dropped::DropReason;

/// Why a transaction was refused. The texts begin as Ethereum's clients write them, because tools look for that.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The sender has already used this nonce.
    #[error("nonce too low: next nonce {next}, tx nonce {nonce}")]
    NonceTooLow {
        /// The transaction's nonce.
        nonce: u64,
        /// The account's next nonce.
        next: u64,
    },
    /// Its nonce is too far ahead of the account, or the sender has as many transactions here as it may.
    #[error(
        "nonce too high: transaction has {nonce}, but the account's next is {next}, and at most {max} may wait"
    )]
    NonceTooHigh {
        /// The transaction's nonce.
        nonce: u64,
        /// The account's next nonce.
        next: u64,
        /// Maximum number of transactions of a sender, [`PoolConfig::per_sender_max`](crate::PoolConfig::per_sender_max).
        max: u64,
    },
    /// The balance does not cover value and gas.
    #[error("insufficient funds for gas * price + value: balance {balance_wei} wei, needed {cost_wei} wei")]
    InsufficientFunds {
        /// The most that the transaction can cost.
        cost_wei: U256,
        /// Balance of the account, in wei.
        balance_wei: U256,
    },
    /// The pool is full of transactions that pay at least as much, or was a moment ago.
    #[error(
        "transaction underpriced: its place pays {tip_wei} wei per gas, but the full pool asks for {lowest_wei} wei"
    )]
    Underpriced {
        /// Wei per gas that it would pay the proposer, limited by what its sender's earlier transactions pay.
        tip_wei: u128,
        /// The tip of the next transaction to be evicted, or of those evicted last.
        lowest_wei: u128,
    },
    /// It pays too little to replace the transaction with the same sender and nonce.
    #[error(
        "replacement transaction underpriced: to replace {replaced} the fee cap must be at least {max_fee_wei} wei and the \
         tip at least {tip_wei} wei per gas"
    )]
    ReplacementUnderpriced {
        /// The transaction in the pool.
        replaced: B256,
        /// Lowest fee cap that replaces it.
        max_fee_wei: u128,
        /// Lowest tip that replaces it.
        tip_wei: u128,
    },
    /// The sender is delegated (EIP-7702), or a transaction here would delegate it. It may have one transaction here,
    /// its next.
    #[error(
        "in-flight transaction limit reached for delegated accounts: {sender} may have one, with its next nonce"
    )]
    InFlightLimit {
        /// Address of the sender.
        sender: Address,
    },
    /// It would delegate an account that has more than one transaction here.
    #[error(
        "authority already reserved: {authority} has several transactions in the pool; retry after they are executed"
    )]
    AuthorityReserved {
        /// Address of the delegating account.
        authority: Address,
    },
    /// It was here and was dropped.
    #[error("transaction dropped: {hash} {reason}")]
    Dropped {
        /// Hash of the transaction.
        hash: B256,
        /// Why it was dropped.
        reason: DropReason,
    },
    /// The pool is full, and every transaction in it is worth as much or more.
    #[error("txpool is full: {transactions} transactions, {bytes} bytes; retry later")]
    Full {
        /// Transactions in the pool.
        transactions: usize,
        /// Bytes of their envelopes.
        bytes: usize,
    },
    /// The pool has it already.
    #[error("already known: {hash}")]
    AlreadyKnown {
        /// Hash of the transaction.
        hash: B256,
    },
    /// No batch can hold it.
    #[error("exceeds block gas limit: the transaction asks for {gas_limit}, but a batch has {max}")]
    GasLimit {
        /// The transaction's gas limit.
        gas_limit: u64,
        /// The chain's limit for one batch.
        max: u64,
    },
    /// It breaks a rule in any state, so it could never be executed.
    #[error("{0}")]
    Invalid(#[from] Rejection),
    /// It cannot pay the chain's base fee.
    #[error(
        "max fee per gas less than block base fee: {max_fee_wei} wei offered, but the base fee is {base_fee_wei} wei"
    )]
    FeeBelowBase {
        /// The transaction's fee cap.
        max_fee_wei: u128,
        /// The chain's base fee.
        base_fee_wei: u64,
    },
    /// The sender's account could not be read.
    #[error("cannot read the sender's account")]
    Storage(#[from] StorageError),
}

impl PoolError {
    /// Whether the same transaction may be accepted later without a change.
    pub fn is_retryable(&self) -> bool {
        let reason = self.reason();
        matches!(reason, Refused::Full | Refused::Underpriced | Refused::Delegated | Refused::Storage)
    }

    /// The kind of refusal.
    pub fn reason(&self) -> Refused {
        match self {
            PoolError::NonceTooLow { .. } => Refused::NonceTooLow,
            PoolError::NonceTooHigh { .. } => Refused::NonceTooHigh,
            PoolError::InsufficientFunds { .. } => Refused::Funds,
            PoolError::Underpriced { .. } => Refused::Underpriced,
            PoolError::ReplacementUnderpriced { .. } => Refused::Replacement,
            PoolError::InFlightLimit { .. } | PoolError::AuthorityReserved { .. } => Refused::Delegated,
            PoolError::Dropped { reason, .. } => reason.refused(),
            PoolError::Full { .. } => Refused::Full,
            PoolError::AlreadyKnown { .. } => Refused::Known,
            PoolError::GasLimit { .. } | PoolError::Invalid(_) | PoolError::FeeBelowBase { .. } => {
                Refused::Invalid
            }
            PoolError::Storage(_) => Refused::Storage,
        }
    }
}

/// Why a transaction was refused, as a closed set: for metrics, and with these numbers on the wire.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, strum::VariantArray, strum::IntoStaticStr,
)]
#[repr(u8)]
#[strum(serialize_all = "snake_case")]
pub enum Refused {
    /// The pool has the transaction.
    Known = 1,
    /// The bytes are no transaction of this chain.
    Malformed = 2,
    /// Its signature names no sender.
    Signature = 3,
    /// Its nonce is used.
    NonceTooLow = 4,
    /// Its nonce is too far ahead.
    NonceTooHigh = 5,
    /// The balance does not cover it.
    Funds = 6,
    /// The pool is full of transactions that pay better.
    Underpriced = 7,
    /// It does not pay enough to replace another.
    Replacement = 8,
    /// The pool is full.
    Full = 9,
    /// It breaks a rule in any state.
    Invalid = 10,
    /// A delegated account has one transaction at a time.
    Delegated = 11,
    /// The proposer could not execute it.
    NotExecutable = 12,
    /// It was here for long, and no proposer executed it.
    Expired = 13,
    /// The state could not be read.
    Storage = 14,
    /// Its sender asked for more work than this node does for one sender.
    Busy = 15,
    /// It could not be written to the journal.
    Journal = 16,
    /// It alone takes longer than the validators have for a batch.
    TooSlow = 17,
}

impl Refused {
    /// All reasons of refusal.
    pub const ALL: &'static [Refused] = <Refused as strum::VariantArray>::VARIANTS;

    /// The label in metrics and logs.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The reason with this number.
    pub(crate) fn from_code(code: u8) -> Option<Refused> {
        Refused::ALL.iter().copied().find(|reason| *reason as u8 == code)
    }
}

/// Number of transactions refused for each reason since the start.
#[derive(Debug, Default)]
pub(crate) struct RefusedCounts([AtomicU64; Refused::ALL.len()]);

impl RefusedCounts {
    pub(crate) fn add(&self, reason: Refused, count: u64) {
        self.0[reason as usize - 1].fetch_add(count, Relaxed);
    }

    pub(crate) fn all(&self) -> Vec<(Refused, u64)> {
        let count = |reason: Refused| self.0[reason as usize - 1].load(Relaxed);
        Refused::ALL.iter().map(|&reason| (reason, count(reason))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a reason keeps its number, which goes over the wire, and no two share one.
    #[test]
    fn reasons_have_fixed_numbers() {
        for (index, reason) in Refused::ALL.iter().copied().enumerate() {
            assert_eq!((reason as usize, Refused::from_code(reason as u8)), (index + 1, Some(reason)));
        }
        assert_eq!([Refused::from_code(0), Refused::from_code(18)], [None, None]);
        let counts = RefusedCounts::default();
        counts.add(Refused::Journal, 2);
        assert_eq!(counts.all()[15], (Refused::Journal, 2));
    }
}
