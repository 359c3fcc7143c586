//! [`Pass`]: applies a sorted batch of updates to a tree, in one recursion that touches and hashes each node once.

use std::sync::Arc;

use rayon::prelude::*;
use slipstream_types::{Path, tree::Leaf};

use super::{
    REREAD_NIBBLES, RowSource, Update,
    fetch::{FetchedRows, wanted},
    hidden_parts::HiddenParts,
    hollow::{quarter_of, quarter_range},
    nibbles::{first_nibble, nibble},
    node::{ARITY, Node, assemble},
    range::Range,
    slot::{Child, Counts, Link, Run, Slot},
    tree::{PARALLEL_MIN, build, resolve},
    warm::warm,
};
use crate::error::StorageError;

/// A hidden part that is touched again within this number of batches is shown, whatever the memory: it is in use.
const WARM_BATCHES: u32 = 8;
/// Updates whose rows are read at once. They keep many reads in flight, and their leaves are small beside the tree
/// (100 leaves of 64 bytes each make 26 MiB).
const FETCH_UPDATES_MAX: usize = 4_096;

/// The context that a batch carries down the tree.
pub(super) struct Pass<'a> {
    pub(super) rows: &'a dyn RowSource,
    pub(super) generation: u32,
    /// Whether `rows` already holds what the batch needs.
    pub(super) is_fetched: bool,
    /// The kind of change that the updates bring.
    pub(super) change: Change,
    /// Receives changed parts that stay hidden: see [`Tree::is_short`](super::Tree::is_short).
    pub(super) hidden: Option<&'a HiddenParts>,
}

/// The kinds of changes that updates bring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// Sets the values of the updates.
    Update,
    /// Reads the touched part again from the rows, without regard to its old content. A touched path stands for all paths with
    /// its first [`super::REREAD_NIBBLES`]; the values of the updates do not matter.
    Reread,
}

