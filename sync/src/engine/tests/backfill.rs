//! Goal: a node that began at a state fetches its history newest first, beside the head, from any peer that keeps it.

use std::{collections::BTreeMap, time::Duration};

use slipstream_network::PeerId;
use slipstream_storage::Store;
use slipstream_types::{BatchNumber, BlobKind};

use crate::{
    Mode,
    engine::{
        rig::{A, B, C, FAR, HEAD, Node, Rig, chain, chain_of_epochs, long_chain, pruned, serves},
        timers::Timer,
    },
    protocol::{Parts, Request},
};

const SECOND: Duration = Duration::from_secs(1);
const KINDS: [BlobKind; 3] = [BlobKind::Body, BlobKind::Receipts, BlobKind::Delta];

/// A node that keeps its history and begins at a snapshot. It asks for `batches` batches at a time.
fn at_snapshot(batches: u32) -> Node {
    let mut node = Node::new(Mode::Snapshot, 0);
    node.config.history = true;
    node.config.range_batches_max = batches.try_into().unwrap();
    node
}

fn lowest(rig: &Rig) -> Option<u64> {
    rig.store.lowest(BlobKind::Receipts).unwrap().map(BatchNumber::get)
}

/// The first batches of the ranges that a peer is asked for, up to the snapshot.
fn asked_before(rig: &Rig, peer: PeerId, snapshot: u64) -> Vec<u64> {
    let first = |request: &&Request| match request {
        Request::Range(range) => Some(range.first.get()).filter(|first| *first <= snapshot),
        _ => None,
    };
    rig.asked(peer).iter().filter_map(first).collect()
}

/// Checks that every blob and header equals the one in a store that committed everything.
#[track_caller]
fn has_all(rig: &Rig, source: &Store) {
    let head = rig.store.head().unwrap().header.number;
    for number in BatchNumber::new(1).through(head) {
        for kind in KINDS {
            let content =
                |store: &Store| store.blob(kind, number).unwrap().map(|blob| blob.content(kind).unwrap());
            assert_eq!(content(&rig.store), content(source), "{} {number}", kind.name());
        }
        let header = source.header(number).unwrap().unwrap();
        assert_eq!(rig.store.header(number).unwrap().as_ref(), Some(&header));
        assert_eq!(rig.store.find_header(&header.digest()).unwrap(), Some(number));
    }
    assert_eq!(rig.status().backfill, None);
}

/// Goal: the state comes first, then the batches behind it, then the history before it, newest first.
#[test]
fn the_head_comes_first_and_history_behind_it() {
    let mut rig = at_snapshot(8).rig().peer(A, serves(1..=HEAD).offering(30, 100, 8_000));
    rig.step();
    while rig.head() < HEAD {
        assert_eq!(asked_before(&rig, A, 30), [0; 0], "{:#?}", rig.open);
        assert!(rig.status().backfill.is_none_or(|backfill| backfill.reason == "the head comes first"));
        rig.answer(A);
    }
    let status = rig.status().backfill.unwrap();
    assert_eq!((status.lowest.get(), status.wanted_from.get(), status.batches_left), (31, 1, 30));
    assert!(
        status.reason.contains("asking ") && status.reason.contains("batches 24 to 30"),
        "{}",
        status.reason
    );
    // The chain stands still.
    rig.wait(3 * SECOND);
    let mut firsts = Vec::new();
    while rig.status().backfill.is_some() {
        let asked = asked_before(&rig, A, 30);
        assert_eq!(asked.len(), 1, "one at a time of a peer: {:#?}", rig.open);
        firsts.extend(asked);
        rig.wait(SECOND / 10).answer(A);
    }
    assert_eq!(firsts, [24, 16, 8, 1]);
    has_all(&rig, &chain().store);
    rig.blames_nobody();
}

