//! Random operations on a store beside a map: commits, rollbacks, refused batches, reads, pruning, reopening, and
//! snapshots that are read, pruned and restored. Roots are compared with [`naive`]'s. The tree has less memory than it
//! needs, so that parts of it are constantly evicted and rebuilt from their rows.

mod snapshots;

use std::{
    collections::{BTreeMap, VecDeque},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use rand::{Rng, SeedableRng, rngs::StdRng};
use slipstream_storage::{CommitBatch, PruneConfig, Snapshot, StorageConfig, StorageError, Store, View};
use slipstream_types::{
    AccountValue, Address, B256, BatchHeader, BatchNumber, BlobKind, Delta, Digest, StateKey, StateValue,
    U256, accumulator::Accumulator, delta::DeltaEntry, keccak256,
};

use super::{
    chain::{Chain, MadeBatch, State, apply},
    life, naive,
};

/// Two thirds of these keys have rows after a while: more than fit into [`TREE_MEMORY_MIB`].
const ACCOUNTS: u64 = 500;
const SLOTS: u64 = 30;
/// The minimum: it holds 8,400 keys.
const TREE_MEMORY_MIB: u64 = 1;
/// The windows of the blobs, in batches.
const WINDOWS: [u64; 4] = [3, 0, 7, 1];
/// The number of recent batches whose blobs are compared, whether they are kept or not.
const RECENT_MAX: usize = 10;
/// The most keys of one delta, and of one read.
const KEYS_MAX: usize = 600;
/// The number of commits between two naively computed roots; otherwise the speculation's root is used.
const CHECKPOINT_INTERVAL: u64 = 4;

/// The store under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Backend {
    /// In memory; it is never reopened.
    Memory,
    /// A store on RocksDB.
    Disk,
}

fn config() -> StorageConfig {
    StorageConfig {
        tree_memory_mib: TREE_MEMORY_MIB,
        prune: PruneConfig::of_batches(WINDOWS),
        ..life::config(false)
    }
}

/// The amount of work done.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Done {
    /// The number of keys written, rolled back or read.
    pub operations: u64,
    /// The number of committed batches.
    pub commits: u64,
    /// Snapshots restored into another store.
    pub restores: u64,
    /// The number of times that the store was reopened.
    pub reopened: u64,
}

/// Runs until `operations` operations are done, and reports the count to `progress` from time to time.
///
/// # Errors
/// At the first difference between store and map.
pub(super) fn run(
    backend: Backend,
    parent: &Path,
    seed: u64,
    operations: u64,
    progress: &mut dyn FnMut(u64),
) -> Result<Done> {
    let dir = tempfile::Builder::new().prefix("model-").tempdir_in(parent)?;
    let mut model = Model::new(backend, dir.path().join("store"), seed)?;
    model.fill()?;
    while model.done.operations < operations {
        model.act().with_context(|| format!("after {:?}", model.done))?;
        progress(model.done.operations);
    }
    model.compare_root()?;
    Ok(model.done)
}

fn key(index: u64, slot: Option<u64>) -> StateKey {
    let address = Address::from_word(keccak256(index.to_be_bytes()));
    match slot {
        None => StateKey::Account(address),
        Some(slot) => StateKey::Slot(address, B256::from(U256::from(slot))),
    }
}

struct Model {
    rng: StdRng,
    chain: Chain,
    backend: Backend,
    dir: PathBuf,
    store: Store,
    state: State,
    head: BatchHeader,
    accumulator: Accumulator,
    codes: Vec<Vec<u8>>,
    /// The last committed batches.
    recent: VecDeque<MadeBatch>,
    /// The states that snapshots were made of.
    frozen: BTreeMap<BatchNumber, State>,
    views: Vec<(View, State)>,
    snapshots: Vec<(Arc<Snapshot>, State)>,
    done: Done,
}

impl Model {
    fn new(backend: Backend, dir: PathBuf, seed: u64) -> Result<Model> {
        let chain = Chain { seed, body_bytes: 0 };
        let store = match backend {
            Backend::Memory => Store::memory(&config()),
            Backend::Disk => Store::open(&config(), &dir)?,
        };
        let genesis = chain.genesis();
        store.initialize(&genesis)?;
        let mut state = State::new();
        apply(&mut state, &genesis.delta()?);
        let head = genesis.header()?;
        let mut accumulator = Accumulator::default();
        accumulator.append(head.digest());
        Ok(Model {
            rng: StdRng::seed_from_u64(seed),
            chain,
            backend,
            dir,
            store,
            state,
            head,
            accumulator,
            codes: Vec::new(),
            recent: VecDeque::new(),
            frozen: BTreeMap::new(),
            views: Vec::new(),
            snapshots: Vec::new(),
            done: Done::default(),
        })
    }

