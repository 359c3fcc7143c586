//! [`Watch`]: what nodes hold against each other, and their alarms, seen all the time; and what they think of peers that lie to them.
//!
//! A ban is blame. So is a pause, unless a fault ever met one of the two, or the other one said that it is busy: a killed node
//! failed in truth. Peers that lie are no nodes of the scenario: whatever is held against them blames nobody.

mod thoughts;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::JoinHandle;

use self::thoughts::Thoughts;
use crate::{devnet::Node, report::LiarOpinion, rpc::Rpc, scenario::criteria::Convictions};

const POLL: Duration = Duration::from_millis(500);
/// What is blamed, in words; reasons have numbers in them, and one is enough to fail.
const BLAMED_MAX: usize = 1_000;
/// A node that is paused or stuck does not keep the others from being looked at for longer.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// What is known of the honest nodes.
#[derive(Default)]
struct Known {
    /// Names by public keys.
    names: BTreeMap<String, String>,
    nodes: Vec<(String, Rpc)>,
    /// Of them, those that have not answered yet.
    unseen: BTreeSet<String>,
    /// Nodes that a fault met, or that joined.
    excused: BTreeSet<String>,
    /// The counts of failures of the last look, by who counts and whom.
    failures: BTreeMap<(String, String), u64>,
    /// Validators that a fault made lie.
    liars: BTreeSet<String>,
    blamed: BTreeSet<String>,
    alarms: BTreeSet<String>,
    convictions: Convictions,
    /// Of peers that lie.
    thoughts: Thoughts,
}

/// What was seen.
pub(super) struct Seen {
    /// What honest nodes held against honest ones, each once.
    pub(super) blamed: Vec<String>,
    /// Alarms, each once.
    pub(super) alarms: Vec<String>,
    /// Nodes that never answered.
    pub(super) unseen: Vec<String>,
    pub(super) convictions: Convictions,
    /// What nodes thought of peers that lied to them.
    pub(super) liars: Vec<LiarOpinion>,
}

/// Looks at honest nodes until it is ended or dropped.
pub(super) struct Watch {
    /// When the clock started.
    begin: Instant,
    known: Arc<Mutex<Known>>,
    task: JoinHandle<()>,
}

