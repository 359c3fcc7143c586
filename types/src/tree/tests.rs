//! Compares leaves, joins and folds with the definition.

use proptest::{collection::vec, prelude::*};

use super::*;

/// The definition, word by word.
fn defined(leaves: &[Leaf], depth: usize) -> Subtree {
    match leaves {
        [] => Subtree::Empty,
        [leaf] => Subtree::Leaf(leaf.hash()),
        _ => {
            let half = leaves.partition_point(|leaf| !leaf.path.bit(depth));
            Subtree::parent(defined(&leaves[..half], depth + 1), defined(&leaves[half..], depth + 1))
        }
    }
}

/// Sorted leaves that agree in their first `depth` bits, and many of them in more, like keys ground by an attacker.
fn leaves() -> impl Strategy<Value = (Vec<Leaf>, usize)> {
    let path = (any::<[u8; 32]>(), 0usize..=256);
    (any::<[u8; 32]>(), 0usize..=255, vec((path, any::<u8>()), 0..60)).prop_map(|(common, depth, leaves)| {
        let leaf = |((random, agrees), seed): (([u8; 32], usize), u8)| {
            let mut path = common;
            for bit in agrees.max(depth)..256 {
                let mask = 0x80 >> (bit % 8);
                path[bit / 8] = path[bit / 8] & !mask | random[bit / 8] & mask;
            }
            Leaf { path: Path(path), value_hash: Digest([seed; 32]) }
        };
        let mut leaves: Vec<Leaf> = leaves.into_iter().map(leaf).collect();
        leaves.sort_unstable_by_key(|leaf| leaf.path);
        leaves.dedup_by_key(|leaf| leaf.path);
        (leaves, depth)
    })
}

fn random_leaves(max: usize) -> impl Strategy<Value = Vec<Leaf>> {
    vec(any::<[u8; 32]>(), 0..max).prop_map(|mut paths| {
        paths.sort_unstable();
        paths.dedup();
        let leaf = |path: [u8; 32]| Leaf { path: Path(path), value_hash: Digest(path.map(|byte| !byte)) };
        paths.into_iter().map(leaf).collect()
    })
}

fn any_subtree() -> impl Strategy<Value = Subtree> {
    let digest = || any::<[u8; 32]>().prop_map(Digest);
    prop_oneof![Just(Subtree::Empty), digest().prop_map(Subtree::Leaf), digest().prop_map(Subtree::Inner)]
}

fn halved(neighbours: &[Subtree]) -> Subtree {
    match neighbours {
        [alone] => *alone,
        _ => {
            let (left, right) = neighbours.split_at(neighbours.len() / 2);
            Subtree::parent(halved(left), halved(right))
        }
    }
}

proptest! {
    #[test]
    fn leaves_of_many_rows_are_each_alone(rows in vec((any::<[u8; 32]>(), vec(any::<u8>(), 80..120)), 0..20)) {
        let mut leaves = Leaves::default();
        rows.iter().for_each(|(path, row)| leaves.push(Path(*path), row));
        prop_assert_eq!((leaves.len(), leaves.is_empty()), (rows.len(), rows.is_empty()));
        let leaf = |(path, row): &([u8; 32], Vec<u8>)| {
            Leaf { path: Path(*path), value_hash: crate::StateValue::row_hash(row) }
        };
        prop_assert_eq!(leaves.finish(), rows.iter().map(leaf).collect::<Vec<_>>());
    }

    #[test]
    fn leaves_with_deep_prefixes_give_the_defined_subtree((leaves, depth) in leaves()) {
        prop_assert_eq!(subtree(&leaves, depth), defined(&leaves, depth));
    }

    #[test]
    fn random_leaves_give_the_defined_root(leaves in random_leaves(700)) {
        prop_assert_eq!(subtree(&leaves, 0), defined(&leaves, 0));
        let hashes: Vec<Digest> = leaves.iter().map(Leaf::hash).collect();
        prop_assert_eq!(Leaf::hashes(&leaves), hashes);
    }

    #[test]
    fn two_parents_are_each_alone_and_neighbours_fold_by_halves(siblings in any_siblings(), exponent in 0u32..5) {
        let [first, second, ..] = siblings;
        let alone = [first, second].map(|(left, right)| Subtree::parent(left, right));
        prop_assert_eq!(Subtree::parents([(&first.0, &first.1), (&second.0, &second.1)]), alone);
        let mut neighbours: Vec<Subtree> =
            siblings.into_iter().flat_map(|(left, right)| [left, right]).take(1 << exponent).collect();
        let expected = halved(&neighbours);
        prop_assert_eq!(Subtree::fold(&mut neighbours), expected);
    }
}

fn any_siblings() -> impl Strategy<Value = [(Subtree, Subtree); 8]> {
    proptest::array::uniform8((any_subtree(), any_subtree()))
}

/// Sorted, each path once.
fn ascending(count: u8) -> Vec<Leaf> {
    (0..count).map(|byte| Leaf { path: Path([byte; 32]), value_hash: Digest::ZERO }).collect()
}

#[test]
#[should_panic(expected = "leaves ascend")]
fn a_path_that_is_there_twice_is_refused() {
    let mut leaves = ascending(40);
    leaves[20] = leaves[19];
    subtree(&leaves, 0);
}

#[test]
#[should_panic(expected = "leaves ascend")]
fn leaves_that_part_above_are_refused() {
    subtree(&ascending(200), 1);
}
