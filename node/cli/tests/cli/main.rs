//! The real binary, as an operator meets it.
//!
//! Tests start in the order of their names. Those of `among` wait longest for nodes, so their names come first; at the
//! end they would run alone.
#![allow(clippy::unwrap_used)] // a panic is how a test fails

mod among;
mod archive;
mod bans;
mod born;
mod chain;
mod config;
mod damaged;
mod db_get;
mod debug;
mod disk;
mod events;
mod http;
mod metrics;
mod offline;
mod openapi;
mod operator;
mod process;
#[allow(dead_code, reason = "its faults are those of the archive's own tests")]
#[path = "../../../../storage/archive/tests/it/server.rs"]
mod server;
mod shell;
mod socket;
mod status;
mod top;
mod urls;
mod wording;

use std::{
    fs,
    net::{TcpListener, UdpSocket},
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use serde_json::{Value, json};
use slipstream_base::{genesis_file, keys};
use slipstream_types::{Address, Genesis, Waypoint};

use chain::{BINARY, Chain, PATIENCE, Running, closed_port, ended, printed, wait};

#[test]
fn init_writes_once_and_what_it_writes_is_valid() {
    let chain = Chain::new();
    let dir = chain.path("new");
    let (dir, genesis) = (dir.to_str().unwrap(), chain.path("genesis.json"));
    let peer = format!("{}@127.0.0.1:7400", "12".repeat(32));
    let args = ["init", "--dir", dir, "--genesis", genesis.to_str().unwrap(), "--peer", &peer];
    let text = printed(&args, true);
    let key = keys::load(&Path::new(dir).join("node.key")).unwrap();
    assert!(text.contains(&format!("peer id {}", key.public())), "{text}");
    let config = format!("{dir}/node.yaml");
    assert!(printed(&["config", "check", &config], true).contains("node.yaml: ok"));

    let before = fs::read_to_string(&config).unwrap();
    assert!(printed(&args, false).contains("exists already; nothing was written"));
    assert_eq!(fs::read_to_string(&config).unwrap(), before);
}

/// Goal: an address that a node prints for itself is refused if it is pasted unchanged.
#[test]
fn init_refuses_a_peer_that_cannot_be_dialled() {
    let chain = Chain::new();
    let (dir, genesis) = (chain.path("new"), chain.path("genesis.json"));
    let peer = format!("{}@0.0.0.0:7400", "12".repeat(32));
    let args =
        ["init", "--dir", dir.to_str().unwrap(), "--genesis", genesis.to_str().unwrap(), "--peer", &peer];
    let text = printed(&args, false);
    assert!(text.contains(&format!("cannot dial {peer}: ")), "{text}");
    assert!(!dir.exists());
}

/// Goal: a stop is honoured even while the node waits for its first peer.
#[test]
fn a_signal_during_the_start_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let chain = Chain { dir, genesis: Chain::new().genesis };
    keys::create(&chain.path("node.key")).unwrap();
    // Nobody listens there.
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap();
    let peer = format!("{}@{}", "12".repeat(32), nobody.local_addr().unwrap());
    let text = format!(
        "role: fullnode\nwaypoint: \"7:0x{}\"\nnetwork: {{ listen: \"127.0.0.1:0\", peers: [\"{peer}\"] }}\napi: {{ listen: \
         \"127.0.0.1:0\" }}\n",
        "ab".repeat(32)
    );
    fs::write(chain.path("node.yaml"), text).unwrap();
    let child = Command::new(BINARY)
        .args(["run", "--config", &chain.config()])
        .env_remove("RUST_LOG")
        .stdout(Stdio::null())
        .stderr(Stdio::from(fs::File::create(chain.path("log")).unwrap()))
        .spawn()
        .unwrap();
    let node = Running { child, api: String::new(), ready: String::new(), log: chain.path("log") };
    let log = || fs::read_to_string(chain.path("log")).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !log().contains("asking peers for the genesis") {
        assert!(Instant::now() < deadline, "it does not start: {}", log());
        wait();
    }
    node.stop();
    assert!(log().contains("stopped before the node was up"), "{}", log());
}

#[test]
fn init_refuses_before_it_writes() {
    let dir = tempfile::tempdir().unwrap();
    let new = dir.path().join("new");
    let text = printed(&["init", "--dir", new.to_str().unwrap()], false);
    assert!(text.contains("a fullnode needs a genesis file or a waypoint"), "{text}");
    assert!(!new.exists());
    // A validator's key must exist before the genesis that names it.
    printed(&["init", "--dir", new.to_str().unwrap(), "--role", "validator"], true);
    let text = printed(&["config", "check", new.join("node.yaml").to_str().unwrap()], false);
    assert!(text.contains("cannot read the genesis file"), "{text}");
}

