use slipstream_types::{AccountValue, U256, tree::SiblingNode};

use super::*;
use crate::{schema, state::Tree};

fn rows() -> Vec<(StateKey, StateValue)> {
    let account = |i: u8, code: bool| {
        let code_hash = code.then_some(Digest([i; 32]));
        let value = AccountValue { nonce: u64::from(i), balance: U256::from(9), code_hash };
        (StateKey::Account(Address::repeat_byte(i)), StateValue::Account(value))
    };
    let slot = |i: u8| {
        let key = StateKey::Slot(Address::repeat_byte(i), B256::repeat_byte(i));
        (key, StateValue::Slot(U256::from(i)))
    };
    let mut rows: Vec<_> =
        (1..200u8).map(|i| if i % 3 == 0 { slot(i) } else { account(i, i % 2 == 0) }).collect();
    rows.sort_unstable_by_key(|(key, _)| key.path());
    rows
}

fn encoded(first: usize, last: usize) -> (StateChunk, EncodedChunk, Digest) {
    let rows = rows();
    let leaf = |(key, value): &(StateKey, StateValue)| Leaf { path: key.path(), value_hash: value.hash(key) };
    let tree = Tree::build(&rows.iter().map(leaf).collect::<Vec<_>>());
    let (from, to) = (rows[first].0.path(), rows[last].0.path());
    let mut builder = ChunkBuilder::new(from, 1 << 20);
    for (key, value) in &rows[first..=last] {
        builder.push(key.path(), &schema::encode_row(key, value));
    }
    let made = builder.finish(to, |first, last| tree.prove(first, last)).unwrap();
    let rows = BoundedVec::new(rows[first..=last].to_vec()).unwrap();
    let proof = tree.prove(&from, &to).unwrap();
    (StateChunk { first: from, last: to, rows, proof }, made, tree.root())
}

#[test]
fn the_encoding_is_that_of_the_type_and_every_row_is_found_in_it() {
    let (chunk, made, root) = encoded(3, 180);
    assert_eq!(made.content, codec::encode("chunk", &chunk).unwrap());
    assert_eq!(made.rows, chunk.rows.len());
    let verified = VerifiedChunk::open(made.content.clone(), root).unwrap();
    chunk.verify(root).unwrap();
    for ((key, value), (path, row)) in chunk.rows.iter().zip(verified.stored_rows()) {
        assert_eq!((key.path(), schema::encode_row(key, value)), (*path, row.to_vec()));
        let expected = match value {
            StateValue::Account(account) => account.code_hash,
            StateValue::Slot(_) => None,
        };
        assert_eq!(code_hash(row), expected);
    }
    assert_eq!(verified.stored_rows().count(), chunk.rows.len());
    assert!(verified.proof_bytes() > 64);
    assert!(verified.confirms(&chunk.proof));
    let mut siblings = chunk.proof.left.to_vec();
    siblings[0].node = SiblingNode::Inner(Digest::ZERO);
    let proof = StateRangeProof { left: BoundedVec::new(siblings).unwrap(), ..chunk.proof };
    assert!(!verified.confirms(&proof));
}

#[test]
fn no_other_bytes_are_the_same_chunk() {
    let (_, made, root) = encoded(10, 40);
    for end in 0..made.content.len() {
        assert!(VerifiedChunk::open(made.content[..end].to_vec(), root).is_err(), "cut at {end}");
    }
    // Other ends may be true as well: a chunk could begin anywhere in the gap before its first row.
    for at in ENDS_BYTES..made.content.len() {
        let mut flipped = made.content.clone();
        flipped[at] ^= 1 << (at % 8);
        assert!(VerifiedChunk::open(flipped, root).is_err(), "bit flipped at {at}");
    }
    let mut longer = made.content.clone();
    longer.push(0);
    assert!(VerifiedChunk::open(longer, root).is_err());
    let mut padded = made.content;
    padded[ENDS_BYTES] |= 0x80;
    padded.insert(ENDS_BYTES + 1, 0);
    assert!(VerifiedChunk::open(padded, root).is_err(), "a second encoding of the count");
}
