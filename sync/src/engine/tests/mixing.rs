//! Goal: ranges of one gap are followed in two modes at once. A peer that serves one mode does not delay peers that could serve the other.

use std::collections::BTreeSet;

use slipstream_types::{BatchNumber, PublicKey};

use crate::{
    Mode,
    engine::{
        rig::{A, B, FAR, Node, Rig, long_chain, serves},
        timers::Timer,
    },
    protocol::Request,
};

/// Execution is so expensive that deltas are chosen. `A` keeps only bodies, `B` only deltas. The headers along the gap
/// are known.
fn apart() -> Rig {
    let mut rig = Node::new(Mode::Auto, 0).rig_on(long_chain());
    rig.engine.stages.measured.fix(|costs| &mut costs.execute, 1e-4);
    let mut rig = rig.peer(A, serves(1..=FAR).without_deltas()).peer(B, serves(1..=FAR).without_bodies());
    rig.step();
    let is_survey = |request: &Request| matches!(request, Request::Survey { .. });
    rig.answer_if(A, is_survey).answer_if(B, is_survey);
    rig.expect_range(B, 1);
    rig
}

/// Goal: if deltas are late and bodies are at hand, the node executes instead. Deltas that come are used.
#[test]
fn deltas_that_are_late_are_done_without() {
    let mut rig = apart();
    rig.until(Timer::Hedge);
    assert_eq!(rig.asked_for_range(1), [A]);
    rig.serve(A);
    assert!(rig.head() > 0, "it was executed");
    let mut rig = apart();
    rig.answer(B);
    assert!(rig.head() > 0);
    assert!(rig.status().peers.iter().any(|peer| peer.id == B && peer.batches_applied > 0));
}

/// Goal: the node waits for late deltas if the operator wants deltas, or if only the same peer keeps the bodies.
#[test]
fn deltas_that_are_late_are_waited_for_where_there_is_nothing_else() {
    let rig = Node::new(Mode::Delta, 0).rig_on(long_chain());
    let mut rig = rig.peer(A, serves(1..=FAR).without_deltas()).peer(B, serves(1..=FAR).without_bodies());
    rig.step().until(Timer::Hedge);
    assert_eq!(rig.asked_for_range(1), [B]);
    let mut rig = Node::new(Mode::Auto, 0).rig_on(long_chain());
    rig.engine.stages.measured.fix(|costs| &mut costs.execute, 1e-4);
    let mut rig = rig.peer(B, serves(1..=FAR));
    rig.step().answer_if(B, |request| matches!(request, Request::Survey { .. }));
    rig.expect_range(B, 1).until(Timer::Hedge);
    assert!(rig.open.iter().all(|open| open.peer == B));
    assert_eq!(rig.asked_for_range(1).len(), 1, "it is on its way");
}

/// Goal: unknown peers that serve different things work at once. Bodies come first, so that something can be executed
/// while the first deltas are in flight.
#[test]
fn a_node_that_begins_asks_for_bodies_and_then_for_deltas_too() {
    let mut node = Node::new(Mode::Auto, 0);
    node.config.range_batches_max = 8.try_into().unwrap();
    let mut rig = node.rig_on(long_chain());
    // As expensive as applying.
    rig.engine.stages.measured.fix(|costs| &mut costs.execute, 1e-10);
    rig.engine.stages.measured.fix(|costs| &mut costs.prepare, 1e-6);
    let mut rig = rig.peer(A, serves(1..=FAR).without_deltas()).peer(B, serves(1..=FAR).without_bodies());
    rig.step();
    let is_survey = |request: &Request| matches!(request, Request::Survey { .. });
    rig.answer_if(A, is_survey).answer_if(B, is_survey);
    assert_eq!([1, 8].map(|first| rig.asked_for_range(first)), [vec![A], vec![A]]);
    assert!(!rig.asked(B).is_empty(), "{:#?}", rig.open);
    rig.serve(A).serve(B);
    assert_eq!(rig.head(), FAR);
    rig.blames_nobody();
}

