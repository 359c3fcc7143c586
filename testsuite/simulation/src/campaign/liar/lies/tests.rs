//! A liar's reactions to what it hears.

use slipstream_consensus::simulated::decode_request;
use slipstream_eve::{Evidence, Order, SignedOrder};
use slipstream_testkit::{info, keys, set};
use slipstream_types::{BlobKind, Epoch, batch::content_digest};

use super::*;

const DOMAIN: Digest = Digest::ZERO;

fn validators() -> (Vec<SecretKey>, ValidatorSet) {
    let keys = keys(0..4);
    let set = set(0, &keys, Default::default());
    (keys, set)
}

/// Returns the message of view 0's primary about batch 5.
fn verify(key: &SecretKey) -> Message {
    let info = info(0, 5);
    let order = Order {
        epoch: Epoch(0),
        view: 0,
        number: info.number,
        parent: Digest::ZERO,
        timestamp_ms: info.timestamp_ms,
        transactions: Digest::ZERO,
    };
    let order = SignedOrder::new(order, &DOMAIN, key);
    Message::Verify(Box::new(Verify { order, before: Digest::ZERO, info, took_ms: 0 }))
}

fn liar(lie: Lie, key: &SecretKey) -> Liar {
    let (_, set) = validators();
    Liar::new(lie, key.clone(), set.index_of(&key.public()).unwrap(), DOMAIN, set)
}

fn said(requests: &[OutgoingMessage]) -> Vec<Message> {
    let said = requests.iter().filter_map(|said| match decode_request(&said.request) {
        Ok(Request::Say(_, message)) => Some(*message),
        _ => None,
    });
    said.collect()
}

/// Returns the only message.
fn only(requests: &[OutgoingMessage]) -> Message {
    let said = said(requests);
    let [message] = &said[..] else { panic!("{said:?}") };
    message.clone()
}

/// Goal: two prepares convict the liar; each is validly signed, and the liar sends them once.
#[test]
fn two_votes_convict_the_liar() {
    let (keys, set) = validators();
    let mut liar = liar(Lie::DoubleVote, &keys[3]);
    let said = said(&liar.hear(&verify(&keys[0])).unwrap());
    let [Message::Prepare(first), Message::Prepare(second), Message::Commit(_), Message::Commit(_)] =
        said[..]
    else {
        panic!("{said:?}")
    };
    let seat = set.index_of(&keys[3].public()).unwrap();
    assert!(Evidence::Prepares(seat, Box::new([first, second])).is_valid(&set, &DOMAIN));
    assert_eq!(first.ballot.token, info(0, 5).digest(), "the truth comes first");
    assert!(liar.hear(&verify(&keys[0])).unwrap().is_empty());
    assert!(liar.hear(&Message::Prepare(first)).unwrap().is_empty());
}

/// Goal: made-up outcomes carry the primary's true order, and no two liars make up the same one.
#[test]
fn made_up_outcomes_stand_on_true_orders() {
    let (keys, set) = validators();
    let mut roots = BTreeSet::new();
    for key in &keys[2..] {
        let said = said(&liar(Lie::WrongRoot, key).hear(&verify(&keys[0])).unwrap());
        let [Message::Verify(verify), Message::Prepare(vote), Message::Commit(_)] = &said[..] else {
            panic!("{said:?}")
        };
        assert!(verify.order.is_signed(&set, &DOMAIN));
        assert_eq!(vote.ballot.token, verify.info.digest());
        roots.insert(verify.info.state_root);
    }
    assert!(roots.len() == 2 && !roots.contains(&info(0, 5).state_root));
}

/// Goal: a liar of `Anything` tells each lie exactly as a liar of that kind does.
#[test]
fn anything_is_each_lie_in_turn() {
    let (keys, _) = validators();
    for number in 0..Lie::DRAWN.len() as u64 {
        let Message::Verify(mut verify) = verify(&keys[0]) else { panic!("no outcome") };
        verify.info = info(0, number + 1);
        let message = Message::Verify(verify);
        let lie = Lie::Anything.about(&message);
        assert_eq!(lie, Lie::DRAWN[(number as usize + 1) % Lie::DRAWN.len()]);
        let bytes = |lie| {
            let said = liar(lie, &keys[3]).hear(&message).unwrap();
            said.into_iter().map(|said| (said.to, said.request)).collect::<Vec<_>>()
        };
        let told = bytes(Lie::Anything);
        assert!(!told.is_empty() && told == bytes(lie), "{lie:?}");
    }
}

#[test]
fn garbage_is_no_message_and_no_vote() {
    let (keys, set) = validators();
    let requests = liar(Lie::Garbage, &keys[3]).hear(&verify(&keys[0])).unwrap();
    assert!(requests.iter().any(|said| decode_request(&said.request).is_err()));
    let Message::Prepare(forged) = only(&requests) else { panic!("no vote") };
    let other = Vote { ballot: Ballot { token: Digest::ZERO, ..forged.ballot }, ..forged };
    assert!(!Evidence::Prepares(3, Box::new([forged, other])).is_valid(&set, &DOMAIN));
}

