//! The `jmt` crate over a RocksDB with our configuration: a tree whose nodes are written per batch.

use std::{fs, path::Path as FilePath};

use anyhow::{Context, Result};
use jmt::{
    KeyHash, OwnedValue, Sha256Jmt, Version,
    storage::{LeafNode, Node, NodeKey, TreeReader},
};
use rocksdb::{DB, IteratorMode, ReadOptions, WriteBatch, WriteOptions};
use slipstream_storage::plain_database;

use super::{
    contender::{Committed, Contender, STATE_COLUMN, config},
    workload::{Initial, Round, rows},
};
use slipnet::progress::Progress;

/// Larger batches do not fill it faster.
const FILL_ROWS: usize = 50_000;
/// A column configured for point reads, like the state's.
const NODE_COLUMN: &str = "codes";

type Rows = Vec<(KeyHash, Option<OwnedValue>)>;

pub(super) struct Jmt {
    nodes: Nodes,
    version: Version,
}

struct Nodes(DB);

impl Nodes {
    fn family(&self, name: &str) -> Result<&rocksdb::ColumnFamily> {
        self.0.cf_handle(name).context("the database lacks a column")
    }
}

impl TreeReader for Nodes {
    fn get_node_option(&self, key: &NodeKey) -> Result<Option<Node>> {
        let bytes = self.0.get_pinned_cf(self.family(NODE_COLUMN)?, borsh::to_vec(key)?)?;
        bytes.map(|bytes| Ok(borsh::from_slice(&bytes)?)).transpose()
    }

    fn get_value_option(&self, version: Version, key: KeyHash) -> Result<Option<OwnedValue>> {
        let mut options = ReadOptions::default();
        options.set_iterate_lower_bound(value_key(0, key));
        let from = value_key(version, key);
        let mode = IteratorMode::From(&from, rocksdb::Direction::Reverse);
        let found = self.0.iterator_cf_opt(self.family(STATE_COLUMN)?, options, mode).next().transpose()?;
        Ok(found.map(|(_, value)| value.into_vec()))
    }

    /// Called only for a tree that is being restored.
    fn get_rightmost_leaf(&self) -> Result<Option<(NodeKey, LeafNode)>> {
        Ok(None)
    }
}

/// Returns the key of a value; versions of a key are adjacent.
fn value_key(version: Version, key: KeyHash) -> [u8; 40] {
    let mut bytes = [0; 40];
    bytes[..32].copy_from_slice(&key.0);
    bytes[32..].copy_from_slice(&version.to_be_bytes());
    bytes
}

impl Jmt {
    pub(super) fn fill(dir: &FilePath, initial: &Initial, progress: Progress) -> Result<Jmt> {
        fs::create_dir_all(dir)?;
        let mut jmt = Jmt { nodes: Nodes(plain_database(&config(true), dir)?), version: 0 };
        let mut task = progress.task("keys", initial.keys());
        for (index, delta) in initial.deltas(FILL_ROWS).enumerate() {
            jmt.write(values(rows(&delta?)), false)?;
            task.update(((FILL_ROWS * (index + 1)) as u64).min(initial.keys()), "");
        }
        Ok(jmt)
    }

    fn write(&mut self, rows: Rows, sync: bool) -> Result<()> {
        let (_, update) = Sha256Jmt::new(&self.nodes).put_value_set(rows, self.version)?;
        self.version += 1;
        let (node_column, value_column) = (self.nodes.family(NODE_COLUMN)?, self.nodes.family(STATE_COLUMN)?);
        let mut batch = WriteBatch::default();
        for (key, node) in update.node_batch.nodes() {
            batch.put_cf(node_column, borsh::to_vec(key)?, borsh::to_vec(node)?);
        }
        for ((version, key), value) in update.node_batch.values() {
            batch.put_cf(value_column, value_key(*version, *key), value.as_deref().unwrap_or_default());
        }
        let mut options = WriteOptions::default();
        options.set_sync(sync);
        Ok(self.nodes.0.write_opt(batch, &options)?)
    }
}

fn values(rows: Vec<(slipstream_types::Path, Vec<u8>)>) -> Rows {
    rows.into_iter().map(|(path, row)| (KeyHash(path.0), Some(row))).collect()
}

impl Contender for Jmt {
    type Prepared = Vec<Rows>;

    fn prepare(&mut self, round: &Round) -> Result<Self::Prepared> {
        Ok(round.batches.iter().map(|delta| values(rows(delta))).collect())
    }

    fn commit(&mut self, prepared: Self::Prepared) -> Result<Committed> {
        let updates = prepared.iter().map(Vec::len).sum();
        prepared.into_iter().try_for_each(|rows| self.write(rows, true))?;
        Ok(Committed { updates })
    }
}