#[test]
fn bad_input_is_refused_with_a_reason_and_nothing_is_written() {
    let chain = Chain::new();
    let never = |reasons: &[&str]| assert_eq!(chain.refused(reasons), 78, "{reasons:?}");
    chain.configure("storrage: {}\n");
    never(&["node.yaml:5:1: storrage: unknown field `storrage`", "^^^^^^^^"]);
    chain.configure("log: { filter: \"info,=x=\" }\n");
    never(&["log.filter in the configuration: `=x=` is not a log filter"]);

    chain.configure("key_file: nowhere.key\n");
    never(&["cannot read the key file", "nowhere.key", "slipstream init"]);
    keys::create(&chain.path("other.key")).unwrap();
    chain.configure("key_file: other.key\n");
    never(&["is not in the validator set of", "genesis.json"]);

    let zero = format!("waypoint: 0:0x{}\n", "0".repeat(64));
    chain.configure(&zero);
    let found = Waypoint::of(&chain.genesis.ledger_info().unwrap());
    never(&["is of another chain", &found.to_string()]);
    chain.configure("waypoint: 12\n");
    never(&["node.yaml:5:11: waypoint: a waypoint is NUMBER:0xHASH"]);

    chain.configure("");
    fs::write(chain.path("genesis.json"), "{\n  \"chain\": 1 }").unwrap();
    never(&["genesis.json:2:", "not a genesis file"]);
    assert!(
        printed(&["run", "--config", "/nonexistent/node.yaml"], false).contains("slipstream init --dir DIR")
    );
}

#[test]
fn busy_ports_are_named() {
    let chain = Chain::new();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap();
    chain.configure(&format!("api: {{ listen: \"{address}\" }}\n"));
    assert_eq!(chain.refused(&[&format!("cannot listen on {address}"), "TCP port", "api.listen"]), 75);

    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = udp.local_addr().unwrap();
    chain.configure(&format!("network: {{ listen: \"{address}\" }}\n"));
    assert_eq!(chain.refused(&[&format!("cannot listen on {address}"), "UDP port", "network.listen"]), 75);
}

/// Goal: one node's whole life, and the refusal of a second one on the same directory.
#[test]
fn a_single_validator_runs_answers_and_stops() {
    let chain = Chain::new();
    let node = Running::start(&chain);
    assert!(node.ready.starts_with("slipstream ready api=http://127.0.0.1:"), "{}", node.ready);

    let deadline = Instant::now() + PATIENCE;
    while node.head() < 2 {
        assert!(
            Instant::now() < deadline,
            "the chain does not move: {}",
            fs::read_to_string(chain.path("log")).unwrap()
        );
        wait();
    }
    assert_eq!(node.rpc("eth_chainId", json!([]))["result"], "0x1cbd");
    assert_eq!(node.rpc("eth_syncing", json!([]))["result"], false);
    let rich = Address::repeat_byte(1);
    assert_eq!(node.rpc("eth_getBalance", json!([rich, "latest"]))["result"], "0x56bc75e2d63100000");
    let block = node.rpc("eth_getBlockByNumber", json!(["0x1", false]));
    assert_eq!(block["result"]["number"], "0x1", "{block}");
    let genesis = node.rpc("eth_getBlockByNumber", json!(["earliest", true]));
    assert_eq!(block["result"]["parentHash"], genesis["result"]["hash"]);
    let again = node.rpc("eth_getBlockByHash", json!([block["result"]["hash"], false]));
    assert_eq!(again, block);
    // An earlier state, by number and by hash; and a future one.
    for id in [json!("0x0"), json!("earliest"), json!({ "blockHash": block["result"]["hash"] })] {
        assert_eq!(node.rpc("eth_getBalance", json!([rich, id]))["result"], "0x56bc75e2d63100000", "{id}");
    }
    let future = node.rpc("eth_getBalance", json!([rich, "0xffffff"]));
    assert_eq!(future["error"]["code"], -32000, "{future}");
    assert_eq!(node.rpc("eth_nothing", json!([]))["error"]["code"], -32601);

    let status: Value = serde_json::from_str(&node.http("GET /v1/status", "")).unwrap();
    assert_eq!(status["role"], "validator");
    assert_eq!(status["genesis"], genesis["result"]["hash"]);
    assert!(node.ready.ends_with(status["peer_address"].as_str().unwrap()));
    let api = format!("http://{}", node.api);
    let table = printed(&["status", "--api", &api], true);
    assert!(table.contains("role         validator"), "{table}");
    let metrics = node.http("GET /metrics", "");
    assert!(
        metrics.contains("slipstream_rpc_requests_total{method=\"eth_chainId\",outcome=\"ok\"} 1"),
        "{metrics}"
    );
    assert!(
        metrics.contains("slipstream_rpc_requests_total{method=\"unknown\",outcome=\"error\"} 1"),
        "{metrics}"
    );
    let health: Value = serde_json::from_str(&node.http("GET /health", "")).unwrap();
    assert_eq!((&health["ready"], &health["state"]), (&json!(true), &json!("at_head")), "{health}");
    assert_eq!(node.http("GET /health/live", ""), "ok\n");
    let limits = fs::read_to_string(format!("/proc/{}/limits", node.child.id())).unwrap();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let (soft, hard) = files.trim().split_once(' ').unwrap();
    assert!(hard.trim().starts_with(soft), "the soft limit is not at the hard one: {files}");

    let second = printed(&["run", "--config", &chain.config()], false);
    assert!(second.contains(&format!("in use by pid {} (", node.child.id())), "{second}");
    assert!(second.contains("LOCK"), "{second}");
    node.stop();

    // The chain continues where it stopped, and another genesis is refused.
    let node = Running::start(&chain);
    assert!(node.head() >= 2);
    node.stop();
    fs::remove_file(chain.path("genesis.json")).unwrap();
    let other = Genesis { timestamp_ms: 1, ..chain.genesis.clone() };
    genesis_file::save(&chain.path("genesis.json"), &other).unwrap();
    let (code, text) = ended(&["run", "--config", &chain.config()]);
    assert!(code == 78 && text.contains("the store holds the chain with genesis"), "{code}: {text}");
}