/// Goal: each other validator receives one prepare and one commit, half of them for an outcome that no validator has. A
/// node that receives both has proof.
#[test]
fn a_split_vote_is_one_vote_for_each_hearer() {
    let (keys, set) = validators();
    let requests = liar(Lie::SplitVotes, &keys[3]).hear(&verify(&keys[0])).unwrap();
    let heard_at = |place: usize| -> Vec<Message> {
        let here = requests.iter().filter(|said| said.to.has(place));
        here.flat_map(|it| said(std::slice::from_ref(it))).collect()
    };
    let (some, rest) = (heard_at(0), heard_at(1));
    let [Message::Prepare(first), Message::Commit(_)] = &some[..] else { panic!("{some:?}") };
    let [Message::Prepare(second), Message::Commit(_)] = &rest[..] else { panic!("{rest:?}") };
    assert_eq!(first.ballot.token, info(0, 5).digest());
    assert!(Evidence::Prepares(3, Box::new([*first, *second])).is_valid(&set, &DOMAIN));
    assert_eq!(heard_at(2), some);
}

/// Goal: the liar complains about each batch once, and about every status, in the others' view.
#[test]
fn complaints_have_no_end() {
    let (keys, _) = validators();
    let mut liar = liar(Lie::Complaints, &keys[3]);
    let Message::Status(status) = only(&liar.hear(&verify(&keys[0])).unwrap()) else { panic!("no status") };
    assert!(status.complains && !status.changing && status.view == 0);
    assert_eq!((status.decided.get(), status.ordered.get()), (4, 5));
    assert!(liar.hear(&verify(&keys[0])).unwrap().is_empty());
    let told = Status { view: 7, complains: false, changing: true, ..status };
    for _ in 0..3 {
        let said = only(&liar.hear(&Message::Status(told)).unwrap());
        assert_eq!(said, Message::Status(Status { complains: true, changing: false, ..told }));
    }
}

/// Goal: a view change that hides something is validly signed and shows nothing; an invented prepare lacks a quorum's
/// signatures.
#[test]
fn view_changes_hide_and_invent() {
    let (keys, set) = validators();
    for (lie, is_valid) in [(Lie::HiddenPrepares, true), (Lie::InventedPrepares, false)] {
        let mut liar = liar(lie, &keys[3]);
        let Message::ViewChange(change) = only(&liar.hear(&verify(&keys[0])).unwrap()) else {
            panic!("{lie:?}")
        };
        assert_eq!((change.view, change.seat, change.decided.is_none()), (1, 3, true));
        assert_eq!((change.is_valid(&set, &DOMAIN), change.prepared.is_none()), (is_valid, is_valid));
        if let Some(prepared) = &change.prepared {
            assert!(prepared.signatures.len() >= set.quorum() && prepared.view < change.view);
            assert_ne!(prepared.info, info(0, 5));
        }
        let other = ViewChange::new(6, 1, None, None, &DOMAIN, &keys[1]);
        let Message::ViewChange(joined) = only(&liar.hear(&Message::ViewChange(Box::new(other))).unwrap())
        else {
            panic!("{lie:?}")
        };
        assert_eq!((joined.view, joined.seat), (6, 3));
    }
}

/// Goal: a censor begins its view with a quorum's view changes. It orders one empty batch after another, from the last
/// decided one on, until another view begins. In another primary's view it is silent.
#[test]
fn a_censor_orders_empty_batches_in_its_turn() {
    let (keys, set) = validators();
    let mut liar = liar(Lie::EmptyBatches, &keys[3]);
    let leave = |liar: &mut Liar, view, key: &SecretKey| {
        let seat = set.index_of(&key.public()).unwrap();
        let change = ViewChange::new(view, seat, None, None, &DOMAIN, key);
        said(&liar.hear(&Message::ViewChange(Box::new(change))).unwrap())
    };
    let own_view = (0..4).find(|view| set.primary(*view) == liar.seat).unwrap();
    let others: Vec<_> = keys[..3].iter().collect();
    for key in &others {
        assert!(leave(&mut liar, own_view + 1, key).is_empty());
    }
    assert!(liar.order(1_000).unwrap().is_empty());
    let own_view = own_view + 4;
    assert!(
        leave(&mut liar, own_view, others[0]).is_empty() && leave(&mut liar, own_view, others[1]).is_empty()
    );
    let begun = leave(&mut liar, own_view, others[2]);
    let [Message::NewView(new)] = &begun[..] else { panic!("{begun:?}") };
    assert!(new.is_valid(&set, &DOMAIN) && new.view == own_view);
    let mut parent = Digest::ZERO;
    for number in 1..4 {
        let requests = liar.order(1_000 * number).unwrap();
        let [said] = &requests[..] else { panic!("{} orders", requests.len()) };
        let Ok(Request::Order(ordered)) = decode_request(&said.request) else { panic!("no order") };
        let order = &ordered.order.order;
        let content = ordered.body.content(BlobKind::Body).unwrap();
        assert!(ordered.order.is_signed(&set, &DOMAIN) && content.len() == 1, "an empty list");
        assert_eq!(order.transactions, content_digest(BlobKind::Body, &content));
        assert_eq!((order.number.get(), order.view, order.parent), (number, own_view, parent));
        parent = order.digest(&DOMAIN);
    }
    let status = Status {
        view: own_view + 1,
        changing: true,
        complains: false,
        decided: BatchNumber::GENESIS,
        ordered: BatchNumber::GENESIS,
        neglected: false,
        silence: None,
    };
    assert!(liar.hear(&Message::Status(status)).unwrap().is_empty());
    assert!(liar.order(9_000).unwrap().is_empty());
}
