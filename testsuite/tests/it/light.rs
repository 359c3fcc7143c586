//! Both light clients, the command and the npm package, against real nodes and against lying nodes.

use std::{
    collections::BTreeMap,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::{Address, B256, U256, address};
use serde_json::{Value, json};
use slipnet::{
    devnet::{Devnet, DevnetOptions, Node, binary},
    rpc::{Rpc, quantity},
};

use crate::{
    clients::run,
    common::{fullnode, room, skip, succeed, until, until_blocking},
    liar,
};

/// The validators contract of devnets, which has slots.
const CONTRACT: Address = address!("00000000000000000000000000000000005e7701");
const NOBODY: Address = address!("00000000000000000000000000000000000bee55");

fn slot(n: u64) -> B256 {
    U256::from(n).into()
}

fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../light/js")
}

/// Whether the JavaScript client can run here.
fn has_node() -> bool {
    let found = Command::new("node").arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        skip("there is no `node` here to run the JavaScript light client");
    }
    found
}

/// Goal: the npm package passes its own tests, which check that it gives the same answers as the crate.
#[test]
fn the_npm_package_passes_its_tests() {
    if !has_node() {
        return;
    }
    let output =
        Command::new("node").args(["--test", "--test-reporter=tap"]).current_dir(package()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("# pass 9") && text.contains("# fail 0"), "{text}");
}

/// A devnet whose validators changed once; its fullnode is queried.
struct Changed {
    devnet: Devnet,
    account: Address,
    /// The waypoint of the batch that ended epoch 0.
    end: String,
}

impl Changed {
    async fn start() -> Changed {
        // The states of the last 64 batches can be proven: at this rate a command may take twelve seconds.
        let options =
            DevnetOptions { fullnodes: 1, accounts: 3, batch_interval_ms: Some(200), ..Default::default() };
        let mut devnet = Devnet::start(options).await.unwrap();
        let candidate = devnet.add_candidate("candidate").await.unwrap();
        let key_file = devnet.dir().join("owner.key");
        std::fs::write(&key_file, devnet.owner().key_hex()).unwrap();
        std::fs::set_permissions(&key_file, PermissionsExt::from_mode(0o600)).unwrap();
        let id = devnet.nodes()[candidate].peer_address().split('@').next().unwrap().to_owned();
        let added = Command::new(binary().unwrap())
            .args(["validators", "add", &id, "--fee-recipient", &NOBODY.to_string()])
            .args(["--rpc", devnet.nodes()[0].rpc().url(), "--key-file", key_file.to_str().unwrap()])
            .output()
            .unwrap();
        succeed(&added);
        let account = devnet.accounts()[0].address;
        let mut changed = Changed { devnet, account, end: String::new() };
        changed.wait_epoch(1).await;
        let shown = succeed(&changed.verify(changed.node().url(), &["--json"]));
        changed.end = serde_json::from_str::<Value>(&shown).unwrap()["waypoint"].as_str().unwrap().to_owned();
        changed
    }

    fn fullnode(&self) -> &Node {
        fullnode(&self.devnet)
    }

    fn node(&self) -> &Rpc {
        self.fullnode().rpc()
    }

    /// Waits until the fullnode has certified batches of an epoch.
    async fn wait_epoch(&self, epoch: u64) {
        until("an epoch begins", async || {
            let changes: Vec<String> =
                self.node().call("slipstream_getEpochChanges", json!(["0x0"])).await.unwrap();
            let has_begun = changes.len() as u64 >= epoch;
            has_begun.then_some(()).ok_or_else(|| format!("{} of {epoch} changes", changes.len()))
        })
        .await;
        let wanted = self.head().await + 3;
        until("batches come in the epoch", async || {
            let head = self.head().await;
            (head >= wanted).then_some(()).ok_or_else(|| format!("{head} of {wanted}"))
        })
        .await;
    }

    async fn head(&self) -> u64 {
        quantity(&self.node().call("eth_blockNumber", json!([])).await.unwrap()).unwrap()
    }

