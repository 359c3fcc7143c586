//! [`Merges`]: the range deltas that were asked for last, each made once for all of its chunks.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use slipstream_network::Refusal;
use slipstream_storage::{RangeDelta, StorageError, Store};
use slipstream_types::BatchNumber;
use tokio::sync::OnceCell;

use super::answer::Unserved;

/// Bytes of memory for range deltas, and the most that one may take: about 400,000 keys. Who is further behind takes
/// deltas one by one, or a snapshot.
const MERGES_BYTES_MAX: u64 = 64 << 20;
/// Ranges that are kept: some bases, because those who ask are not equally far behind, for each of two snapshots.
const MERGES_MAX: usize = 4;

/// The batch before a range, and its last one.
pub(super) type MergeRange = (BatchNumber, BatchNumber);

/// A merge, or why there is none: that does not change either.
pub(super) type Merge = Result<Arc<RangeDelta>, Refusal>;

/// Merges by their range, the one asked for last in front. A cell is empty while somebody fills it, for whom the others wait.
#[derive(Default)]
pub(super) struct Merges(Mutex<VecDeque<(MergeRange, Arc<OnceCell<Merge>>)>>);

impl Merges {
    /// Where the merge of a range is or will be. Older ones make room for it.
    pub(super) fn cell(&self, range: MergeRange) -> Arc<OnceCell<Merge>> {
        let mut kept = self.0.lock();
        let known = kept.iter().position(|(other, _)| *other == range).and_then(|at| kept.remove(at));
        let entry = known.unwrap_or_else(|| (range, Arc::default()));
        let cell = Arc::clone(&entry.1);
        kept.push_front(entry);
        kept.truncate(MERGES_MAX);
        cell
    }

    /// Drops the oldest ones until the rest is within its bytes.
    pub(super) fn trim(&self) {
        let mut left = MERGES_BYTES_MAX;
        self.0.lock().retain(|(_, cell)| match left.checked_sub(bytes(cell)) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        });
    }

    /// Bytes of what is kept.
    #[cfg(test)]
    fn bytes(&self) -> u64 {
        self.0.lock().iter().map(|(_, cell)| bytes(cell)).sum()
    }
}

fn bytes(cell: &OnceCell<Merge>) -> u64 {
    cell.get().and_then(|merge| merge.as_ref().ok()).map_or(0, |merged| merged.bytes())
}

/// Makes a merge.
///
/// # Errors
/// What may be otherwise the next time.
pub(super) fn merge(store: &Store, (from, to): MergeRange) -> Result<Merge, Refusal> {
    match store.range_delta(from, to, MERGES_BYTES_MAX) {
        Ok(merged) => Ok(Ok(Arc::new(merged))),
        Err(error @ StorageError::RangeDelta(_)) => Ok(Err(Unserved::from(error).into_refusal())),
        Err(error) => Err(Unserved::from(error).into_refusal()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(from: u64) -> MergeRange {
        (BatchNumber(from), BatchNumber(1_000))
    }

    #[test]
    fn the_ranges_asked_for_last_are_kept() {
        let merges = Merges::default();
        let first = merges.cell(range(0));
        (1..MERGES_MAX as u64).for_each(|from| drop(merges.cell(range(from))));
        assert!(Arc::ptr_eq(&first, &merges.cell(range(0))), "it is there, and in front again");
        let second = merges.cell(range(1));
        (10..10 + MERGES_MAX as u64 - 1).for_each(|from| drop(merges.cell(range(from))));
        assert!(!Arc::ptr_eq(&first, &merges.cell(range(0))), "the oldest made room");
        assert!(!Arc::ptr_eq(&second, &merges.cell(range(1))));
        merges.trim();
        let kept = merges.0.lock().len();
        assert_eq!((kept, merges.bytes()), (MERGES_MAX, 0));
    }
}
