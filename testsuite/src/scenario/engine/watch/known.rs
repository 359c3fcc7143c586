//! [`HonestNodes`]: what is known about the honest nodes, and which of their accusations are blame. Sans-I/O: statuses
//! and times come from outside.
//!
//! Each ban, proof and pause is judged once, by when it was first seen. A ban that ended and comes again is a new one.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::thoughts::Thoughts;
use crate::{
    rpc::Rpc,
    scenario::{
        criteria::Convictions,
        engine::blame::{Charge, Excuses},
    },
};

/// The most accusations that are kept: reasons contain numbers, and one accusation is enough to fail.
const BLAMED_MAX: usize = 1_000;
/// The most judged proofs that are remembered: the validators' own lists are far shorter.
const JUDGED_MAX: usize = 10_000;
/// The reason of a ban for which the node gives none.
const KEPT_OUT: &str = "the node gives no reason";

/// The facts about the honest nodes.
#[derive(Default)]
pub(super) struct HonestNodes {
    /// Names by public key.
    pub(super) names: BTreeMap<String, String>,
    pub(super) nodes: Vec<(String, Rpc)>,
    /// The nodes that have not answered yet.
    pub(super) unseen: BTreeSet<String>,
    pub(super) excuses: Excuses,
    /// When each was last seen: anything new was said since then.
    pub(super) seen_ms: BTreeMap<String, u64>,
    /// The failure counts at the last look, by accuser and accused.
    failures: BTreeMap<(String, String), u64>,
    /// All judged proofs, whatever the verdict: a proof lasts for the whole run.
    judged: BTreeSet<String>,
    /// The bans at the last look, by accuser: the banned peer and the reason. They were judged.
    bans: BTreeMap<String, BTreeSet<(String, String)>>,
    pub(super) blamed: BTreeSet<String>,
    pub(super) alarms: BTreeSet<String>,
    pub(super) convictions: Convictions,
    /// The opinions of lying peers.
    pub(super) thoughts: Thoughts,
}

/// One look at one node.
#[derive(Clone, Copy)]
struct NodeReading<'a> {
    name: &'a str,
    /// The time of the previous look; of this one if it is the first.
    since_ms: u64,
    now_ms: u64,
}

impl HonestNodes {
    /// Processes a node's answer at `now_ms` to a request at `asked_ms`.
    pub(super) fn look(&mut self, name: &str, status: &Value, asked_ms: u64, now_ms: u64) {
        self.unseen.remove(name);
        let since_ms = self.seen_ms.insert(name.to_owned(), now_ms).unwrap_or(now_ms);
        let look = NodeReading { name, since_ms, now_ms };
        if let Some(alarm) = status["sync"]["alarm"].as_str() {
            self.alarms.insert(format!("{name}: {alarm}"));
        }
        if let Some(head) = status["head"]["number"].as_u64() {
            self.excuses.saw_head(name, head, asked_ms);
        }
        self.look_at_evidence(look, &status["consensus"]);
        self.look_at_bans(look, status);
        for peer in status["sync"]["peers"].as_array().into_iter().flatten() {
            self.look_at_pause(look, peer);
        }
    }

    /// A node that counts a new failure of a peer, and pauses the peer because of it, blames the peer.
    fn look_at_pause(&mut self, look: NodeReading<'_>, peer: &Value) {
        let id = peer["id"].as_str().unwrap_or_default();
        let Some(other) = self.names.get(id).cloned() else { return };
        if peer["banned"] == true {
            return;
        }
        let count = peer["failures"].as_u64().unwrap_or_default();
        let before = self.failures.insert((look.name.to_owned(), id.to_owned()), count);
        // The counts of a restarted node begin at 0.
        let failed_anew = before.is_some_and(|before| count > 0 && count != before);
        let pauses = peer["pause_ms"].as_u64().unwrap_or_default() > 0;
        let reason = peer["last_reason"].as_str().unwrap_or("no reason");
        let is_busy = reason.to_ascii_lowercase().contains("busy");
        if failed_anew && pauses && !is_busy && !self.is_excused(look, &other, Charge::of_pause(reason)) {
            self.blame(format!("{} paused {other}: {reason}", look.name));
        }
    }

    /// Judges the bans in any part of a node's status. A ban lasts longer than its cause, so it is judged once while it
    /// lasts.
    fn look_at_bans(&mut self, look: NodeReading<'_>, status: &Value) {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let mut found: Vec<(String, String)> = Vec::new();
        for peer in list(&status["sync"]["peers"]).iter().filter(|peer| peer["banned"] == true) {
            found.push((text(&peer["id"]), text(&peer["last_reason"])));
        }
        for ban in list(&status["bans"]).iter().filter(|ban| ban["by"] != "operator") {
            found.push((text(&ban["id"]), text(&ban["reason"])));
        }
        for peer in list(&status["configured_peers"]).iter().filter(|peer| peer["state"] == "banned") {
            let id = text(&peer["peer"]).split('@').next().unwrap_or_default().to_owned();
            if found.iter().all(|(banned, _)| *banned != id) {
                found.push((id, KEPT_OUT.to_owned()));
            }
        }
        let named = found.into_iter().filter_map(|(id, reason)| Some((self.names.get(&id)?.clone(), reason)));
        let stand: BTreeSet<(String, String)> = named.collect();
        let before = self.bans.insert(look.name.to_owned(), stand.clone()).unwrap_or_default();
        for (other, reason) in &stand {
            // Another part of the status may have shown it before, with a reason.
            let stood =
                before.iter().any(|(banned, why)| banned == other && (why == reason || reason == KEPT_OUT));
            if !stood && !self.is_excused(look, other, Charge::Wrong) {
                self.blame(format!("{} banned {other}: {reason}", look.name));
            }
        }
    }

