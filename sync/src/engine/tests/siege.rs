//! Goal: hostile peers pay for what they do. The node loses neither time nor memory, and honest peers keep their
//! reputation.

use std::time::Duration;

use slipstream_network::PeerId;
use slipstream_types::{BatchNumber, Epoch, PublicKey, codec};

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

/// Goal: silent strangers, be they three or ten, do not block the first range for its whole deadline.
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

/// Goal: a late request goes to a peer that has delivered, not to the next stranger.
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

/// Goal: a peer that has delivered gets the request for a batch at the head, however much nearer a stranger is.
#[test]
fn a_near_stranger_gets_no_batch_at_the_head_before_a_proven_peer() {
    let round_trip = Duration::from_millis(30);
    let mut rig = Rig::at_head(10);
    rig.quiet = vec![A];
    rig.meet(A, serves(1..=12));
    rig.step().wait(round_trip).tell(A).expect_range(A, 11);
    rig.wait(round_trip).answer_if(A, |request| matches!(request, Request::Range(_)));
    assert_eq!(rig.head(), 12);
    // Both are known to have the next batches before either is asked for them.
    rig.coming(13).grow(A, serves(1..=14));
    rig.until(Timer::Summary).wait(round_trip).tell(A);
    rig.meet(B, serves(1..=14));
    rig.step();
    assert_eq!(rig.asked_for_range(13), []);
    rig.not_coming(13);
    assert_eq!(rig.asked_for_range(13), [A]);
}

/// Goal: a peer that did well for long and then holds its answers back delays one batch at the head, and not each.
#[test]
fn who_begins_to_be_late_delays_one_batch() {
    let mut rig = Rig::at_head(10).peer(A, serves(1..=11));
    rig.step().serve(A);
    for number in 12..=20 {
        rig.meet(A, serves(1..=number));
        rig.wait(SECOND / 2).serve(A);
    }
    assert_eq!(rig.head(), 20);
    let next = |rig: &mut Rig, number: u64| {
        rig.coming(number);
        for peer in [A, B] {
            rig.meet(peer, serves(1..=number));
        }
        rig.wait(3 * SECOND / 2).not_coming(number);
        rig.asked_for_range(number)
    };
    assert_eq!(next(&mut rig, 21), [A]);
    rig.until(Timer::Hedge).expect_range(B, 21).answer(B);
    assert_eq!(rig.head(), 21);
    assert_eq!(next(&mut rig, 22), [B]);
    rig.answer(B);
    assert_eq!(rig.head(), 22);
}

/// Goal: a busy peer at the head costs no time. The batch goes to the next peer at once, and so do later ones after the
/// pause.
#[test]
fn who_is_busy_at_the_head_costs_no_time() {
    let mut rig = Rig::at_head(10);
    rig.coming(11);
    for peer in [A, B] {
        rig.meet(peer, serves(1..=11));
    }
    rig.step().not_coming(11);
    let [busy] = rig.asked_for_range(11)[..] else { panic!("{:#?}", rig.open) };
    let (other, began) = (if busy == A { B } else { A }, rig.now);
    rig.busy(busy).answer(other);
    assert_eq!((rig.head(), rig.now), (11, began));
    for number in 12..=14 {
        rig.coming(number);
        for peer in [A, B] {
            rig.meet(peer, serves(1..=number));
        }
        // Longer than the pause, and than it takes until both report the batch.
        rig.wait(3 * SECOND / 2).not_coming(number);
        assert_eq!(rig.asked_for_range(number), [other]);
        rig.answer(other);
        assert_eq!(rig.head(), number);
    }
    rig.blames_nobody();
}

/// Goal: old news costs neither a decode nor a turn.
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
    // The first one leads to a question about the peer's head, and so do some later ones, but not each.
    rig.quiet = vec![A];
    assert!(turns(&mut rig, 40) <= 1, "it is far ahead");
    rig.blames_nobody();
}

/// Goal: no number in an announcement ends the node, not even the highest possible: that batch is just far ahead.
#[test]
fn an_announcement_of_any_number_is_survived() {
    let mut rig = Node::new(Mode::Auto, 10).rig().peer(A, serves(1..=10)).peer(B, serves(1..=10));
    rig.step();
    for number in [u64::MAX, u64::MAX - 1, u64::MAX - 1_022, u64::MAX - 1_023, u64::MAX - 1_024, 1 << 63] {
        let mut whole = announcement(11);
        whole[..8].copy_from_slice(&number.to_le_bytes());
        rig.engine.handle_broadcast(A, whole[..8].to_vec(), rig.now);
        rig.engine.handle_broadcast(A, whole, rig.now);
        rig.step();
    }
    rig.engine.handle_broadcast(A, vec![0xff; 8], rig.now);
    rig.step().announce(B, 11);
    assert_eq!(rig.head(), 11);
    rig.blames_nobody();
}

