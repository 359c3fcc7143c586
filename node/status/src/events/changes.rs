//! [`Changes`]: the differences between a status and the previous one. Pure: the caller supplies each status.

use std::collections::BTreeSet;

use slipstream_network::PeerId;
use slipstream_sync::Phase;
use slipstream_types::BatchNumber;

use super::{Event, PeerChange};
use crate::{
    document::NodeStatus,
    health::{Reason, State},
    names::Names,
};

/// Maximum number of peers that one status reports: only an attack exceeds it, and the ring is for other events too.
const PEERS_TOLD_MAX: usize = 64;

/// The previous status, with which the next one is compared.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    seen: Option<SeenStatus>,
}

#[derive(Debug)]
struct SeenStatus {
    doing: (State, Phase),
    /// The state and phase that were reported last.
    told: (State, Phase),
    blocker: Option<Reason>,
    peers: BTreeSet<PeerId>,
    banned: BTreeSet<PeerId>,
    snapshot: Option<BatchNumber>,
}

impl Changes {
    /// Returns the events since the previous status, with names for keys. The first call only stores its status.
    pub(crate) fn look(&mut self, status: &NodeStatus, names: &Names) -> Vec<Event> {
        let doing = (status.health.state, status.sync.phase);
        let banned = status.sync.peers.iter().filter(|peer| peer.banned);
        let now = SeenStatus {
            doing,
            told: doing,
            blocker: status.health.blocker.as_ref().map(|blocker| blocker.reason),
            peers: status.peers.iter().map(|peer| peer.id).collect(),
            banned: banned.map(|peer| peer.id).collect(),
            snapshot: status.snapshots.first().copied(),
        };
        let Some(before) = &mut self.seen else {
            self.seen = Some(now);
            return Vec::new();
        };
        let mut events = Vec::new();
        // At the head, each batch briefly changes the phase, so a state is reported only when it is seen twice.
        let is_new = doing != before.told && doing == before.doing;
        let told = if is_new { doing } else { before.told };
        if is_new {
            let (state, phase) = doing;
            events.push(Event::Phase { state, phase, progress: status.progress });
        }
        if now.blocker != before.blocker {
            events.push(Event::Blocker { blocker: status.health.blocker.clone() });
        }
        events.extend(peers(before, &now, status, names));
        if let Some(number) = now.snapshot.filter(|number| Some(*number) != before.snapshot) {
            events.push(Event::Snapshot { number });
        }
        self.seen = Some(SeenStatus { told, ..now });
        events
    }
}

/// The peers that connected, left or were banned.
fn peers(before: &SeenStatus, now: &SeenStatus, status: &NodeStatus, names: &Names) -> Vec<Event> {
    let event =
        |peer: &PeerId, change, reason| Event::Peer { peer: *peer, name: names.of(peer), change, reason };
    let banned = now.banned.difference(&before.banned).map(|id| {
        let why = status.sync.peers.iter().find(|peer| peer.id == *id && peer.banned);
        event(id, PeerChange::Banned, why.and_then(|peer| peer.last_reason.clone()))
    });
    let came = now.peers.difference(&before.peers).map(|id| event(id, PeerChange::Connected, None));
    let went = before.peers.difference(&now.peers).map(|id| event(id, PeerChange::Ended, None));
    banned.chain(went).chain(came).take(PEERS_TOLD_MAX).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixture::{self, key};

    fn peer(seed: u8) -> Value {
        json!({ "id": key(seed), "address": null, "bytes_sent": 0, "bytes_received": 0, "rtt_ms": 0.0, "connected_seconds": 0 })
    }

    /// The names of the events for each status.
    fn told(looks: &[Value]) -> Vec<Vec<String>> {
        let mut changes = Changes::default();
        let text = |event: Event| match event {
            Event::Peer { change, reason, .. } => format!("{change:?} {reason:?}"),
            event => event.name().to_owned(),
        };
        looks
            .iter()
            .map(|look| changes.look(&fixture::status(look.clone()), &Names::default()))
            .map(|events| events.into_iter().map(text).collect())
            .collect()
    }

    /// Goal: a change is reported once, and nothing else is.
    #[test]
    fn each_change_is_told_once() {
        let halted =
            json!({ "blocker": { "reason": "halted", "text": "30 s", "alert": true, "retry_ms": null } });
        let longer =
            json!({ "blocker": { "reason": "halted", "text": "31 s", "alert": true, "retry_ms": null } });
        let looks = [
            json!({}),
            json!({}),
            json!({ "health": halted }),
            json!({ "health": longer }),
            json!({ "peers": [peer(2), peer(3)], "snapshots": [300, 200] }),
            json!({ "peers": [peer(3)], "snapshots": [300, 200] }),
        ];
        let expected: [&[&str]; 6] =
            [&[], &[], &["blocker"], &[], &["blocker", "Connected None", "snapshot"], &["Ended None"]];
        assert_eq!(told(&looks), expected);
    }

    /// Goal: a state that flickers with every batch is not reported, a lasting one is.
    #[test]
    fn a_phase_is_told_when_it_lasts() {
        let phase = |name: &str| json!({ "sync": { "phase": name } });
        let names = ["idle", "replay", "idle", "replay", "replay", "replay", "idle", "idle"];
        let looks: Vec<_> = names.map(phase).into();
        let expected: [&[&str]; 8] = [&[], &[], &[], &[], &["phase"], &[], &[], &["phase"]];
        assert_eq!(told(&looks), expected);
    }

    /// Goal: every event about a peer has its name, even after the peer has left the status. A peer without a name has
    /// its key alone.
    #[test]
    fn peers_have_their_names() {
        let names = Names::new(&[format!("{}=alpha", key(2)).parse().unwrap()]);
        let mut changes = Changes::default();
        let mut look = |peers: Vec<Value>| {
            let events = changes.look(&fixture::status(json!({ "peers": peers })), &names);
            events.iter().map(|event| serde_json::to_value(event).unwrap()).collect::<Vec<_>>()
        };
        assert!(look(Vec::new()).is_empty());
        let came = look(vec![peer(2), peer(3)]);
        let named = json!({ "event": "peer", "peer": key(2), "name": "alpha", "change": "connected" });
        let nameless = json!({ "event": "peer", "peer": key(3), "change": "connected" });
        assert!(came.len() == 2 && came.contains(&named) && came.contains(&nameless), "{came:?}");
        let went = look(vec![peer(3)]);
        assert_eq!(went, [json!({ "event": "peer", "peer": key(2), "name": "alpha", "change": "ended" })]);
    }

    /// Goal: a ban is reported with its reason, and a flood of peers does not fill the stream.
    #[test]
    fn bans_have_reasons_and_floods_are_cut() {
        let banned = json!({
            "id": key(9), "head": null, "heard_ms_ago": null, "serves": { "replay_from": null, "delta_from": null }, "mode": "nothing",
            "mode_reason": "banned", "batches_replayed": 0, "batches_applied": 0, "verified_bytes": 0, "bytes_per_second": 0, "tail_ms": 0,
            "score": 0, "reasons": [], "failures": 0, "pause_ms": 0, "banned": true, "last_reason": "a wrong proof",
            "last_reason_seconds_ago": null,
        });
        let many: Vec<_> = (0..=200).map(peer).collect();
        let told = told(&[json!({}), json!({ "sync": { "peers": [banned] }, "peers": many })]);
        assert_eq!(told[1].len(), PEERS_TOLD_MAX);
        assert_eq!(told[1][0], "Banned Some(\"a wrong proof\")");
    }
}
