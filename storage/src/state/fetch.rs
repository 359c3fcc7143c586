//! Reads all rows that a batch needs before the batch is applied, so that the disk has many reads in flight.
//!
//! The position of an evicted part alone determines which rows rebuild it. So a first walk lists the ranges, and they
//! are read in parallel. The batch then finds its rows in memory.

use std::collections::HashMap;

use parking_lot::Mutex;
use slipstream_types::{Path, tree::Leaf};

use super::{
    RowSource, Update,
    hollow::{quarter_of, quarter_range},
    nibbles::{first_nibble, nibble},
    node::Node,
    range::Range,
    slot::{Link, Slot, SlotRef},
};
use crate::error::StorageError;

/// Rows that were read ahead. Other rows come from the same source.
pub(super) struct FetchedRows<'a> {
    /// Leaves by the first path of their range, with the range's last path. Each range is used once.
    leaves: Mutex<HashMap<Path, (Path, Vec<Leaf>)>>,
    rows: &'a dyn RowSource,
}

impl<'a> FetchedRows<'a> {
    pub(super) fn read(rows: &'a dyn RowSource, ranges: &[Range]) -> Result<FetchedRows<'a>, StorageError> {
        let pairs: Vec<(Path, Path)> = ranges.iter().map(|range| (range.first, range.last)).collect();
        let leaves = rows.many(&pairs)?;
        let leaves = pairs.into_iter().zip(leaves).map(|((first, last), leaves)| (first, (last, leaves)));
        Ok(FetchedRows { leaves: Mutex::new(leaves.collect()), rows })
    }
}

impl RowSource for FetchedRows<'_> {
    fn leaves(&self, first: &Path, last: &Path) -> Result<Vec<Leaf>, StorageError> {
        let fetched = self.leaves.lock().remove(first);
        match fetched.filter(|(end, _)| end == last) {
            Some((_, leaves)) => Ok(leaves),
            None => self.rows.leaves(first, last),
        }
    }
}

/// Returns the ranges of rows that updates of a slot at `depth` need, in order. (A batch of `Change::Reread` needs
/// these and more.)
pub(super) fn wanted(slot: &Slot, updates: &[Update], depth: usize) -> Vec<Range> {
    let mut ranges = Vec::new();
    want(slot.as_ref(), updates, depth, &mut ranges);
    ranges
}

fn want(slot: SlotRef<'_>, updates: &[Update], depth: usize, ranges: &mut Vec<Range>) {
    let (Some((path, _)), SlotRef::Child(child)) = (updates.first(), slot) else { return };
    if child.counts.resident == child.counts.leaves {
        return;
    }
    match &child.link {
        Link::Stub => ranges.push(Range::below(path, 4 * depth)),
        Link::Node(node) => want_below(node, updates, depth, ranges),
        Link::Run(run) => {
            let passes = |update: &Update| first_nibble(&update.0, &run.path) >= run.depth;
            let start = updates.iter().position(passes).unwrap_or(updates.len());
            let end = updates.iter().rposition(passes).map_or(start, |last| last + 1);
            want_below(&run.node, &updates[start..end], run.depth, ranges);
        }
    }
}

fn want_below(node: &Node, updates: &[Update], depth: usize, ranges: &mut Vec<Range>) {
    let quarters = updates.chunk_by(|a, b| quarter_of(&a.0, depth) == quarter_of(&b.0, depth));
    for updates in quarters {
        let quarter = quarter_of(&updates[0].0, depth);
        if node.is_hidden(quarter) {
            ranges.push(quarter_range(&updates[0].0, depth, quarter));
            continue;
        }
        for group in updates.chunk_by(|a, b| nibble(&a.0, depth) == nibble(&b.0, depth)) {
            want(node.slot(nibble(&group[0].0, depth)), group, depth + 1, ranges);
        }
    }
}
