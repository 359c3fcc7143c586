//! The mesh among honest nodes, dead ones and liars.

mod siege;

use std::{cell::RefCell, rc::Rc};

use slipstream_coding::CodecKind;
use slipstream_types::bounded::{BoundedBytes, BoundedVec};

use super::{
    rig::{Chain, LATENCY, Rig, key, peer},
    *,
};

const BODY: usize = 120_000;

fn second() -> Duration {
    Duration::from_secs(1)
}

/// Goal: with every codec a batch passes through a line of nodes at one latency a hop, and no node has to ask.
#[test]
fn a_batch_goes_down_a_line_of_nodes() {
    for &kind in CodecKind::ALL {
        let mut rig = Rig::line(Chain::new(&[BODY]), 4).connect();
        let begun = rig.now;
        rig.publish(0, 1, kind, 0);
        rig.run_for(second());
        assert_eq!(rig.without(1), [0], "{kind}: the source has it anyway");
        let last = rig.nodes[3].complete[&1];
        assert!(last <= LATENCY * 4 + (begun - begun) + LATENCY * 3, "{kind}: {last:?}");
        assert_eq!(rig.nodes.iter().map(|node| node.mesh.status().pulls).sum::<u64>(), 0, "{kind}");
        assert_eq!(&rig.nodes[3].delivered[0].body, rig.chain.body(1));
        let sent = rig.nodes.iter().map(|node| node.chunk_bytes_sent).max().unwrap();
        assert!(sent < BODY * 9 / 8, "{kind}: {sent} bytes for a single peer");
        rig.blames_nobody();
    }
}

/// Goal: of two nodes that meet, one may look late and miss the other's message. Each still learns what the other
/// wants.
#[test]
fn who_meets_late_is_told_again() {
    let mut rig = Rig::line(Chain::new(&[BODY]), 2);
    for node in [1, 0] {
        rig.meet(node);
        rig.run_for(LATENCY * 3);
    }
    rig.publish(0, 1, CodecKind::Gossip, 0);
    rig.run_for(LATENCY * 2);
    assert_eq!((rig.without(1), rig.nodes[1].mesh.status().pulls), (vec![0], 0));
}

/// Goal: a node that already has an announced batch by other ways says so, and is sent no more of it.
#[test]
fn what_is_committed_is_not_sent() {
    let mut rig = Rig::line(Chain::new(&[BODY]), 2).connect();
    rig.commit(1, 1);
    rig.publish(0, 1, CodecKind::ReedSolomon, 0);
    rig.run_for(LATENCY * 3);
    let payload = &rig.nodes[0].mesh.batches[&BatchNumber::new(1)].payloads[0];
    assert!(payload.sides[&peer(1)].has);
    rig.blames_nobody();
}

/// Goal: a message to several peers is in memory once: both the announcement and a payload that is sent whole.
#[test]
fn peers_share_the_bytes_of_what_they_are_sent() {
    let mut rig = Rig::new(Chain::new(&[BODY]), 7);
    (1..7).for_each(|node| rig.link(0, node));
    let mut rig = rig.connect();
    let sent = Rc::new(RefCell::new(Vec::new()));
    let seen = sent.clone();
    rig.change = Box::new(move |from, _, message| {
        if from == 0 {
            seen.borrow_mut().push(message.clone());
        }
        Some(message)
    });
    rig.publish(0, 1, CodecKind::Gossip, 0);
    rig.run_for(LATENCY * 2);
    for kind in [0, 1] {
        let sent = sent.borrow();
        let alike: Vec<_> = sent.iter().filter(|message| message.first() == Some(&kind)).collect();
        let places: BTreeSet<_> = alike.iter().map(|message| message.as_ptr()).collect();
        assert_eq!((alike.len(), places.len()), (6, 1), "kind {kind}");
    }
    rig.blames_nobody();
}

