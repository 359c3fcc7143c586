//! Goal: a snapshot is restored from any peer that has it, whatever comes first, and put aside if it leads nowhere.

use std::time::Duration;

use crate::{
    Mode, Phase,
    engine::{
        rig::{A, B, C, FAR, HEAD, Node, Promise, chain, long_chain, pruned, serves},
        timers::Timer,
    },
    plan::RANGE_DELTA_BATCHES_MAX,
    protocol::Request,
};

const SECOND: Duration = Duration::from_secs(1);

fn snapshot() -> Node {
    Node::new(Mode::Snapshot, 0)
}

fn is_chunk(request: &Request) -> bool {
    matches!(request, Request::Chunk { .. })
}

#[test]
fn offer_headers_and_first_rows_are_asked_for_at_once() {
    let mut rig = snapshot().rig().peer(A, pruned(HEAD).offering(HEAD, 100, 8_000));
    let asked = rig.step().asked(A);
    assert!(asked.iter().any(|request| matches!(request, Request::Offer { .. })), "{asked:?}");
    assert!(asked.iter().any(|request| matches!(request, Request::Headers { .. })), "{asked:?}");
    assert!(asked.iter().any(|request| is_chunk(request)), "{asked:?}");
    rig.serve(A);
    assert_eq!(rig.head(), HEAD);
    assert_eq!(rig.store.head().unwrap().header.state_root, chain().root());
    assert_eq!(rig.status().snapshot.unwrap().number.get(), HEAD);
    rig.blames_nobody();
}

/// Goal: a peer that keeps no batches, such as an archive of snapshots, gets no request for headers along the gap,
/// because it would have to refuse.
#[test]
fn who_keeps_no_batches_is_not_asked_for_their_headers() {
    let is_survey = |request: &Request| matches!(request, Request::Survey { .. });
    let archive = || pruned(FAR).offering(FAR, 100, 8_000);
    let mut rig = Node::new(Mode::Auto, 0).rig_on(long_chain()).peer(A, archive());
    let asked = rig.step().asked(A);
    assert!(
        asked.iter().any(|request| matches!(request, Request::Offer { .. })),
        "nobody is waited for: {asked:?}"
    );
    assert!(!asked.into_iter().any(is_survey));

    // Its head is as high as another peer's, which is late.
    let rig = Node::new(Mode::Auto, 0).rig_on(long_chain());
    let mut rig = rig.peer(B, serves(1..=FAR - 1)).peer(A, archive());
    assert!(rig.step().asked(B).into_iter().any(is_survey));
    rig.until(Timer::Hedge);
    assert!(!rig.asked(A).into_iter().any(is_survey));
    rig.blames_nobody();
}

/// Goal: an answer that comes before it can be checked is kept and not requested again.
#[test]
fn rows_that_come_before_the_offer_are_kept() {
    let mut rig = snapshot().rig().peer(A, pruned(HEAD).offering(HEAD, 100, 8_000));
    rig.step();
    let chunks: Vec<_> = rig.asked(A).into_iter().filter(|request| is_chunk(request)).cloned().collect();
    rig.answer_if(A, is_chunk);
    assert!(rig.asked(A).into_iter().all(|request| !chunks.contains(request)));
    rig.serve(A);
    assert_eq!(rig.head(), HEAD);
    rig.blames_nobody();
}

/// Goal: while the headers are missing, rows that come are kept and bounded, whatever the peer claims about their
/// length. Nothing is fetched twice.
#[test]
fn early_rows_are_bounded_and_asked_for_once() {
    let asked_of = |rows| {
        let mut rig = snapshot().rig().peer(A, pruned(HEAD).offering(HEAD, rows, 8_000));
        rig.step();
        // The other requests are not answered.
        rig.open.retain(|open| is_chunk(&open.request));
        rig
    };
    let bytes_max = |request: &Request| match request {
        Request::Chunk { bytes_max, .. } => *bytes_max,
        _ => 0,
    };
    let mut rig = asked_of(1);
    assert_eq!(rig.open.iter().map(|open| bytes_max(&open.request)).sum::<u32>(), 16 << 20);
    rig.lie(A, &vec![0; 1 << 18]).wait(SECOND);
    let again: Vec<_> = rig.asked(A).into_iter().filter(|request| is_chunk(request)).collect();
    assert!(again.is_empty(), "{again:?}");

    let (mut rig, mut asked) = (asked_of(100), Vec::new());
    while rig.open.iter().any(|open| is_chunk(&open.request)) {
        asked.extend(rig.open.iter().filter(|open| is_chunk(&open.request)).map(|open| open.request.clone()));
        assert!(asked.iter().map(bytes_max).sum::<u32>() <= 16 << 20);
        rig.answer_if(A, is_chunk);
    }
    let all = asked.len();
    asked.sort_by_key(|request| format!("{request:?}"));
    asked.dedup();
    assert_eq!((all, asked.len()), (64, 64));
}

