//! One suite for both backends: a small ledger that makes valid batches, and a model of the state beside it.

mod backfill;
mod beside;
mod born;
mod chunk;
mod commit;
mod crash;
mod damage;
mod directory;
mod epochs;
mod export;
mod faults;
mod frontier;
mod headers;
mod history;
mod history_lives;
mod history_readers;
mod history_reverse;
mod model;
mod provable;
mod prune;
mod range_delta;
mod range_delta_refused;
mod ranges;
mod read_only;
mod repair;
mod restore;
mod rollback;
mod rounds;
mod rules;
mod run;
mod transactions;
mod waypoint;

use std::{collections::BTreeMap, sync::Arc};

use proptest::prelude::ProptestConfig;
use slipstream_types::{
    AccountValue, Address, B256, BatchHeader, BatchNumber, Blob, BlobKind, Body, Certificate, ChainConfig,
    Delta, Digest, Epoch, Genesis, LedgerInfo, Receipts, RulesId, SecretKey, StateKey, StateValue, Totals,
    U256, Validator,
    accumulator::Accumulator,
    batch::content_digest,
    bounded::BoundedVec,
    chain::Fork,
    delta::DeltaEntry,
    genesis::GenesisAccount,
    hints::HINTS_VERSION,
    keccak256,
    tree::{self, Leaf},
};

use crate::{
    StorageConfig, Store,
    backend::{Backend, RowStore, memory::MemoryBackend},
    batch::CommitBatch,
    directory::DirectoryContent,
    tuning::Tuning,
};

/// Returns the configuration of a property test with `cases` cases, or `PROPTEST_CASES`.
pub(crate) fn usually(cases: u32) -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        None => ProptestConfig::with_cases(cases),
        // The default reads the variable.
        Some(_) => ProptestConfig::default(),
    }
}

pub(super) fn key() -> SecretKey {
    SecretKey::from_seed([7; 32])
}

pub(super) fn address(i: u8) -> Address {
    Address::repeat_byte(i)
}

pub(super) fn account_key(i: u8) -> StateKey {
    StateKey::Account(address(i))
}

pub(super) fn slot_key(i: u8, slot: u8) -> StateKey {
    StateKey::Slot(address(i), B256::repeat_byte(slot))
}

pub(super) fn account(nonce: u64) -> Option<StateValue> {
    Some(StateValue::Account(AccountValue {
        nonce,
        balance: U256::from(nonce) * U256::from(10),
        code_hash: None,
    }))
}

pub(super) fn slot(value: u64) -> Option<StateValue> {
    (value != 0).then(|| StateValue::Slot(U256::from(value)))
}

pub(super) fn genesis() -> Genesis {
    let rich = GenesisAccount { balance: U256::from(1_000_000), ..GenesisAccount::default() };
    let code = BoundedBytesCode::new(vec![0x60, 0x00]).unwrap();
    let storage = BTreeMap::from([(B256::repeat_byte(1), U256::from(5))]);
    let contract = GenesisAccount { nonce: 1, code, storage, ..GenesisAccount::default() };
    Genesis {
        chain: ChainConfig { fork: Fork::Prague, ..ChainConfig::default() },
        timestamp_ms: 1_000,
        validators: BoundedVec::new(vec![Validator {
            public_key: key().public(),
            fee_recipient: Address::ZERO,
        }])
        .unwrap(),
        accounts: BTreeMap::from([(address(0xaa), rich), (address(0xcc), contract)]),
        ..Genesis::default()
    }
}

type BoundedBytesCode = slipstream_types::delta::Code;

/// The next batches of a chain, and the expected state after them.
#[derive(Clone)]
pub(super) struct Ledger {
    pub(super) state: BTreeMap<StateKey, StateValue>,
    pub(super) head: BatchHeader,
    pub(super) accumulator: Accumulator,
}

/// A batch with all its parts.
#[derive(Clone)]
pub(super) struct Made {
    pub(super) header: BatchHeader,
    pub(super) delta: Delta,
    pub(super) body: Blob,
    pub(super) receipts: Blob,
    pub(super) delta_blob: Blob,
    pub(super) hints: Blob,
    pub(super) hashes: Vec<B256>,
    pub(super) certificate: Certificate,
}

