//! The duties of all codecs to the mesh: any sufficient set of chunks gives the payload, only liars are named, and
//! memory stays within its bound.

mod common;

use std::{collections::BTreeSet, sync::Arc};

use common::{Rng, judge, parameters, payload, peer, rng, settle};
use proptest::{prelude::*, sample::Index};
use slipstream_coding::{
    Accepted, Codec, CodecKind, Commitment, Held, Malformed, Parameters, Plan, Verdict, Work, encode, open,
    payload_digest,
};
use slipstream_types::codec;

/// Draws chunks from the source, each for a peer of its own.
fn chunks(source: &mut dyn Codec, count: usize, rng: &mut Rng) -> Vec<Vec<u8>> {
    (0..count)
        .map(|index| source.next_chunk(&peer(1_000 + index), rng).expect("peers that have nothing"))
        .collect()
}

fn kind() -> impl Strategy<Value = CodecKind> {
    prop::sample::select(CodecKind::ALL)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// However the chunks arrive and whenever checks run, the needed number of them gives the payload, and no more are
    /// asked for.
    #[test]
    fn enough_chunks_decode(kind in kind(), bytes in 0..30_000_usize, parameters in parameters(), seed in any::<u64>(), pause in 1..5_usize) {
        let mut rng = rng(seed);
        let payload = payload(bytes, &mut rng);
        let (plan, mut source) = encode(kind, payload.clone(), &parameters).unwrap();
        prop_assert_eq!(&plan, &encode(kind, payload.clone(), &parameters).unwrap().0, "plans differ");
        let mut codec = open(&plan).unwrap();
        let needed = codec.chunks_needed();
        for (index, chunk) in chunks(&mut *source, needed, &mut rng).iter().enumerate() {
            prop_assert_eq!(chunk.len(), codec.chunk_bytes());
            let accepted = codec.accept(peer(index), chunk);
            prop_assert!(matches!(accepted, Accepted::Useful | Accepted::Waiting), "{accepted:?}");
            prop_assert!(codec.held_bytes() <= codec.held_bytes_max());
            if index % pause == 0 {
                prop_assert!(judge(&mut *codec, &mut rng).iter().all(|verdict| matches!(verdict, Verdict::Useful(_))));
            }
        }
        settle(&mut *codec, &mut rng);
        prop_assert_eq!(codec.payload(), Some(payload));
        prop_assert_eq!((codec.chunks_held(), codec.chunks_waiting()), (needed, 0));
        prop_assert!(codec.held_bytes() <= codec.held_bytes_max());
        prop_assert_eq!(codec.held(), Held::Whole);
    }

    /// A bit that is flipped anywhere is refused and blamed on the chunk's sender, and the payload still comes from the
    /// others.
    #[test]
    fn a_flipped_bit_is_blamed_on_its_sender(kind in kind(), bytes in 1..4_000_usize, parameters in parameters(), seed in any::<u64>(), at in any::<Index>(), liar in any::<Index>(), pause in 1..5_usize) {
        let mut rng = rng(seed);
        let payload = payload(bytes, &mut rng);
        let (plan, mut source) = encode(kind, payload.clone(), &parameters).unwrap();
        let mut codec = open(&plan).unwrap();
        let mut chunks = chunks(&mut *source, codec.chunks_needed(), &mut rng);
        let liar = liar.index(chunks.len());
        let bit = at.index(8 * chunks[liar].len());
        let honest = chunks[liar].clone();
        chunks[liar][bit / 8] ^= 1 << (bit % 8);
        let mut blamed = BTreeSet::new();
        for (index, chunk) in chunks.iter().enumerate() {
            if let Accepted::Malformed(_) = codec.accept(peer(index), chunk) {
                blamed.insert(peer(index));
            }
            if index % pause == 0 || index + 1 == chunks.len() {
                for verdict in judge(&mut *codec, &mut rng) {
                    match verdict {
                        Verdict::Forged(peer) => { blamed.insert(peer); }
                        Verdict::Useful(_) => {}
                        other => prop_assert!(false, "{other:?}"),
                    }
                }
            }
        }
        let is_repeated_shard = matches!(plan.commitment, Commitment::ReedSolomon { .. }) && bit < 16;
        // A shard that claims the place of one that is here is ignored.
        prop_assert!(blamed == [peer(liar)].into() || is_repeated_shard && blamed.is_empty(), "{blamed:?}");
        prop_assert_eq!(codec.payload(), None);
        codec.accept(peer(500), &honest);
        prop_assert!(judge(&mut *codec, &mut rng).iter().all(|verdict| matches!(verdict, Verdict::Useful(_))));
        prop_assert_eq!(codec.payload(), Some(payload));
    }

    /// Junk chunks cause no panic, give no payload, and stay within the bound.
    #[test]
    fn junk_is_bounded(kind in kind(), parameters in parameters(), seed in any::<u64>(), right_length in any::<bool>()) {
        let mut rng = rng(seed);
        let (plan, mut source) = encode(kind, payload(2_000, &mut rng), &parameters).unwrap();
        let mut codec = open(&plan).unwrap();
        let honest = chunks(&mut *source, 1, &mut rng).remove(0);
        for index in 0..200 {
            let mut junk = payload(if right_length { honest.len() } else { index * 17 }, &mut rng).to_vec();
            // Canonical in half of the cases, so that it is kept for a while.
            if right_length && index % 2 == 0 {
                junk.iter_mut().skip(31).step_by(32).for_each(|top| *top &= 0xf);
            }
            codec.accept(peer(index % 7), &junk);
            prop_assert!(codec.held_bytes() <= codec.held_bytes_max());
            if index % 50 == 49 {
                let verdicts = judge(&mut *codec, &mut rng);
                prop_assert!(verdicts.iter().all(|verdict| matches!(verdict, Verdict::Forged(_))), "{verdicts:?}");
            }
        }
        prop_assert!(codec.payload().is_none());
    }

    #[test]
    fn plans_of_strangers_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300), flip in any::<Index>(), kind in kind()) {
        if let Ok(plan) = codec::decode::<Plan>("plan", &bytes, 4_096) {
            let _ = open(&plan);
        }
        let (plan, _) = encode(kind, payload(500, &mut rng(1)), &Parameters::default_for(500)).unwrap();
        let mut encoded = codec::encode("plan", &plan).unwrap();
        let at = flip.index(encoded.len());
        encoded[at] = encoded[at].wrapping_add(1);
        if let Ok(plan) = codec::decode::<Plan>("plan", &encoded, 4_096)
            && let Ok(codec) = open(&plan)
        {
            prop_assert!(codec.held_bytes() == 0 && codec.held_bytes_max() > 0);
        }
    }
}

