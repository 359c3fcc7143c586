//! [`LightError`]: why an answer was not accepted.

use slipstream_types::{
    Address, B256, BatchNumber, Digest, Epoch, Waypoint, accumulator::AccumulatorError,
    certificate::CertificateError, genesis::GenesisError, state::StateKey, tree::StateRangeError,
    validators::ValidatorSetError,
};

use crate::limits::ANSWER_BYTES_MAX;

/// Why an answer was not accepted. Except for [`LightError::UnknownEpoch`] and [`LightError::TooOld`], the node is wrong or lies: ask
/// another one.
#[derive(Debug, thiserror::Error)]
pub enum LightError {
    /// The answer is longer than any valid one; it was not parsed.
    #[error("the answer has {len} bytes, but at most {ANSWER_BYTES_MAX} are allowed")]
    TooLong {
        /// Its length, in bytes.
        len: usize,
    },
    /// The answer does not have the form in docs/formats.md.
    #[error("the answer is malformed: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A genesis that breaks a rule.
    #[error("cannot use the genesis: {0}")]
    Genesis(#[from] GenesisError),
    /// The proof is of another account.
    #[error("the request was for account {asked}, but the proof is for {found}")]
    OtherAddress {
        /// The requested account.
        asked: Address,
        /// The account that the proof is of.
        found: Address,
    },
    /// The proof is of other slots, or has them in another order.
    #[error("the proof does not have the {asked} requested slots in their order")]
    OtherSlots {
        /// Number of requested slots.
        asked: usize,
    },
    /// The proof is of another batch.
    #[error("the request was for the state of batch {asked}, but the proof is for batch {found}")]
    OtherBatch {
        /// The requested batch.
        asked: BatchNumber,
        /// The batch that the proof is of.
        found: BatchNumber,
    },
    /// The proved state is older than the caller allows. The node may be behind or withhold newer batches, or the chain
    /// may have halted.
    #[error(
        "batch {number} is {age_ms} ms old, but at most {age_ms_max} ms are allowed: the node is behind, the chain \
        stands still, or newer batches are withheld; ask another node"
    )]
    TooOld {
        /// Number of the batch.
        number: BatchNumber,
        /// Its age, in milliseconds.
        age_ms: u64,
        /// The age that the caller allows, in milliseconds.
        age_ms_max: u64,
    },
    /// The validators of the certificate's epoch are not known yet: learn the epoch changes from the known epoch on,
    /// and repeat the question.
    #[error(
        "the certificate belongs to epoch {epoch}, but the validators are known up to epoch {known}: learn the epoch changes from there on"
    )]
    UnknownEpoch {
        /// The epoch that the certificate names.
        epoch: Epoch,
        /// The newest known epoch.
        known: Epoch,
    },
    /// The certificate is for a past epoch, by validators that need no longer guard their keys.
    #[error("the certificate belongs to epoch {epoch}, which is over: epoch {known} is known")]
    PastEpoch {
        /// The epoch that the certificate names.
        epoch: Epoch,
        /// The newest known epoch.
        known: Epoch,
    },
    /// The batch precedes its epoch.
    #[error(
        "the certificate names batch {number} in epoch {epoch}, but that epoch begins after batch {after}"
    )]
    OutsideEpoch {
        /// Number of the certified batch.
        number: BatchNumber,
        /// The epoch that the certificate names.
        epoch: Epoch,
        /// The last batch of the epoch before.
        after: BatchNumber,
    },
    /// No quorum of the epoch's validators signed.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// A certificate does not end its epoch correctly.
    #[error("the certificate of batch {number} does not end epoch {epoch}: {fault}")]
    EpochEnd {
        /// Number of the certified batch.
        number: BatchNumber,
        /// The epoch that the certificate should end.
        epoch: Epoch,
        /// The certificate's fault.
        fault: EpochEndFault,
    },
    /// The ledger info is not the one that the waypoint names.
    #[error(
        "the ledger info has the waypoint {found}, but the trusted waypoint is {waypoint}: the node follows another \
        chain, or the waypoint is mistyped"
    )]
    OtherWaypoint {
        /// The trusted waypoint.
        waypoint: Waypoint,
        /// The waypoint that the answer gives.
        found: Waypoint,
    },
    /// The waypoint is inside an epoch: it proves the ledger up to its batch, but no validators.
    #[error(
        "waypoint {waypoint} does not end an epoch, so it names no validators: begin with the genesis, or with the \
        waypoint of the last batch of an epoch, which a light client reports (LightClient::waypoint, `slipstream \
        verify-account`)"
    )]
    WaypointInsideEpoch {
        /// The trusted waypoint.
        waypoint: Waypoint,
    },
    /// The ledger does not begin with the genesis.
    #[error("batch {number} does not belong to the chain with genesis {genesis}: {source}")]
    OtherChain {
        /// Number of the certified batch.
        number: BatchNumber,
        /// The genesis that it should begin with.
        genesis: Digest,
        /// The fault of the accumulator's proof.
        source: AccumulatorError,
    },
    /// The header is not in the certified ledger.
    #[error("the header of batch {number} is not in the certified ledger: {source}")]
    Header {
        /// The batch number in the header.
        number: BatchNumber,
        /// The fault of the accumulator's proof.
        source: AccumulatorError,
    },
    /// The certificate and the header of one batch contradict each other.
    #[error("the certificate and the header of batch {number} name different states")]
    HeaderState {
        /// Number of the batch.
        number: BatchNumber,
    },
    /// The answer shows an account of zeros: no state has such a row.
    #[error("the proof shows account {address} as a row of zeros, which no state has")]
    EmptyAccount {
        /// The account that is shown as zeros.
        address: Address,
    },
    /// The account, or its absence, does not match the state.
    #[error("account {address} does not match the state of batch {number}: {source}")]
    Account {
        /// The account that the proof is of.
        address: Address,
        /// Number of the batch whose state it is.
        number: BatchNumber,
        /// The fault of the state proof.
        source: Box<StateRangeError>,
    },
    /// The slot, or its absence, does not match the state.
    #[error("slot {slot} of {address} does not match the state of batch {number}: {source}")]
    Slot {
        /// The contract that the slot belongs to.
        address: Address,
        /// Key of the slot.
        slot: B256,
        /// Number of the batch whose state it is.
        number: BatchNumber,
        /// The fault of the state proof.
        source: Box<StateRangeError>,
    },
}

/// The fault of a certificate that should end an epoch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EpochEndFault {
    /// The certificate is for a batch inside the epoch, so it names no next validators.
    #[error("it names no validators for the next epoch")]
    NoValidators,
    /// The certificate names validators of an epoch that is not the next one.
    #[error("it names validators for epoch {found} instead")]
    OtherEpoch {
        /// The epoch of the set.
        found: Epoch,
    },
    /// The next validators do not form a valid set.
    #[error(transparent)]
    Set(#[from] ValidatorSetError),
}

impl LightError {
    /// Makes the error for a refused row proof.
    pub(crate) fn row(key: &StateKey, number: BatchNumber, source: StateRangeError) -> LightError {
        let source = Box::new(source);
        match *key {
            StateKey::Account(address) => LightError::Account { address, number, source },
            StateKey::Slot(address, slot) => LightError::Slot { address, slot, number, source },
        }
    }
}