/// Goal: a true certificate with another body does not displace the honest announcement, whichever comes first.
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
    assert_eq!(rig.head(), 12);
    assert!(rig.bans.iter().all(|(peer, _)| *peer == A) && rig.bans.len() == 1, "{:?}", rig.bans);
}

/// Goal: waiting announcements are bounded in bytes, and the peer that sends most loses first.
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

/// Goal: parts that were not asked for are a lie about the question, whatever they contain.
#[test]
fn hints_that_nobody_asked_for_are_refused() {
    let request =
        |parts| RangeRequest { first: BatchNumber::new(1), batches_max: 4, bytes_max: 1 << 20, parts };
    let with = request(Parts::BODY.with(Parts::HINTS));
    let payload = codec::encode("request", &Request::Range(with)).unwrap();
    let answer = crate::serve::answer(&chain().store, &payload).unwrap();
    let range = || codec::decode::<Range>("range", &answer, ANSWER_BYTES_MAX).unwrap();
    let trust = crate::Trust::of(&chain().store).unwrap();
    let held = verify::range(range(), &with, 40, &trust).unwrap();
    assert!(held.held_bytes() > held.certified_bytes(), "hints count as held");
    let error = verify::range(range(), &request(Parts::BODY), 40, &trust).unwrap_err().to_string();
    assert!(error.contains("not requested"), "{error}");
}

/// Goal: a node that asks for a chunk takes no more than a chunk, and likewise for every other request.
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

/// A node that asks for a snapshot from a peer that promises the world, while another peer keeps the batches.
fn promised(offers: &[u64]) -> Rig {
    let promise =
        offers.iter().fold(serves(1..=HEAD), |promise, number| promise.offering(*number, 100, 8_000));
    let mut rig = Node::new(Mode::Snapshot, 0).rig().peer(C, promise);
    rig.step();
    assert!(rig.engine.restore.is_some());
    rig.meet(B, serves(1..=HEAD));
    rig
}

/// The peer lets the node wait until just before each deadline, and then says that it is busy.
fn stall(rig: &mut Rig) {
    rig.wait(99 * SECOND / 10).busy(C);
    rig.serve(B);
}

/// Goal: a peer that offers a snapshot and is busy at the end of each deadline delays a node by three deadlines,
/// whatever else comes meanwhile. Offering other snapshots does not help it.
#[test]
fn a_promise_that_is_not_kept_is_given_up_whichever_it_is() {
    let mut rig = promised(&[HEAD, 39, 38, 37, 36, 35, 34, 33]);
    let began = rig.now;
    while rig.head() < HEAD {
        stall(&mut rig);
        assert!(rig.now - began < 60 * SECOND, "{:#?}", rig.status());
    }
    assert!(rig.engine.restore.is_none());
    let offers: usize = rig.engine.candidates(rig.now).iter().map(|peer| peer.snapshots.len()).sum();
    assert_eq!(offers, 0, "none of the eight is believed");
    assert!(rig.bans.is_empty(), "it is not a lie that it is busy");
}

/// Goal: a good chunk now and then does not pin a restore: what counts is how long it would take.
#[test]
fn a_restore_that_drips_is_put_down_and_what_is_restored_is_kept() {
    let mut rig = promised(&[HEAD]);
    rig.answer_if(C, |request| matches!(request, Request::Offer { .. } | Request::Headers { .. }));
    let began = rig.now;
    let mut chunks = 0;
    while rig.engine.restore.is_some() {
        assert!(rig.now - began < 90 * SECOND, "{:#?}", rig.status().snapshot);
        chunks += usize::from(rig.answer_one(C, |request| matches!(request, Request::Chunk { .. })));
        stall(&mut rig);
    }
    assert!(chunks >= 1 && rig.now - began >= 30 * SECOND, "{chunks}");
    assert_eq!(rig.engine.begun.map(|number| number.get()), Some(HEAD), "it can be taken up");
    rig.wait(SECOND).serve(B);
    assert_eq!(rig.head(), HEAD);
}

/// Goal: a restore that is slow because everything is slow goes on, and so does one that is the only way.
#[test]
fn a_slow_restore_without_another_way_goes_on() {
    let mut rig = promised(&[HEAD]);
    rig.lose(B);
    rig.meet(C, crate::engine::rig::pruned(HEAD).offering(HEAD, 100, 8_000));
    for _ in 0..20 {
        stall(&mut rig);
        assert!(rig.engine.restore.is_some());
    }
    rig.wait(40 * SECOND).serve(C);
    assert_eq!(rig.head(), HEAD);
}

