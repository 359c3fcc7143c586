//! Goal: a status sets every declared metric, except those that are counted elsewhere.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    fixture::{consensus, key, status},
    metrics::Metrics,
    sample::sample_status,
};

/// The metrics that no status has.
const ELSEWHERE: &[&str] = &[
    // `StatusSource::sample` has these from the store, the log, the network, the forwarder and the pool.
    "slipstream_storage_keys_read_total",
    "slipstream_storage_blocks_read_total",
    "slipstream_storage_syncs_total",
    "slipstream_storage_written_bytes_total",
    "slipstream_log_lines_lost_total",
    "slipstream_network_turned_away_total",
    "slipstream_pool_journal_bytes",
    "slipstream_pool_refused_total",
    // The API counts these itself.
    "slipstream_ws_sockets",
    "slipstream_ws_closed_total",
    "slipstream_ws_subscriptions",
    "slipstream_ws_notifications_total",
    "slipstream_api_refused_total",
    "slipstream_rpc_requests_total",
    "slipstream_rpc_seconds",
];

/// The metrics that have a series with another value than 0.
fn moved(metrics: &Metrics) -> BTreeSet<String> {
    let text = metrics.encode().unwrap();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let is_moved = |line: &&str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() != 0.0;
    samples.filter(is_moved).map(|line| line.split(['{', ' ']).next().unwrap().to_owned()).collect()
}

/// Changes of the healthy status after which no number is 0, and nothing is absent. No node is ever in all these states.
fn busy() -> Value {
    let mut consensus = consensus();
    consensus["unwanted"] = json!(1);
    json!({
        "health": {
            "eta_seconds": 5.0, "blocker": { "reason": "behind", "text": "it is behind", "alert": false, "retry_ms": null },
            "silence": { "state": "listening", "text": "it listens", "way_out": "wait" },
        },
        "rules": { "unknown": ["osaka at batch 900"] },
        "sync": sync(),
        "mesh": {
            "bytes_sent": 1, "bytes_useless": 1, "delivered": 1, "incomplete": 1, "pulls": 1, "muted": 1, "banned": 1, "liars": 1,
            "refused": 1, "parts": { "body": { "sent": 1, "useful": 1, "duplicate": 1, "useless": 1 } },
            "codecs": { "rlnc": { "decoded": [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "decoded_s": 0.004 } },
        },
        "serve": { "answers": 1, "bytes": 1, "cache_hits": 1, "cache_misses": 1, "cache_bytes": 1, "refused_busy": 1 },
        "consensus": consensus,
        "hot_cache": { "bytes": 1, "hits": 1, "misses": 1 },
        "stalls": { "stalls": 1, "seconds": 0.5 },
        "pool": { "pending": 1, "queued": 1, "bytes": 1, "tip_min_wei": 1 },
        "speed": {
            "gas_per_second": { "plain": 1_000_000_000 }, "slowest": "plain", "gas_limit": 30_000_000, "batch_seconds_max": 0.03,
            "view_seconds": 2.0,
        },
        "configured_peers": [{
            "peer": format!("{}@192.0.2.2:7400", key(2)), "state": "connected", "seconds": 300, "attempts": 0, "next_attempt_ms": null,
            "problem": null, "added": false,
        }],
        "exchange": {
            "advertised": [], "outbound_max": 8, "chosen": [key(2)], "heard": 1, "reached": 1, "events": { "dialled": 1 },
        },
        "shared_keys": [{ "id": key(3), "own": false, "addresses": [], "problem": "two nodes use it" }],
    })
}

fn sync() -> Value {
    let used = json!({ "named": 1, "used": 1, "reads": 1, "values_wrong": 1 });
    json!({
        "hints": used, "foretold": used, "requests": 1, "hedges": 1, "audited": 1, "audits_skipped": 1, "alarm": "it differs",
        "stages": [{
            "stage": "fetch", "busy_percent": 1.0, "queue_bytes": 1, "bytes_per_second": 1.0, "busy_seconds": 1.0, "bytes": 1,
        }],
        "repair": {
            "number": 1, "rows_put": 1, "rows_removed": 1, "codes": 1, "keys": [], "bytes": 1, "questions": 1, "took_ms": 1,
        },
        "snapshot": {
            "number": 200, "rows": 5, "rows_total": 10, "rows_per_second": 1.0, "eta_seconds": 5.0, "share": 0.5, "rows_kept": 0,
            "bytes_kept": 0,
        },
        "backfill": {
            "wanted_from": 1, "lowest": 50, "batches_left": 49, "batches_per_second": 1.0, "bytes_per_second": 1.0, "eta_seconds": 49.0,
            "reason": "one peer is asked",
        },
        "past_states": { "wanted_from": 1, "lowest": 50, "reason": "one peer is asked" },
    })
}

#[test]
fn every_metric_is_raised() {
    let metrics = Metrics::new().unwrap();
    assert_eq!(moved(&metrics), BTreeSet::new());
    sample_status(&status(busy()), &metrics);
    let elsewhere: BTreeSet<&str> = ELSEWHERE.iter().copied().collect();
    let expected = Metrics::NAMES.iter().filter(|name| !elsewhere.contains(*name));
    let expected: BTreeSet<String> = expected.map(|name| (*name).to_owned()).collect();
    let found = moved(&metrics);
    let silent: Vec<_> = expected.difference(&found).collect();
    assert!(
        silent.is_empty(),
        "nothing raises these: sample them, or name in ELSEWHERE what does: {silent:?}"
    );
    let listed: Vec<_> = found.difference(&expected).collect();
    assert!(listed.is_empty(), "the status raises these, so ELSEWHERE is wrong: {listed:?}");
}
