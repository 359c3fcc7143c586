//! `slipstream status`.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;
use miette::{Result, miette};
use serde_json::Value;

use super::{
    ask::{ask, authority, parse},
    exit::{Exit, Failed},
    output::print,
    peers_status,
    rows::{Rows, plain},
    source::OverrideArgs,
    sync_status,
};

/// Of the reasons of a score only the newest: the rest is in the JSON.
const REASONS_SHOWN: usize = 5;

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// The node's API
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8545", conflicts_with = "config")]
    api: String,
    /// The node's configuration file, to take the API's address from
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    overrides: OverrideArgs,
    /// Print the JSON document as it is
    #[arg(long)]
    json: bool,
}

pub(super) fn status(args: &StatusArgs) -> Result<()> {
    let authority = match &args.config {
        Some(file) => authority(args.overrides.load(file)?.config.api.listen),
        None if !args.overrides.is_empty() => {
            let text = "--set and --instance change what --config FILE says; name the file";
            return Err(Failed::new(Exit::Usage, text).into());
        }
        None => {
            let rest = args.api.strip_prefix("http://");
            let rest = rest.ok_or_else(|| miette!("{} is not a URL http://HOST:PORT", args.api))?;
            rest.trim_end_matches('/').to_owned()
        }
    };
    let body = ask(&authority, "/v1/status")?;
    if args.json {
        return print(body.trim_end());
    }
    print(table(&parse(&body)?).trim_end())
}

/// The status for people. Fields that a newer or older node does not have are left out.
fn table(status: &Value) -> String {
    let mut rows = Rows::default();
    let sync = status.get("sync").filter(|sync| sync.is_object());
    if let Some(sync) = sync {
        sync_status::alarm(&mut rows, sync);
    }
    let mut row = |name: &str, value: Option<String>| rows.add(name, value);
    let at = |pointer: &str| status.pointer(pointer).and_then(plain);
    row("client", at("/client"));
    row("chain", at("/chain_id"));
    row("genesis", at("/genesis"));
    row("role", at("/role"));
    row("peer", at("/peer_address"));
    row("", at("/peer_address").and_then(|peer| reach_hint(&peer)));
    row("health", health(status));
    row(
        "head",
        at("/head/number").map(|number| {
            let age = status.pointer("/health/head_age_seconds").and_then(Value::as_f64);
            age.map_or(number.clone(), |age| format!("{number}, {} old", sync_status::duration(age)))
        }),
    );
    row("  digest", at("/head/digest"));
    row("  state root", at("/head/state_root"));
    row("waypoint", at("/waypoint"));
    row("epoch", epoch(status));
    row("rules", at("/rules/fork"));
    row("  next", at("/rules/next"));
    let unknown = status.pointer("/rules/unknown").and_then(Value::as_array);
    for fork in unknown.into_iter().flatten().filter_map(Value::as_str) {
        row(
            "  unknown",
            Some(format!("{fork}, by peers' schedules: this node stops there; extend its `schedule`")),
        );
    }
    if let Some(sync) = sync {
        sync_status::describe(&mut rows, sync);
    }
    let mut row = |name: &str, value: Option<String>| rows.add(name, value);
    row(
        "consensus",
        at("/consensus/index").zip(at("/consensus/validators")).map(|(index, validators)| {
            let is = |name: &str| at(&format!("/consensus/{name}")).as_deref() == Some("true");
            let mut said = format!("validator {index} of {validators}, counted from 0");
            for (name, text) in [
                ("is_primary", ", the primary"),
                ("observing", ", listens before it votes"),
                ("complains", ", wants another primary"),
            ] {
                said.push_str(if is(name) { text } else { "" });
            }
            said
        }),
    );
    row("  view", view(status));
    row(
        "  voting",
        at("/consensus/voting/number")
            .zip(at("/consensus/voting/prepares"))
            .zip(at("/consensus/voting/commits").zip(at("/consensus/quorum")))
            .map(|((number, prepares), (commits, quorum))| {
                format!("batch {number}: {prepares} prepare it, {commits} commit to it, {quorum} decide")
            }),
    );
    row(
        "  diverged",
        counted(status, "divergences").map(|times| format!("{times} times from what the others agreed on")),
    );
    row("  refused", at("/consensus/refused").map(|refused| format!("{refused} messages and orders")));
    let convictions = status.pointer("/consensus/evidence").and_then(Value::as_array);
    for lie in convictions.into_iter().flatten() {
        row("  evidence", conviction(lie));
    }
    row(
        "pool",
        at("/pool/pending")
            .zip(at("/pool/queued"))
            .map(|(pending, queued)| format!("{pending} executable, {queued} waiting")),
    );
    row("disk", disk(status));
    peers_status::describe(&mut rows, status);
    let mut row = |name: &str, value: Option<String>| rows.add(name, value);
    let judged =
        status.pointer("/sync/peers").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    // Peers that do what they should stand above; here they only have their score.
    for peer in judged {
        row("", judgement(peer));
        row("", score(peer));
        let reasons = peer.get("reasons").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        for reason in reasons.iter().take(REASONS_SHOWN) {
            row("", score_reason(reason));
        }
    }
    rows.0
}

