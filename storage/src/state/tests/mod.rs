//! Compares the tree with its definition, for leaves that share prefixes of all lengths, with and without a budget.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::RwLock;
use proptest::prelude::*;
use slipstream_types::{
    Digest, Path,
    tree::{self, Leaf, Subtree},
};

use super::{frontier::FrontierPart, range::Range, *};

mod hollow;

type Model = BTreeMap<Path, Digest>;

/// Paths that share prefixes of many lengths, like the slots of one account, or keys that were ground into one place.
fn path() -> impl Strategy<Value = Path> {
    (0..3u8, 0..3u8, 0..4usize, any::<u8>(), 8..32usize).prop_map(|(first, second, at, value, position)| {
        let mut path = [0; 32];
        path[0] = first * 0x55;
        path[at] ^= second;
        path[position] = value;
        Path(path)
    })
}

fn scattered(i: u32) -> Path {
    Path(Digest::tagged("test path", &i.to_le_bytes()).0)
}

fn value(i: u32) -> Digest {
    Digest::tagged("test value", &i.to_le_bytes())
}

fn leaves(model: &Model) -> Vec<Leaf> {
    model.iter().map(|(path, value_hash)| Leaf { path: *path, value_hash: *value_hash }).collect()
}

fn change(model: &mut Model, updates: &[Update]) {
    for (path, value) in updates {
        match value {
            Some(value) => model.insert(*path, *value),
            None => model.remove(path),
        };
    }
}

fn sorted(updates: impl IntoIterator<Item = Update>) -> Vec<Update> {
    updates.into_iter().collect::<BTreeMap<_, _>>().into_iter().collect()
}

/// The rows of one version.
#[derive(Default)]
struct ModelRows(RwLock<Model>);

impl RowSource for ModelRows {
    fn leaves(&self, first: &Path, last: &Path) -> Result<Vec<Leaf>, StorageError> {
        let inside = |(path, value_hash): (&Path, &Digest)| Leaf { path: *path, value_hash: *value_hash };
        Ok(self.0.read().range(*first..=*last).map(inside).collect())
    }
}

fn rows(model: &Model) -> Arc<ModelRows> {
    Arc::new(ModelRows(RwLock::new(model.clone())))
}