    fn act(&mut self) -> Result<()> {
        match self.rng.random_range(0..100) {
            0..60 => self.commit(),
            60..68 => self.roll_back(),
            68..73 => self.refuse(),
            73..83 => self.read(),
            83..85 => self.prune(),
            85..89 => self.hold(),
            89..93 => self.check_held(),
            93..96 => self.reopen(),
            96..98 => self.read_snapshots(),
            _ => self.restore(),
        }
    }

    fn key(&mut self) -> StateKey {
        let index = self.rng.random_range(0..ACCOUNTS);
        let slot = self.rng.random_range(0..SLOTS);
        key(index, if self.rng.random_ratio(1, 4) { None } else { Some(slot) })
    }

    fn keys(&mut self) -> Vec<StateKey> {
        let count = self.rng.random_range(0..=KEYS_MAX);
        self.done.operations += count as u64;
        (0..count).map(|_| self.key()).collect()
    }

    fn value(&mut self, key: &StateKey, new_code: Option<Digest>) -> StateValue {
        let number = self.rng.random::<u64>().max(1);
        match key {
            StateKey::Slot(..) => StateValue::Slot(U256::from(number)),
            StateKey::Account(_) => {
                let known = self.codes.len();
                let old = (known > 0).then(|| &self.codes[self.rng.random_range(0..known)]);
                let old = old.map(|code| Digest::from(keccak256(code)));
                let code_hash = if self.rng.random_ratio(1, 3) { new_code.or(old) } else { None };
                StateValue::Account(AccountValue { nonce: number, balance: U256::from(number), code_hash })
            }
        }
    }

    /// Returns a delta of inserts, updates and deletions (one third), sometimes with new code.
    fn delta(&mut self) -> Result<Delta> {
        let mut changes = BTreeMap::new();
        let code: Option<Vec<u8>> =
            self.rng.random_ratio(1, 4).then(|| (0..100).map(|_| self.rng.random()).collect());
        let hash = code.as_ref().map(|code| Digest::from(keccak256(code)));
        for key in self.keys() {
            let value = if self.rng.random_ratio(1, 3) { None } else { Some(self.value(&key, hash)) };
            changes.insert(key, value);
        }
        let entries = changes.into_iter().map(|(key, value)| DeltaEntry { key, value }).collect();
        Ok(Delta::new(entries, code.into_iter().collect())?)
    }

    /// Gives every key a row.
    fn fill(&mut self) -> Result<()> {
        let slots = || (0..SLOTS).map(Some).chain([None]);
        let keys = (0..ACCOUNTS).flat_map(|index| slots().map(move |slot| key(index, slot)));
        let entries = keys.map(|key| DeltaEntry { key, value: Some(self.value(&key, None)) }).collect();
        self.commit_delta(Delta::new(entries, Vec::new())?)
    }

    fn commit(&mut self) -> Result<()> {
        let delta = self.delta()?;
        self.commit_delta(delta)
    }

    fn commit_delta(&mut self, delta: Delta) -> Result<()> {
        let speculation = self.store.speculate(&delta)?;
        let mut state = self.state.clone();
        apply(&mut state, &delta);
        let root = speculation.root();
        if self.done.commits.is_multiple_of(CHECKPOINT_INTERVAL) {
            ensure!(root == naive::root(&state), "the speculative root differs from the defined one");
        }
        let made = self.chain.seal_delta(&self.head, &self.accumulator, delta, root)?;
        let speculation = self.rng.random::<bool>().then_some(speculation);
        let late = self.rng.random_ratio(1, 4);
        let certificate = (!late).then_some(&made.certificate);
        self.store.commit(CommitBatch { certificate, ..made.batch() }, speculation)?;
        if late {
            self.store.put_certificate(&made.certificate)?;
        }
        self.codes.extend(made.delta.codes().iter().map(|code| code.to_vec()));
        self.accumulator.append(made.header.digest());
        self.head = made.header.clone();
        self.recent.truncate(RECENT_MAX - 1);
        self.recent.push_front(made);
        self.state = state;
        self.done.commits += 1;
        self.check_snapshots()?;
        self.check_head()
    }

    fn check_head(&self) -> Result<()> {
        let head = self.store.head()?;
        ensure!(head.header == self.head, "the head is not the last commit");
        ensure!(head.accumulator == self.accumulator, "the accumulator is not that of the commits");
        Ok(())
    }

