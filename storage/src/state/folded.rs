//! [`Folded`]: parts that changed and stayed hidden, until the rows say the same.
//!
//! A tree belongs to the rows of its version. After a change it still reads the rows from before, until the change is written; several
//! batches may be computed ahead of that. The parts that such a batch brought into memory are found there. The parts that it left hidden
//! are in a [`Layer`], which goes once the tree reads rows that include it.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use slipstream_types::{Path, tree::Leaf};

use super::{RowSource, range::Range};
use crate::error::StorageError;

/// Layers at most: a batch that is further ahead of the rows leaves nothing hidden that it touches.
pub(super) const LAYERS_MAX: usize = 4;

/// Leaves by the first path of their range, with its last.
type Parts = HashMap<Path, (Path, Vec<Leaf>)>;

/// Collects the parts that one batch leaves hidden, while it is applied.
#[derive(Default)]
pub(super) struct Folded(Mutex<Parts>);

/// The parts that one batch left hidden.
#[derive(Clone)]
pub(super) struct Layer {
    /// Generation of the tree that the batch led to.
    pub(super) generation: u32,
    parts: Arc<Parts>,
    /// Leaves in all parts.
    pub(super) leaves: u64,
}

/// Rows under layers; the last layer is asked first.
pub(super) struct Over<'a> {
    pub(super) layers: &'a [Layer],
    pub(super) rows: &'a dyn RowSource,
}

impl Folded {
    pub(super) fn add(&self, range: Range, leaves: Vec<Leaf>) {
        self.0.lock().insert(range.first, (range.last, leaves));
    }

    /// Returns `None` if the batch left nothing hidden.
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
