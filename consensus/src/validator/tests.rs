//! Validators over memory: what gets certified, what is refused, and what survives a restart.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use slipstream_executor::{ExecutorConfig, HintsMode, decode_body, open_hints};
use slipstream_network::MemoryHub;
use slipstream_storage::{CommitBatch, StorageConfig, Store};
use slipstream_types::{
    Address, BatchHeader, BatchNumber, Blob, BlobKind, Body, Certificate, Digest, Epoch, Genesis,
    ValidatorSet,
};

use super::{
    engine::Engine,
    ledger::{Executed, Ledger},
    voter::Voter,
};
use crate::{
    Pool, PoolConfig, ProposalError,
    protocol::{
        messages::{self, Proposal, Request, Response},
        record,
        votes::Votes,
    },
    testing::{Account, ManualClock, NOW_MS, Node, clock, genesis, store, until, validator_key},
};

fn ledger(genesis: &Genesis, store: &Store) -> Arc<Ledger> {
    ledger_with(ExecutorConfig { prefetch_threads: 0, ..Default::default() }, genesis, store)
}

fn ledger_with(executor: ExecutorConfig, genesis: &Genesis, store: &Store) -> Arc<Ledger> {
    let (chain, set) = (genesis.chain.clone(), genesis.validator_set());
    let engine = Engine::new(&executor).unwrap();
    Arc::new(Ledger { chain, store: store.clone(), set, engine })
}

fn voter(genesis: &Genesis, store: &Store, index: u16) -> Voter {
    Voter::new(ledger(genesis, store), clock(), validator_key(index.into()), index).unwrap()
}

/// A batch as the proposer makes it, with transactions of one account.
fn batch(genesis: &Genesis, store: &Store, nonces: std::ops::Range<u64>, now_ms: u64) -> Executed {
    let pool = Pool::new(PoolConfig::default(), genesis.chain.clone(), store.clone()).unwrap();
    for nonce in nonces {
        pool.add(Account::new(0).transfer(nonce, 7)).unwrap();
    }
    ledger(genesis, store).build(&pool, 100, now_ms, true).unwrap().unwrap().executed.unwrap()
}

fn proposal(executed: &Executed) -> Proposal {
    let sealed = &executed.sealed;
    let (header, body, hints) = (sealed.header.clone(), sealed.body.clone(), sealed.hints.clone());
    Proposal { header, body, hints, parent: None }
}

/// Signed by all.
fn certificate(set: &ValidatorSet, executed: &Executed) -> Certificate {
    let mut votes = Votes::new(executed.info.clone());
    for index in 0..set.validators.len() as u16 {
        votes.add(set, index, executed.info.sign(&validator_key(index.into())));
    }
    votes.certificate(set).unwrap()
}

fn connect_all(hub: &MemoryHub, indices: &[usize]) {
    for (position, a) in indices.iter().enumerate() {
        for b in &indices[position + 1..] {
            assert!(hub.connect(validator_key(*a).public(), validator_key(*b).public()));
        }
    }
}

fn start_all(hub: &MemoryHub, genesis: &Genesis, clock: &Arc<ManualClock>) -> Vec<Node> {
    let nodes = 0..genesis.validators.len();
    nodes.map(|index| Node::start(hub, genesis, index, store(genesis), clock.clone())).collect()
}

// Goal: a proposer's hints carry values where that is configured, and only there.
#[test]
fn hints_carry_values_where_that_is_configured() {
    let genesis = genesis(1);
    let store = store(&genesis);
    let pool = Pool::new(PoolConfig::default(), genesis.chain.clone(), store.clone()).unwrap();
    pool.add(Account::new(0).transfer(0, 7)).unwrap();
    for (hints, carry) in [(HintsMode::Conflicts, false), (HintsMode::Values, true)] {
        let config = ExecutorConfig { hints, prefetch_threads: 0, ..Default::default() };
        let built = ledger_with(config, &genesis, &store).build(&pool, 100, NOW_MS, true).unwrap().unwrap();
        let sealed = built.executed.unwrap().sealed;
        let transactions =
            decode_body(&sealed.body.open(BlobKind::Body).unwrap(), genesis.chain.chain_id).unwrap();
        let (header, hints) = (sealed.header, sealed.hints.unwrap());
        let decoded = open_hints(&hints, header.gas_used, header.proposer, &transactions).unwrap();
        assert_eq!(!decoded.values.is_empty(), carry);
    }
}

