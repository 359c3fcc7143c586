//! Goal: a peer that lies is refused by name, nothing of it is stored, and another peer is used.

use std::sync::Arc;

use slipstream_network::{BoxFuture, Handler, MemoryHub, Payload, PeerId, Protocol, Refusal};
use slipstream_storage::StateChunk;
use slipstream_sync::{
    Mode, SyncServer,
    protocol::{Offer, Range, Request, Summary},
};
use slipstream_types::{BatchNumber, Blob, BlobKind, Delta, StateValue, U256, bounded::BoundedVec, codec};

use crate::{
    chain::Chain,
    following::{Following, Honest, peer},
};

const MAX: usize = 64 << 20;

/// Changes an honest answer into a lie; `None` drops the request.
pub(crate) type Lie = fn(&Request, Vec<u8>) -> Option<Vec<u8>>;

pub(crate) struct Liar {
    pub(crate) server: SyncServer,
    pub(crate) lie: Lie,
}

impl Handler for Liar {
    fn request<'a>(
        &'a self,
        peer: PeerId,
        _protocol: Protocol,
        payload: Vec<u8>,
    ) -> BoxFuture<'a, Result<Payload, Refusal>> {
        Box::pin(async move {
            let request: Request = codec::decode("request", &payload, MAX).unwrap();
            let answer = self.server.handle(peer, payload).await?.into_vec();
            match (self.lie)(&request, answer) {
                Some(answer) => Ok(answer.into()),
                None => std::future::pending().await,
            }
        })
    }

    fn message<'a>(&'a self, _peer: PeerId, _payload: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

fn change_range(request: &Request, answer: Vec<u8>, change: fn(&mut Range)) -> Option<Vec<u8>> {
    if !matches!(request, Request::Range(_)) {
        return Some(answer);
    }
    let mut range: Range = codec::decode("range", &answer, MAX).unwrap();
    change(&mut range);
    Some(codec::encode("range", &range).unwrap())
}

fn change_batch(range: &mut Range, at: usize, change: impl Fn(&mut slipstream_sync::protocol::RangeBatch)) {
    let mut batches = range.batches.to_vec();
    change(&mut batches[at]);
    range.batches = BoundedVec::new(batches).unwrap();
}

fn corrupted_blob(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
    change_range(request, answer, |range| {
        change_batch(range, 2, |batch| {
            let mut bytes = batch.body.take().unwrap().into_bytes();
            let at = bytes.len() / 2;
            bytes[at] ^= 0x10;
            batch.body = Some(Blob::from_bytes(bytes).unwrap());
        });
    })
}

fn wrong_delta(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
    change_range(request, answer, |range| {
        change_batch(range, 1, |batch| {
            let delta = Delta::open(batch.delta.as_ref().unwrap()).unwrap();
            let mut entries = delta.entries().to_vec();
            for entry in &mut entries {
                if let Some(StateValue::Account(account)) = &mut entry.value {
                    account.balance += U256::from(1);
                }
            }
            let codes = delta.codes().iter().map(|code| code.to_vec()).collect();
            batch.delta = Some(Blob::seal(BlobKind::Delta, &Delta::new(entries, codes).unwrap()).unwrap());
        });
    })
}

/// The receipts of the batch before, beside a true body and a true delta.
fn false_receipts(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
    change_range(request, answer, |range| {
        let others = range.batches[0].receipts.clone();
        change_batch(range, 1, |batch| {
            assert_ne!(batch.receipts, others);
            batch.receipts.clone_from(&others);
        });
    })
}

fn short_range(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
    change_range(request, answer, |range| {
        range.batches = BoundedVec::new(range.batches[..3].to_vec()).unwrap();
    })
}

fn no_range(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
    change_range(request, answer, |range| range.batches = BoundedVec::default())
}

fn few_signatures(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
    change_range(request, answer, |range| {
        range.certificate.signatures = BoundedVec::new(range.certificate.signatures[..2].to_vec()).unwrap();
    })
}

fn forged_header(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
    change_range(request, answer, |range| {
        let last = range.batches.len() - 1;
        change_batch(range, last, |batch| batch.header.gas_used += 1);
    })
}

fn missing_part(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
    change_range(request, answer, |range| {
        change_batch(range, 0, |batch| (batch.body, batch.delta) = (None, None))
    })
}

