//! A range of the state that verifies against a known tree holds exactly that tree's rows.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::{Deserialize, Serialize};
use slipstream_types::{
    Digest, Path,
    bounded::BoundedVec,
    tree::{self, Leaf, Sibling, SiblingNode, StateRangeProof, Subtree},
};

use crate::claim::claim;
pub(super) use crate::claim::seeds;

#[derive(Serialize, Deserialize)]
struct Claim {
    first: Path,
    last: Path,
    leaves: Vec<Leaf>,
    proof: StateRangeProof,
}

/// Leaves in clusters with long common prefixes, like the slots of accounts.
static LEAVES: LazyLock<Vec<Leaf>> = LazyLock::new(|| {
    let leaf = |i: u8| {
        let mut path = [0; 32];
        path[0] = i / 8 * 0x25;
        path[usize::from(i % 4) * 9] ^= i;
        path[31] = i;
        Leaf { path: Path(path), value_hash: Digest::tagged("fuzz", &[i]) }
    };
    let mut leaves: Vec<Leaf> = (0..48).map(leaf).collect();
    leaves.sort_unstable_by_key(|leaf| leaf.path);
    leaves.dedup_by_key(|leaf| leaf.path);
    leaves
});

/// Computed once: the target runs many thousand times a second.
static ROOT: LazyLock<Digest> = LazyLock::new(|| tree::root(&LEAVES));

/// Returns the siblings beside the path to `end`, by the definition: for each bit, all leaves that diverge from it
/// there.
fn siblings(end: &Path, before: bool) -> Vec<Sibling> {
    let mut beside: BTreeMap<usize, Vec<Leaf>> = BTreeMap::new();
    for leaf in LEAVES.iter() {
        let parting = (0..256).find(|bit| leaf.path.bit(*bit) != end.bit(*bit));
        if let Some(depth) = parting.filter(|depth| end.bit(*depth) == before) {
            beside.entry(depth).or_default().push(*leaf);
        }
    }
    let sibling = |(depth, leaves): (usize, Vec<Leaf>)| {
        let node = match tree::subtree(&leaves, depth + 1) {
            Subtree::Inner(hash) => SiblingNode::Inner(hash),
            _ => SiblingNode::Leaf(leaves[0]),
        };
        Sibling { depth: depth as u8, node }
    };
    beside.into_iter().map(sibling).collect()
}

fn inside(first: Path, last: Path) -> Vec<Leaf> {
    LEAVES.iter().copied().filter(|leaf| first <= leaf.path && leaf.path <= last).collect()
}

fn honest(a: u8, b: u8) -> Claim {
    let at = |i: u8| LEAVES[usize::from(i) % LEAVES.len()].path;
    let (first, last) = (at(a).min(at(b)), at(a).max(at(b)));
    let side = |end, before| BoundedVec::new(siblings(end, before)).expect("at most one sibling a bit");
    let proof = StateRangeProof { left: side(&first, true), right: side(&last, false) };
    Claim { first, last, leaves: inside(first, last), proof }
}

pub(crate) fn run(bytes: &[u8]) {
    let root = *ROOT;
    if let [1, a, b] = bytes {
        let Claim { first, last, leaves, proof } = honest(*a, *b);
        assert_eq!(proof.verify(root, first, last, &leaves), Ok(()), "an honest proof is refused");
    }
    let Some(Claim { first, last, leaves, proof }) = claim(bytes, honest) else { return };
    if proof.verify(root, first, last, &leaves).is_ok() {
        assert_eq!(leaves, inside(first, last), "a lie verifies");
    }
}
