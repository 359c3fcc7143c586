//! Keys, values and paths of the EVM state. See docs/formats.md for the bytes.

use std::{
    fmt,
    hash::{Hash, Hasher},
};

use alloy_primitives::{Address, B256, U256};
use serde::{Deserialize, Serialize};

use crate::{
    codec::raw,
    digest::{Digest, Digests},
};

/// Bytes of a path that come from the account alone, so that an account and its slots are neighbours on disk.
pub const PATH_ACCOUNT_BYTES: usize = 8;

/// Maximum bytes of an encoded row: an account with code.
pub const ROW_BYTES_MAX: usize = 1 + 20 + 1 + 8 + 32 + 1 + 32;

/// The domain of [`StateValue::hash`].
const ROW_TAG: &str = "slipstream/row/1";

/// Names a row of the state table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum StateKey {
    /// An account's nonce, balance and code hash.
    Account(#[serde(with = "raw")] Address),
    /// One storage slot of a contract.
    Slot(#[serde(with = "raw")] Address, #[serde(with = "raw")] B256),
}

impl Hash for StateKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            StateKey::Account(address) => hash_address(address, state),
            StateKey::Slot(address, slot) => {
                hash_address(address, state);
                slot.as_chunks().0.iter().for_each(|half| state.write_u128(u128::from_ne_bytes(*half)));
            }
        }
    }
}

/// Hashes an address in words, which takes a third of the time of hashing the bytes with their length.
fn hash_address<H: Hasher>(address: &Address, state: &mut H) {
    let (front, back) = address.0.split_first_chunk().expect("an address is longer");
    let back = <[u8; 4]>::try_from(back).expect("an address has 20 bytes");
    state.write_u128(u128::from_ne_bytes(*front));
    state.write_u32(u32::from_ne_bytes(back));
}

impl StateKey {
    /// The account that the key belongs to.
    pub fn address(&self) -> &Address {
        match self {
            StateKey::Account(address) | StateKey::Slot(address, _) => address,
        }
    }

    /// Returns the row's place in the state table and in the tree: `SHA-256(0 ‖ address)[..8] ‖ SHA-256(1 ‖ table ‖
    /// address ‖ slot)[..24]`.
    pub fn path(&self) -> Path {
        self.path_below(account_prefix(self.address()))
    }

    /// Returns [`StateKey::path`] of many keys, in their order. Hashes two at a time, and hashes an account's part once
    /// for consecutive keys of the account, as in sorted keys.
    pub fn paths(keys: &[StateKey]) -> Vec<Path> {
        let is_new = |i: usize| i == 0 || keys[i - 1].address() != keys[i].address();
        let mut digests = Digests::with_capacity(2 * keys.len());
        for (i, key) in keys.iter().enumerate() {
            if is_new(i) {
                digests.push(&prefix_parts(key.address()));
            }
            key.hash_rest(|parts| digests.push(parts));
        }
        let mut digests = digests.finish().into_iter();
        let mut next = || digests.next().expect("each key has pushed what is taken here");
        let mut prefix = [0; PATH_ACCOUNT_BYTES];
        let mut path = |i| {
            if is_new(i) {
                prefix = first_bytes(next());
            }
            join_path(prefix, next())
        };
        (0..keys.len()).map(&mut path).collect()
    }

    fn path_below(&self, prefix: [u8; PATH_ACCOUNT_BYTES]) -> Path {
        join_path(prefix, self.hash_rest(Digest::of))
    }

    /// Hashes the input of a path's bytes after the account's part.
    fn hash_rest<T>(&self, hash: impl FnOnce(&[&[u8]]) -> T) -> T {
        match self {
            StateKey::Account(address) => hash(&[&[1, 0], &address.0[..]]),
            StateKey::Slot(address, slot) => hash(&[&[1, 1], &address.0[..], &slot.0]),
        }
    }
}

/// Computes paths of many keys: an account's part is hashed once for consecutive keys of the account, as in sorted
/// keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct Paths(Option<(Address, [u8; PATH_ACCOUNT_BYTES])>);

impl Paths {
    /// Returns [`StateKey::path`].
    pub fn path(&mut self, key: &StateKey) -> Path {
        let address = key.address();
        let prefix = match self.0 {
            Some((last, prefix)) if last == *address => prefix,
            _ => account_prefix(address),
        };
        self.0 = Some((*address, prefix));
        key.path_below(prefix)
    }
}