/// Whose turn it is to order batches.
fn view(status: &Value) -> Option<String> {
    let of = |name: &str| status.pointer(&format!("/consensus/{name}")).and_then(plain);
    let begins = if of("changing")? == "true" { ", which has not begun" } else { "" };
    Some(format!("{} of primary {}{begins}", of("view")?, of("primary")?))
}

/// A count of consensus that is worth a line if it is not 0.
fn counted(status: &Value, name: &str) -> Option<u64> {
    status.pointer(&format!("/consensus/{name}"))?.as_u64().filter(|count| *count > 0)
}

fn conviction(lie: &Value) -> Option<String> {
    let of = |name: &str| lie.get(name).and_then(plain);
    let (author, kind, number, view) = (of("author")?, of("kind")?, of("number")?, of("view")?);
    Some(format!(
        "validator {author} gave two {kind} of batch {number} in view {view}: /v1/consensus/evidence"
    ))
}

/// Who certifies: as many as there are, and how many of them it takes.
fn epoch(status: &Value) -> Option<String> {
    let epoch = status.get("epoch")?;
    let (number, quorum) = (epoch.get("number").and_then(plain)?, epoch.get("quorum").and_then(plain)?);
    let validators = epoch.get("validators")?.as_array()?.len();
    Some(format!("{number}, {quorum} of {validators} validators certify a batch"))
}

/// Whether the node is ready, and why not.
fn health(status: &Value) -> Option<String> {
    let health = status.get("health")?;
    match health.get("ready")?.as_bool()? {
        true => Some("ready".into()),
        false => Some(format!("NOT READY: {}", health.pointer("/blocker/text").and_then(plain)?)),
    }
}

/// The room on the database's file system, and where it ends.
fn disk(status: &Value) -> Option<String> {
    let mib = |name: &str| status.pointer(name).and_then(Value::as_u64).map(|bytes| bytes >> 20);
    let free = mib("/disk/free_bytes")?;
    Some(match mib("/disk/min_bytes") {
        Some(min) if min > 0 => format!("{free} MiB free, stops below {min} MiB"),
        _ => format!("{free} MiB free"),
    })
}

/// What to do about an address that means all addresses of the machine.
fn reach_hint(peer: &str) -> Option<String> {
    let address: SocketAddr = peer.split_once('@')?.1.parse().ok()?;
    let ip = address.ip();
    ip.is_unspecified()
        .then(|| format!("for network.peers of others, replace {ip} by this machine's reachable IP"))
}

/// What sync holds against a peer, if anything.
fn judgement(peer: &Value) -> Option<String> {
    let field = |name: &str| peer.get(name).and_then(plain);
    let state = match (field("banned")?.as_str(), field("pause_ms")?.as_str()) {
        ("true", _) => "banned".to_owned(),
        (_, "0") => "not paused any more".to_owned(),
        (_, pause) => format!("paused for {pause} ms"),
    };
    let reason = field("last_reason");
    if reason.is_none() && state.starts_with("not") {
        return None;
    }
    let reason = reason.unwrap_or_else(|| "no reason is known".to_owned());
    // What is over must not look as if it stood.
    let ago =
        field("last_reason_seconds_ago").map_or_else(String::new, |ago| format!(", the last {ago} s ago"));
    let (id, failures) = (field("id")?, field("failures").unwrap_or_default());
    Some(format!("{id}: {state}, {failures} failures{ago}: {reason}"))
}

/// By what a peer is ranked. A banned one is not.
fn score(peer: &Value) -> Option<String> {
    let field = |name: &str| peer.get(name).and_then(plain);
    let (id, score) = (field("id")?, field("score")?);
    let (rate, tail) = (field("bytes_per_second")?, field("tail_ms")?);
    (field("banned")? == "false").then(|| format!("{id}: score {score}, {rate} bytes/s, tail {tail} ms"))
}