    /// Judges the proofs that a validator has, in `consensus` of its status; a node that only follows has none. Other
    /// validators learn of a proof later, so it is judged by when the first one had it.
    fn look_at_evidence(&mut self, look: NodeReading<'_>, consensus: &Value) {
        let name = look.name;
        for proof in consensus["evidence"].as_array().into_iter().flatten() {
            let author = &proof["author"];
            let mut peers = consensus["peers"].as_array().into_iter().flatten();
            let key = peers.find(|peer| peer["index"] == *author).and_then(|peer| peer["key"].as_str());
            let other = key.and_then(|key| self.names.get(key));
            let other = if consensus["index"] == *author { Some(name) } else { other.map(String::as_str) };
            let other = other.unwrap_or("an unknown validator").to_owned();
            let kind = text(&proof["kind"]);
            let identity = format!("{other} said {kind} twice, {} {}", proof["number"], proof["view"]);
            if self.is_new(&identity) && !self.is_excused(look, &other, Charge::Wrong) {
                self.blame(format!("{name} has proof that {other} lied ({kind})"));
            }
            self.convictions.entry(name.to_owned()).or_default().entry(other).or_default().insert(kind);
        }
    }

    /// Whether this was not judged before; marks it as judged.
    fn is_new(&mut self, words: &str) -> bool {
        let is_new = !self.judged.contains(words);
        if is_new && self.judged.len() < JUDGED_MAX {
            self.judged.insert(words.to_owned());
        }
        is_new
    }

    fn is_excused(&self, look: NodeReading<'_>, other: &str, charge: Charge) -> bool {
        self.excuses.excuses(look.name, other, charge, look.since_ms, look.now_ms)
    }

    fn blame(&mut self, words: String) {
        if self.blamed.len() < BLAMED_MAX {
            self.blamed.insert(words);
        }
    }
}

