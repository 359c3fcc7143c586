//! Goal: ranges are requested, handed to another peer when they are late, checked, and committed in order.

use std::time::Duration;

use crate::{
    Mode, Phase,
    engine::{
        rig::{A, B, C, HEAD, Node, Rig, chain, pruned, serves},
        timers::Timer,
    },
    plan::Stage,
};

const SECOND: Duration = Duration::from_secs(1);

/// A node that asks for two batches at a time.
fn in_pairs(mode: Mode, head: u64) -> Node {
    let mut node = Node::new(mode, head);
    node.config.range_batches_max = 2.try_into().unwrap();
    node
}

#[test]
fn what_is_asked_for_ends_in_the_store() {
    for mode in [Mode::Delta, Mode::Replay] {
        let mut rig = Node::new(mode, 10).rig().peer(A, serves(10..=HEAD));
        rig.step().expect_range(A, 11).serve(A);
        assert_eq!(rig.head(), HEAD, "{mode:?}");
        assert_eq!(rig.store.head().unwrap().digest, chain().store.head().unwrap().digest);
        assert_eq!((rig.status().phase, rig.asked(A).len()), (Phase::Idle, 0));
        rig.blames_nobody();
    }
}

/// Goal: ranges may come in any order, but are committed in order.
#[test]
fn a_later_range_waits_for_the_one_before_it() {
    let mut rig = in_pairs(Mode::Delta, 10).rig().peer(A, serves(1..=14)).peer(B, serves(1..=14));
    rig.step();
    let (first, second) = (rig.asked_for_range(11), rig.asked_for_range(12));
    assert_eq!((first.len(), second.len()), (1, 1), "{:#?}", rig.open);
    // The peer with the later range answers first.
    let later = second[0];
    if first[0] != later {
        rig.answer(later);
        assert_eq!(rig.head(), 10);
    }
    rig.serve(A).serve(B);
    assert_eq!(rig.head(), 14);
}

/// Goal: the node does not wait for a silent peer until the deadline. When the answer is late, another peer is asked,
/// and that peer's answer counts.
#[test]
fn a_silent_peer_is_handed_over_before_its_deadline() {
    let mut rig = Rig::at_head(10).peer(A, serves(1..=12));
    rig.step().expect_range(A, 11);
    rig.meet(B, serves(1..=12));
    rig.step();
    assert_eq!(rig.asked_for_range(11), [A]);
    let sent = rig.now;
    rig.until(Timer::Hedge).expect_range(B, 11);
    assert!(rig.now - sent < SECOND, "{:?} is late", rig.now - sent);
    rig.answer(B);
    assert_eq!((rig.head(), rig.asked(A).len()), (12, 0), "what A owes is cancelled");
    let status = rig.status();
    let of = |peer| status.peers.iter().find(|status| status.id == peer).unwrap();
    assert_eq!((of(A).failures, of(B).failures), (1, 0));
}

/// Goal: a peer with an overdue answer gets no other request.
#[test]
fn who_owes_an_answer_is_asked_for_nothing_else() {
    let mut rig = Rig::at_head(10).peer(A, serves(1..=12));
    rig.step().expect_range(A, 11);
    rig.meet(B, serves(1..=12));
    rig.until(Timer::Hedge).answer(B);
    rig.meet(A, serves(1..=20));
    rig.wait(SECOND);
    assert_eq!(rig.head(), 12);
    rig.expect_range(A, 13);
    rig.blame_only(A);
}

/// Goal: a wrong answer bans its sender, and the request goes to another peer at once.
#[test]
fn a_lie_costs_its_sender_and_no_time() {
    let mut rig = Rig::at_head(10).peer(A, serves(1..=12));
    rig.step().expect_range(A, 11);
    rig.meet(B, serves(1..=12));
    rig.step().lie(A, b"nonsense").expect_range(B, 11).answer(B);
    assert_eq!((rig.head(), rig.bans.len()), (12, 1));
}

/// Goal: a range that no peer keeps any more in its mode is requested in another mode, if one is served.
#[test]
fn a_range_changes_its_mode_when_its_last_peer_goes() {
    let mut rig = Node::new(Mode::Auto, 10).rig().peer(A, serves(1..=HEAD));
    rig.step().expect_range(A, 11).lose(A);
    rig.meet(B, serves(1..=HEAD));
    rig.step().expect_range(B, 11).serve(B);
    assert_eq!(rig.head(), HEAD);
}

