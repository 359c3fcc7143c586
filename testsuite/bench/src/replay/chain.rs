//! [`Chain`]: batches of one traffic on a world's base, in a directory that a node can serve.

use std::{
    fs,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use alloy_primitives::{B256, map::HashSet};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use slipstream_executor::{HintsMode, decode_body, open_hints};
use slipstream_storage::Store;
use slipstream_types::{BatchNumber, BlobKind, Body, Digest, StateKey, codec};

use super::{
    traffic::Traffic,
    world::{World, open},
};
use crate::harness::{
    chain::Maker,
    kept::{clone_store, once},
    node::database,
};
use slipnet::progress::Progress;

/// Change this when traffic is made differently.
const VERSION: u8 = 1;
/// The file, in a chain's directory, of the keys that the chain reads.
const KEYS: &str = "keys";
const GENESIS: &str = "genesis.json";

/// The chain to replay.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Chain {
    /// The directory of the node that serves it.
    #[serde(skip)]
    pub(super) dir: PathBuf,
    /// The chain's genesis file.
    #[serde(skip)]
    pub(super) genesis: PathBuf,
    /// Number of the base's last batch.
    pub(super) base: u64,
    /// Number of the last batch.
    pub(super) head: u64,
    /// The state root after it.
    pub(super) state_root: Digest,
    pub(super) transactions: u64,
    /// Bytes of the batches' hints.
    pub(super) hint_bytes: u64,
}

impl Chain {
    /// Makes a chain of `batches` batches, with hints as a validator makes them in mode `hints`, once per base.
    ///
    /// # Errors
    /// If a transaction or the disk fails.
    pub(super) fn make(
        world: &World,
        base: &Path,
        traffic: Traffic,
        (lists, batches): (&[Vec<B256>], usize),
        hints: HintsMode,
        progress: Progress,
    ) -> Result<Chain> {
        let kind = if hints == HintsMode::Values { "values" } else { "keys" };
        let dir = base.with_file_name(format!("{}-{VERSION}-{kind}-{batches}", traffic.name()));
        let described = dir.join("chain.json");
        once(&dir, |dir| {
            progress.step(&format!("making a chain of {}, with {kind}", traffic.name()));
            let (db, genesis) = (database(dir), dir.join(GENESIS));
            clone_store(base, &db)?;
            fs::write(&genesis, serde_json::to_string(&world.genesis)?)?;
            let store = open(&db)?;
            let first = store.head()?.header.number;
            let mut maker = Maker::new(&store, &world.genesis, hints);
            let mut task = progress.task("batches", batches as u64);
            for (index, batch) in traffic.batches(world, lists, batches)?.iter().enumerate() {
                maker.append(batch)?;
                task.update(index as u64, "");
            }
            let (transactions, head) = (maker.transactions, store.head()?.header);
            let (keys, hint_bytes) = read_hints(&store, world, first.next()..=head.number)?;
            fs::write(dir.join(KEYS), codec::encode("keys", &keys)?)?;
            store.close();
            let chain = Chain {
                dir: PathBuf::new(),
                genesis: PathBuf::new(),
                base: first.get(),
                head: head.number.get(),
                state_root: head.state_root,
                transactions,
                hint_bytes,
            };
            Ok(fs::write(&described, serde_json::to_string(&chain)?)?)
        })?;
        let text = fs::read(&described).with_context(|| format!("cannot read {}", described.display()))?;
        let genesis = dir.join(GENESIS);
        Ok(Chain { dir, genesis, ..serde_json::from_slice(&text)? })
    }

    pub(super) fn batches(&self) -> u64 {
        self.head - self.base
    }

    /// Returns the keys that its batches read, each once, in the order of the batches.
    ///
    /// # Errors
    /// If their file cannot be read.
    pub(super) fn keys(&self) -> Result<Vec<StateKey>> {
        let path = self.dir.join(KEYS);
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(codec::decode("keys", &bytes, usize::MAX)?)
    }
}

/// Returns the keys in some batches' hints, each once, and the hints' length.
fn read_hints(
    store: &Store,
    world: &World,
    batches: RangeInclusive<BatchNumber>,
) -> Result<(Vec<StateKey>, u64)> {
    let (first, last) = batches.into_inner();
    let count = (last.since(first) + 1) as usize;
    let mut bodies = store.blobs(BlobKind::Body, first, count);
    let mut hints = store.blobs(BlobKind::Hints, first, count);
    let (mut seen, mut keys, mut bytes) = (HashSet::<StateKey>::default(), Vec::new(), 0);
    for number in first.through(last) {
        let header = store.header(number)?.context("the chain lacks a header")?;
        let body: Body = bodies.of(number)?.context("the chain lacks a body")?.open(BlobKind::Body)?;
        let transactions = decode_body(&body, &world.genesis.chain)?;
        let blob = hints.of(number)?.context("the chain lacks hints")?;
        bytes += blob.len() as u64;
        let opened = open_hints(&blob, header.gas_used, header.proposer, &transactions)?;
        keys.extend(opened.hints.keys().filter(|key| seen.insert(*key)));
    }
    Ok((keys, bytes))
}
