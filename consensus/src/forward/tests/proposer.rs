//! A proposer that is busy, away, replaced or forgetful gets what waits for it, and its refusals are reported.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use alloy_primitives::Address;
use slipstream_network::{BoxFuture, Handler, Payload, Protocol};
use slipstream_types::{Epoch, Validator, bounded::BoundedVec};

use super::*;

/// A proposer that fails until it is back.
struct Failing {
    forwarder: Arc<Forwarder>,
    is_back: AtomicBool,
}

impl Handler for Failing {
    fn request<'a>(
        &'a self,
        peer: PeerId,
        _: Protocol,
        payload: Vec<u8>,
    ) -> BoxFuture<'a, Result<Payload, Refusal>> {
        Box::pin(async move {
            match self.is_back.load(Ordering::Relaxed) {
                true => self.forwarder.handle(peer, payload).await.map(Payload::from),
                false => Err(Refusal::failed("down")),
            }
        })
    }

    fn message<'a>(&'a self, _: PeerId, _: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

/// A proposer that is busy at first and slow afterwards.
struct Slow {
    forwarder: Arc<Forwarder>,
    asked: AtomicUsize,
}

impl Handler for Slow {
    fn request<'a>(
        &'a self,
        peer: PeerId,
        _: Protocol,
        payload: Vec<u8>,
    ) -> BoxFuture<'a, Result<Payload, Refusal>> {
        Box::pin(async move {
            if self.asked.fetch_add(1, Ordering::Relaxed) < 10 {
                return Err(Refusal::busy(Duration::from_millis(50), "busy"));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            self.forwarder.handle(peer, payload).await.map(Payload::from)
        })
    }

    fn message<'a>(&'a self, _: PeerId, _: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

/// Goal: a proposer that is busy for a while, and then takes one message at a time, soon gets everything. It gets more
/// than a few hundred transactions every few seconds.
#[tokio::test(start_paused = true)]
async fn a_busy_proposer_is_waited_for() {
    let (hub, genesis) = (MemoryHub::new(), genesis(1));
    let (proposer, _endpoint) = fullnode(&hub, &genesis, 0, None);
    let slow = Slow { forwarder: proposer.clone(), asked: AtomicUsize::new(0) };
    hub.join(id(0), Arc::new(slow));
    let (node, _node_endpoint) = fullnode(&hub, &genesis, 1, None);
    hub.connect(id(0), id(1));
    tokio::spawn(node.clone().run(CancellationToken::new()));
    let begun = Instant::now();
    for account in 0..4 {
        let account = Account::new(account);
        for nonce in 0..30 {
            give(&node, &account.transfer(nonce, 1)).unwrap();
            tokio::time::sleep(Duration::from_millis(6)).await;
        }
    }
    until("the proposer has them", || proposer.pool.status().pending == 120).await;
    // Some 100 messages, eight at a time, of 100 ms each, and the pauses.
    assert!(begun.elapsed() < Duration::from_millis(2_900), "{:?}", begun.elapsed());
}

/// Goal: a proposer that failed for minutes gets what waits within seconds of being back.
#[tokio::test(start_paused = true)]
async fn a_proposer_that_is_back_gets_what_waits() {
    let (hub, genesis) = (MemoryHub::new(), genesis(1));
    let (proposer, _endpoint) = fullnode(&hub, &genesis, 0, None);
    let failing = Arc::new(Failing { forwarder: proposer.clone(), is_back: AtomicBool::new(false) });
    hub.join(id(0), failing.clone());
    let (node, _node_endpoint) = fullnode(&hub, &genesis, 1, None);
    hub.connect(id(0), id(1));
    tokio::spawn(node.clone().run(CancellationToken::new()));
    give(&node, &Account::new(0).transfer(0, 1)).unwrap();
    tokio::time::sleep(Duration::from_secs(300)).await;
    failing.is_back.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    until("the proposer has it", || proposer.pool.status().pending == 1).await;
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
}