proptest! {
    #[test]
    fn every_version_has_the_defined_root(
        batches in prop::collection::vec(prop::collection::btree_map(path(), any::<Option<u8>>(), 0..40), 1..12),
        keep in any::<u16>(),
        resident_max in prop::option::of(0..20u64),
    ) {
        let mut model = Model::new();
        let mut tree = Tree::default();
        let mut versions = Vec::new();
        for (index, batch) in batches.into_iter().enumerate() {
            let updates: Vec<Update> =
                batch.into_iter().map(|(path, value)| (path, value.map(|value| Digest([value; 32])))).collect();
            // A kept version makes the next one copy what it changes; otherwise it changes in place.
            if keep >> index & 1 == 1 {
                versions.push((tree.clone(), model.clone()));
            }
            change(&mut model, &updates);
            tree = tree.apply(&updates).unwrap().read_from(rows(&model));
            if let Some(max) = resident_max {
                tree.shrink(max);
            }
            prop_assert_eq!(tree.root(), tree::root(&leaves(&model)));
            prop_assert_eq!(Tree::build(&leaves(&model)).root(), tree.root());
        }
        for (version, model) in versions {
            prop_assert_eq!(version.root(), tree::root(&leaves(&model)));
            for path in model.keys() {
                check_proof(&version, &model, path, path);
            }
        }
        let deletions: Vec<Update> = model.keys().map(|path| (*path, None)).collect();
        prop_assert_eq!(tree.apply(&deletions).unwrap().root(), Digest::ZERO);
    }

    #[test]
    fn subtrees_are_those_of_the_definition(
        paths in prop::collection::btree_set(path(), 0..60),
        at in path(),
        bits in prop::sample::select((0..=256usize).collect::<Vec<_>>()),
        stubs in any::<bool>(),
    ) {
        let model: Model = paths.into_iter().map(|path| (path, Digest::tagged("test", &path.0))).collect();
        let mut tree = Tree::build(&leaves(&model)).read_from(rows(&model));
        if stubs {
            tree.shrink(0);
        }
        let below: Vec<Leaf> =
            leaves(&model).into_iter().filter(|leaf| (0..bits).all(|bit| leaf.path.bit(bit) == at.bit(bit))).collect();
        let expected = if bits == 256 { below.first().map_or(Subtree::Empty, |leaf| Subtree::Leaf(leaf.hash())) }
            else { tree::subtree(&below, bits) };
        prop_assert_eq!(tree.subtree(&at, bits).unwrap(), expected);
    }

    #[test]
    fn parts_join_to_the_whole_in_any_order_with_and_without_nodes(
        paths in prop::collection::btree_set(path(), 1..80),
        cuts in prop::collection::btree_set(path(), 0..8),
        order in any::<u64>(),
        sketched in any::<u8>(),
    ) {
        let model: Model = paths.into_iter().map(|path| (path, Digest::tagged("test", &path.0))).collect();
        let mut firsts: Vec<Path> = cuts.into_iter().collect();
        firsts.retain(|first| *first != Path::MIN);
        firsts.insert(0, Path::MIN);
        let mut spans: Vec<(Path, Path)> = Vec::new();
        for (index, first) in firsts.iter().enumerate() {
            let inside = |last: &Path| leaves(&model).into_iter().map(|leaf| leaf.path).rfind(|path| path < last);
            let last = match firsts.get(index + 1) {
                // The last leaf's path before the next part.
                Some(next) => inside(next).filter(|path| path >= first).unwrap_or(*first),
                None => Path::MAX,
            };
            spans.push((*first, last));
        }
        let mut tree = Tree::default();
        let mut random = order;
        for index in 0..firsts.len() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (first, last) = spans.swap_remove((random >> 33) as usize % spans.len());
            let part: Vec<Leaf> = model
                .range(first..=last)
                .map(|(path, value_hash)| Leaf { path: *path, value_hash: *value_hash })
                .collect();
            let part = match sketched >> index & 1 == 1 {
                true => Tree::sketch(&part, &first, &last),
                false => Tree::build(&part),
            };
            tree.join(part).unwrap();
        }
        prop_assert_eq!(tree.root(), tree::root(&leaves(&model)));
        prop_assert!(tree.resident() <= model.len() as u64);
        let tree = tree.read_from(rows(&model));
        let deletions: Vec<Update> = model.keys().map(|path| (*path, None)).collect();
        prop_assert_eq!(tree.apply(&deletions).unwrap().root(), Digest::ZERO);
    }

    /// Goal: after batches that the tree did not see, reading again what they touched gives the tree of the rows.
    #[test]
    fn what_was_touched_is_read_again(
        before in prop::collection::btree_map(path(), any::<u8>(), 0..80),
        batches in prop::collection::vec(prop::collection::btree_map(path(), any::<Option<u8>>(), 0..30), 1..4),
        dropped in prop::option::of(0..60u64),
    ) {
        let mut model: Model = before.into_iter().map(|(path, value)| (path, Digest([value; 32]))).collect();
        let mut tree = Tree::build(&leaves(&model)).read_from(rows(&model));
        if let Some(resident_max) = dropped {
            tree.shrink(resident_max);
        }
        let mut touched = std::collections::BTreeSet::new();
        for batch in batches {
            let updates: Vec<Update> =
                batch.into_iter().map(|(path, value)| (path, value.map(|value| Digest([value; 32])))).collect();
            change(&mut model, &updates);
            // Only the first nibbles of a path are known.
            touched.extend(updates.iter().map(|(path, _)| Range::below(path, 4 * REREAD_NIBBLES).first));
        }
        let touched: Vec<Path> = touched.into_iter().collect();
        let tree = tree.read_from(rows(&model)).reread(&touched).unwrap();
        prop_assert_eq!(tree.root(), tree::root(&leaves(&model)));
        prop_assert_eq!(tree.leaves(), model.len() as u64);
        let deletions: Vec<Update> = model.keys().map(|path| (*path, None)).collect();
        prop_assert_eq!(tree.apply(&deletions).unwrap().root(), Digest::ZERO);
    }

    /// Goal: the upper part of any tree comes back as a tree of the same content, whichever part of it is in memory.
    /// Cut or altered bytes do not.
    #[test]
    fn a_frontier_comes_back_as_the_same_tree(
        paths in prop::collection::btree_set(path(), 0..80),
        scatter in 0..3_000u32,
        dropped in prop::option::of(0..600u64),
        cut in any::<prop::sample::Index>(),
    ) {
        let scattered = (0..scatter).map(scattered);
        let model: Model = paths.into_iter().chain(scattered).map(|path| (path, Digest::tagged("test", &path.0))).collect();
        let mut tree = Tree::build(&leaves(&model)).read_from(rows(&model));
        if let Some(resident_max) = dropped {
            tree.shrink(resident_max);
        }
        let mut bytes = Vec::new();
        tree.frontier().encode(|part| { bytes.push(part); Ok::<_, ()>(()) }).unwrap();
        let (top, parts) = bytes.split_first().unwrap();
        let parts = || FrontierPart::decode(parts).unwrap();
        let again = Tree::of_frontier(top, parts()).unwrap().read_from(rows(&model));
        prop_assert_eq!(again.root(), tree.root());
        prop_assert_eq!(again.leaves(), model.len() as u64);
        for path in model.keys().step_by(7) {
            prop_assert_eq!(again.prove(path, path).unwrap(), tree.prove(path, path).unwrap());
        }
        let deletions: Vec<Update> = model.keys().map(|path| (*path, None)).collect();
        prop_assert_eq!(again.apply(&deletions).unwrap().root(), Digest::ZERO);

        let at = cut.index(top.len());
        prop_assert!(Tree::of_frontier(&top[..at], parts()).is_none());
        let mut fewer = parts();
        if fewer.pop().is_some() {
            prop_assert!(Tree::of_frontier(top, fewer).is_none());
        }
    }

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
        let model: Model = paths.iter().map(|path| (*path, Digest::tagged("test", &path.0))).collect();
        let tree = Tree::build(&leaves(&model));
        let inside = check_proof(&tree, &model, &first, &last);
        let proof = tree.prove(&first, &last).unwrap();
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
            let leaf = Leaf { path: extra, value_hash: Digest::tagged("test", &extra.0) };
            surplus.insert(surplus.partition_point(|l| l.path < extra), leaf);
            prop_assert!(proof.verify(tree.root(), first, last, &surplus).is_err());
        }
        let whole = tree.prove(&Path::MIN, &Path::MAX).unwrap();
        prop_assert!(whole.left.is_empty() && whole.right.is_empty());
    }
}

