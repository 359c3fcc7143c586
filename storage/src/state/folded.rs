//! [`Folded`]: parts that changed and stayed hidden, until the rows say the same.
//!
//! A tree belongs to the rows of its version. One that was just changed is read from the rows before it until the change is written, and more
//! than one batch may be computed ahead of that. What such a batch brought into memory is found there; what it left hidden is in a [`Layer`],
//! which goes when the tree is read from rows that have it.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use slipstream_types::{Path, tree::Leaf};

use super::{RowSource, range::Range};
use crate::error::StorageError;

/// Layers at most: a batch that is further ahead of the rows leaves nothing hidden that it touches.
pub(super) const LAYERS_MAX: usize = 4;

/// Leaves by the first path of their range, with its last.
type Parts = HashMap<Path, (Path, Vec<Leaf>)>;

/// What one batch leaves hidden, while it is applied.
#[derive(Default)]
pub(super) struct Folded(Mutex<Parts>);

/// What one batch left hidden.
#[derive(Clone)]
pub(super) struct Layer {
    /// Of the tree that the batch led to.
    pub(super) generation: u32,
    parts: Arc<Parts>,
    /// In all parts.
    pub(super) leaves: u64,
}

/// Rows under layers, of which the last is asked first.
pub(super) struct Over<'a> {
    pub(super) layers: &'a [Layer],
    pub(super) rows: &'a dyn RowSource,
}

impl Folded {
    pub(super) fn add(&self, range: Range, leaves: Vec<Leaf>) {
        self.0.lock().insert(range.first, (range.last, leaves));
    }

    /// None if nothing stayed hidden.
    pub(super) fn into_layer(self, generation: u32) -> Option<Layer> {
        let parts = self.0.into_inner();
        let leaves = parts.values().map(|(_, leaves)| leaves.len() as u64).sum();
        (!parts.is_empty()).then(|| Layer { generation, parts: Arc::new(parts), leaves })
    }
}

impl Over<'_> {
    fn get(&self, first: &Path, last: &Path) -> Option<&Vec<Leaf>> {
        let mut found = self.layers.iter().rev().filter_map(|layer| layer.parts.get(first));
        found.find(|(end, _)| end == last).map(|(_, leaves)| leaves)
    }
}

impl RowSource for Over<'_> {
    fn leaves(&self, first: &Path, last: &Path) -> Result<Vec<Leaf>, StorageError> {
        match self.get(first, last) {
            Some(leaves) => Ok(leaves.clone()),
            None => self.rows.leaves(first, last),
        }
    }

    fn many(&self, ranges: &[(Path, Path)]) -> Result<Vec<Vec<Leaf>>, StorageError> {
        if self.layers.is_empty() {
            return self.rows.many(ranges);
        }
        let others: Vec<(Path, Path)> =
            ranges.iter().filter(|(first, last)| self.get(first, last).is_none()).copied().collect();
        let mut others = self.rows.many(&others)?.into_iter();
        let leaves = |(first, last): &(Path, Path)| match self.get(first, last) {
            Some(leaves) => leaves.clone(),
            None => others.next().unwrap_or_default(),
        };
        Ok(ranges.iter().map(leaves).collect())
    }
}
