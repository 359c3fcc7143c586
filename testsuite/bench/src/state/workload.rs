//! Keys, values and batches: the same for every contender.

use std::collections::BTreeSet;

use anyhow::Result;
use rand::{Rng, SeedableRng, rngs::StdRng};
use rayon::prelude::*;
use slipstream_types::{
    AccountValue, Address, B256, Delta, Digest, Path, StateKey, StateValue, U256, delta::DeltaEntry,
};

/// Contracts that own the slots: on real chains, too, a few large ones own most slots.
const CONTRACTS: u64 = 64;
/// The version of rows that no batch has changed.
const INITIAL: u64 = 1;
/// The number of rows that the fingerprint samples.
const FINGERPRINT_ROWS: u64 = 64;

/// The distribution of a batch's keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    /// Each key is equally likely.
    Uniform,
    /// The k-th key is k times less likely than the first.
    Zipf,
}

/// Consecutive batches.
pub(crate) struct Round {
    pub(crate) batches: Vec<Delta>,
}

/// The initial rows of a state, in the order of the table. So RocksDB moves whole files down and never merges them, and
/// a tree touches one narrow range after another.
pub(crate) struct Initial {
    order: Vec<u32>,
}

impl Initial {
    pub(crate) fn new(keys: u64) -> Initial {
        let place = |index: u32| {
            let path = entry(u64::from(index), INITIAL).key.path();
            let (front, _) = path.0.split_first_chunk::<16>().expect("a path is longer");
            (*front, index)
        };
        let mut places: Vec<([u8; 16], u32)> = (0..keys as u32).into_par_iter().map(place).collect();
        places.par_sort_unstable();
        Initial { order: places.into_iter().map(|(_, index)| index).collect() }
    }

    /// Returns deltas of at most `rows` rows.
    pub(crate) fn deltas(&self, rows: usize) -> impl Iterator<Item = Result<Delta>> {
        self.order.chunks(rows).map(|indexes| {
            let entry = |index: &u32| entry(u64::from(*index), INITIAL);
            Ok(Delta::new(indexes.par_iter().map(entry).collect(), Vec::new())?)
        })
    }

    pub(crate) fn keys(&self) -> u64 {
        self.order.len() as u64
    }
}

/// Updates of a state with `keys` keys.
pub(crate) struct Workload {
    keys: u64,
    random: StdRng,
    /// Incremented with every batch, so that every update changes its row.
    version: u64,
}

impl Workload {
    /// Continues after `batches` batches of earlier runs, with other keys and newer versions.
    pub(crate) fn after(keys: u64, batches: u64) -> Workload {
        Workload { keys, random: StdRng::seed_from_u64(keys ^ mix(batches)), version: INITIAL + batches }
    }

    /// Returns a digest that identifies the rows of this version of the module.
    pub(crate) fn fingerprint(keys: u64) -> Digest {
        let mut bytes = keys.to_le_bytes().to_vec();
        for index in (0..keys).step_by((keys / FINGERPRINT_ROWS).max(1) as usize) {
            let entry = entry(index, INITIAL);
            bytes.extend(entry.key.path().0);
            entry.value.expect("a row at first").append_row(&entry.key, &mut bytes);
        }
        Digest::tagged("slipnet/bench-state-rows-1", &bytes)
    }

    /// Returns the version of the last batch; rows that no batch changed have an older one.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Returns a uniformly drawn key.
    pub(crate) fn key(&mut self) -> StateKey {
        entry(self.random.random_range(0..self.keys), INITIAL).key
    }

    pub(crate) fn round(&mut self, batches: usize, updates: usize, choice: Choice) -> Result<Round> {
        let batches = (0..batches).map(|_| self.batch(updates, choice)).collect::<Result<_>>()?;
        Ok(Round { batches })
    }

    fn batch(&mut self, updates: usize, choice: Choice) -> Result<Delta> {
        self.version += 1;
        let mut chosen = BTreeSet::new();
        while chosen.len() < updates {
            chosen.insert(match choice {
                Choice::Uniform => self.random.random_range(0..self.keys),
                Choice::Zipf => self.zipf(),
            });
        }
        let version = self.version;
        Ok(Delta::new(chosen.into_iter().map(|index| entry(index, version)).collect(), Vec::new())?)
    }

    /// Draws from Zipf's distribution with exponent 1: the logarithm of the rank is uniform.
    fn zipf(&mut self) -> u64 {
        let rank = (self.random.random::<f64>() * (self.keys as f64).ln()).exp() as u64;
        rank.min(self.keys - 1)
    }
}

/// Returns the row of a key at a version.
fn entry(index: u64, version: u64) -> DeltaEntry {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&mix(index).to_be_bytes());
    bytes[8..16].copy_from_slice(&index.to_be_bytes());
    let value = U256::from(mix(index ^ version << 32)) << 64 | U256::from(version);
    let (key, value) = if index.is_multiple_of(2) {
        let account = AccountValue { nonce: version, balance: value, code_hash: None };
        (StateKey::Account(Address::from_slice(&bytes[..20])), StateValue::Account(account))
    } else {
        let mut contract = [0xc0; 20];
        contract[..8].copy_from_slice(&mix(index / 2 % CONTRACTS).to_be_bytes());
        (StateKey::Slot(contract.into(), B256::from(bytes)), StateValue::Slot(value))
    };
    DeltaEntry { key, value: Some(value) }
}

/// The finalizer of SplitMix64.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Returns the rows of a delta as stored in the state table.
pub(super) fn rows(delta: &Delta) -> Vec<(Path, Vec<u8>)> {
    let row = |entry: &DeltaEntry| {
        let mut row = Vec::new();
        if let Some(value) = entry.value {
            value.append_row(&entry.key, &mut row);
        }
        (entry.key.path(), row)
    };
    delta.entries().par_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a state is filled with each key once, in the order of the table, and a later run draws other keys.
    #[test]
    fn rows_come_in_order_and_runs_differ() {
        let initial = Initial::new(1_000);
        let deltas = initial.deltas(300).collect::<Result<Vec<_>>>().unwrap();
        assert_eq!(
            deltas.iter().map(|delta| delta.entries().len()).collect::<Vec<_>>(),
            [300, 300, 300, 100]
        );
        let paths: Vec<Path> =
            deltas.iter().flat_map(|delta| delta.entries().iter().map(|entry| entry.key.path())).collect();
        assert!(paths.is_sorted_by(|a, b| a < b));
        let batch = |batches| {
            let mut workload = Workload::after(1_000, batches);
            let round = workload.round(1, 100, Choice::Uniform).unwrap();
            assert_eq!(workload.version(), INITIAL + batches + 1);
            assert!(round.batches[0].entries().iter().all(|entry| paths.contains(&entry.key.path())));
            round.batches[0].clone()
        };
        assert_eq!(batch(0), batch(0));
        assert_ne!(batch(0), batch(10));
    }
}
