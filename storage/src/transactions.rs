//! The index of transactions: finds a transaction's batch, and its place in that batch, by its hash.
//!
//! ```text
//!  transactions   hash [..7] │ batch u40 │ index u24, big-endian ─▶ nothing
//! ```
//! The batch's body has the whole hash, as the digest of the transaction. So the index has just enough of it to find the place: among
//! a billion transactions, one lookup in 70 million finds a second place. The reader compares the hashes. An attacker who wants a
//! lookup to read `k` bodies must find transactions whose hashes share 56 bits. That takes about 2^28 hashes for two, 2^42 for four.

use slipstream_types::{B256, BatchNumber};

use crate::error::StorageError;

/// Bytes of a hash in a key.
pub(crate) const PREFIX_BYTES: usize = 7;
const KEY_BYTES: usize = PREFIX_BYTES + 8;
/// A key of the column.
pub(crate) type PlaceKey = [u8; KEY_BYTES];
const INDEX_BITS: u32 = 24;
/// The last batch that is indexed. A chain of a thousand batches a second reaches it after 34 years.
const BATCH_MAX: u64 = (1 << (64 - INDEX_BITS)) - 1;

/// The common prefix of the keys of all places of a hash.
pub(crate) fn prefix(hash: &B256) -> &[u8] {
    &hash.0[..PREFIX_BYTES]
}

/// Returns the key of a transaction's place; `None` if a key cannot hold that place.
pub(crate) fn place_key(hash: &B256, number: BatchNumber, index: u32) -> Option<PlaceKey> {
    if number.get() > BATCH_MAX || index >> INDEX_BITS != 0 {
        return None;
    }
    let mut key = [0; KEY_BYTES];
    key[..PREFIX_BYTES].copy_from_slice(prefix(hash));
    key[PREFIX_BYTES..].copy_from_slice(&(number.get() << INDEX_BITS | u64::from(index)).to_be_bytes());
    Some(key)
}

/// Decodes the batch and the index in a key.
pub(crate) fn decode_place(key: &[u8]) -> Result<(BatchNumber, u32), StorageError> {
    let place = key.split_at_checked(PREFIX_BYTES).and_then(|(_, place)| place.try_into().ok());
    let place = place.map(u64::from_be_bytes).ok_or_else(|| {
        StorageError::corrupt(format!("a key of the transactions' index is not {KEY_BYTES} bytes long"))
    })?;
    Ok((BatchNumber::new(place >> INDEX_BITS), (place & ((1 << INDEX_BITS) - 1)) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a key decodes to its place; an oversized place is left out instead of cut.
    #[test]
    fn places_fit_or_are_left_out() {
        let hash = B256::repeat_byte(0xab);
        for place in [(0, 0), (1, 65_535), (BATCH_MAX, (1 << INDEX_BITS) - 1)] {
            let (number, index) = (BatchNumber::new(place.0), place.1);
            let key = place_key(&hash, number, index).unwrap();
            assert_eq!(decode_place(&key).unwrap(), (number, index));
            assert!(key.starts_with(prefix(&hash)));
        }
        assert_eq!(place_key(&hash, BatchNumber::new(BATCH_MAX + 1), 0), None);
        assert_eq!(place_key(&hash, BatchNumber::new(0), 1 << INDEX_BITS), None);
        assert!(decode_place(&[0; KEY_BYTES + 1]).is_err());
        assert!(decode_place(&[0; 3]).is_err());
    }
}
