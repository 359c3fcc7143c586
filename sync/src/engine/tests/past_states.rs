//! Goal: a node that began at a state gets the states before it by reverse deltas, from peers that know them, after the
//! history.

use std::time::Duration;

use slipstream_types::{BatchNumber, BlobKind, Delta, StateKey};

use crate::{
    Mode,
    engine::{
        rig::{A, B, HEAD, Node, Rig, chain, serves},
        timers::Timer,
    },
    protocol::Request,
};

const SECOND: Duration = Duration::from_secs(1);
const BEGIN: u64 = 30;

fn rig() -> Rig {
    let mut node = Node::new(Mode::Snapshot, 0);
    node.config.history = true;
    node.rig()
}

fn is_reverse(request: &Request) -> bool {
    matches!(request, Request::ReverseDelta { .. })
}

fn states_from(rig: &Rig) -> u64 {
    rig.store.states_from().unwrap().get()
}

/// Checks that all states from a batch on are those of the chain.
#[track_caller]
fn has_states(rig: &Rig, from: u64) {
    let source = &chain().store;
    assert_eq!(states_from(rig), from);
    let mut keys: Vec<StateKey> = Vec::new();
    for number in (1..=HEAD).map(BatchNumber::new) {
        let delta = Delta::open(&source.blob(BlobKind::Delta, number).unwrap().unwrap()).unwrap();
        keys.extend(delta.entries().iter().map(|entry| entry.key));
    }
    for number in (from..=rig.head()).map(BatchNumber::new) {
        let rows = rig.store.view_of(number).unwrap().unwrap().rows(&keys).unwrap();
        assert_eq!(rows, source.view_of(number).unwrap().unwrap().rows(&keys).unwrap(), "{number}");
    }
    assert_eq!(rig.status().past_states, None);
}

/// Answers until a peer is asked for past states.
fn until_asked(rig: &mut Rig) {
    for _ in 0..40 {
        if rig.asked(A).into_iter().any(is_reverse) {
            return;
        }
        rig.answer(A).wait(SECOND / 10);
    }
    panic!("nobody is asked: {:#?}", rig.status().past_states);
}

#[test]
fn past_states_come_behind_the_history() {
    let mut rig = rig().peer(A, serves(1..=HEAD).offering(BEGIN, 100, 8_000).with_states(0));
    rig.step();
    until_asked(&mut rig);
    assert_eq!((rig.status().backfill, states_from(&rig)), (None, BEGIN));
    let status = rig.status().past_states.unwrap();
    assert_eq!((status.lowest.get(), status.wanted_from.get()), (BEGIN, 0));
    assert!(status.reason.contains("asking "), "{}", status.reason);
    rig.answer(A).wait(SECOND);
    has_states(&rig, 0);
    rig.blames_nobody();
}

/// Goal: a peer that knows fewer states is asked for those, with a margin because its head moves on. The rest waits for
/// another peer.
#[test]
fn peers_give_the_states_that_they_know() {
    let mut rig = rig().peer(A, serves(1..=HEAD).offering(BEGIN, 100, 8_000).with_states(9));
    rig.step();
    until_asked(&mut rig);
    rig.answer(A).wait(SECOND);
    has_states(&rig, 25);
    rig.meet(B, serves(1..=HEAD).with_states(0));
    rig.step().serve(B).wait(SECOND).serve(B);
    has_states(&rig, 0);
    rig.blames_nobody();
}

/// Goal: a false reverse delta costs its sender, and another peer is asked. A peer that no longer knows the state is
/// left alone, unblamed.
#[test]
fn a_liar_is_banned_and_who_forgot_is_not() {
    let promise = || serves(1..=HEAD).offering(BEGIN, 100, 8_000).with_states(0);
    let mut rig = rig().peer(A, promise());
    rig.step();
    until_asked(&mut rig);
    rig.refuse_if(A, is_reverse).wait(SECOND);
    rig.blames_nobody();
    rig.until(Timer::Backfill);
    until_asked(&mut rig);
    rig.lie(A, b"no rows");
    assert_eq!((rig.bans.len(), states_from(&rig)), (1, BEGIN));
    rig.meet(B, promise());
    rig.step().serve(B).wait(SECOND).serve(B);
    has_states(&rig, 0);
    assert_eq!(rig.bans.len(), 1);
}
