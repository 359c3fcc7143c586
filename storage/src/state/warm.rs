//! Prefetches the memory that a batch will touch, for many keys at a time.
//!
//! If keys are looked up one after another, each descent waits for memory at every node, because a node holds the
//! address of the next. The keys of a batch are independent, so their descents run side by side. A processor that loads
//! [`LANES`] of them at once waits once for all. Nothing is computed here; what is read is in the cache when the batch
//! is applied. (Measured on one thread at 1M keys: 14.3 ms instead of 18.1 for a batch of 10k.)

use std::hint::black_box;

use super::{
    Update,
    nibbles::nibble,
    node::Node,
    slot::{Link, Slot, SlotRef},
};

/// Descents side by side: about the number of loads that a core can have in flight.
const LANES: usize = 16;

type Descent<'a> = Option<(&'a Node, usize)>;

/// Touches every node on the ways of `updates`, from a slot at `depth` on.
pub(super) fn warm(slot: &Slot, updates: &[Update], depth: usize) {
    let Slot::Child(child) = slot else { return };
    let Some(start) = next(&child.link, depth) else { return };
    for updates in updates.chunks(LANES) {
        let mut ways: [Descent<'_>; LANES] = [None; LANES];
        ways[..updates.len()].fill(Some(start));
        while ways.iter().any(Option::is_some) {
            // Each loop's loads depend only on the loop before it, and no branch waits for them.
            let headers = ways.iter().flatten().fold(0, |sum, (node, _)| sum ^ node.touched);
            black_box(headers);
            let slots = ways.iter().zip(updates).fold(0, |sum, (way, (path, _))| match way {
                Some((node, depth)) => sum ^ node.peek(nibble(path, *depth)),
                None => sum,
            });
            black_box(slots);
            for (way, (path, _)) in ways.iter_mut().zip(updates) {
                *way = way.and_then(|(node, depth)| match node.slot(nibble(path, depth)) {
                    SlotRef::Child(child) => next(&child.link, depth + 1),
                    _ => None,
                });
            }
        }
    }
}

/// Returns the node behind a link at `depth`, and the node's own depth.
fn next(link: &Link, depth: usize) -> Descent<'_> {
    match link {
        Link::Node(node) => Some((node, depth)),
        Link::Run(run) => Some((&run.node, run.depth)),
        Link::Stub => None,
    }
}
