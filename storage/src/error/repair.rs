//! [`RepairError`].

use slipstream_types::{BatchNumber, Digest};

use crate::place::PathPrefix;

/// Why a repair failed, at the server or the receiver. The store wrote nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RepairError {
    /// The answer is not a well-formed opened subtree.
    #[error("the subtree {place:?} is malformed: {reason}")]
    Malformed {
        /// The place of the requested subtree.
        place: PathPrefix,
        /// The rule that the answer breaks.
        reason: &'static str,
    },
    /// The opened subtree is one of another state.
    #[error("the given subtree {place:?} has the hash {found}, but the proved hash is {expected}")]
    WrongHash {
        /// The place of the requested subtree.
        place: PathPrefix,
        /// The hash that its parent commits to.
        expected: Digest,
        /// The hash of the answer.
        found: Digest,
    },
    /// The code is not the requested one.
    #[error("the given code has the hash {found}, but the requested hash is {expected}")]
    WrongCode {
        /// The requested Keccak-256.
        expected: Digest,
        /// Keccak-256 of the given code.
        found: Digest,
    },
    /// Too much is wrong: a snapshot is cheaper.
    #[error(
        "more than {max} bytes of rows differ from the certified state of batch {number}: too much for a repair; \
        move the data directory away and begin from a snapshot"
    )]
    TooMuch {
        /// Number of the head's batch.
        number: BatchNumber,
        /// Maximum bytes that are held.
        max: u64,
    },
    /// The repair was finished while parts were missing.
    #[error("the repair of batch {number} is incomplete: {places} subtrees and {codes} codes are missing")]
    Incomplete {
        /// Number of the head's batch.
        number: BatchNumber,
        /// Subtrees that differ and are not opened.
        places: usize,
        /// Codes that are missing or damaged.
        codes: usize,
    },
    /// The state of the batch cannot be built here.
    #[error("the state after batch {number} is not kept: {reason}")]
    NotKept {
        /// Number of the batch whose state was asked for.
        number: BatchNumber,
        /// The reason in words.
        reason: &'static str,
    },
}

impl RepairError {
    /// Whether the caller's input was refused, so that the peer it came from is at fault.
    pub(crate) fn is_bad_supply(&self) -> bool {
        use RepairError::{Malformed, WrongCode, WrongHash};
        matches!(self, Malformed { .. } | WrongHash { .. } | WrongCode { .. })
    }
}
