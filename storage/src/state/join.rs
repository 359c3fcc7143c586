//! Joins trees that have different leaves: a restore's chunks, in any order, or parts of a column read in parallel.
//!
//! Only the nodes on the way to where both trees meet are rebuilt, so a join costs the same however many leaves they
//! have.

use std::sync::Arc;

use slipstream_types::Path;

use super::{
    NoRows, Tree,
    nibbles::{first_nibble, nibble, with_nibble},
    node::{ARITY, Node, assemble},
    pass::{Change, Pass},
    slot::{Child, Link, Run, Slot},
};
use crate::error::StorageError;

impl Tree {
    /// Takes over the leaves of another tree. No leaf of one tree may lie between two of the other.
    ///
    /// # Errors
    /// If the trees overlap where one of them has only a hash: see [`Tree::sketch`].
    pub(crate) fn join(&mut self, other: Tree) -> Result<(), StorageError> {
        self.root = join(std::mem::take(&mut self.root), other.root, &Path::MIN, 0)?;
        Ok(())
    }
}

/// Joins two slots at `depth`; their leaves share the nibbles of `path` before it.
fn join(a: Slot, b: Slot, path: &Path, depth: usize) -> Result<Slot, StorageError> {
    match (a, b) {
        (Slot::Empty, slot) | (slot, Slot::Empty) => Ok(slot),
        (Slot::Leaf(leaf), slot) | (slot, Slot::Leaf(leaf)) => {
            let pass =
                Pass { rows: &NoRows, generation: 0, is_fetched: true, change: Change::Update, hidden: None };
            pass.apply(slot, &[(leaf.path, Some(leaf.value_hash))], depth)
        }
        (Slot::Child(a), Slot::Child(b)) => join_children(a, b, path, depth),
    }
}

fn join_children(a: Child, b: Child, path: &Path, depth: usize) -> Result<Slot, StorageError> {
    // The path and the nibble up to which the leaves of a child share it.
    let shared = |child: &Child| match &child.link {
        Link::Run(run) => (run.path, run.depth),
        Link::Node(_) | Link::Stub => (*path, depth),
    };
    let ((a_path, a_depth), (b_path, b_depth)) = (shared(&a), shared(&b));
    let parting = first_nibble(&a_path, &b_path).min(a_depth).min(b_depth);
    let path = if a_depth > b_depth { a_path } else { b_path };
    let (mut slots, others) = (slots_at(a, parting)?, slots_at(b, parting)?);
    for (i, other) in others.into_iter().enumerate() {
        let below = with_nibble(&path, parting, i);
        slots[i] = join(std::mem::take(&mut slots[i]), other, &below, parting + 1)?;
    }
    Ok(assemble(slots, &path, parting, 0).lift(&path, parting, depth))
}

/// The slots of a child at a depth at or above its node.
fn slots_at(child: Child, depth: usize) -> Result<[Slot; ARITY], StorageError> {
    let node_slots = |node: Node| match node.is_hollow() {
        false => Ok(node.into_slots()),
        true => Err(overlap()),
    };
    match child.link {
        Link::Node(node) => node_slots(Arc::unwrap_or_clone(node)),
        Link::Run(run) if run.depth == depth => node_slots(Arc::unwrap_or_clone(run).into_node()),
        Link::Run(run) => {
            let mut slots = <[Slot; ARITY]>::default();
            let slot = nibble(&run.path, depth);
            slots[slot] = Slot::Child(Run::at(run, child.counts, depth + 1));
            Ok(slots)
        }
        Link::Stub => Err(overlap()),
    }
}

fn overlap() -> StorageError {
    StorageError::corrupt("two parts of the state tree overlap")
}
