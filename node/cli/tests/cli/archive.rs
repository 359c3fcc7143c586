//! Snapshots in object storage, with the commands that docs/operations.md names, against a server that speaks S3.

use std::{
    fs,
    process::{Command, Stdio},
    sync::atomic::Ordering,
    time::Instant,
};

use serde_json::{Value, json};
use slipstream_base::{genesis_file, keys};
use slipstream_types::Address;
use tokio::runtime::Runtime;

use crate::{
    chain::{BINARY, Chain, PATIENCE, Running, ended, free_ports, printed, wait},
    offline::{after, left_by_a_node, newcomer, transaction},
    process::until,
    server::{SECRET, Server},
};

/// The exit code and output of a command in the environment of the server's users.
fn with_s3(server: &Server, args: &[&str]) -> (i32, String) {
    let output = Command::new(BINARY)
        .args([&["snapshot"], args].concat())
        .env_remove("RUST_LOG")
        .envs(server.variables())
        .output()
        .unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!text.contains(SECRET), "{text}");
    (output.status.code().unwrap(), text)
}

fn done(server: &Server, args: &[&str]) -> String {
    let (code, text) = with_s3(server, args);
    assert_eq!(code, 0, "{args:?}: {text}");
    text
}

/// Goal: a snapshot moves from a node into a bucket, and from there into another node, which starts from it without
/// peers.
#[test]
fn a_snapshot_goes_from_node_to_node_by_a_bucket() {
    let runtime = Runtime::new().unwrap();
    let server = runtime.block_on(Server::start());
    let url = "s3://bucket/net";
    let chain = left_by_a_node();
    let (config, genesis) = (chain.config(), chain.path("genesis.json"));
    let created = printed(&["snapshot", "create", "--config", &config], true);
    let (number, waypoint) = (after(&created, "batch "), after(&created, "waypoint "));
    assert!(done(&server, &["list", url]).contains("no snapshots in s3://bucket/net"));

    let exported = done(&server, &["export", "--config", &config, url]);
    assert!(exported.contains(waypoint) && !exported.contains("sent 0 objects"), "{exported}");
    let again = done(&server, &["export", "--config", &config, url]);
    assert!(again.contains("sent 0 objects"), "{again}");
    assert_eq!(done(&server, &["list", url]).trim(), format!("batch {number}  waypoint {waypoint}"));
    let summary = exported.split_once("\nsent").unwrap().0.replace("exported", "verified");
    for trust in [["--waypoint", waypoint], ["--genesis", genesis.to_str().unwrap()]] {
        let verified = done(&server, &[&["verify", url, "--batch", number], &trust[..]].concat());
        assert_eq!(verified.trim(), summary);
    }
    let (code, refused) = with_s3(&server, &["verify", url]);
    assert!(code == 78 && refused.contains("no trusted ledger is given"), "{code}: {refused}");

    let other = newcomer(&chain, waypoint);
    let piece = server.objects("/pieces/").into_iter().max_by_key(|file| fs::metadata(file).unwrap().len());
    let piece = piece.unwrap();
    let good = fs::read(&piece).unwrap();
    fs::write(&piece, &good[1..]).unwrap();
    let (code, refused) = with_s3(&server, &["import", "--config", &other.config(), url]);
    let name = piece.file_name().unwrap().to_str().unwrap();
    assert!(code == 65 && refused.contains(name), "{code}: {refused}");
    fs::write(&piece, good).unwrap();
    let imported = done(&server, &["import", "--config", &other.config(), url]);
    assert_eq!(imported.trim(), summary.replace("verified", "imported"));
    let whole = printed(&["db", "check", "--config", &other.config()], true);
    assert!(whole.contains("the database is whole"), "{whole}");
    let carried = printed(&["snapshot", "create", "--config", &other.config()], true);
    assert_eq!(after(&carried, "waypoint "), waypoint);

    let pruned = done(&server, &["prune", url, "--keep", "1"]);
    assert!(pruned.contains("1 snapshots kept, 0 taken out, 0 objects"), "{pruned}");
    let manifest = server.objects("/snapshots/").pop().unwrap();
    fs::write(&manifest, b"nonsense").unwrap();
    let name = manifest.file_name().unwrap().to_str().unwrap();
    for (args, outcome) in
        [(&["--keep", "1"][..], "objects stay"), (&["--keep", "1", "--drop-damaged"], "were deleted")]
    {
        let (code, text) = with_s3(&server, &[&["prune", url], args].concat());
        assert!(code == 65 && text.contains("0 snapshots kept") && text.contains(name), "{code}: {text}");
        assert!(text.contains(outcome), "{text}");
    }
    assert!(done(&server, &["list", url]).contains("no snapshots in s3://bucket/net"));
}

