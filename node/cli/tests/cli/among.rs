//! A node among others, as its operator sees it: while all is well, while the chain is halted, and while the node is
//! alone.

use std::{fs, net::UdpSocket, time::Instant};

use serde_json::{Value, json};
use slipstream_base::{genesis_file, keys};

use crate::chain::{Chain, PATIENCE, Running, printed, wait};

/// A fullnode of the chain with these peers and further lines of configuration, and its directory.
pub(crate) fn fullnode(chain: &Chain, peers: &[&str], rest: &str) -> (Chain, Running) {
    let home = Chain { dir: tempfile::tempdir().unwrap(), genesis: chain.genesis.clone() };
    keys::create(&home.path("node.key")).unwrap();
    genesis_file::save(&home.path("genesis.json"), &chain.genesis).unwrap();
    let network =
        format!("{{ listen: \"127.0.0.1:0\", handshake_timeout_ms: 3000, peers: {} }}", json!(peers));
    let text = format!(
        "role: fullnode\ngenesis: genesis.json\nnetwork: {network}\napi: {{ listen: \"127.0.0.1:0\" }}\n{rest}"
    );
    fs::write(home.path("node.yaml"), text).unwrap();
    let node = Running::start(&home);
    (home, node)
}

fn json_of(node: &Running, path: &str) -> Value {
    serde_json::from_str(&node.http(&format!("GET {path}"), "")).unwrap()
}

pub(crate) fn peer_address(node: &Running) -> String {
    json_of(node, "/v1/status")["peer_address"].as_str().unwrap().to_owned()
}

fn until<T>(what: &str, home: &Chain, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not happen; log: {}", log(home));
        wait();
    }
}

fn log(home: &Chain) -> String {
    fs::read_to_string(home.path("log")).unwrap()
}

/// Waits until `/health` reports this reason, with the matching status code.
fn health(node: &Running, home: &Chain, reason: Option<&str>) -> Value {
    until(&format!("{reason:?}"), home, || {
        let (head, body) = node.answer("GET /health", "");
        let health: Value = serde_json::from_str(&body).unwrap();
        let code = if health["ready"] == true { " 200 " } else { " 503 " };
        assert!(head.contains(code), "{head}: {body}");
        (health["blocker"]["reason"].as_str() == reason).then_some(health)
    })
}

const CONSENSUS: &str = "consensus: { empty_batch_interval_ms: 100 }\n";

/// A node with four configured peers, of which two can be reached: the chain's only validator, and a fullnode.
struct Among {
    chain: Chain,
    validator: Running,
    proposer: String,
    relay_home: Chain,
    relay: Running,
    /// The fullnode's address, with another key.
    wrong: String,
    place: String,
    /// An address where nobody answers, which `_nobody` ensures.
    silent: String,
    _nobody: UdpSocket,
    home: Chain,
    node: Running,
}

impl Among {
    fn new() -> Among {
        let chain = Chain::new();
        chain.configure(CONSENSUS);
        let validator = Running::start(&chain);
        let proposer = peer_address(&validator);
        let (relay_home, relay) = fullnode(&chain, &[&proposer], "");
        let beside = peer_address(&relay);
        let place = beside.split_once('@').unwrap().1.to_owned();
        let nobody = UdpSocket::bind("127.0.0.1:0").unwrap();
        let key = |n: u8| slipstream_types::SecretKey::from_seed([n; 32]).public();
        let wrong = format!("{}@{place}", key(3));
        let silent = format!("{}@{}", key(4), nobody.local_addr().unwrap());
        let peers = [&*proposer, &*beside, &*wrong, &*silent];
        let (home, node) = fullnode(&chain, &peers, "sync: { head_age_max_s: 8 }\n");
        Among {
            chain,
            validator,
            proposer,
            relay_home,
            relay,
            wrong,
            place,
            silent,
            _nobody: nobody,
            home,
            node,
        }
    }
}

/// The number of warnings with these words in a node's log.
fn warned(home: &Chain, what: &str) -> usize {
    log(home).lines().filter(|line| line.contains(" WARN ") && line.contains(what)).count()
}

