//! Goal: a light client can verify a node's answers, and the node reports what it cannot prove.

use serde_json::{Value, json};
use slipstream_light::{
    AccountProof, BatchTag, EpochChanges, LightClient, Question, SLOTS_MAX, WaypointProof,
};
use slipstream_storage::{CommitBatch, Store};
use slipstream_types::{
    AccountValue, Address, B256, BatchHeader, BatchNumber, Blob, BlobKind, Delta, Epoch, StateKey,
    StateValue, U256, ValidatorSet, Waypoint, delta::DeltaEntry,
};

use super::super::{Table, fixture::context, table, tests::Fixture};

const NEW: Address = Address::repeat_byte(0x77);
const CONTRACT: Address = Address::repeat_byte(0xcc);

/// Commits a batch that sets the balance of [`NEW`] to its number, and certifies it if `is_certified`.
fn grow(store: &Store, is_certified: bool, next: Option<ValidatorSet>) {
    let head = store.head().unwrap();
    let number = head.header.number.next();
    let account = AccountValue { balance: U256::from(number.get()), ..AccountValue::default() };
    let entry = DeltaEntry { key: StateKey::Account(NEW), value: Some(StateValue::Account(account)) };
    let delta = Delta::new(vec![entry], Vec::new()).unwrap();
    let header = BatchHeader {
        number,
        parent: head.digest,
        epoch: store.epoch(),
        timestamp_ms: head.header.timestamp_ms + 100,
        state_root: store.speculate(&delta).unwrap().root(),
        ..head.header
    };
    let certificate =
        slipstream_testkit::certify(&head.accumulator, &header, next, &[slipstream_testkit::key(1)]);
    let blob = Blob::seal(BlobKind::Delta, &delta).unwrap();
    let batch = CommitBatch {
        delta_blob: Some(&blob),
        certificate: is_certified.then_some(&certificate),
        ..CommitBatch::new(&header, &delta)
    };
    store.commit(batch, None).unwrap();
}

fn over(grown: impl FnOnce(&Store)) -> (Fixture, Store) {
    let context = context();
    let store = context.store.clone();
    grown(&store);
    let table: Table = table(context);
    (Fixture(table), store)
}

fn slots() -> [B256; 2] {
    [B256::with_last_byte(1), B256::with_last_byte(2)]
}

fn verify(store: &Store, answer: &Value, address: Address, batch: u64) -> slipstream_light::VerifiedAccount {
    let mut client = LightClient::from_genesis(&store.genesis().unwrap()).unwrap();
    client.learn(&store.epoch_ends(Epoch(0), 9).unwrap()).unwrap();
    let proof = AccountProof::from_json(&answer.to_string()).unwrap();
    let question = Question { address, slots: &slots(), at: BatchTag::Batch(BatchNumber::new(batch)) };
    client.verify(&question, &proof).unwrap()
}

/// Goal: the head and earlier states, by tag, number and hash, are proved under the newest certificate, even one of a
/// later epoch.
#[tokio::test]
async fn accounts_and_slots_are_proved() {
    let (rpc, store) = over(|store| {
        (0..6).for_each(|_| grow(store, true, None));
        let next = ValidatorSet { epoch: Epoch(1), ..store.genesis().unwrap().validator_set() };
        grow(store, true, Some(next));
        (0..3).for_each(|_| grow(store, true, None));
    });
    let hash = store.header(BatchNumber::new(5)).unwrap().unwrap().digest();
    for (block, batch) in [
        (json!("latest"), 10),
        (json!("finalized"), 10),
        (Value::Null, 10),
        (json!("0x7"), 7),
        (json!({ "blockHash": hash }), 5),
        (json!("earliest"), 0),
    ] {
        let answer = rpc.result("slipstream_getProof", json!([NEW, slots(), block])).await;
        let verified = verify(&store, &answer, NEW, batch);
        let balance = verified.account.map(|account| account.balance.to::<u64>());
        assert_eq!(balance, (batch > 0).then_some(batch), "{block}");
        assert_eq!(verified.certified, BatchNumber::new(10));
        assert_eq!(verified.slots, [U256::ZERO; 2]);
    }
    let answer = rpc.result("slipstream_getProof", json!([CONTRACT, ["0x1", "0x02"], "latest"])).await;
    let verified = verify(&store, &answer, CONTRACT, 10);
    assert_eq!(verified.slots, [U256::from(99), U256::ZERO]);
    assert!(verified.account.unwrap().code_hash.is_some());
}

