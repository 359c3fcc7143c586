//! [`HiddenParts`]: hidden parts that changed, kept until the rows include the change.
//!
//! A tree belongs to the rows of its version. After a change it still reads the older rows until the change is
//! written; several batches may be computed ahead of that. The tree itself has the parts that such a batch brought into
//! memory. A [`Layer`] has the parts that the batch left hidden. The layer is dropped once the tree reads rows that
//! include the batch.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use slipstream_types::{Path, tree::Leaf};

use super::{RowSource, range::Range};
use crate::error::StorageError;

/// Maximum number of layers. A batch that is further ahead of the rows brings everything that it touches into memory.
pub(super) const LAYERS_MAX: usize = 4;

/// Leaves by the first path of their range, with the range's last path.
type Parts = HashMap<Path, (Path, Vec<Leaf>)>;

/// Collects the parts that one batch leaves hidden, while it is applied.
#[derive(Default)]
pub(super) struct HiddenParts(Mutex<Parts>);

/// The parts that one batch left hidden.
#[derive(Clone)]
pub(super) struct Layer {
    /// The tree's generation after the batch.
    pub(super) generation: u32,
    parts: Arc<Parts>,
    /// Leaves in all parts.
    pub(super) leaves: u64,
}

/// Rows below layers; the newest layer that has a range answers for it.
pub(super) struct LayeredRows<'a> {
    pub(super) layers: &'a [Layer],
    pub(super) rows: &'a dyn RowSource,
}

impl HiddenParts {
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

impl LayeredRows<'_> {
    fn get(&self, first: &Path, last: &Path) -> Option<&Vec<Leaf>> {
        let mut found = self.layers.iter().rev().filter_map(|layer| layer.parts.get(first));
        found.find(|(end, _)| end == last).map(|(_, leaves)| leaves)
    }
}

impl RowSource for LayeredRows<'_> {
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
