//! The mesh against lying validators and peers, and in unlucky moments, which must not break it.

use slipstream_coding::{CodecKind, Commitment, Held};
use slipstream_types::bounded::{BoundedBytes, BoundedVec};

use super::super::{
    batch::DeliveryStage,
    rig::{Chain, LATENCY, Rig, key, peer},
    *,
};
use crate::message::SignedPlan;

const BODY: usize = 120_000;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A plan of a payload that nobody has, signed by a validator.
fn made_up(chain: &Chain, seat: u8, view: u64, part: Part, salt: u8) -> SignedPlan {
    of_bytes(BODY as u32, chain, seat, view, part, salt)
}

/// Like [`made_up`], for that number of bytes.
fn of_bytes(bytes: u32, chain: &Chain, seat: u8, view: u64, part: Part, salt: u8) -> SignedPlan {
    let (header, _, _) = &chain.batches[0];
    let plan = slipstream_coding::Plan { bytes, digest: Digest([salt; 32]), commitment: Commitment::Whole };
    SignedPlan::sign(header, (part, plan), view, (seat.into(), &key(seat))).unwrap()
}

/// Goal: validators whose plans are first everywhere, but that never send the payloads, do not delay a batch: room is
/// reserved for the leader's plans. Relays of the useless plans keep their score.
#[test]
fn false_plans_take_no_place_of_the_leaders() {
    let mut rig = Rig::graph(Chain::new(&[BODY]), 10, 3).connect();
    let (honest, sources) = rig.chain.published(1, CodecKind::ReedSolomon, rig.chain.body(1).as_bytes(), 0);
    let mut plans = Vec::new();
    for seat in 1..4 {
        plans.push(made_up(&rig.chain, seat, 0, Part::Body, seat));
        plans.push(made_up(&rig.chain, seat, 0, Part::Body, 10 + seat));
        // In a view of its own each validator leads.
        plans.push(made_up(&rig.chain, seat, seat.into(), Part::Hints, 20 + seat));
    }
    for plans in plans.chunks(3) {
        let told = Announced { plans: BoundedVec::new(plans.to_vec()).unwrap(), ..honest.clone() };
        (1..10).for_each(|node| rig.inject((node + 1) % 10, node, &Message::Batch(Box::new(told.clone()))));
    }
    let begun = rig.now;
    let head = rig.chain.heads[1].clone();
    rig.nodes[0].mesh.handle_head(head, rig.now);
    rig.nodes[0].mesh.handle_published(honest, sources, rig.now);
    rig.run_for(ms(900));
    assert_eq!(rig.without(1), [0], "{:?}", rig.now - begun);
    let batch = &rig.nodes[4].mesh.batches[&BatchNumber::new(1)];
    assert!(batch.plans.len() <= 3 && batch.plans.iter().all(|(_, plan)| plan.view == 0));
    assert!(
        batch.told.values().all(|told| told.plans.len() <= batch.plans.len()),
        "what is refused takes no memory"
    );
    rig.blames_nobody();
}

/// Goal: a node that takes what it is sent gets a batch's announcement and body at once, however many strangers want
/// everything and take nothing.
#[test]
fn those_that_take_nothing_come_last() {
    let mut rig = Rig::new(Chain::new(&[BODY; 6]), 62);
    (1..62).for_each(|node| rig.link(0, node));
    // Of the strangers' messages only their wants arrive.
    rig.change = Box::new(|from, _, message| (from < 2 || message.first() == Some(&5)).then_some(message));
    let mut rig = rig.connect();
    for number in 1..=6 {
        rig.publish(0, number, CodecKind::ReedSolomon, 0);
        rig.run_for(ms(60));
        let is_here = rig.nodes[1].complete.contains_key(&(number as u64));
        assert!(is_here || number == 1, "batch {number} is late");
        rig.run_for(ms(1_000));
        assert!(rig.nodes[1].complete.contains_key(&(number as u64)));
    }
    rig.blames_nobody();
}

/// Goal: if a batch's leader stays silent for a moment, another validator spreads the batch. If the leader does its
/// part, no other validator does.
#[test]
fn a_silent_leader_is_stood_in_for() {
    for is_silent in [true, false] {
        let mut rig = Rig::line(Chain::new(&[BODY]), 3).connect();
        let (header, certificate, body) = rig.chain.batches[0].clone();
        rig.commit(1, 1);
        let body: Arc<[u8]> = body.into_bytes().into();
        rig.nodes[1].mesh.handle_lent(header, certificate, body, rig.now);
        if !is_silent {
            rig.publish(0, 1, CodecKind::ReedSolomon, 0);
        }
        rig.run_for(ms(400));
        let lead = rig.nodes[1].leads.pop();
        assert_eq!(lead.is_some(), is_silent);
        if let Some(lead) = lead {
            let (announced, sources) = rig.chain.published(1, CodecKind::ReedSolomon, &lead.body, 2);
            rig.nodes[1].mesh.handle_published(announced, sources, rig.now);
        }
        rig.run_for(ms(200));
        assert!(rig.nodes[2].complete.contains_key(&1));
        rig.blames_nobody();
    }
}

