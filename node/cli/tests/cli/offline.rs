//! Commands for the directory of a stopped node: inspecting it, pruning it, moving its state elsewhere.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use alloy_consensus::{TxEip1559, TxEnvelope};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Bytes, TxKind, hex};
use k256::ecdsa::SigningKey;
use serde_json::{Value, json};
use slipstream_base::keys;
use slipstream_types::{Address, U256, keccak256};

use crate::chain::{Chain, PATIENCE, Running, SENDER, ended, printed, quantity, wait};

/// The number of transactions of the test's chain, and the random bytes in each: a few MiB that compression cannot
/// shrink.
const TRANSACTIONS: u64 = 20;
const NOISE_BYTES: usize = 100_000;
/// Settings that produce batches quickly; the node keeps everything and creates no snapshots.
const QUICK: &str = "consensus: { batch_interval_ms: 20, empty_batch_interval_ms: 50 }\n";
const KEEPING: &str = "storage: { snapshot_interval_batches: 0 }\n";
const PRUNING: &str = "storage: { snapshot_interval_batches: 0, prune: { bodies: 2, receipts: 5 } }\n";

/// A signed transaction of [`SENDER`].
pub(crate) fn transaction(nonce: u64) -> String {
    let key = SigningKey::from_slice(&SENDER).unwrap();
    let noise = (0..NOISE_BYTES as u64 / 32).flat_map(|i| keccak256((nonce << 32 | i).to_be_bytes()).0);
    let transaction = TxEip1559 {
        chain_id: 7_357,
        nonce,
        gas_limit: 5_000_000,
        max_fee_per_gas: 20_000_000,
        max_priority_fee_per_gas: 1,
        to: TxKind::Call(Address::repeat_byte(nonce as u8 + 1)),
        value: U256::from(nonce + 1),
        access_list: Default::default(),
        input: Bytes::from_iter(noise),
    };
    let signed = slipstream_testkit::signed(transaction, &key);
    hex::encode_prefixed(TxEnvelope::from(signed).encoded_2718())
}

/// Waits until a condition holds for the node.
fn await_that(node: &Running, what: &str, is_so: impl Fn(&Running) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so(node) {
        assert!(Instant::now() < deadline, "{what}: not so");
        wait();
    }
}

/// A stopped validator's directory whose first batches are large. These lie in their own files, because the node was
/// restarted after them.
pub(crate) fn left_by_a_node() -> Chain {
    let chain = Chain::new();
    chain.configure(&format!("{QUICK}{KEEPING}"));
    let node = Running::start(&chain);
    for nonce in 0..TRANSACTIONS {
        let sent = node.rpc("eth_sendRawTransaction", json!([transaction(nonce)]));
        assert!(sent["result"].is_string(), "{sent}");
    }
    let sender = Address::from_private_key(&SigningKey::from_slice(&SENDER).unwrap());
    await_that(&node, "all transactions are in batches", |node| {
        quantity(&node.rpc("eth_getTransactionCount", json!([sender, "latest"]))["result"]) == TRANSACTIONS
    });
    node.stop();
    let node = Running::start(&chain);
    // Read only now: the first run may have produced more batches until it stopped, and all of its batches are in one
    // file.
    let large = node.head();
    await_that(&node, "there are small batches on top", |node| node.head() > large + 8);
    node.stop();
    chain
}

/// Bytes of all table files of the database.
fn table_bytes(chain: &Chain) -> u64 {
    let files = fs::read_dir(chain.path("data/db/db")).unwrap().map(|entry| entry.unwrap());
    let tables = files.filter(|file| file.path().extension().is_some_and(|extension| extension == "sst"));
    tables.map(|file| file.metadata().unwrap().len()).sum()
}

/// The words of the line that starts with `first`.
fn line<'a>(text: &'a str, first: &str) -> Vec<&'a str> {
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let found = lines.into_iter().find(|words| words.first() == Some(&first));
    found.unwrap_or_else(|| panic!("no line begins with {first}: {text}"))
}

/// Statistics without their MiB: the memory of a log that was replayed depends on how the cores divide it.
fn without_sizes(stats: &str) -> Vec<Vec<&str>> {
    stats.lines().map(|line| line.split_whitespace().filter(|word| !word.contains('.')).collect()).collect()
}

/// The text between a word and the next whitespace.
pub(crate) fn after<'a>(text: &'a str, word: &str) -> &'a str {
    let (_, rest) = text.split_once(word).unwrap_or_else(|| panic!("{word} is not in: {text}"));
    rest.split_whitespace().next().unwrap()
}

