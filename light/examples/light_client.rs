//! A light client: reads an account from a node that it does not trust, and refuses what the node made up.
//!
//! The answers are those of a real node, kept in a file. Your program asks any node for them over JSON-RPC:
//! `slipstream_getEpochChanges` and `slipstream_getProof`. The genesis comes from somebody whom you trust.
//!
//! `cargo run -p slipstream-light --example light_client`

use std::{
    error::Error,
    io::{Write as _, stdout},
};

use serde_json::{Value, json};
use slipstream_light::{AccountProof, BatchTag, EpochChanges, LightClient, Question};
use slipstream_types::{Address, Genesis};

/// What a node answered, as JSON.
const ANSWERS: &str = include_str!("../tests/vectors.json");
/// An older state than this is refused: a node may answer with a true but outdated one.
const AGE_MS_MAX: u64 = 60_000;

fn main() -> Result<(), Box<dyn Error>> {
    let answers: Value = serde_json::from_str(ANSWERS)?;

    // The genesis names the first validators. Each epoch's validators sign the set of the next epoch.
    let genesis: Genesis = serde_json::from_value(answers["genesis"].clone())?;
    let mut client = LightClient::from_genesis(&genesis)?;
    let changes = EpochChanges::from_json(&answers["epochChanges"].to_string())?;
    client.learn(&changes.certificates())?;
    writeln!(
        stdout(),
        "{} validators of epoch {} are known",
        client.validators().validators.len(),
        client.epoch().0
    )?;

    // The question: an account without its slots, in a state that is not old. The clock is the caller's.
    let answer = &answers["proofs"][0]["answer"];
    let address: Address = serde_json::from_value(answer["address"].clone())?;
    let now_ms = answers["nowMs"].as_u64().ok_or("the file has no time")?;
    let at = BatchTag::Latest { now_ms, age_ms_max: AGE_MS_MAX };
    let question = Question { address, slots: &[], at };

    // A quorum signed a ledger, the ledger holds this header, and the header's state holds this account.
    let verified = client.verify(&question, &AccountProof::from_json(&answer.to_string())?)?;
    let account = verified.account.unwrap_or_default();
    writeln!(stdout(), "{address} has {} wei after batch {}", account.balance, verified.number)?;

    // The same answer with one more ether.
    let mut forged = answer.clone();
    forged["account"]["balance"] = json!("0xd3c229af83a148640000");
    match client.verify(&question, &AccountProof::from_json(&forged.to_string())?) {
        Ok(_) => return Err("a forged balance was believed".into()),
        Err(refused) => writeln!(stdout(), "refused: {refused}")?,
    }
    writeln!(
        stdout(),
        "proved: the balance that the validators signed is believed, and a forged one is refused"
    )?;
    Ok(())
}