impl Made {
    pub(super) fn batch(&self) -> CommitBatch<'_> {
        CommitBatch {
            body: Some(&self.body),
            receipts: Some(&self.receipts),
            delta_blob: Some(&self.delta_blob),
            hints: Some(&self.hints),
            transaction_hashes: &self.hashes,
            certificate: Some(&self.certificate),
            ..CommitBatch::new(&self.header, &self.delta)
        }
    }
}

pub(super) fn certify(header: &BatchHeader, accumulator_root: Digest) -> Certificate {
    Certificate::signed(LedgerInfo::of(header, accumulator_root, None), 0, [(0, &key())]).unwrap()
}

pub(super) fn state_root(state: &BTreeMap<StateKey, StateValue>) -> Digest {
    let mut leaves: Vec<Leaf> =
        state.iter().map(|(key, value)| Leaf { path: key.path(), value_hash: value.hash(key) }).collect();
    leaves.sort_unstable_by_key(|leaf| leaf.path);
    tree::root(&leaves)
}

pub(super) fn seal(parent: &BatchHeader, accumulator: &Accumulator, delta: Delta, root: Digest) -> Made {
    let number = parent.number.next();
    let body = Body::new(vec![number.get().to_be_bytes().to_vec(), vec![1]]).unwrap();
    let body = Blob::seal(BlobKind::Body, &body).unwrap();
    let receipts = Blob::seal(BlobKind::Receipts, &Receipts::default()).unwrap();
    let delta_blob = Blob::seal(BlobKind::Delta, &delta).unwrap();
    let digest = |kind, blob: &Blob| content_digest(kind, &blob.content(kind).unwrap());
    let header = BatchHeader {
        number,
        parent: parent.digest(),
        epoch: Epoch(0),
        rules: RulesId::GENESIS,
        timestamp_ms: parent.timestamp_ms + 100,
        proposer: Address::ZERO,
        tx_count: 2,
        tx_bytes: 0,
        gas_used: 42_000,
        delta_bytes: 0,
        transactions_root: digest(BlobKind::Body, &body),
        receipts_root: digest(BlobKind::Receipts, &receipts),
        delta_digest: digest(BlobKind::Delta, &delta_blob),
        state_root: root,
        totals: Totals::default(),
    };
    let mut accumulator = accumulator.clone();
    accumulator.append(header.digest());
    Made {
        certificate: certify(&header, accumulator.root()),
        body,
        receipts,
        delta_blob,
        hints: Blob::compress(BlobKind::Hints, &[HINTS_VERSION]).unwrap(),
        hashes: vec![transaction_hash(number, 0), transaction_hash(number, 1)],
        header,
        delta,
    }
}

pub(super) fn transaction_hash(number: BatchNumber, index: u64) -> B256 {
    keccak256([number.get().to_be_bytes(), index.to_be_bytes()].concat())
}

impl Ledger {
    pub(super) fn new() -> Ledger {
        let head = genesis().header().unwrap();
        let mut accumulator = Accumulator::default();
        accumulator.append(head.digest());
        let delta = genesis().delta().unwrap();
        let state = delta.entries().iter().map(|entry| (entry.key, entry.value.unwrap())).collect();
        Ledger { state, head, accumulator }
    }

    /// Makes the next batch with these changes, without counting it as committed.
    pub(super) fn make(&self, changes: &[(StateKey, Option<StateValue>)], codes: Vec<Vec<u8>>) -> Made {
        let mut state = self.state.clone();
        change(&mut state, changes);
        let entries = changes.iter().map(|(key, value)| DeltaEntry { key: *key, value: *value }).collect();
        let delta = Delta::new(entries, codes).unwrap();
        seal(&self.head, &self.accumulator, delta, state_root(&state))
    }

    pub(super) fn advance(&mut self, made: &Made) {
        let changes: Vec<_> = made.delta.entries().iter().map(|entry| (entry.key, entry.value)).collect();
        change(&mut self.state, &changes);
        self.accumulator.append(made.header.digest());
        self.head = made.header.clone();
    }

    /// Makes and commits the next batch.
    pub(super) fn commit(&mut self, store: &Store, changes: &[(StateKey, Option<StateValue>)]) -> Made {
        let made = self.make(changes, Vec::new());
        store.commit(made.batch(), None).unwrap();
        self.advance(&made);
        made
    }

