//! [`Tree`]: a persistent Merkle tree with the roots that `slipstream_types::tree` defines.
//!
//! A node stands where leaves part, so a run of bits that all leaves below share costs no nodes; the hashes of the run are
//! folded into the node's own (`lift`). Nodes are immutable and shared between versions.
//!
//! ```text
//!          from = 0                     bits 0 and 1 are shared by all leaves: one node, whose hash is lifted
//!             │  (bits shared)          from bit 2 up to bit 0
//!          bit = 2
//!          ╱     ╲      children have from = 3
//!       Leaf    Branch
//! ```

use std::sync::Arc;

use slipstream_types::{
    Digest, Path,
    tree::{Leaf, Subtree},
};

/// What becomes of one leaf: its value hash, none to delete it.
pub(crate) type Update = (Path, Option<Digest>);

/// Below this many updates or leaves one thread is faster than two.
const PARALLEL_MIN: usize = 512;

/// One version of the tree. A clone shares all nodes.
#[derive(Clone, Default)]
pub(crate) struct Tree {
    pub(super) root: Option<Node>,
}

#[derive(Clone)]
pub(super) enum Node {
    Leaf(Arc<LeafNode>),
    Branch(Arc<Branch>),
}

pub(super) struct LeafNode {
    pub(super) leaf: Leaf,
    hash: Digest,
}

/// Two leaves or more, that agree in the bits before `bit` and part there.
pub(super) struct Branch {
    /// Some path below it; its bits before `bit` are the branch's prefix.
    pub(super) path: Path,
    /// The bit below its parent's.
    from: usize,
    pub(super) bit: usize,
    pub(super) left: Node,
    pub(super) right: Node,
    /// Of the subtree at depth `from`.
    hash: Digest,
}

impl Node {
    fn leaf(leaf: Leaf) -> Node {
        Node::Leaf(Arc::new(LeafNode { leaf, hash: leaf.hash() }))
    }

    fn branch(from: usize, bit: usize, left: Node, right: Node) -> Node {
        let path = *left.path();
        let joined = Subtree::parent(left.subtree(), right.subtree());
        let hash = lift(joined, &path, bit, from).hash();
        Node::Branch(Arc::new(Branch { path, from, bit, left, right, hash }))
    }

    /// A path below it.
    fn path(&self) -> &Path {
        match self {
            Node::Leaf(node) => &node.leaf.path,
            Node::Branch(node) => &node.path,
        }
    }

    /// What its parent joins.
    pub(super) fn subtree(&self) -> Subtree {
        match self {
            Node::Leaf(node) => Subtree::Leaf(node.hash),
            Node::Branch(node) => Subtree::Inner(node.hash),
        }
    }

    /// The same leaves, standing at another depth.
    pub(super) fn at(self, from: usize) -> Node {
        match self {
            Node::Branch(node) if node.from != from => {
                Node::branch(from, node.bit, node.left.clone(), node.right.clone())
            }
            node => node,
        }
    }
}

/// The subtree at depth `to` of which the one at depth `depth` is all there is.
fn lift(mut subtree: Subtree, path: &Path, depth: usize, to: usize) -> Subtree {
    for bit in (to..depth).rev() {
        subtree = match path.bit(bit) {
            false => Subtree::parent(subtree, Subtree::Empty),
            true => Subtree::parent(Subtree::Empty, subtree),
        };
    }
    subtree
}

/// The first bit in which two paths differ, 256 if they are equal.
pub(super) fn first_difference(a: &Path, b: &Path) -> usize {
    match a.0.iter().zip(&b.0).position(|(a, b)| a != b) {
        Some(byte) => 8 * byte + (a.0[byte] ^ b.0[byte]).leading_zeros() as usize,
        None => 256,
    }
}

impl Tree {
    /// The tree of leaves sorted by path, each path once.
    pub(crate) fn build(leaves: &[Leaf]) -> Tree {
        Tree { root: build(leaves, 0) }
    }

    /// Its root, as `slipstream_types::tree::root` defines it.
    pub(crate) fn root(&self) -> Digest {
        self.root.as_ref().map_or(Digest::ZERO, |root| root.subtree().hash())
    }

    /// The tree after updates that are sorted by path, each path once. This one stays as it is.
    pub(crate) fn apply(&self, updates: &[Update]) -> Tree {
        debug_assert!(updates.is_sorted_by(|a, b| a.0 < b.0), "updates are sorted, each path once");
        Tree { root: apply(self.root.as_ref(), updates, 0) }
    }
}

fn either<T: Send>(
    parallel: bool,
    left: impl FnOnce() -> T + Send,
    right: impl FnOnce() -> T + Send,
) -> (T, T) {
    if parallel { rayon::join(left, right) } else { (left(), right()) }
}

