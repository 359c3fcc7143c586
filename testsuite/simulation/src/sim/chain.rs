//! [`Chain`]: the ledger that all worlds of a process share, and the forged ledger that colluders show.
//!
//! The real executor makes both from real transactions. Both begin with the same genesis. Its validators sign the true
//! ledger's batches, and strangers sign the forged ledger's.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::OnceLock,
};

use alloy_primitives::{Bytes, TxKind};
use anyhow::{Context, Result};
use rand::{Rng, SeedableRng, rngs::StdRng};
use slipstream_executor::{
    BatchContext, HintsMode, Outcome, Transaction, decode_body, execute, seal, seal_hints_with_values,
};
use slipstream_storage::{StorageConfig, Store};
use slipstream_testkit::{Batch, Wallet, keys, set};
use slipstream_types::{
    Address, BatchHeader, BatchNumber, Blob, BlobKind, Body, Certificate, ChainConfig, Delta, Epoch,
    Failures, Genesis, SecretKey, StateKey, StateValue, U256, ValidatorSet, genesis::GenesisAccount,
    keccak256,
};

use crate::lies::falsify;

/// Batches of the true ledger.
pub(super) const BATCHES: u64 = 130;
/// Batches of the forged ledger: more than any node follows before it notices.
const FORGED_BATCHES: u64 = 70;
/// The number of batches between two snapshots.
pub(super) const SNAPSHOT_INTERVAL: u64 = 8;
/// The number of batches in an epoch, after which the validators change.
const EPOCH_BATCHES: u64 = 25;
/// Accounts of the genesis: enough that every range of a restore has rows.
const ACCOUNTS: u64 = 160;
/// The number of batches between two creations of a contract with its own code.
const CREATION_INTERVAL: u64 = 9;
/// Runtime code that stores the second word of its call data in the slot that the first word names: PUSH1 32
/// CALLDATALOAD PUSH0 CALLDATALOAD SSTORE STOP.
const RUNTIME: [u8; 7] = [0x60, 0x20, 0x35, 0x5f, 0x35, 0x55, 0x00];

/// The proposer of all batches, and the fee recipient of every validator.
const PROPOSER: Address = Address::repeat_byte(1);

/// A batch with the parts that the world needs.
pub(super) struct MadeBatch {
    pub(super) header: BatchHeader,
    pub(super) certificate: Certificate,
    pub(super) delta: Delta,
    /// The encoded announcement of the batch.
    pub(super) announcement: Vec<u8>,
    /// Hints with true keys and false values.
    pub(super) false_hints: Option<Blob>,
}

/// A ledger with its whole history: all blobs, all snapshots.
pub(super) struct Chain {
    pub(super) genesis: Genesis,
    pub(super) store: Store,
    /// From batch 1 on.
    made: Vec<MadeBatch>,
    /// The rows after each batch, from batch 0 on.
    states: Vec<State>,
    keys: Vec<StateKey>,
}

/// State rows by key.
pub(super) type State = BTreeMap<StateKey, StateValue>;

impl Chain {
    /// Returns the ledger that all honest nodes share.
    pub(super) fn canonical() -> &'static Chain {
        static CHAIN: OnceLock<Chain> = OnceLock::new();
        CHAIN.get_or_init(|| Maker::new(1, TRUE, signers).chain(BATCHES).expect("its transactions are valid"))
    }

    /// Returns the ledger that colluders show instead.
    pub(super) fn forged() -> &'static Chain {
        static CHAIN: OnceLock<Chain> = OnceLock::new();
        CHAIN.get_or_init(|| {
            Maker::new(2, FORGED, strangers).chain(FORGED_BATCHES).expect("it is as well formed")
        })
    }

    /// Returns a batch; `None` for the genesis and past the end.
    pub(super) fn batch(&self, number: BatchNumber) -> Option<&MadeBatch> {
        number.get().checked_sub(1).and_then(|index| self.made.get(index as usize))
    }

    /// Returns a header of the ledger.
    pub(super) fn header(&self, number: BatchNumber) -> Result<BatchHeader> {
        self.store.header(number)?.with_context(|| format!("the ledger has no batch {number}"))
    }

    /// Returns the rows after a batch.
    pub(super) fn state(&self, number: BatchNumber) -> &State {
        &self.states[number.get() as usize]
    }

    /// Returns every key that the ledger ever touches.
    pub(super) fn keys(&self) -> &[StateKey] {
        &self.keys
    }
}

