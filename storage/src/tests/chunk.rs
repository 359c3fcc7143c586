//! Chunks of a real snapshot, altered in every way that a lying peer might try.

use std::sync::OnceLock;

use proptest::prelude::*;
use slipstream_types::{
    Path,
    tree::{Sibling, SiblingNode},
};

use super::*;
use crate::StateChunk;

type Rows = Vec<(StateKey, StateValue)>;

/// A state's root and its rows by path.
struct Truth {
    root: Digest,
    rows: BTreeMap<Path, (StateKey, StateValue)>,
    chunks: Vec<StateChunk>,
}

/// Chunks of a few hundred bytes over some hundred rows.
fn truth() -> &'static Truth {
    static TRUTH: OnceLock<Truth> = OnceLock::new();
    TRUTH.get_or_init(|| {
        let config = StorageConfig { snapshot_interval_batches: 40, ..config() };
        let fixture = Fixture::initialized(&config, false);
        let mut ledger = Ledger::new();
        ledger.commit_up_to(fixture.store(), 40);
        let snapshot = fixture.store().snapshot(BatchNumber::new(40)).unwrap().unwrap();
        let mut chunks = Vec::new();
        let mut next = Some(Path::MIN);
        while let Some(first) = next {
            let chunk = snapshot.chunk(first, 700).unwrap();
            chunk.verify(snapshot.info().state_root).unwrap();
            next = chunk.last.successor();
            chunks.push(chunk);
        }
        assert!(chunks.len() > 5);
        let rows = ledger.state.iter().map(|(key, value)| (key.path(), (*key, *value))).collect();
        Truth { root: snapshot.info().state_root, rows, chunks }
    })
}

/// One alteration. Numbers choose a row, a sibling or another chunk, modulo their count.
#[derive(Clone, Debug)]
enum Lie {
    DropRow(usize),
    RepeatRow(usize),
    SwapRows(usize, usize),
    AlterRow(usize),
    EarlyEnd(usize),
    NoRows,
    RowsOf(usize),
    ProofOf(usize),
    RootOfNothing,
    FirstOf(usize),
    LastOf(usize),
    FirstAfterRow(usize),
    LastBeforeRow(usize),
    DropSibling(bool, usize),
    RepeatSibling(bool, usize),
    SwapSiblings(bool, usize, usize),
    MoveSibling(bool, usize),
    AlterSibling(bool, usize),
    DeepenSibling(bool, usize, u8),
    SwapSides,
}

fn lie() -> impl Strategy<Value = Lie> {
    use Lie::*;
    let n = any::<usize>;
    let side = any::<bool>;
    prop_oneof![
        n().prop_map(DropRow),
        n().prop_map(RepeatRow),
        (n(), n()).prop_map(|(a, b)| SwapRows(a, b)),
        n().prop_map(AlterRow),
        n().prop_map(EarlyEnd),
        Just(NoRows),
        n().prop_map(RowsOf),
        n().prop_map(ProofOf),
        Just(RootOfNothing),
        n().prop_map(FirstOf),
        n().prop_map(LastOf),
        n().prop_map(FirstAfterRow),
        n().prop_map(LastBeforeRow),
        (side(), n()).prop_map(|(s, a)| DropSibling(s, a)),
        (side(), n()).prop_map(|(s, a)| RepeatSibling(s, a)),
        (side(), n(), n()).prop_map(|(s, a, b)| SwapSiblings(s, a, b)),
        (side(), n()).prop_map(|(s, a)| MoveSibling(s, a)),
        (side(), n()).prop_map(|(s, a)| AlterSibling(s, a)),
        (side(), n(), any::<u8>()).prop_map(|(s, a, d)| DeepenSibling(s, a, d)),
        Just(SwapSides),
    ]
}

fn alter(value: &mut StateValue) {
    match value {
        StateValue::Account(account) => account.nonce = account.nonce.wrapping_add(1).max(1),
        StateValue::Slot(value) => *value = value.wrapping_add(U256::from(1)).max(U256::from(1)),
    }
}

fn alter_sibling(sibling: &mut Sibling) {
    match &mut sibling.node {
        SiblingNode::Leaf(leaf) => leaf.value_hash.0[7] ^= 1,
        SiblingNode::Inner(hash) => hash.0[7] ^= 1,
    }
}

