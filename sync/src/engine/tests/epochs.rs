//! Goal: once any certificate shows that an epoch is over, its validators' later signatures are void. That holds even if all peers are
//! silent about the next epoch.

use slipstream_types::{BatchNumber, Certificate, Epoch, LedgerInfo, bounded::BoundedVec, codec};

use crate::{
    Mode,
    engine::rig::{A, B, Node, Rig, chain_of_epochs, serves},
    error::{TrustError, Violation},
    protocol::{ANSWER_BYTES_MAX, EpochEnds, Range, Request},
};

/// The last batch of epoch 0.
const END: u64 = 8;

fn at_head(head: u64) -> Rig {
    Node::new(Mode::Replay, head).rig_on(chain_of_epochs())
}

fn certificate(number: u64) -> Certificate {
    chain_of_epochs().store.certificate(BatchNumber::new(number)).unwrap().unwrap()
}

/// Checks that the node counts epoch 0 as over and has stored its end. Whatever its validators sign after that is a
/// lie.
#[track_caller]
fn expect_over(rig: &Rig) {
    assert_eq!(rig.engine.trust.epoch(), Epoch(1));
    assert_eq!(rig.store.epoch_ends(Epoch(0), 10).unwrap(), [certificate(END)]);
    let last = certificate(END);
    let info = LedgerInfo { number: BatchNumber::new(END + 1), next_validators: None, ..last.info.clone() };
    let late = Certificate { info, ..last };
    let outside = Violation::OutsideEpoch { number: BatchNumber::new(END + 1), epoch: Epoch(0) };
    assert_eq!(rig.engine.trust.verify(&late), Err(TrustError::Violation(outside)));
    rig.blames_nobody();
}

#[test]
fn a_summary_ends_an_epoch() {
    let mut rig = at_head(END - 1).peer(A, serves(1..=END));
    assert_eq!(rig.engine.trust.epoch(), Epoch(0));
    expect_over(rig.step());
}

#[test]
fn an_announcement_ends_an_epoch() {
    let mut rig = at_head(END - 1).peer(A, serves(1..=END - 1));
    rig.step();
    assert_eq!(rig.engine.trust.epoch(), Epoch(0));
    expect_over(rig.announce(A, END));
}

/// Goal: the certificate of a range may belong to a later batch than the range's last one.
#[test]
fn a_range_ends_an_epoch() {
    let mut rig = at_head(END - 3).peer(A, serves(1..=END - 1));
    rig.step();
    let [Request::Range(request)] = rig.asked(A)[..] else { panic!("{:?}", rig.open) };
    let store = &chain_of_epochs().store;
    let payload = codec::encode("request", &Request::Range(*request)).unwrap();
    let answer = crate::serve::answer(store, &payload).unwrap();
    let mut range: Range = codec::decode("range", &answer, ANSWER_BYTES_MAX).unwrap();
    range.certificate = certificate(END);
    range.proof = store.header_range_proof(END + 1, request.first, range.batches.len()).unwrap();
    assert_eq!(rig.engine.trust.epoch(), Epoch(0));
    rig.lie(A, &codec::encode("range", &range).unwrap());
    expect_over(&rig);
}

/// An answer about the ends of epochs.
fn ends(certificates: Vec<Certificate>) -> Vec<u8> {
    codec::encode("epoch ends", &EpochEnds { certificates: BoundedVec::new(certificates).unwrap() }).unwrap()
}

/// Goal: an answer's signatures are checked beside the engine, one answer at a time. Ends that one answer taught cost
/// the next nothing.
#[test]
fn epoch_ends_are_checked_beside_the_engine_and_once() {
    let mut rig = at_head(END - 3).peer(A, serves(1..=END + 1)).peer(B, serves(1..=END + 1));
    rig.holds_jobs = true;
    rig.step();
    let first = Request::Epochs { first: Epoch(0) };
    assert_eq!((rig.asked(A), rig.asked(B)), (vec![&first], vec![&first]));
    rig.answer(A);
    // If the same statement comes again with other signatures, only the first ones are checked.
    let unsigned = Certificate { signatures: Default::default(), ..certificate(END) };
    rig.lie(B, &ends(vec![unsigned]));
    assert_eq!((rig.engine.trust.epoch(), rig.held_jobs()), (Epoch(0), 1));
    assert!(rig.asked(A).is_empty() && rig.asked(B).is_empty(), "{:?}", rig.open);
    rig.work().work().work();
    assert_eq!(rig.engine.trust.epoch(), Epoch(2));
    assert_eq!(rig.store.epoch_ends(Epoch(0), 10).unwrap(), [END, 2 * END].map(certificate));
    assert_eq!(rig.status().peers.len(), 2);
    rig.blames_nobody();
}

/// Goal: an answer that repeats an end, or leaves one out, is a lie by its order alone: none of its signatures is
/// checked.
#[test]
fn epoch_ends_out_of_order_are_a_lie() {
    for lie in [vec![certificate(END); 64], vec![certificate(2 * END)]] {
        let mut rig = at_head(END - 3).peer(A, serves(1..=END + 1));
        rig.step().lie(A, &ends(lie));
        let [(A, reason)] = &rig.bans[..] else { panic!("{:?}", rig.bans) };
        assert!(reason.contains("in order"), "{reason}");
        assert_eq!(rig.engine.trust.epoch(), Epoch(0), "nothing of it counts");
    }
}
