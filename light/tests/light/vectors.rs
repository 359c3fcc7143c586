//! Goal: answers of real nodes, of a chain whose validators changed, verify with the same values that the nodes gave
//! without a proof. The JavaScript client is tested with the same file. `./x bless light` makes it anew.

use serde::Deserialize;
use serde_json::Value;
use slipstream_light::{AccountProof, BatchTag, EpochChanges, LightClient, Question, WaypointProof};
use slipstream_types::{Address, B256, BatchNumber, Genesis, U256, Waypoint};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Vectors {
    genesis: Genesis,
    now_ms: u64,
    waypoints: [Begin; 2],
    inside: Begin,
    epoch_changes: EpochChanges,
    proofs: Vec<Proof>,
}

#[derive(Deserialize)]
struct Begin {
    waypoint: Waypoint,
    answer: WaypointProof,
}

#[derive(Deserialize)]
struct Proof {
    address: Address,
    slots: Vec<B256>,
    batch: Option<BatchNumber>,
    answer: Value,
    expected: Expected,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Expected {
    batch: BatchNumber,
    balance: U256,
    nonce: U256,
    has_code: bool,
    exists: bool,
    slots: Vec<U256>,
}

#[test]
fn the_answers_of_a_real_chain_verify() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors.json")).unwrap();
    let vectors: Vectors = serde_json::from_str(&text).unwrap();
    let mut client = LightClient::from_genesis(&vectors.genesis).unwrap();
    let begin = |it: &Begin| LightClient::from_waypoint(&it.waypoint, &it.answer);
    assert_eq!(begin(&vectors.waypoints[0]).unwrap(), client);
    assert!(begin(&vectors.inside).is_err());
    assert_eq!(client.learn(&vectors.epoch_changes.certificates()).unwrap(), 1);
    assert_eq!(begin(&vectors.waypoints[1]).unwrap(), client);
    let at_latest = BatchTag::Latest { now_ms: vectors.now_ms, age_ms_max: 60_000 };
    assert_eq!(vectors.proofs.iter().filter(|proof| !proof.expected.exists).count(), 1);
    for Proof { address, slots, batch, answer, expected } in &vectors.proofs {
        let proof = AccountProof::from_json(&answer.to_string()).unwrap();
        assert_eq!(serde_json::to_value(&proof).unwrap(), *answer, "it is written as it was read");
        let question = Question { address: *address, slots, at: batch.map_or(at_latest, BatchTag::Batch) };
        let verified = client.verify(&question, &proof).unwrap();
        let account = verified.account.unwrap_or_default();
        assert_eq!((verified.number, account.balance), (expected.batch, expected.balance));
        assert_eq!((U256::from(account.nonce), &verified.slots), (expected.nonce, &expected.slots));
        assert_eq!(
            (account.code_hash.is_some(), verified.account.is_some()),
            (expected.has_code, expected.exists)
        );
    }
}