impl Watch {
    /// Begins to look, at nobody yet. Times count from `begin`.
    pub(super) fn start(begin: Instant) -> Watch {
        let known = Arc::<Mutex<Known>>::default();
        let shared = known.clone();
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(POLL);
            loop {
                ticks.tick().await;
                let nodes = shared.lock().nodes.clone();
                for (name, rpc) in nodes {
                    // A node that does not answer blames nobody that one could see; whether it lives is asked elsewhere.
                    let page = tokio::time::timeout(ANSWER_MAX, rpc.page("/v1/status")).await;
                    if let Ok(Ok(status)) = page {
                        let mut known = shared.lock();
                        known.look(&name, &status);
                        known.thoughts.look(&name, &status, begin.elapsed());
                    }
                }
            }
        });
        Watch { begin, known, task }
    }

    /// Looks at one more node from now on.
    pub(super) fn add(&self, node: &Node) {
        let id = node.peer_address().split('@').next().unwrap_or_default().to_owned();
        let mut known = self.known.lock();
        known.names.insert(id, node.name().to_owned());
        known.unseen.insert(node.name().to_owned());
        known.nodes.push((node.name().to_owned(), node.rpc().clone()));
    }

    /// A fault meets this node: that others pause it, or it others, is no blame.
    pub(super) fn excuse(&self, name: &str) {
        self.known.lock().excused.insert(name.to_owned());
    }

    /// A fault makes this validator lie: what others have against it is no blame.
    pub(super) fn expect_lies_of(&self, name: &str) {
        self.known.lock().liars.insert(name.to_owned());
    }

    /// A node is given peers that lie so; the tag is that of whatever gives them.
    pub(super) fn meet(&self, node: &str, lie: &str, (tag, servers): (&str, &[String])) {
        let now = self.begin.elapsed();
        let mut known = self.known.lock();
        servers.iter().for_each(|server| known.thoughts.meet(node, lie, (tag, server.as_str()), now));
    }

    /// The peers of this tag leave, or all: what nodes think of them from now on comes from their leaving.
    pub(super) fn part(&self, tag: Option<&str>) {
        self.known.lock().thoughts.part(tag);
    }

    /// What was seen.
    pub(super) fn end(self) -> Seen {
        self.task.abort();
        let mut known = self.known.lock();
        let [blamed, alarms, unseen] =
            [&known.blamed, &known.alarms, &known.unseen].map(|seen| seen.iter().cloned().collect());
        let convictions = std::mem::take(&mut known.convictions);
        let liars = std::mem::take(&mut known.thoughts).opinions();
        Seen { blamed, alarms, unseen, convictions, liars }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Known {
    fn look(&mut self, name: &str, status: &Value) {
        self.unseen.remove(name);
        if let Some(alarm) = status["sync"]["alarm"].as_str() {
            self.alarms.insert(format!("{name}: {alarm}"));
        }
        self.look_at_evidence(name, &status["consensus"]);
        for peer in status["sync"]["peers"].as_array().into_iter().flatten() {
            let id = peer["id"].as_str().unwrap_or_default();
            let Some(other) = self.names.get(id).filter(|other| !self.is_lie(name, other)).cloned() else {
                continue;
            };
            let reason = peer["last_reason"].as_str().unwrap_or("no reason");
            if peer["banned"] == true {
                self.blamed.insert(format!("{name} banned {other}: {reason}"));
                continue;
            }
            let count = peer["failures"].as_u64().unwrap_or_default();
            let before = self.failures.insert((name.to_owned(), id.to_owned()), count);
            let failed_anew = before.is_some_and(|before| count > before);
            let pauses = peer["pause_ms"].as_u64().unwrap_or_default() > 0;
            let is_busy = reason.to_ascii_lowercase().contains("busy");
            let is_excused = self.excused.contains(name) || self.excused.contains(&other);
            let has_room = self.blamed.len() < BLAMED_MAX;
            if failed_anew && pauses && !is_busy && !is_excused && has_room {
                self.blamed.insert(format!("{name} paused {other}: {reason}"));
            }
        }
        for peer in status["configured_peers"].as_array().into_iter().flatten() {
            let id = peer["peer"].as_str().unwrap_or_default().split('@').next().unwrap_or_default();
            let other = self.names.get(id).filter(|other| !self.is_lie(name, other));
            if let Some(other) = other.filter(|_| peer["state"] == "banned") {
                self.blamed.insert(format!("{name} keeps {other} out"));
            }
        }
    }

    /// Whether one of the two lies by a fault.
    fn is_lie(&self, name: &str, other: &str) -> bool {
        self.liars.contains(name) || self.liars.contains(other)
    }

    /// What a validator has proof of, by `consensus` of its status; none of a node that only follows.
    fn look_at_evidence(&mut self, name: &str, consensus: &Value) {
        for proof in consensus["evidence"].as_array().into_iter().flatten() {
            let author = &proof["author"];
            let mut peers = consensus["peers"].as_array().into_iter().flatten();
            let key = peers.find(|peer| peer["index"] == *author).and_then(|peer| peer["key"].as_str());
            let other = key.and_then(|key| self.names.get(key));
            let other = if consensus["index"] == *author { Some(name) } else { other.map(String::as_str) };
            let other = other.unwrap_or("somebody unknown").to_owned();
            let kind = proof["kind"].as_str().unwrap_or_default().to_owned();
            if !self.liars.contains(&other) {
                self.blamed.insert(format!("{name} has proof that {other} lied ({kind})"));
            }
            self.convictions.entry(name.to_owned()).or_default().entry(other).or_default().insert(kind);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Goal: bans and new pauses of the honest are blame; pauses of the busy, of strangers, and of those that a fault met are none.
    #[test]
    fn blame_is_told_from_work_and_from_faults() {
        let mut known = Known { names: [("aa".to_owned(), "one".to_owned())].into(), ..Known::default() };
        let look = |known: &mut Known, id: &str, banned: bool, failures: u64, reason: &str| {
            let peer = json!({ "id": id, "banned": banned, "failures": failures, "pause_ms": 9, "last_reason": reason });
            known.look("two", &json!({ "sync": { "peers": [peer] } }));
            std::mem::take(&mut known.blamed).into_iter().collect::<Vec<_>>()
        };
        assert!(look(&mut known, "aa", false, 3, "late").is_empty(), "it was so before");
        assert!(look(&mut known, "aa", false, 4, "busy: no time").is_empty());
        assert_eq!(look(&mut known, "aa", false, 5, "late"), ["two paused one: late"]);
        assert!(look(&mut known, "bb", true, 9, "lied").is_empty(), "a liar may be banned");
        known.excused.insert("one".to_owned());
        assert!(look(&mut known, "aa", false, 6, "late").is_empty());
        assert_eq!(look(&mut known, "aa", true, 6, "lied"), ["two banned one: lied"]);
        known.liars.insert("one".to_owned());
        assert!(look(&mut known, "aa", true, 7, "lied").is_empty(), "it was made to lie");
        known.look("two", &json!({ "sync": { "alarm": "batch 9: another root" } }));
        assert_eq!(known.alarms.first().map(String::as_str), Some("two: batch 9: another root"));
    }
    /// Goal: proof of a lie is kept by who has it and whom it is of. It is blame unless a fault made that very lie.
    #[test]
    fn proofs_convict_those_that_were_made_to_lie_and_blame_others() {
        let names = [("aa".to_owned(), "one".to_owned()), ("bb".to_owned(), "two".to_owned())];
        let mut known = Known { names: names.into(), ..Known::default() };
        known.liars.insert("one".to_owned());
        let proof =
            |author: u16, kind: &str| json!({ "author": author, "view": 3, "number": 7, "kind": kind });
        let peers = json!([{ "index": 0, "key": "aa" }, { "index": 1, "key": "bb" }]);
        let look = |known: &mut Known, proofs: Value| {
            known.look("three", &json!({ "consensus": { "index": 2, "evidence": proofs, "peers": peers } }));
        };
        look(&mut known, json!([proof(0, "orders"), proof(0, "prepares"), proof(0, "orders")]));
        assert!(known.blamed.is_empty());
        let kinds: Vec<&str> = known.convictions["three"]["one"].iter().map(String::as_str).collect();
        assert_eq!(kinds, ["orders", "prepares"]);
        look(&mut known, json!([proof(1, "commits"), proof(2, "commits")]));
        let blamed: Vec<&str> = known.blamed.iter().map(String::as_str).collect();
        assert_eq!(
            blamed,
            ["three has proof that three lied (commits)", "three has proof that two lied (commits)"]
        );
    }
}
