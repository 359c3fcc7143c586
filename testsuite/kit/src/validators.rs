//! Keys of validators, and sets of them.

use slipstream_types::{
    Address, Epoch, Genesis, SecretKey, Validator, ValidatorSet, bounded::BoundedVec, limits,
};

/// Validators in the order by which certificates index them.
pub type Members = BoundedVec<Validator, { limits::VALIDATORS_MAX }>;

/// Returns the key whose seed is the byte `seed` 32 times.
pub fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed([seed; 32])
}

/// Returns the keys of these seeds, in order.
pub fn keys(seeds: impl IntoIterator<Item = u8>) -> Vec<SecretKey> {
    seeds.into_iter().map(key).collect()
}

/// Returns the validators with these keys; all fees go to one account.
///
/// # Panics
/// If there are more than [`limits::VALIDATORS_MAX`].
pub fn members(keys: &[SecretKey], fee_recipient: Address) -> Members {
    let validator = |key: &SecretKey| Validator { public_key: key.public(), fee_recipient };
    BoundedVec::new(keys.iter().map(validator).collect()).expect("a test has few validators")
}

/// Returns an epoch's validator set, with [`members`].
///
/// # Panics
/// As [`members`].
pub fn set(epoch: u64, keys: &[SecretKey], fee_recipient: Address) -> ValidatorSet {
    ValidatorSet::new(Epoch(epoch), members(keys, fee_recipient))
}

/// Returns a genesis with the default rules, these validators and an empty state. Their fees go to the zero address.
///
/// # Panics
/// As [`members`].
pub fn genesis(keys: &[SecretKey], timestamp_ms: u64) -> Genesis {
    Genesis { timestamp_ms, validators: members(keys, Address::ZERO), ..Genesis::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: certificates index validators by the order of the keys.
    #[test]
    fn members_stand_in_the_order_of_their_keys() {
        let keys = keys([9, 3, 7]);
        let set = set(5, &keys, Address::repeat_byte(1));
        let found: Vec<_> = set.validators.iter().map(|validator| validator.public_key).collect();
        assert_eq!(found, [key(9), key(3), key(7)].map(|key| key.public()));
        assert_eq!(set.epoch, Epoch(5));
    }
}