/// Returns the leaves that the range holds.
fn check_proof(tree: &Tree, model: &Model, first: &Path, last: &Path) -> Vec<Leaf> {
    let inside = rows(model).leaves(first, last).unwrap();
    let proof = tree.prove(first, last).unwrap();
    assert_eq!(proof.verify(tree.root(), *first, *last, &inside), Ok(()));
    for of_range in [Tree::build(&inside), Tree::sketch(&inside, first, last)] {
        let subtree = |prefix: &Path, bits| of_range.subtree(prefix, bits).unwrap();
        assert_eq!(proof.verify_subtrees(tree.root(), *first, *last, subtree), Ok(()));
    }
    inside
}

/// Batches that are large enough to fork, on a tree whose nodes keep the hashes of their quarters.
#[test]
fn large_batches_run_in_parallel_to_the_same_root() {
    let mut model = Model::new();
    let mut tree = Tree::default();
    for round in 0..6u32 {
        let old = tree.clone();
        let old_root = old.root();
        let updates = sorted((0..4_000).map(|i| {
            let key = i * 7 % 9_000 + round * 500;
            (scattered(key), (i % 5 != 0).then(|| value(i + round)))
        }));
        change(&mut model, &updates);
        tree = tree.apply(&updates).unwrap();
        assert_eq!(tree.root(), tree::root(&leaves(&model)));
        assert_eq!(old.root(), old_root);
    }
    assert_eq!(tree.resident(), model.len() as u64);
}

