//! Errors as Ethereum's clients expect them: codes that tools match, and texts that people read.

use std::time::{Duration, Instant};

use alloy_primitives::{B256, Bytes};
use jsonrpsee_types::{
    ErrorObjectOwned,
    error::{INTERNAL_ERROR_CODE, INVALID_PARAMS_CODE, METHOD_NOT_FOUND_CODE},
};
use slipstream_base::log_rate_limit::LogRateLimit;
use slipstream_consensus::SubmitError;
use slipstream_executor::{ExecuteError, TransactionError};
use slipstream_storage::StorageError;
use slipstream_types::{BatchNumber, CodecError};

use super::pending_backfill::PendingBackfill;

/// "Invalid input" in Ethereum's list; geth uses it for every refusal by a server.
const SERVER_ERROR_CODE: i32 = -32000;
/// "Limit exceeded" in EIP-1474.
const LIMIT_EXCEEDED_CODE: i32 = -32005;
/// Marks an answer that must be built on another thread. No caller sees this code.
const LARGE_BATCH_CODE: i32 = -32_099;
/// geth's code for a reverted call, with the revert data.
const REVERTED_CODE: i32 = 3;
/// EIP-7966's codes for a transaction that was accepted but missed its time, and for one that cannot be included in a
/// batch.
const NOT_INCLUDED_CODE: i32 = 4;
const NOT_READY_CODE: i32 = 5;
/// geth's answer to `eth_subscribe` over HTTP.
const NOTIFICATIONS_UNSUPPORTED_CODE: i32 = -32001;

/// "Pruned history unavailable" in Ethereum's execution APIs.
const PRUNED_CODE: i32 = 4444;

/// The result of a method.
pub(crate) type RpcResult<T> = Result<T, ErrorObjectOwned>;

