//! Puts the operator's names next to the keys of a status.

use slipstream_consensus::Proof;

use crate::{document::NodeStatus, names::Names};

/// Adds the name of the validator that each proof convicts.
pub(crate) fn name_proofs(proofs: &mut [Proof], names: &Names) {
    for proof in proofs {
        proof.name = names.of(&proof.key);
    }
}

impl NodeStatus {
    /// Adds a name to every key of this status.
    pub(crate) fn add_names(&mut self, names: &Names) {
        if names.is_empty() {
            return;
        }
        self.name = names.of(&self.peer_id);
        let validators = self.epoch.validators.iter();
        self.epoch.names = validators.filter_map(|id| Some((*id, names.of(id)?))).collect();
        if let Some(consensus) = &mut self.consensus {
            consensus.name.clone_from(&self.name);
            for peer in &mut consensus.peers {
                peer.name = names.of(&peer.key);
            }
            consensus.primary_name = consensus.name_of(consensus.primary).map(str::to_owned);
        }
        for peer in &mut self.sync.peers {
            peer.name = names.of(&peer.id);
        }
        for peer in &mut self.peers {
            peer.name = names.of(&peer.id);
        }
        for peer in &mut self.configured_peers {
            peer.name = names.of(&peer.peer.id);
        }
        for peer in &mut self.removed_peers {
            peer.name = names.of(&peer.peer.id);
        }
        for ban in &mut self.bans {
            ban.name = names.of(&ban.id);
        }
        if let Some(exchange) = &mut self.exchange {
            exchange.names = exchange.chosen.iter().filter_map(|id| Some((*id, names.of(id)?))).collect();
        }
        for key in &mut self.shared_keys {
            key.name = names.of(&key.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use slipstream_network::PeerName;

    use super::*;
    use crate::fixture::{self, consensus, key};

    /// The parts of a document that contain this key, each with its name.
    fn named(document: &Value, id: &str) -> Vec<Option<String>> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        match document {
            Value::Object(fields) => {
                let is_of = |name: &&str| {
                    fields.get(*name).and_then(Value::as_str).is_some_and(|it| it.starts_with(id))
                };
                let own = ["id", "key", "peer", "peer_id"].into_iter().find(is_of);
                let own = own.map(|_| fields.get("name").and_then(text));
                own.into_iter().chain(fields.values().flat_map(|value| named(value, id))).collect()
            }
            Value::Array(items) => items.iter().flat_map(|item| named(item, id)).collect(),
            _ => Vec::new(),
        }
    }

    /// Goal: a name stands next to its key in every part of the document, the key stays, and keys without a name are
    /// unchanged.
    #[test]
    fn every_key_gets_its_name() {
        let (who, other) = (key(10), key(12));
        let peer = json!({
            "id": who, "head": null, "heard_ms_ago": null, "serves": { "replay_from": null, "delta_from": null }, "mode": "nothing",
            "mode_reason": "banned", "batches_replayed": 0, "batches_applied": 0, "verified_bytes": 0, "bytes_per_second": 0, "tail_ms": 0,
            "score": 0, "reasons": [], "failures": 1, "pause_ms": 0, "banned": true, "last_reason": null, "last_reason_seconds_ago": null,
        });
        let at = format!("{who}@192.0.2.1:7400");
        let mut status = fixture::status(json!({
            "consensus": consensus(), "sync": { "peers": [peer] }, "epoch": { "validators": [who, other] },
            "peers": [
                { "id": who, "address": null, "bytes_sent": 0, "bytes_received": 0, "rtt_ms": 0.0, "connected_seconds": 1 },
                { "id": other, "address": null, "bytes_sent": 0, "bytes_received": 0, "rtt_ms": 0.0, "connected_seconds": 1 },
            ],
            "configured_peers": [{ "peer": at, "state": "connecting", "seconds": null, "attempts": 0, "next_attempt_ms": 0, "problem": null,
                "added": false }],
            "removed_peers": [{ "peer": at }],
            "bans": [{ "id": who, "by": "operator", "reason": "", "seconds_left": 1, "until_ms": 1 }],
            "exchange": { "advertised": [], "outbound_max": 8, "chosen": [who, other], "heard": 2, "reached": 2, "events": {} },
            "shared_keys": [{ "id": who, "own": false, "addresses": [], "problem": "" }],
        }));
        let before = serde_json::to_string(&status).unwrap();
        status.add_names(&Names::default());
        assert_eq!(serde_json::to_string(&status).unwrap(), before);
        let named_pair = |key: &str, name: &str| -> PeerName { format!("{key}={name}").parse().unwrap() };
        status.add_names(&Names::new(&[named_pair(&who, "alpha <b>"), named_pair(&key(1), "self")]));
        let document = serde_json::to_value(&status).unwrap();
        // Consensus, sync, and the connected, configured, removed, banned and shared entries.
        assert_eq!(named(&document, &who), vec![Some("alpha <b>".to_owned()); 7]);
        assert_eq!(named(&document, &other), [None::<String>, None]);
        for part in ["epoch", "exchange"] {
            assert_eq!(document[part]["names"], json!({ who.as_str(): "alpha <b>" }), "{part}");
        }
        let own = &document["consensus"];
        assert_eq!(
            (&document["name"], &own["name"], &own["primary_name"]),
            (&json!("self"), &json!("self"), &json!("self"))
        );
    }

    /// Goal: a proof names the validator that it convicts; without a name it has the key alone.
    #[test]
    fn a_proof_says_who_lied() {
        let proof = |seed| {
            let proof = json!({ "author": 2, "kind": "orders", "number": 6, "view": 2, "key": key(seed), "evidence": "0x00" });
            serde_json::from_value::<Proof>(proof).unwrap()
        };
        let mut proofs = [proof(10), proof(12)];
        name_proofs(&mut proofs, &Names::new(&[format!("{}=alpha", key(10)).parse().unwrap()]));
        assert_eq!(proofs.each_ref().map(|proof| proof.name.as_deref()), [Some("alpha"), None]);
        let other = serde_json::to_value(&proofs[1]).unwrap();
        assert!(other.get("name").is_none() && other["key"] == json!(key(12)), "{other}");
    }
}
