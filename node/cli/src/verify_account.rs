//! `slipstream verify-account`: an account as the chain's validators signed it, requested from any node.
//!
//! The node is not trusted: its answer counts only if it is proved, starting from a genesis file or a waypoint. The
//! node can withhold newer batches; the allowed age limits for how long.

use std::path::PathBuf;

use alloy_primitives::{Address, B256};
use clap::Args;
use miette::Result;
use serde_json::{Value, json};
use slipstream_base::{clock::SystemClock, genesis_file};
use slipstream_light::{
    AccountProof, BatchTag, EpochChanges, LightClient, LightError, Question, SLOTS_MAX, VerifiedAccount,
    WaypointProof,
};
use slipstream_types::{AccountValue, BatchNumber, Clock as _, U256, Waypoint};

use super::{
    ask::{NodeUrl, rpc},
    exit::{CommandFailure, Exit, OrFail as _},
    output::print,
    rows::Rows,
};

#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    /// The account
    #[arg(value_name = "ADDRESS")]
    address: Address,
    /// The chain's genesis file, whose validators are trusted
    #[arg(long, value_name = "FILE", required_unless_present = "waypoint", conflicts_with = "waypoint")]
    genesis: Option<PathBuf>,
    /// Instead of a genesis, a trusted waypoint that ends an epoch, such as this command prints
    #[arg(long, value_name = "NUMBER:0xHASH")]
    waypoint: Option<Waypoint>,
    /// A storage slot, up to 64 hexadecimal digits; may be repeated, at most 1,024 times
    #[arg(long, value_name = "SLOT", value_parser = slot)]
    slot: Vec<B256>,
    /// The API of a node, which need not be trusted: http://HOST:PORT, or https://HOST/PATH of a proxy in front of it
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8545")]
    api: String,
    /// The batch whose state is requested; the newest if omitted
    #[arg(long, value_name = "N")]
    batch: Option<u64>,
    /// Maximum age of the newest state in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, conflicts_with = "batch")]
    age_max: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Parses the number of a storage slot: 0x and up to 64 hexadecimal digits.
pub(super) fn slot(text: &str) -> std::result::Result<B256, String> {
    let digits = text.strip_prefix("0x").filter(|digits| (1..=64).contains(&digits.len()));
    let word = digits.and_then(|digits| format!("{digits:0>64}").parse().ok());
    word.ok_or_else(|| "a slot is 0x and 1 to 64 hexadecimal digits".to_owned())
}

pub(super) fn verify_account(args: &VerifyArgs) -> Result<()> {
    if args.slot.len() > SLOTS_MAX {
        let text = format!("{} slots are too many: one proof covers at most {SLOTS_MAX}", args.slot.len());
        return Err(CommandFailure::new(Exit::Usage, text).into());
    }
    let node = NodeUrl::parse(&args.api)?;
    let mut client = begin(args, &node)?;
    let verified = ask(args, &node, &mut client)?;
    // Negative if this machine's clock is slow.
    let age_ms = SystemClock.now_ms().wrapping_sub(verified.timestamp_ms).cast_signed();
    match args.json {
        true => print(&document(args, &client, &verified, age_ms).to_string()),
        false => print(table(args, &client, &verified, age_ms).trim_end()),
    }
}

/// Creates the client with the validators that the operator trusts.
fn begin(args: &VerifyArgs, node: &NodeUrl) -> Result<LightClient> {
    if let Some(waypoint) = &args.waypoint {
        let params = json!([format!("{:#x}", waypoint.number.get())]);
        let proof = WaypointProof::from_json(&rpc(node, "slipstream_getWaypoint", &params)?).or_fail()?;
        return LightClient::from_waypoint(waypoint, &proof).or_fail();
    }
    let path = args.genesis.as_ref().expect("clap asks for one of the two");
    LightClient::from_genesis(&genesis_file::load(path).or_fail()?).or_fail()
}

