//! [`ValidatorSet`]: the validators that may certify the batches of an epoch, and the failures that they tolerate.

use alloy_primitives::Address;
use serde::{Deserialize, Serialize};

use crate::{batch::Epoch, bounded::BoundedVec, keys::PublicKey, limits};

/// One validator of an epoch.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Validator {
    /// The key that signs ledger infos, and the validator's identity as a peer.
    pub public_key: PublicKey,
    /// The account that receives the fees of the batches that the validator proposes.
    pub fee_recipient: Address,
}

/// The failures that a validator set tolerates before it loses its guarantees.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Failures {
    /// Failures of any kind, silence included, with which batches still commit: `u`.
    pub any: u16,
    /// Validators that make wrong statements, with which two batches of one number are still never certified: `r`.
    pub commission: u16,
}

impl Failures {
    /// The default: a third of all validators but one, rounded down, may fail in any way.
    pub fn thirds(validators: usize) -> Failures {
        let third = (validators.saturating_sub(1) / 3).try_into().unwrap_or(u16::MAX);
        Failures { any: third, commission: third }
    }

    /// Returns the number of validators that tolerates these failures: `2u + r + 1`. Two quorums of `n - u` then share
    /// `r + 1`, one of them honest.
    pub fn validators_min(self) -> usize {
        2 * usize::from(self.any) + usize::from(self.commission) + 1
    }
}

/// The validators of one epoch, in the order by which certificates index them.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ValidatorSet {
    /// The epoch whose batches this set certifies.
    pub epoch: Epoch,
    /// At least one validator, at most [`limits::VALIDATORS_MAX`].
    pub validators: BoundedVec<Validator, { limits::VALIDATORS_MAX }>,
    /// The failures that the set tolerates.
    pub failures: Failures,
}

/// Why validators do not form a valid set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ValidatorSetError {
    /// The set is empty: every certificate would be valid.
    #[error("there must be at least one validator")]
    Empty,
    /// One key would count twice.
    #[error("validator {key} is named twice: name each key once")]
    Repeated {
        /// The repeated key.
        key: PublicKey,
    },
    /// Too few validators for the failures that they must tolerate.
    #[error(
        "{validators} validators cannot tolerate {} failures of any kind and {} of commission: that takes 2 × any + commission + 1 = {} validators",
        failures.any, failures.commission, failures.validators_min()
    )]
    TooFew {
        /// Validators in the set.
        validators: usize,
        /// The failures that the set must tolerate, by the genesis or the contract.
        failures: Failures,
    },
}

impl ValidatorSet {
    /// Makes a set with [`Failures::thirds`]. Unchecked: see [`ValidatorSet::check`].
    pub fn new(epoch: Epoch, validators: BoundedVec<Validator, { limits::VALIDATORS_MAX }>) -> ValidatorSet {
        let failures = Failures::thirds(validators.len());
        ValidatorSet { epoch, validators, failures }
    }

    /// Checks that the set may begin an epoch.
    ///
    /// # Errors
    /// Returns the fault of the set: it is empty, repeats a key, or is too small for the failures that it must
    /// tolerate.
    pub fn check(&self) -> Result<(), ValidatorSetError> {
        if self.validators.is_empty() {
            return Err(ValidatorSetError::Empty);
        }
        let mut keys: Vec<_> = self.validators.iter().map(|validator| validator.public_key).collect();
        keys.sort_unstable();
        if let Some(pair) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(ValidatorSetError::Repeated { key: pair[0] });
        }
        self.check_failures()
    }

    /// The cheap part of [`ValidatorSet::check`], without which a quorum is meaningless.
    pub(crate) fn check_failures(&self) -> Result<(), ValidatorSetError> {
        let (validators, failures) = (self.validators.len(), self.failures);
        match validators >= failures.validators_min() {
            true => Ok(()),
            false => Err(ValidatorSetError::TooFew { validators, failures }),
        }
    }

    /// Returns the number of signatures in a certificate: `n - u`. At least a quorum answers while no more than `u`
    /// validators fail, and two quorums share `r + 1` validators.
    pub fn quorum(&self) -> usize {
        self.validators.len().saturating_sub(self.failures.any.into())
    }

    /// Returns the number of equal statements on which a validator may act without a quorum: `max(u, r) + 1`. One of
    /// their authors is honest.
    pub fn matching(&self) -> usize {
        usize::from(self.failures.any.max(self.failures.commission)) + 1
    }

    /// The index of the validator that orders the batches of a view.
    pub fn primary(&self, view: u64) -> u16 {
        (view % self.validators.len().max(1) as u64) as u16
    }

    /// The position of a validator in the set.
    pub fn index_of(&self, key: &PublicKey) -> Option<u16> {
        self.validators.iter().position(|validator| validator.public_key == *key).map(|index| index as u16)
    }
}