/// Goal: requests that do not depend on each other are made together. Over 150 ms, a small state and the batches behind
/// it take one round trip, and the state's code another.
#[test]
fn a_small_state_takes_two_round_trips() {
    let serving = || serves(1..=HEAD).offering(30, 100, 8_000);
    let mut rig = snapshot().rig().peer(A, serving());
    assert_eq!(rig.rounds(A, HEAD), 2, "the last one brings code");
    rig.blames_nobody();
    let mut rig = Node::new(Mode::RangeDelta, 0).rig().peer(A, serving());
    assert_eq!(rig.rounds(A, HEAD), 2, "the last one brings code");
    rig.blames_nobody();
    // Here all code is known.
    let mut rig = Node::new(Mode::RangeDelta, 10).rig().peer(A, serving());
    assert_eq!(rig.rounds(A, HEAD), 1);
    rig.blames_nobody();
}

/// Goal: batches behind the snapshot are requested while its rows come, and committed once it is the state.
#[test]
fn the_batches_behind_it_come_beside_it() {
    let mut rig = snapshot().rig().peer(A, serves(31..=HEAD).offering(30, 100, 8_000));
    rig.step().serve(A);
    assert_eq!(rig.head(), HEAD);
    assert_eq!(rig.status().batches, 10);
}

/// Goal: a restore whose last peer goes is put aside at once, and resumes where it was when one comes.
#[test]
fn a_restore_whose_peers_go_is_put_down() {
    let mut rig = snapshot().rig().peer(A, pruned(HEAD).offering(HEAD, 100, 8_000));
    rig.step().answer(A);
    assert_eq!(rig.status().phase, Phase::Snapshot);
    rig.lose(A);
    rig.step();
    assert!(rig.engine.restore.is_none());
    assert_eq!(rig.engine.begun.map(|number| number.get()), Some(HEAD));
    rig.meet(B, pruned(HEAD).offering(HEAD, 100, 8_000));
    rig.step().serve(B);
    assert_eq!(rig.head(), HEAD);
}

/// Goal: a range delta is applied to the node's own state.
#[test]
fn a_range_delta_leads_to_the_snapshot() {
    let mut rig = Node::new(Mode::RangeDelta, 10).rig().peer(A, serves(1..=HEAD).offering(HEAD, 100, 8_000));
    rig.step();
    assert_eq!(rig.status().phase, Phase::RangeDelta);
    rig.serve(A).wait(SECOND);
    assert_eq!((rig.head(), rig.status().batches), (HEAD, 0));
    assert_eq!(rig.store.head().unwrap().header.state_root, chain().root());
    rig.blames_nobody();
}

/// Goal: if strangers promise a range delta and are too busy for it, the same snapshot is taken whole from a peer
/// without deltas.
#[test]
fn a_range_delta_that_does_not_come_gives_way_to_the_snapshot() {
    let offering = |promise: Promise| promise.offering(FAR, 100, 8_000);
    let mut rig = Node::new(Mode::RangeDelta, 10).rig_on(long_chain());
    for stranger in [B, C] {
        rig.meet(stranger, offering(serves(1..=FAR)));
    }
    rig.step();
    assert_eq!(rig.status().phase, Phase::RangeDelta);
    rig.meet(A, offering(serves(FAR..=FAR)));
    for _ in 0..60 {
        rig.answer(A).wait(SECOND).busy(B).busy(C);
    }
    assert_eq!((rig.head(), rig.status().batches), (FAR, 0), "{:#?}", rig.status());
}

/// Goal: a true range delta that is too large for this node gives way to the batches one by one, whichever peers are
/// connected.
#[test]
fn a_range_delta_that_is_too_large_is_left_for_batches() {
    let node = Node::new(Mode::RangeDelta, 10).rig().range_delta_bytes(10);
    let mut rig = node.peer(A, serves(1..=HEAD).offering(HEAD, 100, 8_000));
    rig.step();
    assert_eq!(rig.status().phase, Phase::RangeDelta);
    rig.serve(A).wait(SECOND);
    assert_eq!((rig.head(), rig.status().batches), (HEAD, HEAD - 10));
    assert!(rig.engine.range_delta_max <= (HEAD - 10) / 2, "{}", rig.engine.range_delta_max);
    rig.blames_nobody();
}

/// Goal: a liar that comes back under another key does not end the batches in flight again and again.
#[test]
fn a_strangers_leap_that_came_to_nothing_is_believed_less() {
    let mut rig = Node::new(Mode::RangeDelta, 10).rig_on(long_chain());
    rig.engine.stages.measured.fix(|costs| &mut costs.execute, 1e-4);
    let mut rig = rig.peer(A, serves(1..=FAR).without_deltas());
    rig.step().answer_if(A, |request| matches!(request, Request::Survey { .. }));
    assert_eq!(rig.status().phase, Phase::Replay);
    let offers = || serves(1..=FAR).without_bodies().offering(FAR, 100, 8_000);
    rig.meet(B, offers());
    rig.step();
    assert_eq!(rig.status().phase, Phase::RangeDelta);
    rig.lie(B, b"no changes");
    assert_eq!((rig.bans.len(), rig.status().phase), (1, Phase::Replay));
    rig.meet(C, offers());
    rig.step();
    assert_eq!(rig.status().phase, Phase::Replay, "{}", rig.status().reason);
    rig.serve(A).wait(SECOND).serve(A);
    assert_eq!(rig.head(), FAR);
}