/// Goal: a waypoint and a peer are enough to start; the genesis comes over the network.
#[test]
fn a_fullnode_starts_from_a_waypoint_alone() {
    let chain = Chain::new();
    let validator = Running::start(&chain);
    let status: Value = serde_json::from_str(&validator.http("GET /v1/status", "")).unwrap();
    let field = |name: &str| status[name].as_str().unwrap().to_owned();
    let (waypoint, peer) = (field("waypoint"), field("peer_address"));

    let follower = Chain { dir: tempfile::tempdir().unwrap(), genesis: chain.genesis.clone() };
    keys::create(&follower.path("node.key")).unwrap();
    let text = format!(
        "role: fullnode\nwaypoint: {waypoint}\nnetwork: {{ listen: \"127.0.0.1:0\", peers: [\"{peer}\"] }}\napi: {{ listen: \
         \"127.0.0.1:0\" }}\n"
    );
    fs::write(follower.path("node.yaml"), text).unwrap();
    let node = Running::start(&follower);
    let deadline = Instant::now() + PATIENCE;
    let hash = loop {
        let block = node.rpc("eth_getBlockByNumber", json!(["0x2", false]));
        if block["result"].is_object() {
            break block["result"]["hash"].clone();
        }
        assert!(
            Instant::now() < deadline,
            "it does not follow: {}",
            fs::read_to_string(follower.path("log")).unwrap()
        );
        wait();
    };
    assert_eq!(validator.rpc("eth_getBlockByNumber", json!(["0x2", false]))["result"]["hash"], hash);
    assert_eq!(node.rpc("net_peerCount", json!([]))["result"], "0x1");
    node.stop();
    validator.stop();
}

#[test]
fn status_of_nobody_says_what_to_check() {
    let (_held, closed) = closed_port();
    let text = printed(&["status", "--api", &format!("http://{closed}")], false);
    assert!(text.contains("the node is not running, or its api.listen is another address"), "{text}");
}

/// Goal: a waypoint or a genesis that does not match the peers' ledger is refused by name before anything is written.
#[test]
fn a_waypoint_of_another_ledger_is_refused_before_anything_is_written() {
    let chain = Chain::new();
    let validator = Running::start(&chain);
    let deadline = Instant::now() + PATIENCE;
    let (waypoint, peer) = loop {
        let status: Value = serde_json::from_str(&validator.http("GET /v1/status", "")).unwrap();
        if status["head"]["number"].as_u64().unwrap() > 0 {
            break (status["waypoint"].as_str().unwrap().to_owned(), status["peer_address"].clone());
        }
        assert!(Instant::now() < deadline, "the chain does not move: {status}");
        wait();
    };
    let follower = Chain { dir: tempfile::tempdir().unwrap(), genesis: chain.genesis.clone() };
    keys::create(&follower.path("node.key")).unwrap();
    let configure = |waypoint: &str| {
        let network = format!("network: {{ listen: \"127.0.0.1:0\", peers: [{peer}] }}");
        let text = format!("role: fullnode\ngenesis: genesis.json\nwaypoint: {waypoint}\n{network}\n");
        fs::write(follower.path("node.yaml"), text + "api: { listen: \"127.0.0.1:0\" }\n").unwrap();
    };
    genesis_file::save(&follower.path("genesis.json"), &chain.genesis).unwrap();
    let (number, _) = waypoint.split_once(':').unwrap();
    let wrong = format!("{number}:0x{}", "ab".repeat(32));
    configure(&wrong);
    follower.refused(&[&format!("no peer knows waypoint {wrong}"), &format!("its ledger has {waypoint}")]);

    fs::remove_file(follower.path("genesis.json")).unwrap();
    let other = Genesis { timestamp_ms: 1, ..chain.genesis.clone() };
    genesis_file::save(&follower.path("genesis.json"), &other).unwrap();
    configure(&waypoint);
    follower.refused(&["genesis.json is not the genesis of the ledger that waypoint", &waypoint]);
    validator.stop();
}