// What a validator keeps, reads ahead and executes beside each other changes nothing; its cache knows the last batch, and passes on
// what it cannot know.
#[test]
fn every_way_to_execute_gives_the_proposers_batch() {
    let genesis = genesis(1);
    let set = genesis.validator_set();
    for hints in [HintsMode::Off, HintsMode::Keys, HintsMode::Conflicts, HintsMode::Values] {
        let [proposing, voting] = [1, 2].map(|threads| {
            let config = ExecutorConfig { hints, threads, prefetch_threads: threads, ..Default::default() };
            ledger_with(config, &genesis, &store(&genesis))
        });
        let pool = Pool::new(PoolConfig::default(), genesis.chain.clone(), proposing.store.clone()).unwrap();
        for batch in 0..4 {
            for account in 0..2 {
                let nonces = 20 * batch..20 * (batch + 1);
                nonces.for_each(|nonce| pool.add(Account::new(account).transfer(nonce, 7)).unwrap());
            }
            let built = proposing.build(&pool, 100, NOW_MS, false).unwrap().unwrap();
            let mut proposed = built.executed.unwrap();
            let Proposal { header, body, hints, .. } = proposal(&proposed);
            assert_eq!(header.tx_count, 40);
            let mut executed = voting.execute(&header, &body, hints.as_ref()).unwrap();
            let certificate = certificate(&set, &proposed);
            proposing.commit(&mut proposed, &certificate).unwrap();
            if batch == 1 {
                // Sync was faster, and did not tell.
                voting.store.commit(executed.sealed.commit_batch(&executed.delta, &[]), None).unwrap();
            } else {
                voting.commit(&mut executed, &certificate).unwrap();
            }
        }
        let stats = [&proposing, &voting].map(|ledger| ledger.engine.hot_stats());
        assert!(stats.iter().all(|stats| stats.hits > stats.misses), "{stats:?}");
    }
}

