//! Goal: the cut depends on the rows alone and is the coarsest that fits. The other pieces prove each piece, as a peer would. Two
//! states differ in exactly the pieces that they do not share.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
};

use proptest::{collection::vec, prelude::*, sample::Index};
use slipstream_types::{
    AccountValue, Address, B256, Blob, BlobKind, Digest, Path, StateKey, StateValue, U256, codec, limits,
    tree::{Leaf, SiblingNode},
};

use super::{PIECE_BITS_MIN, PIECE_ROWS_BYTES_MAX, Piece, PieceInfo, PieceMap, cut::Cutter};
use crate::{
    StateChunk, VerifiedChunk, error::PieceError, place::PathPrefix, schema, snapshot::Snapshot, span::Span,
    state::Tree,
};

type Rows = BTreeMap<Path, (StateKey, StateValue)>;

fn leaf((path, (key, value)): (&Path, &(StateKey, StateValue))) -> Leaf {
    Leaf { path: *path, value_hash: value.hash(key) }
}

fn tree(rows: &Rows) -> Tree {
    Tree::build(&rows.iter().map(leaf).collect::<Vec<_>>())
}

/// Accounts, and contracts with slots, whose paths share the first 64 bits.
fn rows(rows: &[(u8, Option<u8>, u64)]) -> Rows {
    let row = |&(account, slot, value): &(u8, Option<u8>, u64)| {
        let address = Address::repeat_byte(account);
        let (key, value) = match slot {
            None => {
                let code_hash = value.is_multiple_of(3).then_some(Digest([account; 32]));
                let value = AccountValue { nonce: value + 1, balance: U256::from(9), code_hash };
                (StateKey::Account(address), StateValue::Account(value))
            }
            Some(slot) => {
                let value = StateValue::Slot(U256::from(value + 1));
                (StateKey::Slot(address, B256::repeat_byte(slot)), value)
            }
        };
        (key.path(), (key, value))
    };
    rows.iter().map(row).collect()
}

fn any_rows() -> impl Strategy<Value = Rows> {
    let row = (any::<u8>(), prop_oneof![Just(None), any::<u8>().prop_map(Some)], 0u64..4);
    let contract = (0u8..3, any::<u8>().prop_map(Some), 0u64..4);
    vec(prop_oneof![row, contract], 1..160).prop_map(|found| rows(&found))
}

/// Returns the pieces of all ranges, with at most `bytes_max` bytes of rows each.
fn cut(rows: &Rows, bytes_max: usize) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for range in Snapshot::piece_ranges() {
        let mut cutter = Cutter::new(range, bytes_max);
        let mut visit = |cut| {
            pieces.push(Piece::of_cut(cut));
            Ok(ControlFlow::Continue(()))
        };
        let Span { first, last } = range.span();
        for (path, (key, value)) in rows.range(first..=last) {
            assert!(cutter.push(*path, &schema::encode_row(key, value), &mut visit).unwrap().is_continue());
        }
        cutter.finish(&mut visit).unwrap();
    }
    pieces
}

fn infos(pieces: &[Piece]) -> Vec<PieceInfo> {
    pieces.iter().map(|piece| piece.info().clone()).collect()
}

fn bytes_within(rows: &Rows, place: &PathPrefix) -> usize {
    let Span { first, last } = place.span();
    bytes_of(rows, first, last)
}

fn bytes_of(rows: &Rows, first: Path, last: Path) -> usize {
    if first > last {
        return 0;
    }
    rows.range(first..=last).map(|(_, (key, value))| schema::encode_row(key, value).len()).sum()
}