/// Asks until the client knows the validators of the answer's epoch.
fn ask(args: &VerifyArgs, node: &NodeUrl, client: &mut LightClient) -> Result<VerifiedAccount> {
    let block = args.batch.map_or_else(|| "latest".to_owned(), |number| format!("{number:#x}"));
    let params = json!([args.address, args.slot, block]);
    loop {
        let proof = AccountProof::from_json(&rpc(node, "slipstream_getProof", &params)?).or_fail()?;
        let at = match args.batch {
            Some(number) => BatchTag::Batch(BatchNumber::new(number)),
            None => BatchTag::Latest {
                now_ms: SystemClock.now_ms(),
                age_ms_max: args.age_max.saturating_mul(1_000),
            },
        };
        let question = Question { address: args.address, slots: &args.slot, at };
        match client.verify(&question, &proof) {
            Err(LightError::UnknownEpoch { epoch, known }) => {
                let params = json!([format!("{:#x}", known.0)]);
                let changes = rpc(node, "slipstream_getEpochChanges", &params)?;
                let changes = EpochChanges::from_json(&changes).or_fail()?;
                if client.learn(&changes.certificates()).or_fail()? == 0 {
                    return Err(LightError::UnknownEpoch { epoch, known }).or_fail();
                }
            }
            verified => return verified.or_fail(),
        }
    }
}

fn document(args: &VerifyArgs, client: &LightClient, verified: &VerifiedAccount, age_ms: i64) -> Value {
    let AccountValue { nonce, balance, code_hash } = verified.account.unwrap_or_default();
    let slots = args.slot.iter().zip(&verified.slots);
    let slots: Vec<Value> = slots.map(|(slot, value)| json!({ "slot": slot, "value": value })).collect();
    json!({
        "address": args.address,
        "exists": verified.account.is_some(),
        "balance_wei": balance.to_string(),
        "nonce": nonce,
        "code_hash": code_hash,
        "slots": slots,
        "batch": verified.number,
        "batch_hash": verified.hash,
        "age_ms": age_ms,
        "certified_batch": verified.certified,
        "epoch": client.epoch(),
        "waypoint": client.waypoint(),
    })
}

fn table(args: &VerifyArgs, client: &LightClient, verified: &VerifiedAccount, age_ms: i64) -> String {
    let mut rows = Rows::default();
    let AccountValue { nonce, balance, code_hash } = verified.account.unwrap_or_default();
    let absent = if verified.account.is_none() { ", which the state does not have" } else { "" };
    rows.add("account", Some(format!("{}{absent}", args.address)));
    rows.add("balance", Some(format!("{balance} wei")));
    rows.add("nonce", Some(nonce.to_string()));
    rows.add(
        "code hash",
        Some(code_hash.map_or_else(|| "none: it has no code".to_owned(), |hash| hash.to_string())),
    );
    for (slot, value) in args.slot.iter().zip(&verified.slots) {
        rows.add("slot", Some(format!("{slot} = {}", shown(value))));
    }
    let age = format!("{:.3} s old", age_ms as f64 / 1e3);
    rows.add("batch", Some(format!("{} {}, {age}", verified.number, verified.hash)));
    let (quorum, count) = (client.validators().quorum(), client.validators().validators.len());
    rows.add(
        "signed by",
        Some(format!(
            "{quorum} or more of {count} validators of epoch {}, at batch {}",
            client.epoch(),
            verified.certified
        )),
    );
    rows.add(
        "waypoint",
        Some(format!("{} (later clients can start from it at this epoch)", client.waypoint())),
    );
    rows.0
}

fn shown(value: &U256) -> String {
    format!("{value:#x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_read_with_or_without_their_zeros() {
        let one = B256::with_last_byte(1);
        for text in ["0x1", "0x01", &one.to_string()] {
            assert_eq!(slot(text), Ok(one));
        }
        for text in ["", "0x", "1", "0xg", &format!("{one}0")] {
            assert!(slot(text).is_err(), "{text}");
        }
    }
}