// A set of one certifies without a network; the batch is committed with its certificate, announced, and out of the pool.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_validator_certifies_alone() {
    let genesis = genesis(1);
    let mut node = Node::start(&MemoryHub::new(), &genesis, 0, store(&genesis), clock());
    let account = Account::new(0);
    for nonce in 0..3 {
        node.forwarder.submit(account.transfer(nonce, 1)).unwrap();
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
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_certify_with_one_silent() {
    let (hub, genesis) = (MemoryHub::new(), genesis(4));
    let nodes = start_all(&hub, &genesis, &clock());
    connect_all(&hub, &[0, 1, 2]);
    let account = Account::new(1);
    for nonce in 0..5 {
        let head = nodes[0].store.head().unwrap().header.number;
        nodes[0].forwarder.submit(account.transfer(nonce, 1)).unwrap();
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

// A proposer that lost its data does not sign a second batch 1: it waits for a quorum's heads and for sync.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_proposer_waits_for_the_chain() {
    let (hub, genesis, clock) = (MemoryHub::new(), genesis(4), clock());
    let ahead = store(&genesis);
    let mut executed = batch(&genesis, &ahead, 0..1, NOW_MS);
    let certificate = certificate(&genesis.validator_set(), &executed);
    // Validator 2 has the batch, 1 does not, 3 is away.
    ledger(&genesis, &ahead).commit(&mut executed, &certificate).unwrap();
    let empty = store(&genesis);
    let nodes = [store(&genesis), store(&genesis), ahead];
    let nodes: Vec<_> = nodes
        .into_iter()
        .enumerate()
        .map(|(index, store)| Node::start(&hub, &genesis, index, store, clock.clone()))
        .collect();
    nodes[0].forwarder.submit(Account::new(1).transfer(0, 1)).unwrap();
    connect_all(&hub, &[0, 1]);
    tokio::time::sleep(std::time::Duration::from_millis(150)).await;
    connect_all(&hub, &[0, 1, 2]);
    // Whoever does not wait has voted long since.
    tokio::time::sleep(std::time::Duration::from_millis(150)).await;
    assert_eq!(nodes[0].validator.status().voted, None);
    // Sync brings the batch to all; the next one is the proposer's.
    for store in [&nodes[0].store, &nodes[1].store, &empty] {
        ledger(&genesis, store).commit(&mut executed, &certificate).unwrap();
    }
    for node in &nodes {
        node.reaches(2).await;
    }
    assert_eq!(nodes[0].store.header(BatchNumber(1)).unwrap(), empty.header(BatchNumber(1)).unwrap());
}

// One wrong reading of the proposer's clock costs minutes, not the year that it is wrong by.
#[test]
fn time_goes_on_in_bounded_steps() {
    const YEAR_MS: u64 = 365 * 24 * 3_600_000;
    let genesis = genesis(1);
    let store = store(&genesis);
    let late = batch(&genesis, &store, 0..0, NOW_MS + YEAR_MS);
    assert_eq!(late.sealed.header.timestamp_ms, NOW_MS + YEAR_MS, "a genesis may be old");
    let first = batch(&genesis, &store, 0..0, NOW_MS);
    store.commit(CommitBatch::new(&first.sealed.header, &first.delta), None).unwrap();
    for (now_ms, expected) in
        [(NOW_MS + YEAR_MS, NOW_MS + 600_000), (NOW_MS + 7, NOW_MS + 7), (NOW_MS - 7, NOW_MS)]
    {
        assert_eq!(batch(&genesis, &store, 0..0, now_ms).sealed.header.timestamp_ms, expected);
    }
}

// Two of four are none: nothing is certified. After a restart the proposer proposes the very same batch again, though its
// clock and its pool are other ones, and once a third one is back it is certified.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_silent_halt_and_the_open_batch_survives_a_restart() {
    let (hub, genesis, clock) = (MemoryHub::new(), genesis(4), clock());
    let mut nodes = start_all(&hub, &genesis, &clock);
    connect_all(&hub, &[0, 1, 2]);
    nodes[0].forwarder.submit(Account::new(0).transfer(0, 1)).unwrap();
    for node in &nodes[..3] {
        node.reaches(1).await;
    }
    hub.disconnect(validator_key(0).public(), validator_key(2).public());
    nodes[0].forwarder.submit(Account::new(0).transfer(1, 1)).unwrap();
    let proposer = nodes[0].validator.clone();
    let open_votes = || (proposer.status().proposing, proposer.status().votes);
    until("two votes are in", || open_votes() == (Some(BatchNumber(2)), 2)).await;
    // The refusals to come in would have come: the messengers have asked the silent ones at least once more.
    tokio::time::sleep(std::time::Duration::from_millis(250)).await;
    assert_eq!(proposer.status().votes, 2);
    assert_eq!(nodes[0].store.head().unwrap().header.number, BatchNumber(1));

    drop(proposer);
    let disk = nodes.remove(0).stop().await;
    let (open, _) = record::load(&disk).unwrap().unwrap().proposal.unwrap();
    clock.0.fetch_add(60_000, Relaxed);
    let again = Node::start(&hub, &genesis, 0, disk, clock);
    connect_all(&hub, &[0, 1, 2]);
    again.reaches(2).await;
    assert_eq!(again.store.header(BatchNumber(2)).unwrap(), Some(open.clone()));
    for node in &nodes[..2] {
        node.reaches(2).await;
        assert_eq!(node.store.header(BatchNumber(2)).unwrap(), Some(open.clone()));
    }
    // And it goes on from there.
    again.forwarder.submit(Account::new(0).transfer(2, 1)).unwrap();
    again.reaches(3).await;
}

// Without transactions the chain's time goes on in empty batches, if it is told to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_batches_are_made_on_request_only() {
    let genesis = genesis(1);
    let quiet = Node::start(&MemoryHub::new(), &genesis, 0, store(&genesis), clock());
    let store = store(&genesis);
    let pool = Pool::new(PoolConfig::default(), genesis.chain.clone(), store.clone()).unwrap();
    let built = ledger(&genesis, &store).build(&pool, 10, NOW_MS, false).unwrap().unwrap();
    assert!(built.executed.is_none());
    let built = ledger(&genesis, &store).build(&pool, 10, NOW_MS, true).unwrap().unwrap();
    assert_eq!(built.executed.unwrap().sealed.header.tx_count, 0);
    assert_eq!(quiet.store.head().unwrap().header.number, BatchNumber(0));
}