/// Goal: a dry run reports how much pruning then frees, statistics report the kept blobs, and the rest is intact and
/// can start.
#[test]
fn db_commands_look_at_check_and_prune_what_a_node_left() {
    let chain = left_by_a_node();
    let config = chain.config();
    let db = |args: &[&str]| printed(&[&["db"], args, &["--config", &config]].concat(), true);
    let whole = db(&["check"]);
    assert!(whole.contains("the database is whole"), "{whole}");
    let stats = db(&["stats"]);
    let head: u64 = line(&stats, "head")[2].parse().unwrap();
    for kind in ["body", "receipts", "delta"] {
        assert_eq!(line(&stats, kind)[1..], ["1", "to", &head.to_string()], "{stats}");
    }
    // Hints are optional. The head may be an outcome that was announced but uncommitted when the node stopped; it is
    // kept without hints.
    let hints = &line(&stats, "hints")[1..];
    assert!(hints[1..] == ["to", &head.to_string()] || hints == ["none", "at", "the", "head"], "{stats}");
    assert!(line(&stats, "bodies")[2].parse::<f64>().unwrap() > 1.5, "{stats}");
    let refused = printed(&["db", "prune", "--config", &config], false);
    assert!(refused.contains("storage.prune keeps everything"), "{refused}");

    chain.configure(&format!("{QUICK}{PRUNING}"));
    let before = table_bytes(&chain);
    let planned = db(&["prune", "--dry-run"]);
    assert!(planned.contains("would free MiB"), "{planned}");
    assert_eq!(table_bytes(&chain), before, "a dry run changes nothing");
    assert_eq!(without_sizes(&db(&["stats"])), without_sizes(&stats), "a dry run changes nothing");
    let pruned = db(&["prune"]);
    assert!(pruned.contains("freed MiB") && !pruned.contains("would"), "{pruned}");
    for (kind, window) in [("body", 2), ("receipts", 5)] {
        assert_eq!(line(&planned, kind), line(&pruned, kind));
        assert_eq!(line(&pruned, kind)[1], (head + 1 - window).to_string(), "{pruned}");
    }
    let freed: f64 = line(&pruned, "body")[2].parse().unwrap();
    assert!(freed > 1.5, "{pruned}");
    let left = (before - table_bytes(&chain)) as f64 / f64::from(1 << 20);
    assert!((left - freed).abs() < 0.3, "{left} MiB less on disk, {freed} MiB of bodies");

    let stats = db(&["stats"]);
    assert_eq!(line(&stats, "body")[1..], [&(head - 1).to_string(), "to", &head.to_string()], "{stats}");
    assert_eq!(line(&stats, "delta")[1], "1", "{stats}");
    let whole = db(&["check"]);
    assert!(whole.contains("the database is whole"), "{whole}");
    let node = Running::start(&chain);
    // An empty batch needs no stored part, and the first ones may be empty.
    let mut batches = (1..head - 1).map(|number| {
        let block = node.rpc("eth_getBlockByNumber", json!([format!("{number:#x}"), true]));
        block["error"]["message"].as_str().map(str::to_owned)
    });
    let message = batches.find_map(|message| message).expect("a batch with transactions is pruned");
    assert!(message.starts_with("pruned history unavailable: this node has no transactions"), "{message}");
    await_that(&node, "the chain goes on", |node| node.head() > head);
    node.stop();
}

