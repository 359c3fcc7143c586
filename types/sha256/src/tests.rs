use proptest::{collection::vec, prelude::*};

use super::*;

fn blocks(count: usize) -> impl Strategy<Value = Vec<Block>> {
    vec(any::<[u8; 64]>(), count)
}

/// A message's blocks, as FIPS 180-4, section 5.1.1, pads it.
fn padded(message: &[u8]) -> Vec<Block> {
    let mut bytes = message.to_vec();
    bytes.push(0x80);
    bytes.resize((bytes.len() + 8).next_multiple_of(64) - 8, 0);
    bytes.extend_from_slice(&(8 * message.len() as u64).to_be_bytes());
    bytes.as_chunks().0.to_vec()
}

fn bytes(state: State) -> Vec<u8> {
    state.iter().flat_map(|word| word.to_be_bytes()).collect()
}

proptest! {
    #[test]
    fn a_pair_is_two_messages(
        states in any::<[State; 2]>(),
        (first, second) in (0usize..5).prop_flat_map(|count| (blocks(count), blocks(count))),
    ) {
        let (mut together, mut alone) = (states, states);
        compress_messages(&mut together, [&first, &second]);
        one_by_one(&mut alone, [&first, &second]);
        prop_assert_eq!(together, alone);
        if let ([first], [second]) = (&first[..], &second[..]) {
            let mut pair = states;
            compress_pair(&mut pair, [first, second]);
            prop_assert_eq!(pair, alone);
            let halves = [first, second].map(|block| [0, 32].map(|at| block[at..].first_chunk().unwrap()));
            let blocks = [first, second].map(std::slice::from_ref);
            prop_assert_eq!(digest_halves(&states[0], halves), digests_one_by_one(&states[0], blocks));
            prop_assert_eq!(digest_halves(&states[0], [halves[1]]), digests_one_by_one(&states[0], [blocks[1]]));
        }
        let mut single = states[0];
        compress(&mut single, &first);
        prop_assert_eq!(single, alone[0]);
        let digests = digests_one_by_one(&states[0], [&first, &second]);
        prop_assert_eq!(digest_pair(&states[0], [&first, &second]), digests);
        prop_assert_eq!(digest(&states[0], &first), digests[0]);
    }

    #[test]
    fn many_are_each_alone(
        (states, blocks) in (0usize..20, 0usize..4)
            .prop_flat_map(|(count, len)| (vec(any::<State>(), count), blocks(count * len))),
    ) {
        let mut together = states.clone();
        compress_many(&mut together, &blocks);
        let len = blocks.len().checked_div(states.len()).unwrap_or(0);
        for (i, state) in states.iter().enumerate() {
            let mut alone = *state;
            sha2::block_api::compress256(&mut alone, &blocks[i * len..(i + 1) * len]);
            prop_assert_eq!(together[i], alone);
        }
    }
}

#[test]
fn messages_of_every_length_have_their_digest() {
    use sha2::{Digest, Sha256};

    let bytes_of = |seed: u8| (0..=255u8).map(|i| i.wrapping_mul(seed) ^ seed).collect::<Vec<u8>>();
    let messages: [Vec<u8>; 3] = [7, 31, 113].map(bytes_of);
    for len in 0..=256 {
        let blocks: Vec<Block> = messages.iter().flat_map(|message| padded(&message[..len])).collect();
        let mut states = [INITIAL; 3];
        compress_many(&mut states, &blocks);
        for (state, message) in states.into_iter().zip(&messages) {
            assert_eq!(bytes(state), Sha256::digest(&message[..len]).to_vec(), "{len} bytes");
        }
        let [first, second] = [0, 1].map(|i| padded(&messages[i][..len]));
        let expected = [0, 1].map(|i| <[u8; 32]>::from(Sha256::digest(&messages[i][..len])));
        assert_eq!(digest_pair(&INITIAL, [&first, &second]), expected, "{len} bytes");
    }
}

#[test]
#[should_panic(expected = "same number of blocks")]
fn messages_of_different_lengths_are_no_pair() {
    compress_messages(&mut [INITIAL; 2], [&[[0; 64]], &[]]);
}

#[test]
#[should_panic(expected = "same number of blocks")]
fn digests_of_different_lengths_are_no_pair() {
    digest_pair(&INITIAL, [&[[0; 64]], &[]]);
}

#[test]
#[should_panic(expected = "same number of blocks")]
fn blocks_that_belong_to_no_message_are_refused() {
    compress_many(&mut [INITIAL; 2], &[[0; 64]; 3]);
}
