//! A store larger than its cache. The rows that blocks read lie among millions of others, and reads bypass the
//! operating system's cache ([`StorageConfig::direct_reads`]). The block cache holds index, filters and
//! [`CACHED_DATA_MIB`] of rows, and is emptied between runs.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use alloy_primitives::Bytes;
use anyhow::{Context, Result};
use rayon::prelude::*;
use slipstream_executor::ExecutionState;
use slipstream_storage::{MemoryState, StateReader, StorageConfig, StorageError, Store, View};
use slipstream_types::{
    AccountValue, Address, B256, BatchNumber, Delta, Digest, StateKey, StateValue, U256, delta::DeltaEntry,
};

use super::filler::Rows;
use crate::{harness::files, ledger::chain};
use slipnet::progress::Progress;

/// Rows of one commit.
const BATCH_ROWS: usize = 200_000;
/// Bytes of code in one commit; its delta takes 32 MiB.
const BATCH_CODE_BYTES: usize = 8 << 20;
/// The part of the block cache for rows and code: a few blocks' working sets.
const CACHED_DATA_MIB: u64 = 16;
/// Size per row, in sixteenths of a byte, of index and filters, which are in the block cache too.
const INDEX_SIXTEENTHS: u64 = 40;
/// Memory for the tree, which is not used. The check at opening evicts the nodes that exceed this memory.
const TREE_MIB: u64 = 64;

fn config(rows: u64, direct_reads: bool) -> StorageConfig {
    StorageConfig {
        block_cache_mib: CACHED_DATA_MIB + ((rows * INDEX_SIXTEENTHS) >> 24),
        tree_memory_mib: TREE_MIB,
        snapshot_interval_batches: 0,
        fsync: false,
        direct_reads,
        ..StorageConfig::default()
    }
}

/// Opens the store with these rows in `dir`, after filling it unless an earlier run did.
pub(super) fn open(
    dir: &Path,
    rows: &Rows,
    codes: &BTreeMap<Digest, Bytes>,
    progress: Progress,
) -> Result<Store> {
    let dir = dir.join(format!("slipnet-cold-{}", &rows.fingerprint().to_string()[..16]));
    let filled = dir.join("filled");
    if !filled.exists() {
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
        }
        progress.step(&format!("filling a store with {} rows", rows.len()));
        fill(&dir, rows, codes, progress)?;
        fs::write(&filled, [])?;
    }
    progress.step("opening the store: all its rows are read and checked");
    Ok(Store::open(&config(rows.len(), true), &dir)?)
}

fn fill(dir: &Path, rows: &Rows, codes: &BTreeMap<Digest, Bytes>, progress: Progress) -> Result<()> {
    let store = Store::open(&config(rows.len(), false), dir)?;
    chain::initialize(&store)?;
    let mut group = Vec::new();
    let mut bytes = 0;
    for code in codes.values() {
        bytes += code.len();
        group.push(code.to_vec());
        if bytes >= BATCH_CODE_BYTES {
            chain::commit(&store, &Delta::new(Vec::new(), std::mem::take(&mut group))?, None)?;
            bytes = 0;
        }
    }
    chain::commit(&store, &Delta::new(Vec::new(), group)?, None)?;
    let order = rows.in_order(|key| key.path().0);
    let mut task = progress.task("rows", rows.len());
    for (index, numbers) in order.chunks(BATCH_ROWS).enumerate() {
        let entry = |number: &u32| {
            let (key, value) = rows.row(*number);
            DeltaEntry { key, value: Some(value) }
        };
        let delta = Delta::new(numbers.par_iter().map(entry).collect(), Vec::new())?;
        chain::commit(&store, &delta, None)?;
        task.update(((index + 1) * BATCH_ROWS) as u64, "");
    }
    // RocksDB is still compacting; closing it now would stop the compactions.
    files::wait_until_quiet()?;
    store.close();
    Ok(())
}

/// A part of the store. Each block has its own addresses, so that blocks of different years can coexist although they
/// read different values of the same keys.
#[derive(Clone)]
pub(crate) struct World {
    view: View,
    mask: Address,
    /// The headers for BLOCKHASH.
    headers: Arc<MemoryState>,
}

/// Returns a key's counterpart in a world.
pub(super) fn masked(mask: &Address, key: &StateKey) -> StateKey {
    let address = |address: &Address| Address(address.0 ^ mask.0);
    match key {
        StateKey::Account(it) => StateKey::Account(address(it)),
        StateKey::Slot(it, slot) => StateKey::Slot(address(it), *slot),
    }
}

/// Returns the mask that separates a world's addresses from those of other worlds.
pub(super) fn mask(world: u64) -> Address {
    Address::from_slice(&Digest::tagged("slipnet/bench-hints-world", &world.to_le_bytes()).0[..20])
}

impl World {
    pub(super) fn new(store: &Store, world: u64, headers: MemoryState) -> Result<World> {
        Ok(World { view: store.view()?, mask: mask(world), headers: Arc::new(headers) })
    }
}

impl StateReader for World {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        self.view.account(&Address(address.0 ^ self.mask.0))
    }

    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        self.view.slot(&Address(address.0 ^ self.mask.0), slot)
    }

    fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        self.view.code(hash)
    }

    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        self.headers.header_digest(number)
    }

    fn rows(&self, keys: &[StateKey]) -> Result<Vec<Option<StateValue>>, StorageError> {
        let keys: Vec<StateKey> = keys.iter().map(|key| masked(&self.mask, key)).collect();
        self.view.rows(&keys)
    }
}

impl ExecutionState for World {}