/// Settings that create and drop snapshots quickly.
const QUICK_SNAPSHOTS: &str = "consensus: { batch_interval_ms: 20, empty_batch_interval_ms: 20 }\n\
     storage: { snapshot_interval_batches: 50, snapshots_kept: 2 }\n";

/// Goal: a running node that replaces its snapshots can be exported. Another node starts from the export and follows
/// it.
#[test]
fn a_running_node_is_exported_from() {
    let chain = Chain::new();
    chain.configure(QUICK_SNAPSHOTS);
    let node = Running::start(&chain);
    let config = chain.config();
    let url = format!("file://{}", chain.path("archive").display());
    let served = || -> Vec<u64> {
        let entries: Value = serde_json::from_str(&node.http("GET /v1/snapshots", "")).unwrap();
        entries.as_array().unwrap().iter().map(|entry| entry["batch"].as_u64().unwrap()).collect()
    };
    let (code, early) = ended(&["snapshot", "export", "--config", &config, "--batch", "7", &url]);
    assert!(code == 1 && early.contains("the store has no snapshot of batch 7"), "{code}: {early}");
    for nonce in 0..3 {
        node.rpc("eth_sendRawTransaction", json!([transaction(nonce)]));
    }
    until("there are snapshots", || (served().len() == 2).then_some(()));
    let export = || printed(&["snapshot", "export", "--config", &config, &url], true);
    let first = export();
    let number: u64 = after(&first, "batch ").trim_end_matches(',').parse().unwrap();
    let waypoint = after(&first, "waypoint ").to_owned();
    until("the node has dropped it", || served().iter().all(|served| *served > number).then_some(()));
    let text =
        printed(&["snapshot", "export", "--config", &config, "--batch", &number.to_string(), &url], false);
    assert!(text.contains(&format!("the store has no snapshot of batch {number}")), "{text}");
    let second = export();
    let newer: u64 = after(&second, "batch ").trim_end_matches(',').parse().unwrap();
    assert!(newer > number, "{second}");
    let genesis = chain.path("genesis.json");
    for batch in [number, newer] {
        let (genesis, number) = (genesis.to_str().unwrap(), batch.to_string());
        let verified = printed(&["snapshot", "verify", &url, "--genesis", genesis, "--batch", &number], true);
        assert!(verified.contains(&format!("batch {batch},")), "{verified}");
    }

    let other = newcomer(&chain, &waypoint);
    let imported = printed(
        &["snapshot", "import", "--config", &other.config(), "--batch", &number.to_string(), &url],
        true,
    );
    assert_eq!(after(&imported, "waypoint "), waypoint);
    let whole = printed(&["db", "check", "--config", &other.config()], true);
    assert!(whole.contains("the database is whole"), "{whole}");
    let address = status(&node)["peer_address"].as_str().unwrap().to_owned();
    let text = fs::read_to_string(other.path("node.yaml")).unwrap();
    let peer = text.split_once("peers: [\"").unwrap().1.split_once('"').unwrap().0.to_owned();
    fs::write(other.path("node.yaml"), text.replace(&peer, &address)).unwrap();
    let follower = Running::start(&other);
    until("it follows", || (follower.head() > newer).then_some(()));
    let balance = follower.rpc("eth_getBalance", json!([Address::repeat_byte(3), "latest"]));
    assert_eq!(balance["result"], "0x3", "what the third transaction sent");
    follower.stop();
    node.stop();
}

/// Goal: a URL that contains a secret is refused without being repeated, and an impossible command says why.
#[test]
fn archives_are_refused_with_a_reason() {
    let chain = Chain::new();
    let config = chain.config();
    for url in ["s3://key:hidden@bucket/a", "https://host.example/a?X-Amz-Signature=hidden"] {
        for args in [
            &["list", url][..],
            &["verify", url],
            &["export", "--config", &config, url],
            &["import", "--config", &config, url],
            &["prune", url, "--keep", "1"],
        ] {
            let refused = printed(&[&["snapshot"], args].concat(), false);
            assert!(
                refused.contains("AWS_ACCESS_KEY_ID") && !refused.contains("hidden"),
                "{args:?}: {refused}"
            );
        }
    }
    let unknown = printed(&["snapshot", "list", "gs://bucket"], false);
    assert!(unknown.contains("s3://BUCKET/PREFIX"), "{unknown}");
    let dir = chain.path("archive");
    let url = format!("file://{}", dir.display());
    let none = printed(&["snapshot", "list", &url], false);
    assert!(none.contains("cannot open the archive"), "{none}");
    let one = printed(&["snapshot", "verify", dir.to_str().unwrap(), "--batch", "3"], false);
    assert!(one.contains("leave --batch out"), "{one}");
    assert!(!chain.path("data").exists(), "a refused command touches nothing");
}

