//! Sync in `slipstream status`, the metrics and `slipstream db alarm`, as operators see it.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    process::{Command, Stdio},
    time::Instant,
};

use serde_json::{Value, json};
use slipstream_base::{genesis_file, keys};
use slipstream_storage::{StorageConfig, Store};
use slipstream_sync::work::{ALARM_RECORD, Alarm};
use slipstream_types::{BatchNumber, Digest, codec};

use crate::chain::{BINARY, Chain, PATIENCE, Running, closed_port, ended, printed, wait};

fn table(node: &Running) -> String {
    printed(&["status", "--api", &format!("http://{}", node.api)], true)
}

/// Goal: an alarm is visible everywhere, across restarts, until an operator removes it.
#[test]
fn an_alarm_is_loud_until_it_is_cleared() {
    let chain = Chain::new();
    Running::start(&chain).stop();
    let config = chain.config();
    let db = |args: &[&str]| printed(&[&["db", "alarm", "--config", &config], args].concat(), true);
    assert_eq!(db(&[]), "there is no alarm\n");
    let alarm = Alarm {
        number: BatchNumber::new(13),
        what: "execution gives another delta_digest".into(),
        certified: Digest([1; 32]),
        executed: Digest([2; 32]),
    };
    let store = Store::open(&StorageConfig::default(), &chain.path("data/db")).unwrap();
    store.put_record(ALARM_RECORD, &codec::encode("alarm", &alarm).unwrap()).unwrap();
    drop(store);

    let node = Running::start(&chain);
    let text = table(&node);
    let first = format!("ALARM        {alarm}\n");
    assert!(text.starts_with(&first), "{text}");
    assert!(text.contains("slipstream db alarm --clear"), "{text}");
    let metrics = node.http("GET /metrics", "");
    assert!(metrics.contains("\nslipstream_sync_alarm 1\n"), "{metrics}");
    node.stop();

    assert_eq!(db(&[]), format!("{alarm}\n"));
    assert_eq!(db(&["--clear"]), format!("{alarm}\nremoved\n"));
    assert_eq!(db(&[]), "there is no alarm\n");
    let node = Running::start(&chain);
    assert!(!table(&node).contains("ALARM"));
    let metrics = node.http("GET /metrics", "");
    assert!(metrics.contains("\nslipstream_sync_alarm 0\n"), "{metrics}");
    for stage in ["fetch", "check", "prepare", "execute", "commit", "restore", "audit"] {
        for name in ["busy_seconds_total", "bytes_total", "queue_bytes"] {
            let line = format!("\nslipstream_sync_stage_{name}{{stage=\"{stage}\"}} ");
            assert!(metrics.contains(&line), "{line} is not in {metrics}");
        }
    }
    node.stop();
}

/// Goal: a fullnode at the head says so in one line; one whose peer is gone names the missing peer and its next
/// attempt.
#[test]
fn a_fullnode_says_what_it_does_and_what_it_waits_for() {
    let chain = Chain::new();
    let validator = Running::start(&chain);
    let status: Value = serde_json::from_str(&validator.http("GET /v1/status", "")).unwrap();
    let peer = status["peer_address"].as_str().unwrap();

    let follower = Chain { dir: tempfile::tempdir().unwrap(), genesis: chain.genesis.clone() };
    keys::create(&follower.path("node.key")).unwrap();
    genesis_file::save(&follower.path("genesis.json"), &chain.genesis).unwrap();
    let text = format!(
        "role: fullnode\ngenesis: genesis.json\nnetwork: {{ listen: \"127.0.0.1:0\", peers: [\"{peer}\"] }}\napi: {{ listen: \
         \"127.0.0.1:0\" }}\n"
    );
    fs::write(follower.path("node.yaml"), text).unwrap();
    let node = Running::start(&follower);
    let shows = |what: &[&str]| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = table(&node);
            if what.iter().all(|what| text.contains(what)) {
                return text;
            }
            assert!(Instant::now() < deadline, "{what:?} is not in: {text}");
            wait();
        }
    };
    let text = shows(&["sync         idle (mode auto)", "executed), "]);
    assert!(!text.contains("  waiting "), "a node at the head waits for nothing: {text}");
    validator.stop();
    let text = shows(&["sync         waiting for peers (mode auto)"]);
    assert!(text.contains("  waiting    no peer is available; tries again in "), "{text}");
    // Why it is not ready, and when it will dial again.
    shows(&["health       NOT READY: no peer is connected", "; it tries again in "]);
    let (code, text) =
        ended(&["wait", "--for", "ready", "--timeout", "0s", "--api", &format!("http://{}", node.api)]);
    let expected = "waited 0 s in vain for ready: the node is not ready: no peer is connected";
    assert!(code == 75 && text.contains(expected), "{code}: {text}");
    node.stop();
}