/// Goal: while the head needs anything, no history is requested, checked or stored; then the backfill goes on where it
/// was.
#[test]
fn it_rests_while_the_node_is_behind() {
    let mut rig = at_snapshot(4).rig().peer(A, serves(1..=31).offering(30, 100, 8_000));
    rig.step();
    while lowest(&rig) != Some(24) {
        rig.wait(SECOND / 10).answer(A);
    }
    rig.meet(B, serves(33..=HEAD));
    rig.step().answer_if(A, |_| true);
    assert!(rig.status().backfill.unwrap().reason == "the head comes first", "{:#?}", rig.status().backfill);
    let before = lowest(&rig);
    rig.wait(SECOND).answer(A).wait(SECOND);
    assert_eq!((lowest(&rig), asked_before(&rig, A, 30)), (before, Vec::new()));
    rig.meet(A, serves(1..=HEAD));
    for _ in 0..40 {
        rig.wait(SECOND / 10).answer(A).answer(B);
    }
    assert_eq!(rig.head(), HEAD);
    has_all(&rig, &chain().store);
}

/// Goal: while new batches come, no history is requested for three times as long as the last answer took. After a pause
/// of the chain it is requested at once.
#[test]
fn it_leaves_the_link_to_a_head_that_moves() {
    let mut rig = at_snapshot(8).rig().peer(A, serves(1..=HEAD - 2).offering(30, 100, 8_000));
    rig.step();
    while asked_before(&rig, A, 30).is_empty() {
        rig.answer(A);
    }
    rig.commit(HEAD - 1).wait(SECOND / 10).answer(A);
    assert_eq!(asked_before(&rig, A, 30), [0; 0]);
    let reason = rig.status().backfill.unwrap().reason;
    assert!(reason.contains("serve the head first"), "{reason}");
    rig.wait(SECOND / 10);
    assert_eq!(asked_before(&rig, A, 30), [0; 0], "a third of the rest");
    rig.until(Timer::Backfill);
    assert_eq!(asked_before(&rig, A, 30), [16]);
    rig.wait(2 * SECOND).answer(A);
    assert_eq!(asked_before(&rig, A, 30), [8], "the head stands");
}

/// A peer answers until the history equals that of a store that committed everything.
#[track_caller]
fn fetch_all(rig: &mut Rig, peer: PeerId, source: &Store) {
    let mut turns = 0;
    while rig.status().backfill.is_some() {
        rig.wait(SECOND / 10).answer(peer);
        turns += 1;
        assert!(turns < 1_000, "{:#?}", rig.status().backfill);
    }
    has_all(rig, source);
}

/// The parts of each range that a peer is asked for, by the range's first batch.
fn parts_asked(rig: &Rig, peer: PeerId) -> BTreeMap<u64, Parts> {
    let parts = |request: &&Request| match request {
        Request::Range(range) => Some((range.first.get(), range.parts)),
        _ => None,
    };
    rig.asked(peer).iter().filter_map(parts).collect()
}

/// Goal: far from the target deltas come alone, and near it with all that the node keeps. The other parts come once the
/// node has reached the target.
#[test]
fn far_from_the_target_deltas_come_alone() {
    let mut node = Node::new(Mode::Delta, 0);
    node.config.history = true;
    node.config.range_batches_max = 8.try_into().unwrap();
    let mut rig = node.rig_on(long_chain()).peer(A, serves(1..=FAR));
    rig.step();
    let mut asked = BTreeMap::new();
    while rig.head() < FAR {
        asked.extend(parts_asked(&rig, A));
        rig.answer(A);
    }
    let whole = Parts::DELTA.with(Parts::BODY).with(Parts::RECEIPTS);
    let of = |first| asked.range(..=first).next_back().map(|(_, parts)| *parts);
    assert_eq!(of(1), Some(Parts::DELTA), "{asked:?}");
    assert!(of(FAR).unwrap().has(whole), "{asked:?}");
    rig.wait(3 * SECOND);
    fetch_all(&mut rig, A, &long_chain().store);
    rig.blames_nobody();
}

