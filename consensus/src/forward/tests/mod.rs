//! A transaction's way from node to node, and the effect of junk, silence, refusals and restarts on it.

mod journaled;
mod proposer;

use alloy_primitives::B256;
use slipstream_network::{MemoryHub, RefusalKind};
use slipstream_types::Genesis;
use tokio_util::sync::CancellationToken;

use super::{message::Outcome, *};
use crate::{
    pool::{Origin, PoolError},
    testing::{Account, Endpoint, Node, Silent, clock, genesis, join, store, until, validator_key},
};

fn id(index: usize) -> PeerId {
    validator_key(index).public()
}

/// A fullnode that works on its caller's thread, so that a paused clock stands still meanwhile.
fn fullnode(
    hub: &MemoryHub,
    genesis: &Genesis,
    index: usize,
    journal: Option<Journal>,
) -> (Arc<Forwarder>, Arc<Endpoint>) {
    let (transport, endpoint) = join(hub, id(index));
    let pool = Pool::new(Default::default(), genesis.chain.clone(), store(genesis)).unwrap();
    let members = [id(0)];
    let forwarder =
        Forwarder::with_threads(pool, (&genesis.chain).into(), transport, &members, journal, 0).unwrap();
    endpoint.serve(forwarder.clone());
    (forwarder, endpoint)
}

fn give(forwarder: &Forwarder, transaction: &Transaction) -> Result<B256, SubmitError> {
    forwarder.submit(&transaction.raw, None)
}

/// The only message that these transactions make.
fn payload(transactions: &[Transaction]) -> Vec<u8> {
    message::pack(transactions.iter()).remove(0).payload
}

async fn told(forwarder: &Forwarder, peer: PeerId, transactions: &[Transaction]) -> Vec<Outcome> {
    let answer = forwarder.handle(peer, payload(transactions)).await.unwrap();
    message::decode_answer(&answer).unwrap()
}

/// A transaction whose signature names no sender, so that recovering it is in vain; a different one for each number.
fn junk(number: u32) -> Transaction {
    let mut transaction = Account::new(0).transfer(0, 1);
    let mut raw = transaction.raw.to_vec();
    let end = raw.len();
    // The highest possible s: at best the high twin of a valid one.
    raw[end - 32..end - 4].fill(0xff);
    raw[end - 4..].copy_from_slice(&number.to_be_bytes());
    transaction.raw = raw.into();
    transaction
}

// A transaction given to a node two hops away from the proposer is executed; a known one is reported as known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_reach_the_proposer() {
    let (hub, genesis, clock) = (MemoryHub::new(), genesis(1), clock());
    let proposer = Node::start(&hub, &genesis, 0, store(&genesis), clock);
    let shutdown = CancellationToken::new();
    let [near, far] = [1, 2].map(|index| {
        let (transport, endpoint) = join(&hub, id(index));
        let pool = Pool::new(Default::default(), genesis.chain.clone(), store(&genesis)).unwrap();
        let forwarder = Forwarder::new(pool, &genesis.chain, transport, &[id(0)], None).unwrap();
        tokio::spawn(forwarder.clone().run(shutdown.clone()));
        endpoint.serve(forwarder.clone());
        forwarder
    });
    hub.connect(id(0), id(1));
    hub.connect(id(1), id(2));
    let account = Account::new(0);
    for nonce in 0..3 {
        give(&far, &account.transfer(nonce, 1)).unwrap();
    }
    until("the middle node has them", || near.pool.status().pending == 3).await;
    proposer.reaches(1).await;
    let executed = || proposer.store.view().unwrap().account(&account.address).unwrap().unwrap().nonce;
    until("all are executed", || executed() == 3).await;
    assert_eq!(told(&near, id(2), &[account.transfer(0, 1)]).await, [Some(Refused::Known)]);
    shutdown.cancel();
}

/// Goal: endless equal junk is recovered once, then answered from memory, and soon ignored. It does not delay a peer with good
/// transactions.
#[tokio::test(start_paused = true)]
async fn junk_ends_in_silence() {
    let (hub, genesis) = (MemoryHub::new(), genesis(1));
    let (node, _) = fullnode(&hub, &genesis, 1, None);
    let batch: Vec<_> = (0..16).map(junk).collect();
    assert_eq!(told(&node, id(7), &batch).await, [Some(Refused::Signature); 16]);
    let counts = |node: &Forwarder, reason| node.pool.refused().find(|(it, _)| *it == reason).unwrap().1;
    assert_eq!(counts(&node, Refused::Signature), 16);
    // The fine has used up the allowance, long before 2,048 of them.
    let mut refused = None;
    for round in 0..64 {
        let batch: Vec<_> = (0..16).map(|number| junk(16 * round + number)).collect();
        match node.handle(id(7), payload(&batch)).await {
            Ok(_) => {}
            Err(refusal) => {
                refused = Some((round, refusal));
                break;
            }
        }
    }
    let (round, refusal) = refused.expect("junk is taken for ever");
    assert!(round < 8 && matches!(refusal.kind(), RefusalKind::Busy { .. }), "{round}: {refusal}");
    assert!(counts(&node, Refused::Busy) > 0);
    let account = Account::new(1);
    for nonce in 0..200 {
        assert_eq!(told(&node, id(8), &[account.transfer(nonce, 1)]).await, [None]);
    }
    // Much junk at once puts its sender into debt: the end of the message is ignored, and then there is a pause.
    let batch: Vec<_> = (10_000..10_256).map(junk).collect();
    assert_eq!(told(&node, id(6), &batch).await.last(), Some(&Some(Refused::Busy)));
    let refusal = node.handle(id(6), payload(&batch[..1])).await.unwrap_err();
    assert!(matches!(refusal.kind(), RefusalKind::Busy { retry_after_ms: 3_000.. }), "{refusal}");
    // A malformed message costs its sender as well.
    let malformed = node.handle(id(9), vec![0xff; 100]).await.unwrap_err();
    assert_eq!(malformed.kind(), RefusalKind::Malformed);
    let garbage = node.handle(id(8), vec![1, 3, 0xff, 0xff, 0xff]).await.unwrap();
    assert_eq!(message::decode_answer(&garbage).unwrap(), [Some(Refused::Malformed)]);
}

