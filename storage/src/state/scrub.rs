//! Comparing a tree with the rows that it stands for, part by part, without keeping what was read.

use slipstream_types::{
    Digest, Path,
    tree::{self, Subtree},
};

use super::{
    Tree,
    hollow::quarter_range,
    node::{Link, Node, SlotRef, with_nibble},
    tree::Range,
};
use crate::error::StorageError;

/// How far a comparison came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Compared {
    /// Where the next one begins; none at the end.
    pub(crate) next: Option<Path>,
    /// Rows that were read.
    pub(crate) rows: u64,
}

/// A part that is not in memory: where its rows are, how many bits they share, and their hash.
struct Hidden {
    range: Range,
    bits: usize,
    hash: Digest,
}

impl Tree {
    /// Compares the first parts from a path on that are not in memory with their rows, so many of them. What is in memory was compared
    /// when it came there.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] names the rows that are not those of the tree.
    pub(crate) fn compare(&self, from: &Path, parts: usize) -> Result<Compared, StorageError> {
        let mut hidden = Vec::with_capacity(parts);
        Walk { from, parts, hidden: &mut hidden }.slot(self.root.as_ref(), &Path::MIN, 0);
        let ranges: Vec<(Path, Path)> =
            hidden.iter().map(|Hidden { range, .. }| (range.first, range.last)).collect();
        let mut rows = 0;
        for (Hidden { range, bits, hash }, leaves) in hidden.iter().zip(self.rows.many(&ranges)?) {
            rows += leaves.len() as u64;
            if tree::subtree(&leaves, *bits) != Subtree::Inner(*hash) {
                return Err(range.refuse());
            }
        }
        let last = hidden.last().filter(|_| hidden.len() == parts);
        Ok(Compared { next: last.and_then(|last| last.range.last.successor()), rows })
    }
}

struct Walk<'a> {
    from: &'a Path,
    parts: usize,
    hidden: &'a mut Vec<Hidden>,
}

impl Walk<'_> {
    /// The hidden parts of a slot at `depth`, to which the first nibbles of `path` lead.
    fn slot(&mut self, slot: SlotRef<'_>, path: &Path, depth: usize) {
        let SlotRef::Child(child) = slot else { return };
        let range = Range::below(path, 4 * depth);
        if range.last < *self.from || self.hidden.len() == self.parts {
            return;
        }
        match &child.link {
            Link::Stub => self.hidden.push(Hidden { range, bits: 4 * depth, hash: child.hash }),
            Link::Node(node) => self.node(node, path, depth),
            Link::Run(run) => self.node(&run.node, &run.path, run.depth),
        }
    }

    fn node(&mut self, node: &Node, path: &Path, depth: usize) {
        for quarter in 0..4 {
            let Some(quarters) = node.quarters.as_ref().filter(|_| node.is_hidden(quarter)) else {
                for slot in 4 * quarter..4 * (quarter + 1) {
                    self.slot(node.slot(slot), &with_nibble(path, depth, slot), depth + 1);
                }
                continue;
            };
            let range = quarter_range(path, depth, quarter);
            if range.last >= *self.from && self.hidden.len() < self.parts {
                self.hidden.push(Hidden { range, bits: 4 * depth + 2, hash: quarters.hashes[quarter] });
            }
        }
    }
}
