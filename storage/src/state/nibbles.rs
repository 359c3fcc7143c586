//! Nibbles of paths, which select a node's slots, and hashes of what lies below a run of nibbles.

use slipstream_types::{Digest, Path, tree::Subtree};

pub(super) fn nibble(path: &Path, depth: usize) -> usize {
    usize::from(path.0[depth / 2] >> (4 * (1 - depth % 2)) & 0xf)
}

/// The path with another nibble at `depth`.
pub(super) fn with_nibble(path: &Path, depth: usize, nibble: usize) -> Path {
    let mut path = *path;
    let shift = 4 * (1 - depth % 2);
    let byte = &mut path.0[depth / 2];
    *byte = *byte & !(0xf << shift) | (nibble as u8) << shift;
    path
}

/// Index of the first nibble in which two paths differ.
pub(super) fn first_nibble(a: &Path, b: &Path) -> usize {
    a.common_bits(b) / 4
}

/// Lifts the hash of a subtree of two leaves or more from bit `from` up to bit `to`; all leaves below `to` are in the
/// subtree.
pub(crate) fn lift_hash(hash: Digest, path: &Path, from: usize, to: usize) -> Digest {
    let lifted = (to..from).rev().fold(Subtree::Inner(hash), |subtree, bit| match path.bit(bit) {
        false => Subtree::parent(subtree, Subtree::Empty),
        true => Subtree::parent(Subtree::Empty, subtree),
    });
    lifted.hash()
}