/// Goal: a leader that signs a plan of another body than the agreed one delays a batch, but does not stop it. Validators that
/// have the body spread it.
#[test]
fn a_false_leader_is_stood_in_for() {
    let mut rig = Rig::line(Chain::new(&[BODY]), 3).connect();
    let (header, certificate, body) = rig.chain.batches[0].clone();
    rig.commit(1, 1);
    let body: Arc<[u8]> = body.into_bytes().into();
    rig.nodes[1].mesh.handle_lent(header, certificate, body, rig.now);
    let told = Announced {
        plans: BoundedVec::new(vec![made_up(&rig.chain, 0, 0, Part::Body, 9)]).unwrap(),
        ..rig.chain.published(1, CodecKind::Gossip, rig.chain.body(1).as_bytes(), 0).0
    };
    let id = told.plans[0].id(&rig.chain.batches[0].0.digest()).unwrap();
    rig.inject(0, 1, &Message::Batch(Box::new(told)));
    // A claim to have the payload proves nothing.
    rig.inject(2, 1, &Message::Have(BoundedVec::new(vec![id]).unwrap()));
    rig.run_for(ms(400));
    assert_eq!(rig.nodes[1].leads.len(), 1);
    assert!(rig.nodes[1].mesh.liars.is_empty(), "another packing of the same content is no lie");
}

/// Goal: a peer's wants arrive even if a message with them is lost, or the peer is muted at the moment.
#[test]
fn wants_are_told_again() {
    let mut rig = Rig::line(Chain::new(&[BODY]), 2);
    rig.change = Box::new(|from, _, message| (from == 0 || message.first() != Some(&5)).then_some(message));
    let mut rig = rig.connect();
    rig.change = Box::new(|_, _, message| Some(message));
    for _ in 0..2_000 {
        rig.inject(1, 0, &Message::Lack { id: crate::PayloadId(Digest([3; 32])), held: Held::Chunks(0) });
    }
    assert_eq!(rig.nodes[0].mesh.status().muted, 1);
    assert!(!rig.nodes[0].mesh.peers[&peer(1)].wants.body);
    rig.run_for(WANTS_EVERY + LATENCY * 2);
    assert!(rig.nodes[0].mesh.peers[&peer(1)].wants.body);
}

/// Goal: a batch is announced to a restarted peer as to any new peer.
#[test]
fn who_starts_again_knows_nothing() {
    let mut rig = Rig::line(Chain::new(&[BODY]), 2).connect();
    rig.publish(0, 1, CodecKind::ReedSolomon, 0);
    rig.run_for(ms(300));
    let id = *rig.nodes[0].mesh.places.keys().next().unwrap();
    let knows = |rig: &Rig| rig.nodes[0].mesh.batches[&BatchNumber::new(1)].knows(&peer(1), &id);
    let started = Message::Wants { wants: Wants { body: true, hints: false }, asks: true };
    rig.inject(1, 0, &started);
    assert!(knows(&rig), "it has said so a moment ago, when it connected");
    rig.run_for(ms(1_000));
    rig.inject(1, 0, &started);
    assert!(!knows(&rig));
}

/// Goal: however many keys ask, a source sends at most its cap at once on request, and a little more as time goes by.
#[test]
fn many_keys_pull_little() {
    let mut rig = Rig::new(Chain::new(&[BODY]), 13);
    (1..13).for_each(|node| rig.link(0, node));
    let mut rig = rig.connect();
    rig.publish(0, 1, CodecKind::ReedSolomon, 0);
    rig.run_for(ms(100));
    let sent = rig.nodes[0].chunk_bytes_sent;
    let id = *rig.nodes[0].mesh.places.keys().next().unwrap();
    let held = Held::Shards(BoundedBytes::new(vec![0; 8]).unwrap());
    for _ in 0..4 {
        (1..13).for_each(|node| rig.inject(node, 0, &Message::Lack { id, held: held.clone() }));
    }
    rig.run_for(LATENCY);
    let pulled = rig.nodes[0].chunk_bytes_sent - sent;
    let cap = usize::from(BroadcastConfig::default().send_cap);
    assert!(pulled > BODY && pulled < (cap + 1) * BODY * 11 / 10, "{pulled}");
}

