//! Tests which senders a validator heeds, and which messages it takes.

use std::sync::Arc;

use slipstream_eve::{Message, Status};
use slipstream_network::{MemoryHub, RefusalKind};
use slipstream_types::{BatchNumber, Blob, BlobKind, Clock, Epoch};
use tokio_util::sync::CancellationToken;

use super::{
    super::message::{self, Ordered, Request, Response},
    batch, connect_all, lone, ordered,
};
use crate::testing::{Account, NOW_MS, Node, clock, genesis, store, validator_key};

fn status() -> Request {
    let number = BatchNumber::GENESIS;
    let status = Status { view: 0, changing: false, complains: false, decided: number, ordered: number };
    Request::Say(Epoch(0), Box::new(Message::Status(status)))
}

/// Goal: strangers, garbage and orders without their body are refused by name; what others say and ask is answered.
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
    let other = Blob::compress(BlobKind::Body, b"other").unwrap();
    let wrong = Request::Order(Box::new(Ordered { body: other, ..ordered(&made) }));
    let refused = send(primary, &wrong).await.unwrap_err();
    assert!(refused.text().contains("an order comes with the body"), "{refused}");
    assert_eq!(node.validator.status().refused, 3);

    assert_eq!(send(primary, &status()).await.unwrap(), Response::Taken);
    // It and the primary; of the two others it says that they were never heard.
    let shown = node.validator.status();
    assert_eq!((shown.heard_within(1_000), shown.peers.len()), (2, 3));
    assert!(shown.peers.iter().all(|peer| peer.said.is_some() == (peer.key == primary)), "{shown:?}");
    // An order is heard too, and no word of how far who made it is.
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
