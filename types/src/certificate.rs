//! [`LedgerInfo`], the statement that validators sign, and [`Certificate`], a quorum's signatures on it.

use serde::{Deserialize, Serialize};

use crate::{
    batch::{BatchHeader, BatchNumber, Epoch},
    bounded::BoundedVec,
    codec::CodecError,
    digest::Digest,
    keys::{PublicKey, SecretKey, Signature},
    limits,
    validators::{ValidatorSet, ValidatorSetError},
};

/// The ledger up to one batch, which a certificate signs and a waypoint names.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct LedgerInfo {
    /// The epoch whose validators sign it.
    pub epoch: Epoch,
    /// Number of the last batch that it commits.
    pub number: BatchNumber,
    /// Root of the accumulator over the headers 0 to `number`. Its first leaf is the genesis, which binds the chain.
    pub accumulator_root: Digest,
    /// Root of the state tree after the batch.
    pub state_root: Digest,
    /// Timestamp of that batch, in milliseconds since 1970; its proposer sets it.
    pub timestamp_ms: u64,
    /// The next epoch's validators, if the batch ends its epoch.
    pub next_validators: Option<ValidatorSet>,
}

impl LedgerInfo {
    /// Makes the ledger info of the ledger that ends with a batch. `accumulator_root` covers all headers up to this
    /// one; `next_validators` are those of the next epoch, if the batch ends its epoch.
    pub fn of(
        header: &BatchHeader,
        accumulator_root: Digest,
        next_validators: Option<ValidatorSet>,
    ) -> LedgerInfo {
        LedgerInfo {
            epoch: header.epoch,
            number: header.number,
            accumulator_root,
            state_root: header.state_root,
            timestamp_ms: header.timestamp_ms,
            next_validators,
        }
    }

    /// Returns the digest that waypoints quote. Validators sign it together with a view.
    pub fn digest(&self) -> Digest {
        let bytes = bcs::to_bytes(self).expect("a validator set is within the limits of BCS");
        Digest::tagged("slipstream/ledger-info/1", &bytes)
    }
}

/// The statement that a validator signs to commit a batch: the digest of its ledger info, in one view. Each view has
/// its own statement, so signatures from two views never add up to a certificate.
///
/// This type makes and checks all signatures of certificates.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CommitStatement(Digest);

impl CommitStatement {
    /// Makes the statement of a view and a [`LedgerInfo::digest`], which binds chain, epoch and batch.
    pub fn new(view: u64, info: Digest) -> CommitStatement {
        let content = [&view.to_le_bytes()[..], info.as_bytes()].concat();
        CommitStatement(Digest::tagged("slipstream/commit/1", &content))
    }

    /// Signs the statement with a validator's key.
    pub fn sign(&self, key: &SecretKey) -> Signature {
        key.sign(self.0.as_bytes())
    }

    /// Whether the signature on the statement is this validator's.
    pub fn verify(&self, key: &PublicKey, signature: &Signature) -> bool {
        key.verify_once(self.0.as_bytes(), signature)
    }
}

/// A ledger info with the signatures of a quorum, by ascending validator index.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Certificate {
    /// The ledger info that the quorum signed.
    pub info: LedgerInfo,
    /// The view in which all of these validators signed. Its primary is the validator with index `view mod n`.
    pub view: u64,
    /// Validator index and signature.
    pub signatures: BoundedVec<(u16, Signature), { limits::VALIDATORS_MAX }>,
}

/// Why a certificate was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// The certificate is of another epoch than the given set.
    #[error("certificate of batch {number} names epoch {found}, but epoch {expected} was expected")]
    WrongEpoch {
        /// Number of the certified batch.
        number: BatchNumber,
        /// The epoch that the certificate names.
        found: Epoch,
        /// The epoch of the validator set.
        expected: Epoch,
    },
    /// The given set has no meaningful quorum.
    #[error("cannot check the certificate of batch {number}: {source}")]
    BadSet {
        /// Number of the certified batch.
        number: BatchNumber,
        /// The rule that the validator set breaks.
        source: ValidatorSetError,
    },
    /// Too few validators signed.
    #[error("certificate of batch {number} has {found} signatures, but a quorum is {quorum}")]
    NoQuorum {
        /// Number of the certified batch.
        number: BatchNumber,
        /// Number of signatures in the certificate.
        found: usize,
        /// Number of signatures that make a quorum.
        quorum: usize,
    },
    /// Indices repeat, are out of order, or name no validator.
    #[error("certificate of batch {number}: validator index {index} is repeated, out of order or unknown")]
    BadIndex {
        /// Number of the certified batch.
        number: BatchNumber,
        /// The refused index.
        index: u16,
    },
    /// A signature does not verify.
    #[error("certificate of batch {number}: the signature of validator {index} does not verify")]
    BadSignature {
        /// Number of the certified batch.
        number: BatchNumber,
        /// The signer's index in the validator set.
        index: u16,
    },
}

impl Certificate {
    /// Signs a ledger info with the given keys, by ascending index, for chains of tests and benchmarks. With too few
    /// keys the certificate does not verify.
    ///
    /// # Errors
    /// If the keys are more than [`limits::VALIDATORS_MAX`].
    pub fn signed<'a>(
        info: LedgerInfo,
        view: u64,
        signers: impl IntoIterator<Item = (u16, &'a SecretKey)>,
    ) -> Result<Certificate, CodecError> {
        let statement = CommitStatement::new(view, info.digest());
        let signatures = signers.into_iter().map(|(index, key)| (index, statement.sign(key))).collect();
        Ok(Certificate { info, view, signatures: BoundedVec::new(signatures)? })
    }

    /// Returns the statement that the validators signed.
    pub fn statement(&self) -> CommitStatement {
        CommitStatement::new(self.view, self.info.digest())
    }

    /// Checks that a quorum of the set signed the ledger info in the certificate's view.
    pub fn verify(&self, set: &ValidatorSet) -> Result<(), CertificateError> {
        let number = self.info.number;
        if self.info.epoch != set.epoch {
            return Err(CertificateError::WrongEpoch { number, found: self.info.epoch, expected: set.epoch });
        }
        set.check_failures().map_err(|source| CertificateError::BadSet { number, source })?;
        if self.signatures.len() < set.quorum() {
            return Err(CertificateError::NoQuorum {
                number,
                found: self.signatures.len(),
                quorum: set.quorum(),
            });
        }
        let statement = self.statement();
        let mut lowest_free = 0;
        for (index, signature) in &self.signatures {
            let validator = set.validators.get(usize::from(*index)).filter(|_| *index >= lowest_free);
            let Some(validator) = validator else {
                return Err(CertificateError::BadIndex { number, index: *index });
            };
            if !statement.verify(&validator.public_key, signature) {
                return Err(CertificateError::BadSignature { number, index: *index });
            }
            lowest_free = index + 1;
        }
        Ok(())
    }
}