    /// Runs `slipstream verify-account` for the contract, from the genesis file.
    fn verify(&self, api: &str, more: &[&str]) -> Output {
        let genesis = self.devnet.genesis_file();
        self.verify_from("--genesis", genesis.to_str().unwrap(), api, &CONTRACT.to_string(), more)
    }

    fn verify_from(&self, anchor: &str, from: &str, api: &str, address: &str, more: &[&str]) -> Output {
        let mut command = Command::new(binary().unwrap());
        command.args(["verify-account", anchor, from, "--api", api, address]).args(more);
        // While a slow commit is on its way to the disk, it holds the tree, and the node says that it is busy.
        until_blocking("the node has its tree", || {
            let output = command.output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            let is_busy = output.status.code() == Some(75) && text.contains("-32005");
            if is_busy { Err(text) } else { Ok(output) }
        })
    }

    /// Returns the node's answers about an account, without a proof.
    async fn told(&self, address: Address, slots: &[B256], batch: u64) -> Value {
        let block = format!("{batch:#x}");
        let call =
            async |method: &str, params: Value| self.node().call::<Value>(method, params).await.unwrap();
        let mut values = Vec::new();
        for slot in slots {
            let value = call("eth_getStorageAt", json!([address, slot, block])).await;
            values.push(format!("{:#x}", value.as_str().unwrap().parse::<U256>().unwrap()));
        }
        let code = call("eth_getCode", json!([address, block])).await;
        let (balance, nonce) = (
            call("eth_getBalance", json!([address, block])).await,
            call("eth_getTransactionCount", json!([address, block])).await,
        );
        json!({
            "batch": batch,
            "exists": balance != "0x0" || nonce != "0x0" || code != "0x",
            "balance": balance,
            "nonce": nonce,
            "hasCode": code != "0x",
            "slots": values,
        })
    }

    /// Returns the genesis's own waypoint.
    async fn genesis_waypoint(&self) -> String {
        let text = std::fs::read_to_string(self.devnet.genesis_file()).unwrap();
        let genesis: slipstream_types::Genesis = serde_json::from_str(&text).unwrap();
        slipstream_types::Waypoint::of(&genesis.ledger_info().unwrap()).to_string()
    }
}

