//! [`SyncError`]: what stops a follower. [`Fault`]: what a peer did wrong. [`Violation`]: the rule that its answer
//! breaks. [`TrustError`]: why a certificate was not accepted.

mod violation;

use std::time::Duration;

use slipstream_executor::ExecuteError;
use slipstream_network::{NetworkError, Refusal};
use slipstream_storage::StorageError;
use slipstream_types::{BatchNumber, CodecError, Epoch, Waypoint};

pub use self::violation::Violation;

/// An error that stops the sync daemon. Faults of peers cost the peer instead.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The store failed, or holds content that it must not.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// This node's execution gives another result than a quorum certified.
    #[error(
        "batch {number} is certified, but executing it here gives another {field}: this node's program or state is \
        wrong; keep the data directory for a report, and bootstrap a new one from a snapshot"
    )]
    Diverged {
        /// Number of the batch.
        number: BatchNumber,
        /// The first header field that differs.
        field: &'static str,
    },
    /// A quorum named other validators for the next epoch than the state after the batch wants.
    #[error(
        "the certificate of batch {number}, which ends epoch {epoch}, names other next validators than the \
        validators contract in its state: the certificate names {certified}, the contract names {wanted}. Either a \
        quorum of epoch {epoch} hands the chain to validators that its owner did not choose, or this program is \
        wrong: keep the data directory for a report, and ask the chain's owner and several validators' operators"
    )]
    WrongSuccession {
        /// Number of the batch.
        number: BatchNumber,
        /// The epoch that the batch ends.
        epoch: Epoch,
        /// The next validators in the certificate.
        certified: String,
        /// The next validators in the state.
        wanted: String,
    },
    /// A certified batch cannot be executed at all.
    #[error("batch {number} is certified, but this node cannot execute it: {source}")]
    Execute {
        /// Number of the batch.
        number: BatchNumber,
        /// The executor's error.
        source: Box<ExecuteError>,
    },
    /// A certified batch has content that its digests allow but this program cannot read.
    #[error(
        "batch {number} is certified, but this program cannot read its content: {reason}; a newer program may be needed"
    )]
    Unreadable {
        /// Number of the batch.
        number: BatchNumber,
        /// The error, in words.
        reason: String,
    },
    /// The ledger is not the one that the operator's waypoint names.
    #[error(
        "the ledger does not pass through waypoint {waypoint} (here batch {number} is {found}): check the waypoint with a \
         node that you trust, or start in an empty data directory"
    )]
    WrongWaypoint {
        /// The waypoint that the operator gave.
        waypoint: Waypoint,
        /// Number of the waypoint's batch.
        number: BatchNumber,
        /// The ledger's waypoint at that batch.
        found: Waypoint,
    },
    /// All peers that answer have another ledger than the waypoint's.
    #[error(
        "no peer knows waypoint {waypoint}, because all have another ledger ({answers}): check the waypoint with a \
        node that you trust, and network.peers"
    )]
    OtherLedger {
        /// The waypoint that the operator gave.
        waypoint: Waypoint,
        /// What each peer last said.
        answers: String,
    },
    /// No peer showed the waypoint's ledger info in time.
    #[error("no peer knows waypoint {waypoint} ({answers}): check the waypoint and network.peers")]
    UnknownWaypoint {
        /// The waypoint that the operator gave.
        waypoint: Waypoint,
        /// What each peer last said.
        answers: String,
    },
    /// No peer could answer for the comparison of a wrong state.
    #[error(
        "the state of batch {number} needs a repair from peers, but no peer could answer ({answers}): check the \
        connection, then start the node again; peers keep the states since their oldest snapshot, so a node further \
        behind must begin from a snapshot in a new data directory"
    )]
    Unrepaired {
        /// The batch whose state is wrong.
        number: BatchNumber,
        /// What each peer last said.
        answers: String,
    },
    /// The store's chain of epoch ends from the genesis to today's validators is broken.
    #[error(
        "the store's end of epoch {epoch}, or of a later epoch, is invalid: {source}; check the disk, and bootstrap \
        a new data directory from a snapshot"
    )]
    WrongEpochEnd {
        /// The first epoch whose end was read.
        epoch: Epoch,
        /// The fault of the first refused certificate.
        source: Violation,
    },
    /// The operating system provides no randomness.
    #[error(
        "the system provides no randomness for this node's secret: {0}; check /dev/urandom and the container"
    )]
    NoRandomness(String),
    /// A worker of the follower panicked, or its parts disagree: a bug.
    #[error("a sync worker stopped: {0}")]
    Worker(String),
}

/// Why an answer was not used.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// Late, lost or refused: the peer rests for a while.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The bytes do not have the format.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The answer breaks the rules, or its proof fails.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// The answer's signers, if any, are validators that this node does not know yet.
    #[error(transparent)]
    Unverified(TrustError),
}

/// Why a certificate was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// The certificate's epoch is not known yet, which is no lie. Ask for the epoch ends from the known epoch on, and
    /// check again.
    #[error("batch {number} belongs to epoch {epoch}, but the validators are known only up to epoch {known}")]
    UnknownEpoch {
        /// Number of the certified batch.
        number: BatchNumber,
        /// The epoch that the certificate names.
        epoch: Epoch,
        /// The last epoch whose validators are known.
        known: Epoch,
    },
    /// The certificate is a lie.
    #[error(transparent)]
    Violation(#[from] Violation),
}

impl From<TrustError> for Fault {
    fn from(error: TrustError) -> Self {
        match error {
            TrustError::Violation(violation) => Fault::Violation(violation),
            unknown @ TrustError::UnknownEpoch { .. } => Fault::Unverified(unknown),
        }
    }
}

impl Fault {
    /// Whether the peer is merely busy: it is asked again later, and keeps its score.
    pub(crate) fn is_busy(&self) -> bool {
        self.retry_after().is_some()
    }

    /// When a busy peer wants to be asked again.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        self.refusal().and_then(Refusal::retry_after)
    }

    /// Whether the peer refused, for any reason.
    pub(crate) fn is_refusal(&self) -> bool {
        self.refusal().is_some()
    }

    fn refusal(&self) -> Option<&Refusal> {
        match self {
            Fault::Network(error) => error.refusal(),
            _ => None,
        }
    }

    /// Whether the answer itself proves that the peer is wrong, whatever the network did.
    pub(crate) fn is_proof(&self) -> bool {
        !matches!(self, Fault::Network(_) | Fault::Unverified(_))
    }
}