/// Goal: the node's use of its machine and its progress agree in status and metrics, and are parsed back unchanged.
#[test]
fn status_and_metrics_say_what_a_node_takes() {
    let chain = Chain::new();
    chain.configure(
        "consensus: { empty_batch_interval_ms: 100 }\nstorage: { snapshot_interval_batches: 5 }\n",
    );
    let node = Running::start(&chain);
    let api = format!("http://{}", node.api);
    let text = printed(&["wait", "--for", "batch=12", "--timeout", "180s", "--api", &api], true);
    assert!(text.starts_with("batch=12: at the head head="), "{text}");
    for what in ["synced", "ready", "healthy"] {
        printed(&["wait", "--for", what, "--api", &api], true);
    }
    // The data directory is measured, and snapshots are created, in the background.
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        let status: Value = serde_json::from_str(&node.http("GET /v1/status", "")).unwrap();
        let has_snapshots = status["snapshots"].as_array().is_some_and(|snapshots| !snapshots.is_empty());
        if status["disk"]["used"].is_object() && has_snapshots {
            break status;
        }
        assert!(Instant::now() < deadline, "{status}");
        wait();
    };
    let read: slipstream_status::NodeStatus = serde_json::from_value(status.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), status, "nothing is lost on the way");
    assert_eq!(read.process.pid, node.child.id());
    assert!(read.process.memory_bytes > 1 << 20 && read.process.cpu_seconds > 0.0, "{:?}", read.process);
    let used = read.disk.unwrap().used.unwrap();
    assert!(used.database_bytes > 0 && used.journal_bytes > 0, "{used:?}");
    assert!(!read.snapshots.is_empty() && read.snapshots.iter().all(|number| number.get() % 5 == 0));
    assert_eq!(status["progress"]["eta"], json!({ "state": "done" }));
    let table = table(&node);
    for line in ["\nprocess      ", " of memory, ", "\n  used       ", "\nsnapshots    ", " MiB free"] {
        assert!(table.contains(line), "{line} is not in {table}");
    }
    let metrics = node.http("GET /metrics", "");
    let value = |name: &str| -> f64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is not in {metrics}")).parse().unwrap()
    };
    for name in [
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
        "process_open_fds",
        "process_start_time_seconds",
        "slipstream_storage_disk_free_bytes",
        "slipstream_storage_disk_used_bytes{part=\"database\"}",
        "slipstream_storage_snapshots",
        "slipstream_consensus_quorum",
        "slipstream_consensus_validators_heard",
    ] {
        assert!(value(name) > 0.0, "{name}");
    }
    assert_eq!(value("slipstream_progress_ratio"), 1.0);
    node.stop();
}

/// Goal: `status` and `wait` distinguish, in words, a silent node, a starting one, and something else.
#[test]
fn what_does_not_answer_is_told_apart() {
    let (_held, closed) = closed_port();
    let api = format!("http://{closed}");
    let (code, text) = ended(&["status", "--api", &api]);
    let nobody =
        format!("nothing listens at {api}: the node is not running, or its api.listen is another address");
    assert!(code == 75 && text.contains(&nobody), "{code}: {text}");
    let (code, text) = ended(&["wait", "--for", "batch=3", "--timeout", "300ms", "--api", &api]);
    assert!(
        code == 75 && text.contains(&format!("waited 0.3 s in vain for batch=3: {nobody}")),
        "{code}: {text}"
    );
    let (code, text) = ended(&["status", "--api", "localhost:8545"]);
    assert!(code == 2 && text.contains("the URL of a node's API is http://HOST:PORT"), "{code}: {text}");

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let api = format!("http://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let answers = [
            "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 28\r\n\r\nstarting: opening the store\n",
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
            "SSH-2.0-OpenSSH_9.2\r\n",
        ];
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 4096];
            let _ = stream.read(&mut asked).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    let told = |expected: (i32, &str)| {
        let (code, text) = ended(&["status", "--api", &api]);
        assert!(code == expected.0 && text.contains(expected.1), "{expected:?}: {code}: {text}");
    };
    told((75, "is starting: opening the store; try again later"));
    told((1, "/v1/status answers `HTTP/1.1 404 Not Found`"));
    told((1, "is not a node: it does not speak HTTP"));
    server.join().unwrap();
}

/// Goal: a piped status adds a line or a JSON document per reading, and continues across a stop of the node.
#[test]
fn a_watched_status_goes_on() {
    let chain = Chain::new();
    let node = Running::start(&chain);
    let watch = |more: &[&str]| {
        let api = format!("http://{}", node.api);
        let args = [&["status", "--api", &api, "--watch", "1"], more].concat();
        let child =
            Command::new(BINARY).args(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        Watched(child)
    };
    let (mut lines, mut documents) = (watch(&[]), watch(&["--json"]));
    let mut lines_read = BufReader::new(lines.0.stdout.take().unwrap()).lines();
    let documents_read = BufReader::new(documents.0.stdout.take().unwrap()).lines();
    for document in documents_read.take(2) {
        let status: Value = serde_json::from_str(&document.unwrap()).unwrap();
        assert_eq!(status["chain_id"], 7357);
    }
    let mut line = || lines_read.next().unwrap().unwrap();
    for _ in 0..2 {
        let line = line();
        assert!(line.contains(" head=") && line.contains("progress=\"") && !line.contains('\x1b'), "{line}");
    }
    node.stop();
    assert!((0..60).any(|_| line().starts_with("nothing listens at http://")));
}

/// A process that is killed when the test ends.
struct Watched(std::process::Child);

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