/// Returns a string of a status; empty if it is another type.
fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::scenario::engine::blame::Cause;

    const LATE: &str = "headers: peer aa did not answer within 10s";

    /// Two nodes: `two` observes `one`.
    struct Two(HonestNodes);

    impl Two {
        fn new() -> Two {
            Two(HonestNodes { names: [("aa".to_owned(), "one".to_owned())].into(), ..HonestNodes::default() })
        }

        /// Returns the accusations after `two` reports this about a peer.
        fn look(&mut self, at_ms: u64, id: &str, banned: bool, failures: u64, reason: &str) -> Vec<String> {
            let peer = json!({ "id": id, "banned": banned, "failures": failures, "pause_ms": 9, "last_reason": reason });
            self.0.look("two", &json!({ "sync": { "peers": [peer] } }), at_ms, at_ms);
            std::mem::take(&mut self.0.blamed).into_iter().collect()
        }
    }

    /// Goal: bans and new pauses of honest nodes are blame; pauses of busy nodes and bans of strangers are not.
    #[test]
    fn blame_is_told_from_work() {
        let mut two = Two::new();
        assert!(two.look(0, "aa", false, 3, LATE).is_empty(), "it was so before");
        assert!(two.look(1, "aa", false, 4, "busy: no time").is_empty());
        assert_eq!(two.look(2, "aa", false, 5, LATE), [format!("two paused one: {LATE}")]);
        assert!(two.look(3, "bb", true, 9, "lied").is_empty(), "a stranger may be banned");
        assert_eq!(two.look(4, "aa", true, 5, "lied"), ["two banned one: lied"]);
        assert!(two.look(5, "aa", true, 5, "lied").is_empty(), "it was told");
        assert_eq!(two.look(6, "aa", false, 1, LATE).len(), 1, "a new process counts from nothing");
        two.0.look("two", &json!({ "sync": { "alarm": "batch 9: another root" } }), 7, 7);
        assert_eq!(two.0.alarms.first().map(String::as_str), Some("two: batch 9: another root"));
    }

    /// Goal: a killed node may be called silent while it is down, and a little longer. It may never be banned for it,
    /// and the excuse ends.
    #[test]
    fn a_kill_excuses_silence_for_a_while() {
        let mut two = Two::new();
        two.look(0, "aa", false, 0, "");
        two.0.excuses.begin(7, "one", Cause::Away, 1_000);
        assert!(two.look(1_500, "aa", false, 1, LATE).is_empty());
        assert_eq!(two.look(2_000, "aa", false, 2, "it served batches of epoch 9").len(), 1);
        assert_eq!(two.look(2_500, "aa", true, 2, "a wrong proof"), ["two banned one: a wrong proof"]);
        two.0.excuses.end(7, 3_000);
        two.0.look("one", &json!({ "head": { "number": 5 } }), 4_000, 4_000);
        let later = 4_000 + crate::scenario::engine::blame::GRACE_MS;
        assert!(two.look(later, "aa", false, 3, LATE).is_empty());
        assert_eq!(two.look(later + 1, "aa", false, 3, LATE), Vec::<String>::new(), "nothing is new");
        assert_eq!(two.look(later + 2, "aa", false, 4, LATE).len(), 1);
    }

    /// Goal: a ban of a liar that begins while it lies is no blame, as long as the ban lasts. A later ban is blame.
    #[test]
    fn a_lie_excuses_the_bans_of_its_time() {
        let mut two = Two::new();
        two.0.excuses.begin(0, "one", Cause::Lies, 1_000);
        assert!(two.look(2_000, "aa", true, 0, "lied").is_empty());
        two.0.excuses.end(0, 3_000);
        assert!(two.look(900_000, "aa", true, 0, "lied").is_empty(), "the same ban still stands");
        assert_eq!(two.look(900_500, "aa", true, 0, "lied again"), ["two banned one: lied again"]);
        let kept_out = json!({ "configured_peers": [{ "peer": "aa@127.0.0.1:1", "state": "banned" }] });
        two.0.look("two", &kept_out, 901_000, 901_000);
        assert!(two.0.blamed.is_empty(), "the same ban, of which another part tells");
        two.0.look("two", &json!({}), 901_200, 901_200);
        two.0.look("two", &kept_out, 901_400, 901_400);
        let bans = json!({ "bans": [{ "id": "aa", "by": "node", "reason": "a flood" }, { "id": "aa", "by": "operator", "reason": "x" }] });
        two.0.look("two", &bans, 901_500, 901_500);
        let blamed: Vec<&str> = two.0.blamed.iter().map(String::as_str).collect();
        assert_eq!(blamed, ["two banned one: a flood", "two banned one: the node gives no reason"]);
    }

    /// Goal: an excused ban does not excuse the next one with the same words.
    #[test]
    fn a_ban_that_comes_again_is_judged_again() {
        let mut two = Two::new();
        two.0.excuses.begin(0, "one", Cause::Lies, 1_000);
        assert!(two.look(2_000, "aa", true, 0, "lied").is_empty());
        two.0.excuses.end(0, 3_000);
        assert!(two.look(900_000, "aa", false, 0, "").is_empty(), "the ban has ended");
        assert_eq!(two.look(900_500, "aa", true, 0, "lied"), ["two banned one: lied"]);
        assert!(two.look(901_000, "aa", true, 0, "lied").is_empty(), "it was told");
    }

    /// Goal: a proof of a lie is recorded by accuser and accused. It is blame unless a fault made the accused tell that
    /// very lie, even if others learn of it later.
    #[test]
    fn proofs_convict_those_that_were_made_to_lie_and_blame_others() {
        let names = [("aa".to_owned(), "one".to_owned()), ("bb".to_owned(), "two".to_owned())];
        let mut known = HonestNodes { names: names.into(), ..HonestNodes::default() };
        known.excuses.begin(0, "one", Cause::Lies, 1_000);
        let proof =
            |author: u16, kind: &str| json!({ "author": author, "view": 3, "number": 7, "kind": kind });
        let peers = json!([{ "index": 0, "key": "aa" }, { "index": 1, "key": "bb" }]);
        let look = |known: &mut HonestNodes, name: &str, proofs: Value, at_ms: u64| {
            let page = json!({ "consensus": { "index": 2, "evidence": proofs, "peers": peers } });
            known.look(name, &page, at_ms, at_ms);
        };
        look(
            &mut known,
            "three",
            json!([proof(0, "orders"), proof(0, "prepares"), proof(0, "orders")]),
            2_000,
        );
        assert!(known.blamed.is_empty());
        let kinds: Vec<&str> = known.convictions["three"]["one"].iter().map(String::as_str).collect();
        assert_eq!(kinds, ["orders", "prepares"]);
        known.excuses.end(0, 3_000);
        look(&mut known, "four", json!([proof(0, "orders")]), 900_000);
        assert!(known.blamed.is_empty(), "another one learnt of it late");
        // Anything new at a look was said since the previous look.
        look(&mut known, "three", json!([proof(0, "orders")]), 890_000);
        look(
            &mut known,
            "three",
            json!([proof(0, "commits"), proof(1, "commits"), proof(2, "commits")]),
            900_000,
        );
        let blamed: Vec<&str> = known.blamed.iter().map(String::as_str).collect();
        let wanted =
            ["one", "three", "two"].map(|name| format!("three has proof that {name} lied (commits)"));
        assert_eq!(blamed, wanted);
    }
}