/// Goal: a node that gets a batch by other ways still passes it on to the nodes behind it.
#[test]
fn a_relay_that_commits_early_goes_on() {
    let mut rig = Rig::line(Chain::new(&[BODY]), 3).connect();
    rig.publish(0, 1, CodecKind::ReedSolomon, 0);
    rig.run_for(LATENCY + LATENCY / 2);
    assert!(!rig.nodes[1].complete.contains_key(&1) || !rig.nodes[2].complete.contains_key(&1));
    rig.commit(1, 1);
    assert_eq!(rig.nodes[1].mesh.batches[&BatchNumber::new(1)].handed, DeliveryStage::All);
    rig.run_for(ms(100));
    assert!(rig.nodes[2].complete.contains_key(&1));
    rig.blames_nobody();
}

/// Goal: an announced batch far ahead in the ledger is kept only if it is certified.
#[test]
fn made_up_batches_take_no_places() {
    let mut rig = Rig::line(Chain::new(&[BODY, BODY, BODY]), 3).connect();
    let (mut told, _) = rig.chain.published(3, CodecKind::Gossip, rig.chain.body(3).as_bytes(), 0);
    rig.inject(0, 1, &Message::Batch(Box::new(told.clone())));
    assert_eq!(rig.nodes[1].mesh.waiting[&BatchNumber::new(3)].len(), 1);
    told.header.state_root = Digest([7; 32]);
    told.certificate.info.state_root = Digest([7; 32]);
    rig.inject(2, 1, &Message::Batch(Box::new(told)));
    assert_eq!(rig.nodes[1].bans.len(), 1);
    assert_eq!(rig.nodes[1].mesh.waiting[&BatchNumber::new(3)].len(), 1);
}

/// Goal: the first batch of an epoch waits for the last one of the epoch before.
#[test]
fn the_next_epoch_waits_for_this_one() {
    let mut rig = Rig::line(Chain::new(&[BODY, BODY]), 2).connect();
    let (mut told, _) = rig.chain.published(2, CodecKind::Gossip, rig.chain.body(2).as_bytes(), 0);
    (told.header.epoch, told.certificate.info.epoch) = (Epoch(1), Epoch(1));
    rig.inject(0, 1, &Message::Batch(Box::new(told.clone())));
    assert!(rig.nodes[1].mesh.waiting.contains_key(&BatchNumber::new(2)) && rig.nodes[1].bans.is_empty());
    let mut head = rig.chain.heads[1].clone();
    head.set = Arc::new(ValidatorSet { epoch: Epoch(1), ..ValidatorSet::clone(&head.set) });
    rig.nodes[1].mesh.handle_head(head, rig.now);
    assert!(rig.nodes[1].mesh.waiting.is_empty(), "it is looked at now");
    // The next batch is of this epoch, whatever anybody says.
    (told.header.epoch, told.certificate.info.epoch) = (Epoch(2), Epoch(2));
    rig.inject(0, 1, &Message::Batch(Box::new(told)));
    assert!(rig.nodes[1].mesh.waiting.is_empty());
}

/// Goal: a peer that sends junk again and again is cut off in the end; a validator is cut off only from the mesh.
#[test]
fn junk_without_end_is_cut_off() {
    let junk = Message::Have(BoundedVec::new(vec![crate::PayloadId(Digest([3; 32])); 1]).unwrap());
    let mut rig = Rig::line(Chain::new(&[BODY]), 2).connect();
    for _ in 0..3 {
        (0..1_100).for_each(|_| rig.inject(1, 0, &junk));
        rig.run_for(ms(10_001));
    }
    assert_eq!((rig.nodes[0].mesh.status().muted, rig.nodes[0].bans.len()), (2, 1));
    let validator = key(2).public();
    let mesh = &mut rig.nodes[0].mesh;
    mesh.handle_peers(&[validator], rig.now);
    mesh.ban(validator, "it lied".into(), rig.now);
    assert!(mesh.peers[&validator].is_muted(rig.now + ms(1_000)));
    assert!(!std::iter::from_fn(|| mesh.poll_effect()).any(|effect| matches!(effect, Effect::Ban { .. })));
}

/// Goal: a peer that repeats itself is charged for it.
#[test]
fn repetitions_are_charged() {
    let mut rig = Rig::line(Chain::new(&[BODY]), 2).connect();
    let (told, _) = rig.chain.published(1, CodecKind::ReedSolomon, rig.chain.body(1).as_bytes(), 0);
    (0..1_100).for_each(|_| rig.inject(0, 1, &Message::Batch(Box::new(told.clone()))));
    assert_eq!(rig.nodes[1].mesh.status().muted, 1);
}

