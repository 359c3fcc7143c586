//! [`Blame`]: whether an honest node blames another honest one, according to `/v1/status`.
//!
//! A ban or a pause is blame. A pause is no blame if the other node refused as busy: that is how the protocol shares
//! work.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::Value;
use slipnet::rpc::Rpc;
use tokio::task::JoinHandle;

const POLL: Duration = Duration::from_millis(250);

/// An honest node: its name, its public key and its API.
#[derive(Clone)]
pub(super) struct Party {
    pub(super) name: String,
    pub(super) id: String,
    pub(super) rpc: Rpc,
}

/// Watches honest nodes until it is ended or dropped.
pub(super) struct Blame {
    found: Arc<Mutex<BTreeSet<String>>>,
    task: JoinHandle<()>,
}

impl Blame {
    /// Starts watching. Earlier complaints of a node do not count.
    pub(super) fn watch(parties: Vec<Party>) -> Blame {
        let found = Arc::<Mutex<BTreeSet<String>>>::default();
        let into = found.clone();
        let task = tokio::spawn(async move {
            let names: BTreeMap<String, String> =
                parties.iter().map(|party| (party.id.clone(), party.name.clone())).collect();
            let mut failures = BTreeMap::new();
            let mut ticks = tokio::time::interval(POLL);
            loop {
                ticks.tick().await;
                for party in &parties {
                    // A silent node shows no blame; another check finds out whether it is alive.
                    let Ok(status) = party.rpc.page("/v1/status").await else { continue };
                    let blamed = blamed(&party.name, &status, &names, &mut failures);
                    into.lock().extend(blamed);
                }
            }
        });
        Blame { found, task }
    }

    /// Returns the complaints that were seen, each once.
    pub(super) fn end(self) -> Vec<String> {
        self.task.abort();
        self.found.lock().iter().cloned().collect()
    }
}

impl Drop for Blame {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns the complaints against honest nodes in a node's status. `failures` has the counts of the last poll.
fn blamed(
    name: &str,
    status: &Value,
    honest: &BTreeMap<String, String>,
    failures: &mut BTreeMap<(String, String), u64>,
) -> Vec<String> {
    let mut blamed = Vec::new();
    for peer in status["sync"]["peers"].as_array().into_iter().flatten() {
        let id = peer["id"].as_str().unwrap_or_default();
        let Some(other) = honest.get(id) else { continue };
        let reason = peer["last_reason"].as_str().unwrap_or("no reason");
        if peer["banned"] == true {
            blamed.push(format!("{name} banned {other}: {reason}"));
            continue;
        }
        let count = peer["failures"].as_u64().unwrap_or_default();
        let before = failures.insert((name.to_owned(), id.to_owned()), count);
        let failed_anew = before.is_some_and(|before| count > before);
        let pauses = peer["pause_ms"].as_u64().unwrap_or_default() > 0;
        let is_busy = reason.to_ascii_lowercase().contains("busy");
        if failed_anew && pauses && !is_busy {
            blamed.push(format!("{name} paused {other}: {reason}"));
        }
    }
    for peer in status["configured_peers"].as_array().into_iter().flatten() {
        let entry = peer["peer"].as_str().unwrap_or_default();
        let id = entry.split('@').next().unwrap_or_default();
        if let Some(other) = honest.get(id).filter(|_| peer["state"] == "banned") {
            blamed.push(format!("{name} banned its configured peer {other}"));
        }
    }
    blamed
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bans_and_new_pauses_are_blame_and_busy_ones_are_not() {
        let honest = BTreeMap::from([("aa".to_owned(), "victim".to_owned())]);
        let mut failures = BTreeMap::new();
        let mut look = |id: &str, banned: bool, count: u64, pause: u64, reason: &str| {
            let peer = json!({ "id": id, "banned": banned, "failures": count, "pause_ms": pause, "last_reason": reason });
            blamed("follower", &json!({ "sync": { "peers": [peer] } }), &honest, &mut failures)
        };
        assert!(look("aa", false, 3, 200, "late").is_empty(), "it was so before");
        assert!(look("aa", false, 3, 100, "late").is_empty());
        assert!(look("aa", false, 4, 900, "busy: no time").is_empty());
        assert_eq!(look("aa", false, 5, 900, "late"), ["follower paused victim: late"]);
        assert_eq!(look("aa", true, 0, 0, "lied"), ["follower banned victim: lied"]);
        assert!(look("bb", true, 9, 9, "lied").is_empty(), "a liar may be banned");
        let status = json!({ "configured_peers": [{ "peer": "aa@127.0.0.1:1", "state": "banned" }] });
        assert_eq!(
            blamed("follower", &status, &honest, &mut failures),
            ["follower banned its configured peer victim"]
        );
    }
}