/// Goal: a range delta that could begin behind requested batches does not turn into a whole snapshot at the node's
/// present head. The batches come first.
#[test]
fn a_range_delta_waits_for_the_batches_that_it_stands_on() {
    let mut rig =
        Node::new(Mode::RangeDelta, 7).rig_on(long_chain()).peer(A, serves(1..=FAR - 1).without_deltas());
    rig.step();
    assert_eq!(rig.status().phase, Phase::Replay);
    let asked: Vec<_> = rig.asked(A).into_iter().cloned().collect();
    // It keeps the deltas behind batch 64, the base of the last requested batch, and not those behind this node's base,
    // 0.
    rig.meet(B, serves(60..=FAR).offering(FAR, 100, 8_000));
    rig.step();
    assert_eq!((rig.status().phase, rig.status().target.get()), (Phase::Replay, FAR));
    assert!(asked.iter().all(|request| rig.asked(A).contains(&request)), "{:#?}", rig.open);
    rig.serve(A).serve(B).wait(SECOND);
    let status = rig.status();
    assert_eq!((rig.head(), status.batches), (FAR, FAR - 7));
    assert!(status.snapshot.is_none(), "{status:#?}");
    rig.blames_nobody();
}

fn is_change(request: &Request) -> bool {
    matches!(request, Request::RangeDelta(_))
}

/// Goal: peers that keep everything but cannot merge the deltas of a long range keep their score, and the node stops
/// asking.
#[test]
fn a_range_delta_that_nobody_can_merge_is_left_for_batches() {
    let node = Node::new(Mode::RangeDelta, 10).rig();
    let mut rig = node.peer(A, serves(1..=HEAD).offering(HEAD, 100, 8_000));
    rig.meet(B, serves(1..=HEAD).offering(HEAD, 100, 8_000));
    rig.step();
    for _ in 0..10 {
        rig.refuse_if(A, is_change).refuse_if(B, is_change);
    }
    assert!(rig.engine.restore.is_none(), "{:#?}", rig.status());
    rig.answer(A).serve(B).serve(A).wait(SECOND);
    assert_eq!((rig.head(), rig.status().batches), (HEAD, HEAD - 10));
    rig.blames_nobody();
}

/// Goal: a length that was too large once may be tried again: the bound grows with time, up to where it was.
#[test]
fn the_bound_of_range_deltas_grows_again() {
    let node = Node::new(Mode::RangeDelta, 10).rig().range_delta_bytes(10);
    let mut rig = node.peer(A, serves(1..=HEAD).offering(HEAD, 100, 8_000));
    rig.step().serve(A).wait(SECOND);
    let short = rig.engine.range_delta_max;
    rig.until(Timer::RangeDelta);
    assert_eq!(rig.engine.range_delta_max, short * 2);
    rig.wait(20 * 3_600 * SECOND);
    assert_eq!(rig.engine.range_delta_max, RANGE_DELTA_BATCHES_MAX);
    assert_eq!(rig.engine.timers.get(Timer::RangeDelta), None);
}

/// Goal: a range delta that begins after the head moved is put aside, and is no failure of the node.
#[test]
fn a_range_delta_that_is_overtaken_before_it_begins_is_put_down() {
    let node = Node::new(Mode::RangeDelta, 10).rig();
    let mut rig = node.peer(A, serves(1..=HEAD).offering(HEAD, 100, 8_000));
    rig.step();
    rig.holds_jobs = true;
    rig.answer_if(A, |request| !is_change(request));
    chain().commit_to(&rig.store, slipstream_types::BatchNumber::new(11));
    rig.holds_jobs = false;
    rig.work();
    rig.engine.handle_head(slipstream_types::BatchNumber::new(11), rig.now);
    rig.step().serve(A).wait(SECOND);
    assert_eq!(rig.head(), HEAD);
    rig.blames_nobody();
}

/// Goal: if a restore begins after it was put aside, the worker drops it too.
#[test]
fn a_restore_that_begins_too_late_is_dropped() {
    let mut rig = snapshot().rig().peer(A, pruned(HEAD).offering(HEAD, 100, 8_000));
    rig.step();
    rig.holds_jobs = true;
    rig.answer_if(A, |request| !is_chunk(request));
    rig.lose(A);
    rig.step();
    assert!(rig.engine.restore.is_none());
    // The worker's threads may take the later job first.
    rig.reverse_held();
    rig.work();
    assert_eq!(rig.held_jobs(), 1, "it is told to drop it once more");
}
