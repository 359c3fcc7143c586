//! A ledger whose snapshots are exported.

use std::collections::BTreeMap;

use slipstream_storage::{CommitBatch, StorageConfig, Store};
use slipstream_types::{
    AccountValue, Address, BatchHeader, BatchNumber, Blob, BlobKind, Delta, Digest, Epoch, Failures, Genesis,
    Receipts, SecretKey, StateKey, StateValue, U256, ValidatorSet, Waypoint, accumulator::Accumulator,
    delta::DeltaEntry, genesis::GenesisAccount, keccak256,
};

/// Accounts that the first batch makes.
const ACCOUNTS: u32 = 3_000;

/// The validators of an epoch.
pub(crate) fn keys(epoch: Epoch) -> Vec<SecretKey> {
    let first = 7 + 3 * epoch.0 as u8;
    slipstream_testkit::keys(first..first + 3)
}

/// The set names the failures that it bears: two validators are a quorum, where thirds would require all three.
pub(crate) fn set(epoch: Epoch) -> ValidatorSet {
    let failures = Failures { any: 1, commission: 0 };
    ValidatorSet { failures, ..slipstream_testkit::set(epoch.0, &keys(epoch), Address::ZERO) }
}

pub(crate) fn genesis(timestamp_ms: u64) -> Genesis {
    let rich = GenesisAccount { balance: U256::from(1_000_000), ..GenesisAccount::default() };
    Genesis {
        accounts: BTreeMap::from([(Address::repeat_byte(0xaa), rich)]),
        failures: Some(set(Epoch(0)).failures),
        ..slipstream_testkit::genesis(&keys(Epoch(0)), timestamp_ms)
    }
}

pub(crate) fn config() -> StorageConfig {
    StorageConfig {
        block_cache_mib: 8,
        snapshot_interval_batches: 1,
        snapshots_kept: 8,
        fsync: false,
        ..StorageConfig::default()
    }
}

/// A store, and the chain state that the next batch continues.
pub(crate) struct Ledger {
    pub(crate) store: Store,
    head: BatchHeader,
    /// Epoch of the next batch.
    epoch: Epoch,
    accumulator: Accumulator,
    _dir: tempfile::TempDir,
}

fn account(i: u32) -> StateKey {
    let hash = keccak256(i.to_be_bytes());
    StateKey::Account(Address::from_slice(&hash[..20]))
}

impl Ledger {
    /// Creates a ledger with some thousand accounts, some of them with code, in batch 1.
    pub(crate) fn new(timestamp_ms: u64) -> Ledger {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&config(), dir.path()).unwrap();
        let genesis = genesis(timestamp_ms);
        store.initialize(&genesis).unwrap();
        let head = genesis.header().unwrap();
        let mut accumulator = Accumulator::default();
        accumulator.append(head.digest());
        let mut ledger = Ledger { store, head, epoch: Epoch(0), accumulator, _dir: dir };
        let codes: Vec<Vec<u8>> = (0..5u8).map(|i| vec![i; 20_000]).collect();
        let hash = |i: u32| Digest::from(keccak256(&codes[i as usize % codes.len()]));
        let value = |i: u32| AccountValue {
            nonce: 1,
            balance: U256::from(i),
            code_hash: i.is_multiple_of(100).then(|| hash(i / 100)),
        };
        let changes = (0..ACCOUNTS).map(|i| (account(i), StateValue::Account(value(i)))).collect();
        ledger.commit(changes, codes.clone());
        ledger
    }

    /// Commits the next batch, which gives some accounts another nonce. Each batch ends its epoch, so that a short
    /// ledger has several.
    pub(crate) fn touch(&mut self, accounts: impl IntoIterator<Item = u32>) {
        let nonce = self.head.number.get() + 10;
        let value = StateValue::Account(AccountValue { nonce, ..AccountValue::default() });
        self.commit(accounts.into_iter().map(|i| (account(i), value)).collect(), Vec::new());
    }

    pub(crate) fn number(&self) -> BatchNumber {
        self.head.number
    }

    pub(crate) fn waypoint(&self, number: BatchNumber) -> Waypoint {
        Waypoint::of(&self.store.certificate(number).unwrap().unwrap().info)
    }

    fn commit(&mut self, changes: Vec<(StateKey, StateValue)>, codes: Vec<Vec<u8>>) {
        let entries =
            changes.into_iter().map(|(key, value)| DeltaEntry { key, value: Some(value) }).collect();
        let delta = Delta::new(entries, codes).unwrap();
        let speculation = self.store.speculate(&delta).unwrap();
        let digest = |kind, content: &[u8]| slipstream_types::batch::content_digest(kind, content);
        let receipts = Blob::seal(BlobKind::Receipts, &Receipts::default()).unwrap();
        let header = BatchHeader {
            delta_bytes: delta.content().unwrap().len() as u32,
            receipts_root: digest(BlobKind::Receipts, &receipts.content(BlobKind::Receipts).unwrap()),
            delta_digest: digest(BlobKind::Delta, &delta.content().unwrap()),
            epoch: self.epoch,
            ..slipstream_testkit::next_header(&self.head, speculation.root())
        };
        let certificate = {
            let next = set(Epoch(self.epoch.0 + 1));
            let signers = &keys(self.epoch)[..set(self.epoch).quorum()];
            slipstream_testkit::certify(&self.accumulator, &header, Some(next), signers)
        };
        self.epoch = Epoch(self.epoch.0 + 1);
        self.accumulator.append(header.digest());
        let batch = CommitBatch { certificate: Some(&certificate), ..CommitBatch::new(&header, &delta) };
        self.store.commit(batch, Some(speculation)).unwrap();
        self.head = header;
    }
}
