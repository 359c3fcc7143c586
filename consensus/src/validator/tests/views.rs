//! Tests the cost of one faulty validator: a view, or its own time, but no batch.

use std::{sync::Arc, time::Duration};

use slipstream_executor::Transaction;
use slipstream_network::MemoryHub;
use slipstream_types::{BatchNumber, Genesis};
use tokio_util::sync::CancellationToken;

use super::{super::working::Working, connect_all, start_all};
use crate::{
    ConsensusConfig,
    seams::{Machine, Work},
    testing::{Account, Node, clock, config, genesis, store, until, validator_key},
};

/// A machine that executes one batch wrongly.
struct ErrsAt(BatchNumber);

impl Machine for ErrsAt {
    fn pace(&self, _: &'static str) -> [Duration; 2] {
        [Duration::ZERO; 2]
    }

    fn takes(&self, _: Work, _: &[Transaction]) -> Duration {
        Duration::ZERO
    }

    fn errs(&self, number: BatchNumber, _: bool) -> bool {
        number == self.0
    }
}

fn submit(nodes: &[Node], account: u8, nonce: u64) {
    for node in nodes {
        _ = node.forwarder.submit(&Account::new(account).transfer(nonce, 1).raw, None);
    }
}

/// Checks that all nodes have the same batches, up to the lowest head.
fn agree(nodes: &[Node]) {
    let heads = nodes.iter().map(|node| node.store.head().unwrap().header);
    let lowest = heads.map(|head| head.number.get()).min().unwrap();
    for number in 1..=lowest {
        let headers = nodes.iter().map(|node| node.store.header(BatchNumber::new(number)).unwrap());
        let mut headers: Vec<_> = headers.collect();
        headers.dedup();
        assert_eq!(headers.len(), 1, "batch {number}");
    }
}

/// Goal: when the primary is gone, the next one continues within some view timeouts, and gets the transactions sent to
/// the first.
#[tokio::test(start_paused = true)]
async fn the_next_primary_goes_on() {
    let (hub, genesis, clock) = (MemoryHub::new(), genesis(4), clock());
    let nodes = start_all(&hub, &genesis, &clock);
    connect_all(&hub, &[0, 1, 2, 3]);
    submit(&nodes[..1], 1, 0);
    for node in &nodes {
        node.reaches(1).await;
    }
    for other in 1..4 {
        hub.disconnect(validator_key(0).public(), validator_key(other).public());
    }
    let begun = tokio::time::Instant::now();
    submit(&nodes[1..], 1, 1);
    for node in &nodes[1..] {
        node.reaches(2).await;
        let status = node.validator.status();
        assert_eq!((status.view, status.primary, status.is_primary), (1, 1, status.index == 1));
        let certificate = node.store.certificate(BatchNumber::new(2)).unwrap().unwrap();
        assert_eq!(certificate.view, 1);
        assert_eq!(node.store.head().unwrap().header.proposer, genesis.validators[1].fee_recipient);
    }
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    // It comes back, and follows.
    connect_all(&hub, &[0, 1, 2, 3]);
    submit(&nodes[1..2], 1, 2);
    for node in &nodes {
        node.reaches(3).await;
    }
    until("the first one is in the view", || nodes[0].validator.status().view == 1).await;
    agree(&nodes);
}

/// Goal: one validator after the other stops at any moment and restarts on its disk, under load. The others continue,
/// the restarted validator follows, and no number gets two certified batches.
#[tokio::test(start_paused = true)]
async fn validators_restart_at_any_moment() {
    let (hub, genesis, clock) = (MemoryHub::new(), genesis(4), clock());
    let mut nodes = start_all(&hub, &genesis, &clock);
    connect_all(&hub, &[0, 1, 2, 3]);
    let mut nonce = 0;
    for round in 0..12_u64 {
        let index = (round % 4) as usize;
        for step in 0..6 {
            submit(&nodes, 1, nonce);
            nonce += 1;
            tokio::time::sleep(Duration::from_millis(1 + 3 * ((7 * round + step) % 5))).await;
        }
        let disk = nodes.remove(index).stop().await;
        submit(&nodes, 1, nonce);
        nonce += 1;
        tokio::time::sleep(Duration::from_millis(100 * (round % 3))).await;
        nodes.insert(index, Node::start(&hub, &genesis, index, disk, clock.clone()));
        connect_all(&hub, &[0, 1, 2, 3]);
        agree(&nodes);
    }
    // The owner of a stopped validator's transactions sends them again.
    (0..nonce).for_each(|nonce| submit(&nodes, 1, nonce));
    for node in &nodes {
        let view = || node.store.view().unwrap();
        let executed = || view().account(&Account::new(1).address).unwrap().unwrap().nonce;
        until("all are executed", || executed() == nonce).await;
    }
    agree(&nodes);
}

/// Goal: two of four cannot decide. A third validator that joins with an empty disk does not make them contradict
/// themselves.
#[tokio::test(start_paused = true)]
async fn two_silent_halt_the_chain() {
    let (hub, genesis, clock) = (MemoryHub::new(), genesis(4), clock());
    let mut nodes = start_all(&hub, &genesis, &clock);
    connect_all(&hub, &[0, 1, 2]);
    submit(&nodes[..1], 0, 0);
    for node in &nodes[..3] {
        node.reaches(1).await;
    }
    for other in 0..2 {
        hub.disconnect(validator_key(other).public(), validator_key(2).public());
    }
    submit(&nodes[..2], 0, 1);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(nodes[0].store.head().unwrap().header.number, BatchNumber::new(1));
    assert!(nodes[1].validator.status().complains || nodes[1].validator.status().changing);
    let disk = nodes.remove(0).stop().await;
    clock.shift(60_000);
    nodes.insert(0, Node::start(&hub, &genesis, 0, disk, clock));
    submit(&nodes[..3], 0, 1);
    connect_all(&hub, &[0, 1, 2]);
    for node in &nodes[..3] {
        node.reaches(2).await;
    }
    agree(&nodes[..3]);
}