/// Goal: a node that keeps history follows peers that keep only deltas, and fetches the rest once a peer has it.
#[test]
fn who_keeps_deltas_alone_is_followed() {
    let mut node = Node::new(Mode::Auto, 0);
    node.config.history = true;
    let mut rig = node.rig_on(long_chain()).peer(A, serves(1..=FAR).without_bodies());
    rig.step().serve(A);
    assert_eq!(rig.head(), FAR);
    rig.wait(SECOND);
    let backfill = rig.status().backfill.unwrap();
    assert_eq!((backfill.lowest.get(), backfill.wanted_from.get()), (FAR + 1, 1));
    assert!(backfill.reason.contains("no connected peer"), "{}", backfill.reason);
    rig.meet(B, serves(1..=FAR));
    rig.step();
    fetch_all(&mut rig, B, &long_chain().store);
    rig.blames_nobody();
}

/// Goal: a stranger that claims the bodies too, and sends nothing, does not hold up deltas that a peer delivers.
#[test]
fn a_strangers_claim_to_keep_everything_delays_no_deltas() {
    let mut node = Node::new(Mode::Delta, 0);
    node.config.history = true;
    node.config.range_batches_max = 8.try_into().unwrap();
    let mut rig = node.rig_on(long_chain()).peer(A, serves(1..=FAR - 1).without_bodies());
    rig.step().serve(A);
    assert_eq!(rig.head(), FAR - 1);
    rig.meet(B, serves(1..=FAR));
    rig.grow(A, serves(1..=FAR).without_bodies()).wait(SECOND).serve(A);
    assert_eq!(rig.head(), FAR, "{:#?}", rig.open);
}

/// Goal: strangers that claim everything and send nothing, one after the other, delay deltas only for a moment, even if
/// no peer has delivered yet.
#[test]
fn silent_strangers_that_claim_everything_delay_deltas_for_a_moment() {
    let mut node = Node::new(Mode::Delta, FAR - 20);
    node.config.history = true;
    node.config.range_batches_max = 8.try_into().unwrap();
    let mut rig = node.rig_on(long_chain()).peer(B, serves(1..=FAR));
    rig.step().meet(A, serves(1..=FAR).without_bodies());
    let began = rig.now;
    while rig.head() < FAR {
        if !rig.asked(C).is_empty() {
            rig.lose(C);
        }
        rig.meet(C, serves(1..=FAR));
        rig.wait(SECOND / 10).answer(A);
        assert!(rig.now - began < 2 * SECOND, "{:#?}", rig.open);
    }
}

/// Time until the node has the first body, with a `tick` every tenth of a second.
#[track_caller]
fn bodies_come(rig: &mut Rig, mut tick: impl FnMut(&mut Rig)) -> Duration {
    let began = rig.now;
    while rig.store.blob(BlobKind::Body, BatchNumber::new(1)).unwrap().is_none() {
        tick(rig);
        rig.wait(SECOND / 10);
        assert!(rig.now - began < 60 * SECOND, "{:#?}", rig.status().backfill);
    }
    rig.now - began
}

/// A node at a snapshot of `A`, which keeps no deltas, beside `B`, which claims to keep everything.
fn beside_a_boaster() -> Rig {
    let honest = serves(1..=HEAD).without_deltas().offering(HEAD, 100, 8_000);
    let mut rig = at_snapshot(8).rig().peer(A, honest).peer(B, serves(1..=HEAD));
    rig.step().serve(A);
    assert_eq!(rig.head(), HEAD);
    rig
}

/// Goal: a stranger that claims to keep everything, and refuses or is silent, does not keep the node from what others have.
#[test]
fn a_boaster_does_not_keep_a_node_from_what_others_have() {
    let took = bodies_come(&mut beside_a_boaster(), |rig| _ = rig.refuse_if(B, |_| true).answer(A));
    assert!(took < 2 * SECOND, "{took:?}");
    let took = bodies_come(&mut beside_a_boaster(), |rig| _ = rig.answer(A));
    assert!(took < 5 * SECOND, "{took:?}");
}

