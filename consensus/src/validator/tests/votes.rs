//! What a validator votes for, and what it refuses.

use std::{sync::Arc, time::Duration};

use slipstream_network::MemoryHub;
use slipstream_storage::{StorageConfig, Store};
use slipstream_types::{
    Address, BatchHeader, BatchNumber, Blob, BlobKind, Body, Clock, CommitStatement, Digest, Epoch,
};

use super::{super::records::Records, Lone, batch, ledger, proposal};
use crate::{
    protocol::{
        messages::{self, Proposal, Request, Response},
        votes::{VIEW, Votes},
    },
    testing::{NOW_MS, Node, clock, genesis, store, validator_key},
};

/// What a validator says that has voted for another batch 1.
const OTHER_VOTE: &str = "batch 1 is refused: this validator has voted for another batch 1";

// A validator signs one ledger info per number, and a restart on the same disk does not make it forget.
#[tokio::test(start_paused = true)]
async fn never_two_votes_for_one_number() {
    let genesis = genesis(4);
    let dir = tempfile::tempdir().unwrap();
    let open = || Store::open(&StorageConfig::default(), dir.path()).unwrap();
    let disk = open();
    disk.initialize(&genesis).unwrap();
    let first = proposal(&batch(&genesis, &disk, 0..2, NOW_MS));
    let second = proposal(&batch(&genesis, &disk, 0..1, NOW_MS + 1));
    let running = Lone::start(&genesis, &disk, 2);
    let vote = running.propose(&first).await.unwrap();
    assert!(matches!(vote, Response::Vote { index: 2, .. }));
    assert_eq!(running.propose(&first).await.unwrap(), vote);
    assert_eq!(running.propose(&second).await.unwrap_err(), OTHER_VOTE);
    running.stop().await;
    drop(disk);

    let restarted = Lone::start(&genesis, &open(), 2);
    assert_eq!(restarted.validator.status().voted, Some(BatchNumber(1)));
    assert_eq!(restarted.propose(&second).await.unwrap_err(), OTHER_VOTE);
    assert_eq!(restarted.propose(&first).await.unwrap(), vote);
    assert_eq!(restarted.propose(&second).await.unwrap_err(), OTHER_VOTE);
}

// A missed decision comes with the next proposal; a decision on what is not held, or without a quorum, commits nothing; a
// proposer that lost its own commit gets the same votes again.
#[tokio::test(start_paused = true)]
async fn decisions() {
    let genesis = genesis(4);
    let stores: Vec<_> = (0..4).map(|_| store(&genesis)).collect();
    let mut executed = batch(&genesis, &stores[0], 0..2, NOW_MS);
    let first = proposal(&executed);
    let [one, two, three] = [1, 2, 3].map(|index| Lone::start(&genesis, &stores[index], index));
    let set = genesis.validator_set();
    let mut votes = Votes::new(executed.info.clone());
    let statement = CommitStatement::new(VIEW, executed.info.digest());
    votes.add(&set, 0, statement.sign(&validator_key(0)));
    let given = one.propose(&first).await.unwrap();
    for vote in [&given, &two.propose(&first).await.unwrap()] {
        let Response::Vote { index, signature } = vote else { panic!("{vote:?}") };
        votes.add(&set, *index, *signature);
    }
    let certificate = votes.certificate(&set).unwrap();

    let mut short = certificate.clone();
    short.signatures = slipstream_types::bounded::BoundedVec::new(short.signatures[..2].to_vec()).unwrap();
    let refused = one.decide(&short).await.unwrap_err();
    assert!(refused.contains("has 2 signatures, a quorum is 3"), "{refused}");
    assert_eq!(stores[1].head().unwrap().header.number, BatchNumber(0));
    assert_eq!(three.decide(&certificate).await.unwrap(), Response::Decided { head: BatchNumber(0) });
    assert_eq!(one.decide(&certificate).await.unwrap(), Response::Decided { head: BatchNumber(1) });
    assert_eq!(stores[1].certificate(BatchNumber(1)).unwrap().as_ref(), Some(&certificate));
    assert_eq!(one.propose(&first).await.unwrap(), given, "the proposer went down before its own commit");

    ledger(&genesis, &stores[0]).commit(&mut executed, &certificate).unwrap();
    let next = Proposal { parent: Some(certificate), ..proposal(&batch(&genesis, &stores[0], 2..3, NOW_MS)) };
    assert!(matches!(two.propose(&next).await.unwrap(), Response::Vote { index: 2, .. }));
    assert_eq!(stores[2].head().unwrap().header.number, BatchNumber(1));
    assert_eq!(three.propose(&next).await.unwrap(), Response::Behind { head: BatchNumber(0) });
    let refused = two.propose(&first).await.unwrap_err();
    assert!(refused.contains("voted for another batch 2"), "its last vote is for batch 2: {refused}");
}

type Forgery<'a> = Box<dyn FnOnce(&mut Proposal) + 'a>;