/// Settings of a node without snapshots, so that a newcomer cannot start from them.
const NO_SNAPSHOTS: &str = "consensus: { batch_interval_ms: 20, empty_batch_interval_ms: 50 }\n\
     storage: { snapshot_interval_batches: 0, snapshots_kept: 0";
/// Settings for the same node that keep only the newest batches.
const PRUNE: &str = ", prune: { bodies: 2, receipts: 2, deltas: 2, hints: 2 }";

/// A fullnode next to the validator that it follows.
struct Follower {
    chain: Chain,
    running: Running,
}

impl Follower {
    /// Starts it with these keys of `sync`.
    fn start(chain: &Chain, peer: &str, server: &Server, sync: &str) -> Follower {
        let node = Chain { dir: tempfile::tempdir().unwrap(), genesis: chain.genesis.clone() };
        keys::create(&node.path("node.key")).unwrap();
        genesis_file::save(&node.path("genesis.json"), &chain.genesis).unwrap();
        let text = format!(
            "role: fullnode\ngenesis: genesis.json\nnetwork: {{ listen: \"127.0.0.1:0\", peers: [\"{peer}\"] }}\n\
             api: {{ listen: \"127.0.0.1:0\" }}\nsync: {{ {sync} }}\n"
        );
        fs::write(node.path("node.yaml"), text).unwrap();
        Follower::run(node, server)
    }

    /// Kills it, and restarts it with a new log.
    fn again(self, server: &Server) -> Follower {
        let Follower { chain, running } = self;
        drop(running);
        Follower::run(chain, server)
    }

    fn run(node: Chain, server: &Server) -> Follower {
        let mut command = Command::new(BINARY);
        command.args(["run", "--config", &node.config()]).envs(server.variables()).stdout(Stdio::piped());
        let log = node.path("log");
        let child = command.stderr(Stdio::from(fs::File::create(&log).unwrap())).spawn().unwrap();
        Follower { running: Running::of(child, &log), chain: node }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.chain.path("log")).unwrap()
    }

    fn until(&self, what: &str, is_so: impl Fn(&Follower) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < deadline, "{what}: not so: {}", self.log());
            wait();
        }
    }

    fn head(&self) -> u64 {
        self.running.head()
    }
}

fn status(node: &Running) -> Value {
    serde_json::from_str(&node.http("GET /v1/status", "")).unwrap()
}

/// Puts an export with only wrong pieces into the server's bucket, so that the first request of any kind reveals it.
fn export_lies(server: &Server, config: &str, url: &str) {
    done(server, &["export", "--config", config, url]);
    for piece in server.objects("/pieces/") {
        let mut bytes = fs::read(&piece).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(piece, bytes).unwrap();
    }
}