/// Goal: batches that come without their bodies, each sooner than an answer of the backfill, do not restart the
/// backfill each time.
#[test]
fn batches_that_lack_parts_do_not_begin_the_backfill_anew() {
    let mut node = Node::new(Mode::Delta, 0);
    node.config.history = true;
    node.config.range_batches_max = 8.try_into().unwrap();
    let mut rig = node.rig_on(long_chain()).peer(B, serves(1..=30).without_bodies());
    rig.step().serve(B);
    rig.meet(A, serves(1..=30).without_deltas());
    let (mut head, mut ticks) = (30, 0);
    bodies_come(&mut rig, |rig| {
        ticks += 1;
        head = FAR.min(head + 1);
        rig.grow(A, serves(1..=head).without_deltas());
        rig.grow(B, serves(1..=head).without_bodies()).rumour(B, head).answer(B);
        if ticks % 3 == 0 {
            rig.answer(A);
        }
    });
    assert!(rig.head() < FAR, "after {ticks} ticks");
}

/// Goal: a peer that lies about the past is banned, and the same batches are fetched from another.
#[test]
fn a_liar_is_banned_and_another_one_asked() {
    let mut rig = at_snapshot(64).rig().peer(A, serves(1..=30).offering(30, 100, 8_000));
    rig.step();
    while asked_before(&rig, A, 30).is_empty() {
        rig.answer(A);
    }
    rig.lie(A, b"no batches");
    assert_eq!(rig.bans.len(), 1);
    assert!(
        rig.status().backfill.unwrap().reason.contains("no connected peer"),
        "{:#?}",
        rig.status().backfill
    );
    rig.meet(B, serves(1..=30));
    rig.step().expect_range(B, 24).serve(B);
    has_all(&rig, &chain().store);
    assert_eq!(rig.bans.len(), 1);
}

/// Goal: a peer that pruned what it had reported is left alone for a while, and keeps its score.
#[test]
fn who_does_not_keep_the_range_is_not_blamed() {
    let mut rig = at_snapshot(64).rig().peer(A, serves(1..=30).offering(30, 100, 8_000));
    rig.step();
    while asked_before(&rig, A, 30).is_empty() {
        rig.answer(A);
    }
    let is_range = |request: &Request| matches!(request, Request::Range(_));
    rig.refuse_if(A, is_range).wait(SECOND);
    assert_eq!(asked_before(&rig, A, 30), [0; 0]);
    rig.blames_nobody();
    rig.until(Timer::Backfill).serve(A);
    has_all(&rig, &chain().store);
    rig.blames_nobody();
}

/// Goal: the node does not wait for a late peer while another one has the range, and the late answer changes nothing.
#[test]
fn a_silent_peer_is_not_waited_for() {
    let mut rig = at_snapshot(64).rig().peer(A, serves(1..=30).offering(30, 100, 8_000));
    rig.step();
    while asked_before(&rig, A, 30).is_empty() {
        rig.answer(A);
    }
    rig.meet(B, serves(1..=30));
    rig.step().serve(B).wait(SECOND).serve(B);
    assert_eq!((asked_before(&rig, A, 30), asked_before(&rig, B, 30)), (vec![1], Vec::new()));
    rig.until(Timer::Backfill);
    assert_eq!(asked_before(&rig, B, 30), [1]);
    rig.serve(B).wait(SECOND).serve(B);
    has_all(&rig, &chain().store);
    rig.answer(A).wait(SECOND);
    has_all(&rig, &chain().store);
    rig.blames_nobody();
}

