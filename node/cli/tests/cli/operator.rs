//! An operator's commands to a running node, and senders that it refuses.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    process::{Command, Stdio},
};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    among::{fullnode, peer_address},
    chain::{BINARY, Chain, Running, ended, printed},
    process::until,
};

fn status(node: &Running) -> Value {
    serde_json::from_str(&node.http("GET /v1/status", "")).unwrap()
}

pub(crate) fn has_peer(node: &Running, key: &str) -> bool {
    status(node)["peers"].as_array().unwrap().iter().any(|peer| peer["id"] == *key)
}

/// Sends an order with a header of the test's choice.
fn order(node: &Running, request: &str, header: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(&node.api).unwrap();
    let length = body.len();
    write!(
        stream,
        "{request} HTTP/1.0\r\n{header}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn token(chain: &Chain) -> String {
    fs::read_to_string(chain.path("data/operator.token")).unwrap().trim().to_owned()
}

/// Goal: the filter changes while the node runs, and the file gets the lines. After the file is moved away, logging
/// continues under its name.
#[test]
fn the_log_of_a_running_node_is_changed_and_kept() {
    let chain = Chain::new();
    chain.configure("log: { filter: \"info,slipstream_sync=info\", file: { path: node.log } }\n");
    let node = Running::start(&chain);
    let config = chain.config();
    let filter =
        |args: &[&str], success| printed(&[&["log", "filter", "--config", &config], args].concat(), success);
    assert_eq!(filter(&[], true).trim(), "info,slipstream_sync=info");
    let text = filter(&["info,=x="], false);
    assert!(text.contains("at character 6: `=x=` is not a log filter"), "{text}");
    assert!(filter(&[&"a".repeat(5_000)], false).contains("more than the limit of 4096"));
    let lines = |name: &str| fs::read_to_string(chain.path(name)).unwrap_or_default();
    until("lines at the first level", || lines("node.log").contains(" INFO ").then_some(()));
    assert!(!lines("node.log").contains(" DEBUG "));
    let told = filter(&["info,slipstream_consensus=debug,slipstream_node=trace"], true);
    assert!(told.contains("until the node stops; it was info,slipstream_sync=info"), "{told}");
    until("lines at the new level", || (lines("node.log").contains(" DEBUG ")).then_some(()));
    assert_eq!(filter(&[], true).trim(), "info,slipstream_consensus=debug,slipstream_node=trace");
    filter(&["info"], true);

    fs::rename(chain.path("node.log"), chain.path("moved.log")).unwrap();
    node.signal(Signal::HUP);
    until("the file is there again", || lines("node.log").contains("reopened the log file").then_some(()));
    until("the files have what standard error has", || {
        let told = lines("log");
        let kept = [lines("moved.log"), lines("node.log")].concat();
        told.lines().all(|line| kept.contains(line)).then_some(())
    });
    assert_eq!(fs::metadata(chain.path("node.log")).unwrap().mode() & 0o777, 0o640);
    node.stop();
    assert!(lines("node.log").contains("stopped"));

    chain.configure("log: { file: { path: missing/node.log } }\n");
    let (code, text) = ended(&["run", "--config", &config]);
    assert!(
        code == 78 && text.contains("missing/node.log") && text.contains("log.file.path"),
        "{code}: {text}"
    );
}

/// Goal: a node survives a reload by systemd, even without a log file.
#[test]
fn a_reload_ends_no_service() {
    let chain = Chain::new();
    let script = "SYSTEMD_EXEC_PID=$$ exec \"$0\" run --config \"$1\"";
    let child = Command::new("sh")
        .args(["-c", script, BINARY, &chain.config()])
        .stdout(Stdio::piped())
        .stderr(Stdio::from(fs::File::create(chain.path("log")).unwrap()))
        .spawn()
        .unwrap();
    let node = Running::of(child, &chain.path("log"));
    node.signal(Signal::HUP);
    let lines = || fs::read_to_string(chain.path("log")).unwrap();
    until("the node says so", || lines().contains("there is no log file to reopen").then_some(()));
    node.stop();
}

/// Goal: changing a node requires the token of its data directory, and the token exists only there.
#[test]
fn only_who_has_the_token_is_obeyed() {
    let chain = Chain::new();
    chain.configure("api: { listen: \"0.0.0.0:0\", cors: true }\n");
    let mut node = Running::start(&chain);
    node.api = node.api.replace("0.0.0.0", "127.0.0.1");
    let token = token(&chain);
    assert_eq!(fs::metadata(chain.path("data/operator.token")).unwrap().mode() & 0o777, 0o600);
    let set = |header: &str| order(&node, "PUT /v1/operator/log/filter", header, "{\"filter\":\"debug\"}");
    let wrong = format!("Authorization: Bearer {}\r\n", "0".repeat(64));
    let basic = format!("Authorization: Basic {token}\r\n");
    let twice = format!("Authorization: Bearer {token}\r\n").repeat(2);
    for header in ["", &wrong, &basic, &twice] {
        let answer = set(header);
        assert!(answer.starts_with("HTTP/1.0 401 ") || answer.starts_with("HTTP/1.1 401 "), "{answer}");
        assert!(answer.contains("the file operator.token in the node's data directory"), "{answer}");
        assert!(
            !answer.contains(chain.dir.path().to_str().unwrap()),
            "where that is is nobody's business: {answer}"
        );
        assert!(!answer.contains(&token) && !answer.to_lowercase().contains("access-control"), "{answer}");
    }
    for request in
        ["GET /v1/operator/log/filter", "DELETE /v1/operator/bans/x", "GET /v1/operator/peers/x/ping"]
    {
        assert!(order(&node, request, "", "").contains(" 401 "), "{request}");
    }
    let metrics = node.http("GET /metrics", "");
    assert!(metrics.contains("slipstream_api_refused_total{missing=\"operator token\"} 7"), "{metrics}");

    // With the configuration of a node that listens on all addresses, and with a copy of the token.
    let config = chain.config();
    assert_eq!(printed(&["log", "filter", "--config", &config], true).trim(), "info");
    let url = format!("http://{}", node.api);
    let copy = chain.path("copy");
    fs::write(&copy, &token).unwrap();
    let by_copy =
        |success| printed(&["log", "filter", "--api", &url, "--token-file", copy.to_str().unwrap()], success);
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(by_copy(false).contains("may be read by others (mode 644)"));
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(by_copy(true).trim(), "info");
    fs::write(&copy, "0".repeat(64)).unwrap();
    assert!(by_copy(false).contains("this is not the operator token of this node"));
    let (code, text) = ended(&["log", "filter", "--api", &url]);
    assert!(code == 2 && text.contains("--token-file"), "{code}: {text}");

    let log = || fs::read_to_string(chain.path("log")).unwrap();
    let tried = "a caller without the operator token tried to operate this node";
    // The log is written in the background.
    until("the log tells of strangers", || log().contains(tried).then_some(()));
    let everything = [node.http("GET /v1/status", ""), log()].concat();
    assert!(!everything.contains(&token));
    node.stop();
    let again = Running::start(&chain);
    assert_eq!(self::token(&chain), token, "it stays over a restart");
    again.stop();
}

/// Goal: a foreign process at the node's address gets no token.
#[test]
fn the_token_goes_to_the_nodes_own_process_alone() {
    let chain = Chain::new();
    let thief = TcpListener::bind("127.0.0.1:0").unwrap();
    thief.set_nonblocking(true).unwrap();
    let node = Running::start(&chain);
    let listen = format!("api: {{ listen: \"{}\" }}\n", thief.local_addr().unwrap());
    chain.configure(&listen);
    let (code, text) = ended(&["log", "filter", "--config", &chain.config()]);
    assert!(code == 78 && text.contains("restart it with this configuration"), "{code}: {text}");
    node.stop();
    let (code, text) = ended(&["log", "filter", "--config", &chain.config()]);
    assert!(code == 75 && text.contains("no node runs on the data directory"), "{code}: {text}");
    assert!(thief.accept().is_err(), "nobody came");
}

/// Goal: an operator sees and changes the peers of a running node, and those of the configuration stay.
#[test]
fn peers_are_listed_added_banned_and_asked() {
    let chain = Chain::new();
    let validator = Running::start(&chain);
    let (other, fullnode) = fullnode(&chain, &[&peer_address(&validator)], "");
    let (here, there) = (chain.config(), other.config());
    let (own, address) = (peer_address(&validator), peer_address(&fullnode));
    let (own, key) = (own.split_once('@').unwrap().0, address.split_once('@').unwrap().0);
    until("connected", || has_peer(&validator, key).then_some(()));
    let peers = |args: &[&str], success| printed(&[&["peers"], args, &["--config", &here]].concat(), success);
    assert!(peers(&["list"], true).contains(key));
    let pongs = peers(&["ping", key, "--count", "2"], true);
    assert!(pongs.matches(" ms, ").count() == 2 && pongs.contains("round trip"), "{pongs}");

    let told = peers(&["ban", key, "--for", "90m", "--why", "too loud"], true);
    assert!(
        told.contains(&format!("banned {key} for 1h 29m "))
            && told.contains("by this node's operator: too loud"),
        "{told}"
    );
    until("the connection ends", || (!has_peer(&validator, key)).then_some(()));
    let listed = peers(&["list"], true);
    assert!(listed.contains("by this node's operator: too loud"), "{listed}");
    let json: Value = serde_json::from_str(&peers(&["list", "--json"], true)).unwrap();
    assert_eq!((&json["bans"][0]["by"], &json["bans_count"]), (&"operator".into(), &1.into()), "{json}");
    assert!(peers(&["ping", key], false).contains("is banned by this node"));
    assert!(peers(&["unban", key], true).contains("may connect again"));
    assert!(peers(&["unban", key], false).contains("is not banned"));
    until("it comes back", || has_peer(&validator, key).then_some(()));

    assert!(peers(&["add", &address], true).contains("even after a restart"));
    assert!(
        peers(&["list"], true).contains(&format!("{address} connected (added)")),
        "{}",
        peers(&["list"], true)
    );
    assert!(peers(&["remove", key], true).contains("no longer dialled or kept"));
    assert!(peers(&["remove", key], false).contains("does not dial"));
    let nobody = format!("{key}@0.0.0.0:7400");
    assert!(peers(&["add", &nobody], false).contains("this node cannot dial"));
    let elsewhere = format!("{own}@127.0.0.1:1");
    let text = printed(&["peers", "add", &elsewhere, "--config", &there], false);
    assert!(text.contains("is in network.peers"), "{text}");
    for (args, said) in [(["--for", "2years"], "from a second to a year"), (["--for", "soon"], "--for")] {
        assert!(peers(&[&["ban", key][..], &args].concat(), false).contains(said));
    }
    fullnode.stop();
    let gone = peers(&["ping", key], false);
    assert!(gone.contains(&format!("no connection to peer {key}")) || gone.contains("ended"), "{gone}");
    validator.stop();
    assert!(!Path::new(&chain.path("data/operator.new")).exists());
}

/// Goal: orders about peers survive a restart, even those about configured peers. A damaged file loses only the orders.
#[test]
fn orders_on_peers_hold_over_a_restart() {
    let chain = Chain::new();
    let validator = Running::start(&chain);
    let address = peer_address(&validator);
    let own = address.split_once('@').unwrap().0;
    let names =
        format!("{{ listen: \"127.0.0.1:0\", peers: [\"{address}\"], names: [\"{own}=the validator\"] }}");
    let (other, node) = fullnode(&chain, &[&address], "");
    let config = other.config();
    let written = fs::read_to_string(&config).unwrap();
    let peers =
        |args: &[&str], success| printed(&[&["peers"], args, &["--config", &config]].concat(), success);
    let list = || -> Value { serde_json::from_str(&peers(&["list", "--json"], true)).unwrap() };
    until("connected", || has_peer(&node, own).then_some(()));
    assert_eq!(list()["peers"][0]["from"], "config");
    let (added, stranger) = (format!("{}@127.0.0.1:1", "12".repeat(32)), "34".repeat(32));
    let banned = peers(&["ban", own, "--why", "maintenance"], true);
    assert!(banned.contains("until it is unbanned, by this node's operator: maintenance"), "{banned}");
    peers(&["add", &added], true);
    peers(&["ban", &stranger, "--for", "2h", "--why", "too loud"], true);
    let before = list();
    node.stop();

    fs::write(&config, named(&written, &names)).unwrap();
    let node = Running::start(&other);
    // The log is written in the background.
    let logged =
        |node: &Running, words: &str| fs::read_to_string(&node.log).unwrap().contains(words).then_some(());
    until("the log tells of the orders", || {
        logged(&node, "orders about peers from before this start are still in force")
    });
    let after = list();
    for (at, value) in [
        ("/bans/0/id", own.into()),
        ("/bans/0/name", "the validator".into()),
        ("/bans/0/reason", "maintenance".into()),
        ("/bans/0/until_ms", Value::Null),
        ("/bans/1/id", stranger.as_str().into()),
        ("/bans/1/reason", "too loud".into()),
        ("/bans_count", 2.into()),
        ("/configured_peers/0/state", "banned".into()),
        ("/configured_peers/0/added", false.into()),
        ("/configured_peers/1/peer", added.as_str().into()),
        ("/configured_peers/1/added", true.into()),
    ] {
        assert_eq!(after.pointer(at), Some(&value), "{at}: {after}");
    }
    let until_ms = |list: &Value| list["bans"][1]["until_ms"].as_u64().unwrap();
    assert!(until_ms(&before).abs_diff(until_ms(&after)) < 60_000, "{before} {after}");
    assert!(after["peers"].as_array().unwrap().is_empty(), "{after}");
    let text = peers(&["list"], true);
    assert!(text.contains(&format!("the validator {own} until it is unbanned")), "{text}");
    assert!(text.contains(&format!("{added} ")) && text.contains("(added)"), "{text}");
    peers(&["unban", own], true);
    until("it comes back", || has_peer(&node, own).then_some(()));
    assert!(peers(&["remove", own], true).contains("no longer dialled or kept"));
    node.stop();

    let node = Running::start(&other);
    let text = peers(&["list"], true);
    assert!(text.contains(&format!("removed      the validator {address} is in network.peers")), "{text}");
    assert_eq!(list()["bans_count"], 1, "{text}");
    node.stop();

    let data = other.path("data");
    fs::write(data.join("operator.peers.json"), "{").unwrap();
    let node = Running::start(&other);
    until("it follows again", || has_peer(&node, own).then_some(()));
    assert_eq!(list()["bans_count"], 0);
    assert_eq!(fs::read_to_string(data.join("operator.peers.damaged")).unwrap(), "{");
    for words in ["operator.peers.damaged", "and repeat them"] {
        until("the log tells of the damage", || logged(&node, words));
    }
    node.stop();
    validator.stop();
}

/// A configuration whose section `network` is replaced.
fn named(config: &str, network: &str) -> String {
    let other = |line: &str| match line.starts_with("network:") {
        true => format!("network: {network}\n"),
        false => format!("{line}\n"),
    };
    config.lines().map(other).collect()
}