// A validator signs one ledger info per number, and a restart on the same disk does not make it forget.
#[test]
fn never_two_votes_for_one_number() {
    let genesis = genesis(4);
    let dir = tempfile::tempdir().unwrap();
    let open = || Store::open(&StorageConfig::default(), dir.path()).unwrap();
    let disk = open();
    disk.initialize(&genesis).unwrap();
    let first = proposal(&batch(&genesis, &disk, 0..2, NOW_MS));
    let second = proposal(&batch(&genesis, &disk, 0..1, NOW_MS + 1));
    let mut running = voter(&genesis, &disk, 2);
    let vote = running.vote(&first).unwrap();
    assert!(matches!(vote, Response::Vote { index: 2, .. }));
    assert_eq!(running.vote(&first).unwrap(), vote);
    let refused = running.vote(&second);
    assert!(matches!(
        refused,
        Err(ProposalError::AlreadyVoted { number: BatchNumber(1), voted: BatchNumber(1) })
    ));
    drop((running, disk));

    let mut restarted = voter(&genesis, &open(), 2);
    assert!(matches!(restarted.vote(&second), Err(ProposalError::AlreadyVoted { .. })));
    assert_eq!(restarted.vote(&first).unwrap(), vote);
    assert!(matches!(restarted.vote(&second), Err(ProposalError::AlreadyVoted { .. })));
}

// A missed decision comes with the next proposal; a decision on what is not held, or without a quorum, commits nothing; a
// proposer that lost its own commit gets the same votes again.
#[test]
fn decisions() {
    let genesis = genesis(4);
    let stores: Vec<_> = (0..4).map(|_| store(&genesis)).collect();
    let mut executed = batch(&genesis, &stores[0], 0..2, NOW_MS);
    let first = proposal(&executed);
    let mut voters: Vec<_> =
        (0..4).map(|index| voter(&genesis, &stores[usize::from(index)], index)).collect();
    let set = genesis.validator_set();
    let mut votes = Votes::new(executed.info.clone());
    votes.add(&set, 0, voters[0].sign(&executed.info, None).unwrap());
    let given: Vec<_> = voters[1..3].iter_mut().map(|voter| voter.vote(&first).unwrap()).collect();
    for vote in &given {
        let Response::Vote { index, signature } = vote else { panic!("{vote:?}") };
        votes.add(&set, *index, *signature);
    }
    let certificate = votes.certificate(&set).unwrap();

    let mut short = certificate.clone();
    short.signatures = slipstream_types::bounded::BoundedVec::new(short.signatures[..2].to_vec()).unwrap();
    assert!(matches!(voters[1].decide(&short), Err(ProposalError::Certificate(_))));
    assert_eq!(stores[1].head().unwrap().header.number, BatchNumber(0));
    assert_eq!(voters[3].decide(&certificate).unwrap(), Response::Decided { head: BatchNumber(0) });
    assert_eq!(voters[1].decide(&certificate).unwrap(), Response::Decided { head: BatchNumber(1) });
    assert_eq!(stores[1].certificate(BatchNumber(1)).unwrap().as_ref(), Some(&certificate));
    assert_eq!(voters[1].vote(&first).unwrap(), given[0], "the proposer went down before its own commit");

    ledger(&genesis, &stores[0]).commit(&mut executed, &certificate).unwrap();
    let next = Proposal { parent: Some(certificate), ..proposal(&batch(&genesis, &stores[0], 2..3, NOW_MS)) };
    assert!(matches!(voters[2].vote(&next).unwrap(), Response::Vote { index: 2, .. }));
    assert_eq!(stores[2].head().unwrap().header.number, BatchNumber(1));
    assert_eq!(voters[3].vote(&next).unwrap(), Response::Behind { head: BatchNumber(0) });
    let refused = voters[2].vote(&first);
    assert!(
        matches!(refused, Err(ProposalError::AlreadyVoted { .. })),
        "its last vote is for batch 2: {refused:?}"
    );
}