/// All batches will be replayed in ranges of eight, from `A`, which keeps only bodies. A unit of gas costs `execute`
/// seconds.
fn replaying(execute: f64) -> Rig {
    let mut node = Node::new(Mode::Auto, 0);
    node.config.range_batches_max = 8.try_into().unwrap();
    let mut rig = node.rig_on(long_chain());
    rig.engine.stages.measured.fix(|costs| &mut costs.execute, execute);
    let mut rig = rig.peer(A, serves(1..=FAR).without_deltas());
    rig.step().answer_if(A, |request| matches!(request, Request::Survey { .. }));
    rig.expect_range(A, 1).expect_range(A, FAR);
    rig
}

/// Goal: a peer with deltas works from the far end while others' bodies are executed, even if everything was requested
/// before it came.
#[test]
fn what_execution_comes_to_last_is_asked_for_as_deltas() {
    let mut rig = replaying(1e-4);
    rig.holds_jobs = true;
    // The bodies have come, and are not checked.
    rig.answer_if(A, |request| matches!(request, Request::Range(range) if range.first.get() == 64));
    rig.meet(B, serves(1..=FAR).without_bodies());
    rig.step();
    assert_eq!([FAR, 72].map(|first| rig.asked_for_range(first)), [vec![B], vec![B]]);
    assert_eq!(
        (rig.asked(B).len(), rig.asked_for_range(1)),
        (2, vec![A]),
        "one after the other: {:#?}",
        rig.open
    );
    rig.holds_jobs = false;
    rig.work().answer(B);
    assert_eq!(
        [64, 56].map(|first| rig.asked_for_range(first)),
        [vec![B], vec![B]],
        "what came is asked for anew"
    );
    rig.serve(A).serve(B);
    assert_eq!(rig.head(), FAR);
    let applied = rig.status().peers.into_iter().map(|peer| peer.batches_applied).sum::<u64>();
    assert!(applied >= 25, "{applied}");
    rig.blames_nobody();
}

/// Goal: silent strangers with only deltas, under ever new keys, hold two ranges at a time. When execution gets there,
/// the node waits for the peer that was asked, and not for each stranger in turn.
#[test]
fn silent_strangers_with_deltas_hold_up_two_ranges_for_a_moment() {
    let mut rig = replaying(1e-4);
    rig.answer_if(A, |request| matches!(request, Request::Range(range) if range.first.get() == 1));
    let meet = |rig: &mut Rig, keys: std::ops::Range<u8>| {
        keys.for_each(|key| rig.meet(PublicKey([key; 32]), serves(1..=FAR).without_bodies()));
        rig.step();
    };
    meet(&mut rig, 100..120);
    let lent = |rig: &Rig| {
        let firsts = rig.open.iter().filter(|open| open.peer != A).map(|open| match open.request {
            Request::Range(range) => range.first,
            ref other => panic!("a stranger is asked for {other:?}"),
        });
        firsts.collect::<BTreeSet<BatchNumber>>().len()
    };
    assert_eq!(lent(&rig), 2);
    rig.serve(A);
    assert!(rig.head() < FAR && lent(&rig) == 2, "at {}", rig.head());
    let mut waits = 0;
    while rig.head() < FAR {
        meet(&mut rig, 120 + waits..121 + waits);
        rig.until(Timer::Hedge);
        waits += 1;
        assert!(lent(&rig) <= 2 && waits <= 6, "at {}: {:#?}", rig.head(), rig.open);
        rig.serve(A);
    }
}

/// Goal: a range that is executed sooner than its deltas come is not lent, nor is one whose other mode the operator
/// forbids.
#[test]
fn what_is_executed_soon_is_not_asked_for_as_deltas() {
    let mut rig = replaying(1e-14);
    rig.engine.stages.measured.fix(|costs| &mut costs.prepare, 1e-14);
    rig.meet(B, serves(1..=FAR).without_bodies());
    rig.step();
    assert!(rig.asked(B).is_empty(), "{:#?}", rig.open);

    let mut rig = replaying(1e-4);
    rig.engine.config.forbid = vec![Mode::Delta];
    rig.meet(B, serves(1..=FAR).without_bodies());
    rig.step();
    assert!(rig.asked(B).is_empty(), "{:#?}", rig.open);

    let mut rig = apart();
    rig.engine.config.forbid = vec![Mode::Replay];
    rig.until(Timer::Hedge);
    assert_eq!(rig.asked_for_range(1), [B]);
}
