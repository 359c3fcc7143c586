//! Trees whose lowest nodes know some of their quarters by hash alone.

use super::*;

/// Returns the tree of a model, short of memory. No batch has touched it for a while.
fn short_of_memory(model: &Model) -> Tree {
    let mut tree = Tree::build(&leaves(model)).read_from(rows(model));
    tree.shrink(0);
    let mut hollow = Tree::build(&leaves(model)).read_from(rows(model));
    hollow.shrink(tree.resident() * 3);
    assert!(hollow.resident() > tree.resident(), "some quarters are known by their hashes");
    hollow.is_short = true;
    hollow.generation = 1_000;
    hollow
}

/// A tree whose lowest nodes know quarters by hash alone: every way to query and to change it, down to nothing.
#[test]
fn hollow_nodes_answer_and_change_as_full_ones() {
    // About 80 leaves below each node of two nibbles. Some quarters lose all of theirs, or all but one.
    let mut model: Model = (0..20_000).map(|i| (scattered(i), value(i))).collect();
    model.retain(|path, _| path.0[0] > 9 || path.0[1] >> 6 != 1 || path.0[2] == 7);
    let full = Tree::build(&leaves(&model));
    let mut tree = full.clone().read_from(rows(&model));
    tree.shrink(0);
    let mut hollow = full.clone().read_from(rows(&model));
    hollow.shrink(1_000);
    assert!(
        hollow.resident() < 1_000 && hollow.resident() > tree.resident(),
        "{} in place of leaves",
        hollow.resident()
    );
    let sketch = Tree::sketch(&leaves(&model), &Path::MIN, &Path::MAX).read_from(rows(&model));
    for tree in [tree, hollow, sketch] {
        for i in 0..600 {
            let path = scattered(i * 31);
            for bits in [0, 5, 8, 9, 10, 11, 12, 13, 16, 200, 256] {
                assert_eq!(
                    tree.subtree(&path, bits).unwrap(),
                    full.subtree(&path, bits).unwrap(),
                    "{bits} bits"
                );
                assert_eq!(tree.shape(&path, bits).unwrap(), full.shape(&path, bits).unwrap(), "{bits} bits");
            }
            assert_eq!(tree.prove(&path, &path).unwrap(), full.prove(&path, &path).unwrap());
        }
        let (mut model, mut tree) = (model.clone(), tree);
        while !model.is_empty() {
            let updates =
                sorted(model.keys().enumerate().filter(|(i, _)| i % 3 != 1).map(|(_, path)| (*path, None)));
            let updates =
                if model.len() < 4 { model.keys().map(|path| (*path, None)).collect() } else { updates };
            change(&mut model, &updates);
            tree = tree.apply(&updates).unwrap().read_from(rows(&model));
            tree.shrink(if model.len() % 2 == 0 { 900 } else { 0 });
            assert_eq!(tree.root(), tree::root(&leaves(&model)));
            assert_eq!(tree.leaves(), model.len() as u64);
        }
    }
}

/// Goal: parts touched for the first time in a while stay hidden, so that a tree short of memory does not grow. If
/// they are touched again soon, they come back. Rows of another version are refused here too.
#[test]
fn what_is_touched_once_stays_hidden() {
    let mut model: Model = (0..20_000).map(|i| (scattered(i), value(i))).collect();
    let tree = short_of_memory(&model);
    let before = tree.resident();
    let update = |value: u32| sorted((0..50).map(|i| (scattered(i * 400), Some(super::value(value)))));
    change(&mut model, &update(1));
    assert!(tree.clone().read_from(rows(&model)).apply(&update(2)).is_err(), "rows of another version");
    let tree = tree.apply(&update(1)).unwrap().read_from(rows(&model));
    assert_eq!((tree.root(), tree.resident()), (tree::root(&leaves(&model)), before));
    change(&mut model, &update(2));
    let tree = tree.apply(&update(2)).unwrap().read_from(rows(&model));
    assert_eq!(tree.root(), tree::root(&leaves(&model)));
    assert!(tree.resident() > before + 50, "what is in use is in memory");
}

