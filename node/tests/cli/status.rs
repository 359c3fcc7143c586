//! What `slipstream status`, the metrics and `slipstream db alarm` tell operators of sync.

use std::{fs, time::Instant};

use serde_json::Value;
use slipstream_node::{genesis_file, keys};
use slipstream_storage::{StorageConfig, Store};
use slipstream_sync::work::{ALARM_RECORD, Alarm};
use slipstream_types::{BatchNumber, Digest, codec};

use crate::chain::{Chain, PATIENCE, Running, printed, wait};

fn table(node: &Running) -> String {
    printed(&["status", "--api", &format!("http://{}", node.api)], true)
}

/// Goal: an alarm is seen wherever somebody looks, through restarts, until an operator removes it.
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

/// Goal: a fullnode at the head says so in a line; one whose peer is gone says what is missing and when it looks again.
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
    assert!(text.contains("  waiting    no peer can be asked; tries again in "), "{text}");
    node.stop();
}
