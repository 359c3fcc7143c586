//! Keys, values and batches: the same for every contender.

use std::collections::BTreeSet;

use anyhow::Result;
use rand::{Rng, SeedableRng, rngs::StdRng};
use rayon::prelude::*;
use slipstream_types::{
    AccountValue, Address, B256, Delta, Path, StateKey, StateValue, U256, delta::DeltaEntry,
};

/// Contracts that own the slots, as a few large ones own most of a chain's.
const CONTRACTS: u64 = 64;

/// How the keys of a batch are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Choice {
    /// Each as likely as the other.
    Uniform,
    /// The k-th key is k times less likely than the first.
    Zipf,
}

/// Batches that follow each other.
pub(super) struct Round {
    pub(super) batches: Vec<Delta>,
}

/// A state of so many keys, and updates of it.
pub(super) struct Workload {
    keys: u64,
    random: StdRng,
    /// Raised with every batch, so that every update changes its row.
    version: u64,
}

impl Workload {
    pub(super) fn new(keys: u64) -> Workload {
        Workload { keys, random: StdRng::seed_from_u64(keys), version: 1 }
    }

    /// The rows of the state at first, in deltas of at most `len`.
    pub(super) fn initial(&self, len: u64) -> impl Iterator<Item = Result<Delta>> {
        let keys = self.keys;
        (0..keys).step_by(len as usize).map(move |from| {
            let entries = (from..keys.min(from + len)).into_par_iter().map(|index| entry(index, 1)).collect();
            Ok(Delta::new(entries, Vec::new())?)
        })
    }

    pub(super) fn keys(&self) -> u64 {
        self.keys
    }

    pub(super) fn round(&mut self, batches: usize, updates: usize, choice: Choice) -> Result<Round> {
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

    /// Exponent 1: the logarithm of the rank is uniform.
    fn zipf(&mut self) -> u64 {
        let rank = (self.random.random::<f64>() * (self.keys as f64).ln()).exp() as u64;
        rank.min(self.keys - 1)
    }
}

/// The row of a key at a version.
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

/// The finalizer of splitmix64.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// The rows of a delta as the state table has them.
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
