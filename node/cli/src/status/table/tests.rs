//! Tests of the table that an operator reads.

use serde_json::{Value, json};
use slipstream_status::fixture::{self, consensus, key};

use super::*;

fn shown(changes: Value) -> String {
    table(&fixture::status(changes))
}

/// The lines from the first one that starts with `from` up to the next one that starts with `to`.
fn part(text: &str, from: &str, to: &str) -> String {
    let lines =
        text.lines().skip_while(|line| !line.starts_with(from)).take_while(|line| !line.starts_with(to));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Goal: when a validator disagrees, the table has all that the operator needs, like the JSON.
#[test]
fn a_validator_says_how_agreement_goes_and_who_is_heard() {
    let text = shown(json!({ "role": "validator", "consensus": consensus() }));
    let expected = format!(
        "consensus    validator 1 of 4, counted from 0, the primary, wants another primary
  view       5 of primary 1
  voting     batch 8: 3 prepare it, 2 commit to it, 3 decide
  others     0 {}: heard 400 ms ago
             2 {}: heard 1 min 35 s ago; said 1 min 40 s ago: in view 4, decided 6, wants another primary
             3 {}: NOT HEARD since this node began to validate
  diverged   1 times from what the others agreed on
  refused    5 messages and orders
  evidence   validator 2 signed two orders for batch 6 in view 2: /v1/consensus/evidence
",
        key(10),
        key(12),
        key(13)
    );
    assert_eq!(part(&text, "consensus", "pool"), expected);
}

/// Goal: names stand before the keys that have one, and the keys stay.
#[test]
fn names_stand_beside_keys() {
    let mut own = consensus();
    (own["name"], own["peers"][0]["name"]) = (json!("validator-1"), json!("validator-0"));
    own["peers"][1]["name"] = json!("liar");
    own["primary"] = json!(0);
    let [a, b, c] = [10, 12, 13].map(key);
    let text = shown(json!({
        "consensus": own, "name": "validator-1",
        "configured_peers": [{ "peer": format!("{a}@192.0.2.2:7400"), "name": "validator-0", "state": "connecting", "seconds": null,
            "attempts": 0, "next_attempt_ms": 0, "problem": null, "added": false }],
        "removed_peers": [{ "peer": format!("{b}@192.0.2.3:7400"), "name": "liar" }],
        "bans": [{ "id": b, "name": "liar", "by": "operator", "reason": "it lied", "seconds_left": null, "until_ms": null }],
        "bans_count": 1,
    }));
    for line in [
        format!("peer         validator-1 {}", key(1)),
        "consensus    validator 1 (validator-1) of 4, ".to_owned(),
        "  view       5 of primary 0 (validator-0)\n".to_owned(),
        format!("  others     0 validator-0 {a}: heard 400 ms ago\n             2 liar {b}: heard "),
        format!("             3 {c}: NOT HEARD"),
        "  evidence   validator 2 (liar) signed two orders".to_owned(),
        format!("configured   validator-0 {a}@192.0.2.2:7400 connecting\n"),
        format!(
            "removed      liar {b}@192.0.2.3:7400 is in network.peers; `slipstream peers add` adds it again\n"
        ),
        format!("banned       liar {b} until it is unbanned, by this node's operator: it lied\n"),
    ] {
        assert!(text.contains(&line), "{line} is not in\n{text}");
    }
}

/// Goal: each peer is listed with its requests and the complaints about it.
#[test]
fn peers_have_their_part_and_bans_their_reasons() {
    let peer = |seed: u8, more: Value| {
        let mut peer = json!({
            "id": key(seed), "head": 900, "heard_ms_ago": 10, "serves": { "replay_from": 1, "delta_from": 1 }, "mode": "nothing",
            "mode_reason": "nothing_new", "batches_replayed": 0, "batches_applied": 0, "verified_bytes": 0, "bytes_per_second": 900,
            "tail_ms": 40, "score": 87, "reasons": [], "failures": 0, "pause_ms": 0, "banned": false, "last_reason": null,
            "last_reason_seconds_ago": null,
        });
        peer.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        peer
    };
    let refused = json!({
        "mode_reason": "paused", "pause_ms": 250, "failures": 2, "last_reason": "it refused", "reasons": [
            { "what": "it refused", "times": 1, "change": -20, "seconds_ago": 3 },
            { "what": "verified answers", "times": 7, "change": 12, "seconds_ago": 9 },
        ],
    });
    let late = json!({ "mode": "delta", "mode_reason": "planned", "failures": 1, "last_reason": "it was late", "last_reason_seconds_ago": 95 });
    let banned =
        json!({ "mode_reason": "banned", "banned": true, "score": 0, "last_reason": "a wrong proof" });
    let text = shown(json!({
        "peer_address": format!("{}@0.0.0.0:7400", key(1)),
        "peers": [],
        "sync": { "peers": [peer(10, json!({})), peer(11, late), peer(12, refused), peer(13, banned)] },
    }));
    let hint =
        "\n             for network.peers of others, replace 0.0.0.0 with this machine's reachable IP\n";
    assert!(text.contains(hint), "{text}");
    let [a, b, c, d] = [10, 11, 12, 13].map(key);
    let expected = format!(
        "peers        0
             {a}: score 87, 900 bytes/s, tail 40 ms
             {b}: no longer paused, 1 failures, the last 95 s ago: it was late
             {b}: asked for delta, as it serves what the plan needs
             {b}: score 87, 900 bytes/s, tail 40 ms
             {c}: paused for 250 ms, 2 failures: it refused
             {c}: asked for nothing, as it is paused
             {c}: score 87, 900 bytes/s, tail 40 ms
               -20 it refused (1 times, 3 s ago)
               +12 verified answers (7 times, 9 s ago)
             {d}: banned, 0 failures: a wrong proof
"
    );
    assert_eq!(part(&text, "peers", "no such line"), expected);
}

/// Goal: the reason why a node is not ready comes first, and each configured peer with its fault below.
#[test]
fn table_says_why_a_node_is_not_ready_and_who_is_missing() {
    let blocker =
        json!({ "reason": "no_peers", "text": "no peer is connected", "alert": true, "retry_ms": 4_200 });
    let [ab, cd, ef, aa, no] = [20, 21, 22, 23, 24].map(key);
    let text = shown(json!({
        "health": { "ready": false, "blocker": blocker, "head_age_seconds": 25.4 },
        "head": { "number": 970 },
        "peers": [
            { "id": ab, "from": "config", "address": "192.0.2.1:7400", "rtt_ms": 0.25, "bytes_sent": 0, "bytes_received": 0, "connected_seconds": 1 },
            { "id": no, "address": "192.0.2.9:7400", "rtt_ms": 3.0, "bytes_sent": 0, "bytes_received": 0, "connected_seconds": 1 },
        ],
        "exchange": {
            "advertised": ["192.0.2.8:7400"], "outbound_max": 8, "chosen": [no], "heard": 31, "reached": 5, "events": { "wrong_key": 2 },
        },
        "configured_peers": [
            { "peer": format!("{ab}@192.0.2.1:7400"), "state": "connected", "seconds": 300, "attempts": 0, "next_attempt_ms": null,
                "problem": null, "added": false },
            { "peer": format!("{cd}@192.0.2.2:7400"), "state": "wrong key", "seconds": 30, "attempts": 7, "next_attempt_ms": 4_200,
                "problem": "the node at 192.0.2.2:7400 does not have the key", "added": false },
            { "peer": format!("{ef}@192.0.2.3:7400"), "state": "unreachable", "seconds": 4, "attempts": 1, "next_attempt_ms": 0,
                "problem": "no answer within 5s", "added": true },
            { "peer": format!("{aa}@192.0.2.4:7400"), "state": "connecting", "seconds": null, "attempts": 0, "next_attempt_ms": 0,
                "problem": null, "added": false },
        ],
        "shared_keys": [{ "id": ab, "own": false, "addresses": [], "problem": "more than one node uses the key ab" }],
    }));
    let line = "\nhealth       NOT READY: no peer is connected; it tries again in 4.2 s\nhead         970, 25 s old\n";
    assert!(text.contains(line), "{text}");
    let expected = format!(
        "peers        2
             {ab}@192.0.2.1:7400 0.2 ms, config
             {no}@192.0.2.9:7400 3.0 ms, found, chosen
  exchange   1 of 8 chosen, 5 reached and 31 heard of; announced to others as 192.0.2.8:7400
configured   {ab}@192.0.2.1:7400 connected for 5 min 00 s
             {cd}@192.0.2.2:7400 wrong key for 30 s, 7 attempts, next in 4.2 s: the node at 192.0.2.2:7400 does not have the key
             {ef}@192.0.2.3:7400 unreachable (added) for 4.0 s, 1 attempt, trying now: no answer within 5s
             {aa}@192.0.2.4:7400 connecting
SHARED KEY   more than one node uses the key ab
"
    );
    assert_eq!(part(&text, "peers", "no such line"), expected);
}

/// Goal: an operator sees which work takes longest here, and whether the chain may demand more of it.
#[test]
fn table_says_how_fast_the_machine_is() {
    let speed = json!({
        "gas_per_second": { "plain": 700_000_000, "modexp": 30_000_000 }, "slowest": "modexp", "gas_limit": 300_000_000,
        "batch_seconds_max": 10.0, "view_seconds": 2.0,
    });
    let text = shown(json!({ "speed": speed }));
    let expected = "Mgas/s       modexp 30, plain 700
             TOO SLOW: a batch of 300000000 gas, all of it modexp, takes 10.0 s here, and a view lasts 2.0 s: lower `gas_limit` \
        by a fork, raise `consensus.view_timeout_ms` of all validators, or use a faster machine
";
    assert_eq!(part(&text, "Mgas/s", "disk"), expected);
}

/// Goal: the node's use of its machine is shown in one place.
#[test]
fn table_says_what_the_node_takes() {
    let text = shown(json!({}));
    let expected = "process      4242, up 3 h 02 min, 61.0 MiB of memory, 13 s of CPU time, 30 threads, 42 of 1048576 open files
disk         2861 MiB free, stops below 512 MiB; 77000 inodes free
  used       1.1 GiB: database 1.0 GiB, snapshots 124 MiB beside it, journal 4.0 MiB, other 0 B
snapshots    2 are kept, of batches 200, 100
";
    assert_eq!(part(&text, "process", "peers"), expected);
    assert!(text.starts_with("client       slipstream/0.1.0\nchain        7357\n"), "{text}");
    assert!(text.contains("\nhealth       ready\nhead         300, 400 ms old\n"), "{text}");
    assert!(
        text.contains("\nepoch        3, 1 of 1 validators certify a batch\nrules        prague\n"),
        "{text}"
    );
    let rules = json!({ "next": "fork summer at batch 500", "next_begins": "begins in 199 batches" });
    let text = shown(json!({ "rules": rules }));
    assert!(text.contains("\n  next       fork summer at batch 500, begins in 199 batches\n"), "{text}");
}
