//! Validators that talk to each other: what they certify, and what they wait for.

use slipstream_network::MemoryHub;
use slipstream_types::{BatchNumber, BlobKind};

use super::{
    super::{Silence, VOTE_RECORD},
    connect_all, lone, start_all,
};
use crate::testing::{Account, Node, clock, genesis, store, until};

// A set of one certifies without a network; the batch is committed with its certificate, announced, and out of the pool.
#[tokio::test(start_paused = true)]
async fn one_validator_certifies_alone() {
    let genesis = genesis(1);
    let mut node = Node::start(&MemoryHub::new(), &genesis, 0, store(&genesis), clock());
    let account = Account::new(0);
    for nonce in 0..3 {
        node.forwarder.submit(&account.transfer(nonce, 1).raw, None).unwrap();
    }
    let mut transactions = 0;
    while transactions < 3 {
        let decided = node.decided.recv().await.unwrap();
        decided.certificate.verify(&genesis.validator_set()).unwrap();
        let number = decided.header.number;
        until("the batch is committed", || node.store.header(number).unwrap().is_some()).await;
        assert_eq!(node.store.header(number).unwrap().as_ref(), Some(&decided.header));
        assert_eq!(node.store.certificate(number).unwrap(), Some(decided.certificate));
        assert_eq!(node.store.blob(BlobKind::Body, number).unwrap(), Some(decided.body));
        transactions += decided.header.tx_count;
    }
    assert_eq!(node.store.view().unwrap().account(&account.address).unwrap().unwrap().nonce, 3);
    until("the pool is empty", || node.pool.status().pending == 0).await;
    assert_eq!(node.pool.status().bytes, 0);
    node.stop().await;
}

// All four decide the same batches, and a transaction given to one reaches all. Only the primary leads in spreading
// batches.
#[tokio::test(start_paused = true)]
async fn four_decide_batches() {
    let (hub, genesis) = (MemoryHub::new(), genesis(4));
    let mut nodes = start_all(&hub, &genesis, &clock());
    connect_all(&hub, &[0, 1, 2, 3]);
    for nonce in 0..200 {
        nodes[0].forwarder.submit(&Account::new(1).transfer(nonce, 1).raw, None).unwrap();
        nodes[0].forwarder.submit(&Account::new(2).transfer(nonce, 1).raw, None).unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(3)).await;
    }
    let executed = |node: &Node| {
        let view = node.store.view().unwrap();
        [1, 2].map(|index| view.account(&Account::new(index).address).unwrap().unwrap().nonce)
    };
    for node in &nodes {
        until("all are executed", || executed(node) == [200, 200]).await;
    }
    let head = nodes[0].store.head().unwrap().header;
    for node in &mut nodes[1..] {
        until("it has all batches", || node.store.head().unwrap().header == head).await;
        assert_eq!(node.pool.status().bytes, 0);
        assert!(!node.decided.recv().await.unwrap().leads);
        let status = node.validator.status();
        assert_eq!((status.view, status.divergences, status.refused), (0, 0, 0));
        assert!(status.peers.len() == 3 && status.peers.iter().all(|peer| peer.said.is_some()), "{status:?}");
    }
    for number in 1..=16.min(head.number.get()) {
        let decided = nodes[0].decided.recv().await.unwrap();
        assert_eq!((decided.header.number, decided.leads), (BatchNumber::new(number), true));
        decided.certificate.verify(&genesis.validator_set()).unwrap();
    }
    // Outcomes kept until their commit are gone.
    let kept = nodes[1].store.records("consensus/outcome/", "consensus/outcome/~").unwrap();
    assert!(kept.is_empty(), "{}", kept.len());
}