fn prefix_parts(address: &Address) -> [&[u8]; 2] {
    [&[0], &address.0[..]]
}

fn account_prefix(address: &Address) -> [u8; PATH_ACCOUNT_BYTES] {
    first_bytes(Digest::of(&prefix_parts(address)))
}

fn first_bytes<const N: usize>(digest: Digest) -> [u8; N] {
    std::array::from_fn(|i| digest.0[i])
}

fn join_path(prefix: [u8; PATH_ACCOUNT_BYTES], rest: Digest) -> Path {
    let mut path = [0; 32];
    path[..PATH_ACCOUNT_BYTES].copy_from_slice(&prefix);
    path[PATH_ACCOUNT_BYTES..].copy_from_slice(&rest.0[..32 - PATH_ACCOUNT_BYTES]);
    Path(path)
}

/// Position of a row: 256 bits, the most significant bit of byte 0 first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Path(#[serde(with = "raw")] pub [u8; 32]);

impl Path {
    /// The first path of the tree: all bits 0.
    pub const MIN: Path = Path([0; 32]);
    /// The last path of the tree: all bits 1.
    pub const MAX: Path = Path([0xff; 32]);

    /// Bit `index`, 0 to 255.
    pub fn bit(&self, index: usize) -> bool {
        self.0[index / 8] >> (7 - index % 8) & 1 == 1
    }

    /// The same path with bit `index` set.
    pub fn with_bit(mut self, index: usize) -> Path {
        self.0[index / 8] |= 0x80 >> (index % 8);
        self
    }

    /// Returns the length of the common prefix of two paths in bits; 256 if they are equal.
    pub fn common_bits(&self, other: &Path) -> usize {
        let halves = |path: &Path| match path.0.as_chunks() {
            ([front, back], []) => (u128::from_be_bytes(*front), u128::from_be_bytes(*back)),
            _ => unreachable!("a path has 32 bytes"),
        };
        let ((front, back), (other_front, other_back)) = (halves(self), halves(other));
        match front ^ other_front {
            0 => 128 + (back ^ other_back).leading_zeros() as usize,
            difference => difference.leading_zeros() as usize,
        }
    }

    /// Returns the path after this one, `None` for [`Path::MAX`].
    pub fn successor(&self) -> Option<Path> {
        let mut next = self.0;
        for byte in next.iter_mut().rev() {
            let (sum, carry) = byte.overflowing_add(1);
            *byte = sum;
            if !carry {
                return Some(Path(next));
            }
        }
        None
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// An account's own fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AccountValue {
    /// Transactions sent, or contracts created by a contract.
    pub nonce: u64,
    /// Balance in wei.
    #[serde(with = "raw")]
    pub balance: U256,
    /// Keccak-256 of the code, or `None` for an account without code.
    pub code_hash: Option<Digest>,
}

/// The value of a row. A zero slot and an empty account have no row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StateValue {
    /// Value of a [`StateKey::Account`].
    Account(AccountValue),
    /// Value of a [`StateKey::Slot`]; never zero.
    Slot(#[serde(with = "raw")] U256),
}

impl StateValue {
    /// Whether the value belongs to the key's table and may be stored.
    pub fn fits(&self, key: &StateKey) -> bool {
        match (key, self) {
            (StateKey::Account(_), StateValue::Account(account)) => *account != AccountValue::default(),
            (StateKey::Slot(..), StateValue::Slot(value)) => !value.is_zero(),
            _ => false,
        }
    }

    /// The leaf hash that the tree commits to: key and value under a tag.
    pub fn hash(&self, key: &StateKey) -> Digest {
        let mut row = Vec::with_capacity(ROW_BYTES_MAX);
        self.append_row(key, &mut row);
        Self::row_hash(&row)
    }

    /// Returns [`StateValue::hash`] of an encoded row.
    pub fn row_hash(row: &[u8]) -> Digest {
        Digest::tagged(ROW_TAG, row)
    }

    /// Returns [`StateValue::row_hash`] of many rows, in their order. Hashes neighbours with the same number of blocks
    /// two at a time; all rows have the same number.
    pub fn row_hashes<'a>(rows: impl IntoIterator<Item = &'a [u8]>) -> Vec<Digest> {
        let rows = rows.into_iter();
        let mut hashes = RowHashes(Digests::with_capacity(rows.size_hint().0));
        rows.for_each(|row| hashes.push(row));
        hashes.finish()
    }