/// Goal: a peer is not asked for what it does not keep, and keeps its score.
#[test]
fn a_node_whose_peers_keep_nothing_is_stuck_and_says_so() {
    let mut rig = Rig::at_head(0).peer(A, pruned(HEAD));
    rig.step().wait(2 * SECOND);
    let status = rig.status();
    assert_eq!((status.phase, status.head.get(), status.target.get()), (Phase::Stuck, 0, HEAD));
    assert!(status.peers[0].heard_ms_ago.is_some_and(|ago| ago < 1_000));
    rig.blames_nobody();
    // A batch that a peer proved stays known when the peer is gone: the node is as far behind as before.
    rig.lose(A);
    let status = rig.step().status();
    assert_eq!((status.target.get(), status.eta_seconds, status.peers.len()), (HEAD, None, 0));
}

/// Goal: nodes announce batches before they commit them, so an announcement is no promise to serve.
#[test]
fn a_peer_that_tells_before_it_commits_is_not_blamed() {
    let mut rig = Rig::at_head(3).peer(A, serves(1..=3));
    rig.step().announce(A, 4).wait(2 * SECOND);
    rig.blames_nobody();
    assert_eq!(rig.head(), 3, "{:#?}", rig.status());
}

/// Goal: an announced batch is executed as it came.
#[test]
fn announced_batches_are_executed_as_they_come() {
    let mut rig = Node::new(Mode::Auto, 10).rig().peer(A, serves(1..=10)).peer(B, serves(1..=10));
    rig.step();
    for number in 11..=20 {
        rig.announce(A, number).announce(B, number);
        assert_eq!(rig.head(), number);
    }
    assert!(rig.open.is_empty());
    rig.blames_nobody();
}

/// Goal: late, or barely timely, answers of some peers do not delay batches that others announce.
#[test]
fn slow_peers_do_not_delay_the_head() {
    let mut rig = Node::new(Mode::Auto, 10).rig().peer(A, serves(1..=10)).peer(C, serves(1..=10));
    rig.step();
    rig.quiet = vec![A, B];
    rig.meet(B, serves(1..=10));
    rig.wait(SECOND);
    let began = rig.now;
    (11..=20).for_each(|number| _ = rig.announce(C, number));
    assert_eq!((rig.head(), rig.now), (20, began));
}

/// Goal: a validator that fell behind gets to the head of a chain that moves on, although consensus commits nothing for
/// it there.
#[test]
fn a_patient_node_catches_up_with_a_moving_chain() {
    let mut rig = Node { patience: SECOND, ..Node::new(Mode::Auto, 0) }.rig().peer(A, serves(1..=10));
    rig.step().serve(A);
    let mut far = 0;
    for number in 11..=HEAD {
        rig.meet(A, serves(1..=number));
        rig.announce(A, number).wait(SECOND / 4);
        rig.serve(A);
        far += usize::from(rig.head() + 5 <= number);
    }
    assert!(far <= 5, "far behind {far} of 30 times: {:#?}", rig.status());
    rig.wait(3 * SECOND).serve(A);
    assert_eq!(rig.head(), HEAD);
}

/// Goal: a follower does not execute again what its validator's consensus commits, even if batches are further apart
/// than its patience. The follower fetches a batch that consensus does not commit in time.
#[test]
fn a_patient_node_leaves_announced_batches_to_consensus() {
    let mut rig = Node { patience: SECOND, ..Node::new(Mode::Auto, 10) }.rig().peer(A, serves(1..=10));
    rig.step();
    for number in 11..=15 {
        rig.wait(3 * SECOND / 2);
        rig.meet(A, serves(1..=number));
        rig.announce(A, number).wait(SECOND / 2);
        assert_eq!((rig.head(), rig.asked(A).len()), (number - 1, 0), "it is left to consensus");
        rig.commit(number);
    }
    let status = rig.status();
    let execute = status.stages.iter().find(|stage| stage.stage == Stage::Execute).unwrap();
    assert_eq!((rig.head(), status.batches, execute.busy_seconds), (15, 0, 0.0));
    rig.meet(A, serves(1..=16));
    rig.announce(A, 16).wait(2 * SECOND).serve(A);
    assert_eq!(rig.head(), 16);
}

/// Goal: work in flight counts once, whatever runs: no piece is checked, prepared or committed twice.
#[test]
fn one_answer_is_checked_at_a_time() {
    let mut rig = Rig::at_head(10).peer(A, serves(1..=12));
    rig.step().expect_range(A, 11);
    for peer in [B, C] {
        rig.meet(peer, serves(1..=12));
    }
    rig.until(Timer::Hedge);
    rig.holds_jobs = true;
    let asked = rig.asked_for_range(11);
    assert_eq!(asked.len(), 2, "{asked:?}");
    asked.into_iter().for_each(|peer| _ = rig.answer(peer));
    assert_eq!(rig.engine.jobs.checks.len(), 1);
    rig.holds_jobs = false;
    rig.work();
    assert_eq!(rig.head(), 12);
}
