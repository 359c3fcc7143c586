//! A status for tests of the code that displays it.

use serde_json::{Value, json};

use crate::{document::NodeStatus, progress::Progress};

/// The status of a healthy fullnode with `changes` merged in. Its progress is derived from health and sync.
pub fn status(changes: Value) -> NodeStatus {
    let mut document = healthy();
    merge(&mut document, changes);
    let mut status: NodeStatus = serde_json::from_value(document).expect("a whole status");
    status.progress = Progress::of(&status.sync, &status.health);
    status
}

/// Merges objects, and replaces everything else.
fn merge(document: &mut Value, changes: Value) {
    match (document, changes) {
        (Value::Object(document), Value::Object(changes)) => {
            for (name, value) in changes {
                merge(document.entry(name).or_insert(Value::Null), value);
            }
        }
        (document, changes) => *document = changes,
    }
}

/// The public key, and so the peer id, of the validator with this seed.
pub fn key(seed: u8) -> String {
    slipstream_types::SecretKey::from_seed([seed; 32]).public().to_string()
}

fn healthy() -> Value {
    let digest = |byte: &str| format!("0x{}", byte.repeat(32));
    json!({
        "client": "slipstream/0.1.0",
        "chain_id": 7357,
        "genesis": digest("01"),
        "role": "fullnode",
        "peer_id": key(1),
        "network_address": "192.0.2.1:7400",
        "peer_address": format!("{}@192.0.2.1:7400", key(1)),
        "health": {
            "ready": true, "state": "at_head", "blocker": null, "syncing": false, "head": 300, "head_age_seconds": 0.4,
            "behind_batches": 0, "peers_connected": 1, "peers_configured": 1, "batches_per_second": 10.0,
            "transactions_per_second": 20.0, "eta_seconds": 0.0,
        },
        "progress": {
            "phase": "idle", "unit": "batches", "done": 300, "total": 300, "percent": 100.0, "per_second": 10.0,
            "eta": { "state": "done" },
        },
        "head": { "number": 300, "digest": digest("02"), "state_root": digest("03"), "timestamp_ms": 1_700_000_000_000_u64 },
        "waypoint": format!("300:{}", digest("04")),
        "epoch": { "number": 3, "validators": [key(2)], "failures": { "any": 0, "commission": 0 }, "quorum": 1, "contract": null },
        "rules": { "id": "0000000000000000", "fork": "prague", "unknown": [] },
        "sync": sync(),
        "mesh": {
            "bytes_sent": 0, "parts": {}, "bytes_useless": 0, "delivered": 0, "incomplete": 0, "pulls": 0, "muted": 0, "banned": 0,
            "liars": 0, "refused": 0, "codecs": {}, "payloads": [],
        },
        "serve": { "answers": 0, "bytes": 0, "cache_hits": 0, "cache_misses": 0, "cache_bytes": 0, "refused_busy": 0 },
        "hot_cache": { "rows": 0, "codes": 0, "bytes": 0, "hits": 0, "misses": 0 },
        "stalls": { "stalls": 0, "seconds": 0.0 },
        "pool": { "pending": 0, "queued": 0, "bytes": 0, "tip_min_wei": 0 },
        "process": process(),
        "disk": disk(),
        "snapshots": [200, 100],
        "peers": [{
            "id": key(2), "address": "192.0.2.2:7400", "bytes_sent": 1, "bytes_received": 1, "rtt_ms": 0.25, "connected_seconds": 300,
        }],
        "configured_peers": [],
        "bans": [],
        "bans_count": 0,
        "shared_keys": [],
    })
}

fn process() -> Value {
    json!({
        "pid": 4242, "started_ms": 1_700_000_000_000_u64, "uptime_seconds": 10_920, "memory_bytes": 61 << 20,
        "virtual_bytes": 900 << 20, "cpu_seconds": 12.5, "threads": 30, "open_files": 42, "open_files_max": 1_048_576,
    })
}

fn disk() -> Value {
    let used = json!({
        "total_bytes": 1_207_959_552, "database_bytes": 1_073_741_824, "snapshots_bytes": 130_023_424, "journal_bytes": 4_194_304,
        "other_bytes": 0,
    });
    json!({ "free_bytes": 3_000_000_000_u64, "min_bytes": 512 << 20, "free_inodes": 77_000, "used": used })
}

/// The sync status of a node at the head with nothing to do.
fn sync() -> Value {
    json!({
        "mode": "auto", "phase": "idle", "reason": "no peer has a newer batch",
        "waiting": { "reason": "no peer has a newer batch", "retry_ms": 500 }, "bottleneck": null,
        "batches_per_second": 10.0, "transactions_per_second": 20.0, "eta_seconds": null, "head": 300, "target": 300,
        "plan": { "batches": 0, "transactions": 0, "gas": 0, "ways": [], "ranges": [], "if_empty": null },
        "waypoint": null, "batches": 100, "batches_replayed": 100, "batches_announced": 90, "transactions": 400,
        "bytes_received": 1024, "active_seconds": 0.0, "hint_recall": null, "hint_precision": null,
        "hints": { "named": 0, "used": 0, "reads": 0, "values_wrong": 0 },
        "foretold": { "named": 0, "used": 0, "reads": 0, "values_wrong": 0 }, "snapshot": null, "stages": [], "requests": 0,
        "hedges": 0, "audited": 0, "audits_skipped": 0, "alarm": null, "repair": null, "peers": [],
    })
}

/// Goal: a parsed document equals the serialised one, in every field.
#[test]
fn what_is_written_is_read_back() {
    let validator = json!({ "consensus": consensus() });
    for changes in [json!({}), validator] {
        let status = status(changes);
        let text = serde_json::to_string(&status).unwrap();
        let back: NodeStatus = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&back).unwrap(), text);
    }
}

/// The status of consensus at validator 1 of 4.
pub fn consensus() -> Value {
    json!({
        "index": 1, "validators": 4, "quorum": 3, "view": 5, "changing": false, "primary": 1, "is_primary": true,
        "complains": true, "decided": 7, "voted": 8, "voting": { "number": 8, "prepares": 3, "commits": 2 }, "divergences": 1,
        "refused": 5, "evidence": [{ "author": 2, "kind": "orders", "number": 6, "view": 2 }],
        "peers": [
            { "index": 0, "key": key(10), "heard_ms_ago": 400 },
            { "index": 2, "key": key(12), "heard_ms_ago": 95_000, "view": 4, "changing": false, "complains": true, "decided": 6, "ordered": 6,
                "said_ms_ago": 100_000 },
            { "index": 3, "key": key(13) },
        ],
    })
}