    fn compare_root(&self) -> Result<()> {
        let (found, expected) = (self.store.head()?.header.state_root, naive::root(&self.state));
        ensure!(found == expected, "the head's root is {found}, but the state's is {expected}");
        Ok(())
    }

    /// Checks that a dropped speculation leaves no trace.
    fn roll_back(&mut self) -> Result<()> {
        let delta = self.delta()?;
        let speculation = self.store.speculate(&delta)?;
        if self.rng.random_ratio(1, 2) {
            let mut state = self.state.clone();
            apply(&mut state, &delta);
            ensure!(
                speculation.root() == naive::root(&state),
                "the root of a speculation that is dropped is wrong"
            );
        }
        drop(speculation);
        let nothing = self.store.speculate(&Delta::default())?;
        ensure!(nothing.root() == self.head.state_root, "a dropped speculation has changed the root");
        self.check_head()
    }

    /// Checks that a batch that does not continue the head is refused without a trace.
    fn refuse(&mut self) -> Result<()> {
        let delta = self.delta()?;
        let root = self.store.speculate(&delta)?.root();
        let good = self.chain.seal_delta(&self.head, &self.accumulator, delta, root)?;
        let mut bad: MadeBatch = good.clone();
        match self.rng.random_range(0..4) {
            0 => bad.header.state_root.0[3] ^= 1,
            1 => bad.header.parent.0[3] ^= 1,
            2 => bad.header.number = bad.header.number.next(),
            _ => bad.certificate.info.accumulator_root.0[3] ^= 1,
        }
        let result = self.store.commit(bad.batch(), None);
        let refused = matches!(
            result,
            Err(StorageError::StateRootMismatch { .. }
                | StorageError::WrongParent { .. }
                | StorageError::NotNext { .. }
                | StorageError::WrongCertificate { .. })
        );
        ensure!(refused, "expected the refusal of an invalid batch, found {result:?}");
        self.check_head()
    }

    fn read(&mut self) -> Result<()> {
        let keys = self.keys();
        let expected: Vec<_> = keys.iter().map(|key| self.state.get(key).copied()).collect();
        let view = self.store.view()?;
        ensure!(view.rows(&keys)? == expected, "rows differ from the map");
        for (key, expected) in keys.iter().zip(expected).take(50) {
            let found = match key {
                StateKey::Account(address) => view.account(address)?.map(StateValue::Account),
                StateKey::Slot(address, slot) => {
                    Some(view.slot(address, slot)?).filter(|value| !value.is_zero()).map(StateValue::Slot)
                }
            };
            ensure!(found == expected, "row {key:?} differs from the map");
        }
        let known = self.codes.len();
        if known > 0 {
            let code = &self.codes[self.rng.random_range(0..known)];
            let stored = view.code(&Digest::from(keccak256(code)))?;
            ensure!(stored.is_some_and(|stored| stored[..] == code[..]), "code is missing or wrong");
        }
        Ok(())
    }

    /// Checks that blobs within the windows are served unchanged, and that the store reports the others as gone.
    fn prune(&mut self) -> Result<()> {
        self.store.prune()?;
        let windows = [
            (BlobKind::Body, WINDOWS[0]),
            (BlobKind::Receipts, WINDOWS[1]),
            (BlobKind::Delta, WINDOWS[2]),
            (BlobKind::Hints, WINDOWS[3]),
        ];
        for (kind, window) in windows {
            let first = BatchNumber::new(1);
            let floor = if window == 0 { first } else { self.head.number.next().before(window).max(first) };
            let (lowest, name) = (self.store.lowest(kind)?, kind.name());
            ensure!(lowest == Some(floor), "{name} begin at {lowest:?}, not at {floor}");
            for made in &self.recent {
                let number = made.header.number;
                let kept = made.blobs.iter().find(|(made, _)| *made == kind && number >= floor);
                let found = self.store.blob(kind, number)?;
                ensure!(
                    found.as_ref() == kept.map(|(_, blob)| blob),
                    "the {name} of batch {number} are wrong"
                );
            }
        }
        Ok(())
    }

    fn reopen(&mut self) -> Result<()> {
        if self.backend == Backend::Memory {
            return Ok(());
        }
        self.views.clear();
        self.snapshots.clear();
        drop(std::mem::replace(&mut self.store, Store::memory(&config())));
        self.store = Store::open(&config(), &self.dir)?;
        self.done.reopened += 1;
        self.check_snapshots()?;
        self.check_head()?;
        self.compare_root()
    }
}
