//! What a validator votes for, and what it refuses.

use std::{sync::Arc, time::Duration};

use slipstream_network::MemoryHub;
use slipstream_storage::{StorageConfig, Store};
use slipstream_types::{Address, BatchHeader, BatchNumber, Blob, BlobKind, Body, Clock, Digest, Epoch};

use super::{batch, ledger, proposal, voter};
use crate::{
    ProposalError,
    protocol::{
        messages::{self, Proposal, Request, Response},
        record,
        votes::Votes,
    },
    testing::{NOW_MS, Node, clock, genesis, store, validator_key},
};

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

// That another batch of the number was voted for is found before anything is executed: a proposer asks ten times a second.
#[test]
fn a_second_vote_is_refused_unexecuted() {
    let genesis = genesis(4);
    let store = store(&genesis);
    let first = proposal(&batch(&genesis, &store, 0..2, NOW_MS));
    let mut second = proposal(&batch(&genesis, &store, 0..1, NOW_MS));
    second.header.gas_used += 1;
    second.body = Blob::compress(BlobKind::Body, &[0xff; 9]).unwrap();
    let mut voter = voter(&genesis, &store, 2);
    voter.vote(&first).unwrap();
    let refused = voter.vote(&second);
    assert!(matches!(refused, Err(ProposalError::AlreadyVoted { .. })), "{refused:?}");
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