/// Goal: batches computed ahead of the writes hold only what they must. Some leave layers; those further ahead show
/// what they touch. Rows that include a batch end its layer.
#[test]
fn layers_end_with_the_rows_that_have_them() {
    let mut model: Model = (0..20_000).map(|i| (scattered(i), value(i))).collect();
    let mut tree = short_of_memory(&model);
    let mut versions = Vec::new();
    for batch in 0..8 {
        let updates = sorted((0..50).map(|i| (scattered(i * 400 + batch), Some(value(batch)))));
        change(&mut model, &updates);
        tree = tree.apply(&updates).unwrap();
        tree.generation += 9;
        versions.push(model.clone());
        assert_eq!(tree.root(), tree::root(&leaves(&model)));
        assert!(tree.layers.len() <= hidden_parts::LAYERS_MAX);
    }
    assert_eq!(tree.layers.len(), hidden_parts::LAYERS_MAX);
    assert!(tree.bytes_beside(tree.resident(), 0) > 0, "what is in layers counts");
    // Each batch raised the generation by ten.
    let again = tree.clone().read_ahead_of(rows(&versions[1]), 60);
    assert_eq!(again.layers.len(), hidden_parts::LAYERS_MAX - 2);
    for tree in [again, tree.read_from(rows(&model))] {
        let updates = sorted((0..20_000).step_by(7).map(|i| (scattered(i), Some(value(i + 9)))));
        let mut model = model.clone();
        change(&mut model, &updates);
        assert_eq!(tree.apply(&updates).unwrap().root(), tree::root(&leaves(&model)));
    }
}

/// Goal: the frontier of a tree whose hidden parts grew can be read back.
#[test]
fn a_hidden_part_that_grows_stays_readable() {
    let mut model: Model = (0..20_000).map(|i| (scattered(i), value(i))).collect();
    let mut tree = short_of_memory(&model);
    // Many new keys in the part of one key.
    let place = scattered(7);
    let grown = sorted((0..600).map(|i| {
        let mut path = scattered(50_000 + i);
        path.0[..2].copy_from_slice(&place.0[..2]);
        (path, Some(value(i)))
    }));
    for part in grown.chunks(150) {
        change(&mut model, part);
        tree = tree.apply(part).unwrap().read_from(rows(&model));
        tree.generation += 100;
        assert_eq!(tree.root(), tree::root(&leaves(&model)));
        let mut bytes = Vec::new();
        tree.frontier()
            .encode(|part| {
                bytes.push(part);
                Ok::<_, ()>(())
            })
            .unwrap();
        let (top, parts) = bytes.split_first().unwrap();
        let again = Tree::of_frontier(top, FrontierPart::decode(parts).unwrap()).unwrap();
        assert_eq!((again.root(), again.leaves()), (tree.root(), model.len() as u64));
    }
}

proptest! {
    #![proptest_config(crate::tests::usually(128))]

    /// Goal: changing hidden parts without showing them gives the same root and leaves, whatever the batches. Keys
    /// come, go and change; parts end as one leaf or empty; batches are computed ahead of the writes, and undone.
    #[test]
    fn hidden_parts_change_as_shown_ones(
        batches in prop::collection::vec((any::<u64>(), 1..400u32, 0..4u32, 0..4u32), 1..7),
        gap in 0..20u32,
    ) {
        let mut model: Model = (0..6_000).map(|i| (scattered(i), value(i))).collect();
        let mut tree = short_of_memory(&model);
        for (seed, count, kind, end) in batches {
            let updates = sorted((0..count).map(|i| {
                let key = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(i) * 0x2545_f491) >> 16) as u32;
                // Some batches empty whole parts, others add keys beside existing ones.
                match kind {
                    0 => (scattered(key % 6_000), None),
                    1 => (scattered(6_000 + key % 6_000), Some(value(key))),
                    2 => (scattered(key % 9_000), (!key.is_multiple_of(3)).then(|| value(key))),
                    _ => (scattered(key % 6_000), Some(value(key))),
                }
            }));
            let emptied: Vec<Update> = match kind {
                0 => model.keys().filter(|path| path.0[0] == seed as u8).map(|path| (*path, None)).collect(),
                _ => Vec::new(),
            };
            let updates = sorted(updates.into_iter().chain(emptied));
            let before = model.clone();
            change(&mut model, &updates);
            tree = tree.apply(&updates).unwrap();
            prop_assert_eq!(tree.root(), tree::root(&leaves(&model)));
            prop_assert_eq!(tree.leaves(), model.len() as u64);
            let path = updates[0].0;
            prop_assert_eq!(tree.subtree(&path, 250).unwrap(), Tree::build(&leaves(&model)).subtree(&path, 250).unwrap());
            tree.generation += gap;
            match end {
                0 => tree = tree.read_from(rows(&model)),
                1 => {
                    let undo: Vec<Update> = updates.iter().map(|(path, _)| (*path, before.get(path).copied())).collect();
                    tree = tree.apply(&undo).unwrap();
                    model = before;
                    prop_assert_eq!(tree.root(), tree::root(&leaves(&model)));
                }
                _ => {}
            }
        }
        let deletions: Vec<Update> = model.keys().map(|path| (*path, None)).collect();
        prop_assert_eq!(tree.apply(&deletions).unwrap().root(), Digest::ZERO);
    }
}