/// Goal: a node that wants no bodies passes a late plan on to the nodes behind it.
#[test]
fn a_late_plan_passes_a_delta_node() {
    let mut rig = Rig::line(Chain::new(&[BODY]), 4);
    rig.nodes[1].mesh.handle_wants(Wants::default());
    rig.link(0, 3);
    let mut rig = rig.connect();
    let (told, _) = rig.chain.published(1, CodecKind::ReedSolomon, rig.chain.body(1).as_bytes(), 0);
    let bare = Announced { plans: BoundedVec::default(), ..told.clone() };
    rig.inject(0, 1, &Message::Batch(Box::new(bare)));
    rig.run_for(ms(200));
    rig.inject(0, 1, &Message::Plan { number: BatchNumber::new(1), plan: Box::new(told.plans[0].clone()) });
    rig.run_for(ms(200));
    assert_eq!(rig.nodes[2].mesh.batches[&BatchNumber::new(1)].plans.len(), 1);
}

/// Goal: a body that arrives after the mesh gave it up is still handed over, even while sync fetches it.
#[test]
fn late_is_better_than_never() {
    let mut rig = Rig::line(Chain::new(&[BODY]), 2).connect();
    let (held_back, at) = std::sync::mpsc::channel();
    rig.change = Box::new(move |_, _, message| {
        let is_chunk = message.first() == Some(&1);
        if is_chunk {
            held_back.send(message.clone()).unwrap();
        }
        (!is_chunk).then_some(message)
    });
    rig.publish(0, 1, CodecKind::Gossip, 0);
    rig.run_for(ms(3_000));
    assert_eq!((&rig.nodes[1].gave_up[..], rig.nodes[1].complete.len()), (&[1][..], 0));
    rig.inject(0, 1, &Message::decode(&at.recv().unwrap()).unwrap());
    assert_eq!(rig.without(1), [0]);
}

/// Goal: a leader that signs one plan for the validators and another one for the rest delays no batch, because both are taken. That alone
/// does not convict it: a restarted leader may cut the same content in another way.
#[test]
fn a_leader_with_two_plans_holds_nothing_up() {
    // 0 is the leader, 1 a validator that lends its body, 2 and 3 fullnodes behind it.
    let mut rig = Rig::line(Chain::new(&[BODY]), 4);
    [2, 3].into_iter().for_each(|node| rig.link(0, node));
    let mut rig = rig.connect();
    let (header, certificate, body) = rig.chain.batches[0].clone();
    let (good, _) = rig.chain.published(1, CodecKind::ReedSolomon, body.as_bytes(), 0);
    let bad = Announced {
        plans: BoundedVec::new(vec![made_up(&rig.chain, 0, 0, Part::Body, 9)]).unwrap(),
        ..good.clone()
    };
    [2, 3].into_iter().for_each(|node| rig.inject(0, node, &Message::Batch(Box::new(bad.clone()))));
    rig.commit(1, 1);
    rig.nodes[1].mesh.handle_lent(header, certificate, body.into_bytes().into(), rig.now);
    rig.inject(0, 1, &Message::Batch(Box::new(good)));
    rig.run_for(ms(400));
    assert!([2, 3].iter().all(|node| rig.nodes[*node].complete.contains_key(&1)));
    assert!(rig.nodes.iter().all(|node| node.mesh.liars.is_empty() && node.leads.is_empty()));
    // A third plan takes no place.
    let third = made_up(&rig.chain, 0, 0, Part::Body, 10);
    rig.inject(0, 2, &Message::Plan { number: BatchNumber::new(1), plan: Box::new(third) });
    assert_eq!(rig.nodes[2].mesh.batches[&BatchNumber::new(1)].plans.len(), 2);
    rig.blames_nobody();
}

/// Goal: nobody reserves more memory for a batch than its header allows.
#[test]
fn plans_of_more_bytes_than_there_can_be_are_lies() {
    let mut rig = Rig::line(Chain::new(&[BODY]), 2).connect();
    let (told, _) = rig.chain.published(1, CodecKind::Gossip, rig.chain.body(1).as_bytes(), 0);
    let plans = vec![of_bytes(20 << 20, &rig.chain, 0, 0, Part::Body, 9)];
    let told = Announced { plans: BoundedVec::new(plans).unwrap(), ..told };
    rig.inject(0, 1, &Message::Batch(Box::new(told)));
    let mesh = &rig.nodes[1].mesh;
    assert!(mesh.liars.contains(&key(0).public()) && mesh.batches[&BatchNumber::new(1)].payloads.is_empty());
    rig.blames_nobody();
}