/// One change of a score.
fn score_reason(reason: &Value) -> Option<String> {
    let change = reason.get("change")?.as_i64()?;
    let field = |name: &str| reason.get(name).and_then(plain);
    let (what, times, ago) = (field("what")?, field("times")?, field("seconds_ago")?);
    Some(format!("  {change:+} {what} ({times} times, {ago} s ago)"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Goal: what an operator needs when a node does not follow stands in the table, not only in the JSON.
    #[test]
    fn table_names_reasons() {
        let status = json!({
            "peer_address": "ab@0.0.0.0:7400",
            "consensus": { "index": 1, "validators": 4, "quorum": 3, "view": 5, "changing": false, "primary": 1, "is_primary": true,
                "complains": true, "voting": { "number": 8, "prepares": 3, "commits": 2 }, "divergences": 1, "refused": 5,
                "evidence": [{ "author": 2, "kind": "orders", "number": 6, "view": 2 }] },
            "sync": { "peers": [
                { "id": "aa", "banned": false, "pause_ms": 0, "failures": 0, "last_reason": null },
                { "id": "bb", "banned": false, "pause_ms": 0, "failures": 1, "last_reason": "it was late",
                    "last_reason_seconds_ago": 95 },
                { "id": "cc", "banned": false, "pause_ms": 250, "failures": 2, "last_reason": "it refused",
                    "score": 87, "bytes_per_second": 900, "tail_ms": 40, "reasons": [
                        { "what": "it refused", "times": 1, "change": -20, "seconds_ago": 3 },
                        { "what": "verified answers", "times": 7, "change": 12, "seconds_ago": 9 },
                    ] },
                { "id": "dd", "banned": true, "pause_ms": 9, "failures": 3, "last_reason": "a wrong proof",
                    "score": 0, "bytes_per_second": 0, "tail_ms": 0, "reasons": [] },
            ] },
        });
        let expected = "peer         ab@0.0.0.0:7400
             for network.peers of others, replace 0.0.0.0 by this machine's reachable IP
consensus    validator 1 of 4, counted from 0, the primary, wants another primary
  view       5 of primary 1
  voting     batch 8: 3 prepare it, 2 commit to it, 3 decide
  diverged   1 times from what the others agreed on
  refused    5 messages and orders
  evidence   validator 2 gave two orders of batch 6 in view 2: /v1/consensus/evidence
peers        0
             bb: not paused any more, 1 failures, the last 95 s ago: it was late
             cc: paused for 250 ms, 2 failures: it refused
             cc: score 87, 900 bytes/s, tail 40 ms
               -20 it refused (1 times, 3 s ago)
               +12 verified answers (7 times, 9 s ago)
             dd: banned, 3 failures: a wrong proof
";
        assert_eq!(table(&status), expected);
    }

    /// Goal: why a node is not ready stands on top, and each configured peer with what is wrong with it below.
    #[test]
    fn table_says_why_a_node_is_not_ready_and_who_is_missing() {
        let blocker =
            json!({ "reason": "halted", "text": "the chain has made no batch for 25 s", "alert": true });
        let status = json!({
            "role": "fullnode",
            "health": { "ready": false, "blocker": blocker, "head_age_seconds": 25.4 },
            "head": { "number": 970 },
            "peers": [{ "id": "ab", "address": "192.0.2.1:7400", "rtt_ms": 0.25 },
                { "id": "12", "address": "192.0.2.9:7400", "rtt_ms": 3.0 }],
            "exchange": { "advertised": ["192.0.2.8:7400"], "outbound_max": 8, "chosen": ["12"], "heard": 31, "reached": 5 },
            "configured_peers": [
                { "peer": "ab@192.0.2.1:7400", "state": "connected", "seconds": 300, "attempts": 0, "next_attempt_ms": null,
                    "problem": null },
                { "peer": "cd@192.0.2.2:7400", "state": "wrong key", "seconds": 30, "attempts": 7, "next_attempt_ms": 4_200,
                    "problem": "the node at 192.0.2.2:7400 has another key" },
                { "peer": "ef@192.0.2.3:7400", "state": "unreachable", "seconds": 4, "attempts": 1, "next_attempt_ms": 0,
                    "problem": "no answer within 5s" },
                { "peer": "aa@192.0.2.4:7400", "state": "connecting", "seconds": null, "attempts": 0, "next_attempt_ms": 0,
                    "problem": null },
            ],
            "shared_keys": [{ "id": "ab", "own": false, "problem": "more than one node uses the key ab" }],
        });
        let expected = "role         fullnode
health       NOT READY: the chain has made no batch for 25 s
head         970, 25 s old
peers        2
             ab@192.0.2.1:7400 0.2 ms
             12@192.0.2.9:7400 3.0 ms, chosen
  exchange   1 of 8 chosen, 5 reached and 31 heard of; told to others as 192.0.2.8:7400
configured   ab@192.0.2.1:7400 connected for 5 min 00 s
             cd@192.0.2.2:7400 wrong key for 30 s, 7 attempts, next in 4.2 s: the node at 192.0.2.2:7400 has another key
             ef@192.0.2.3:7400 unreachable for 4.0 s, 1 attempt, trying now: no answer within 5s
             aa@192.0.2.4:7400 connecting
SHARED KEY   more than one node uses the key ab
";
        assert_eq!(table(&status), expected);
    }

    #[test]
    fn table_shows_what_is_there() {
        let status = json!({
            "role": "fullnode",
            "head": { "number": 12, "state_root": "0xaa" },
            "epoch": { "number": 3, "validators": ["aa", "bb", "cc", "dd"], "quorum": 3 },
            "sync": { "phase": "idle", "mode": "auto", "batches": 3, "transactions": 4 },
            "disk": { "free_bytes": 3_000_000_000_u64, "min_bytes": 536_870_912 },
            "peers": [{ "id": "ab", "address": "127.0.0.1:1", "rtt_ms": 0.25 }],
        });
        let text = table(&status);
        assert_eq!(
            text,
            "role         fullnode\nhead         12\n  state root 0xaa\nepoch        3, 3 of 4 validators certify a batch\nsync         idle (mode auto)\n  followed   3 batches, \
             4 transactions\ndisk         2861 MiB free, stops below 512 MiB\npeers        1\n             ab@127.0.0.1:1 0.2 ms\n"
        );
    }
}