/// Goal: strangers' claims about another snapshot do not end a restore at a slow but steady rate. Their claims to have
/// the batches end it seldom, and cost its peers at most a minute.
#[test]
fn strangers_do_not_put_an_honest_restore_down() {
    let is_chunk = |request: &Request| matches!(request, Request::Chunk { .. });
    let begin = || {
        let mut rig = Node::new(Mode::Auto, 0)
            .rig()
            .peer(A, crate::engine::rig::pruned(HEAD).offering(HEAD, 100, 8_000));
        rig.step().answer_if(A, |request| !matches!(request, Request::Chunk { .. }));
        rig.answer_if(A, |request| !matches!(request, Request::Chunk { .. }));
        assert!(rig.engine.restore.is_some(), "{:#?}", rig.status());
        rig.answer_one(A, is_chunk);
        rig
    };
    let mut rig = begin();
    rig.meet(C, crate::engine::rig::pruned(HEAD).offering(HEAD - 1, 1, 80));
    for _ in 0..30 {
        rig.wait(8 * SECOND).answer_one(A, is_chunk);
        assert!(rig.engine.restore.as_ref().is_some_and(|restore| restore.number().get() == HEAD));
    }
    rig.serve(A);
    assert_eq!(rig.head(), HEAD);

    let mut rig = begin();
    (0..3).for_each(|number| rig.meet(stranger(number), serves(1..=HEAD)));
    let (began, mut put_down, mut was_up) = (rig.now, 0, true);
    while rig.now - began < 900 * SECOND && rig.engine.restore.as_ref().is_none_or(|it| !it.is_finishing()) {
        rig.wait(8 * SECOND).answer_if(A, |request| !is_chunk(request)).answer_one(A, is_chunk);
        let is_up = rig.engine.restore.is_some();
        put_down += u32::from(was_up && !is_up);
        was_up = is_up;
        let promised = rig.engine.ignored_offers.next(rig.now);
        assert!(
            promised.is_none_or(|until| until <= rig.now + 61 * SECOND),
            "nobody who delivered waits longer"
        );
    }
    assert!(put_down <= 4, "{put_down} times in 15 minutes");
}

/// Goal: an impossible number of rows does not make a restore look so long that it asks for few of its ranges at once.
#[test]
fn an_offer_of_endless_rows_changes_no_request() {
    let asked = |rows, bytes| {
        let mut rig = Node::new(Mode::Snapshot, 0).rig().peer(A, serves(1..=HEAD).offering(30, rows, bytes));
        rig.step();
        let chunks = rig.asked(A).iter().filter(|request| matches!(request, Request::Chunk { .. })).count();
        let restore = rig.engine.restore.as_ref().unwrap();
        (chunks, restore.is_all_asked(&rig.engine.streams, &rig.engine.jobs.restore))
    };
    assert_eq!(asked(u64::MAX, 0), asked(100, 8_000));
    assert_eq!(asked(u64::MAX, u64::MAX), asked(100, 8_000));
}

/// Goal: announcements of an unproved epoch stay undecoded. A certificate of another epoch than its header's is a lie.
#[test]
fn an_announcement_of_an_invented_epoch_is_not_decoded() {
    let far = |header: bool| {
        let mut far: Announcement =
            codec::decode("announcement", &announcement(12), ANSWER_BYTES_MAX).unwrap();
        if header {
            far.header.epoch = Epoch(u64::MAX);
        }
        far.certificate.info.epoch = Epoch(u64::MAX);
        codec::encode("announcement", &far).unwrap()
    };
    let mut rig = Node::new(Mode::Auto, 10).rig().peer(A, serves(1..=10)).peer(B, serves(1..=10));
    rig.step();
    // Only the announcement's epoch is read.
    let cut = far(true)[..48].to_vec();
    rig.engine.handle_broadcast(A, cut, rig.now);
    rig.step().blames_nobody();
    rig.engine.handle_broadcast(B, far(false), rig.now);
    rig.step();
    assert!(rig.bans.len() == 1 && rig.bans[0].0 == B, "{:?}", rig.bans);
}

/// Goal: if a peer's summary leads elsewhere, its range under an invented epoch counts as a failure, and not as a lie.
#[test]
fn a_range_of_an_invented_epoch_is_a_failure() {
    let mut rig = Rig::at_head(10).peer(A, serves(1..=12));
    rig.step().expect_range(A, 11);
    let request = rig.asked(A).into_iter().find(|request| matches!(request, Request::Range(_))).unwrap();
    let payload = codec::encode("request", request).unwrap();
    let answer = crate::serve::answer(&chain().store, &payload).unwrap();
    let mut range = codec::decode::<Range>("range", &answer, ANSWER_BYTES_MAX).unwrap();
    range.certificate.info.epoch = Epoch(u64::MAX);
    rig.lie(A, &codec::encode("range", &range).unwrap());
    rig.blames_nobody();
    assert!(rig.asked(A).is_empty(), "it pauses");
    rig.wait(SECOND);
    rig.blame_only(A);
    rig.wait(SECOND).serve(A);
    assert_eq!(rig.head(), 12, "it is asked again");
}