/// Returns the lies, with both clients' errors: the package's code, and the command's exit code with a part of its
/// message.
fn lies(old: Value) -> Vec<(&'static str, liar::Lie, &'static str, (i32, &'static str))> {
    use liar::{alter, flip, raise};
    let withheld: liar::Lie = Arc::new(|method, result| match method {
        "slipstream_getEpochChanges" => json!([]),
        _ => result,
    });
    vec![
        (
            "balance",
            alter(|proof| raise(&mut proof["account"]["balance"])),
            "state",
            (65, "does not match the state of batch"),
        ),
        (
            "nonce",
            alter(|proof| raise(&mut proof["account"]["nonce"])),
            "state",
            (65, "does not match the state of batch"),
        ),
        (
            "hidden",
            alter(|proof| proof["account"] = Value::Null),
            "state",
            (65, "does not match the state of batch"),
        ),
        (
            "slot",
            alter(|proof| raise(&mut proof["storage"][0]["value"])),
            "state",
            (65, "does not match the state of batch"),
        ),
        (
            "another",
            alter(|proof| flip(&mut proof["address"])),
            "other-question",
            (65, "but the proof is for"),
        ),
        ("signature", alter(|proof| flip(&mut proof["certificate"])), "certificate", (65, "does not verify")),
        (
            "header",
            alter(|proof| flip(&mut proof["header"])),
            "header",
            (65, "is not in the certified ledger"),
        ),
        (
            "chain",
            alter(|proof| flip(&mut proof["genesisProof"])),
            "other-chain",
            (65, "does not belong to the chain with genesis"),
        ),
        ("validators", withheld, "unknown-epoch", (75, "the validators are known up to epoch 0")),
        (
            "old",
            alter(move |proof| *proof = old.clone()),
            "too-old",
            (75, "ms old, but at most 2000 ms are allowed"),
        ),
    ]
}

/// Goal: across a change of validators, both clients get the chain's values, from the genesis and from waypoints, of
/// existing accounts and of a missing one. Both refuse every lie with the right error.
#[tokio::test(flavor = "multi_thread")]
async fn both_light_clients_believe_the_validators_and_not_the_node() {
    let _room = room().await;
    let chain = Changed::start().await;
    let node = chain.node().clone();
    let slots = [slot(6), slot(3), slot(77)];
    let texts = slots.map(|slot| slot.to_string());
    let asked: Vec<&str> = texts.iter().flat_map(|slot| ["--slot", slot]).collect();
    let json: Vec<&str> = asked.iter().copied().chain(["--json"]).collect();
    let recorded = until("the node has its tree", async || {
        let proof = node.call::<Value>("slipstream_getProof", json!([CONTRACT, slots, "latest"])).await;
        proof.map_err(|error| format!("{error:#}"))
    })
    .await;
    let recorded_at = Instant::now();

    // From the genesis, and from the waypoint that follows from it; also as a table.
    let shown: Value = serde_json::from_str(&succeed(&chain.verify(node.url(), &json))).unwrap();
    let told = chain.told(CONTRACT, &slots, shown["batch"].as_u64().unwrap()).await;
    assert_eq!((&shown["nonce"], &shown["epoch"], &shown["exists"]), (&json!(1), &json!(1), &json!(true)));
    let values: Vec<&Value> = shown["slots"].as_array().unwrap().iter().map(|slot| &slot["value"]).collect();
    assert_eq!(values, told["slots"].as_array().unwrap().iter().collect::<Vec<_>>());
    assert_eq!(*values[0], "0x5", "five validators");
    for anchor in [chain.genesis_waypoint().await, chain.end.clone()] {
        let rich = chain.account.to_string();
        let shown = succeed(&chain.verify_from("--waypoint", &anchor, node.url(), &rich, &[]));
        assert!(shown.contains(&format!("account      {}", chain.account)), "{shown}");
        let told = chain.told(chain.account, &[], chain.head().await).await;
        let balance: U256 = told["balance"].as_str().unwrap().parse().unwrap();
        assert!(shown.contains(&format!("balance      {balance} wei")), "{shown}");
        assert!(shown.contains(&format!("waypoint     {}", chain.end)), "{shown}");
    }
    let genesis = chain.devnet.genesis_file();
    let nobody =
        chain.verify_from("--genesis", genesis.to_str().unwrap(), node.url(), &NOBODY.to_string(), &[]);
    // The new validator's fees go to this account, so it may have some by now.
    assert!(succeed(&nobody).contains("code hash    none"));
    // A state slightly behind the head, by number.
    let head = chain.head().await;
    let past = (head - 4).to_string();
    let past = succeed(&chain.verify(node.url(), &["--batch", &past, "--json"]));
    assert_eq!(serde_json::from_str::<Value>(&past).unwrap()["batch"], head - 4);

    // Waypoints from which a client cannot start.
    let inside = chain.fullnode().status().await.unwrap().waypoint.unwrap();
    let refused = chain.verify_from("--waypoint", &inside, node.url(), &NOBODY.to_string(), &[]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(78) && text.contains("does not end an epoch"), "{text}");
    let mistyped = chain.end.replace(":0x", ":0x0").split_at(chain.end.len()).0.to_owned();
    let refused = chain.verify_from("--waypoint", &mistyped, node.url(), &NOBODY.to_string(), &[]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(78) && text.contains("the ledger info has the waypoint"), "{text}");

    if std::env::var_os("SLIPSTREAM_BLESS").is_some() {
        bless(&chain, &slots, &inside).await;
    }
    while recorded_at.elapsed() < Duration::from_millis(2_500) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let mut liars = BTreeMap::new();
    for (name, lie, code, (exit, text)) in lies(recorded) {
        let url = liar::serve(node.clone(), lie).await;
        let age: &[&str] = if name == "old" { &["--age-max", "2"] } else { &[] };
        let refused = chain.verify(&url, &[&asked[..], age].concat());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(exit), "{name}: {said}");
        assert!(said.contains(text) && refused.stdout.is_empty(), "{name}: {said}");
        liars.insert(name, (url, code));
    }
    if has_node() {
        javascript(&chain, &slots, &liars).await;
    }
    chain.devnet.stop().await.unwrap();
}