/// A node that pulled a payload whole, or has it itself, can serve it under another's plan.
#[test]
fn a_supplied_payload_is_served() {
    for &kind in CodecKind::ALL {
        let mut rng = rng(1);
        let payload = payload(5_000, &mut rng);
        let (plan, _) = encode(kind, payload.clone(), &Parameters::default_for(5_000)).unwrap();
        for from in [None, Some(peer(3))] {
            let mut codec = open(&plan).unwrap();
            assert_eq!(codec.supply(from, payload.clone()), Accepted::Waiting);
            assert_eq!(codec.work(), Some(Work::Compare));
            let verdicts = settle(&mut *codec, &mut rng);
            assert_eq!(verdicts, from.map(Verdict::Useful).into_iter().collect::<Vec<_>>());
            assert_eq!(codec.payload().unwrap(), payload);
            let mut receiver = open(&plan).unwrap();
            for index in 0..receiver.chunks_needed() {
                let chunk = codec.next_chunk(&peer(50), &mut rng).unwrap();
                receiver.accept(peer(index), &chunk);
            }
            assert_eq!(codec.next_chunk(&peer(50), &mut rng), None, "it has all of it");
            settle(&mut *receiver, &mut rng);
            assert_eq!(receiver.payload().unwrap(), payload);
            if let Some(peer) = from {
                assert_eq!(codec.next_chunk(&peer, &mut rng), None, "it sent it");
            }
        }
    }
}

