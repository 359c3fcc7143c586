//! [`Folded`]: parts that changed and stayed hidden, until the rows say the same.
//!
//! A tree belongs to the rows of its version. One that was just changed is read from the rows before it until the change is written, and more
//! than one batch may be computed ahead of that. What a batch brought into memory is found there; what it left hidden is found here.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use slipstream_types::{Path, tree::Leaf};

use super::{RowSource, range::Range};
use crate::error::StorageError;

/// The leaves of parts that one batch changes, by the first path of their range.
#[derive(Default)]
pub(super) struct Folded(Mutex<HashMap<Path, (Path, Vec<Leaf>)>>);

/// Rows with such parts in place of theirs.
struct Over {
    folded: HashMap<Path, (Path, Vec<Leaf>)>,
    rows: Arc<dyn RowSource>,
}

impl Folded {
    pub(super) fn add(&self, range: Range, leaves: Vec<Leaf>) {
        self.0.lock().insert(range.first, (range.last, leaves));
    }

    /// What the tree is read from that the batch leads to.
    pub(super) fn over(self, rows: Arc<dyn RowSource>) -> Arc<dyn RowSource> {
        let folded = self.0.into_inner();
        if folded.is_empty() { rows } else { Arc::new(Over { folded, rows }) }
    }
}

impl Over {
    fn get(&self, first: &Path, last: &Path) -> Option<&Vec<Leaf>> {
        self.folded.get(first).filter(|(end, _)| end == last).map(|(_, leaves)| leaves)
    }
}

impl RowSource for Over {
    fn leaves(&self, first: &Path, last: &Path) -> Result<Vec<Leaf>, StorageError> {
        match self.get(first, last) {
            Some(leaves) => Ok(leaves.clone()),
            None => self.rows.leaves(first, last),
        }
    }

    fn many(&self, ranges: &[(Path, Path)]) -> Result<Vec<Vec<Leaf>>, StorageError> {
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
