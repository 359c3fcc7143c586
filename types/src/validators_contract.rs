//! The system contract that holds a chain's chosen validators: its code, its first storage, and the meaning of its
//! later storage.
//!
//! ```text
//!  slot 0 owner │ 1 offeredTo │ 2 epochBatches │ 3 lastBatch │ 4 failuresAny │ 5 failuresCommission │ 6 validators
//!  keccak256(6) + 2 i: public key of validator i │ keccak256(6) + 2 i + 1: its fee recipient
//! ```
//!
//! A batch ends its epoch if `lastBatch` is its number in the state after it. The storage of that state then lists the
//! validators of the next epoch. So the outcome depends on the batch's number and state alone, and every node with the
//! state can compute it. This code reads the storage directly: so a genesis may place another contract with the same
//! layout.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, U256, address, keccak256};

use crate::{
    batch::{BatchNumber, Epoch},
    bounded::BoundedVec,
    codec::CodecError,
    delta::Code,
    keys::PublicKey,
    limits,
    validators::{Failures, Validator, ValidatorSet, ValidatorSetError},
};

/// The address at which genesis tools place the contract; a genesis names the address that it uses.
pub const ADDRESS: Address = address!("00000000000000000000000000000000005e7701");

/// `contracts/Validators.sol`, compiled by `testsuite/contracts/compile.mjs`, in hexadecimal.
const CODE: &str = include_str!("../contracts/Validators.hex");

const OWNER: u64 = 0;
const EPOCH_BATCHES: u64 = 2;
const LAST_BATCH: u64 = 3;
const FAILURES_ANY: u64 = 4;
const FAILURES_COMMISSION: u64 = 5;
const VALIDATORS: u64 = 6;

/// Why a storage yields no validator set. This crate's contract never writes such a storage.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContractSetError {
    /// The list is too long for a set.
    #[error("it lists {count} validators, but at most {} are allowed", limits::VALIDATORS_MAX)]
    TooMany {
        /// Length of the list.
        count: U256,
    },
    /// More failures than a set can have validators.
    #[error(
        "it asks for {any} failures of any kind and {commission} of commission, but at most 65535 are allowed"
    )]
    Failures {
        /// Failures of any kind in the storage.
        any: U256,
        /// Failures of commission in the storage.
        commission: U256,
    },
    /// Bytes for which no one can sign: if the number of such keys exceeded the tolerated failures, the chain would
    /// halt for good.
    #[error("{key} is not an ed25519 public key")]
    Unusable {
        /// The 32 bytes of the key in the storage.
        key: PublicKey,
    },
    /// The validators do not form a valid set.
    #[error(transparent)]
    Set(#[from] ValidatorSetError),
}

/// Returns the contract's compiled code.
///
/// # Errors
/// If the code cannot be decoded.
pub fn code() -> Result<Code, CodecError> {
    let invalid =
        |_| CodecError::Invalid { what: "validators contract", rule: "its code must be hexadecimal" };
    Code::new(hex::decode(CODE.trim_end()).map_err(invalid)?)
}

/// Returns the contract's first storage: it holds the validators of `set`, and only `owner` may change them. Changes
/// take effect at the next batch whose number is a multiple of `epoch_batches`; with 1 (or 0), at the batch that holds
/// the change.
pub fn first_storage(owner: Address, epoch_batches: u64, set: &ValidatorSet) -> BTreeMap<B256, U256> {
    let mut storage = BTreeMap::from([
        (slot(OWNER), U256::from_be_bytes(owner.into_word().0)),
        (slot(EPOCH_BATCHES), U256::from(epoch_batches)),
        (slot(FAILURES_ANY), U256::from(set.failures.any)),
        (slot(FAILURES_COMMISSION), U256::from(set.failures.commission)),
        (slot(VALIDATORS), U256::from(set.validators.len())),
    ]);
    for (index, validator) in set.validators.iter().enumerate() {
        let [key, recipient] = element(index);
        storage.insert(key, U256::from_be_bytes(validator.public_key.0));
        storage.insert(recipient, U256::from_be_bytes(validator.fee_recipient.into_word().0));
    }
    storage.retain(|_, value| !value.is_zero());
    storage
}