impl Pass<'_> {
    /// As [`Pass::apply`]. If the batch is small enough here to read all its rows at once, reads them first. If it is
    /// small enough for one thread, prefetches the memory that it will touch.
    pub(super) fn enter(&self, slot: Slot, updates: &[Update], depth: usize) -> Result<Slot, StorageError> {
        if !self.is_fetched && updates.len() <= FETCH_UPDATES_MAX {
            let wanted = wanted(&slot, updates, depth);
            if wanted.len() > 1 {
                let fetched = FetchedRows::read(self.rows, &wanted)?;
                return Pass { rows: &fetched, is_fetched: true, ..*self }.enter(slot, updates, depth);
            }
        }
        if updates.len() < PARALLEL_MIN {
            warm(&slot, updates, depth);
        }
        self.apply(slot, updates, depth)
    }

    /// The slot at `depth` after updates that all fall into it.
    pub(super) fn apply(&self, slot: Slot, updates: &[Update], depth: usize) -> Result<Slot, StorageError> {
        let Some((path, _)) = updates.first() else { return Ok(slot) };
        match (slot, self.change) {
            (Slot::Child(Child { counts, link: Link::Node(node), .. }), _) if self.goes_to(depth) => {
                self.apply_node(node, counts, updates, depth)
            }
            (Slot::Child(Child { counts, link: Link::Run(run), .. }), _) if self.goes_to(depth) => {
                self.apply_run(run, counts, updates, depth)
            }
            (_, Change::Reread) => self.reread(path, depth),
            (Slot::Empty, Change::Update) => Ok(build(&inserted(updates), depth, self.generation)),
            (Slot::Leaf(leaf), Change::Update) => match *updates {
                [(path, Some(value_hash))] if path == leaf.path => Ok(Slot::Leaf(Leaf { path, value_hash })),
                _ => Ok(build(&merged(leaf, updates), depth, self.generation)),
            },
            (Slot::Child(stub), Change::Update) => {
                let slot = resolve(&stub, path, depth, self.rows, self.generation)?;
                self.apply(slot, updates, depth)
            }
        }
    }

    /// Whether the updates distinguish paths at `depth`.
    fn goes_to(&self, depth: usize) -> bool {
        self.change == Change::Update || depth < REREAD_NIBBLES
    }

    /// Builds the slot at `depth` on the way to `path` from the rows.
    fn reread(&self, path: &Path, depth: usize) -> Result<Slot, StorageError> {
        let leaves = Range::below(path, 4 * depth.min(REREAD_NIBBLES)).leaves(self.rows)?;
        Ok(build(&leaves, depth, self.generation))
    }

    /// Applies `updates` to a node whose leaf counts are `counts`.
    fn apply_node(
        &self,
        mut node: Arc<Node>,
        mut counts: Counts,
        updates: &[Update],
        depth: usize,
    ) -> Result<Slot, StorageError> {
        let inner = Arc::make_mut(&mut node);
        let is_cold = self.generation.wrapping_sub(inner.touched) > WARM_BATCHES;
        inner.touched = self.generation;
        let mut changed = 0;
        let (mut added, mut reshaped) = (Counts::default(), Vec::new());
        if inner.is_hollow() {
            for (quarter, updates) in touched_quarters(inner, updates, depth) {
                let path = &updates[0].0;
                match (self.change, self.hidden.filter(|_| is_cold)) {
                    (Change::Update, Some(hidden)) => {
                        match inner.fold_hidden(quarter, updates, depth, self.rows)? {
                            Some((range, leaves)) => hidden.add(range, leaves),
                            None => continue,
                        }
                    }
                    (Change::Update, None) => {
                        inner.show(quarter, path, depth, self.rows)?;
                        continue;
                    }
                    (Change::Reread, _) => {
                        let leaves = quarter_range(path, depth, quarter).leaves(self.rows)?;
                        reshaped.extend(inner.replace_hidden(quarter, &leaves, depth));
                    }
                }
                changed |= 0xf << (4 * quarter);
            }
            counts = inner.counts();
            added = reshaped.iter().fold(added, |sum, (_, slot)| sum + slot.counts());
        }
        // Quarters that are already handled as a whole.
        let done = changed;
        let groups = || groups(updates, depth).filter(move |(slot, _)| done >> slot & 1 == 0);
        let mut take = |inner: &mut Node, slot: usize| {
            let old = inner.take(slot);
            counts = counts - old.counts();
            old
        };
        let mut put = |inner: &mut Node, slot: usize, new: Slot| {
            changed |= 1 << slot;
            added = added + new.counts();
            reshaped.extend(inner.put(slot, new).map(|new| (slot, new)));
        };
        if updates.len() >= PARALLEL_MIN {
            let taken: Vec<_> = groups().map(|(slot, group)| (slot, take(inner, slot), group)).collect();
            let done = taken
                .into_par_iter()
                .map(|(slot, old, group)| Ok((slot, self.enter(old, group, depth + 1)?)))
                .collect::<Result<Vec<_>, StorageError>>()?;
            done.into_iter().for_each(|(slot, new)| put(inner, slot, new));
        } else {
            for (slot, group) in groups() {
                let new = self.apply(take(inner, slot), group, depth + 1)?;
                put(inner, slot, new);
            }
        }
        if reshaped.is_empty() {
            inner.rehash(changed);
            let hash = inner.hash();
            return Ok(Slot::Child(Child { hash, counts: counts + added, link: Link::Node(node) }));
        }
        Ok(inner.reshaped(reshaped, changed, &updates[0].0, depth))
    }

    fn apply_run(
        &self,
        run: Arc<Run>,
        counts: Counts,
        updates: &[Update],
        depth: usize,
    ) -> Result<Slot, StorageError> {
        // Updates are sorted, so the update that leaves the run first is at one of their ends.
        let leaves_at = |update: Option<&Update>| update.map_or(run.depth, |u| first_nibble(&u.0, &run.path));
        let parting = leaves_at(updates.first()).min(leaves_at(updates.last()));
        if !self.goes_to(parting.min(run.depth)) {
            // The updates do not distinguish anything below.
            return self.reread(&run.path, depth);
        }
        if parting >= run.depth {
            let Run { path, depth: below, node } = Arc::unwrap_or_clone(run);
            return Ok(self.apply_node(node, counts, updates, below)?.lift(&path, below, depth));
        }
        let path = run.path;
        let mut slots = <[Slot; ARITY]>::default();
        slots[nibble(&path, parting)] = Slot::Child(Run::at(run, counts, parting + 1));
        for (slot, group) in groups(updates, parting) {
            slots[slot] = self.apply(std::mem::take(&mut slots[slot]), group, parting + 1)?;
        }
        Ok(assemble(slots, &path, parting, self.generation).lift(&path, parting, depth))
    }
}

/// The hidden quarters of a node at `depth` that updates touch, with their updates.
fn touched_quarters<'a>(node: &Node, updates: &'a [Update], depth: usize) -> Vec<(usize, &'a [Update])> {
    let touched = updates.chunk_by(|a, b| quarter_of(&a.0, depth) == quarter_of(&b.0, depth));
    let touched = touched.map(|updates| (quarter_of(&updates[0].0, depth), updates));
    touched.filter(|(quarter, _)| node.is_hidden(*quarter)).collect()
}

/// Groups the updates by their nibble at `depth`.
fn groups(updates: &[Update], depth: usize) -> impl Iterator<Item = (usize, &[Update])> {
    updates
        .chunk_by(move |a, b| nibble(&a.0, depth) == nibble(&b.0, depth))
        .map(move |group| (nibble(&group[0].0, depth), group))
}

fn inserted(updates: &[Update]) -> Vec<Leaf> {
    let leaf = |(path, value_hash): &Update| value_hash.map(|value_hash| Leaf { path: *path, value_hash });
    updates.iter().filter_map(leaf).collect()
}

/// The leaves of a subtree that held one leaf, after the updates.
fn merged(leaf: Leaf, updates: &[Update]) -> Vec<Leaf> {
    let mut leaves = inserted(updates);
    if updates.binary_search_by_key(&leaf.path, |(path, _)| *path).is_err() {
        leaves.insert(leaves.partition_point(|other| other.path < leaf.path), leaf);
    }
    leaves
}