    /// Commits batches up to a number, each with a few changes of its own.
    pub(super) fn commit_up_to(&mut self, store: &Store, number: u64) {
        while self.head.number.get() < number {
            let n = self.head.number.get() as u8;
            self.commit(store, &[(account_key(n), account(u64::from(n) + 1)), (slot_key(0xcc, n), slot(77))]);
        }
    }
}

pub(super) fn change(state: &mut BTreeMap<StateKey, StateValue>, changes: &[(StateKey, Option<StateValue>)]) {
    for (key, value) in changes {
        match value {
            Some(value) => state.insert(*key, *value),
            None => state.remove(key),
        };
    }
}

/// Free memory that stores' directories in memory require: a container often has far less.
const ROOM_BYTES: u64 = 2 << 30;

/// Returns a directory for a store, in memory if there is room. A database waits for its disk at each start and each
/// end, which takes most of the time of these tests. Memory keeps what a killed process wrote, and `MemoryDisk`
/// simulates power cuts.
pub(super) fn store_dir() -> tempfile::TempDir {
    let memory = std::path::Path::new("/dev/shm");
    let free = rustix::fs::statvfs(memory).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    let in_memory = (free >= ROOM_BYTES).then(|| tempfile::tempdir_in(memory).ok()).flatten();
    in_memory.unwrap_or_else(|| tempfile::tempdir().unwrap())
}

/// A store that can be closed and opened again.
pub(super) struct Fixture {
    pub(super) config: StorageConfig,
    memory: Option<MemoryBackend>,
    dir: tempfile::TempDir,
    store: Option<Store>,
}

impl Fixture {
    pub(super) fn new(config: &StorageConfig, on_disk: bool) -> Fixture {
        let memory = (!on_disk).then(MemoryBackend::default);
        let dir = store_dir();
        let mut fixture = Fixture { config: config.clone(), memory, dir, store: None };
        fixture.reopen();
        fixture
    }

    /// Creates an initialized one.
    pub(super) fn initialized(config: &StorageConfig, on_disk: bool) -> Fixture {
        let fixture = Fixture::new(config, on_disk);
        fixture.store().initialize(&genesis()).unwrap();
        fixture
    }

    pub(super) fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    pub(super) fn is_on_disk(&self) -> bool {
        self.memory.is_none()
    }

    pub(super) fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    pub(super) fn close(&mut self) {
        self.store = None;
    }

    pub(super) fn reopen(&mut self) {
        self.store = None;
        self.store = Some(match &self.memory {
            Some(backend) => {
                Store::with_backend(&self.config, Arc::new(backend.clone()) as Arc<dyn Backend>).unwrap()
            }
            None => Store::open(&self.config, self.dir.path()).unwrap(),
        });
    }
}

/// The content of a directory whose store was closed.
pub(super) const CURRENT: DirectoryContent = DirectoryContent::Store;

/// The configuration of most tests: small caches, no snapshots, and no waits for the disk.
pub(super) fn config() -> StorageConfig {
    StorageConfig {
        block_cache_mib: 8,
        snapshot_interval_batches: 0,
        fsync: false,
        tuning: small(),
        ..StorageConfig::default()
    }
}

/// Sizes for small states: they take as many steps as a large one does in a node.
pub(super) fn small() -> Tuning {
    Tuning {
        provable_batches: 6,
        provable_delta_bytes_max: 3_000,
        held_batches: 8,
        history_slack_batches: 16,
        log_slack_batches: 4,
        log_bytes_max: 64 << 10,
        seal_batches: 3,
        seal_bytes_at_once: 2_000,
        seal_pause_batches: 4,
        headers_step_batches: 1,
        touched_min: 64,
        touched_at_close_min: 1,
        file_bytes_min: 256,
        file_bytes_max: 1 << 10,
        check_rows_max: 64,
        restore_spans_max: 96,
        rollback_rows_max: 64,
        scrub_rows: 20,
    }
}

/// Runs a test on both backends.
pub(super) fn on_both(config: &StorageConfig, test: impl Fn(Fixture)) {
    test(Fixture::initialized(config, false));
    test(Fixture::initialized(config, true));
}
