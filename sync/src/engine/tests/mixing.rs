//! Goal: ranges of one gap are followed in two modes at once. A peer that serves one mode does not delay peers that could serve the other.

use crate::{
    Mode,
    engine::{
        rig::{A, B, FAR, Node, Rig, long_chain, serves},
        timers::Timer,
    },
    protocol::Request,
};

/// Execution is so dear that deltas are chosen; `A` keeps bodies only, and `B` deltas only. The sizes of headers are known.
fn apart() -> Rig {
    let mut rig = Node::new(Mode::Auto, 0).rig_on(long_chain());
    rig.engine.stages.costs.execute = 1.0;
    let mut rig = rig.peer(A, serves(1..=FAR).without_deltas()).peer(B, serves(1..=FAR).without_bodies());
    rig.step();
    let is_headers = |request: &Request| matches!(request, Request::Headers { .. });
    rig.answer_if(A, is_headers).answer_if(B, is_headers);
    rig.expect_range(B, 1);
    rig
}

/// Goal: if deltas are late and the bodies at hand, the node executes instead. Deltas that come are used.
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

/// Goal: where the operator wants deltas, or their peer keeps the bodies as well, another peer is waited for.
#[test]
fn deltas_that_are_late_are_waited_for_where_there_is_nothing_else() {
    let rig = Node::new(Mode::Delta, 0).rig_on(long_chain());
    let mut rig = rig.peer(A, serves(1..=FAR).without_deltas()).peer(B, serves(1..=FAR).without_bodies());
    rig.step().until(Timer::Hedge);
    assert_eq!(rig.asked_for_range(1), [B]);
    let mut rig = Node::new(Mode::Auto, 0).rig_on(long_chain());
    rig.engine.stages.costs.execute = 1.0;
    let mut rig = rig.peer(B, serves(1..=FAR));
    rig.step().answer_if(B, |request| matches!(request, Request::Headers { .. }));
    rig.expect_range(B, 1).until(Timer::Hedge);
    assert!(rig.open.iter().all(|open| open.peer == B));
    assert_eq!(rig.asked_for_range(1).len(), 1, "it is on its way");
}