/// Goal: a coded payload moves on before it is whole.
#[test]
fn a_relay_does_not_wait_for_the_whole() {
    let mut rig = Rig::line(Chain::new(&[BODY]), 3).connect();
    // At first only some of the chunks to the middle node arrive.
    let mut passed = 0;
    rig.change = Box::new(move |from, to, message| {
        passed += usize::from((from, to) == (0, 1) && message.first() == Some(&1));
        (passed <= 4 || (from, to) != (0, 1)).then_some(message)
    });
    rig.publish(0, 1, CodecKind::Rlnc, 0);
    rig.run_for(LATENCY * 4);
    let status = rig.nodes[2].mesh.status();
    assert!(status.parts[&Part::Body].useful > 0, "{status:?}");
    assert_eq!(rig.without(1), [0, 1, 2]);
}

/// Goal: with several batches in flight, every node of a graph gets each of them, sends within its cap, and receives
/// few duplicates.
#[test]
fn a_graph_is_covered_within_the_cap() {
    for &kind in CodecKind::ALL {
        let mut rig = Rig::graph(Chain::new(&[BODY, 1_000, BODY]), 30, 4).connect();
        for number in 1..=3 {
            rig.publish(0, number, kind, 0);
            rig.run_for(LATENCY);
        }
        rig.run_for(second());
        for number in 1..=3 {
            assert_eq!(rig.without(number), [0], "{kind}");
        }
        let config = BroadcastConfig::default();
        let cap = if kind == CodecKind::Gossip { config.degree } else { 2 * config.send_cap };
        let most = (2 * BODY + 1_000) * usize::from(cap) * 13 / 10;
        for (index, node) in rig.nodes.iter().enumerate() {
            assert!(
                node.chunk_bytes_sent <= most,
                "{kind}: {index} sent {} of {most}",
                node.chunk_bytes_sent
            );
        }
        rig.blames_nobody();
    }
}

/// Goal: a node that wants no bodies gets none. It still hears of each batch and passes it on.
#[test]
fn a_node_that_applies_deltas_receives_no_body() {
    let mut rig = Rig::line(Chain::new(&[BODY]), 3);
    rig.nodes[1].mesh.handle_wants(Wants::default());
    let mut rig = rig.connect();
    rig.publish(0, 1, CodecKind::ReedSolomon, 0);
    rig.run_for(second() * 3);
    let middle = &rig.nodes[1];
    assert_eq!((&middle.delivered[..], &middle.heard[..], &middle.gave_up[..]), (&[][..], &[1][..], &[][..]));
    assert!(middle.mesh.status().parts.is_empty() && middle.chunk_bytes_sent == 0);
    // A body cannot come through it. The node behind it fetches the body from the peer that announced the batch, as
    // soon as its neighbours have no chunks of it.
    assert_eq!((&rig.nodes[2].heard[..], &rig.nodes[2].gave_up[..]), (&[1][..], &[1][..]));
    assert_eq!(rig.nodes[2].mesh.status().incomplete, 1);
}

/// Goal: when half of the nodes fall silent in the midst of a batch, the others get it by a repair, before the
/// deadline.
#[test]
fn half_of_the_nodes_may_die() {
    for &kind in CodecKind::ALL {
        let mut rig = Rig::graph(Chain::new(&[BODY]), 40, 6).connect();
        rig.publish(0, 1, kind, 0);
        rig.run_for(LATENCY + LATENCY / 2);
        (1..40).filter(|node| node % 2 == 1).for_each(|node| rig.nodes[node].is_dead = true);
        rig.run_for(Duration::from_millis(600));
        assert_eq!(rig.without(1), [0], "{kind}");
        rig.blames_nobody();
    }
}

/// Goal: lost messages are asked for again.
#[test]
fn what_is_lost_is_repaired() {
    for &kind in CodecKind::ALL {
        let mut rig = Rig::line(Chain::new(&[BODY]), 3).connect();
        let mut sent = 0;
        rig.change = Box::new(move |_, _, message| {
            sent += usize::from(message.first() == Some(&1));
            (message.first() != Some(&1) || sent > 2).then_some(message)
        });
        rig.publish(0, 1, kind, 0);
        rig.run_for(second());
        assert_eq!(rig.without(1), [0], "{kind}");
        assert!(rig.nodes[1].mesh.status().pulls > 0);
        rig.blames_nobody();
    }
}