    /// Appends the row: the BCS of key and value. The encoding is written out by hand, because it runs for every
    /// changed row of every batch.
    pub fn append_row(&self, key: &StateKey, row: &mut Vec<u8>) {
        match key {
            StateKey::Account(address) => {
                row.push(0);
                row.extend_from_slice(&address.0[..]);
            }
            StateKey::Slot(address, slot) => {
                row.push(1);
                row.extend_from_slice(&address.0[..]);
                row.extend_from_slice(&slot.0);
            }
        }
        match self {
            StateValue::Account(account) => {
                row.push(0);
                row.extend_from_slice(&account.nonce.to_le_bytes());
                row.extend_from_slice(&account.balance.to_be_bytes::<32>());
                match &account.code_hash {
                    None => row.push(0),
                    Some(hash) => {
                        row.push(1);
                        row.extend_from_slice(&hash.0);
                    }
                }
            }
            StateValue::Slot(value) => {
                row.push(1);
                row.extend_from_slice(&value.to_be_bytes::<32>());
            }
        }
    }
}

/// [`StateValue::row_hashes`] for a caller that gets the rows one by one.
#[derive(Clone, Debug, Default)]
pub struct RowHashes(Digests);

impl RowHashes {
    /// Adds the hash of an encoded row.
    pub fn push(&mut self, row: &[u8]) {
        self.0.push_tagged(ROW_TAG, row);
    }

    /// Returns all hashes, in the order in which the rows were added.
    pub fn finish(self) -> Vec<Digest> {
        self.0.finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    #[test]
    fn rows_written_out_are_their_bcs_and_paths_do_not_depend_on_neighbours() {
        let (address, other) = (Address::repeat_byte(1), Address::repeat_byte(2));
        let account = AccountValue { nonce: 7, balance: U256::from(1_000_001), code_hash: None };
        let contract = AccountValue { code_hash: Some(Digest([9; 32])), ..account };
        let slot = StateKey::Slot(address, B256::repeat_byte(3));
        let rows = [
            (StateKey::Account(address), StateValue::Account(account)),
            (slot, StateValue::Slot(U256::from(5) << 200)),
            (StateKey::Account(other), StateValue::Account(contract)),
        ];
        let keys = rows.map(|(key, _)| key);
        assert_eq!(StateKey::paths(&keys), keys.map(|key| key.path()));
        let mut paths = Paths::default();
        for (key, value) in rows {
            let mut row = Vec::new();
            value.append_row(&key, &mut row);
            assert_eq!(row, bcs::to_bytes(&(key, value)).unwrap());
            assert!(row.len() <= ROW_BYTES_MAX);
            assert_eq!(paths.path(&key), key.path());
        }
    }

    fn key() -> impl Strategy<Value = StateKey> {
        let address = (0..3u8).prop_map(Address::repeat_byte);
        (address, any::<Option<[u8; 32]>>()).prop_map(|(address, slot)| match slot {
            None => StateKey::Account(address),
            Some(slot) => StateKey::Slot(address, slot.into()),
        })
    }

    proptest! {
        #[test]
        fn many_keys_and_rows_are_hashed_as_each_alone(
            keys in vec(key(), 0..20),
            rows in vec(vec(any::<u8>(), 0..150), 0..20),
        ) {
            let alone: Vec<Path> = keys.iter().map(StateKey::path).collect();
            prop_assert_eq!(StateKey::paths(&keys), alone);
            let alone: Vec<Digest> = rows.iter().map(|row| StateValue::row_hash(row)).collect();
            prop_assert_eq!(StateValue::row_hashes(rows.iter().map(|row| &row[..])), alone);
        }

        #[test]
        fn common_bits_are_counted_to_the_first_that_differs(a in any::<[u8; 32]>(), bit in 0usize..256, rest in any::<[u8; 32]>()) {
            let a = Path(a);
            let mut b = a;
            b.0[bit / 8] ^= 0x80 >> (bit % 8);
            b.0[bit / 8 + 1..].copy_from_slice(&rest[bit / 8 + 1..]);
            prop_assert_eq!(a.common_bits(&b), bit);
            prop_assert_eq!(a.common_bits(&a), 256);
        }
    }
}