proptest! {
    /// Cuts rows and checks the result against the definition.
    #[test]
    fn a_cut_is_the_coarsest_that_fits(rows in any_rows(), bytes_max in 100usize..2_000) {
        let pieces = cut(&rows, bytes_max);
        let mut found: Vec<Leaf> = Vec::new();
        for piece in &pieces {
            let PieceInfo { place, rows: count, bytes, .. } = piece.info();
            prop_assert_eq!(bytes_within(&rows, place), *bytes as usize);
            prop_assert!(*bytes as usize <= bytes_max);
            prop_assert!(piece.rows.leaves.iter().all(|leaf| place.contains(&leaf.path)));
            prop_assert_eq!(piece.rows.leaves.len(), *count as usize);
            if place.bits() > usize::from(PIECE_BITS_MIN) {
                let parent = PathPrefix::new(place.path(), place.bits() - 1);
                prop_assert!(bytes_within(&rows, &parent) > bytes_max, "{place:?} could be larger");
            }
            found.extend(&piece.rows.leaves);
            let opened = Piece::open(piece.info(), &piece.blob().unwrap()).unwrap();
            prop_assert_eq!(opened.info(), piece.info());
            let codes: Vec<Digest> = opened.code_hashes().collect();
            prop_assert_eq!(codes, piece.code_hashes().collect::<Vec<_>>());
        }
        prop_assert_eq!(found, rows.iter().map(leaf).collect::<Vec<_>>());
    }

    /// The pieces' proofs are those of a tree with all rows.
    #[test]
    fn pieces_prove_each_other(
        rows in any_rows(),
        bytes_max in 100usize..2_000,
        asked in vec((any::<[u8; 32]>(), any::<Index>(), any::<bool>(), 1usize..900), 1..8),
    ) {
        let (pieces, tree) = (cut(&rows, bytes_max), tree(&rows));
        let map = PieceMap::new(infos(&pieces), tree.root()).unwrap();
        let mut covered = Vec::new();
        for (index, piece) in pieces.iter().enumerate() {
            let chunk = map.chunk(index, &piece.blob().unwrap()).unwrap();
            covered.push((chunk.first(), chunk.last()));
            let proof = tree.prove(&chunk.first(), &chunk.last()).unwrap();
            prop_assert!(chunk.confirms(&proof));
            prop_assert_eq!(chunk.rows(), piece.rows.leaves.len());
        }
        prop_assert_eq!(covered[0].0, Path::MIN);
        prop_assert_eq!(covered.last().unwrap().1, Path::MAX);
        prop_assert!(covered.windows(2).all(|pair| pair[0].1.successor() == Some(pair[1].0)));

        for (path, index, at_row, bytes_max) in asked {
            // Begins at a row, or anywhere.
            let first = if at_row { *rows.keys().nth(index.index(rows.len())).unwrap() } else { Path(path) };
            let last = Path(path).max(first);
            let piece = &pieces[map.piece_of(&first)];
            let made = map.chunk_of(&[piece], Span { first, last }, bytes_max).unwrap();
            let chunk: StateChunk = codec::decode("chunk", &made.content, usize::MAX).unwrap();
            prop_assert_eq!(&chunk.proof, &tree.prove(&made.first, &made.last).unwrap());
            let expected: Vec<_> = rows.range(made.first..=made.last).map(|(_, row)| *row).collect();
            prop_assert_eq!(chunk.rows.to_vec(), expected);
            prop_assert_eq!((made.first, made.last <= last), (first, true));
            prop_assert!(made.rows <= 1 || made.row_bytes <= bytes_max);
            let ends = [piece, &pieces[map.piece_of(&last)]];
            let proof = map.range_proof(Span { first, last }, &ends).unwrap();
            prop_assert_eq!(proof, tree.prove(&first, &last).unwrap());
            VerifiedChunk::open(made.content, tree.root()).unwrap();

            // With all later pieces too: a chunk that ends before its span is full.
            let behind: Vec<&Piece> = pieces[map.piece_of(&first)..].iter().collect();
            prop_assert_eq!(behind[0].bytes_from(&first), bytes_of(&rows, first, behind[0].info.place.span().last));
            let made = map.chunk_of(&behind, Span { first, last }, bytes_max).unwrap();
            prop_assert_eq!((made.first, made.row_bytes), (first, bytes_of(&rows, first, made.last)));
            prop_assert!(made.rows <= 1 || made.row_bytes <= bytes_max);
            if let Some(next) = made.last.successor().filter(|next| *next <= last) {
                let (path, _) = rows.range(next..=last).next().expect("a chunk that ends early has rows behind it");
                prop_assert!(made.row_bytes + bytes_of(&rows, *path, *path) > bytes_max);
            }
            VerifiedChunk::open(made.content, tree.root()).unwrap();
        }
    }

    /// Two states share, by name, the pieces in which nothing differs.
    #[test]
    fn states_share_what_is_the_same(rows in any_rows(), changed in any_rows(), bytes_max in 100usize..2_000) {
        let mut later = rows.clone();
        later.extend(changed.iter().take(3).map(|(path, row)| (*path, *row)));
        let names = |rows: &Rows| {
            let pieces = infos(&cut(rows, bytes_max)).into_iter();
            pieces.map(|piece| (piece.place, piece.hash())).collect::<BTreeMap<_, _>>()
        };
        let (before, after) = (names(&rows), names(&later));
        let differs = |place: &PathPrefix| {
            let Span { first, last } = place.span();
            rows.range(first..=last).ne(later.range(first..=last))
        };
        for (place, hash) in &after {
            if let Some(known) = before.get(place) {
                prop_assert_eq!(known == hash, !differs(place));
            }
        }
        let lost = before.keys().filter(|place| !after.contains_key(place));
        for place in lost {
            // The piece was split or merged, which needs a change nearby.
            let parent = PathPrefix::new(place.path(), place.bits() - 1);
            prop_assert!(differs(&parent));
        }
    }

    /// Any alteration of a piece or its list is noticed.
    #[test]
    fn no_altered_piece_is_taken(rows in any_rows(), at in any::<Index>(), which in any::<Index>(), bit in 0..8) {
        let (pieces, root) = (cut(&rows, 700), tree(&rows).root());
        let map = PieceMap::new(infos(&pieces), root).unwrap();
        let index = which.index(pieces.len());
        let piece = &pieces[index];
        let mut content = piece.content.clone();
        let place = at.index(content.len());
        content[place] ^= 1u8 << bit;
        let blob = Blob::compress(BlobKind::Piece, &content).unwrap();
        prop_assert!(Piece::open(piece.info(), &blob).is_err());
        prop_assert!(map.chunk(index, &blob).is_err());
        let other = &pieces[(index + 1) % pieces.len()];
        if pieces.len() > 1 {
            prop_assert!(map.chunk(index, &other.blob().unwrap()).is_err());
            let mut short = infos(&pieces);
            short.remove(index);
            prop_assert!(PieceMap::new(short, root).is_err());
            let mut swapped = infos(&pieces);
            swapped.swap(index, (index + 1) % pieces.len());
            prop_assert!(PieceMap::new(swapped, root).is_err());
        }
        let mut altered = infos(&pieces);
        altered[index].node = match altered[index].node.clone() {
            SiblingNode::Leaf(leaf) => SiblingNode::Inner(leaf.hash()),
            SiblingNode::Inner(hash) => {
                let path = *altered[index].place.path();
                SiblingNode::Leaf(Leaf { path, value_hash: hash })
            }
        };
        prop_assert!(PieceMap::new(altered, root).is_err());
    }
}