/// Goal: a sender of forged chunks keeps nobody from the batch. Only the forger may be cut off, and its relays stay.
#[test]
fn a_forger_harms_nobody() {
    for &kind in CodecKind::ALL {
        let mut rig = Rig::graph(Chain::new(&[BODY]), 12, 4).connect();
        rig.change = Box::new(|from, _, message| {
            if from != 5 || message.first() != Some(&1) {
                return Some(message);
            }
            let mut forged = message.to_vec();
            let last = forged.len() - 3;
            forged[last] ^= 1;
            Some(forged.into())
        });
        rig.publish(0, 1, kind, 0);
        rig.run_for(second());
        assert!(rig.without(1).iter().all(|node| [0, 5].contains(node)), "{kind}: {:?}", rig.without(1));
        let banned: Vec<_> = rig.nodes.iter().flat_map(|node| &node.bans).collect();
        // Chunks after the last needed one stay unread; the next test has the others.
        assert!(banned.iter().all(|(who, _)| *who == peer(5)), "{kind}: {banned:?}");
    }
}

/// Goal: a forged chunk is noticed with any codec, and blamed on its sender.
#[test]
fn a_forged_chunk_is_its_senders() {
    for &kind in CodecKind::ALL {
        let mut rig = Rig::line(Chain::new(&[BODY]), 2).connect();
        rig.change = Box::new(|_, _, message| {
            let mut message = message.to_vec();
            let middle = message.len() / 2;
            message[middle] ^= u8::from(message[0] == 1);
            Some(message.into())
        });
        rig.publish(0, 1, kind, 0);
        rig.run_for(second());
        assert!(rig.nodes[1].bans.iter().all(|(who, _)| *who == peer(0)), "{kind}");
        assert_eq!(rig.nodes[1].bans.len(), 1, "{kind}");
        assert!(rig.nodes[1].complete.is_empty());
    }
}

/// Goal: a batch is announced under its own certificate, at its own place in the ledger, with plans that a validator
/// signed. A peer that announces anything else is cut off, and its messages are not passed on.
#[test]
fn what_is_not_signed_goes_nowhere() {
    let chain = Chain::new(&[BODY, BODY]);
    let body = chain.body(1).as_bytes().to_vec();
    let truth = chain.published(1, CodecKind::ReedSolomon, &body, 0).0;
    let second = chain.published(2, CodecKind::Gossip, &body, 0).0;
    let mut forged = Vec::new();
    let mut it = truth.clone();
    it.header.transactions_root = Digest([1; 32]);
    forged.push(it);
    let mut it = truth.clone();
    it.certificate.info.accumulator_root = Digest([1; 32]);
    forged.push(it);
    let mut it = truth.clone();
    it.certificate.signatures = BoundedVec::new(it.certificate.signatures[..2].to_vec()).unwrap();
    forged.push(it);
    let mut it = truth.clone();
    it.header.parent = Digest([1; 32]);
    forged.push(it);
    // The certificate of another batch.
    forged.push(Announced { certificate: second.certificate, ..truth.clone() });
    let mut it = truth.clone();
    let mut plan = it.plans[0].clone();
    plan.plan.bytes += 1;
    it.plans = BoundedVec::new(vec![plan]).unwrap();
    forged.push(it);
    let mut it = truth.clone();
    let mut plan = it.plans[0].clone();
    plan.signer = 1;
    it.plans = BoundedVec::new(vec![plan]).unwrap();
    forged.push(it);
    for (index, forged) in forged.into_iter().enumerate() {
        let mut rig = Rig::line(Chain::new(&[BODY, BODY]), 3).connect();
        rig.inject(0, 1, &Message::Batch(Box::new(forged)));
        rig.run_for(Duration::from_millis(100));
        assert_eq!(rig.nodes[1].bans.len(), 1, "case {index}");
        assert!(rig.nodes[2].delivered.is_empty() && rig.nodes[2].bans.is_empty(), "case {index}");
    }
}

