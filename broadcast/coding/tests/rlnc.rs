//! Tests of RLNC alone: relays that combine before they have the whole, and senders that abuse it.

mod common;

use std::sync::Arc;

use common::{Rng, judge, parameters, payload, peer, rng, settle};
use proptest::{prelude::*, sample::Index};
use slipstream_coding::{
    Accepted, Codec, CodecKind, Commitment, EncodeError, Malformed, PIECES_MAX, Parameters, Plan, PlanError,
    RLNC_BYTES_MAX, SPARES_MAX, Verdict, Work, encode, open,
};
use slipstream_types::bounded::BoundedVec;

fn source(bytes: usize, pieces: u16, rng: &mut Rng) -> (Arc<[u8]>, Plan, Box<dyn Codec>) {
    let payload = payload(bytes, rng);
    let parameters = Parameters { pieces, ..Parameters::default_for(bytes) };
    let (plan, source) = encode(CodecKind::Rlnc, payload.clone(), &parameters).expect("within all limits");
    (payload, plan, source)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A chain of relays passes chunks on, in random order. Each relay combines the little that it has verified.
    #[test]
    fn recoded_chunks_of_recoded_chunks_verify(bytes in 1..6_000_usize, parameters in parameters(), hops in 2..6_usize, picks in proptest::collection::vec(any::<Index>(), 40)) {
        let mut rng = rng(11);
        let (payload, plan, source) = source(bytes, parameters.pieces, &mut rng);
        let mut nodes: Vec<Box<dyn Codec>> = vec![source];
        nodes.extend((0..hops).map(|_| open(&plan).unwrap()));
        let mut picks = picks.into_iter().map(|pick| pick.index(hops)).chain((0..hops).cycle());
        while nodes[hops].payload().is_none() {
            let at = picks.next().unwrap();
            let Some(chunk) = nodes[at].next_chunk(&peer(at + 1), &mut rng) else { continue };
            let accepted = nodes[at + 1].accept(peer(at), &chunk);
            prop_assert!(matches!(accepted, Accepted::Waiting | Accepted::Duplicate), "hop {at}: {accepted:?}");
            for verdict in settle(&mut *nodes[at + 1], &mut rng) {
                prop_assert_eq!(verdict, Verdict::Useful(peer(at)));
            }
        }
        prop_assert_eq!(nodes[hops].payload(), Some(payload));
    }

    /// All polluters among the senders are named, and nobody else, whatever they alter and however their chunks are
    /// mixed with honest ones.
    #[test]
    fn polluters_are_named_exactly(pieces in 2..12_u16, polluters in 1..6_usize, at in any::<Index>(), pause in 1..9_usize, seed in any::<u64>()) {
        let mut rng = rng(seed);
        let (payload, plan, mut source) = source(4_000, pieces, &mut rng);
        let mut codec = open(&plan).unwrap();
        let (mut forged, mut useful) = (Vec::new(), 0);
        let senders = codec.chunks_needed() + polluters;
        for index in 0..senders {
            let mut chunk = source.next_chunk(&peer(1_000 + index), &mut rng).unwrap();
            if index < polluters {
                let limb = at.index(chunk.len() / 32);
                chunk[32 * limb] ^= 1;
            }
            prop_assert_eq!(codec.accept(peer(index), &chunk), Accepted::Waiting);
            let is_last = index + 1 == senders;
            while (index % pause == 0 || is_last) && codec.work().is_some() {
                for verdict in judge(&mut *codec, &mut rng) {
                    match verdict {
                        Verdict::Forged(peer) => forged.push(peer),
                        Verdict::Useful(_) => useful += 1,
                        other => prop_assert!(false, "{other:?}"),
                    }
                }
                if !is_last { break }
            }
        }
        forged.sort();
        prop_assert_eq!(forged, (0..polluters).map(peer).collect::<Vec<_>>());
        prop_assert_eq!(useful, codec.chunks_needed());
        prop_assert_eq!(codec.payload(), Some(payload));
    }
}

