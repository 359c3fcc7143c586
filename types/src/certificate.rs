//! [`LedgerInfo`], the statement that validators sign, and [`Certificate`], a quorum's signatures on it.

use alloy_primitives::Address;
use serde::{Deserialize, Serialize};

use crate::{
    batch::{BatchNumber, Epoch},
    bounded::BoundedVec,
    digest::Digest,
    keys::{PublicKey, SecretKey, Signature},
    limits,
};

/// One validator of an epoch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Validator {
    /// Signs ledger infos, and is the validator's identity as a peer.
    pub public_key: PublicKey,
    /// Receives the fees of the batches that it proposes.
    pub fee_recipient: Address,
}

/// The validators of one epoch, in the order that certificates index them by.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ValidatorSet {
    /// The epoch.
    pub epoch: Epoch,
    /// At least one.
    pub validators: BoundedVec<Validator, { limits::VALIDATORS_MAX }>,
}

impl ValidatorSet {
    /// Signatures that make a certificate: n - f with f = (n - 1) / 3, so that two quorums share an honest validator.
    pub fn quorum(&self) -> usize {
        let n = self.validators.len();
        n - n.saturating_sub(1) / 3
    }

    /// The position of a validator in the set.
    pub fn index_of(&self, key: &PublicKey) -> Option<u16> {
        self.validators.iter().position(|validator| validator.public_key == *key).map(|index| index as u16)
    }
}

/// The ledger up to one batch: what a certificate signs and what a waypoint names.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LedgerInfo {
    /// The epoch whose validators sign it.
    pub epoch: Epoch,
    /// The last batch.
    pub number: BatchNumber,
    /// Root of the accumulator over the headers 0 to `number`. Its first leaf is the genesis, which binds the chain.
    pub accumulator_root: Digest,
    /// Root of the state tree after the batch.
    pub state_root: Digest,
    /// The batch's timestamp.
    pub timestamp_ms: u64,
    /// The next epoch's validators, if the batch ends its epoch.
    pub next_validators: Option<ValidatorSet>,
}

impl LedgerInfo {
    /// What waypoints quote and validators sign.
    pub fn digest(&self) -> Digest {
        let bytes = bcs::to_bytes(self).expect("a validator set is within the limits of BCS");
        Digest::tagged("slipstream/ledger-info/1", &bytes)
    }

    /// A validator's signature.
    pub fn sign(&self, key: &SecretKey) -> Signature {
        key.sign(self.digest().as_bytes())
    }
}

/// A ledger info with the signatures of a quorum, by ascending validator index.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Certificate {
    /// What is certified.
    pub info: LedgerInfo,
    /// Validator index and signature.
    pub signatures: BoundedVec<(u16, Signature), { limits::VALIDATORS_MAX }>,
}

/// Why a certificate was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// Signed in another epoch than the set at hand.
    #[error("certificate of batch {number} is of epoch {found}, expected epoch {expected}")]
    WrongEpoch {
        /// The certified batch.
        number: BatchNumber,
        /// Its epoch.
        found: Epoch,
        /// The epoch of the validator set.
        expected: Epoch,
    },
    /// Too few validators signed.
    #[error("certificate of batch {number} has {found} signatures, a quorum is {quorum}")]
    NoQuorum {
        /// The certified batch.
        number: BatchNumber,
        /// Signatures in it.
        found: usize,
        /// Signatures needed.
        quorum: usize,
    },
    /// Indices repeat, are out of order, or name no validator.
    #[error("certificate of batch {number}: validator index {index} is repeated, out of order or unknown")]
    BadIndex {
        /// The certified batch.
        number: BatchNumber,
        /// The index.
        index: u16,
    },
    /// A signature does not verify.
    #[error("certificate of batch {number}: the signature of validator {index} does not verify")]
    BadSignature {
        /// The certified batch.
        number: BatchNumber,
        /// The validator's index.
        index: u16,
    },
}

impl Certificate {
    /// Checks that a quorum of the set signed the ledger info.
    pub fn verify(&self, set: &ValidatorSet) -> Result<(), CertificateError> {
        let number = self.info.number;
        if self.info.epoch != set.epoch {
            return Err(CertificateError::WrongEpoch { number, found: self.info.epoch, expected: set.epoch });
        }
        if self.signatures.len() < set.quorum() {
            return Err(CertificateError::NoQuorum {
                number,
                found: self.signatures.len(),
                quorum: set.quorum(),
            });
        }
        let message = self.info.digest();
        let mut lowest_free = 0;
        for (index, signature) in &self.signatures {
            let validator = set.validators.get(usize::from(*index)).filter(|_| *index >= lowest_free);
            let Some(validator) = validator else {
                return Err(CertificateError::BadIndex { number, index: *index });
            };
            if !validator.public_key.verify(message.as_bytes(), signature) {
                return Err(CertificateError::BadSignature { number, index: *index });
            }
            lowest_free = index + 1;
        }
        Ok(())
    }
}
