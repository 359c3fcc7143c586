//! What the proposer asks before it signs: heads and clocks, from validators that may lie.

use std::{sync::Arc, time::Duration};

use slipstream_network::{BoxFuture, Handler, MemoryHub, Payload, PeerId, Protocol, Refusal};
use slipstream_types::{BatchNumber, Certificate};

use super::{batch, certificate, connect_all, ledger};
use crate::{
    protocol::messages::{self, Request, Response},
    testing::{Account, NOW_MS, Node, clock, genesis, store, validator_key},
};

/// Whoever does not wait has signed long since.
const LONG: Duration = Duration::from_secs(30);

// A proposer that lost its data does not sign a second batch 1: it waits for a quorum's heads and for sync.
#[tokio::test(start_paused = true)]
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
    nodes[0].forwarder.submit(&Account::new(1).transfer(0, 1).raw, None).unwrap();
    connect_all(&hub, &[0, 1]);
    tokio::time::sleep(LONG).await;
    connect_all(&hub, &[0, 1, 2]);
    // Whoever does not wait has voted long since.
    tokio::time::sleep(LONG).await;
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

/// Says that it has the last batch there can be, with whatever certificate it was given.
struct Liar {
    certificate: Option<Certificate>,
}

impl Handler for Liar {
    fn request<'a>(
        &'a self,
        _: PeerId,
        _: Protocol,
        payload: Vec<u8>,
    ) -> BoxFuture<'a, Result<Payload, Refusal>> {
        Box::pin(async move {
            let response = match (messages::decode_request(&payload), &self.certificate) {
                (Ok(Request::Standing), Some(certificate)) => {
                    Response::Standing { certificate: Some(Box::new(certificate.clone())), now_ms: u64::MAX }
                }
                _ => Response::Decided { head: BatchNumber(u64::MAX) },
            };
            Ok(messages::encode(&response).unwrap().into())
        })
    }

    fn broadcast<'a>(&'a self, _: PeerId, _: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

// One validator that claims what it cannot prove, and a clock at the end of time, does not keep the chain from beginning.
#[tokio::test(start_paused = true)]
async fn a_lying_validator_does_not_stop_the_first_start() {
    let genesis = genesis(4);
    let mut forged = {
        let executed = batch(&genesis, &store(&genesis), 0..0, NOW_MS);
        certificate(&genesis.validator_set(), &executed)
    };
    forged.info.number = BatchNumber(u64::MAX);
    for certificate in [None, Some(forged)] {
        let (hub, clock) = (MemoryHub::new(), clock());
        let nodes: Vec<_> =
            (0..3).map(|index| Node::start(&hub, &genesis, index, store(&genesis), clock.clone())).collect();
        hub.join(validator_key(3).public(), Arc::new(Liar { certificate }));
        connect_all(&hub, &[0, 1, 2, 3]);
        nodes[0].forwarder.submit(&Account::new(0).transfer(0, 1).raw, None).unwrap();
        nodes[2].reaches(1).await;
    }
}

// A proposer whose clock is wrong signs nothing that it could not take back, at the beginning of the chain as later, and goes on
// once its clock is right.
#[tokio::test(start_paused = true)]
async fn a_wrong_clock_signs_nothing() {
    const YEAR_MS: i64 = 365 * 24 * 3_600_000;
    let genesis = genesis(4);
    for wrong_ms in [YEAR_MS, -YEAR_MS, 6_000, -6_000] {
        let (hub, own, others) = (MemoryHub::new(), clock(), clock());
        own.shift(wrong_ms);
        let mut nodes = vec![Node::start(&hub, &genesis, 0, store(&genesis), own.clone())];
        nodes.extend((1..4).map(|index| Node::start(&hub, &genesis, index, store(&genesis), others.clone())));
        connect_all(&hub, &[0, 1, 2, 3]);
        let account = Account::new(0);
        nodes[0].forwarder.submit(&account.transfer(0, 1).raw, None).unwrap();
        tokio::time::sleep(LONG).await;
        assert_eq!(nodes[0].validator.status().voted, None, "{wrong_ms}");
        own.shift(-wrong_ms);
        nodes[3].reaches(1).await;

        own.shift(wrong_ms);
        nodes[0].forwarder.submit(&account.transfer(1, 1).raw, None).unwrap();
        tokio::time::sleep(LONG).await;
        assert_eq!(nodes[0].validator.status().voted, Some(BatchNumber(1)), "{wrong_ms}");
        own.shift(-wrong_ms);
        nodes[3].reaches(2).await;
        let time_ms = nodes[3].store.head().unwrap().header.timestamp_ms;
        assert!((NOW_MS + 60_000..NOW_MS + 90_000).contains(&time_ms), "{time_ms}");
    }
}

// The clocks of a quorum count: one that is wrong, and one that is silent, are not the chain's concern.
#[tokio::test(start_paused = true)]
async fn one_wrong_clock_among_the_others_changes_nothing() {
    let (hub, genesis, right, wrong) = (MemoryHub::new(), genesis(4), clock(), clock());
    wrong.shift(3_600_000);
    let clocks = [&right, &right, &wrong];
    let nodes: Vec<_> = (0..3)
        .map(|index| Node::start(&hub, &genesis, index, store(&genesis), clocks[index].clone()))
        .collect();
    connect_all(&hub, &[0, 1, 2]);
    nodes[0].forwarder.submit(&Account::new(0).transfer(0, 1).raw, None).unwrap();
    nodes[2].reaches(1).await;
}

/// Goal: a proposer whose clock is wrong, and a validator that confirms it, do not sign a time while those that are right answer.
#[tokio::test(start_paused = true)]
async fn one_that_confirms_a_wrong_clock_is_not_enough() {
    let (hub, genesis, right, wrong) = (MemoryHub::new(), genesis(4), clock(), clock());
    wrong.shift(3_600_000);
    let clocks = [&wrong, &wrong, &right, &right];
    let mut nodes: Vec<_> = (0..3)
        .map(|index| Node::start(&hub, &genesis, index, store(&genesis), clocks[index].clone()))
        .collect();
    connect_all(&hub, &[0, 1, 2]);
    nodes[0].forwarder.submit(&Account::new(0).transfer(0, 1).raw, None).unwrap();
    // The fourth is late, and not very late.
    tokio::time::sleep(Duration::from_millis(500)).await;
    nodes.push(Node::start(&hub, &genesis, 3, store(&genesis), clocks[3].clone()));
    connect_all(&hub, &[0, 1, 2, 3]);
    tokio::time::sleep(LONG).await;
    assert_eq!(nodes[0].validator.status().voted, None);
    wrong.shift(-3_600_000);
    nodes[2].reaches(1).await;
}
