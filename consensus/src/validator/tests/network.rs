//! Validators that talk to each other: what gets certified, what is waited for, and what survives a restart.

use slipstream_network::MemoryHub;
use slipstream_types::{BatchNumber, BlobKind};

use super::{super::records::Records, connect_all, lone, start_all};
use crate::testing::{Account, Node, clock, genesis, store, until, validator_key};

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
            node.reaches(head.0 + 1).await;
        }
    }
    let head = nodes[0].store.head().unwrap();
    for node in &nodes[..3] {
        node.reaches(head.header.number.0).await;
        assert_eq!(
            node.store.headers(BatchNumber(1), 9).unwrap(),
            nodes[0].store.headers(BatchNumber(1), 9).unwrap()
        );
        assert_eq!(node.store.certificate(head.header.number).unwrap().unwrap().signatures.len(), 3);
    }
    assert_eq!(nodes[3].store.head().unwrap().header.number, BatchNumber(0));
    assert_eq!(nodes[3].validator.status().voted, None);
}

// Two of four are none: nothing is certified. After a restart the proposer proposes the very same batch again, though its
// clock and its pool are other ones, and once a third one is back it is certified.
#[tokio::test(start_paused = true)]
async fn two_silent_halt_and_the_open_batch_survives_a_restart() {
    let (hub, genesis, clock) = (MemoryHub::new(), genesis(4), clock());
    let mut nodes = start_all(&hub, &genesis, &clock);
    connect_all(&hub, &[0, 1, 2]);
    nodes[0].forwarder.submit(&Account::new(0).transfer(0, 1).raw, None).unwrap();
    for node in &nodes[..3] {
        node.reaches(1).await;
    }
    hub.disconnect(validator_key(0).public(), validator_key(2).public());
    nodes[0].forwarder.submit(&Account::new(0).transfer(1, 1).raw, None).unwrap();
    let proposer = nodes[0].validator.clone();
    let open_votes = || (proposer.status().proposing, proposer.status().votes);
    until("two votes are in", || open_votes() == (Some(BatchNumber(2)), 2)).await;
    // The refusals to come in would have come: the messengers have asked the silent ones at least once more.
    tokio::time::sleep(std::time::Duration::from_millis(250)).await;
    assert_eq!(proposer.status().votes, 2);
    assert_eq!(nodes[0].store.head().unwrap().header.number, BatchNumber(1));

    drop(proposer);
    let disk = nodes.remove(0).stop().await;
    let record = Records::open(disk.clone()).unwrap().last().unwrap().clone();
    let (open, _) = record.proposal().unwrap();
    clock.shift(60_000);
    let again = Node::start(&hub, &genesis, 0, disk, clock);
    connect_all(&hub, &[0, 1, 2]);
    again.reaches(2).await;
    assert_eq!(again.store.header(BatchNumber(2)).unwrap(), Some(open.clone()));
    for node in &nodes[..2] {
        node.reaches(2).await;
        assert_eq!(node.store.header(BatchNumber(2)).unwrap(), Some(open.clone()));
    }
    // And it goes on from there.
    again.forwarder.submit(&Account::new(0).transfer(2, 1).raw, None).unwrap();
    again.reaches(3).await;
}

// What only execution finds to be invalid leaves the pool, whether or not there is a batch, and holds up nobody else.
#[tokio::test(start_paused = true)]
async fn duds_leave_the_pool() {
    let genesis = genesis(1);
    let node = Node::start(&MemoryHub::new(), &genesis, 0, store(&genesis), clock());
    node.forwarder.submit(&Account::contract().transfer(0, 9).raw, None).unwrap();
    until("the dud is gone", || node.pool.status().bytes == 0).await;
    assert_eq!(node.store.head().unwrap().header.number, BatchNumber(0));
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