fn summary_without_quorum(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
    if !matches!(request, Request::Summary) {
        return Some(answer);
    }
    let mut summary: Summary = codec::decode("summary", &answer, MAX).unwrap();
    let mut head = summary.head.take().unwrap();
    head.info.number = BatchNumber::new(1_000_000);
    summary.head = Some(head);
    Some(codec::encode("summary", &summary).unwrap())
}

fn garbage(_: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
    Some(answer.iter().map(|byte| byte ^ 0x5a).collect())
}

fn silence(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
    matches!(request, Request::Summary).then_some(answer)
}

fn hidden_row(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
    if !matches!(request, Request::Chunk { .. }) {
        return Some(answer);
    }
    let mut chunk: StateChunk = Blob::from_bytes(answer).unwrap().open(BlobKind::StateChunk).unwrap();
    let mut rows = chunk.rows.to_vec();
    rows.remove(rows.len() / 2);
    chunk.rows = BoundedVec::new(rows).unwrap();
    Some(Blob::seal(BlobKind::StateChunk, &chunk).unwrap().into_bytes())
}

fn wrong_offer(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
    if !matches!(request, Request::Offer { .. }) {
        return Some(answer);
    }
    let mut offer: Offer = codec::decode("offer", &answer, MAX).unwrap();
    offer.header.state_root.0[0] ^= 1;
    Some(codec::encode("offer", &offer).unwrap())
}

/// An offer that does not prove the genesis.
fn wrong_genesis(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
    let Request::Offer { .. } = request else { return Some(answer) };
    let mut offer: Offer = codec::decode("offer", &answer, MAX).unwrap();
    offer.genesis_proof = Default::default();
    Some(codec::encode("offer", &offer).unwrap())
}

/// An offer whose header agrees with its certificate in every field that the certificate repeats.
fn subtly_wrong_offer(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
    let Request::Offer { .. } = request else { return Some(answer) };
    let mut offer: Offer = codec::decode("offer", &answer, MAX).unwrap();
    offer.header.gas_used += 1;
    Some(codec::encode("offer", &offer).unwrap())
}

fn wrong_code(request: &Request, mut answer: Vec<u8>) -> Option<Vec<u8>> {
    if matches!(request, Request::Codes { .. }) {
        *answer.last_mut().unwrap() ^= 1;
    }
    Some(answer)
}

/// Follows a chain with the liar alone at first, and with an honest peer once the liar has been found out.
pub(crate) async fn follow_beside(chain: Chain, lie: Lie, mode: Mode, banned: bool, reason: &str) {
    let hub = MemoryHub::new();
    let (liar, honest) = (peer(1), peer(2));
    let _liar = hub.join(liar, Arc::new(Liar { server: SyncServer::new(chain.store.clone()), lie }));
    let _honest = hub.join(honest, Arc::new(Honest(Arc::new(SyncServer::new(chain.store.clone())))));
    let node = Following::start(&hub, peer(9), &chain.genesis, mode, &[liar]).await;
    let found_out = async {
        while !node.follower.status().peers.iter().any(|peer| peer.id == liar && peer.last_reason.is_some()) {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    let patience = std::time::Duration::from_secs(180);
    let found_out = tokio::time::timeout(patience, found_out).await;
    assert!(found_out.is_ok(), "the liar goes unnoticed: {:#?}", node.follower.status());
    assert!(hub.connect(peer(9), honest));
    let status = node.reach(chain.head()).await;
    let named = status.peers.iter().find(|peer| peer.id == liar);
    let text = named.and_then(|peer| peer.last_reason.clone()).unwrap_or_default();
    assert!(text.contains(reason), "reason {text:?} should contain {reason:?}; {status:#?}");
    assert_eq!(named.is_some_and(|peer| peer.banned), banned, "{status:#?}");

    // Nothing stored differs from the honest chain.
    assert_eq!(node.store.head().unwrap().digest, chain.store.head().unwrap().digest);
    let first = node.store.lowest(BlobKind::Delta).unwrap().unwrap();
    for number in first.through(chain.head()) {
        for kind in [BlobKind::Body, BlobKind::Receipts, BlobKind::Delta] {
            let content = |store: &slipstream_storage::Store| {
                store.blob(kind, number).unwrap().map(|blob| blob.content(kind).unwrap())
            };
            assert_eq!(content(&node.store), content(&chain.store), "{kind:?} {number}");
        }
    }
    node.stop().await.unwrap();
}

macro_rules! liars {
    ($($name:ident: $lie:ident, $mode:ident, $banned:literal, $reason:literal;)*) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            follow_beside(Chain::new(25), $lie, Mode::$mode, $banned, $reason).await;
        })*
    };
}

