//! [`StatusSource`]: the inputs of a status, and the watch that reports its changes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use slipstream_base::{Log, client_version, tasks::TaskError};
use slipstream_broadcast::Broadcaster;
use slipstream_config::Role;
use slipstream_consensus::{ConsensusStatus, Forwarder, Pool, Proof, Validator};
use slipstream_network::{PeerAddress, Transport};
use slipstream_storage::{StorageError, Store};
use slipstream_sync::{Follower, SyncServer, SyncStatus};
use slipstream_types::{Address, Digest, Waypoint};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::{
    barred::barred,
    document::{EpochStatus, HeadStatus, NodeStatus, RulesStatus},
    events::{Changes, Ring},
    health::HealthSource,
    named::name_proofs,
    names::Names,
    peers::{
        BanStatus, ConfiguredPeerStatus, ConnectedPeer, PeerExchangeStatus, RemovedPeerStatus,
        SharedKeyStatus,
    },
    progress::Progress,
    reporter::HealthReporter,
    resources::Resources,
    seat::Seat,
    speed::MachineSpeed,
};

/// How often the watch reads the status. A change that is undone between two reads stays unseen.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The inputs of a status.
pub struct StatusSource {
    /// Validator or fullnode.
    pub role: Role,
    /// The address on which the node is reached.
    pub address: PeerAddress,
    /// EIP-155 chain id.
    pub chain_id: u64,
    /// Digest of the genesis header.
    pub genesis: Digest,
    /// The genesis as a waypoint, used until something else is certified here.
    pub origin: Waypoint,
    /// The node's store.
    pub store: Store,
    /// The waiting transactions.
    pub pool: Pool,
    /// Brings transactions to the validators.
    pub forwarder: Arc<Forwarder>,
    /// Sync.
    pub follower: Arc<Follower>,
    /// Answers the requests of peers.
    pub server: Arc<SyncServer>,
    /// The node's place among the validators.
    pub seat: Arc<Seat>,
    /// The contract that changes the set; `None` if the chain has none.
    pub validators_contract: Option<Address>,
    /// The network.
    pub transport: Arc<dyn Transport>,
    /// The mesh.
    pub broadcaster: Arc<Broadcaster>,
    /// Whether the node is healthy.
    pub health: Arc<HealthSource>,
    /// The process's use of the machine.
    pub resources: Arc<Resources>,
    /// The speed of the machine.
    pub speed: Arc<MachineSpeed>,
    /// The log.
    pub log: Log,
    /// The operator's names for keys.
    pub names: Arc<Names>,
}

impl StatusSource {
    /// Reads the status. Blocks on the store for a moment.
    pub fn read(&self) -> Result<NodeStatus, StorageError> {
        let head = self.store.head()?;
        let certificate = self.store.latest_certificate()?;
        let sync = self.follower.status();
        let (contacts, bans) = (self.transport.contacts(), self.transport.bans());
        let validator = self.seat.validator();
        let mut consensus = validator.as_ref().map(|validator| validator.status());
        if let Some(consensus) = &mut consensus {
            hear(consensus, &sync);
        }
        let health = self.health.judge(&head.header, &sync, consensus.as_ref(), &contacts);
        let now = Instant::now();
        let mut status = NodeStatus {
            client: client_version(),
            chain_id: self.chain_id,
            genesis: self.genesis,
            role: self.role,
            peer_id: self.address.id,
            name: None,
            network_address: self.address.address.to_string(),
            peer_address: self.address.to_string(),
            progress: Progress::of(&sync, &health),
            health,
            head: HeadStatus {
                number: head.header.number,
                digest: head.digest,
                state_root: head.header.state_root,
                timestamp_ms: head.header.timestamp_ms,
            },
            waypoint: certificate.map_or(self.origin, |certificate| Waypoint::of(&certificate.info)),
            epoch: self.epoch(),
            rules: RulesStatus::of(&self.store, self.health.now_ms())?,
            sync,
            mesh: self.broadcaster.status(),
            serve: self.server.status(),
            consensus,
            hot_cache: self.follower.hot_stats(),
            stalls: self.follower.stall_stats(),
            pool: self.pool.status(),
            process: self.resources.process(),
            disk: self.resources.disk(),
            speed: self.speed.status()?,
            snapshots: self.store.snapshots().iter().map(|snapshot| snapshot.number).collect(),
            peers: ConnectedPeer::all(self.transport.peer_stats(), &contacts),
            configured_peers: ConfiguredPeerStatus::all(&contacts, now),
            removed_peers: contacts.removed.iter().map(RemovedPeerStatus::of).collect(),
            bans: BanStatus::first(&bans, now),
            bans_count: bans.len(),
            exchange: self.transport.exchange().map(PeerExchangeStatus::from),
            shared_keys: contacts.shared_keys.iter().map(SharedKeyStatus::from).collect(),
        };
        status.add_names(&self.names);
        Ok(status)
    }

