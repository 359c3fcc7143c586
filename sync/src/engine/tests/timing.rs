//! Goal: the engine wakes for every timed event, exactly on time, and for nothing else.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    Mode, Phase,
    engine::{
        rig::{A, B, C, HEAD, Node, Rig, pruned, serves},
        timers::Timer,
    },
};

const SECOND: Duration = Duration::from_secs(1);

/// Goal: while only an event can change anything, no timeout is set.
#[test]
fn alone_it_waits_for_an_event() {
    let mut rig = Rig::at_head(10);
    rig.step();
    assert_eq!(rig.engine.poll_timeout(), None);
    assert_eq!(rig.status().phase, Phase::WaitingForPeers);
}

/// Goal: at the head the engine next wakes for the next summary, half a second after the last one.
#[test]
fn at_the_head_it_wakes_for_the_next_summary() {
    let mut rig = Rig::at_head(HEAD).peer(A, serves(1..=HEAD));
    rig.step();
    let half = Duration::from_millis(500);
    assert_eq!(rig.engine.timers.next(), Some((rig.now + half, Timer::Summary)));
    rig.until(Timer::Summary);
    assert_eq!(rig.engine.timers.get(Timer::Summary), Some(rig.now + half), "it was asked and answered");
}

/// Goal: a paused peer is asked again when its pause ends, and does not wait for the next summary.
#[test]
fn the_end_of_a_pause_wakes_it() {
    let mut rig = Rig::at_head(10).peer(A, serves(1..=20));
    rig.step().expect_range(A, 11);
    rig.busy(A);
    let pause = rig.engine.timers.get(Timer::Pause).expect("it pauses");
    assert_eq!(rig.asked_for_range(11), []);
    rig.wait(pause - rig.now - Duration::from_nanos(1));
    assert_eq!(rig.asked_for_range(11), []);
    rig.wait(Duration::from_nanos(1));
    rig.expect_range(A, 11);
}

/// Goal: a peer that is connected when its ban ends is taken back, even if no peer connects or leaves.
#[test]
fn the_end_of_a_ban_wakes_it() {
    let mut rig = Rig::at_head(10).peer(A, serves(1..=20)).peer(B, serves(1..=10));
    rig.step().lie(A, b"nonsense");
    assert!(rig.bans.iter().all(|(peer, _)| *peer == A) && !rig.bans.is_empty());
    // The transport lets it in before the engine's ban ends.
    rig.meet(A, serves(1..=20));
    rig.wait(3_599 * SECOND);
    assert_eq!(rig.asked_for_range(11), []);
    rig.until(Timer::Ban);
    rig.expect_range(A, 11);
}

/// Goal: a batch that is left to consensus is fetched exactly when the patience for it ends.
#[test]
fn the_end_of_patience_wakes_it() {
    let mut rig = Node { patience: SECOND, ..Node::new(Mode::Delta, 10) }.rig().peer(A, serves(1..=11));
    rig.step();
    assert_eq!(rig.engine.timers.get(Timer::Patience), Some(rig.now + SECOND));
    rig.wait(SECOND - Duration::from_nanos(1));
    assert_eq!((rig.asked_for_range(11), rig.status().phase), (vec![], Phase::Idle));
    rig.wait(Duration::from_nanos(1));
    rig.expect_range(A, 11).serve(A);
    assert_eq!(rig.head(), 11);
}

/// Goal: a batch that the mesh assembles is not fetched meanwhile. If that takes too long, it is fetched exactly then.
#[test]
fn a_batch_that_is_coming_is_left_to_the_mesh() {
    let mut rig = Node::new(Mode::Replay, 10).rig().peer(A, serves(1..=10));
    rig.step().coming(11).meet(B, serves(1..=11));
    rig.step();
    assert_eq!((rig.asked_for_range(11), rig.status().target.get()), (vec![], 11));
    rig.announce(A, 11);
    assert_eq!(rig.head(), 11);
    let began = rig.now;
    rig.coming(12).meet(C, serves(1..=12));
    rig.step();
    assert_eq!((rig.asked_for_range(12), rig.status().target.get()), (vec![], 12));
    rig.until(Timer::Coming);
    assert_eq!(rig.now - began, 2 * SECOND);
    rig.expect_range(C, 12).serve(C);
    assert_eq!(rig.head(), 12);
}

/// Goal: a batch that the mesh gives up is fetched at once.
#[test]
fn a_batch_that_does_not_come_is_fetched() {
    let mut rig = Node::new(Mode::Replay, 10).rig().peer(A, serves(1..=11));
    rig.coming(11);
    assert_eq!(rig.asked_for_range(11), []);
    rig.not_coming(11).expect_range(A, 11);
}

/// Goal: a peer that announces a batch before it has committed it is asked again soon, and only a few times.
#[test]
fn what_a_peer_told_of_is_asked_for_soon() {
    let mut rig = Node::new(Mode::Delta, 10).rig().peer(A, serves(1..=10));
    rig.step().rumour(A, 11);
    assert_eq!(rig.asked_for_range(11), []);
    let began = rig.now;
    rig.grow(A, serves(1..=11)).until(Timer::Rumour);
    assert_eq!((rig.now - began).as_millis(), 20);
    rig.expect_range(A, 11).serve(A);
    assert_eq!(rig.head(), 11);
    rig.rumour(A, 99).wait(SECOND / 2);
    assert_eq!(rig.engine.timers.get(Timer::Rumour), None);
}

/// Goal: a snapshot that no peer sent is given up after three deadlines, and tried again after a minute.
#[test]
fn a_standstill_and_its_end_wake_it() {
    let mut rig = Node::new(Mode::Snapshot, 0)
        .rig()
        .peer(A, pruned(HEAD).offering(HEAD, 100, 8_000))
        .peer(B, serves(1..=HEAD));
    rig.step();
    let began = rig.now;
    assert_eq!(rig.status().phase, Phase::Snapshot);
    rig.until(Timer::Standstill);
    assert_eq!(rig.now - began, 30 * SECOND);
    rig.expect_range(B, 1);
    let again: Instant = rig.engine.timers.get(Timer::GivenUp).expect("it is given up for a while");
    assert!(again > rig.now);
}
