//! The inputs of the command lines: the devnet's names and keys, a transaction, and a batch.

use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::fs::OpenOptionsExt,
};

use alloy_primitives::{Address, B256, Bytes, TxKind, U256, keccak256};
use serde_json::{Value, json};
use slipnet::{
    manifest::{self, Manifest, ManifestNode, Role},
    report::RunReport,
    rpc::Rpc,
    signer::{Envelope, Fees, Request, sign},
};
use slipstream_types::{Genesis, Waypoint, validators_contract};

use super::shell::{Shell, ended_well};
use crate::common::{receipt, until_blocking};

/// Runs on each side of a comparison: with fewer, no test could show a regression.
const RUNS: u32 = 4;
/// The placeholders of the validators' APIs.
const APIS: [&str; 4] = ["http://a:8545", "http://b:8545", "http://c:8545", "http://d:8545"];

/// Writes the input of `slipnet compare BEFORE AFTER`.
pub(crate) fn write_runs(shell: &Shell) {
    let run = RunReport { scenario: "mine".to_owned(), ..RunReport::default() };
    for side in ["BEFORE", "AFTER"] {
        fs::create_dir(shell.file(side)).unwrap();
        for number in 0..RUNS {
            let file = shell.file(side).join(format!("{number}.json"));
            fs::write(file, serde_json::to_string(&run).unwrap()).unwrap();
        }
    }
}

/// The scenario of the README, as small as possible. docs/scenarios.md, which comes later, has a scenario of minutes
/// with the same name.
const SCENARIO: &str = "\
name: mine
description: A fullnode follows one validator under a little load.
duration: 8s
topology:
  validators: 1
  batch_interval_ms: 100
  accounts: 20
  groups: [{ name: follower }]
workload: [{ name: main, at: 1s, for: 2s, rate: { constant: 20 } }]
criteria: [load_complete, equal_roots, nobody_honest_blamed, no_alarm]
";

/// Writes the input of `slipnet run mine.yaml`.
pub(crate) fn write_scenario(shell: &Shell) {
    fs::write(shell.file("mine.yaml"), SCENARIO).unwrap();
}

/// Sets the placeholders' values from the devnet, and writes the files that operators get.
pub(crate) fn meet_devnet(shell: &mut Shell) {
    let manifest = Manifest::load(&shell.home().join("far/net").join(manifest::FILE)).unwrap();
    fs::copy(&manifest.genesis_file, shell.file("genesis.json")).unwrap();
    let owner = File::options().create_new(true).write(true).mode(0o600).open(shell.file("owner.key"));
    writeln!(owner.unwrap(), "{}", manifest.owner.as_ref().unwrap().key).unwrap();

    let address = |node: &ManifestNode| format!("{}@{}", node.peer_id, node.network);
    let validators: Vec<&ManifestNode> = manifest.of_role(Role::Validator).collect();
    let fullnode = manifest.of_role(Role::Fullnode).next().unwrap();
    let genesis: Genesis =
        serde_json::from_str(&fs::read_to_string(&manifest.genesis_file).unwrap()).unwrap();
    let start = Waypoint::of(&genesis.ledger_info().unwrap());
    let plain = shell.file("plain.json");
    fs::write(&plain, serde_json::to_string(&without_contract(genesis)).unwrap()).unwrap();
    shell.values.set("GENESIS", plain.display().to_string());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (transaction, code) = runtime.block_on(pay(&manifest));

    for (placeholder, node) in APIS.into_iter().zip(&validators) {
        shell.values.set(placeholder, &node.api);
    }
    for (placeholder, value) in [
        ("--peer KEY@HOST:PORT", format!("--peer {}", address(validators[0]))),
        ("KEY@HOST:PORT", address(fullnode)),
        ("KEY", fullnode.peer_id.clone()),
        ("NUMBER:0xHASH", manifest.waypoint.clone().unwrap()),
        ("0:0xHASH", start.to_string()),
        ("TX_HASH", transaction.to_string()),
        ("CODE_HASH", code.to_string()),
        ("ADDRESS", validators_contract::ADDRESS.to_string()),
        ("SLOT", "0x0".to_owned()),
        ("U", "1".to_owned()),
        ("R", "1".to_owned()),
        ("URL", validators[0].api.clone()),
    ] {
        shell.values.set(placeholder, value);
    }
}

/// Returns the genesis of a chain whose validators never change, to which commands add the contract.
fn without_contract(mut genesis: Genesis) -> Genesis {
    let address = genesis.validators_contract.take().unwrap();
    genesis.accounts.remove(&address).unwrap();
    genesis
}

/// Executes a transaction; returns its hash, and that of the validators contract's code.
async fn pay(manifest: &Manifest) -> (B256, B256) {
    let rpc = Rpc::new(&manifest.nodes[0].api).unwrap();
    let request = Request {
        chain_id: manifest.chain_id,
        nonce: 0,
        to: TxKind::Call(Address::repeat_byte(0x77)),
        value: U256::from(1),
        gas_limit: 21_000,
        fees: Fees { max_fee_wei: 30_000_000, tip_wei: 1_000 },
        input: Bytes::new(),
        envelope: Envelope::DynamicFee,
    };
    let signed = sign(&manifest.accounts(1).unwrap()[0], request);
    let sent: B256 = rpc.call("eth_sendRawTransaction", json!([signed.raw])).await.unwrap();
    receipt(&rpc, &json!(sent)).await;
    let params = json!([validators_contract::ADDRESS, "latest"]);
    let code: Bytes = rpc.call("eth_getCode", params).await.unwrap();
    (sent, keccak256(code))
}

/// Waits until the fullnode follows, and chooses the batch for command lines: one with a certificate, and with history
/// before it.
pub(crate) fn meet_node(shell: &mut Shell) {
    let synced = shell.output("slipstream wait --config node/node.yaml --for synced");
    ended_well("the fullnode follows", &synced);
    let begun = status(shell)["head"]["number"].as_u64().unwrap();
    let (number, waypoint) = until_blocking("a batch with a certificate", || {
        let waypoint = status(shell)["waypoint"].as_str().unwrap().to_owned();
        let number = waypoint.split_once(':').unwrap().0.to_owned();
        let is_later = number.parse::<u64>().unwrap() > begun;
        if is_later { Ok((number, waypoint)) } else { Err(format!("there is none after {begun}")) }
    });
    shell.values.set("N", number);
    shell.values.set("NUMBER:0xHASH", waypoint);
}

fn status(shell: &Shell) -> Value {
    let output = shell.output("slipstream status --config node/node.yaml --json");
    ended_well("the fullnode answers", &output);
    serde_json::from_slice(&output.stdout).unwrap()
}
