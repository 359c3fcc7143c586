//! Tests which senders a validator heeds, and which messages it accepts.

use std::sync::Arc;

use slipstream_eve::{Message, Order, SignedOrder, Status};
use slipstream_network::{MemoryHub, RefusalKind};
use slipstream_types::{BatchNumber, Blob, BlobKind, Clock, Digest, Epoch, Genesis};
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        domain,
        message::{self, Ordered, Request, Response},
    },
    batch, connect_all, lone, ordered,
};
use crate::testing::{Account, NOW_MS, Node, clock, genesis, store, until, validator_key};

fn status() -> Request {
    let number = BatchNumber::GENESIS;
    let status = Status {
        view: 0,
        changing: false,
        complains: false,
        decided: number,
        ordered: number,
        neglected: false,
        silence: None,
    };
    Request::Say(Epoch(0), Box::new(Message::Status(status)))
}

/// Goal: strangers, garbage and orders without their body are refused with a reason. Other messages and requests are
/// answered.
#[tokio::test(start_paused = true)]
async fn messages_are_taken_from_validators() {
    let genesis = genesis(4);
    let node = Node::start(&MemoryHub::new(), &genesis, 1, store(&genesis), clock());
    let primary = validator_key(0).public();
    let send = async |peer, request: &Request| {
        let answer = node.validator.handle(peer, message::encode(request).unwrap()).await;
        answer.map(|bytes| message::decode_response(&bytes).unwrap())
    };
    let stranger = send(validator_key(9).public(), &status()).await.unwrap_err();
    assert!(stranger.text().contains("is not a validator"), "{stranger}");
    let garbage = node.validator.handle(primary, vec![0xff; 100]).await.unwrap_err();
    assert_eq!(garbage.kind(), RefusalKind::Malformed);
    let made = batch(&genesis, &node.store, 0..2, NOW_MS);
    let whole = Request::Order(Box::new(ordered(&made)));
    let relayed = send(validator_key(2).public(), &whole).await.unwrap_err();
    assert!(relayed.text().contains("comes from the primary"), "{relayed}");
    assert_eq!(node.validator.status().refused, 3);

    // A statement of another epoch means nothing here: its seats are others'.
    let Request::Say(_, word) = status() else { unreachable!("it is said") };
    let other_order = |change: fn(&mut SignedOrder)| {
        let mut ordered = ordered(&made);
        change(&mut ordered.order);
        Request::Order(Box::new(ordered))
    };
    for (request, reason) in [
        (Request::Say(Epoch(1), word), "the message belongs to epoch 1"),
        (other_order(|it| it.order.epoch = Epoch(1)), "the message belongs to epoch 1"),
        (other_order(|it| it.signature.0[9] ^= 1), "is signed by the primary"),
    ] {
        let refused = send(primary, &request).await.unwrap_err();
        assert!(refused.text().contains(reason), "{refused}");
    }
    let heeded = |index| node.validator.takes_from(&validator_key(index).public());
    assert_eq!([0, 3, 4, 9].map(heeded), [true, true, false, false]);

    assert_eq!(send(primary, &status()).await.unwrap(), Response::Taken);
    // It is answered before it is processed.
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    // Only this validator and the primary were heard; the two others never were.
    let shown = node.validator.status();
    assert_eq!((shown.heard_within(1_000), shown.peers.len()), (2, 3));
    assert!(shown.peers.iter().all(|peer| peer.said.is_some() == (peer.key == primary)), "{shown:?}");
    // An order counts as heard, but does not report its sender's progress.
    tokio::time::advance(std::time::Duration::from_secs(5)).await;
    assert_eq!(node.validator.status().heard_within(1_000), 1);
    // Hints are advice, so any bytes will do.
    let hints = Some(Blob::compress(BlobKind::Hints, &[0xff; 60]).unwrap());
    let order = Request::Order(Box::new(Ordered { hints, ..ordered(&made) }));
    assert_eq!(send(primary, &order).await.unwrap(), Response::Taken);
    let shown = node.validator.status();
    let said = shown.peers.iter().find_map(|peer| peer.said).unwrap();
    assert!(shown.heard_within(1_000) == 2 && said.said_ms_ago >= 5_000, "{shown:?}");
    let ask = Request::Outcome { number: made.number(), token: made.token() };
    let shown = async || matches!(send(primary, &ask).await.unwrap(), Response::Outcome(_));
    tokio::time::timeout(std::time::Duration::from_secs(9), async {
        while !shown().await {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("it is executed");
    let unknown = Request::Outcome { number: BatchNumber::new(7), token: made.token() };
    assert_eq!(send(primary, &unknown).await.unwrap(), Response::Lacks);
    let genesis_token = Request::Outcome { number: BatchNumber::GENESIS, token: made.token() };
    assert_eq!(send(primary, &genesis_token).await.unwrap(), Response::Lacks);
    node.stop().await;
}

/// Two orders of one batch in one view by validator 0, the view's primary. Only what follows the order differs.
fn orders(genesis: &Genesis, view: u64, number: u64, bodies: [Vec<u8>; 2]) -> [Vec<u8>; 2] {
    let order = Order {
        epoch: Epoch(0),
        view,
        number: BatchNumber::new(number),
        parent: Digest::ZERO,
        timestamp_ms: NOW_MS,
        transactions: Digest::ZERO,
    };
    let domain = domain(genesis.header().unwrap().digest(), &genesis.validator_set());
    let order = SignedOrder::new(order, &domain, &validator_key(0));
    bodies.map(|content| {
        let body = Blob::compress(BlobKind::Body, &content).unwrap();
        message::encode(&Request::Order(Box::new(Ordered { order: order.clone(), body, hints: None })))
            .unwrap()
    })
}

/// Goal: nothing after the head of an unwanted order is decoded, unpacked or hashed, however many orders come at once.
/// The bodies here are not those that the orders name, and one is cut off. The status names their sender.
#[tokio::test(start_paused = true)]
async fn unwanted_orders_are_not_unpacked() {
    const ZEROS_BYTES: usize = 16 << 20;
    let genesis = genesis(4);
    let node = Node::start(&MemoryHub::new(), &genesis, 1, store(&genesis), clock());
    let primary = validator_key(0).public();
    let mut sending = tokio::task::JoinSet::new();
    // Orders of a far view, and of a committed batch.
    for (view, number) in [(4_000, 1), (0, 0)] {
        let [long, mut cut] = orders(&genesis, view, number, [vec![0; ZEROS_BYTES], b"body".to_vec()]);
        cut.truncate(cut.len() - 1);
        for index in 0..64 {
            let (validator, payload) =
                (node.validator.clone(), if index % 2 == 0 { long.clone() } else { cut.clone() });
            sending.spawn(async move { validator.handle(primary, payload).await });
        }
    }
    for answer in sending.join_all().await {
        assert_eq!(message::decode_response(&answer.unwrap()).unwrap(), Response::Taken);
    }
    let shown = node.validator.status();
    assert_eq!((shown.unwanted, shown.refused), (128, 0));
    let by_peer: Vec<_> = shown.peers.iter().map(|peer| (peer.index, peer.unwanted)).collect();
    assert_eq!(by_peer, [(0, 128), (2, 0), (3, 0)]);
    node.stop().await;
}

/// Goal: a primary that sends a wanted order with another body, or a broken one, has only one body of that view
/// unpacked. This validator then wants the next primary.
#[tokio::test(start_paused = true)]
async fn a_primary_sends_a_wrong_body_once() {
    let genesis = genesis(4);
    let [wrong, mut cut] = orders(&genesis, 0, 1, [b"other".to_vec(), b"other".to_vec()]);
    cut.truncate(cut.len() - 1);
    for (payload, reason) in [(wrong, "an order comes with the body"), (cut, "malformed consensus request")] {
        let node = Node::start(&MemoryHub::new(), &genesis, 1, store(&genesis), clock());
        let (primary, others) =
            (validator_key(0).public(), [2, 3].map(|index| validator_key(index).public()));
        for other in others {
            node.validator.handle(other, message::encode(&status()).unwrap()).await.unwrap();
        }
        let refused = node.validator.handle(primary, payload.clone()).await.unwrap_err();
        assert!(refused.text().contains(reason), "{refused}");
        until("it complains", || node.validator.status().complains).await;
        for _ in 0..3 {
            node.validator.handle(primary, payload.clone()).await.unwrap();
        }
        let shown = node.validator.status();
        assert_eq!((shown.refused, shown.unwanted), (1, 3));
        node.stop().await;
    }
}

// A request to a stopped validator is refused at once.
#[tokio::test(start_paused = true)]
async fn a_validator_that_stopped_says_so() {
    let genesis = genesis(4);
    let (validator, driver) = lone(&genesis, &store(&genesis), 1).unwrap();
    let shutdown = CancellationToken::new();
    shutdown.cancel();
    driver.run(shutdown).await.unwrap();
    let payload = message::encode(&status()).unwrap();
    let refusal = validator.handle(validator_key(0).public(), payload).await.unwrap_err();
    assert_eq!(refusal.text(), "this validator is stopping");
    assert_eq!(validator.status().refused, 1);
}

struct BrokenClock;

impl Clock for BrokenClock {
    fn now_ms(&self) -> u64 {
        panic!("the clock is gone")
    }
}

// A panic of the validator ends it, and with it the node.
#[tokio::test]
async fn a_panic_ends_the_validator() {
    let genesis = genesis(1);
    let (hub, clock) = (MemoryHub::new(), Arc::new(BrokenClock));
    let node = Node::start(&hub, &genesis, 0, store(&genesis), clock);
    connect_all(&hub, &[0]);
    node.forwarder.submit(&Account::new(0).transfer(0, 1).raw, None).unwrap();
    assert!(node.panics().await.contains("the clock is gone"));
}