/// Goal: while the chain advances, a node is quiet and ready. When its proposer stops, every place that an operator
/// looks at says so and why, the log only once. The same holds for the recovery. Unreachable configured peers are named
/// with the reason.
#[test]
fn what_is_wrong_is_named_everywhere_and_a_healthy_node_is_quiet() {
    let among = Among::new();
    let (home, node) = (&among.home, &among.node);
    let Among { proposer, wrong, place, silent, .. } = &among;
    let states = || -> Vec<Value> {
        let status = json_of(node, "/v1/status");
        status["configured_peers"].as_array().unwrap().iter().map(|peer| peer["state"].clone()).collect()
    };
    let expected = ["connected", "connected", "wrong key", "unreachable"];
    until("the peers' states", home, || (states() == expected).then_some(()));
    let api = format!("http://{}", node.api);
    let parts = [
        "health       ready\n".to_owned(),
        format!("{wrong} wrong key for"),
        format!("the node at {place} does not have the key"),
        "no answer within 3s".to_owned(),
    ];
    // Each reading is a different moment: on a busy machine a dial may or may not end in time.
    until(&format!("{parts:?} in the status"), home, || {
        let text = printed(&["status", "--api", &api], true);
        parts.iter().all(|part| text.contains(part)).then_some(())
    });
    let wanted = [
        "slipstream_network_configured_peers{state=\"wrong key\"} 1".to_owned(),
        format!("slipstream_network_configured_peer_up{{peer=\"{silent}\"}} 0"),
        format!("slipstream_network_configured_peer_up{{peer=\"{proposer}\"}} 1"),
        "slipstream_ready 1".to_owned(),
        "slipstream_sync_eta_seconds 0".to_owned(),
    ];
    // A batch may be in flight at any moment.
    until("the metrics", home, || {
        let metrics = node.http("GET /metrics", "");
        wanted.iter().all(|line| metrics.lines().any(|found| found == line)).then_some(())
    });

    // A healthy node is quiet, however many batches it commits.
    let head = || health(node, home, None)["head"].as_u64().unwrap();
    for peer in [wrong, silent] {
        until("the warnings about peers", home, || {
            let warns = |line: &str| line.contains("cannot reach a configured peer") && line.contains(peer);
            log(home).lines().any(warns).then_some(())
        });
    }
    let (began, first, before) = (Instant::now(), head(), log(home).lines().count());
    until("30 batches", home, || (head() >= first + 30).then_some(()));
    let lines = log(home).lines().skip(before).map(str::to_owned).collect::<Vec<_>>();
    let allowed = 3 + began.elapsed().as_secs() / 5;
    assert!(lines.len() as u64 <= allowed, "{allowed} lines are enough: {lines:#?}");
    until("the calm line", home, || log(home).contains(": at the head head=").then_some(()));

    // The proposer stops; another peer stays. A machine that paused for long may have logged the warning before.
    let halts = warned(home, "reason=\"halted\"");
    among.validator.stop();
    let halted = health(node, home, Some("halted"));
    let text = halted["blocker"]["text"].as_str().unwrap();
    let expected = format!("the newest certified batch that its only peer has is {}", halted["head"]);
    assert!(text.starts_with("the chain has made no batch for ") && text.ends_with(&expected), "{text}");
    assert_eq!(node.rpc("eth_syncing", json!([]))["result"], false, "there is nothing to sync");
    assert_eq!(node.http("GET /health/live", ""), "ok\n");
    let table = printed(&["status", "--api", &api], true);
    assert!(table.contains("health       NOT READY: the chain has made no batch for "), "{table}");
    let metrics = node.http("GET /metrics", "");
    for line in
        ["slipstream_ready 0", "slipstream_blocker{reason=\"halted\"} 1", "slipstream_sync_eta_seconds NaN"]
    {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in: {metrics}");
    }
    let age = metrics.lines().find_map(|line| line.strip_prefix("slipstream_head_age_seconds ")).unwrap();
    assert!(age.parse::<f64>().unwrap() > 8.0, "{age}");
    until("the warning", home, || (warned(home, "reason=\"halted\"") == halts + 1).then_some(()));
    let ends = warned(home, "the chain makes batches again");

    // The proposer returns at another port, and dials.
    let peers = json!([peer_address(&among.relay), peer_address(node)]);
    among.chain.configure(&format!("network: {{ listen: \"127.0.0.1:0\", peers: {peers} }}\n{CONSENSUS}"));
    let validator = Running::start(&among.chain);
    health(node, home, None);
    until("the end of the warning", home, || {
        (warned(home, "the chain makes batches again") == ends + 1).then_some(())
    });
    assert_eq!(warned(home, "reason=\"halted\""), halts + 1, "{}", log(home));

    validator.stop();
    among.node.stop();
}

/// Goal: a node that lost its peers differs from one whose chain is halted. It says so, and that it cannot know the
/// heads of others.
#[test]
fn who_lost_all_peers_is_alone_and_cannot_know_what_others_have() {
    let among = Among::new();
    let (home, node) = (&among.home, &among.node);
    let head = || health(node, home, None)["head"].as_u64().unwrap();
    until("batches", home, || (head() > 5).then_some(()));
    // All peers leave. If one was late at first, the node may have warned before.
    let warnings = warned(home, "reason=\"no_peers\"");
    among.validator.stop();
    among.relay.stop();
    drop(among.relay_home);
    let alone = health(node, home, Some("no_peers"));
    let text = alone["blocker"]["text"].as_str().unwrap();
    assert!(text.starts_with("no peer is connected: all 4 configured ones are unreachable ("), "{text}");
    until("the warning", home, || (warned(home, "reason=\"no_peers\"") == warnings + 1).then_some(()));
    let syncing = || node.rpc("eth_syncing", json!([]))["result"].clone();
    until("that it cannot know", home, || syncing().is_object().then_some(()));
    // Nothing arrived in the last ten seconds.
    until("the rate", home, || {
        (health(node, home, Some("no_peers"))["batches_per_second"] == 0.0).then_some(())
    });
    among.node.stop();
}
