//! Rebuilds a tree from the rows of a state column, on all cores, within the memory budget.

use std::{
    ops::ControlFlow,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
};

use rayon::prelude::*;
use slipstream_types::{
    Path,
    tree::{Leaf, Leaves},
};

use super::{RowSource, Tree};
use crate::{
    backend::{Column, Direction, Reader},
    error::StorageError,
    schema,
    span::Span,
    spans::Spans,
};

/// Bits of a path that select its part: 256 parts keep all cores busy, and bound the leaves that wait for their
/// nodes.
const PARTS_BITS: u8 = 8;
/// Rows between two messages of progress, so that small states load in silence.
const LOG_ROWS: u64 = 1 << 20;

/// The rows of one state column, as one reader sees them.
pub(crate) struct ColumnRows {
    reader: Arc<dyn Reader>,
    column: Column,
}

impl ColumnRows {
    pub(crate) fn new(reader: Arc<dyn Reader>, column: Column) -> Arc<ColumnRows> {
        Arc::new(ColumnRows { reader, column })
    }
}

/// Threads that read the parts of the state that a batch needs. More than cores, because most of them wait for the
/// disk.
const READ_THREADS: usize = 16;
/// Minimum number of ranges that is worth a thread.
const READ_RANGES_MIN: usize = 8;

static READERS: LazyLock<rayon::ThreadPool> = LazyLock::new(|| {
    rayon::ThreadPoolBuilder::new()
        .num_threads(READ_THREADS)
        .thread_name(|index| format!("state-read-{index}"))
        .build()
        .expect("threads can be started")
});

fn read_ranges(
    reader: &dyn Reader,
    column: Column,
    ranges: &[(Path, Path)],
) -> Result<Vec<Vec<Leaf>>, StorageError> {
    let mut found = Leaves::default();
    let mut ends = vec![0; ranges.len()];
    reader.ranges(column, ranges, &mut |index, key, row| {
        found.push(Path(schema::decode_digest(key)?.0), row);
        ends[index] = found.len();
        Ok(ControlFlow::Continue(()))
    })?;
    let (leaves, mut rest) = (found.finish(), 0);
    let range = |end: usize| {
        let start = rest;
        rest = end.max(start);
        leaves[start..rest].to_vec()
    };
    Ok(ends.into_iter().map(range).collect())
}

impl RowSource for ColumnRows {
    fn leaves(&self, first: &Path, last: &Path) -> Result<Vec<Leaf>, StorageError> {
        let mut leaves = Leaves::default();
        self.reader.scan(self.column, &first.0, Direction::Up, &mut |key, row| {
            let path = Path(schema::decode_digest(key)?.0);
            if path > *last {
                return Ok(ControlFlow::Break(()));
            }
            leaves.push(path, row);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(leaves.finish())
    }

    fn many(&self, ranges: &[(Path, Path)]) -> Result<Vec<Vec<Leaf>>, StorageError> {
        let part = ranges.len().div_ceil(READ_THREADS).max(READ_RANGES_MIN);
        if ranges.len() <= part {
            return read_ranges(&*self.reader, self.column, ranges);
        }
        // The caller blocks. If it took on other work of the batch meanwhile, it would hold the rows of all that
        // work.
        let (sender, parts) = mpsc::channel();
        let asked = ranges.chunks(part).enumerate().map(|(index, part)| {
            let (reader, column) = (Arc::clone(&self.reader), self.column);
            let (part, sender) = (part.to_vec(), sender.clone());
            READERS.spawn(move || {
                let leaves = read_ranges(&*reader, column, &part);
                // The reader is dropped before the caller gets the answer, because the caller may then close and reopen
                // the database.
                drop(reader);
                let _ = sender.send((index, leaves));
            });
        });
        let mut found: Vec<Vec<Vec<Leaf>>> = vec![Vec::new(); asked.count()];
        drop(sender);
        let mut failed = None;
        // Waits for all parts, even after an error: the caller continues only when no thread reads any more.
        for (index, leaves) in parts {
            match leaves {
                Ok(leaves) => found[index] = leaves,
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(found.into_iter().flatten().collect()),
        }
    }
}

/// Rebuilds the tree from all rows of a state column, which the tree then reads from. Above the budget, parts are
/// reduced to their hashes as soon as these are known.
pub(crate) fn load_tree(
    reader: &Arc<dyn Reader>,
    column: Column,
    memory_mib: u64,
) -> Result<Tree, StorageError> {
    grow_tree(Tree::default(), reader, column, memory_mib, &Spans::divided(0))
}

/// As [`load_tree`], for a tree that lacks only the rows of `spans`.
pub(crate) fn grow_tree(
    tree: Tree,
    reader: &Arc<dyn Reader>,
    column: Column,
    memory_mib: u64,
    spans: &Spans,
) -> Result<Tree, StorageError> {
    grow_tree_from(tree, ColumnRows::new(Arc::clone(reader), column), memory_mib, spans)
}

/// As [`grow_tree`], from any rows.
pub(crate) fn grow_tree_from(
    mut tree: Tree,
    rows: Arc<dyn RowSource>,
    memory_mib: u64,
    spans: &Spans,
) -> Result<Tree, StorageError> {
    let (loaded, resident) = (AtomicU64::new(0), AtomicU64::new(tree.resident()));
    let resident_max = Tree::resident_max(memory_mib);
    let load = |span: &Span| {
        let leaves = rows.leaves(&span.first, &span.last)?;
        let count = leaves.len() as u64;
        let part = if resident.fetch_add(count, Ordering::Relaxed) + count > resident_max {
            let part = Tree::sketch(&leaves, &span.first, &span.last);
            resident.fetch_sub(count - part.resident(), Ordering::Relaxed);
            part
        } else {
            Tree::build(&leaves)
        };
        log_progress(loaded.fetch_add(count, Ordering::Relaxed), count);
        Ok(part)
    };
    let spans: Vec<Span> = Spans::divided(PARTS_BITS).iter().flat_map(|part| spans.within(part)).collect();
    let parts: Vec<Tree> = spans.par_iter().map(load).collect::<Result<_, StorageError>>()?;
    parts.into_iter().try_for_each(|part| tree.join(part))?;
    Ok(tree.read_from(rows))
}

fn log_progress(before: u64, count: u64) {
    if before / LOG_ROWS != (before + count) / LOG_ROWS {
        tracing::info!(rows = before + count, "rebuilding the state tree from its rows");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{RowStore as _, WriteBatch, memory::MemoryBackend};

    /// Goal: once a caller has its rows, or an error, no reading thread holds the reader, so that the database can be
    /// closed and reopened.
    #[test]
    fn a_read_that_is_over_holds_no_reader() {
        let (whole, broken) = (MemoryBackend::default(), MemoryBackend::default());
        let mut batch = WriteBatch::default();
        // A key within a range that is not a path.
        batch.put(Column::StateA, [128; 33], b"no row");
        broken.write(batch, false).unwrap();
        let ranges: Vec<_> = (0..=254).map(|byte| (Path([byte; 32]), Path([byte + 1; 32]))).collect();
        for (backend, is_broken) in [(whole, false), (broken, true)] {
            let reader: Arc<dyn Reader> = Arc::new(backend);
            let rows = ColumnRows { reader: Arc::clone(&reader), column: Column::StateA };
            for _ in 0..1_000 {
                assert_eq!(rows.many(&ranges).is_err(), is_broken);
                assert_eq!(Arc::strong_count(&reader), 2);
            }
        }
    }
}