fn tell(lie: &Lie, chunk: &mut StateChunk, chunks: &[StateChunk]) {
    let mut rows: Rows = chunk.rows.to_vec();
    let mut sides = [chunk.proof.left.to_vec(), chunk.proof.right.to_vec()];
    let at = |index: usize, len: usize| index % len.max(1);
    let other = |index: usize| &chunks[index % chunks.len()];
    match *lie {
        Lie::DropRow(i) if !rows.is_empty() => drop(rows.remove(at(i, rows.len()))),
        Lie::RepeatRow(i) if !rows.is_empty() => {
            let i = at(i, rows.len());
            rows.insert(i, rows[i]);
        }
        Lie::SwapRows(i, j) if !rows.is_empty() => {
            let len = rows.len();
            rows.swap(at(i, len), at(j, len));
        }
        Lie::AlterRow(i) if !rows.is_empty() => {
            let i = at(i, rows.len());
            alter(&mut rows[i].1);
        }
        Lie::EarlyEnd(i) => rows.truncate(at(i, rows.len())),
        Lie::NoRows => rows.clear(),
        Lie::RowsOf(i) => rows = other(i).rows.to_vec(),
        Lie::ProofOf(i) => sides = [other(i).proof.left.to_vec(), other(i).proof.right.to_vec()],
        Lie::RootOfNothing => sides = [Vec::new(), Vec::new()],
        Lie::FirstOf(i) => chunk.first = other(i).first,
        Lie::LastOf(i) => chunk.last = other(i).last,
        Lie::FirstAfterRow(i) if !rows.is_empty() => {
            let path = rows[at(i, rows.len())].0.path();
            rows.retain(|(key, _)| key.path() > path);
            chunk.first = path.successor().unwrap();
        }
        Lie::LastBeforeRow(i) if !rows.is_empty() => chunk.last = rows[at(i, rows.len())].0.path(),
        Lie::DropSibling(s, i) if !sides[usize::from(s)].is_empty() => {
            let side = &mut sides[usize::from(s)];
            side.remove(at(i, side.len()));
        }
        Lie::RepeatSibling(s, i) if !sides[usize::from(s)].is_empty() => {
            let side = &mut sides[usize::from(s)];
            let i = at(i, side.len());
            side.insert(i, side[i].clone());
        }
        Lie::SwapSiblings(s, i, j) if !sides[usize::from(s)].is_empty() => {
            let side = &mut sides[usize::from(s)];
            let len = side.len();
            side.swap(at(i, len), at(j, len));
        }
        Lie::MoveSibling(s, i) if !sides[usize::from(s)].is_empty() => {
            let len = sides[usize::from(s)].len();
            let sibling = sides[usize::from(s)].remove(at(i, len));
            let to = &mut sides[usize::from(!s)];
            to.insert(to.partition_point(|known| known.depth < sibling.depth), sibling);
        }
        Lie::AlterSibling(s, i) if !sides[usize::from(s)].is_empty() => {
            let side = &mut sides[usize::from(s)];
            let i = at(i, side.len());
            alter_sibling(&mut side[i]);
        }
        Lie::DeepenSibling(s, i, by) if !sides[usize::from(s)].is_empty() => {
            let side = &mut sides[usize::from(s)];
            let i = at(i, side.len());
            side[i].depth = side[i].depth.wrapping_add(by);
        }
        Lie::SwapSides => sides.swap(0, 1),
        _ => {}
    }
    chunk.rows = BoundedVec::new(rows).unwrap();
    let [left, right] = sides;
    chunk.proof.left = BoundedVec::new(left).unwrap();
    chunk.proof.right = BoundedVec::new(right).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]
    /// A chunk that verifies is true, and one whose rows or proof were altered does not verify at all.
    #[test]
    fn no_lie_verifies(index in any::<prop::sample::Index>(), lies in prop::collection::vec(lie(), 1..3)) {
        let truth = truth();
        let honest = &truth.chunks[index.index(truth.chunks.len())];
        let mut chunk = honest.clone();
        for lie in &lies {
            tell(lie, &mut chunk, &truth.chunks);
        }
        let verdict = chunk.verify(truth.root);
        let all: Rows = if chunk.first <= chunk.last {
            truth.rows.range(chunk.first..=chunk.last).map(|(_, row)| *row).collect()
        } else {
            Vec::new()
        };
        if verdict.is_ok() {
            prop_assert_eq!(&chunk.rows[..], &all[..], "{:?}", lies);
        }
        let same_range = (chunk.first, chunk.last) == (honest.first, honest.last);
        if same_range && chunk != *honest {
            prop_assert!(verdict.is_err(), "{:?} verified", lies);
        }
    }
}

#[test]
fn every_single_lie_about_every_chunk_is_refused() {
    let truth = truth();
    for (index, honest) in truth.chunks.iter().enumerate() {
        let next = index + 1;
        let mut lies =
            vec![Lie::NoRows, Lie::RootOfNothing, Lie::SwapSides, Lie::RowsOf(next), Lie::ProofOf(next)];
        lies.extend([Lie::FirstOf(next), Lie::LastOf(next)]);
        for row in 0..honest.rows.len() {
            lies.extend([Lie::DropRow(row), Lie::RepeatRow(row), Lie::AlterRow(row), Lie::EarlyEnd(row)]);
            lies.push(Lie::SwapRows(row, row + 1));
        }
        for side in [false, true] {
            for sibling in 0..[&honest.proof.left, &honest.proof.right][usize::from(side)].len() {
                lies.extend([Lie::DropSibling(side, sibling), Lie::RepeatSibling(side, sibling)]);
                lies.extend([Lie::MoveSibling(side, sibling), Lie::AlterSibling(side, sibling)]);
                lies.push(Lie::DeepenSibling(side, sibling, 1));
                lies.push(Lie::SwapSiblings(side, sibling, sibling + 1));
            }
        }
        for lie in lies {
            let mut chunk = honest.clone();
            tell(&lie, &mut chunk, &truth.chunks);
            if chunk != *honest {
                assert!(chunk.verify(truth.root).is_err(), "{lie:?} about chunk {index} verified");
            }
        }
    }
}