// Three of four are a quorum: the silent one holds up nobody, the others all commit the same batches.
#[tokio::test(start_paused = true)]
async fn four_certify_with_one_silent() {
    let (hub, genesis) = (MemoryHub::new(), genesis(4));
    let nodes = start_all(&hub, &genesis, &clock());
    connect_all(&hub, &[0, 1, 2]);
    let account = Account::new(1);
    for nonce in 0..5 {
        let head = nodes[0].store.head().unwrap().header.number;
        nodes[0].forwarder.submit(&account.transfer(nonce, 1).raw, None).unwrap();
        for node in &nodes[..3] {
            node.reaches(head.get() + 1).await;
        }
    }
    let head = nodes[0].store.head().unwrap();
    assert_eq!(nodes[0].validator.status().view, 0, "nobody wanted another primary");
    for node in &nodes[..3] {
        node.reaches(head.header.number.get()).await;
        assert_eq!(
            node.store.headers(BatchNumber::new(1), 9).unwrap(),
            nodes[0].store.headers(BatchNumber::new(1), 9).unwrap()
        );
        let certificate = node.store.certificate(head.header.number).unwrap().unwrap();
        assert_eq!(certificate.signatures.len(), 3);
    }
    assert_eq!(nodes[3].store.head().unwrap().header.number, BatchNumber::GENESIS);
    assert_eq!(nodes[3].validator.status().silence, Some(Silence::Listening), "it has heard of no quorum");
}

// A transaction that only execution finds invalid leaves the pool, whether or not there is a batch. It delays no other.
#[tokio::test(start_paused = true)]
async fn duds_leave_the_pool() {
    let genesis = genesis(1);
    let node = Node::start(&MemoryHub::new(), &genesis, 0, store(&genesis), clock());
    node.forwarder.submit(&Account::contract().transfer(0, 9).raw, None).unwrap();
    until("the dud is gone", || node.pool.status().bytes == 0).await;
    assert_eq!(node.store.head().unwrap().header.number, BatchNumber::GENESIS);
    // The same one is not executed in vain again.
    node.forwarder.submit(&Account::contract().transfer(0, 9).raw, None).unwrap_err();
    node.forwarder.submit(&Account::contract().transfer(0, 8).raw, None).unwrap();
    node.forwarder.submit(&Account::new(1).transfer(0, 1).raw, None).unwrap();
    node.reaches(1).await;
    until("the pool is empty", || node.pool.status().bytes == 0).await;
    node.stop().await;
}

// Only a member of the set can be a validator.
#[tokio::test]
async fn a_stranger_is_told_what_to_do() {
    let genesis = genesis(1);
    let error = lone(&genesis, &store(&genesis), 5).err().unwrap().to_string();
    assert!(error.contains("run this node as a fullnode"), "{error}");
}

/// Goal: if a chain halts because half of its validators lost their data, all validators report that. Those that lost
/// it show their own state; the others name those that report it.
#[tokio::test(start_paused = true)]
async fn a_chain_that_lost_votes_says_so() {
    let (hub, genesis, clock) = (MemoryHub::new(), genesis(4), clock());
    let mut nodes = start_all(&hub, &genesis, &clock);
    connect_all(&hub, &[0, 1, 2, 3]);
    nodes[0].forwarder.submit(&Account::new(0).transfer(0, 7).raw, None).unwrap();
    for node in &nodes {
        node.reaches(1).await;
    }
    for index in [2, 3] {
        nodes.remove(index).stop().await;
        nodes.insert(index, Node::start(&hub, &genesis, index, store(&genesis), clock.clone()));
    }
    connect_all(&hub, &[0, 1, 2, 3]);
    let lost = |node: &Node| matches!(node.validator.status().silence, Some(Silence::LostVotes { .. }));
    for node in &nodes[2..] {
        until("it knows that it has lost its votes", || lost(node)).await;
        until("it is on record", || node.store.record(VOTE_RECORD).unwrap().is_some()).await;
    }
    for node in &nodes[..2] {
        let told = "validators that do not vote: lost votes 2, 3";
        until("the others know", || node.validator.status().silent(10_000).as_deref() == Some(told)).await;
        assert_eq!(node.validator.status().silence, None);
    }
}