async fn javascript(chain: &Changed, slots: &[B256], liars: &BTreeMap<&str, (String, &str)>) {
    let module = package().join("slipstream-light.js");
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/light");
    let served = |(name, (url, _)): (&&str, &(String, &str))| {
        let age_ms = if *name == "old" { 2_000 } else { 60_000 };
        ((*name).to_owned(), json!({ "url": url, "ageMsMax": age_ms }))
    };
    let served: serde_json::Map<String, Value> = liars.iter().map(served).collect();
    let (served, wanted) = (Value::from(served).to_string(), json!(slots).to_string());
    let (node, genesis, address) = (chain.node(), chain.genesis_waypoint().await, CONTRACT.to_string());
    let args = [module.to_str().unwrap(), node.url(), &genesis, &served, &address, &wanted];
    let mut script = tokio::process::Command::new("node");
    let seen = run::run(script.arg("light.mjs").args(args).current_dir(dir)).await;
    let told = chain.told(CONTRACT, slots, seen["batch"].as_u64().unwrap()).await;
    let decimal = |value: &Value| value.as_str().unwrap().parse::<U256>().unwrap().to_string();
    assert_eq!(seen["balance"], decimal(&told["balance"]));
    let expected: Vec<String> = told["slots"].as_array().unwrap().iter().map(decimal).collect();
    assert_eq!(seen["slots"], json!(expected));
    let codes: BTreeMap<&str, &str> = liars.iter().map(|(name, (_, code))| (*name, *code)).collect();
    assert_eq!(seen["refused"], json!(codes));
}

/// Writes the answers of these nodes as the test vectors of both verifiers: `SLIPSTREAM_BLESS=1`.
async fn bless(chain: &Changed, slots: &[B256], inside: &str) {
    let node = chain.node();
    let mut waypoints = Vec::new();
    for waypoint in [&chain.genesis_waypoint().await, &chain.end, inside] {
        let number: u64 = waypoint.split(':').next().unwrap().parse().unwrap();
        let answer: Value =
            node.call("slipstream_getWaypoint", json!([format!("{number:#x}")])).await.unwrap();
        waypoints.push(json!({ "waypoint": waypoint, "answer": answer }));
    }
    let inside = waypoints.pop().unwrap();
    let changes: Value = node.call("slipstream_getEpochChanges", json!(["0x0"])).await.unwrap();
    let head = quantity(&node.call("eth_blockNumber", json!([])).await.unwrap()).unwrap();
    let questions = [
        (chain.account, &slots[..0], None),
        (CONTRACT, slots, None),
        (address!("00000000000000000000000000000000000bee66"), &slots[..1], None),
        (CONTRACT, &slots[..1], Some(head - 3)),
    ];
    let mut proofs = Vec::new();
    for (address, slots, batch) in questions {
        let block = batch.map_or_else(|| "latest".to_owned(), |batch| format!("{batch:#x}"));
        let answer: Value = node.call("slipstream_getProof", json!([address, slots, block])).await.unwrap();
        let header = hex::decode(&answer["header"].as_str().unwrap()[2..]).unwrap();
        let number = u64::from_le_bytes(header[..8].try_into().unwrap());
        let expected = chain.told(address, slots, number).await;
        let mut proof = json!({ "address": address, "slots": slots, "answer": answer, "expected": expected });
        if let Some(batch) = batch {
            proof["batch"] = batch.into();
        }
        proofs.push(proof);
    }
    let genesis = std::fs::read_to_string(chain.devnet.genesis_file()).unwrap();
    let block: Value = node.call("eth_getBlockByNumber", json!(["latest", false])).await.unwrap();
    let vectors = json!({
        "genesis": serde_json::from_str::<Value>(&genesis).unwrap(),
        "nowMs": (quantity(&block["timestamp"]).unwrap() + 1) * 1_000,
        "waypoints": waypoints,
        "inside": inside,
        "epochChanges": changes,
        "proofs": proofs,
    });
    let path = package().join("../tests/vectors.json");
    std::fs::write(path, serde_json::to_string_pretty(&vectors).unwrap() + "\n").unwrap();
}