/// Starts four validators, one of which executes a batch wrongly.
async fn with_one_that_diverges(hub: &MemoryHub, genesis: &Genesis, wrong: usize) -> Vec<Node> {
    let clock = clock();
    let start = |index: usize| {
        Node::start_with(hub, genesis, index, store(genesis), clock.clone(), |driver| {
            if index == wrong {
                let ledger = Arc::get_mut(&mut driver.ledger).unwrap();
                ledger.seams.machine = Some(Arc::new(ErrsAt(BatchNumber::new(2))));
            }
        })
    };
    let nodes: Vec<_> = (0..4).map(start).collect();
    connect_all(hub, &[0, 1, 2, 3]);
    nodes
}

/// Goal: a validator that executes a batch to another outcome learns of it, fetches the agreed one, and continues with
/// the others.
#[tokio::test(start_paused = true)]
async fn who_diverges_takes_what_the_others_agreed_on() {
    let (hub, genesis) = (MemoryHub::new(), genesis(4));
    let nodes = with_one_that_diverges(&hub, &genesis, 2).await;
    for nonce in 0..4 {
        let head = nodes[2].store.head().unwrap().header.number.get();
        submit(&nodes[..1], 1, nonce);
        for node in &nodes {
            node.reaches(head + 1).await;
        }
    }
    agree(&nodes);
    assert_eq!(nodes[2].validator.status().divergences, 1);
    assert_eq!(nodes[0].validator.status().divergences, 0);
    assert_eq!(nodes[0].validator.status().view, 0);
}

/// Goal: a validator that was away catches up by the others' messages alone, while they keep what it missed.
#[tokio::test(start_paused = true)]
async fn who_was_away_catches_up() {
    let (hub, genesis, clock) = (MemoryHub::new(), genesis(4), clock());
    let nodes = start_all(&hub, &genesis, &clock);
    connect_all(&hub, &[0, 1, 2]);
    for nonce in 0..6 {
        let head = nodes[0].store.head().unwrap().header.number.get();
        submit(&nodes[..1], 1, nonce);
        for node in &nodes[..3] {
            node.reaches(head + 1).await;
        }
    }
    connect_all(&hub, &[0, 1, 2, 3]);
    nodes[3].reaches(6).await;
    agree(&nodes);
}

/// Gives the last node the first transaction of account 1, and waits until each node has executed it.
async fn submit_and_execute(nodes: &[Node]) {
    submit(&nodes[3..], 1, 0);
    let executed = |node: &Node| {
        let account = node.store.view().unwrap().account(&Account::new(1).address).unwrap();
        account.is_some_and(|account| account.nonce == 1)
    };
    for node in nodes {
        until("it is executed", || executed(node)).await;
    }
}

/// Goal: a primary that orders empty batches in time, and nothing that it is offered, loses its view within some
/// seconds, though decisions keep coming. The next primary commits what one validator was given. On a chain without
/// transactions nobody loses a view.
#[tokio::test(start_paused = true)]
async fn a_primary_that_leaves_everything_out_loses_its_view() {
    let (hub, genesis, clock) = (MemoryHub::new(), genesis(4), clock());
    let start = |index: usize| {
        Node::start_with(&hub, &genesis, index, store(&genesis), clock.clone(), |driver| {
            if index == 0 {
                driver.pool = super::pool(&genesis, &driver.ledger.store);
                driver.working = Working::new(
                    &ConsensusConfig { empty_batch_interval_ms: 1_900, ..config() },
                    &genesis.validator_set(),
                );
            }
        })
    };
    let nodes: Vec<_> = (0..4).map(start).collect();
    connect_all(&hub, &[0, 1, 2, 3]);
    for node in &nodes {
        tokio::spawn(node.forwarder.clone().run(CancellationToken::new()));
        node.reaches(3).await;
        assert_eq!(node.validator.status().view, 0);
    }
    let begun = tokio::time::Instant::now();
    submit_and_execute(&nodes).await;
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    agree(&nodes);
    let view = nodes[1].validator.status().view;
    assert_eq!(view, 1);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(nodes[1].validator.status().view, view, "nothing is left out any more");
}

/// Goal: the same for a primary whose batches are never empty, but have room for what it omits.
#[tokio::test(start_paused = true)]
async fn a_primary_that_orders_only_what_it_likes_loses_its_view() {
    let (hub, genesis, clock) = (MemoryHub::new(), genesis(4), clock());
    let own_store = store(&genesis);
    let liked = super::pool(&genesis, &own_store);
    let start = |index: usize| {
        let store = if index == 0 { own_store.clone() } else { store(&genesis) };
        Node::start_with(&hub, &genesis, index, store, clock.clone(), |driver| {
            if index == 0 {
                driver.pool = liked.clone();
            }
        })
    };
    let nodes: Vec<_> = (0..4).map(start).collect();
    connect_all(&hub, &[0, 1, 2, 3]);
    for node in &nodes {
        tokio::spawn(node.forwarder.clone().run(CancellationToken::new()));
    }
    let feed = tokio::spawn(async move {
        for nonce in 0.. {
            _ = liked.add(Account::new(2).transfer(nonce, 7));
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
    for node in &nodes {
        node.reaches(3).await;
        assert_eq!(node.validator.status().view, 0);
    }
    let begun = tokio::time::Instant::now();
    submit_and_execute(&nodes).await;
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    assert_eq!(nodes[1].validator.status().view, 1);
    feed.abort();
    agree(&nodes);
}