/// Keys ground into one prefix of 31 bytes, among others, deepen only their own way, and cost no nodes on it.
#[test]
fn ground_keys_deepen_one_path_only() {
    let mut model: Model = (0..3_000).map(|i| (scattered(i), value(i))).collect();
    let mut ground = scattered(77);
    for last in 0..=255 {
        ground.0[31] = last;
        model.insert(ground, value(last.into()));
    }
    let mut tree = Tree::build(&leaves(&model));
    assert_eq!(tree.root(), tree::root(&leaves(&model)));
    check_proof(&tree, &model, &scattered(76).min(ground), &scattered(76).max(ground));
    ground.0[20] ^= 1;
    let parting = [(ground, Some(value(1)))];
    change(&mut model, &parting);
    tree = tree.apply(&parting).unwrap();
    assert_eq!(tree.root(), tree::root(&leaves(&model)));
    let deletions: Vec<Update> =
        model.keys().filter(|path| path.0[..16] == ground.0[..16]).map(|path| (*path, None)).collect();
    assert_eq!(deletions.len(), 257);
    change(&mut model, &deletions);
    assert_eq!(tree.apply(&deletions).unwrap().root(), tree::root(&leaves(&model)));
}

/// A budget of a fiftieth of the tree keeps roots and proofs the same, bounds memory, and leaves old versions on
/// their own rows.
#[test]
fn a_small_budget_changes_no_root_and_no_proof() {
    let (keys, resident_max) = (20_000, 400);
    let mut model: Model = (0..keys).map(|i| (scattered(i), value(i))).collect();
    let mut tree = Tree::build(&leaves(&model)).read_from(rows(&model));
    tree.shrink(resident_max);
    assert!(tree.resident() <= resident_max, "{} leaves are left", tree.resident());
    let (old, old_model) = (tree.clone(), model.clone());
    for round in 0..8 {
        let updates = sorted((0..50).map(|i| {
            let key = (i * 397 + round * 31) % (keys + 500);
            (scattered(key), (i % 7 != 0).then(|| value(i + round)))
        }));
        change(&mut model, &updates);
        tree = tree.apply(&updates).unwrap().read_from(rows(&model));
        tree.shrink(resident_max);
        assert!(tree.resident() <= resident_max, "{} leaves are left", tree.resident());
        assert_eq!(tree.root(), tree::root(&leaves(&model)));
        let (a, b) = (scattered(round), scattered(round + 100));
        check_proof(&tree, &model, &a.min(b), &a.max(b));
        check_proof(&old, &old_model, &a.min(b), &a.max(b));
    }
}

/// The tree notices rows of another version, and never hashes them into a root.
#[test]
fn a_stub_refuses_rows_of_another_version() {
    let mut model: Model = (0..2_000).map(|i| (scattered(i), value(i))).collect();
    let mut tree = Tree::build(&leaves(&model)).read_from(rows(&model));
    tree.shrink(0);
    model.insert(scattered(5), value(0));
    let other = tree.clone().read_from(rows(&model));
    let update = [(scattered(5), Some(value(9)))];
    assert!(matches!(other.clone().apply(&update), Err(StorageError::Corrupt { .. })));
    assert!(other.prove(&scattered(5), &scattered(5)).is_err());
    tree.apply(&update).unwrap();
}

#[test]
fn a_key_costs_about_125_bytes() {
    assert_eq!(std::mem::size_of::<node::Node>() + 16, 64, "one cache line with its counters");
    assert_eq!(std::mem::size_of::<Leaf>(), 64);
    assert!(std::mem::size_of::<slot::Child>() <= 56);
}
