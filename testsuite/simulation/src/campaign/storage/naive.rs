//! The state root straight from docs/formats.md: recursive, slow, and independent of the code under test. It shares
//! only the types of keys and values.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256, block_api::compress256};
use slipstream_types::{Address, Digest, StateKey, StateValue};

type Hash = [u8; 32];

const EMPTY: Hash = [0; 32];

/// Returns the root of a state.
pub(super) fn root(state: &BTreeMap<StateKey, StateValue>) -> Digest {
    let domains = Domains {
        leaf: tagged("slipstream/state-leaf/1", &[]),
        join: tagged("slipstream/state-join/1", &[]),
    };
    let mut leaves: Vec<(Hash, Hash)> =
        state.iter().map(|(key, value)| (path(key), tagged("slipstream/row/1", &row(key, value)))).collect();
    leaves.sort_unstable();
    Digest(domains.subtree(&leaves, 0))
}

/// `path = SHA-256(0 ‖ address)[..8] ‖ SHA-256(1 ‖ table ‖ address ‖ slot)[..24]`.
pub(super) fn path(key: &StateKey) -> Hash {
    let (address, second): (&Address, Vec<u8>) = match key {
        StateKey::Account(address) => (address, [&[1, 0][..], &address[..]].concat()),
        StateKey::Slot(address, slot) => (address, [&[1, 1][..], &address[..], &slot[..]].concat()),
    };
    let first = Sha256::digest([&[0][..], &address[..]].concat());
    let mut path = [0; 32];
    path[..8].copy_from_slice(&first[..8]);
    path[8..].copy_from_slice(&Sha256::digest(second)[..24]);
    path
}

/// Returns key and value in BCS, encoded by hand.
fn row(key: &StateKey, value: &StateValue) -> Vec<u8> {
    let mut bytes = match key {
        StateKey::Account(address) => [&[0][..], &address[..]].concat(),
        StateKey::Slot(address, slot) => [&[1][..], &address[..], &slot[..]].concat(),
    };
    match value {
        StateValue::Account(account) => {
            bytes.push(0);
            bytes.extend_from_slice(&account.nonce.to_le_bytes());
            bytes.extend_from_slice(&account.balance.to_be_bytes::<32>());
            match &account.code_hash {
                None => bytes.push(0),
                Some(hash) => {
                    bytes.push(1);
                    bytes.extend_from_slice(&hash.0);
                }
            }
        }
        StateValue::Slot(value) => {
            bytes.push(1);
            bytes.extend_from_slice(&value.to_be_bytes::<32>());
        }
    }
    bytes
}

/// Returns SHA-256 over the tag's length (8 bytes, little-endian), the tag and `x`.
fn tagged(tag: &str, x: &[u8]) -> Hash {
    Sha256::digest([&(tag.len() as u64).to_le_bytes()[..], tag.as_bytes(), x].concat()).into()
}

struct Domains {
    leaf: Hash,
    join: Hash,
}

impl Domains {
    /// Returns zero for no leaf, the leaf's hash for one, and otherwise the two halves joined; a lone leaf therefore
    /// moves up.
    fn subtree(&self, leaves: &[(Hash, Hash)], depth: usize) -> Hash {
        match leaves {
            [] => EMPTY,
            [(path, value)] => compress(&self.leaf, path, value),
            _ => {
                let right = |(path, _): &(Hash, Hash)| path[depth / 8] & (0x80 >> (depth % 8)) != 0;
                let half = leaves.iter().position(right).unwrap_or(leaves.len());
                let (zeros, ones) = leaves.split_at(half);
                compress(&self.join, &self.subtree(zeros, depth + 1), &self.subtree(ones, depth + 1))
            }
        }
    }
}

/// Returns one SHA-256 compression of 64 bytes under an initial value.
fn compress(domain: &Hash, left: &Hash, right: &Hash) -> Hash {
    let mut words = [0u32; 8];
    for (word, bytes) in words.iter_mut().zip(domain.chunks_exact(4)) {
        *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    let mut block = [0; 64];
    block[..32].copy_from_slice(left);
    block[32..].copy_from_slice(right);
    compress256(&mut words, &[block]);
    let mut hash = [0; 32];
    for (bytes, word) in hash.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    hash
}

#[cfg(test)]
mod tests {
    use slipstream_types::{
        AccountValue, B256, U256,
        tree::{self, Leaf},
    };

    use super::*;

    #[test]
    fn the_definition_in_types_agrees() {
        let mut state = BTreeMap::new();
        for i in 0..40u8 {
            let address = Address::repeat_byte(i);
            let code_hash = i.is_multiple_of(3).then_some(Digest([i; 32]));
            let account = AccountValue { nonce: u64::from(i) + 1, balance: U256::from(i), code_hash };
            state.insert(StateKey::Account(address), StateValue::Account(account));
            state.insert(StateKey::Slot(address, B256::repeat_byte(9)), StateValue::Slot(U256::from(7)));
            let mut leaves: Vec<Leaf> = state
                .iter()
                .map(|(key, value)| Leaf { path: key.path(), value_hash: value.hash(key) })
                .collect();
            leaves.sort_unstable_by_key(|leaf| leaf.path);
            assert_eq!(root(&state), tree::root(&leaves));
        }
    }
}