/// Goal: an export and a waypoint are all that another node needs, and a changed byte in the export is detected by
/// name.
#[test]
fn a_snapshot_goes_from_node_to_node_by_files() {
    let chain = left_by_a_node();
    let snapshot = |args: &[&str], success| printed(&[&["snapshot"], args].concat(), success);
    let config = chain.config();
    let created = snapshot(&["create", "--config", &config], true);
    let (number, root, waypoint) =
        (after(&created, "batch "), after(&created, "root "), after(&created, "waypoint "));
    let listed = snapshot(&["list", "--config", &config], true);
    for told in [number, root, waypoint] {
        assert!(listed.contains(told), "{told} is not in: {listed}");
    }
    let export = chain.path("export");
    let dir = export.to_str().unwrap();
    let exported = snapshot(&["export", "--config", &config, dir], true);
    let genesis = chain.path("genesis.json");
    for trust in [["--waypoint", waypoint], ["--genesis", genesis.to_str().unwrap()]] {
        let verified = snapshot(&[&["verify", dir], &trust[..]].concat(), true);
        assert_eq!(verified, exported.replace("exported", "verified"));
    }
    let wrong = format!("{}:0x{}", waypoint.split_once(':').unwrap().0, "ab".repeat(32));
    let refused = snapshot(&["verify", dir, "--waypoint", &wrong], false);
    assert!(refused.contains("does not belong to the trusted ledger"), "{refused}");

    // The network is down: the peer that the configuration names is stopped.
    let other = newcomer(&chain, waypoint);
    let chunk = flip_a_byte(&export);
    for args in [&["verify", dir, "--waypoint", waypoint][..], &["import", "--config", &other.config(), dir]]
    {
        let refused = snapshot(args, false);
        assert!(refused.contains(chunk.0.to_str().unwrap()), "{args:?}: {refused}");
    }
    let stats = printed(&["db", "stats", "--config", &other.config()], true);
    assert_eq!(line(&stats, "head")[2], "0", "a refused import changes no state: {stats}");
    fs::write(&chunk.0, &chunk.1).unwrap();
    let imported = snapshot(&["import", "--config", &other.config(), dir], true);
    assert_eq!(imported, exported.replace("exported", "imported"));
    let again = snapshot(&["import", "--config", &other.config(), dir], false);
    assert!(again.contains("import into an empty data directory"), "{again}");

    let whole = printed(&["db", "check", "--config", &other.config()], true);
    assert!(whole.contains("the database is whole"), "{whole}");
    let carried = snapshot(&["create", "--config", &other.config()], true);
    assert_eq!((after(&carried, "batch "), after(&carried, "root ")), (number, root));
    let node = Running::start(&other);
    assert_eq!(node.head(), number.parse::<u64>().unwrap());
    let balance = node.rpc("eth_getBalance", json!([Address::repeat_byte(3), "latest"]));
    assert_eq!(balance["result"], "0x3", "what the third transaction sent");
    node.stop();
}

/// A fullnode's directory that knows only a waypoint, and a stopped peer.
pub(crate) fn newcomer(chain: &Chain, waypoint: &str) -> Chain {
    let other = Chain { dir: tempfile::tempdir().unwrap(), genesis: chain.genesis.clone() };
    keys::create(&other.path("node.key")).unwrap();
    let peer = keys::load(&chain.path("node.key")).unwrap().public();
    let text = format!(
        "role: fullnode\nwaypoint: {waypoint}\nnetwork: {{ listen: \"127.0.0.1:0\", peers: [\"{peer}@127.0.0.1:9\"] }}\n\
         api: {{ listen: \"127.0.0.1:0\" }}\n"
    );
    fs::write(other.path("node.yaml"), text).unwrap();
    other
}