/// Returns the rows after each of the deltas.
fn states<'a>(deltas: impl Iterator<Item = &'a Delta>) -> Vec<State> {
    let mut state = State::new();
    let mut states = Vec::new();
    for delta in deltas {
        for entry in delta.entries() {
            match entry.value {
                Some(value) => state.insert(entry.key, value),
                None => state.remove(&entry.key),
            };
        }
        states.push(state.clone());
    }
    states
}

/// Returns the epoch of a batch.
pub(super) fn epoch(number: BatchNumber) -> Epoch {
    Epoch(number.before(1).get() / EPOCH_BATCHES)
}

/// Returns the smallest quorum of an epoch's validators. Consecutive epochs share a member.
pub(super) fn signers(epoch: Epoch) -> Vec<SecretKey> {
    let set = set_of(epoch, TRUE);
    members_of(epoch, TRUE).into_iter().take(set.quorum()).collect()
}

/// Returns the forged ledger's signers; the genesis names none of them.
fn strangers(epoch: Epoch) -> Vec<SecretKey> {
    let set = set_of(epoch, FORGED);
    members_of(epoch, FORGED).into_iter().take(set.quorum()).collect()
}

/// The first key seeds of the true and the forged ledger's validators.
const TRUE: u8 = 1;
const FORGED: u8 = 101;

/// The epochs' numbers of validators, in turn, with the failures that they tolerate. The usual formula (thirds) would
/// give a quorum of three for both; theirs are four and two.
const SIZES: [(u8, Failures); 2] =
    [(4, Failures { any: 0, commission: 3 }), (3, Failures { any: 1, commission: 0 })];

fn members_of(epoch: Epoch, first: u8) -> Vec<SecretKey> {
    let (count, _) = SIZES[epoch.0 as usize % SIZES.len()];
    let first = first + 2 * epoch.0 as u8;
    keys(first..first + count)
}

fn set_of(epoch: Epoch, first: u8) -> ValidatorSet {
    let (_, failures) = SIZES[epoch.0 as usize % SIZES.len()];
    ValidatorSet { failures, ..set(epoch.0, &members_of(epoch, first), PROPOSER) }
}

struct Maker {
    rng: StdRng,
    /// The seed of the first key that the later epochs name.
    first: u8,
    signers: fn(Epoch) -> Vec<SecretKey>,
    wallet: Wallet,
    contracts: Vec<Address>,
}

impl Maker {
    fn new(seed: u64, first: u8, signers: fn(Epoch) -> Vec<SecretKey>) -> Maker {
        let wallet = Wallet::new(9, ChainConfig::default().chain_id, 200_000);
        Maker { rng: StdRng::seed_from_u64(seed), first, signers, wallet, contracts: Vec::new() }
    }

    fn genesis(&self) -> Genesis {
        let rich = GenesisAccount { balance: U256::from(10).pow(U256::from(20)), ..Default::default() };
        let address = |index: u64| Address::from_word(keccak256(index.to_be_bytes()));
        let ValidatorSet { validators, failures, .. } = set_of(Epoch(0), TRUE);
        Genesis {
            timestamp_ms: 1_700_000_000_000,
            validators,
            failures: Some(failures),
            accounts: (0..ACCOUNTS)
                .map(|index| (address(index), rich.clone()))
                .chain([(self.wallet.address(), rich.clone())])
                .collect(),
            ..Genesis::default()
        }
    }

    fn chain(mut self, batches: u64) -> Result<Chain> {
        let genesis = self.genesis();
        let config = StorageConfig {
            snapshot_interval_batches: SNAPSHOT_INTERVAL,
            snapshots_kept: usize::MAX,
            ..StorageConfig::default()
        };
        let store = Store::memory(&config);
        store.initialize(&genesis)?;
        let made: Result<Vec<MadeBatch>> =
            (1..=batches).map(|number| self.append(&genesis, &store, number)).collect();
        let made = made?;
        let first = genesis.delta()?;
        let deltas = || std::iter::once(&first).chain(made.iter().map(|made| &made.delta));
        let states = states(deltas());
        let keys: BTreeSet<StateKey> =
            deltas().flat_map(|delta| delta.entries()).map(|entry| entry.key).collect();
        Ok(Chain { states, keys: keys.into_iter().collect(), made, genesis, store })
    }