/// Goal: if a validator signs a false payload, a node that assembles it finds out. Relays keep their score, and an
/// honest validator's plan brings the batch.
#[test]
fn a_false_payload_is_its_signers() {
    for &kind in CodecKind::ALL {
        let mut rig = Rig::line(Chain::new(&[BODY]), 4).connect();
        let (announced, sources) =
            rig.chain.published(1, kind, Chain::new(&[BODY, BODY]).body(2).as_bytes(), 3);
        rig.nodes[0].mesh.handle_published(announced, sources, rig.now);
        rig.run_for(LATENCY * 2);
        let (announced, sources) = rig.chain.published(1, kind, rig.chain.body(1).as_bytes(), 1);
        rig.nodes[0].mesh.handle_published(announced, sources, rig.now);
        rig.run_for(second());
        assert_eq!(rig.without(1), [0], "{kind}");
        // A node that finds it out stops passing it on, so those behind it may never complete it.
        assert!(rig.nodes[1].mesh.liars.contains(&key(3).public()), "{kind}");
        assert!((2..4).all(|node| rig.nodes[node].mesh.liars.len() <= 1), "{kind}");
        rig.blames_nobody();
    }
}

/// Goal: a plan that a node on the way left out comes from others.
#[test]
fn plans_that_are_left_out_come_by_others() {
    let mut rig = Rig::new(Chain::new(&[BODY]), 3);
    [(0, 1), (1, 2), (0, 2)].into_iter().for_each(|(a, b)| rig.link(a, b));
    let mut rig = rig.connect();
    let (bare, _) = rig.chain.published(1, CodecKind::ReedSolomon, rig.chain.body(1).as_bytes(), 0);
    let bare = Announced { plans: BoundedVec::default(), ..bare };
    rig.inject(1, 2, &Message::Batch(Box::new(bare)));
    rig.publish(0, 1, CodecKind::ReedSolomon, 0);
    rig.run_for(second());
    assert_eq!(rig.without(1), [0]);
    rig.blames_nobody();
}

/// Goal: junk, stale and repeated messages are refused cheaply, mute their sender, and cost nobody else anything.
#[test]
fn junk_costs_its_sender() {
    let mut rig = Rig::graph(Chain::new(&[BODY]), 6, 3).connect();
    let stranger = PayloadId(Digest([3; 32]));
    for _ in 0..2_000 {
        let chunk = BoundedBytes::new(vec![7; 1_000]).unwrap();
        rig.inject(1, 0, &Message::Chunk { id: stranger, chunk });
    }
    assert_eq!(rig.nodes[0].mesh.status().muted, 1);
    assert!(rig.nodes[0].bans.is_empty(), "no proof of anything");
    let before = rig.nodes[0].mesh.status().bytes_useless;
    rig.inject(1, 0, &Message::Chunk { id: stranger, chunk: BoundedBytes::new(vec![7; 1_000]).unwrap() });
    assert_eq!(rig.nodes[0].mesh.status().bytes_useless, before, "it is not looked at any more");
    rig.nodes[2].mesh.handle_message(peer(1), &[99], rig.now);
    rig.publish(3, 1, CodecKind::Rlnc, 0);
    rig.run_for(second());
    assert_eq!(rig.without(1), [3]);
}

/// Goal: a peer that pulls gets at most twice the payload.
#[test]
fn pulls_are_bounded() {
    let mut rig = Rig::line(Chain::new(&[BODY]), 2).connect();
    rig.publish(0, 1, CodecKind::Rlnc, 0);
    rig.run_for(second());
    let sent = rig.nodes[0].chunk_bytes_sent;
    let id = *rig.nodes[0].mesh.places.keys().next().unwrap();
    for _ in 0..200 {
        rig.inject(1, 0, &Message::Lack { id, held: slipstream_coding::Held::Chunks(0) });
    }
    rig.run_for(second());
    let pulled = rig.nodes[0].chunk_bytes_sent - sent;
    assert!(pulled > BODY && pulled < BODY * 5 / 2, "{pulled}");
}