fn forge(change: impl FnOnce(&mut BatchHeader)) -> impl FnOnce(&mut Proposal) {
    |proposal| change(&mut proposal.header)
}

// Each forgery is refused by name, and none gets a vote.
#[tokio::test(start_paused = true)]
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
        assert!(refusal.text().contains(reason), "expected {reason:?}: {}", refusal.text());
    }
    for (peer, reason) in [
        (validator_key(2).public(), "is not the proposer"),
        (validator_key(9).public(), "is not a validator"),
    ] {
        let refusal = send(peer, honest.clone()).await.unwrap_err();
        assert!(refusal.text().contains(reason), "{}", refusal.text());
    }
    let garbage = node.validator.handle(proposer, vec![0xff; 100]).await.unwrap_err();
    assert!(garbage.text().contains("malformed consensus request"), "{}", garbage.text());
    let mut ahead = honest.clone();
    ahead.header.number = BatchNumber(9);
    let behind = send(proposer, ahead).await.unwrap();
    assert_eq!(messages::decode_response(&behind).unwrap(), Response::Behind { head: BatchNumber(0) });

    assert_eq!(Records::open(node.store.clone()).unwrap().last(), None);
    assert_eq!(node.validator.status().voted, None);
    assert_eq!(node.validator.status().refused, 19);
    // The honest one gets its vote, whatever its hints say: they are advice.
    let mut honest = honest;
    honest.hints = Some(Blob::compress(BlobKind::Hints, &[0xff; 60]).unwrap());
    let vote = messages::decode_response(&send(proposer, honest).await.unwrap()).unwrap();
    assert!(matches!(vote, Response::Vote { index: 1, .. }));
    assert_eq!(node.validator.status().voted, Some(BatchNumber(1)));
}

// That another batch of the number was voted for is found before anything is executed: a proposer asks ten times a second.
#[tokio::test(start_paused = true)]
async fn a_second_vote_is_refused_unexecuted() {
    let genesis = genesis(4);
    let store = store(&genesis);
    let first = proposal(&batch(&genesis, &store, 0..2, NOW_MS));
    let mut second = proposal(&batch(&genesis, &store, 0..1, NOW_MS));
    second.header.gas_used += 1;
    second.body = Blob::compress(BlobKind::Body, &[0xff; 9]).unwrap();
    let voter = Lone::start(&genesis, &store, 2);
    voter.propose(&first).await.unwrap();
    assert_eq!(voter.propose(&second).await.unwrap_err(), OTHER_VOTE);
}

// What was begun for an asker that has gone is finished: its vote counts, and is given again to whoever asks next.
#[tokio::test(start_paused = true)]
async fn an_asker_that_goes_stops_nothing() {
    let genesis = genesis(4);
    let store = store(&genesis);
    let first = proposal(&batch(&genesis, &store, 0..2, NOW_MS));
    let second = proposal(&batch(&genesis, &store, 0..1, NOW_MS));
    let voter = Lone::start(&genesis, &store, 2);
    assert!(tokio::time::timeout(Duration::ZERO, voter.propose(&first)).await.is_err(), "it is gone");
    assert_eq!(voter.propose(&second).await.unwrap_err(), OTHER_VOTE, "its place in the order stays");
    assert!(matches!(voter.propose(&first).await.unwrap(), Response::Vote { index: 2, .. }));
    voter.stop().await;
}

// Whoever asks a validator that has stopped is told so, and does not wait.
#[tokio::test(start_paused = true)]
async fn a_validator_that_stopped_says_so() {
    let genesis = genesis(4);
    let store = store(&genesis);
    let Lone { validator, shutdown, running } = Lone::start(&genesis, &store, 1);
    shutdown.cancel();
    running.await.unwrap().unwrap();
    let payload = messages::encode(&Request::Standing).unwrap();
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

// A panic while voting ends the validator, also when whoever asked has gone, and nothing is voted on after it.
#[tokio::test(start_paused = true)]
async fn a_panic_while_voting_ends_the_validator() {
    let genesis = genesis(4);
    let node = Node::start(&MemoryHub::new(), &genesis, 1, store(&genesis), Arc::new(BrokenClock));
    let proposal = proposal(&batch(&genesis, &node.store, 0..1, NOW_MS));
    let proposer = validator_key(0).public();
    let ask = |request: &Request| node.validator.handle(proposer, messages::encode(request).unwrap());
    let propose = ask(&Request::Propose(Box::new(proposal)));
    assert!(
        tokio::time::timeout(Duration::ZERO, propose).await.is_err(),
        "the asker is gone before the panic"
    );
    let refusal = ask(&Request::Decide(Box::new(super::certificate(
        &genesis.validator_set(),
        &batch(&genesis, &node.store, 0..1, NOW_MS),
    ))));
    assert_eq!(refusal.await.unwrap_err().text(), "this validator is stopping");
    let error = node.failure().await.to_string();
    assert!(error.starts_with("the validator's task vote ended unexpectedly: "), "{error}");
    assert!(error.contains("the clock is gone"), "{error}");
}
