//! Vouchers: a validator's signature in the hints that it made.
//!
//! Nothing certifies hints, and only a node that executes the batch can judge them. A node that applies deltas, or
//! began from a snapshot, keeps hints for others; it must not relay hints that a stranger made up. So a validator signs
//! its hints, for one batch:
//!
//! ```text
//!  version │ sections … │ 4 │ 66 │ validator u16, little-endian │ signature [64]
//!  └────── signed ──────┘
//! ```
//! A voucher names the maker of hints and says nothing about their quality. The validator answers for the quality;
//! peers that relayed the hints do not.

use super::SECTION_VOUCHER;
use crate::{
    Digest, PublicKey,
    keys::{SecretKey, Signature},
    validators::ValidatorSet,
};

const SIGNATURE_BYTES: usize = 64;
const CONTENT_BYTES: usize = 2 + SIGNATURE_BYTES;
/// Bytes that a voucher adds to hints.
pub const VOUCHER_BYTES: usize = 2 + CONTENT_BYTES;

/// Appends a voucher to hints of the batch with this header. The index is the validator's in the set of the header's epoch.
pub fn vouch(content: &mut Vec<u8>, header: &Digest, validator: u16, key: &SecretKey) {
    let signature = key.sign(statement(header, content).as_bytes());
    content.extend([SECTION_VOUCHER, CONTENT_BYTES as u8]);
    content.extend(validator.to_le_bytes());
    content.extend(signature.0);
}

/// Returns the validator of the header's epoch that vouches for these hints of the batch. Returns `None` without a voucher, or if
/// its signature is another's or covers other hints. Costs a hash of the hints and a signature check.
pub fn vouched_by<'a>(content: &[u8], header: &Digest, set: &'a ValidatorSet) -> Option<&'a PublicKey> {
    let (signed, voucher) = content.split_last_chunk::<VOUCHER_BYTES>()?;
    let (section, voucher) = voucher.split_first_chunk::<2>()?;
    let (index, signature) = voucher.split_first_chunk::<2>()?;
    let signature = Signature(signature.try_into().ok()?);
    let validator = set.validators.get(usize::from(u16::from_le_bytes(*index)))?;
    let key = Some(&validator.public_key).filter(|_| *section == [SECTION_VOUCHER, CONTENT_BYTES as u8])?;
    key.verify(statement(header, signed).as_bytes(), &signature).then_some(key)
}

/// Returns hints without their last section, if that has the form of a voucher.
pub fn without_voucher(content: &[u8]) -> &[u8] {
    match content.split_last_chunk::<VOUCHER_BYTES>() {
        Some((signed, voucher)) if voucher.starts_with(&[SECTION_VOUCHER, CONTENT_BYTES as u8]) => signed,
        _ => content,
    }
}

fn statement(header: &Digest, hints: &[u8]) -> Digest {
    let tag = "slipstream/hints/1";
    Digest::of(&[&(tag.len() as u64).to_le_bytes(), tag.as_bytes(), header.as_bytes(), hints])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Address, Epoch, Validator, bounded::BoundedVec};

    const HEADER: Digest = Digest([7; 32]);

    fn keys() -> [SecretKey; 2] {
        [SecretKey::from_seed([1; 32]), SecretKey::from_seed([2; 32])]
    }

    fn set() -> ValidatorSet {
        let validator =
            |key: &SecretKey| Validator { public_key: key.public(), fee_recipient: Address::ZERO };
        ValidatorSet::new(Epoch(0), BoundedVec::new(keys().iter().map(validator).collect()).unwrap())
    }

    /// Goal: a voucher names its maker, only for the hints and the batch that it was made for.
    #[test]
    fn a_voucher_holds_for_one_validator_one_batch_and_these_bytes() {
        let (set, [first, second]) = (set(), keys());
        let mut content = vec![1, 1, 2, 0, 0];
        assert_eq!(vouched_by(&content, &HEADER, &set), None);
        let plain = content.clone();
        vouch(&mut content, &HEADER, 1, &second);
        assert_eq!(content.len(), plain.len() + VOUCHER_BYTES);
        assert_eq!(vouched_by(&content, &HEADER, &set), Some(&second.public()));
        assert_eq!((without_voucher(&content), without_voucher(&plain)), (&plain[..], &plain[..]));
        assert_eq!(vouched_by(&content, &Digest([8; 32]), &set), None);
        for at in 0..content.len() {
            let mut other = content.clone();
            other[at] ^= 1;
            assert_eq!(vouched_by(&other, &HEADER, &set), None, "byte {at}");
        }
        assert_eq!(vouched_by(&[&content[..], &[9, 0]].concat(), &HEADER, &set), None);
        let mut others = plain.clone();
        vouch(&mut others, &HEADER, 1, &first);
        assert_eq!(vouched_by(&others, &HEADER, &set), None);
        let mut nobodys = plain;
        vouch(&mut nobodys, &HEADER, 2, &first);
        assert_eq!(vouched_by(&nobodys, &HEADER, &set), None);
        for len in 0..=VOUCHER_BYTES {
            assert_eq!(vouched_by(&nobodys[nobodys.len() - len..], &HEADER, &set), None);
        }
    }
}