/// Goal: a chunk of several pieces has no more rows than any chunk may, however many bytes are requested. Its
/// requester would take it for a lie.
#[test]
fn a_chunk_of_pieces_is_no_longer_than_chunks_are() {
    let row = |number: u64| {
        let key = StateKey::Account(Address::from_slice(&[&[0; 12][..], &number.to_be_bytes()].concat()));
        let value = AccountValue { nonce: 1, balance: U256::from(9), code_hash: None };
        (key.path(), (key, StateValue::Account(value)))
    };
    let rows: Rows = (0..limits::STATE_CHUNK_ROWS_MAX as u64 + 100).map(row).collect();
    let (pieces, root) = (cut(&rows, PIECE_ROWS_BYTES_MAX), tree(&rows).root());
    let map = PieceMap::new(infos(&pieces), root).unwrap();
    let all: Vec<&Piece> = pieces.iter().collect();
    let made = map.chunk_of(&all, Span { first: Path::MIN, last: Path::MAX }, usize::MAX).unwrap();
    assert_eq!(made.rows, limits::STATE_CHUNK_ROWS_MAX);
    assert!(made.last < Path::MAX);
    VerifiedChunk::open(made.content, root).unwrap();
}

/// Goal: lists that no honest archive can have are refused before anything is computed from them.
#[test]
fn lists_that_no_state_has_are_refused() {
    let rows = rows(&(0..90).map(|i| (i, None, 1)).collect::<Vec<_>>());
    let root = tree(&rows).root();
    let good = infos(&cut(&rows, 300));
    assert_eq!(PieceMap::new(Vec::new(), root).unwrap_err(), PieceError::NoPieces);
    let refused = |change: &dyn Fn(&mut Vec<PieceInfo>)| {
        let mut list = good.clone();
        change(&mut list);
        PieceMap::new(list, root).unwrap_err()
    };
    let longer = refused(&|list| list[3].bytes = u32::MAX);
    assert!(matches!(longer, PieceError::BadList { .. }), "{longer}");
    let many = refused(&|list| list[3].rows = u32::MAX);
    assert!(matches!(many, PieceError::BadList { .. }), "{many}");
    let twice = refused(&|list| list.insert(3, list[3].clone()));
    assert!(matches!(twice, PieceError::BadList { .. }), "{twice}");
    let other = refused(&|list| list[3].node = list[4].node.clone());
    assert!(matches!(other, PieceError::OtherState { .. } | PieceError::BadList { .. }), "{other}");
    let map = PieceMap::new(good.clone(), root).unwrap();
    let piece = &cut(&rows, 300)[0];
    let inside = piece.rows.leaves[0].path;
    let elsewhere = map.chunk_of(&[piece], Span { first: Path::MAX, last: Path::MAX }, 1);
    assert!(matches!(elsewhere, Err(PieceError::Within { .. })));
    assert!(matches!(
        map.range_proof(Span { first: inside, last: Path::MAX }, &[]),
        Err(PieceError::Within { .. })
    ));
}