    /// Describes how the bans in force affect this validator's quorum, and logs it as a warning.
    pub fn tell_barred(&self) -> Option<String> {
        let problem = barred(&self.seat.set(), self.address.id, &self.transport.bans())?;
        tracing::warn!(problem, "bans keep validators away");
        Some(problem)
    }

    /// The proofs that validators lied, if this node is a validator.
    pub fn evidence(&self) -> Vec<Proof> {
        let mut proofs = self.seat.validator().map(|validator| validator.evidence()).unwrap_or_default();
        name_proofs(&mut proofs, &self.names);
        proofs
    }

    /// The validator that this node currently is.
    pub fn validator(&self) -> Option<Validator> {
        self.seat.validator()
    }

    fn epoch(&self) -> EpochStatus {
        let set = self.seat.set();
        EpochStatus {
            number: set.epoch,
            validators: set.validators.iter().map(|validator| validator.public_key).collect(),
            names: BTreeMap::new(),
            failures: set.failures,
            quorum: set.quorum(),
            contract: self.validators_contract,
        }
    }
}

/// Counts a validator as heard if it answered sync: while the chain is idle, validators send nothing else.
fn hear(consensus: &mut ConsensusStatus, sync: &SyncStatus) {
    let told: BTreeMap<_, _> =
        sync.peers.iter().filter_map(|peer| Some((peer.id, peer.heard_ms_ago?))).collect();
    for peer in &mut consensus.peers {
        peer.heard_ms_ago = peer.heard_ms_ago.into_iter().chain(told.get(&peer.key).copied()).min();
    }
}

/// Logs the node's status and sends its changes to listeners, until `shutdown`.
pub async fn watch(
    source: Arc<StatusSource>,
    ring: Arc<Ring>,
    shutdown: CancellationToken,
) -> Result<(), TaskError> {
    let (mut teller, mut changes) = (HealthReporter::default(), Changes::default());
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let now = tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            now = looks.tick() => now,
        };
        let reading = source.clone();
        match tokio::task::spawn_blocking(move || reading.read()).await? {
            Ok(status) => {
                teller.tell(&status, now);
                changes.look(&status, &source.names).iter().for_each(|event| ring.tell(event));
            }
            // A task that writes to the store meets the same error, and stops the node with a more specific message.
            Err(error) => tracing::debug!(%error, "the node's status cannot be read"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixture::{self, key};

    /// Goal: on an idle chain the validators do not appear to be gone.
    #[test]
    fn a_validator_is_heard_by_whatever_it_says() {
        let peer = |seed, heard| {
            json!({
                "id": key(seed), "head": 7, "heard_ms_ago": heard, "serves": { "replay_from": 1, "delta_from": 1 }, "mode": "nothing",
                "mode_reason": "nothing_new", "batches_replayed": 0, "batches_applied": 0, "verified_bytes": 0, "bytes_per_second": 0,
                "tail_ms": 0, "score": 0, "reasons": [], "failures": 0, "pause_ms": 0, "banned": false, "last_reason": null,
                "last_reason_seconds_ago": null,
            })
        };
        let peers = [peer(10, json!(900)), peer(12, json!(300)), peer(13, json!(null)), peer(1, json!(0))];
        let status =
            fixture::status(json!({ "consensus": fixture::consensus(), "sync": { "peers": peers } }));
        let mut consensus = status.consensus.unwrap();
        assert_eq!(consensus.heard_within(10_000), 2);
        hear(&mut consensus, &status.sync);
        let heard: Vec<_> = consensus.peers.iter().map(|peer| peer.heard_ms_ago).collect();
        assert_eq!(heard, [Some(400), Some(300), None]);
        assert_eq!(consensus.heard_within(10_000), 3);
    }
}
