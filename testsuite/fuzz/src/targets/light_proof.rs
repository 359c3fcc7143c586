//! A proof that a light client accepts equals, in every value, the one that a real chain's validators signed.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use slipstream_light::{AccountProof, BatchTag, EpochChanges, LightClient, Question};
use slipstream_types::{B256, Genesis, U256};

use crate::claim::claim;
pub(super) use crate::claim::seeds;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Vectors {
    genesis: Genesis,
    epoch_changes: EpochChanges,
    proofs: Vec<Proof>,
}

#[derive(Deserialize)]
struct Proof {
    answer: AccountProof,
}

/// An answer; the request is derived from it, so that only the signatures can refute a claim.
#[derive(Serialize, Deserialize)]
struct Claim {
    proof: AccountProof,
}

static CHAIN: LazyLock<(LightClient, Vec<AccountProof>)> = LazyLock::new(|| {
    let vectors: Vectors =
        serde_json::from_str(include_str!("../../../../light/tests/vectors.json")).expect("the vectors are pinned");
    let mut client = LightClient::from_genesis(&vectors.genesis).expect("a genesis");
    client.learn(&vectors.epoch_changes.certificates()).expect("its epoch changes");
    (client, vectors.proofs.into_iter().map(|proof| proof.answer).collect())
});

fn honest(a: u8, _: u8) -> Claim {
    let proofs = &CHAIN.1;
    Claim { proof: proofs[usize::from(a) % proofs.len()].clone() }
}

pub(crate) fn run(bytes: &[u8]) {
    let Some(Claim { proof }) = claim(bytes, honest) else { return };
    let (client, known) = &*CHAIN;
    let slots: Vec<B256> = proof.storage.iter().map(|slot| slot.key).collect();
    let question = Question { address: proof.address, slots: &slots, at: BatchTag::Batch(proof.header.0.number) };
    if client.verify(&question, &proof).is_err() {
        return;
    }
    let is_signed = |honest: &AccountProof| honest.certificate.0.info == proof.certificate.0.info;
    assert!(known.iter().any(is_signed), "a proof with an unsigned certificate verifies");
    let of_batch: Vec<&AccountProof> = known.iter().filter(|honest| honest.header == proof.header).collect();
    assert!(!of_batch.is_empty(), "no batch of the ledger has this header");
    // A claim may prove the absence of an account or slot that no answer names. To prove its presence, the claim would
    // need a row that hashes to its path.
    let of_account = || of_batch.iter().filter(|honest| honest.address == proof.address);
    let account = of_account().next().and_then(|honest| honest.account);
    assert_eq!(proof.account, account, "a false account verifies");
    for slot in proof.storage.iter() {
        let named = of_account().flat_map(|honest| honest.storage.iter()).find(|named| named.key == slot.key);
        let value = named.map_or(U256::ZERO, |named| named.value);
        assert_eq!(slot.value, value, "a false slot verifies");
    }
}
