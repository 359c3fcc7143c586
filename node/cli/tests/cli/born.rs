//! Nodes that start from a snapshot, and from a waypoint that such a node reports.

use std::{fs, time::Instant};

use serde_json::{Value, json};
use slipstream_base::{genesis_file, keys};

use crate::{
    chain::{Chain, PATIENCE, Running, printed, wait},
    offline::transaction,
};

/// The only snapshot: more than 256 batches after the genesis, so that headers are left out and the present ones start
/// at an odd batch.
const SNAPSHOT: u64 = 400;
const STORAGE: &str = "storage: { snapshot_interval_batches: 400 }\n";
/// Batches are quick, but a slow machine does not fall behind by a whole [`SNAPSHOT`]; or there are no batches at all.
const QUICK: &str = "consensus: { batch_interval_ms: 15, empty_batch_interval_ms: 15 }\n";
const STILL: &str = "consensus: { empty_batch_interval_ms: 0 }\n";

fn status(node: &Running) -> Value {
    serde_json::from_str(&node.http("GET /v1/status", "")).unwrap()
}

fn text(status: &Value, field: &str) -> String {
    status[field].as_str().unwrap().to_owned()
}

/// Waits until a condition holds; fails with the node's log if it does not.
fn await_that(chain: &Chain, what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not so: {}", log(chain));
        wait();
    }
}

fn log(chain: &Chain) -> String {
    fs::read_to_string(chain.path("log")).unwrap()
}

/// The directory of a fullnode that starts from a snapshot, with one peer and these lines of configuration.
fn fullnode(chain: &Chain, peer: &str, rest: &str) -> Chain {
    let node = Chain { dir: tempfile::tempdir().unwrap(), genesis: chain.genesis.clone() };
    keys::create(&node.path("node.key")).unwrap();
    let listen = "api: { listen: \"127.0.0.1:0\" }\n";
    let network = format!("network: {{ listen: \"127.0.0.1:0\", peers: [\"{peer}\"] }}\n");
    let sync = "sync: { mode: snapshot }\n";
    fs::write(node.path("node.yaml"), format!("role: fullnode\n{network}{listen}{sync}{STORAGE}{rest}"))
        .unwrap();
    node
}

fn checked(chain: &Chain) {
    let whole = printed(&["db", "check", "--config", &chain.config()], true);
    assert!(whole.contains("the database is whole"), "{whole}");
}

/// An idle validator some batches after its only snapshot.
fn served() -> (Chain, Running) {
    // If the machine paused before the stop, the chain reached a second snapshot: try with another chain.
    for _ in 0..3 {
        let (chain, still) = at_rest();
        if still.head() < 2 * SNAPSHOT {
            return (chain, still);
        }
        still.stop();
    }
    panic!("each chain has a second snapshot");
}

/// An idle validator some batches after its first snapshot.
fn at_rest() -> (Chain, Running) {
    let chain = Chain::new();
    chain.configure(&format!("{QUICK}{STORAGE}"));
    let quick = Running::start(&chain);
    await_that(&chain, "the chain is long", || quick.head() > SNAPSHOT + 10);
    quick.stop();
    chain.configure(&format!("{STILL}{STORAGE}"));
    let still = Running::start(&chain);
    // This goes after the batch that the stop may have interrupted, and nothing follows it.
    let sent = still.rpc("eth_sendRawTransaction", json!([transaction(0)]))["result"].clone();
    await_that(&chain, "the chain is at rest", || {
        still.rpc("eth_getTransactionReceipt", json!([sent]))["result"].is_object()
    });
    (chain, still)
}

/// Goal: a node that starts from a waypoint above the newest snapshot, by peers or by files, is complete. It serves
/// newcomers in turn: one that knows only the waypoint that this node reports, and one with a genesis file and a future
/// waypoint.
#[test]
fn a_node_born_from_a_snapshot_is_whole_and_introduces_others() {
    let (chain, validator) = served();
    let end = validator.head();
    let (waypoint, peer) = (text(&status(&validator), "waypoint"), text(&status(&validator), "peer_address"));
    let is_born = |chain: &Chain| log(chain).contains("restored the state and checked its root");
    let first = fullnode(&chain, &peer, &format!("waypoint: {waypoint}\n"));
    let node = Running::start(&first);
    await_that(&first, "it follows", || node.head() == end && status(&node)["sync"]["waypoint"].is_null());
    // The log is written in the background.
    await_that(&first, "its log tells how", || {
        is_born(&first) && log(&first).contains("the ledger passes through the waypoint")
    });
    validator.stop();

    let (shown, peer) = (text(&status(&node), "waypoint"), text(&status(&node), "peer_address"));
    let second = fullnode(&chain, &peer, &format!("waypoint: {shown}\n"));
    let far = format!("1000000:0x{}", "ab".repeat(32));
    let third = fullnode(&chain, &peer, &format!("genesis: genesis.json\nwaypoint: {far}\n"));
    genesis_file::save(&third.path("genesis.json"), &chain.genesis).unwrap();
    for (chain, syncs) in [(&second, false), (&third, true)] {
        let node = Running::start(chain);
        await_that(chain, "it follows", || node.head() == end);
        await_that(chain, "its log tells how", || is_born(chain));
        await_that(chain, "it knows where it is", || {
            let is_before =
                status(&node)["sync"]["reason"] == "no peer has reached the waypoint's batch 1000000 yet";
            is_before == syncs && node.rpc("eth_syncing", json!([]))["result"].is_object() == syncs
        });
        node.stop();
    }
    assert!(log(&third).contains("no peer knows the waypoint yet"), "{}", log(&third));
    node.stop();
    [&first, &second, &third].into_iter().for_each(checked);

    let export = first.path("export");
    let dir = export.to_str().unwrap();
    let exported = printed(&["snapshot", "export", "--config", &first.config(), dir], true);
    let (_, waypoint) = exported.trim().rsplit_once(' ').unwrap();
    assert!(waypoint.starts_with(&format!("{SNAPSHOT}:0x")), "{exported}");
    let nobody = format!("{}@127.0.0.1:9", peer.split_once('@').unwrap().0);
    let imported = fullnode(&chain, &nobody, &format!("waypoint: {waypoint}\n"));
    printed(&["snapshot", "import", "--config", &imported.config(), dir], true);
    checked(&imported);
}
