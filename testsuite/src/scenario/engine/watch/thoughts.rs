//! [`Thoughts`]: the nodes' opinions of peers that lie to them, from `/v1/status`. Sans-I/O.

use std::time::Duration;

use serde_json::Value;

use crate::report::{LiarOpinion, PEER_DIGITS};

/// The most characters of a reason that a report quotes.
const REASON_CHARS_MAX: usize = 300;

/// The nodes' opinions of lying peers.
#[derive(Default)]
pub(super) struct Thoughts(Vec<Thought>);

/// A node's opinion of one liar.
struct Thought {
    tag: String,
    /// Its public key.
    id: String,
    /// Whether the liar has left: later opinions come from its departure, and do not count.
    is_final: bool,
    opinion: LiarOpinion,
}

impl Thoughts {
    /// Registers that a node got a liar with this `network.peers` entry.
    pub(super) fn meet(&mut self, node: &str, lie: &str, (tag, server): (&str, &str), now: Duration) {
        let id = server.split('@').next().unwrap_or_default().to_owned();
        let opinion = LiarOpinion {
            node: node.to_owned(),
            liar: id.chars().take(PEER_DIGITS).collect(),
            lie: lie.to_owned(),
            at_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            banned_after_seconds: None,
            reason: None,
            score: None,
            failures: 0,
        };
        self.0.push(Thought { tag: tag.to_owned(), id, is_final: false, opinion });
    }

    /// Registers that liars leave: those of a tag, or all.
    pub(super) fn part(&mut self, tag: Option<&str>) {
        let leaving = self.0.iter_mut().filter(|thought| tag.is_none_or(|tag| thought.tag == tag));
        leaving.for_each(|thought| thought.is_final = true);
    }

    /// Processes a node's status.
    pub(super) fn look(&mut self, node: &str, status: &Value, now: Duration) {
        let of = |list: &Value, id: &str| {
            list.as_array().into_iter().flatten().find(|entry| entry["id"] == id).cloned()
        };
        for thought in self.0.iter_mut().filter(|it| !it.is_final && it.opinion.node == node) {
            let opinion = &mut thought.opinion;
            let peer = of(&status["sync"]["peers"], &thought.id);
            let ban = of(&status["bans"], &thought.id);
            if let Some(peer) = &peer {
                opinion.score = peer["score"].as_f64();
                opinion.failures = peer["failures"].as_u64().unwrap_or_default().max(opinion.failures);
            }
            let reason = peer.as_ref().and_then(|peer| peer["last_reason"].as_str());
            let reason = reason.or_else(|| ban.as_ref().and_then(|ban| ban["reason"].as_str()));
            if let Some(reason) = reason {
                opinion.reason = Some(reason.chars().take(REASON_CHARS_MAX).collect());
            }
            let is_banned = ban.is_some() || peer.as_ref().is_some_and(|peer| peer["banned"] == true);
            if is_banned && opinion.banned_after_seconds.is_none() {
                let met = Duration::from_millis(opinion.at_ms);
                opinion.banned_after_seconds = Some(now.saturating_sub(met).as_secs_f64());
            }
        }
    }

    /// Returns all opinions, in the order in which nodes got the liars.
    pub(super) fn opinions(self) -> Vec<LiarOpinion> {
        self.0.into_iter().map(|thought| thought.opinion).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Goal: a ban counts once, from when the node got the liar. Other nodes' statements, and those after the liar has
    /// left, do not count.
    #[test]
    fn a_thought_is_of_one_node_and_ends_with_the_liar() {
        let mut thoughts = Thoughts::default();
        let at = Duration::from_secs;
        let (first, second) = ("0a1b2c3d4e5f@127.64.0.1:9", "ffffffffffff@127.64.1.1:9");
        thoughts.meet("one", "forged_heads", ("event-3", first), at(10));
        thoughts.meet("one", "snapshot_drip", ("event-4", second), at(11));
        let peer = |id: &str, banned: bool, reason: &str| json!({ "id": id, "banned": banned, "score": 0, "failures": 2, "last_reason": reason });
        let says = |peers: Vec<Value>| json!({ "sync": { "peers": peers }, "bans": [] });
        thoughts.look("two", &says(vec![peer("0a1b2c3d4e5f", true, "lied")]), at(11));
        thoughts.look("one", &says(vec![peer("ffffffffffff", false, "late")]), at(12));
        // Sync may have forgotten a ban that the network keeps.
        let bans = json!({ "bans": [{ "id": "0a1b2c3d4e5f", "by": "node", "reason": "no quorum" }] });
        thoughts.look("one", &bans, at(13));
        thoughts.look("one", &bans, at(20));
        thoughts.part(Some("event-4"));
        thoughts.look("one", &says(vec![peer("ffffffffffff", true, "closed")]), at(21));
        let [liar, other] = &thoughts.opinions()[..] else { panic!("two liars") };
        assert_eq!(
            (liar.liar.as_str(), liar.at_ms, liar.banned_after_seconds),
            ("0a1b2c3d4e", 10_000, Some(3.0))
        );
        assert_eq!((liar.reason.as_deref(), liar.score), (Some("no quorum"), None));
        assert_eq!((other.banned_after_seconds, other.reason.as_deref()), (None, Some("late")));
        assert_eq!((other.score, other.failures), (Some(0.0), 2));
    }
}