/// Why a method returned no answer.
#[derive(Debug, thiserror::Error)]
pub enum RpcError {
    #[error("{0}")]
    InvalidParams(String),
    // The first words of these are geth's: tools match them.
    #[error(
        "missing trie node: state of batch {asked} is not kept; this node has the states of batches {first} to {head}: ask a node \
         that keeps more (storage.state_history)"
    )]
    StateNotKept { asked: BatchNumber, first: BatchNumber, head: BatchNumber },
    #[error(
        "missing trie node: state of batch {asked} is not here yet; this node has the states of batches {first} to {head}, and fetches \
         those from {to_come} on if a peer knows them (`sync.backfill` and `sync.past_states` of the status): ask again later, or ask a \
         node that keeps them"
    )]
    StateNotYetKept { asked: BatchNumber, first: BatchNumber, head: BatchNumber, to_come: BatchNumber },
    #[error("header not found: batch {asked} does not exist yet; the head is batch {head}")]
    BeyondHead { asked: BatchNumber, head: BatchNumber },
    #[error("header for hash not found: no block here has the hash {0}")]
    UnknownHash(B256),
    #[error(
        "a proof needs a certificate of batch {asked} or later, and this node has none yet; try again when the node is in sync"
    )]
    NotCertified { asked: BatchNumber },
    // The first words are geth's.
    #[error(
        "the method eth_getProof does not exist/is not available: the state is not a Merkle-Patricia trie under an Ethereum block \
         hash; slipstream_getProof proves accounts and slots by the validators' signatures (docs/light-clients.md)"
    )]
    NoTrie,
    #[error("unknown block {0}")]
    UnknownBlock(B256),
    // The first words of this one and the next are geth's.
    #[error(
        "pruned history unavailable: this node has no {what} of batch {number}: it pruned that part, or took the batch as a state \
         change or from a snapshot; ask a node that keeps it"
    )]
    NotStored { what: &'static str, number: BatchNumber },
    #[error("pruned history unavailable: this node has no {what} of batch {number} yet: {to_come}")]
    NotYetStored { what: &'static str, number: BatchNumber, to_come: PendingBackfill },
    #[error(
        "pruned history unavailable: this node knows no {what} with this hash, and it does not have all of them yet: {to_come}"
    )]
    NotYetKnown { what: &'static str, to_come: PendingBackfill },
    #[error(
        "pruned history unavailable: this node has no header of batch {number}: it pruned that part, or took the batch as a state \
         change or from a snapshot; ask from batch {kept_from} (0x{:x}) on", kept_from.get()
    )]
    HeaderNotStored { number: BatchNumber, kept_from: BatchNumber },
    #[error(
        "pruned history unavailable: the logs of batch {number} are not stored, because this node pruned them, or took the batch \
         as a state change or from a snapshot; {}",
        kept_from.map_or("ask a node that keeps them".to_owned(), |from| format!("ask from batch {from} (0x{from:x}) on", from = from.get()))
    )]
    LogsNotStored { number: BatchNumber, kept_from: Option<BatchNumber> },
    #[error(
        "pruned history unavailable: this node does not keep the transactions and receipts of all batches (`sync.history`), so it does \
         not know what was executed; ask a node that keeps them"
    )]
    NoTransactions,
    #[error(
        "pruned history unavailable: this node cannot find an executed transaction by its hash (`storage.transaction_index`); ask \
         a node that can, or ask this one by block and index"
    )]
    NoPlaces,
    #[error(
        "filter not found: it was never made here, was uninstalled, or was not polled for five minutes; make a new one"
    )]
    FilterNotFound,
    #[error("filter is being polled: wait for that answer before you ask again")]
    FilterBusy,
    #[error("notifications not supported")]
    NotificationsUnsupported,
    #[error("no {0:?} subscription in eth namespace")]
    NoSuchSubscription(String),
    #[error("subscription not found")]
    SubscriptionNotFound,
    #[error("The transaction was added to the transaction pool but wasn't processed in {time:?}")]
    NotIncluded { hash: B256, time: Duration },
    #[error(
        "The transaction was added to the transaction pool but cannot be processed due to a missing nonce or insufficient funds"
    )]
    NotReady { hash: B256 },
    #[error("the caller no longer waits for the answer")]
    NobodyWaits,
    // The first words are geth's.
    #[error("execution aborted (timeout = {limit:?}): the call takes too long; ask for less, or set `{key}`")]
    CallTimedOut { limit: Duration, key: &'static str },
    #[error("execution reverted{}", reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default())]
    Reverted { reason: Option<String>, output: Bytes },
    #[error("{0}")]
    Rejected(String),
    #[error("{0}")]
    TooMuch(String),
    #[error(
        "limit exceeded: the call takes long, and the node is already answering too many long calls \
         (a part of `api.max_connections`); ask again later"
    )]
    TooManyLong,
    /// See [`RpcError::is_large_batch`].
    #[error("it reads a large batch, which is done on other threads")]
    LargeBatch,
    // A call that cannot be simulated, with its own code.
    #[error("{text}")]
    Simulation { code: i32, text: String },
    #[error("{method} failed: {reason}; this is a bug in slipstream, please report it with the node's log")]
    Internal { method: &'static str, reason: String },
    /// The node's own records contradict each other.
    #[error("{0}")]
    Damaged(String),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Codec(#[from] CodecError),
}

/// Maximum bytes that a call may return or revert with; the EVM would allow more than 10 MB for one request.
pub(crate) const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// The selectors of Solidity's `Error(string)` and `Panic(uint256)`; other data is a contract's own error, or not text.
const KNOWN_REVERTS: [[u8; 4]; 2] = [[0x08, 0xc3, 0x79, 0xa0], [0x4e, 0x48, 0x7b, 0x71]];

impl RpcError {
    /// Whether the call must restart on threads that may open a large batch or build a long answer. The call has had no
    /// effect so far.
    pub(super) fn is_large_batch(error: &ErrorObjectOwned) -> bool {
        error.code() == LARGE_BATCH_CODE
    }

    /// The error for a call that panicked, or an answer that cannot be written.
    pub(crate) fn internal(method: &'static str, error: &dyn std::error::Error) -> RpcError {
        RpcError::Internal { method, reason: error.to_string() }
    }

    /// Refuses a call's return or revert data if it is too long to send.
    pub(crate) fn check_output(output: &[u8]) -> Result<(), RpcError> {
        if output.len() <= OUTPUT_BYTES_MAX {
            return Ok(());
        }
        let text = format!(
            "the call's output has {} bytes, but an answer holds at most {OUTPUT_BYTES_MAX}; ask for less at once",
            output.len()
        );
        Err(RpcError::TooMuch(text))
    }

    /// The error for a revert, with its reason if the reason is readable text.
    pub(crate) fn reverted(reason: Option<String>, output: Bytes) -> RpcError {
        let known = KNOWN_REVERTS.iter().any(|selector| output.starts_with(selector));
        // The decoder adds another "revert: ".
        let reason =
            reason.filter(|_| known).map(|text| text.strip_prefix("revert: ").unwrap_or(&text).to_owned());
        RpcError::Reverted { reason, output }
    }
}

impl From<RpcError> for ErrorObjectOwned {
    fn from(error: RpcError) -> Self {
        let message = match &error {
            // The state was pruned while the call read it.
            RpcError::Storage(gone @ StorageError::StateNotKept { .. }) => {
                format!("missing trie node: {gone}")
            }
            error => error.to_string(),
        };
        let code = match error {
            RpcError::Reverted { output, .. } => {
                return ErrorObjectOwned::owned(REVERTED_CODE, message, Some(output));
            }
            RpcError::NotIncluded { hash, .. } => {
                return ErrorObjectOwned::owned(NOT_INCLUDED_CODE, message, Some(hash));
            }
            RpcError::NotReady { hash } => {
                return ErrorObjectOwned::owned(NOT_READY_CODE, message, Some(hash));
            }
            RpcError::NotificationsUnsupported => NOTIFICATIONS_UNSUPPORTED_CODE,
            RpcError::NoSuchSubscription(_) => METHOD_NOT_FOUND_CODE,
            RpcError::InvalidParams(_) => INVALID_PARAMS_CODE,
            RpcError::Simulation { code, .. } => code,
            // The same request may succeed soon.
            RpcError::TooMuch(_)
            | RpcError::TooManyLong
            | RpcError::Storage(StorageError::TreeInUse { .. }) => LIMIT_EXCEEDED_CODE,
            RpcError::LogsNotStored { .. }
            | RpcError::NotStored { .. }
            | RpcError::NotYetStored { .. }
            | RpcError::NotYetKnown { .. }
            | RpcError::HeaderNotStored { .. }
            | RpcError::NoTransactions
            | RpcError::NoPlaces => PRUNED_CODE,
            RpcError::NoTrie => METHOD_NOT_FOUND_CODE,
            RpcError::LargeBatch => LARGE_BATCH_CODE,
            RpcError::Storage(StorageError::StateNotKept { .. } | StorageError::NotProvable { .. }) => {
                SERVER_ERROR_CODE
            }
            RpcError::Storage(_) | RpcError::Codec(_) | RpcError::Damaged(_) | RpcError::Internal { .. } => {
                static FAILURES: LogRateLimit = LogRateLimit::per_second();
                if let Some(more) = FAILURES.pass(Instant::now()) {
                    tracing::error!(%message, more, "a JSON-RPC call failed");
                }
                INTERNAL_ERROR_CODE
            }
            RpcError::StateNotKept { .. }
            | RpcError::StateNotYetKept { .. }
            | RpcError::BeyondHead { .. }
            | RpcError::NotCertified { .. }
            | RpcError::UnknownHash(_)
            | RpcError::UnknownBlock(_)
            | RpcError::FilterNotFound
            | RpcError::FilterBusy
            | RpcError::SubscriptionNotFound
            | RpcError::NobodyWaits
            | RpcError::CallTimedOut { .. }
            | RpcError::Rejected(_) => SERVER_ERROR_CODE,
        };
        ErrorObjectOwned::owned(code, message, None::<()>)
    }
}

impl From<SubmitError> for RpcError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Transaction(error) => error.into(),
            // The pool's texts begin as geth's do.
            error @ (SubmitError::Pool(_) | SubmitError::Journal(_)) => RpcError::Rejected(error.to_string()),
            error @ SubmitError::Busy { .. } => RpcError::TooMuch(error.to_string()),
        }
    }
}