/// Goal: the bytes of a piece and its name do not change unnoticed, because other programs may rely on them.
#[test]
fn a_piece_is_pinned() {
    let rows = rows(&[(1, None, 0), (1, Some(2), 6), (9, None, 4)]);
    let pieces = cut(&rows, 1 << 20);
    let pinned: Vec<_> = pieces
        .iter()
        .map(|piece| {
            let (info, content) = (piece.info(), Digest::tagged("pinned", &piece.content));
            format!("{:?} {} {} {content}", info.place, info.rows, info.hash())
        })
        .collect();
    assert_eq!(pinned, PINNED);
}

const PINNED: [&str; 2] = [
    "5c/6 1 0x69c9726428726d04a0cac48e5728f4169d6bc0a6c20b86d61338468395d137a0 0xa48f81ae40402fc0e1bb93075cd76f3af6846fac5161621fa19e5de2ed7c710a",
    "d4/6 2 0x170f90a7f3103094e79168becf459f485f05b2a223f8318de86662a516f7da21 0xa90dbe57b953d2ea50d3e53412d3b54def6e89fcbeb934f6f43d12f2818a6a83",
];

/// Goal: codes are found by their hashes, and nothing else passes for a pack of them.
#[test]
fn packs_hold_the_codes_that_are_asked_for() {
    use super::CodePack;
    use crate::tests::{Fixture, Ledger, account_key, config};

    let config = crate::StorageConfig { snapshot_interval_batches: 1, ..config() };
    let fixture = Fixture::initialized(&config, true);
    let ledger = Ledger::new();
    let codes: Vec<Vec<u8>> = (0..40u8).map(|i| vec![i; 60_000]).collect();
    let hash = |code: &[u8]| Digest::from(slipstream_types::keccak256(code));
    let changes: Vec<_> = codes
        .iter()
        .zip(1..)
        .map(|(code, i)| {
            let value = AccountValue { nonce: 1, code_hash: Some(hash(code)), ..AccountValue::default() };
            (account_key(i), Some(StateValue::Account(value)))
        })
        .collect();
    let made = ledger.make(&changes, codes.clone());
    fixture.store().commit(made.batch(), None).unwrap();
    let snapshot = fixture.store().snapshot(made.header.number).unwrap().unwrap();

    let mut needed = BTreeSet::new();
    for range in Snapshot::piece_ranges() {
        snapshot
            .pieces(range, &mut |piece| {
                needed.extend(piece.code_hashes());
                Ok(ControlFlow::Continue(()))
            })
            .unwrap();
    }
    assert!(codes.iter().all(|code| needed.contains(&hash(code))));
    let mut packs = Vec::new();
    let mut keep = |pack: CodePack| {
        packs.push((*pack.info(), pack.blob().unwrap()));
        Ok(ControlFlow::Continue(()))
    };
    snapshot.code_packs(&needed, &mut keep).unwrap();
    assert!(packs.len() > 2, "2.4 MB are {} packs", packs.len());
    let found: BTreeSet<Digest> = packs
        .iter()
        .flat_map(|(info, blob)| CodePack::open(info, blob).unwrap())
        .map(|(hash, _)| hash)
        .collect();
    assert_eq!(found, needed);
    let (info, blob) = &packs[0];
    assert!(CodePack::open(&packs[1].0, blob).is_err());
    assert!(CodePack::open(&super::CodePackInfo { codes: info.codes + 1, ..*info }, blob).is_err());
    assert!(CodePack::open(&super::CodePackInfo { place: packs[1].0.place, ..*info }, blob).is_err());
    let unknown = BTreeSet::from([Digest([7; 32])]);
    let missing = snapshot.code_packs(&unknown, &mut |_| Ok(ControlFlow::Continue(()))).unwrap_err();
    assert!(missing.to_string().contains("is missing"), "{missing}");
}