/// Goal: a request for something uncertified, missing or too large is refused by name, and `latest` means the newest
/// certified state.
#[tokio::test]
async fn what_cannot_be_proved_is_refused() {
    let (rpc, _) = over(|_| {});
    let ask = |block: &'static str| json!([NEW, [], block]);
    let (code, text) = rpc.error("slipstream_getProof", ask("latest")).await;
    assert!(code == -32000 && text.starts_with("a proof needs a certificate of batch 0 or later"), "{text}");

    let (rpc, store) = over(|store| {
        (0..2).for_each(|_| grow(store, true, None));
        grow(store, false, None);
    });
    let answer = rpc.result("slipstream_getProof", json!([NEW, slots(), "latest"])).await;
    verify(&store, &answer, NEW, 2);
    let (code, text) = rpc.error("slipstream_getProof", ask("0x3")).await;
    assert!(code == -32000 && text.starts_with("a proof needs a certificate of batch 3 or later"), "{text}");
    let (code, text) = rpc.error("slipstream_getProof", ask("0x4")).await;
    assert_eq!((code, &*text), (-32000, "header not found: batch 4 does not exist yet; the head is batch 3"));
    let many = vec!["0x1"; SLOTS_MAX + 1];
    let (code, text) = rpc.error("slipstream_getProof", json!([NEW, many, "latest"])).await;
    assert!(code == -32602 && text.contains("at most 1024"), "{text}");
    assert!(rpc.ask("slipstream_getProof", json!([NEW, &many[1..], "latest"])).await["result"].is_object());

    (0..70).for_each(|_| grow(&store, true, None));
    let (code, text) = rpc.error("slipstream_getProof", ask("0x4")).await;
    assert!(
        code == -32000 && text.starts_with("this node cannot prove the state of batch 4: it is too old"),
        "{text}"
    );
}

/// Goal: a client follows epochs and starts at waypoints, using only a node's answers.
#[tokio::test]
async fn epochs_and_waypoints_lead_a_client() {
    let (rpc, store) = over(|store| {
        for epoch in 1..=2 {
            grow(store, true, None);
            let next = ValidatorSet { epoch: Epoch(epoch), ..store.genesis().unwrap().validator_set() };
            grow(store, true, Some(next));
        }
        grow(store, true, None);
    });
    let changes = rpc.result("slipstream_getEpochChanges", json!(["0x0"])).await;
    let changes = EpochChanges::from_json(&changes.to_string()).unwrap().certificates();
    assert_eq!(changes, store.epoch_ends(Epoch(0), 9).unwrap());
    for (from, count) in [("0x1", 1), ("0x2", 0), ("0xffffffffffffffff", 0)] {
        let rest = rpc.result("slipstream_getEpochChanges", json!([from])).await;
        assert_eq!(rest.as_array().unwrap().len(), count);
    }
    let mut client = LightClient::from_genesis(&store.genesis().unwrap()).unwrap();
    for (number, ends) in [("0x0", 0), ("0x2", 1), ("0x4", 1)] {
        client.learn(&changes[client.epoch().0 as usize..][..ends]).unwrap();
        let answer = rpc.result("slipstream_getWaypoint", json!([number])).await;
        let proof = WaypointProof::from_json(&answer.to_string()).unwrap();
        let waypoint = Waypoint::of(&proof.ledger_info.0);
        assert_eq!(waypoint, client.waypoint());
        assert_eq!(LightClient::from_waypoint(&waypoint, &proof).unwrap(), client);
    }
    let (code, text) = rpc.error("slipstream_getWaypoint", json!(["0x6"])).await;
    assert_eq!((code, &*text), (-32000, "header not found: batch 6 does not exist yet; the head is batch 5"));
}

/// Goal: clients that request Ethereum's proofs learn that no such method exists, why, and what to request instead.
#[tokio::test]
async fn ethereums_proofs_are_refused_with_a_reason() {
    let (rpc, _) = over(|_| {});
    let (code, text) = rpc.error("eth_getProof", json!([NEW, ["0x0"], "latest"])).await;
    assert_eq!(code, -32601);
    assert!(text.starts_with("the method eth_getProof does not exist/is not available"), "{text}");
    assert!(text.contains("slipstream_getProof"), "{text}");
}
