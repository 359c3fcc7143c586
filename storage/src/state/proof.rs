//! Range proofs from a [`Tree`]: the siblings beside the way from the root to each end of a range.

use slipstream_types::{
    CodecError, Path,
    bounded::BoundedVec,
    limits,
    tree::{Sibling, SiblingNode, StateRangeProof},
};

use super::tree::{Node, Tree, first_difference};

impl Tree {
    /// Proves what the tree holds from `first` to `last`, both included.
    pub(crate) fn prove(&self, first: &Path, last: &Path) -> Result<StateRangeProof, CodecError> {
        Ok(StateRangeProof { left: self.siblings(first, true)?, right: self.siblings(last, false)? })
    }

    /// The siblings on the way to `end` that stand before it (where its bit is 1) or after it (where its bit is 0), by
    /// ascending depth.
    fn siblings(
        &self,
        end: &Path,
        before: bool,
    ) -> Result<BoundedVec<Sibling, { limits::PROOF_SIDE_MAX }>, CodecError> {
        let mut siblings = Vec::new();
        let mut beside = |depth: usize, node: &Node| {
            if end.bit(depth) == before {
                let node = match node.clone().at(depth + 1) {
                    Node::Leaf(node) => SiblingNode::Leaf(node.leaf),
                    node => SiblingNode::Inner(node.subtree().hash()),
                };
                siblings.push(Sibling { depth: depth as u8, node });
            }
        };
        let mut way = self.root.as_ref();
        while let Some(node) = way {
            way = match node {
                Node::Leaf(leaf) => {
                    let parting = first_difference(&leaf.leaf.path, end);
                    if parting < 256 {
                        beside(parting, node);
                    }
                    None
                }
                Node::Branch(branch) => {
                    let parting = first_difference(&branch.path, end);
                    if parting < branch.bit {
                        beside(parting, node);
                        None
                    } else if end.bit(branch.bit) {
                        beside(branch.bit, &branch.left);
                        Some(&branch.right)
                    } else {
                        beside(branch.bit, &branch.right);
                        Some(&branch.left)
                    }
                }
            };
        }
        BoundedVec::new(siblings)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slipstream_types::{Digest, tree::Leaf};

    use super::*;
    use crate::state::tree::tests::path;

    fn leaf(path: Path) -> Leaf {
        Leaf { path, value_hash: Digest::tagged("test", &path.0) }
    }

    proptest! {
        #[test]
        fn ranges_verify_and_altered_ones_do_not(
            paths in prop::collection::btree_set(path(), 0..60),
            mut first in path(),
            mut last in path(),
            extra in path(),
        ) {
            if first > last {
                std::mem::swap(&mut first, &mut last);
            }
            let leaves: Vec<_> = paths.iter().copied().map(leaf).collect();
            let tree = Tree::build(&leaves);
            let proof = tree.prove(&first, &last).unwrap();
            let inside: Vec<_> = leaves.iter().copied().filter(|l| first <= l.path && l.path <= last).collect();
            prop_assert_eq!(proof.verify(tree.root(), first, last, &inside), Ok(()));

            for index in 0..inside.len() {
                let mut short = inside.clone();
                short.remove(index);
                prop_assert!(proof.verify(tree.root(), first, last, &short).is_err());
                let mut altered = inside.clone();
                altered[index].value_hash = Digest::ZERO;
                prop_assert!(proof.verify(tree.root(), first, last, &altered).is_err());
            }
            if first <= extra && extra <= last && !paths.contains(&extra) {
                let mut surplus = inside.clone();
                surplus.insert(surplus.partition_point(|l| l.path < extra), leaf(extra));
                prop_assert!(proof.verify(tree.root(), first, last, &surplus).is_err());
            }
            let whole = tree.prove(&Path::MIN, &Path::MAX).unwrap();
            prop_assert!(whole.left.is_empty() && whole.right.is_empty());
            prop_assert_eq!(whole.verify(tree.root(), Path::MIN, Path::MAX, &leaves), Ok(()));
        }
    }
}