/// The subtree at depth `from` of these leaves.
fn build(leaves: &[Leaf], from: usize) -> Option<Node> {
    match leaves {
        [] => None,
        [leaf] => Some(Node::leaf(*leaf)),
        [first, .., last] => {
            let bit = first_difference(&first.path, &last.path);
            let (left, right) = leaves.split_at(leaves.partition_point(|leaf| !leaf.path.bit(bit)));
            let parallel = leaves.len() >= PARALLEL_MIN;
            let (left, right) = either(parallel, || build(left, bit + 1), || build(right, bit + 1));
            join(left, right, bit, from)
        }
    }
}

/// Two subtrees that part at `bit`, as one subtree at depth `from`.
fn join(left: Option<Node>, right: Option<Node>, bit: usize, from: usize) -> Option<Node> {
    match (left, right) {
        (Some(left), Some(right)) => Some(Node::branch(from, bit, left, right)),
        (Some(lone), None) | (None, Some(lone)) => Some(lone.at(from)),
        (None, None) => None,
    }
}

/// The subtree at depth `from` after updates that all fall into it.
fn apply(node: Option<&Node>, updates: &[Update], from: usize) -> Option<Node> {
    let ([first, ..], [.., last]) = (updates, updates) else {
        return node.cloned().map(|node| node.at(from));
    };
    match node {
        None => build(&inserted(updates), from),
        Some(Node::Leaf(node)) => build(&merged(node.leaf, updates), from),
        Some(whole @ Node::Branch(node)) => {
            // Updates are sorted: whichever leaves the branch's prefix first is at one of their ends.
            let leaves = [&first.0, &last.0].map(|path| first_difference(path, &node.path));
            let bit = leaves[0].min(leaves[1]).min(node.bit);
            let (left_updates, right_updates) =
                updates.split_at(updates.partition_point(|(path, _)| !path.bit(bit)));
            let (left, right) = if bit == node.bit {
                (Some(&node.left), Some(&node.right))
            } else if node.path.bit(bit) {
                (None, Some(whole))
            } else {
                (Some(whole), None)
            };
            let parallel = updates.len() >= PARALLEL_MIN;
            let (left, right) = either(
                parallel,
                || apply(left, left_updates, bit + 1),
                || apply(right, right_updates, bit + 1),
            );
            join(left, right, bit, from)
        }
    }
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

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use slipstream_types::tree;

    use super::*;

    /// Paths that share prefixes of many lengths, as the slots of one account do.
    pub(crate) fn path() -> impl Strategy<Value = Path> {
        (0..3u8, 0..3u8, 0..4usize, any::<u8>(), 8..32usize).prop_map(
            |(first, second, at, value, position)| {
                let mut path = [0; 32];
                path[0] = first * 0x55;
                path[at] ^= second;
                path[position] = value;
                Path(path)
            },
        )
    }

    fn leaves(model: &BTreeMap<Path, Digest>) -> Vec<Leaf> {
        model.iter().map(|(path, value_hash)| Leaf { path: *path, value_hash: *value_hash }).collect()
    }

    proptest! {
        #[test]
        fn every_version_has_the_defined_root(
            batches in prop::collection::vec(prop::collection::btree_map(path(), any::<Option<u8>>(), 0..40), 1..12)
        ) {
            let mut model = BTreeMap::new();
            let mut tree = Tree::default();
            let mut versions = vec![(tree.clone(), tree::root(&[]))];
            for batch in batches {
                let updates: Vec<Update> =
                    batch.into_iter().map(|(path, value)| (path, value.map(|value| Digest([value; 32])))).collect();
                for (path, value) in &updates {
                    match value {
                        Some(value) => model.insert(*path, *value),
                        None => model.remove(path),
                    };
                }
                tree = tree.apply(&updates);
                prop_assert_eq!(tree.root(), tree::root(&leaves(&model)));
                prop_assert_eq!(Tree::build(&leaves(&model)).root(), tree.root());
                versions.push((tree.clone(), tree.root()));
            }
            for (version, root) in versions {
                prop_assert_eq!(version.root(), root);
            }
            let deletions: Vec<Update> = model.keys().map(|path| (*path, None)).collect();
            prop_assert_eq!(tree.apply(&deletions).root(), Digest::ZERO);
        }
    }

    #[test]
    fn large_batches_run_in_parallel_to_the_same_root() {
        let leaf = |i: u32| {
            let digest = Digest::tagged("test", &i.to_le_bytes());
            (Path(digest.0), Some(digest))
        };
        let mut all: Vec<Update> = (0..5_000).map(leaf).collect();
        let (first, second) = all.split_at_mut(3_000);
        first.sort_unstable();
        second.sort_unstable();
        let tree = Tree::default().apply(first).apply(second);
        all.sort_unstable();
        assert_eq!(tree.root(), tree::root(&inserted(&all)));
    }
}
