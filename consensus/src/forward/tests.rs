//! The way of a transaction from node to node, and what junk, silence, refusals and restarts do to it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use alloy_primitives::{Address, B256};
use slipstream_network::{BoxFuture, Handler, MemoryHub, Payload, Protocol, RefusalKind};
use slipstream_types::{Epoch, Genesis, Validator, bounded::BoundedVec};
use tokio_util::sync::CancellationToken;

use super::{message::Outcome, *};
use crate::{
    journal::JournalError,
    pool::{Origin, PoolError},
    testing::{Account, Endpoint, Node, Silent, clock, genesis, join, store, until, validator_key},
};

fn id(index: usize) -> PeerId {
    validator_key(index).public()
}

/// A fullnode that works on the thread of whoever asks, so that a paused clock stands while it does.
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

/// The one message that these transactions make.
fn payload(transactions: &[Transaction]) -> Vec<u8> {
    message::pack(transactions.iter()).remove(0).payload
}

async fn told(forwarder: &Forwarder, peer: PeerId, transactions: &[Transaction]) -> Vec<Outcome> {
    let answer = forwarder.handle(peer, payload(transactions)).await.unwrap();
    message::decode_answer(&answer).unwrap()
}

/// A signature that names no sender, so that recovering it is in vain; another one for each number.
fn junk(number: u32) -> Transaction {
    let mut transaction = Account::new(0).transfer(0, 1);
    let mut raw = transaction.raw.to_vec();
    let end = raw.len();
    // The highest s there is: the high twin of a valid one at best.
    raw[end - 32..end - 4].fill(0xff);
    raw[end - 4..].copy_from_slice(&number.to_be_bytes());
    transaction.raw = raw.into();
    transaction
}

// A transaction given to a node two hops away from the proposer is executed; what is known is told.
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
    // The fine has used the allowance up, long before 2,048 of them.
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
    // Much of it at once puts its sender into debt: the end of the message is not looked at, and then there is a pause.
    let batch: Vec<_> = (10_000..10_256).map(junk).collect();
    assert_eq!(told(&node, id(6), &batch).await.last(), Some(&Some(Refused::Busy)));
    let refusal = node.handle(id(6), payload(&batch[..1])).await.unwrap_err();
    assert!(matches!(refusal.kind(), RefusalKind::Busy { retry_after_ms: 3_000.. }), "{refusal}");
    // A malformed message is paid for as well.
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
    // The first time costs 256 recoveries, every later one next to nothing, and that is rationed, too.
    assert!((200..900).contains(&taken), "{taken}");
    // As soon as there is money, it is looked at again: this is not held against the transaction.
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

/// Goal: a proposer that is busy for a while, and then takes a message at a time, soon gets everything. It does not get a few hundred
/// transactions every few seconds.
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

/// Goal: who proposes after another one is given at once what that one had, all of a sender that has much.
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

/// Goal: what the proposer lost is offered to it again, also what waits for a lower nonce.
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

/// Goal: a transaction that the proposer could not execute leaves the pools on the way, on the proposer's word alone. Its owner
/// is told why when he sends it again.
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
    assert!(refused.to_string().contains("could not be executed by the proposer"), "{refused}");
    // The proposer does not execute it again, whoever sends it.
    assert_eq!(told(&proposer, id(9), &[transaction]).await, [Some(Refused::NotExecutable)]);
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
    // As a user's it stays for hours.
    for _ in 0..100 {
        node.pool.age();
        node.pool.expire();
    }
    assert_eq!(node.pool.status().pending, 1);
}

/// Goal: what a node acknowledged it has again after a restart, and it goes on its way again; what is damaged costs itself alone.
#[tokio::test(start_paused = true)]
async fn what_was_acknowledged_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("transactions.journal");
    let (hub, genesis) = (MemoryHub::new(), genesis(1));
    let journal = || Some(Journal::open(&path, 1 << 20).unwrap());
    let (node, _) = fullnode(&hub, &genesis, 1, journal());
    for nonce in [0, 1, 5] {
        give(&node, &Account::new(0).transfer(nonce, 1)).unwrap();
    }
    node.pool.add_from(Account::new(1).transfer(0, 1), Origin::Peer).unwrap();
    // One that a peer brought first is the user's, too.
    node.pool.add_from(Account::new(2).transfer(0, 1), Origin::Peer).unwrap();
    for _ in 0..2 {
        let known = give(&node, &Account::new(2).transfer(0, 1)).unwrap_err();
        assert!(known.to_string().starts_with("already known"), "{known}");
    }
    assert!(give(&node, &Account::new(3).hopeless(0)).is_err());
    node.synced().await.unwrap();
    drop(node);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, [&bytes[..], b"torn"].concat()).unwrap();
    let (node, _endpoint) = fullnode(&hub, &genesis, 1, journal());
    let (proposer, _proposer_endpoint) = fullnode(&hub, &genesis, 0, None);
    hub.connect(id(0), id(1));
    tokio::spawn(node.clone().run(CancellationToken::new()));
    until("the proposer has them", || {
        let status = proposer.pool.status();
        (status.pending, status.queued) == (3, 1)
    })
    .await;
    let status = node.pool.status();
    assert_eq!((status.pending, status.queued), (3, 1));
}