/// Goal: an unproved header stays unused, so a bad offer cannot make a restore fail at its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_subtly_wrong_offer_does_no_harm() {
    let chain = Chain::new(25);
    let hub = MemoryHub::new();
    let liar = Liar { server: SyncServer::new(chain.store.clone()), lie: subtly_wrong_offer };
    let _liar = hub.join(peer(1), Arc::new(liar));
    let node = Following::start(&hub, peer(9), &chain.genesis, Mode::Snapshot, &[peer(1)]).await;
    node.reach(chain.head()).await;
    assert_eq!(node.store.head().unwrap().digest, chain.store.head().unwrap().digest);
    node.stop().await.unwrap();
}

liars! {
    a_corrupted_body_is_refused: corrupted_blob, Replay, true, "body";
    a_wrong_delta_is_refused: wrong_delta, Delta, true, "the delta of batch";
    receipts_of_others_beside_a_true_body_are_refused: false_receipts, Delta, true, "the receipts of batch";
    a_short_range_is_refused: short_range, Replay, true, "the range is too short: it has 3 batches from";
    an_empty_range_is_refused: no_range, Delta, true, "the range is too short: it has 0 batches";
    too_few_signatures_are_refused: few_signatures, Replay, true, "has 2 signatures, but a quorum is 3";
    a_forged_header_is_refused: forged_header, Delta, true, "accumulator root";
    a_missing_part_is_refused: missing_part, Delta, true, "is missing";
    an_invented_head_is_refused: summary_without_quorum, Replay, true, "does not verify";
    garbage_is_refused: garbage, Replay, true, "summary: ";
    a_silent_peer_only_pauses: silence, Replay, false, "did not answer";
    a_hidden_row_is_refused: hidden_row, Snapshot, true, "state root";
    a_wrong_offer_is_refused: wrong_offer, Snapshot, true, "disagree on the state root";
    an_offer_without_the_genesis_is_refused: wrong_genesis, Snapshot, true, "range proof";
    wrong_code_is_refused: wrong_code, Snapshot, true, "whose hash was not requested";
}

/// The same content as one LZ4 block of literals alone.
fn uncompressed(kind: BlobKind, blob: &Blob) -> Blob {
    let content = blob.content(kind).unwrap();
    let mut bytes = blob.as_bytes()[..5].to_vec();
    match content.len().checked_sub(15) {
        None => bytes.push((content.len() as u8) << 4),
        Some(mut rest) => {
            bytes.push(0xf0);
            while rest >= 255 {
                bytes.push(255);
                rest -= 255;
            }
            bytes.push(rest as u8);
        }
    }
    bytes.extend(&content);
    Blob::from_bytes(bytes).unwrap()
}

/// Goal: a peer that does not compress costs its own bandwidth, once. Stored and served blobs are compressed.
#[tokio::test(flavor = "multi_thread")]
async fn what_came_without_compression_is_kept_with_it() {
    fn inflated(request: &Request, answer: Vec<u8>) -> Option<Vec<u8>> {
        change_range(request, answer, |range| {
            for at in 0..range.batches.len() {
                change_batch(range, at, |batch| {
                    for (kind, blob) in [
                        (BlobKind::Body, &mut batch.body),
                        (BlobKind::Receipts, &mut batch.receipts),
                        (BlobKind::Delta, &mut batch.delta),
                    ] {
                        *blob = blob.as_ref().map(|blob| uncompressed(kind, blob));
                    }
                });
            }
        })
    }
    let chain = Chain::new(20);
    for mode in [Mode::Delta, Mode::Replay] {
        let hub = MemoryHub::new();
        let server = SyncServer::new(chain.store.clone());
        hub.join(peer(1), Arc::new(Liar { server, lie: inflated }));
        let node = Following::start(&hub, peer(2), &chain.genesis, mode, &[peer(1)]).await;
        node.reach(chain.head()).await;
        for number in BatchNumber::new(1).through(chain.head()) {
            for kind in [BlobKind::Body, BlobKind::Receipts, BlobKind::Delta] {
                let [made, kept] = [&chain.store, &node.store].map(|store| store.blob(kind, number).unwrap());
                let (made, kept) = (made.unwrap(), kept.unwrap());
                assert!(uncompressed(kind, &made).len() > made.len(), "{kind:?} of batch {number}");
                assert!(kept == made, "{mode:?}: {} and {} bytes of {kind:?}", kept.len(), made.len());
            }
        }
        node.stop().await.unwrap();
    }
}