/// Goal: a fullnode whose peers serve no snapshot starts from an archive and follows its peers. An archive that lies is
/// banned until it is unbanned, with the reason in the status, even after a kill and a restart. The honest archive
/// completes the restore.
#[test]
fn a_fullnode_starts_from_an_archive_and_not_from_a_liar() {
    let runtime = Runtime::new().unwrap();
    let server = runtime.block_on(Server::start());
    let chain = left_by_a_node();
    let config = chain.config();
    printed(&["snapshot", "create", "--config", &config], true);
    let (aside, honest) = (chain.path("aside"), chain.path("honest"));
    let exported =
        printed(&["snapshot", "export", "--config", &config, &format!("file://{}", aside.display())], true);
    let number: u64 = after(&exported, "batch ").trim_end_matches(',').parse().unwrap();
    export_lies(&server, &config, "s3://bucket/liar");
    // The validator has neither a snapshot nor the batches that lead there.
    chain.configure(&format!("{NO_SNAPSHOTS}{PRUNE} }}\n"));
    printed(&["db", "prune", "--config", &config], true);
    chain.configure(&format!("{NO_SNAPSHOTS} }}\n"));
    let validator = Running::start(&chain);
    let served: Value = serde_json::from_str(&validator.http("GET /v1/snapshots", "")).unwrap();
    assert_eq!(served, json!([]));

    let archives = ["s3://bucket/liar".to_owned(), format!("file://{}", honest.display())];
    let address = status(&validator)["peer_address"].as_str().unwrap().to_owned();
    let node = Follower::start(&chain, &address, &server, &format!("archives: {archives:?}"));
    node.until("the liar is banned", |node| node.log().contains("the archive is banned"));
    let known = status(&node.running);
    let banned: Vec<&Value> =
        known["sync"]["peers"].as_array().unwrap().iter().filter(|peer| peer["banned"] == true).collect();
    assert_eq!(banned.len(), 1, "{known}");
    assert!(banned[0]["last_reason"].as_str().unwrap().contains("state chunk"), "{}", banned[0]);
    let text = node.log();
    assert!(text.contains("s3://bucket/liar") && !text.contains(SECRET), "{text}");
    let liar = banned[0]["id"].as_str().unwrap().to_owned();
    let file = node.chain.path("data/node.bans.json");
    node.until("the ban is written", |_| fs::read_to_string(&file).is_ok_and(|text| text.contains(&liar)));

    let node = node.again(&server);
    node.until("the liar is looked at again", |node| node.log().contains("the archive has a snapshot ahead"));
    fs::rename(&aside, &honest).unwrap();
    node.until("it follows", |node| node.head() > number + 3);
    let (since, text) = (status(&node.running), node.log());
    assert_eq!((&since["bans"][0]["id"], &since["bans"][0]["by"]), (&json!(liar), &json!("node")), "{since}");
    assert_eq!((&since["bans"][0]["name"], &since["bans_count"]), (&json!("s3://bucket/liar"), &json!(1)));
    assert!(since["bans"][0]["reason"].as_str().unwrap().contains("state chunk"), "{since}");
    assert!(!text.contains("the archive is banned"), "it was not asked again: {text}");
    printed(&["peers", "unban", &liar, "--config", &node.chain.config()], true);
    assert_eq!(status(&node.running)["bans_count"], 0);
    assert!(!fs::read_to_string(&file).unwrap().contains(&liar), "written before the command ends");
    let balance = node.running.rpc("eth_getBalance", json!([Address::repeat_byte(3), "latest"]));
    assert_eq!(balance["result"], "0x3", "what the third transaction sent");
    let Follower { chain: directory, running } = node;
    running.stop();
    validator.stop();
    // The node jumped to the snapshot. Of the batches before it, only the two that the validator kept exist, and the
    // backfill may fetch these.
    let stats = printed(&["db", "stats", "--config", &directory.config()], true);
    let body = stats.lines().find(|line| line.trim_start().starts_with("body")).unwrap();
    let oldest: u64 = body.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!((number - 1..=number + 1).contains(&oldest), "{oldest}: {stats}");
}

/// Goal: an archive that promises a snapshot but does not deliver it delays a new node by three deadlines; then its
/// peers supply the batches.
#[test]
fn a_silent_archive_is_done_without() {
    let runtime = Runtime::new().unwrap();
    let server = runtime.block_on(Server::start());
    let chain = left_by_a_node();
    let config = chain.config();
    printed(&["snapshot", "create", "--config", &config], true);
    let exported = done(&server, &["export", "--config", &config, "s3://bucket/net"]);
    let number: u64 = after(&exported, "batch ").trim_end_matches(',').parse().unwrap();
    server.faults.keeps_pieces.store(true, Ordering::SeqCst);

    // The validator has all batches but no snapshot. It joins once the node has started with the archive's.
    let address = format!("127.0.0.1:{}", free_ports(1));
    let key = keys::load(&chain.path("node.key")).unwrap().public();
    let sync = "archives: [\"s3://bucket/net\"], mode: snapshot, request_deadline_ms: 1000";
    let node = Follower::start(&chain, &format!("{key}@{address}"), &server, sync);
    node.until("the archive is a peer", |node| node.log().contains("the archive has a snapshot ahead"));
    chain.configure(&format!("network: {{ listen: \"{address}\" }}\n{NO_SNAPSHOTS} }}\n"));
    let validator = Running::start(&chain);
    node.until("it follows", |node| node.head() > number);
    // The log is written in the background.
    node.until("it says why", |node| node.log().contains("the snapshot arrives too slowly"));
    let text = node.log();
    assert!(!text.contains("the archive is banned"), "{text}");
    node.running.stop();
    validator.stop();
}