/// Goal: a transaction that could not be written down stays unacknowledged, and is not kept as if it were.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_written_down_is_not_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("transactions.journal");
    let (hub, genesis) = (MemoryHub::new(), genesis(1));
    let (node, _) = fullnode(&hub, &genesis, 1, Some(Journal::open(&path, 200).unwrap()));
    let account = Account::new(0);
    let refused = (0..10).find_map(|nonce| give(&node, &account.transfer(nonce, 1)).err()).unwrap();
    assert!(matches!(refused, SubmitError::Journal(_)), "{refused}");
    assert_eq!(node.pool.status().pending, 1);
}

/// Goal: an unwritten transaction drives out no other: the one that it would replace is acknowledged.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_written_down_replaces_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("transactions.journal");
    let (hub, genesis) = (MemoryHub::new(), genesis(1));
    let account = Account::new(0);
    let bytes_max = 100 + account.transfer(0, 1).raw.len() as u64;
    let (node, _) = fullnode(&hub, &genesis, 1, Some(Journal::open(&path, bytes_max).unwrap()));
    let kept = give(&node, &account.transfer(0, 1)).unwrap();
    let refused = give(&node, &account.transfer(0, 1_000_000_000_000)).unwrap_err();
    assert!(matches!(refused, SubmitError::Journal(_)), "{refused}");
    assert!(node.pool.contains(&kept));
}

/// Goal: "already known" is said of what is in the journal only, however the first attempt at it ended.
#[tokio::test(start_paused = true)]
async fn a_retry_is_written_down() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("transactions.journal");
    let (hub, genesis) = (MemoryHub::new(), genesis(1));
    let (node, _) = fullnode(&hub, &genesis, 1, Some(Journal::open(&path, 1 << 20).unwrap()));
    let transaction = Account::new(0).transfer(0, 1);
    node.pool.add_from(transaction.clone(), Origin::Peer).unwrap();
    let journal = node.journal.clone().unwrap();
    journal.fail();
    for _ in 0..2 {
        let refused = give(&node, &transaction).unwrap_err();
        assert!(matches!(refused, SubmitError::Journal(_)), "{refused}");
    }
    tokio::time::advance(Duration::from_secs(2)).await;
    for _ in 0..2 {
        let known = give(&node, &transaction).unwrap_err();
        assert!(known.to_string().starts_with("already known"), "{known}");
    }
    node.synced().await.unwrap();
    assert!(journal.is_synced());
    drop(node);
    assert!(Journal::open(&path, 1 << 20).unwrap().recovered().contains(&transaction.raw.to_vec()));
}

/// Goal: a wallet with money for one transaction sends as many as may wait: its own are refused some day, and nobody else's.
#[tokio::test(start_paused = true)]
async fn one_wallet_does_not_fill_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("transactions.journal");
    let (hub, genesis) = (MemoryHub::new(), genesis(1));
    let (node, _) = fullnode(&hub, &genesis, 1, Some(Journal::open(&path, 1 << 20).unwrap()));
    let large = |account: u8, nonce| Account::new(account).large(nonce, 65_300);
    for account in 0..7 {
        for nonce in 1..3 {
            give(&node, &large(account, nonce)).unwrap();
        }
        let refused = give(&node, &large(account, 3)).unwrap_err();
        assert!(matches!(refused, SubmitError::Journal(JournalError::SenderFull { .. })), "{refused}");
        let known = give(&node, &large(account, 2)).unwrap_err();
        assert!(known.to_string().starts_with("already known"), "{known}");
    }
    let honest = Account::new(7);
    for nonce in 0..2 {
        give(&node, &honest.large(nonce, 65_000)).unwrap();
    }
    assert!(node.journal_bytes() > 1_046_000, "it is as good as full");
    let tips = std::iter::successors(Some(100_000_000_000), |tip| Some(tip / 5 * 6)).take(25);
    let replacing: Vec<_> = tips.map(|tip| honest.transfer(2, tip)).collect();
    for transaction in &replacing {
        give(&node, transaction).unwrap();
    }
    node.synced().await.unwrap();
    drop(node);
    let recovered = Journal::open(&path, 1 << 20).unwrap().recovered();
    for raw in [&honest.large(0, 65_000).raw, &replacing[24].raw] {
        assert!(recovered.contains(&raw.to_vec()));
    }
}

/// Goal: an address whose transactions are useless has to wait. One whose transactions are taken never has to.
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