/// Goal: late messages about a committed payload cost honest senders nothing. They learn at once that they need not go
/// on.
#[test]
fn who_sends_what_is_declined_is_told_so() {
    let mut rig = Rig::line(Chain::new(&[BODY]), 2).connect();
    let (told, _) = rig.chain.published(1, CodecKind::ReedSolomon, rig.chain.body(1).as_bytes(), 0);
    let bare = Announced { plans: BoundedVec::default(), ..told.clone() };
    rig.inject(0, 1, &Message::Batch(Box::new(bare)));
    rig.commit(1, 1);
    let (id, plan) = (told.plans[0].id(&told.header.digest()).unwrap(), told.plans[0].clone());
    rig.inject(0, 1, &Message::Plan { number: BatchNumber::new(1), plan: Box::new(plan) });
    let chunk = BoundedBytes::new(vec![1; 64 << 10]).unwrap();
    (0..1_000).for_each(|_| rig.inject(0, 1, &Message::Chunk { id, chunk: chunk.clone() }));
    rig.blames_nobody();
    rig.run_for(ms(1_100));
    (0..1_000).for_each(|_| rig.inject(0, 1, &Message::Chunk { id, chunk: chunk.clone() }));
    assert_eq!(rig.nodes[1].mesh.status().muted, 1, "it does not listen");
}

/// Goal: a validator passes hints on, though it has committed their batch before they are made.
#[test]
fn validators_pass_hints_on() {
    let mut rig = Rig::line(Chain::new(&[BODY]), 3);
    let wants = Wants { body: true, hints: true };
    (0..3).for_each(|node| rig.nodes[node].mesh.handle_wants(wants));
    let mut rig = rig.connect();
    let (header, certificate, body) = rig.chain.batches[0].clone();
    rig.publish(0, 1, CodecKind::ReedSolomon, 0);
    rig.commit(1, 1);
    let body: Arc<[u8]> = body.into_bytes().into();
    rig.nodes[1].mesh.handle_lent(header.clone(), certificate, body, rig.now);
    rig.run_for(ms(50));
    let (announced, sources) =
        rig.chain.published_part(1, (Part::Hints, CodecKind::ReedSolomon), &[7; 40_000], 0);
    let id = sources[0].id;
    rig.nodes[0].mesh.handle_published(announced, sources, rig.now);
    rig.run_for(ms(200));
    let has = |node: usize| {
        let mesh = &rig.nodes[node].mesh;
        mesh.batches[&BatchNumber::new(1)]
            .payloads
            .iter()
            .any(|payload| payload.id == id && payload.ended_at.is_some())
    };
    assert!(has(1), "the validator has them");
    let passed: u64 = rig.nodes[1].mesh.status().parts.get(&Part::Hints).map_or(0, |moved| moved.sent);
    assert!(passed > 0, "and passes them on");
}

/// Goal: a body is handed over even if every peer that announced it has left.
#[test]
fn a_body_outlives_its_tellers() {
    let mut rig = Rig::line(Chain::new(&[BODY]), 2).connect();
    let teller = peer(0);
    rig.change = Box::new(|_, _, message| Some(message));
    rig.publish(0, 1, CodecKind::Gossip, 0);
    rig.nodes[1].mesh.batches.values_mut().for_each(|batch| batch.forget(&teller));
    rig.run_for(LATENCY * 2);
    rig.nodes[1].mesh.batches.values_mut().for_each(|batch| batch.forget(&teller));
    rig.run_for(ms(100));
    assert_eq!(rig.without(1), [0]);
}

/// Goal: a muted peer that leaves and comes back stays muted, and messages meanwhile do not shorten the time.
#[test]
fn who_is_muted_stays_muted() {
    let mut rig = Rig::line(Chain::new(&[BODY]), 2).connect();
    let junk = Message::Have(BoundedVec::new(vec![crate::PayloadId(Digest([3; 32])); 1]).unwrap());
    let stranger = peer(1);
    (0..1_100).for_each(|_| rig.inject(1, 0, &junk));
    let (mesh, now) = (&mut rig.nodes[0].mesh, rig.now);
    mesh.handle_peers(&[], now);
    mesh.handle_peers(&[stranger], now);
    assert!(mesh.peers[&stranger].is_muted(now + ms(9_000)));
    mesh.peers.entry(stranger).and_modify(|it| it.mute(BAN, now));
    (0..1_100).for_each(|_| rig.inject(1, 0, &junk));
    assert!(rig.nodes[0].mesh.peers[&stranger].is_muted(now + BAN - ms(1)));
}