/// Coefficients alone identify a dependent chunk, so it costs no work on the curve.
#[test]
fn dependent_chunks_cost_no_check() {
    let mut rng = rng(2);
    let (_, plan, mut source) = source(4_000, 5, &mut rng);
    let (mut relay, mut codec) = (open(&plan).unwrap(), open(&plan).unwrap());
    for _ in 0..2 {
        relay.accept(peer(0), &source.next_chunk(&peer(1), &mut rng).unwrap());
    }
    settle(&mut *relay, &mut rng);
    for to in 1..=2 {
        codec.accept(peer(1), &relay.next_chunk(&peer(to), &mut rng).unwrap());
    }
    // Before the two are verified, a third is kept in case one of them is forged; the very same bytes are not kept
    // again.
    let third = relay.next_chunk(&peer(3), &mut rng).unwrap();
    assert_eq!(codec.accept(peer(2), &third), Accepted::Waiting);
    assert_eq!(codec.accept(peer(2), &third), Accepted::Duplicate);
    assert_eq!(codec.work(), Some(Work::Verify { chunks: 2 }));
    judge(&mut *codec, &mut rng);
    assert_eq!((codec.chunks_held(), codec.work()), (2, None));
    for to in 4..20 {
        assert_eq!(
            codec.accept(peer(1), &relay.next_chunk(&peer(to), &mut rng).unwrap()),
            Accepted::Dependent
        );
        assert_eq!(codec.work(), None);
    }
}

/// A sender of forged chunks with the coefficients of honest ones cannot make these look useless.
#[test]
fn a_forgery_does_not_keep_out_what_it_copies() {
    let mut rng = rng(2);
    let (payload, plan, mut source) = source(4_000, 4, &mut rng);
    let mut codec = open(&plan).unwrap();
    for index in 0..4 {
        let honest = source.next_chunk(&peer(100 + index), &mut rng).unwrap();
        let mut forged = honest.clone();
        *forged.last_mut().unwrap() ^= 1;
        assert_eq!(codec.accept(peer(9), &forged), Accepted::Waiting);
        assert_eq!(codec.accept(peer(index), &honest), Accepted::Waiting);
    }
    assert_eq!(codec.work(), Some(Work::Decode { chunks: 4 }));
    let verdicts = settle(&mut *codec, &mut rng);
    assert_eq!(verdicts.iter().filter(|verdict| **verdict == Verdict::Forged(peer(9))).count(), 1);
    assert_eq!(codec.payload(), Some(payload));
}

/// One sender's waiting chunks give way to those of others.
#[test]
fn nobody_takes_all_room() {
    let mut rng = rng(2);
    let (payload, plan, mut source) = source(4_000, 4, &mut rng);
    let mut codec = open(&plan).unwrap();
    let room = 4 + SPARES_MAX;
    let mut junk = vec![0; codec.chunk_bytes()];
    for index in 0..room {
        junk[0] = 1;
        junk[32 * 8] = index as u8;
        assert_eq!(codec.accept(peer(9), &junk), Accepted::Waiting);
    }
    junk[33 * 8] = 1;
    assert_eq!(codec.accept(peer(9), &junk), Accepted::Surplus);
    for index in 0..4 {
        let honest = source.next_chunk(&peer(100 + index), &mut rng).unwrap();
        assert_eq!(codec.accept(peer(index), &honest), Accepted::Waiting);
        assert_eq!(codec.chunks_waiting(), room);
        assert!(codec.held_bytes() <= codec.held_bytes_max());
    }
    let verdicts = settle(&mut *codec, &mut rng);
    assert!(verdicts.contains(&Verdict::Forged(peer(9))));
    assert_eq!(codec.payload(), Some(payload));
}

/// The payload is here before all chunks are verified. Until it is vouched for, only verified chunks are passed on.
#[test]
fn only_what_is_verified_is_passed_on() {
    let mut rng = rng(2);
    let (payload, plan, mut source) = source(4_000, 4, &mut rng);
    let mut codec = open(&plan).unwrap();
    codec.accept(peer(0), &source.next_chunk(&peer(1), &mut rng).unwrap());
    assert_eq!(codec.next_chunk(&peer(2), &mut rng), None);
    judge(&mut *codec, &mut rng);
    assert!(codec.next_chunk(&peer(2), &mut rng).is_some());
    assert_eq!(codec.next_chunk(&peer(2), &mut rng), None, "a second one would be a multiple of the first");
    assert_eq!(codec.next_chunk(&peer(0), &mut rng), None, "it is its sender's");
    for _ in 0..3 {
        codec.accept(peer(0), &source.next_chunk(&peer(1), &mut rng).unwrap());
    }
    assert_eq!(codec.work(), Some(Work::Decode { chunks: 3 }));
    judge(&mut *codec, &mut rng);
    assert_eq!(codec.payload(), Some(payload));
    assert_eq!(codec.next_chunk(&peer(2), &mut rng), None);
    assert_eq!(codec.work(), Some(Work::Vouch));
    judge(&mut *codec, &mut rng);
    assert_eq!(std::iter::from_fn(|| codec.next_chunk(&peer(2), &mut rng)).count(), 3);
}