type Forgery<'a> = Box<dyn FnOnce(&mut Proposal) + 'a>;

fn forge(change: impl FnOnce(&mut BatchHeader)) -> impl FnOnce(&mut Proposal) {
    |proposal| change(&mut proposal.header)
}

// Each forgery is refused by name, and none gets a vote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_proposals_are_refused_by_name() {
    let genesis = genesis(4);
    let node = Node::start(&MemoryHub::new(), &genesis, 1, store(&genesis), clock());
    let honest = proposal(&batch(&genesis, &node.store, 0..2, NOW_MS));
    let other = Digest::tagged("forged", b"");
    let repeated = {
        let body: Body = honest.body.open(BlobKind::Body).unwrap();
        let first = body.transactions[0].to_vec();
        Blob::seal(BlobKind::Body, &Body::new(vec![first.clone(), first]).unwrap()).unwrap()
    };
    let repeated_root =
        slipstream_types::batch::content_digest(BlobKind::Body, &repeated.content(BlobKind::Body).unwrap());
    let cases: Vec<(&str, Forgery<'_>)> = vec![
        ("names the parent", Box::new(forge(|header| header.parent = other))),
        ("time must not go back", Box::new(forge(|header| header.timestamp_ms = genesis.timestamp_ms - 1))),
        ("more than 10000 ahead", Box::new(forge(|header| header.timestamp_ms = NOW_MS + 10_001))),
        ("epoch", Box::new(forge(|header| header.epoch = Epoch(1)))),
        ("proposer", Box::new(forge(|header| header.proposer = Address::ZERO))),
        ("tx_count", Box::new(forge(|header| header.tx_count += 1))),
        ("tx_bytes", Box::new(forge(|header| header.tx_bytes += 1))),
        ("gas_used", Box::new(forge(|header| header.gas_used -= 1))),
        ("delta_bytes", Box::new(forge(|header| header.delta_bytes += 1))),
        ("delta_digest", Box::new(forge(|header| header.delta_digest = other))),
        ("receipts_root", Box::new(forge(|header| header.receipts_root = other))),
        ("state_root", Box::new(forge(|header| header.state_root = other))),
        ("transactions_root", Box::new(forge(|header| header.transactions_root = other))),
        (
            "transactions_root",
            Box::new({
                let repeated = repeated.clone();
                |proposal| proposal.body = repeated
            }),
        ),
        (
            "nonce too low",
            Box::new(|proposal| {
                proposal.body = repeated;
                proposal.header.transactions_root = repeated_root;
            }),
        ),
        ("batch 0 is committed here", Box::new(forge(|header| header.number = BatchNumber(0)))),
    ];
    let proposer = validator_key(0).public();
    let send = |peer, proposal: Proposal| {
        let payload = messages::encode(&Request::Propose(Box::new(proposal))).unwrap();
        node.validator.handle(peer, payload)
    };
    for (reason, change) in cases {
        let mut forged = honest.clone();
        change(&mut forged);
        let refusal = send(proposer, forged).await.expect_err(reason);
        assert!(refusal.0.contains(reason), "expected {reason:?}: {}", refusal.0);
    }
    for (peer, reason) in [
        (validator_key(2).public(), "is not the proposer"),
        (validator_key(9).public(), "is not a validator"),
    ] {
        let refusal = send(peer, honest.clone()).await.unwrap_err();
        assert!(refusal.0.contains(reason), "{}", refusal.0);
    }
    let garbage = node.validator.handle(proposer, vec![0xff; 100]).await.unwrap_err();
    assert!(garbage.0.contains("malformed consensus request"), "{}", garbage.0);
    let mut ahead = honest.clone();
    ahead.header.number = BatchNumber(9);
    let behind = send(proposer, ahead).await.unwrap();
    assert_eq!(messages::decode_response(&behind).unwrap(), Response::Behind { head: BatchNumber(0) });

    assert_eq!(record::load(&node.store).unwrap(), None);
    assert_eq!(node.validator.status().voted, None);
    assert_eq!(node.validator.status().refused, 19);
    // The honest one gets its vote, whatever its hints say: they are advice.
    let mut honest = honest;
    honest.hints = Some(Blob::compress(BlobKind::Hints, &[0xff; 60]).unwrap());
    let vote = messages::decode_response(&send(proposer, honest).await.unwrap()).unwrap();
    assert!(matches!(vote, Response::Vote { index: 1, .. }));
    assert_eq!(node.validator.status().voted, Some(BatchNumber(1)));
}