/// Goal: a part that no peer keeps is requested as soon as a peer comes that keeps it.
#[test]
fn what_nobody_keeps_is_asked_for_when_somebody_does() {
    let mut rig = at_snapshot(64).rig().peer(A, serves(21..=30).offering(30, 100, 8_000));
    rig.step().serve(A).wait(SECOND).serve(A);
    assert_eq!(lowest(&rig), Some(21));
    let status = rig.status().backfill.unwrap();
    assert_eq!((status.lowest.get(), status.batches_left), (21, 20));
    assert_eq!(status.reason, "no connected peer keeps older batches");
    // A peer that keeps only bodies and receipts, and one with deltas.
    rig.meet(A, serves(1..=30).without_deltas());
    rig.until(Timer::Summary).serve(A).wait(SECOND).serve(A);
    assert_eq!(
        (lowest(&rig), rig.store.lowest(BlobKind::Delta).unwrap()),
        (Some(1), Some(BatchNumber::new(21)))
    );
    rig.meet(B, serves(1..=30));
    rig.step().expect_range(B, 1);
    let parts: Vec<Parts> = rig
        .asked(B)
        .into_iter()
        .filter_map(|request| match request {
            Request::Range(range) => Some(range.parts),
            _ => None,
        })
        .collect();
    assert_eq!(parts, [Parts::DELTA.with(Parts::HINTS)]);
    rig.serve(B);
    has_all(&rig, &chain().store);
    rig.blames_nobody();
}

/// Goal: after a kill only the store says where to go on, even in the middle of a gap.
#[test]
fn a_restart_goes_on_where_the_store_is() {
    let mut rig = at_snapshot(8).rig().peer(A, serves(1..=30).offering(30, 100, 8_000));
    rig.step();
    while lowest(&rig) != Some(16) {
        rig.wait(SECOND / 10).answer(A);
    }
    let mut rig = rig.restarted(at_snapshot(8)).peer(B, serves(1..=30));
    rig.step().expect_range(B, 8);
    for _ in 0..9 {
        rig.wait(SECOND / 10).answer(B);
    }
    has_all(&rig, &chain().store);
}

/// Goal: batches of earlier epochs are checked against the validators of their own epochs.
#[test]
fn it_passes_the_ends_of_epochs() {
    let source = chain_of_epochs();
    let mut rig = at_snapshot(4).rig_on(source).peer(A, serves(1..=25).offering(20, 100, 8_000));
    for _ in 0..60 {
        rig.wait(SECOND / 10).answer(A);
    }
    assert_eq!(rig.head(), 25);
    has_all(&rig, &source.store);
    rig.blames_nobody();
}

/// Goal: the backfill ends where it meets what the node kept before a leap.
#[test]
fn it_joins_what_was_there_before_a_leap() {
    let mut node = at_snapshot(64);
    (node.head, node.config.mode) = (20, Mode::RangeDelta);
    let mut rig = node.rig_on(long_chain()).peer(A, serves(1..=FAR).offering(FAR, 100, 8_000));
    rig.step();
    while rig.head() < FAR {
        rig.answer(A);
    }
    assert_eq!(rig.status().batches, 0, "by a range delta");
    assert_eq!(asked_before(&rig, A, FAR), [64]);
    rig.wait(SECOND).answer(A).wait(SECOND);
    assert_eq!(asked_before(&rig, A, FAR), [21]);
    rig.answer(A).wait(SECOND);
    assert_eq!(lowest(&rig), Some(1));
    has_all(&rig, &long_chain().store);
}

/// Goal: a node without history, and one whose peers have only snapshots, ask for nothing.
#[test]
fn who_wants_no_history_asks_for_none() {
    let mut node = at_snapshot(64);
    node.config.history = false;
    let mut rig = node.rig().peer(A, serves(1..=30).offering(30, 100, 8_000));
    rig.step().serve(A).wait(SECOND).serve(A);
    assert_eq!((rig.status().backfill, rig.asked(A).len()), (None, 0));
    let mut rig = at_snapshot(64).rig().peer(A, pruned(30).offering(30, 100, 8_000));
    rig.step().serve(A).wait(SECOND).serve(A);
    assert_eq!((rig.head(), rig.asked(A).len()), (30, 0));
    assert_eq!(rig.status().backfill.unwrap().reason, "no connected peer keeps older batches");
}