/// Goal: transactions of ever new accounts without money cost their sender its allowance, and are recovered once each.
#[tokio::test(start_paused = true)]
async fn what_nobody_can_pay_for_is_rationed() {
    let (hub, genesis) = (MemoryHub::new(), genesis(1));
    let (node, _) = fullnode(&hub, &genesis, 1, None);
    let poor = Account::new(200);
    let batch: Vec<_> = (0..256).map(|nonce| poor.transfer(nonce, 1)).collect();
    let mut taken = 0;
    for _ in 0..1_000 {
        taken += usize::from(node.handle(id(7), payload(&batch)).await.is_ok());
    }
    // The first time costs 256 recoveries. Every later one costs almost nothing, and even that is rationed.
    assert!((200..900).contains(&taken), "{taken}");
    // As soon as there is money, the transaction is checked again: lack of funds is not held against it.
    tokio::time::advance(Duration::from_secs(20)).await;
    assert_eq!(told(&node, id(8), &batch[..1]).await, [Some(Refused::Funds)]);
}

/// Goal: while the proposer is out of reach, hanging peers do not keep a transaction from the peer that answers.
#[tokio::test(start_paused = true)]
async fn hanging_peers_do_not_hold_transactions() {
    let (hub, genesis) = (MemoryHub::new(), genesis(1));
    let (proposer, _endpoint) = fullnode(&hub, &genesis, 0, None);
    let (relay, _relay_endpoint) = fullnode(&hub, &genesis, 30, None);
    let (sender, _sender_endpoint) = fullnode(&hub, &genesis, 40, None);
    for forwarder in [&relay, &sender] {
        tokio::spawn(forwarder.clone().run(CancellationToken::new()));
    }
    for index in 1..9 {
        hub.join(id(index), Arc::new(Silent));
        hub.connect(id(index), id(40));
    }
    hub.connect(id(30), id(40));
    hub.connect(id(30), id(0));
    for nonce in 0..20 {
        give(&sender, &Account::new(0).transfer(nonce, 1)).unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    until("the proposer has them", || proposer.pool.status().pending == 20).await;
}

/// Goal: two nodes do not keep an expired transaction alive between them; its owner may send it again.
#[tokio::test(start_paused = true)]
async fn what_expired_comes_back_only_from_its_owner() {
    let (hub, genesis) = (MemoryHub::new(), genesis(1));
    let (node, _) = fullnode(&hub, &genesis, 1, None);
    let transaction = Account::new(0).transfer(0, 1);
    node.pool.add_from(transaction.clone(), Origin::Peer).unwrap();
    for _ in 0..11 {
        node.pool.age();
        node.pool.expire();
    }
    assert_eq!(node.pool.status().pending, 0);
    assert_eq!(told(&node, id(2), std::slice::from_ref(&transaction)).await, [Some(Refused::Expired)]);
    assert_eq!(node.pool.status().pending, 0);
    give(&node, &transaction).unwrap();
    // As a user's transaction it stays for hours.
    for _ in 0..100 {
        node.pool.age();
        node.pool.expire();
    }
    assert_eq!(node.pool.status().pending, 1);
}

/// Goal: an address whose transactions are useless has to wait. An address whose transactions are accepted never has to
/// wait.
#[tokio::test(start_paused = true)]
async fn wallets_are_metered_by_address() {
    let (hub, genesis) = (MemoryHub::new(), genesis(1));
    let (node, _) = fullnode(&hub, &genesis, 1, None);
    let [bad, good] = [1, 2].map(|last| Some(IpAddr::from([192, 0, 2, last])));
    let raw = Account::new(200).transfer(0, 1).raw;
    let refusals: Vec<_> = (0..5_000).map(|_| node.submit(&raw, bad).unwrap_err()).collect();
    assert!(matches!(refusals[0], SubmitError::Pool(PoolError::InsufficientFunds { .. })));
    assert!(matches!(refusals[4_999], SubmitError::Busy { retry_after_ms: 1.. }));
    node.submit(&Account::new(0).transfer(0, 1).raw, good).unwrap();
    assert!(matches!(node.submit(&raw, None), Err(SubmitError::Pool(_))));
}
