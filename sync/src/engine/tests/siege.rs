//! Goal: what hostile peers do costs them, and not the node: neither its time, nor its memory, nor an honest peer's name.

use std::time::Duration;

use slipstream_network::PeerId;
use slipstream_types::{BatchNumber, PublicKey, codec};

use crate::{
    Mode,
    engine::{
        effect::Effect,
        rig::{A, B, C, HEAD, Node, Rig, announcement, chain, serves},
        timers::Timer,
    },
    protocol::{ANSWER_BYTES_MAX, Announcement, Parts, Range, RangeRequest, Request},
    verify,
};

const SECOND: Duration = Duration::from_secs(1);

fn stranger(number: u8) -> PeerId {
    PublicKey([100 + number; 32])
}

/// Goal: silent strangers do not block the first range for its whole deadline, be they three or ten.
#[test]
fn silent_strangers_hold_up_the_first_range_for_a_moment() {
    let mut rig = Rig::at_head(10);
    for number in 0..10 {
        rig.meet(stranger(number), serves(1..=12));
    }
    rig.step();
    rig.meet(A, serves(1..=12));
    rig.step();
    let began = rig.now;
    while rig.asked(A).is_empty() {
        rig.until(Timer::Hedge);
        assert!(rig.now - began < 6 * SECOND, "asked of {:?}", rig.asked_for_range(11));
    }
    rig.serve(A);
    assert_eq!(rig.head(), 12);
}

/// Goal: what is late goes to a peer that has delivered, not to the next stranger.
#[test]
fn what_is_late_goes_to_a_proven_peer() {
    let mut rig = Rig::at_head(10).peer(A, serves(1..=12));
    rig.step().serve(A);
    assert_eq!(rig.head(), 12);
    rig.lose(A);
    rig.meet(B, serves(1..=14));
    rig.step().expect_range(B, 13);
    (0..3).for_each(|number| rig.meet(stranger(number), serves(1..=14)));
    rig.meet(A, serves(1..=14));
    rig.until(Timer::Hedge).expect_range(A, 13);
    assert_eq!(rig.asked_for_range(13), [B, A]);
}

/// Goal: what is no news costs neither a decode nor a turn.
#[test]
fn old_and_repeated_announcements_have_no_turn() {
    let mut rig = Node::new(Mode::Auto, 20).rig().peer(A, serves(1..=20)).peer(B, serves(1..=20));
    rig.step();
    rig.holds_jobs = true;
    rig.announce(A, 22);
    let turns = |rig: &mut Rig, number: u64| {
        let before = rig.engine.turns;
        (0..1_000).for_each(|_| rig.engine.handle_broadcast(A, announcement(number), rig.now));
        rig.engine.turns - before
    };
    assert_eq!(turns(&mut rig, 20), 0, "it is committed");
    assert_eq!(turns(&mut rig, 22), 0, "it waits already");
    // The first leads to a question about the peer's head, and so do some later ones; but not each.
    rig.quiet = vec![A];
    assert!(turns(&mut rig, 40) <= 1, "it is far ahead");
    rig.blames_nobody();
}

/// Goal: a true certificate with another body does not displace the honest announcement, whoever comes first.
#[test]
fn a_forged_body_does_not_displace_an_honest_announcement() {
    let mut forged: Announcement =
        codec::decode("announcement", &announcement(12), ANSWER_BYTES_MAX).unwrap();
    forged.body =
        codec::decode::<Announcement>("announcement", &announcement(13), ANSWER_BYTES_MAX).unwrap().body;
    let forged = codec::encode("announcement", &forged).unwrap();
    let mut rig = Node::new(Mode::Auto, 10).rig().peer(A, serves(1..=10)).peer(B, serves(1..=10));
    rig.step();
    rig.engine.handle_broadcast(A, forged, rig.now);
    rig.step().announce(B, 12).announce(B, 11);
    assert_eq!((rig.head(), rig.relayed), (12, 2));
    assert!(rig.bans.iter().all(|(peer, _)| *peer == A) && rig.bans.len() == 1, "{:?}", rig.bans);
}

/// Goal: what waits is bounded in bytes, and who sends most loses first.
#[test]
fn waiting_announcements_are_bounded_and_fair() {
    let mut rig = Node::new(Mode::Auto, 10).rig();
    for number in 0..10 {
        rig.meet(stranger(number), serves(1..=10));
    }
    rig.meet(A, serves(1..=10));
    rig.step().announce(A, 12);
    for number in 12..=18 {
        (0..10).for_each(|peer| _ = rig.announce(stranger(peer), number));
    }
    let waiting = rig.engine.announcements.waiting_of(&A);
    assert_eq!(waiting, [12], "it is not displaced");
    rig.announce(A, 11);
    assert_eq!(rig.head(), 18);
    rig.blames_nobody();
}

/// Goal: parts that nobody asked for are a lie about the question, whatever they hold.
#[test]
fn hints_that_nobody_asked_for_are_refused() {
    let request = |parts| RangeRequest { first: BatchNumber(1), batches_max: 4, bytes_max: 1 << 20, parts };
    let with = request(Parts::BODY.with(Parts::HINTS));
    let payload = codec::encode("request", &Request::Range(with)).unwrap();
    let answer = crate::serve::answer(&chain().store, &payload).unwrap();
    let range = || codec::decode::<Range>("range", &answer, ANSWER_BYTES_MAX).unwrap();
    let trust = crate::Trust::of(&chain().store).unwrap();
    let held = verify::range(range(), &with, 40, &trust).unwrap();
    assert!(held.held_bytes() > held.certified_bytes(), "hints count as held");
    let error = verify::range(range(), &request(Parts::BODY), 40, &trust).unwrap_err().to_string();
    assert!(error.contains("not asked for"), "{error}");
}

/// Goal: who asks for a chunk takes no more than a chunk, and so with everything.
#[test]
fn an_answer_is_bounded_by_its_request() {
    let mut rig = Node::new(Mode::Snapshot, 0).rig();
    rig.meet(C, serves(1..=HEAD).offering(HEAD, u64::MAX, 0));
    let mut total = 0;
    while let Some(effect) = rig.engine.poll_effect() {
        if let Effect::Send { request, bytes_max, .. } = effect {
            assert_eq!(bytes_max, request.answer_bytes_max());
            total += bytes_max;
        }
    }
    assert!(total < 100 << 20, "{total}");
}
