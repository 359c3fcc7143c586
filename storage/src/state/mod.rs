//! The state tree in memory: the roots that `slipstream_types::tree` defines, kept up to date by sorted batches.
//!
//! ```text
//!   sorted updates ──▶ Tree::apply ──▶ one recursion, forked at the first nibble, each node touched and hashed once
//!                                        │
//!    node: 16 slots = 4 bits of the path │  leaf | child node | run (bits that all below share) | stub (rows only)
//!                                        ▼
//!                      RowSource ◀── stubs are rebuilt from the rows of the version that the tree belongs to
//! ```
//!
//! * [`node`], [`slot`]: parts and hashes; [`nibbles`]: paths; [`hollow`]: nodes that know quarters by hash alone;
//!   [`tree`]: versions; [`pass`]: updates; [`hidden_parts`]: parts that updates leave hidden. [`fetch`]: reading rows
//!   for updates; [`warm`]: prefetching memory; [`proof`]: range proofs; [`shape`]: where leaves diverge; [`budget`]:
//!   bounded memory. [`load`]: rebuilding from rows; [`frontier`]: rebuilding from the tree's upper part; [`join`]:
//!   growing from parts; [`sketch`]: hashing parts without nodes.
//! * A tree is a value: a clone shares all nodes and never changes with the original. Nodes that belong to one
//!   version alone change in place, so a commit on the only version copies nothing.

mod budget;
mod fetch;
pub(crate) mod frontier;
mod hidden_parts;
mod hollow;
mod join;
pub(crate) mod load;
mod nibbles;
mod node;
mod pass;
mod proof;
mod range;
mod shape;
mod sketch;
mod slot;
#[cfg(test)]
mod tests;
mod tree;
mod warm;

use std::sync::Arc;

use slipstream_types::{Digest, Path, tree::Leaf};

pub(crate) use nibbles::lift_hash;
pub(crate) use shape::Shape;
pub(crate) use tree::Tree;

use crate::error::StorageError;

/// The change of one leaf: its new value hash, or `None` to delete it.
pub(crate) type Update = (Path, Option<Digest>);

/// Nibbles of a path that [`Tree::reread`] distinguishes: the account's part and four bytes below it. Two slots of
/// one contract share them by chance once in 4 billion.
pub(crate) const REREAD_NIBBLES: usize = 24;

/// The rows of one version of the state, from which the stubs of that version's tree are rebuilt.
pub(crate) trait RowSource: Send + Sync {
    /// Returns the sorted leaves between two paths, both included.
    fn leaves(&self, first: &Path, last: &Path) -> Result<Vec<Leaf>, StorageError>;

    /// As [`RowSource::leaves`], for many ranges that ascend and do not overlap; in parallel if that is faster.
    fn many(&self, ranges: &[(Path, Path)]) -> Result<Vec<Vec<Leaf>>, StorageError> {
        ranges.iter().map(|(first, last)| self.leaves(first, last)).collect()
    }
}

/// Rows of a tree that has no stubs.
pub(crate) struct NoRows;

impl RowSource for NoRows {
    fn leaves(&self, first: &Path, _last: &Path) -> Result<Vec<Leaf>, StorageError> {
        Err(StorageError::corrupt(format!(
            "the state tree lacks its nodes below {first:?} and has no rows to rebuild them from"
        )))
    }
}

/// The row source of a tree until [`Tree::read_from`] sets one.
fn no_rows() -> Arc<dyn RowSource> {
    Arc::new(NoRows)
}