/// Returns the batch that ends the epoch with the present list, or `None` before the first change. `read` reads the
/// contract's storage.
///
/// # Errors
/// Those of `read`.
pub fn last_batch<E>(read: &mut impl FnMut(B256) -> Result<U256, E>) -> Result<Option<BatchNumber>, E> {
    let last = read(slot(LAST_BATCH))?;
    Ok(u64::try_from(last).ok().filter(|last| *last > 0).map(BatchNumber::new))
}

/// Returns the chosen validators, as the set of an epoch.
///
/// # Errors
/// Those of `read`; the inner error says why the storage holds no valid set.
pub fn wanted<E>(
    epoch: Epoch,
    read: &mut impl FnMut(B256) -> Result<U256, E>,
) -> Result<Result<ValidatorSet, ContractSetError>, E> {
    let (any, commission) = (read(slot(FAILURES_ANY))?, read(slot(FAILURES_COMMISSION))?);
    let count = read(slot(VALIDATORS))?;
    let Some(length) = usize::try_from(count).ok().filter(|count| *count <= limits::VALIDATORS_MAX) else {
        return Ok(Err(ContractSetError::TooMany { count }));
    };
    let (Ok(any_failures), Ok(commissions)) = (u16::try_from(any), u16::try_from(commission)) else {
        return Ok(Err(ContractSetError::Failures { any, commission }));
    };
    let mut validators = Vec::with_capacity(length);
    for index in 0..length {
        let [key, recipient] = element(index);
        let public_key = PublicKey(read(key)?.to_be_bytes());
        validators.push(Validator { public_key, fee_recipient: Address::from_word(read(recipient)?.into()) });
    }
    let Ok(validators) = BoundedVec::new(validators) else {
        return Ok(Err(ContractSetError::TooMany { count }));
    };
    if let Some(unusable) = validators.iter().find(|validator| !validator.public_key.is_usable()) {
        return Ok(Err(ContractSetError::Unusable { key: unusable.public_key }));
    }
    let failures = Failures { any: any_failures, commission: commissions };
    let set = ValidatorSet { epoch, validators, failures };
    Ok(set.check().map(|()| set).map_err(ContractSetError::from))
}

/// Returns the validators of the next epoch if the batch ends its epoch. They depend on its number, its epoch and the
/// state after it.
///
/// # Errors
/// Those of `read`; the inner error says why the batch does not end its epoch although it should.
pub fn next_validators<E>(
    number: BatchNumber,
    epoch: Epoch,
    mut read: impl FnMut(B256) -> Result<U256, E>,
) -> Result<Option<Result<ValidatorSet, ContractSetError>>, E> {
    if number == BatchNumber::GENESIS || last_batch(&mut read)? != Some(number) {
        return Ok(None);
    }
    wanted(Epoch(epoch.0.saturating_add(1)), &mut read).map(Some)
}

fn slot(index: u64) -> B256 {
    U256::from(index).into()
}