/// Changes a byte in the middle of a chunk; returns the file and its former content.
fn flip_a_byte(export: &Path) -> (PathBuf, Vec<u8>) {
    let mut files: Vec<_> =
        fs::read_dir(export.join("chunks")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort_by_key(|file| fs::metadata(file).unwrap().len());
    let file = files.pop().unwrap();
    let good = fs::read(&file).unwrap();
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 1;
    fs::write(&file, bad).unwrap();
    (file, good)
}

/// Goal: the node that holds the directory answers read-only commands, in the same words.
#[test]
fn a_running_node_answers_for_its_directory() {
    let chain = Chain::new();
    // Only transactions cause batches, so a stop leaves no interrupted batch for the next start to commit.
    chain.configure(&format!("consensus: {{ empty_batch_interval_ms: 0 }}\n{KEEPING}"));
    let node = Running::start(&chain);
    for nonce in 0..4 {
        node.rpc("eth_sendRawTransaction", json!([transaction(nonce)]));
        await_that(&node, "a transaction is a batch", |node| node.head() == nonce + 1);
    }
    node.stop();
    let config = chain.config();
    let ask = |args: &[&str]| printed(&[args, &["--config", &config]].concat(), true);
    ask(&["snapshot", "create"]);
    let listed = ask(&["snapshot", "list"]);
    let kept = |stats: &str| stats.split_once("\n\n").unwrap().0.to_owned();
    let stats = ask(&["db", "stats"]);

    let node = Running::start(&chain);
    assert_eq!(ask(&["snapshot", "list"]), listed);
    let told = ask(&["db", "stats"]);
    assert_eq!(kept(&told), kept(&stats));
    let export = chain.path("beside");
    let exported = ask(&["snapshot", "export", export.to_str().unwrap()]);
    assert_eq!(after(&exported, "waypoint "), after(&listed, "waypoint "));
    let none = printed(&["snapshot", "export", "--config", &config, "--batch", "1", "never"], false);
    assert!(none.contains("the store has no snapshot of batch 1"), "{none}");
    assert_eq!(line(&told, "headers").len(), 3, "{told}");
    // The page is read at most once a second, and the database may compact its files in between.
    let is_same = (0..20).any(|_| node.http("GET /v1/db", "") == node.http("GET /v1/db", ""));
    assert!(is_same, "each answer is another one");
    let (code, second) = ended(&["run", "--config", &config]);
    assert!(code == 75 && second.contains("the data directory is in use by pid"), "{code}: {second}");
    for args in [&["db", "check"][..], &["db", "prune"], &["snapshot", "create"]] {
        let (code, text) = ended(&[args, &["--config", &config]].concat());
        assert!(code == 75 && text.contains("stop the node first"), "{args:?}: {code}: {text}");
    }
    node.stop();
}

/// Goal: commands leave a directory unchanged while it is in use, and say what is not possible yet.
#[test]
fn snapshot_commands_refuse_with_a_reason() {
    let chain = Chain::new();
    chain.configure("consensus: { empty_batch_interval_ms: 0 }\n");
    let running = Running::start(&chain);
    let (code, locked) = ended(&["snapshot", "create", "--config", &chain.config()]);
    let process = format!("in use by pid {} (", running.child.id());
    assert!(
        code == 75 && locked.contains("stop the node first") && locked.contains(&process),
        "{code}: {locked}"
    );
    let status: Value = serde_json::from_str(&running.http("GET /v1/status", "")).unwrap();
    assert_eq!(status["head"]["number"], 0);
    running.stop();

    let uncertified = printed(&["snapshot", "create", "--config", &chain.config()], false);
    assert!(uncertified.contains("cannot take a snapshot of batch 0"), "{uncertified}");
    let empty = printed(&["snapshot", "list", "--config", &chain.config()], true);
    assert!(empty.contains("no snapshots"), "{empty}");
    let dir = chain.path("export");
    let dir = dir.to_str().unwrap();
    let none = printed(&["snapshot", "export", "--config", &chain.config(), dir], false);
    assert!(none.contains("there is no snapshot to export"), "{none}");
    let missing =
        printed(&["snapshot", "verify", dir, "--waypoint", &format!("1:0x{}", "00".repeat(32))], false);
    assert!(missing.contains("MANIFEST"), "{missing}");
}

/// Goal: a genesis file gets the contracts that tools expect, once, and keeps its own.
#[test]
fn predeploys_are_added_to_a_genesis() {
    let chain = Chain::new();
    let (plain, whole, again) =
        (chain.path("genesis.json"), chain.path("whole.json"), chain.path("again.json"));
    let add = |from: &Path, to: &Path| {
        printed(&["genesis", "predeploys", from.to_str().unwrap(), "--out", to.to_str().unwrap()], true)
    };
    let said = add(&plain, &whole);
    assert!(said.contains("a different chain from that of") && !said.contains("stays as it was"), "{said}");
    let accounts = |path: &Path| {
        let genesis: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        genesis["accounts"].as_object().unwrap().len()
    };
    assert_eq!(accounts(&whole), accounts(&plain) + 4);
    assert_eq!(add(&whole, &again).matches("stays as it was").count(), 4);
    assert_eq!(fs::read(&whole).unwrap(), fs::read(&again).unwrap());
}

/// Goal: the rule is added to a genesis file once, and the rest of the file stays.
#[test]
fn unprotected_transactions_are_admitted_by_a_genesis() {
    let chain = Chain::new();
    let (plain, lax, again) = (chain.path("genesis.json"), chain.path("lax.json"), chain.path("again.json"));
    let admit = |from: &Path, to: &Path| {
        printed(&["genesis", "unprotected", from.to_str().unwrap(), "--out", to.to_str().unwrap()], true)
    };
    let said = admit(&plain, &lax);
    assert!(said.contains("a different chain from that of"), "{said}");
    let [mut before, after]: [Value; 2] =
        [&plain, &lax].map(|path| serde_json::from_slice(&fs::read(path).unwrap()).unwrap());
    before["unprotected_transactions"] = true.into();
    assert_eq!(before, after);
    assert!(admit(&lax, &again).contains("already"));
    assert_eq!(fs::read(&lax).unwrap(), fs::read(&again).unwrap());
}
