//! Rebuilding a tree from the rows of a state column, on all cores, within the memory budget.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rayon::prelude::*;
use slipstream_types::{Path, StateValue, tree::Leaf};

use super::{
    RowSource, Tree,
    budget::drop_all,
    node::{ARITY, Slot, assemble},
    tree::build,
};
use crate::{
    backend::{Column, Direction, Reader},
    error::StorageError,
    schema,
};

/// Parts by their first byte: enough of them to keep all cores busy, and to bound the leaves that wait for their nodes.
const PARTS: usize = ARITY * ARITY;
/// Progress is logged every so many rows, so that small states load in silence.
const LOG_ROWS: u64 = 1 << 20;

/// The rows of one state column as one reader shows them.
pub(crate) struct ColumnRows {
    reader: Arc<dyn Reader>,
    column: Column,
}

impl ColumnRows {
    pub(crate) fn new(reader: Arc<dyn Reader>, column: Column) -> Arc<ColumnRows> {
        Arc::new(ColumnRows { reader, column })
    }
}

impl RowSource for ColumnRows {
    fn leaves(&self, first: &Path, last: &Path) -> Result<Vec<Leaf>, StorageError> {
        let mut leaves = Vec::new();
        self.reader.scan(self.column, &first.0, Direction::Up, &mut |key, row| {
            let path = Path(schema::decode_digest(key)?.0);
            if path > *last {
                return Ok(ControlFlow::Break(()));
            }
            leaves.push(Leaf { path, value_hash: StateValue::row_hash(row) });
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(leaves)
    }
}

/// Rebuilds the tree from all rows of a state column and leaves it reading from there. Above the budget, parts are dropped
/// to their hashes as soon as they are known.
pub(crate) fn load_tree(
    reader: &Arc<dyn Reader>,
    column: Column,
    memory_mib: u64,
) -> Result<Tree, StorageError> {
    let rows = ColumnRows::new(Arc::clone(reader), column);
    let (loaded, resident) = (AtomicU64::new(0), AtomicU64::new(0));
    let resident_max = Tree::resident_max(memory_mib);
    let load = |part: usize| {
        let (mut first, mut last) = (Path::MIN, Path::MAX);
        (first.0[0], last.0[0]) = (part as u8, part as u8);
        let leaves = rows.leaves(&first, &last)?;
        let mut slot = build(&leaves, 2, 0);
        let count = leaves.len() as u64;
        if resident.fetch_add(count, Ordering::Relaxed) + count > resident_max {
            drop_all(&mut slot);
            let kept = Tree { root: slot.clone(), ..Tree::default() }.resident();
            resident.fetch_sub(count - kept, Ordering::Relaxed);
        }
        log_progress(loaded.fetch_add(count, Ordering::Relaxed), count);
        Ok(slot)
    };
    let parts: Vec<Slot> = (0..PARTS).into_par_iter().map(load).collect::<Result<_, StorageError>>()?;
    let mut parts = parts.into_iter();
    let halves = std::array::from_fn(|i| {
        let mut path = Path::MIN;
        path.0[0] = (ARITY * i) as u8;
        let slots = std::array::from_fn(|_| parts.next().unwrap_or_default());
        assemble(slots, &path, 1, 0)
    });
    let tree = Tree { root: assemble(halves, &Path::MIN, 0, 0), ..Tree::default() };
    Ok(tree.read_from(rows))
}

fn log_progress(before: u64, count: u64) {
    if before / LOG_ROWS != (before + count) / LOG_ROWS {
        tracing::info!(rows = before + count, "rebuilding the state tree from its rows");
    }
}
