//! The rows that fill a cold store. Each row is a function of its number. The rows are made in the order of the table,
//! so that RocksDB moves whole files down and never merges them.

use rayon::prelude::*;
use slipstream_types::{AccountValue, Address, B256, Digest, StateKey, StateValue, U256};

/// Untouched slots of a contract for each slot that the blocks touch. Without them a contract's touched slots would be
/// adjacent and read in one block; on mainnet they lie scattered among all other slots of the contract.
pub(super) const NEIGHBOURS: u64 = 200;
/// Rows of an account that no block touches: the account and its slots.
const ACCOUNT_ROWS: u64 = 4;

/// The rows of a store, including those that blocks read.
pub(super) struct Rows {
    /// The rows that the blocks read.
    real: Vec<(StateKey, StateValue)>,
    /// Contracts, with the number of the first untouched slot of each.
    contracts: Vec<(Address, u64)>,
    neighbours: u64,
    others: u64,
}

impl Rows {
    /// Mixes the real rows with at least `filler` others, up to `neighbours` of them for each touched slot. The real
    /// rows must have distinct keys.
    pub(super) fn new(real: Vec<(StateKey, StateValue)>, filler: u64, neighbours: u64) -> Rows {
        let mut touched: Vec<Address> = real
            .iter()
            .filter(|(key, _)| matches!(key, StateKey::Slot(..)))
            .map(|(key, _)| *key.address())
            .collect();
        touched.sort_unstable();
        // Neighbours are at most half of the filler, so that a short run also has other rows.
        let each = neighbours.min(filler / 2 / (touched.len() as u64).max(1));
        let mut neighbours = 0;
        let mut contracts = Vec::new();
        for slots in touched.chunk_by(|a, b| a == b) {
            contracts.push((slots[0], neighbours));
            neighbours += each * slots.len() as u64;
        }
        Rows { real, contracts, neighbours, others: filler.saturating_sub(neighbours) }
    }

    pub(super) fn len(&self) -> u64 {
        self.real.len() as u64 + self.neighbours + self.others
    }

    /// Returns a digest that identifies these rows.
    pub(super) fn fingerprint(&self) -> Digest {
        let mut bytes = self.len().to_le_bytes().to_vec();
        for (key, value) in &self.real {
            bytes.extend(key.path().0);
            bytes.extend(value_bytes(value));
        }
        Digest::tagged("slipnet/bench-hints-rows-1", &bytes)
    }

    /// Returns the rows' numbers in the order of the table, in which `place` is a key's position.
    pub(super) fn in_order(&self, place: impl Fn(&StateKey) -> [u8; 32] + Sync) -> Vec<u32> {
        let place = |index: u32| {
            let place = place(&self.row(index).0);
            let (front, _) = place.split_first_chunk().expect("a place is longer");
            (u128::from_be_bytes(*front), index)
        };
        let mut places: Vec<(u128, u32)> = (0..self.len() as u32).into_par_iter().map(place).collect();
        places.par_sort_unstable();
        places.into_iter().map(|(_, index)| index).collect()
    }

    pub(super) fn row(&self, index: u32) -> (StateKey, StateValue) {
        let index = index as usize;
        match index.checked_sub(self.real.len()) {
            None => self.real[index],
            Some(index) if (index as u64) < self.neighbours => self.neighbour(index as u64),
            Some(index) => other(index as u64 - self.neighbours),
        }
    }

    fn neighbour(&self, index: u64) -> (StateKey, StateValue) {
        let at = self.contracts.partition_point(|(_, first)| *first <= index) - 1;
        let slot = Digest::tagged("slipnet/bench-hints-slot", &index.to_le_bytes());
        let value = StateValue::Slot(U256::from_be_slice(&slot.0[..10]) + U256::from(1));
        (StateKey::Slot(self.contracts[at].0, B256::from(slot)), value)
    }
}

fn other(index: u64) -> (StateKey, StateValue) {
    let hash = Digest::tagged("slipnet/bench-hints-account", &(index / ACCOUNT_ROWS).to_le_bytes()).0;
    let address = Address::from_slice(&hash[..20]);
    match index % ACCOUNT_ROWS {
        0 => {
            let balance = U256::from_be_slice(&hash[20..30]);
            (
                StateKey::Account(address),
                StateValue::Account(AccountValue { nonce: 1, balance, code_hash: None }),
            )
        }
        slot => (
            StateKey::Slot(address, B256::from(U256::from(slot))),
            StateValue::Slot(U256::from_be_slice(&hash[22..])),
        ),
    }
}

fn value_bytes(value: &StateValue) -> Vec<u8> {
    match value {
        StateValue::Slot(value) => value.to_be_bytes_vec(),
        StateValue::Account(account) => {
            let code = account.code_hash.unwrap_or_default();
            [&account.nonce.to_be_bytes()[..], &account.balance.to_be_bytes::<32>(), &code.0].concat()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rows_are_distinct_and_come_in_the_order_of_the_table() {
        let contract = Address::repeat_byte(3);
        let slot =
            |byte| (StateKey::Slot(contract, B256::repeat_byte(byte)), StateValue::Slot(U256::from(9)));
        let rows = Rows::new(vec![slot(1), slot(2)], 1_000, NEIGHBOURS);
        assert_eq!(rows.len(), 1_002);
        let keys: Vec<StateKey> =
            rows.in_order(|key| key.path().0).into_iter().map(|index| rows.row(index).0).collect();
        assert!(keys.iter().map(StateKey::path).is_sorted());
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), 1_002);
        let beside = keys.iter().filter(|key| *key.address() == contract).count();
        assert_eq!(beside as u64, 2 + 2 * NEIGHBOURS);
        assert_ne!(rows.fingerprint(), Rows::new(vec![slot(1), slot(3)], 1_000, NEIGHBOURS).fingerprint());
    }
}