#[test]
fn malformed_chunks_are_refused() {
    let mut rng = rng(2);
    let (_, plan, mut source) = source(4_000, 4, &mut rng);
    let mut codec = open(&plan).unwrap();
    let honest = source.next_chunk(&peer(1), &mut rng).unwrap();
    let mut expect = |chunk: &[u8], malformed| {
        assert_eq!(codec.accept(peer(1), chunk), Accepted::Malformed(malformed));
        assert_eq!(codec.held_bytes(), 0);
    };
    let expected = honest.len();
    expect(&[], Malformed::Length { found: 0, expected });
    expect(&honest[1..], Malformed::Length { found: expected - 1, expected });
    expect(&[&honest[..], &[0]].concat(), Malformed::Length { found: expected + 1, expected });
    expect(&[&[0; 128], &honest[128..]].concat(), Malformed::Zero);
    for index in [0, 3, 4, expected / 32 - 1] {
        let mut chunk = honest.clone();
        // The group's order, which is zero in another encoding, but for its highest byte.
        chunk[32 * index + 31] |= 0x20;
        expect(&chunk, Malformed::Scalar { index });
    }
}

#[test]
fn malformed_plans_are_refused() {
    let (_, plan, _) = source(4_000, 4, &mut rng(2));
    let Commitment::Rlnc { commitments } = &plan.commitment else { panic!("{plan:?}") };
    let with = |bytes, points: Vec<[u8; 32]>| {
        let commitments = BoundedVec::new(points).unwrap();
        open(&Plan { bytes, commitment: Commitment::Rlnc { commitments }, ..plan.clone() }).map(|_| ())
    };
    let points = commitments.to_vec();
    let digest = plan.digest;
    assert_eq!(with(4_000, points.clone()), Ok(()));
    assert!(matches!(with(4_000, vec![]), Err(PlanError::Shape { source: EncodeError::Pieces(0), .. })));
    assert_eq!(with(0, points.clone()), Err(PlanError::Empty { digest, bytes: 0, pieces: 4 }));
    let long = RLNC_BYTES_MAX as u32 + 1;
    assert!(matches!(
        with(long, points.clone()),
        Err(PlanError::Shape { source: EncodeError::TooLong { .. }, .. })
    ));
    assert!(matches!(
        with(long - 1, points[..1].to_vec()),
        Err(PlanError::Shape { source: EncodeError::PieceTooLong { .. }, .. })
    ));
    let mut negative = points.clone();
    negative[2][0] |= 1;
    assert_eq!(with(4_000, negative), Err(PlanError::Point { digest, index: 2 }));
    let mut large = points;
    large[1] = [0xff; 32];
    assert_eq!(with(4_000, large), Err(PlanError::Point { digest, index: 1 }));
    assert!(BoundedVec::<[u8; 32], PIECES_MAX>::new(vec![[0; 32]; PIECES_MAX + 1]).is_err());
}

/// Zeros commit to the identity, and travel like anything else.
#[test]
fn a_payload_of_zeros_arrives() {
    let mut rng = rng(2);
    let payload: Arc<[u8]> = vec![0; 4_000].into();
    let (plan, mut source) =
        encode(CodecKind::Rlnc, payload.clone(), &Parameters::default_for(4_000)).unwrap();
    let mut codec = open(&plan).unwrap();
    while codec.payload().is_none() {
        let mut chunk = source.next_chunk(&peer(1), &mut rng).unwrap();
        assert_eq!(codec.accept(peer(0), &chunk), Accepted::Waiting);
        *chunk.last_mut().unwrap() ^= 1;
        codec.accept(peer(5), &chunk);
        settle(&mut *codec, &mut rng);
    }
    assert_eq!(codec.payload(), Some(payload));
}