/// Goal: a new proposer gets at once what the former one had, including all transactions of a sender with many.
#[tokio::test(start_paused = true)]
async fn who_proposes_next_gets_what_the_one_before_had() {
    let (hub, genesis) = (MemoryHub::new(), genesis(2));
    let (first, first_endpoint) = fullnode(&hub, &genesis, 0, None);
    let (node, _node_endpoint) = fullnode(&hub, &genesis, 2, None);
    let (second, _second_endpoint) = fullnode(&hub, &genesis, 1, None);
    hub.connect(id(0), id(2));
    hub.connect(id(1), id(2));
    tokio::spawn(node.clone().run(CancellationToken::new()));
    for nonce in 0..60 {
        give(&node, &Account::new(0).transfer(nonce, 1)).unwrap();
    }
    until("the first has them", || first.pool.status().pending == 60).await;
    assert_eq!(second.pool.status().pending, 0);
    drop((first, first_endpoint));
    let begun = Instant::now();
    let validator = |of| Validator { public_key: id(of), fee_recipient: Address::ZERO };
    let validators = BoundedVec::new(vec![validator(1), validator(0)]).unwrap();
    node.lead(&ValidatorSet::new(Epoch(1), validators), 0);
    until("the next has them", || second.pool.status().pending == 60).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

/// Goal: transactions that the proposer lost are offered to it again, including those that wait for a lower nonce.
#[tokio::test(start_paused = true)]
async fn lingering_transactions_are_offered_again() {
    let (hub, genesis) = (MemoryHub::new(), genesis(1));
    let (node, _endpoint) = fullnode(&hub, &genesis, 1, None);
    tokio::spawn(node.clone().run(CancellationToken::new()));
    give(&node, &Account::new(0).transfer(0, 1)).unwrap();
    give(&node, &Account::new(1).transfer(3, 1)).unwrap();
    tokio::time::sleep(sending::LINGER / 2).await;
    let (proposer, _proposer_endpoint) = fullnode(&hub, &genesis, 0, None);
    hub.connect(id(0), id(1));
    until("the proposer has them", || {
        let status = proposer.pool.status();
        (status.pending, status.queued) == (1, 1)
    })
    .await;
}

/// Goal: a transaction that the proposer could not execute leaves the pools on the way, on the proposer's verdict
/// alone. Its owner learns why when sending it again.
#[tokio::test(start_paused = true)]
async fn the_proposers_refusal_reaches_the_sender() {
    let (hub, genesis) = (MemoryHub::new(), genesis(1));
    let (proposer, _endpoint) = fullnode(&hub, &genesis, 0, None);
    let (node, _node_endpoint) = fullnode(&hub, &genesis, 1, None);
    let (liar, _liar_endpoint) = fullnode(&hub, &genesis, 2, None);
    tokio::spawn(node.clone().run(CancellationToken::new()));
    hub.connect(id(1), id(2));
    let transaction = Account::new(0).transfer(0, 1);
    let hash = give(&node, &transaction).unwrap();
    until("a peer has it", || liar.pool.contains(&hash)).await;
    liar.pool.reject([&hash]);
    tokio::time::sleep(3 * sending::LINGER).await;
    assert!(node.pool.contains(&hash), "a peer's word is not enough");
    hub.connect(id(0), id(1));
    until("the proposer has it", || proposer.pool.contains(&hash)).await;
    proposer.pool.reject([&hash]);
    until("it is dropped", || !node.pool.contains(&hash)).await;
    let refused = give(&node, &transaction).unwrap_err();
    assert!(matches!(refused, SubmitError::Pool(PoolError::Dropped { .. })), "{refused}");
    assert!(refused.to_string().contains("failed to execute at the proposer"), "{refused}");
    // The proposer does not execute it again, whoever sends it.
    assert_eq!(told(&proposer, id(9), &[transaction]).await, [Some(Refused::NotExecutable)]);
}