impl From<TransactionError> for RpcError {
    fn from(error: TransactionError) -> Self {
        // geth's words come first: wallets match them.
        let known = match &error {
            TransactionError::TooLong { .. } => "oversized data",
            TransactionError::Malformed(_) => "invalid transaction",
            TransactionError::BlobTransaction => "transaction type not supported",
            TransactionError::NoChainId { .. } => {
                "only replay-protected (EIP-155) transactions allowed over RPC"
            }
            TransactionError::WrongChainId { .. } => "invalid chain id for signer",
            TransactionError::InvalidSignature => "invalid sender",
        };
        RpcError::Rejected(format!("{known}: {error}"))
    }
}

impl From<ExecuteError> for RpcError {
    fn from(error: ExecuteError) -> Self {
        match error {
            ExecuteError::State(error) => RpcError::Storage(error),
            // The text is the violated rule alone: wallets match its first words.
            ExecuteError::InvalidCall(rejection) => RpcError::Rejected(rejection.to_string()),
            error => RpcError::Rejected(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::hex;

    use super::*;

    /// Goal: a client that requests a proof during a run of commits learns that it may retry. The error differs from
    /// that for a proof that never becomes available.
    #[test]
    fn a_tree_in_use_is_no_refusal_for_good() {
        let number = BatchNumber::new(3);
        let code = |error: StorageError| ErrorObjectOwned::from(RpcError::Storage(error)).code();
        assert_eq!(code(StorageError::TreeInUse { number }), LIMIT_EXCEEDED_CODE);
        assert_eq!(code(StorageError::StateNotKept { number }), SERVER_ERROR_CODE);
    }

    /// Goal: a state that is pruned while it is read gives the same words as one that was pruned before.
    #[test]
    fn a_state_that_goes_has_geths_words() {
        let number = BatchNumber::new(3);
        let text = |error: RpcError| ErrorObjectOwned::from(error).message().to_owned();
        let before = RpcError::StateNotKept { asked: number, first: number, head: number };
        let to_come =
            RpcError::StateNotYetKept { asked: number, first: number, head: number, to_come: number };
        for error in [before, to_come, RpcError::Storage(StorageError::StateNotKept { number })] {
            let text = text(error);
            assert!(text.starts_with("missing trie node: ") && text.contains("batch 3"), "{text}");
        }
    }

    #[test]
    fn revert_reasons_are_shown_only_if_they_are_text() {
        let text = hex!(
            "08c379a0"
            "0000000000000000000000000000000000000000000000000000000000000020"
            "0000000000000000000000000000000000000000000000000000000000000004"
            "706f6f7200000000000000000000000000000000000000000000000000000000"
        );
        for (output, reason, message) in [
            (&text[..], Some("revert: poor"), "execution reverted: poor"),
            (&text[..], Some("poor"), "execution reverted: poor"),
            (&[][..], Some(""), "execution reverted"),
            (b"abcd", Some("abcd"), "execution reverted"),
            (b"\xff", None, "execution reverted"),
        ] {
            let error = RpcError::reverted(reason.map(str::to_owned), Bytes::copy_from_slice(output));
            assert_eq!(error.to_string(), message);
            let object = ErrorObjectOwned::from(error);
            assert_eq!(object.code(), 3);
            assert_eq!(object.data().unwrap().get(), format!("\"0x{}\"", hex::encode(output)));
        }
    }
}