    fn append(&mut self, genesis: &Genesis, store: &Store, number: u64) -> Result<MadeBatch> {
        let body = self.body(number)?;
        let head = store.head()?;
        let transactions = decode_body(&body, &genesis.chain)?;
        let timestamp_ms = head.header.timestamp_ms + 100;
        let proposer = PROPOSER;
        let epoch = epoch(BatchNumber::new(number));
        let basis = BatchContext { parent: &head.header, epoch, timestamp_ms, proposer };
        let outcome = execute(&store.view()?, &basis.env(&genesis.chain), &transactions)?;
        let speculation = store.speculate(&outcome.delta)?;
        let root = speculation.root();
        let next = Epoch(epoch.0 + 1);
        let ends = self::epoch(BatchNumber::new(number + 1)) == next;
        let sealed = seal(HintsMode::Values, &basis, &transactions, &outcome, root)?;
        let next = ends.then(|| set_of(next, self.first));
        let batch = Batch { sealed: &sealed, delta: &outcome.delta, transactions: &transactions, next };
        let certificate = batch.commit(store, speculation, &(self.signers)(epoch))?;
        let number = sealed.header.number;
        let body = store.blob(BlobKind::Body, number)?.context("it was just stored")?;
        let hints = store.blob(BlobKind::Hints, number)?;
        let announcement =
            slipstream_sync::announcement(sealed.header.clone(), certificate.clone(), body, hints)?;
        let false_hints = false_hints(&outcome, proposer, &transactions);
        Ok(MadeBatch { header: sealed.header, certificate, delta: outcome.delta, announcement, false_hints })
    }

    /// Makes one to five transactions: transfers, calls that change and delete slots, and sometimes a new contract.
    fn body(&mut self, number: u64) -> Result<Body> {
        let mut raw = Vec::new();
        if number % CREATION_INTERVAL == 1 {
            self.contracts.push(self.wallet.address().create(self.wallet.nonce()));
            raw.push(self.wallet.sign(TxKind::Create, 0, init_code(number as u8)));
        }
        let count = 1 + number % 3;
        for _ in 0..count {
            let contract = self.contracts[self.rng.random_range(0..self.contracts.len())];
            if raw.is_empty() || self.rng.random_ratio(1, 3) {
                let slot = U256::from(self.rng.random_range(0..12));
                let value = U256::from(self.rng.random_range(0..4));
                let input = [slot.to_be_bytes::<32>(), value.to_be_bytes::<32>()].concat();
                raw.push(self.wallet.sign(TxKind::Call(contract), 0, input.into()));
            } else {
                let to = Address::from_word(keccak256(self.rng.random_range(0..2 * ACCOUNTS).to_be_bytes()));
                let value = self.rng.random_range(1..1_000);
                raw.push(self.wallet.sign(TxKind::Call(to), value, Bytes::new()));
            }
        }
        Ok(Body::new(raw)?)
    }
}

/// Seals hints that give every account more and every slot another value.
fn false_hints(outcome: &Outcome, proposer: Address, transactions: &[Transaction]) -> Option<Blob> {
    let mut told = outcome.clone();
    falsify(&mut told.touched.rows);
    seal_hints_with_values(&told, proposer, transactions)
}

/// Returns code that deploys [`RUNTIME`] with one more byte, so that its hash is unique: PUSH8 PUSH0 MSTORE PUSH1 8
/// PUSH1 24 RETURN.
fn init_code(own: u8) -> Bytes {
    let mut code = vec![0x67];
    code.extend(RUNTIME);
    code.push(own);
    code.extend([0x5f, 0x52, 0x60, 0x08, 0x60, 0x18, 0xf3]);
    code.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the worlds of a process share a ledger that has everything for restores, replays and audits.
    #[test]
    fn the_ledger_has_codes_deletions_and_snapshots() {
        let chain = Chain::canonical();
        let snapshots = chain.store.snapshots();
        assert_eq!(snapshots.len() as u64, BATCHES / SNAPSHOT_INTERVAL);
        let entries = || chain.made.iter().flat_map(|made| made.delta.entries());
        assert!(entries().any(|entry| entry.value.is_none()), "no slot is ever deleted");
        assert!(chain.made.iter().filter(|made| !made.delta.codes().is_empty()).count() > 3);
        assert_ne!(
            chain.header(BatchNumber::new(1)).unwrap(),
            Chain::forged().header(BatchNumber::new(1)).unwrap()
        );
        let ends: Vec<_> = chain.store.epoch_ends(Epoch(0), 9).unwrap();
        let sets = ends.iter().map(|end| end.info.next_validators.clone().unwrap());
        assert!(
            ends.len() > 3 && sets.clone().all(|set| set.failures != Failures::thirds(set.validators.len()))
        );
        let views: BTreeSet<u64> = chain.made.iter().map(|made| made.certificate.view).collect();
        assert!(views.len() > 10, "{views:?}");
        let state = chain.state(BatchNumber::new(BATCHES));
        let rows = chain.store.view().unwrap().rows(chain.keys()).unwrap();
        assert!(chain.keys().iter().zip(rows).all(|(key, row)| state.get(key).copied() == row));
    }
}