// What only execution finds to be invalid leaves the pool, whether or not there is a batch, and holds up nobody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duds_leave_the_pool() {
    let genesis = genesis(1);
    let node = Node::start(&MemoryHub::new(), &genesis, 0, store(&genesis), clock());
    node.forwarder.submit(Account::contract().transfer(0, 9)).unwrap();
    until("the dud is gone", || node.pool.status().bytes == 0).await;
    assert_eq!(node.store.head().unwrap().header.number, BatchNumber(0));
    node.forwarder.submit(Account::contract().transfer(0, 9)).unwrap();
    node.forwarder.submit(Account::new(1).transfer(0, 1)).unwrap();
    node.reaches(1).await;
    until("the pool is empty", || node.pool.status().bytes == 0).await;
    node.stop().await;
}

// What no state can make valid does not even get in.
#[test]
fn the_pool_refuses_what_can_never_execute() {
    let genesis = genesis(1);
    let pool = Pool::new(PoolConfig::default(), genesis.chain.clone(), store(&genesis)).unwrap();
    let error = pool.add(Account::new(0).hopeless(0)).unwrap_err();
    assert!(error.to_string().starts_with("intrinsic gas too low"), "{error}");
    assert!(!error.is_retryable());
    assert_eq!(pool.status().bytes, 0);
}

// A pool follows batches that somebody else commits, by their deltas or, where those are not stored, by reading accounts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pool_follows_the_head() {
    let genesis = genesis(1);
    for with_delta in [true, false] {
        let store = store(&genesis);
        let pool = Pool::new(PoolConfig::default(), genesis.chain.clone(), store.clone()).unwrap();
        let shutdown = tokio_util::sync::CancellationToken::new();
        let maintained = tokio::spawn(crate::maintain(pool.clone(), shutdown.clone()));
        for nonce in 0..4 {
            pool.add(Account::new(0).transfer(nonce, 1)).unwrap();
        }
        pool.add(Account::new(1).transfer(0, 1)).unwrap();
        let executed = batch(&genesis, &store, 0..3, NOW_MS);
        let delta_blob = with_delta.then_some(&executed.sealed.delta);
        let commit = CommitBatch { delta_blob, ..CommitBatch::new(&executed.sealed.header, &executed.delta) };
        store.commit(commit, None).unwrap();
        until("three are gone", || pool.status().pending == 2).await;
        assert_eq!(pool.pending_nonce(&Account::new(0).address), Some(4));
        assert!(pool.add(Account::new(0).transfer(2, 50)).is_err());
        shutdown.cancel();
        maintained.await.unwrap();
    }
}

// Only a member of the set can be a validator.
#[test]
fn a_stranger_is_told_what_to_do() {
    let genesis = genesis(1);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _guard = runtime.enter();
    let (transport, _) = crate::testing::join(&MemoryHub::new(), validator_key(5).public());
    let store = store(&genesis);
    let pool = Pool::new(PoolConfig::default(), genesis.chain.clone(), store.clone()).unwrap();
    let (sender, _decided) = tokio::sync::mpsc::channel(1);
    let (chain, set) = (genesis.chain.clone(), genesis.validator_set());
    let stranger = super::Validator::new(
        crate::testing::config(),
        &ExecutorConfig::default(),
        chain,
        store,
        pool,
        validator_key(5),
        set,
        transport,
        clock(),
        sender,
    );
    let error = stranger.err().unwrap().to_string();
    assert!(error.contains("run this node as a fullnode"), "{error}");
}