/// The two slots of a validator.
fn element(index: usize) -> [B256; 2] {
    let first = U256::from_be_bytes(keccak256(slot(VALIDATORS)).0).wrapping_add(U256::from(2 * index));
    [first.into(), first.wrapping_add(U256::from(1)).into()]
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn set(keys: impl IntoIterator<Item = u8>, failures: Failures) -> ValidatorSet {
        let public_key = |key| crate::SecretKey::from_seed([key; 32]).public();
        let validator =
            |key| Validator { public_key: public_key(key), fee_recipient: Address::repeat_byte(key) };
        let validators = BoundedVec::new(keys.into_iter().map(validator).collect()).unwrap();
        ValidatorSet { epoch: Epoch(0), validators, failures }
    }

    fn reader(storage: &BTreeMap<B256, U256>) -> impl FnMut(B256) -> Result<U256, Infallible> + '_ {
        |slot| Ok(storage.get(&slot).copied().unwrap_or_default())
    }

    /// Goal: the storage in a genesis reads back as its set, whatever its size, and ends no epoch yet.
    #[test]
    fn the_first_storage_is_the_set() {
        for (count, failures) in [(1, 0), (4, 1), (128, 42)] {
            let set = set(0..count, Failures { any: failures, commission: failures });
            let storage = first_storage(Address::repeat_byte(9), 1, &set);
            let mut read = reader(&storage);
            assert_eq!(wanted(Epoch(0), &mut read).unwrap().unwrap(), set);
            assert_eq!(last_batch(&mut read).unwrap(), None);
            for number in [0, 1, 2, u64::MAX] {
                assert_eq!(
                    next_validators(BatchNumber::new(number), Epoch(0), reader(&storage)).unwrap(),
                    None
                );
            }
        }
    }

    /// Goal: exactly the batch that the storage names ends its epoch, and the next set is of the next epoch.
    #[test]
    fn one_batch_ends_the_epoch() {
        let set = set(1..5, Failures::thirds(4));
        let mut storage = first_storage(Address::ZERO, 10, &set);
        storage.insert(slot(LAST_BATCH), U256::from(20));
        let next = |number| next_validators(BatchNumber::new(number), Epoch(6), reader(&storage)).unwrap();
        assert_eq!((next(19), next(21)), (None, None));
        assert_eq!(next(20), Some(Ok(ValidatorSet { epoch: Epoch(7), ..set })));
    }

    /// Goal: a malformed storage ends no epoch, and its length does not drive an allocation.
    #[test]
    fn what_is_no_set_is_refused() {
        let good = first_storage(Address::ZERO, 1, &set(1..5, Failures::thirds(4)));
        let with_at = |slot: B256, value: U256| {
            let mut storage = good.clone();
            storage.insert(slot, value);
            wanted(Epoch(1), &mut reader(&storage)).unwrap().map(|_| ()).unwrap_err()
        };
        let with = |index: u64, value: U256| with_at(slot(index), value);
        let too_many = |count| ContractSetError::TooMany { count };
        assert_eq!(with(VALIDATORS, U256::MAX), too_many(U256::MAX));
        assert_eq!(with(VALIDATORS, U256::from(129)), too_many(U256::from(129)));
        assert_eq!(with(VALIDATORS, U256::ZERO), ValidatorSetError::Empty.into());
        let [[first, _], [second, _]] = [0, 1].map(element);
        let repeated = with_at(second, good[&first]);
        assert!(matches!(repeated, ContractSetError::Set(ValidatorSetError::Repeated { .. })), "{repeated}");
        // The point of order 1 signs everything.
        for unusable in [with(VALIDATORS, U256::from(6)), with_at(first, U256::from(1) << 248)] {
            assert!(matches!(unusable, ContractSetError::Unusable { .. }), "{unusable}");
        }
        assert!(matches!(
            with(FAILURES_ANY, U256::from(2)),
            ContractSetError::Set(ValidatorSetError::TooFew { .. })
        ));
        assert!(matches!(with(FAILURES_COMMISSION, U256::from(70_000)), ContractSetError::Failures { .. }));
    }

    /// A source that changed without `npm run compile` would keep its old code and layout unnoticed.
    #[test]
    fn the_code_is_that_of_the_committed_source() {
        let artifact: serde_json::Value =
            serde_json::from_str(include_str!("../contracts/Validators.json")).unwrap();
        let source = keccak256(include_str!("../contracts/Validators.sol"));
        assert_eq!(artifact["source_keccak256"], source.to_string(), "Validators.sol: run npm run compile");
        assert_eq!(artifact["code"], CODE.trim_end(), "Validators.hex: run npm run compile");
        let layout = artifact["storage"].as_array().unwrap();
        let name = |index: u64| layout[index as usize]["label"].as_str().unwrap();
        for (index, label) in [
            (OWNER, "owner"),
            (EPOCH_BATCHES, "epochBatches"),
            (LAST_BATCH, "lastBatch"),
            (FAILURES_ANY, "failuresAny"),
            (FAILURES_COMMISSION, "failuresCommission"),
            (VALIDATORS, "wanted"),
        ] {
            assert_eq!(name(index), label);
            assert_eq!(layout[index as usize]["slot"], index.to_string());
        }
    }
}
