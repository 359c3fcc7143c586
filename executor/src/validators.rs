//! [`next_validators`]: the validators of the epoch after a batch. This module is in the same crate as
//! [`seal`](crate::seal()), because every executor derives both header and validators, and validators sign both.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, Bytes, U256};
use alloy_sol_types::SolCall;
use slipstream_storage::{StateReader, StorageError};
use slipstream_types::{
    BatchHeader, BatchNumber, Delta, Epoch, Failures, PublicKey, StateKey, StateValue, Validator,
    ValidatorSet,
    validators_contract::{self, ContractSetError},
};

use self::interface::Validators as Contract;

/// Returns the validators of the next epoch if the batch ends its epoch. Computes them from the state before the batch
/// and the batch's changes. A chain whose genesis names no validators contract keeps its validators. If the contract's
/// set is invalid, the epoch goes on, and the log says why.
///
/// # Errors
/// If the state cannot be read.
pub fn next_validators(
    contract: Option<Address>,
    header: &BatchHeader,
    before: &dyn StateReader,
    delta: &Delta,
) -> Result<Option<ValidatorSet>, StorageError> {
    let mut storage = ValidatorsStorage::new(contract);
    storage.apply(delta);
    match storage.succession(header, before)? {
        Some(Err(reason)) => {
            let (number, epoch) = (header.number, header.epoch);
            tracing::warn!(%number, %epoch, %reason, "the epoch continues because the validators contract names an invalid set");
            Ok(None)
        }
        next => Ok(next.and_then(Result::ok)),
    }
}

/// The storage of the validators contract, with the changes of uncommitted batches.
#[derive(Clone, Debug)]
pub struct ValidatorsStorage {
    contract: Option<Address>,
    changed: BTreeMap<B256, U256>,
}

impl ValidatorsStorage {
    /// Returns the storage without changes; `contract` is the one that the genesis names, if any.
    pub fn new(contract: Option<Address>) -> ValidatorsStorage {
        ValidatorsStorage { contract, changed: BTreeMap::new() }
    }

    /// Adds the changes of the next batch.
    pub fn apply(&mut self, delta: &Delta) {
        let Some(contract) = self.contract else { return };
        self.changed.extend(delta.entries().iter().filter_map(|entry| match (entry.key, entry.value) {
            (StateKey::Slot(address, _), _) if address != contract => None,
            (StateKey::Slot(_, slot), Some(StateValue::Slot(value))) => Some((slot, value)),
            (StateKey::Slot(_, slot), _) => Some((slot, U256::ZERO)),
            (StateKey::Account(_), _) => None,
        }));
    }

    /// Returns the validators of the next epoch, if the last applied batch ends its epoch. `base` is the state before
    /// the first applied batch. If the contract's list is no valid set, the epoch goes on.
    ///
    /// # Errors
    /// If the state cannot be read.
    pub fn next_validators(
        &self,
        header: &BatchHeader,
        base: &dyn StateReader,
    ) -> Result<Option<ValidatorSet>, StorageError> {
        Ok(self.succession(header, base)?.and_then(Result::ok))
    }

    /// As [`ValidatorsStorage::next_validators`], with the reason if the batch would end its epoch with an invalid set.
    fn succession(
        &self,
        header: &BatchHeader,
        base: &dyn StateReader,
    ) -> Result<Option<Result<ValidatorSet, ContractSetError>>, StorageError> {
        let Some(contract) = self.contract else { return Ok(None) };
        let read = |slot| self.read(contract, slot, base);
        validators_contract::next_validators(header.number, header.epoch, read)
    }

    /// The set that the contract wants for an epoch, and the number of the last batch before it. The number is missing
    /// if the set never changed. Returns `None` if the contract is missing or its list is no valid set.
    ///
    /// # Errors
    /// If the state cannot be read.
    pub fn wanted(
        &self,
        epoch: Epoch,
        base: &dyn StateReader,
    ) -> Result<Option<(Option<BatchNumber>, ValidatorSet)>, StorageError> {
        let Some(contract) = self.contract else { return Ok(None) };
        let mut read = |slot| self.read(contract, slot, base);
        let last = validators_contract::last_batch(&mut read)?;
        let wanted = validators_contract::wanted(epoch, &mut read)?;
        Ok(wanted.ok().map(|wanted| (last, wanted)))
    }

    fn read(&self, contract: Address, slot: B256, base: &dyn StateReader) -> Result<U256, StorageError> {
        match self.changed.get(&slot) {
            Some(value) => Ok(*value),
            None => base.slot(&contract, &slot),
        }
    }
}

/// Call data with which the contract's owner adds a validator.
pub fn add_call(validator: &Validator) -> Bytes {
    let Validator { public_key, fee_recipient } = validator;
    let call = Contract::addCall { publicKey: B256::from(public_key.0), feeRecipient: *fee_recipient };
    call.abi_encode().into()
}

/// Call data with which the contract's owner removes a validator.
pub fn remove_call(public_key: &PublicKey) -> Bytes {
    Contract::removeCall { publicKey: B256::from(public_key.0) }.abi_encode().into()
}

/// Call data with which the contract's owner sets how many validators may fail.
pub fn failures_call(failures: Failures) -> Bytes {
    let (any, commission) = (U256::from(failures.any), U256::from(failures.commission));
    Contract::setFailuresCall { any, commission }.abi_encode().into()
}

/// The contract's functions and events, for its callers.
#[allow(missing_docs, reason = "the macro's items are documented by types/contracts/Validators.sol")]
pub mod interface {
    alloy_sol_types::sol! {
        interface Validators {
            struct Validator {
                bytes32 publicKey;
                address feeRecipient;
            }

            event ValidatorAdded(bytes32 indexed publicKey, address feeRecipient, uint256 lastBatch);
            event ValidatorRemoved(bytes32 indexed publicKey, uint256 lastBatch);
            event FeeRecipientChanged(bytes32 indexed publicKey, address feeRecipient, uint256 lastBatch);
            event FailuresChanged(uint256 any, uint256 commission, uint256 lastBatch);
            event OwnerChanged(address indexed from, address indexed to);

            function add(bytes32 publicKey, address feeRecipient) external;
            function remove(bytes32 publicKey) external;
            function setFeeRecipient(bytes32 publicKey, address feeRecipient) external;
            function setFailures(uint256 any, uint256 commission) external;
            function offerOwnership(address to) external;
            function acceptOwnership() external;
            function owner() external view returns (address);
            function lastBatch() external view returns (uint256);
            function failuresAny() external view returns (uint256);
            function failuresCommission() external view returns (uint256);
            function count() external view returns (uint256);
            function validators() external view returns (Validator[] memory);
        }
    }
}