#[test]
fn a_wrong_payload_is_its_suppliers_fault() {
    for &kind in CodecKind::ALL {
        let mut rng = rng(1);
        let (plan, _) = encode(kind, payload(5_000, &mut rng), &Parameters::default_for(5_000)).unwrap();
        let mut codec = open(&plan).unwrap();
        assert!(matches!(
            codec.supply(None, payload(4_999, &mut rng)),
            Accepted::Malformed(Malformed::Length { .. })
        ));
        codec.supply(None, payload(5_000, &mut rng));
        assert_eq!(settle(&mut *codec, &mut rng), [Verdict::NotThis]);
        codec.supply(Some(peer(1)), payload(5_000, &mut rng));
        assert_eq!(settle(&mut *codec, &mut rng), [Verdict::Forged(peer(1))]);
    }
}

/// A source's commitment is of another payload than its digest. Chunks that fit the commitment end with the source to
/// blame. A node that got the payload with the digest does not pass it on, because others could not verify it.
#[test]
fn a_plan_that_contradicts_itself_is_its_signers_fault() {
    for &kind in CodecKind::ALL.iter().filter(|kind| **kind != CodecKind::Gossip) {
        let mut rng = rng(1);
        let (one, other) = (payload(5_000, &mut rng), payload(5_000, &mut rng));
        let (mut plan, mut source) = encode(kind, one.clone(), &Parameters::default_for(5_000)).unwrap();
        plan.digest = payload_digest(&other);
        let mut codec = open(&plan).unwrap();
        let chunks = chunks(&mut *source, codec.chunks_needed(), &mut rng);
        for (index, chunk) in chunks.iter().enumerate() {
            codec.accept(peer(index), chunk);
        }
        assert_eq!(settle(&mut *codec, &mut rng), [Verdict::WrongPlan], "{kind}");
        assert_eq!((codec.payload(), codec.next_chunk(&peer(50), &mut rng)), (None, None));
        assert_eq!(codec.accept(peer(70), &chunks[0]), Accepted::Duplicate, "nothing is taken any more");

        let mut codec = open(&plan).unwrap();
        codec.supply(Some(peer(1)), other.clone());
        assert_eq!(settle(&mut *codec, &mut rng), [Verdict::Useful(peer(1)), Verdict::WrongPlan], "{kind}");
        assert_eq!((codec.payload(), codec.next_chunk(&peer(50), &mut rng)), (Some(other), None));
    }
}

#[test]
fn notices_say_what_need_not_be_sent() {
    for &kind in CodecKind::ALL {
        let mut rng = rng(1);
        let (plan, mut source) =
            encode(kind, payload(5_000, &mut rng), &Parameters::default_for(5_000)).unwrap();
        source.peer_holds(&peer(1), &Held::Whole, false);
        assert_eq!(source.next_chunk(&peer(1), &mut rng), None);
        let mut codec = open(&plan).unwrap();
        let needed = codec.chunks_needed();
        while let Some(chunk) = source.next_chunk(&peer(2), &mut rng) {
            // Every second chunk is lost.
            if codec.chunks_held() * 2 <= needed {
                codec.accept(peer(0), &chunk);
                judge(&mut *codec, &mut rng);
            }
        }
        let lost = needed - codec.chunks_held();
        source.peer_holds(&peer(2), &codec.held(), false);
        assert_eq!(source.next_chunk(&peer(2), &mut rng), None, "it may be on its way");
        source.peer_holds(&peer(2), &codec.held(), true);
        let again: Vec<_> = std::iter::from_fn(|| source.next_chunk(&peer(2), &mut rng)).collect();
        assert_eq!(again.len(), lost, "{kind}");
        for chunk in &again {
            codec.accept(peer(0), chunk);
        }
        settle(&mut *codec, &mut rng);
        assert!(codec.payload().is_some());
        source.forget(&peer(2));
        assert!(source.next_chunk(&peer(2), &mut rng).is_some());
    }
}

#[test]
fn a_result_of_another_codecs_check_changes_nothing() {
    let mut rng = rng(1);
    let payload: Arc<[u8]> = payload(5_000, &mut rng);
    let (plan, mut source) = encode(CodecKind::Rlnc, payload, &Parameters::default_for(5_000)).unwrap();
    let (mut one, mut other) = (open(&plan).unwrap(), open(&plan).unwrap());
    one.accept(peer(1), &source.next_chunk(&peer(8), &mut rng).unwrap());
    let check = one.check(&mut rng).unwrap();
    assert!(one.check(&mut rng).is_none(), "one at a time");
    assert!(other.checked(check.run()).is_empty());
    assert_eq!(other.chunks_held(), 0);
}
