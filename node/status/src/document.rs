//! [`NodeStatus`]: the document that `/v1/status` serves.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use slipstream_base::about;
use slipstream_broadcast::MeshStatus;
use slipstream_config::Role;
use slipstream_consensus::{ConsensusStatus, PoolStatus};
use slipstream_executor::{HotStats, StallStats};
use slipstream_network::PeerId;
use slipstream_storage::{Head, StorageError, Store};
use slipstream_sync::{ServeStatus, SyncStatus};
use slipstream_types::{
    Address, BatchNumber, Digest, Epoch, Failures, PublicKey, RulesId, Waypoint, chain::Fork,
    schedule::Activation,
};

use crate::peers::{
    BanStatus, ConfiguredPeerStatus, ConnectedPeer, PeerExchangeStatus, RemovedPeerStatus, SharedKeyStatus,
};
use crate::{
    health::Health,
    progress::Progress,
    resources::{DiskStatus, ProcessStatus},
    speed::SpeedStatus,
};

/// A node's state and work, as `/v1/status` serves it.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct NodeStatus {
    /// Program name and version.
    pub client: String,
    /// EIP-155 chain id.
    pub chain_id: u64,
    /// Digest of the genesis header, which identifies the chain.
    pub genesis: Digest,
    /// Validator or fullnode.
    pub role: Role,
    /// The node's public key.
    pub peer_id: PeerId,
    /// This node's name in `network.names`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address on which it listens for peers.
    pub network_address: String,
    /// The same address as an entry for another node's `network.peers`.
    pub peer_address: String,
    /// Whether the node is healthy, and if not, why.
    pub health: Health,
    /// How much of its present work is done, and when it will finish.
    pub progress: Progress,
    /// The last committed batch.
    pub head: HeadStatus,
    /// The newest certified position, in the form of another node's `waypoint`.
    pub waypoint: Waypoint,
    /// The validators that certify the batch after the head.
    pub epoch: EpochStatus,
    /// The rules of the batch after the head, and the forks to come.
    pub rules: RulesStatus,
    /// Following the chain.
    pub sync: SyncStatus,
    /// How new batches were received and sent.
    pub mesh: MeshStatus,
    /// Serving the chain to peers.
    pub serve: ServeStatus,
    /// Certifying the chain; validators only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consensus: Option<ConsensusStatus>,
    /// The cache of rows that recent batches touched, whether sync or consensus committed them.
    pub hot_cache: HotStats,
    /// What execution waited for, in sync and in consensus.
    pub stalls: StallStats,
    /// The transaction pool.
    pub pool: PoolStatus,
    /// The process's use of the machine.
    pub process: ProcessStatus,
    /// The disk space that the database has left, and that the data directory uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskStatus>,
    /// How fast the machine executes; none until measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<SpeedStatus>,
    /// The batches of the kept and served snapshots, newest first.
    pub snapshots: Vec<BatchNumber>,
    /// Connected peers.
    pub peers: Vec<ConnectedPeer>,
    /// The peers from `network.peers`, and those that the operator added.
    pub configured_peers: Vec<ConfiguredPeerStatus>,
    /// Peers from `network.peers` that the operator removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed_peers: Vec<RemovedPeerStatus>,
    /// The banned peers: at most 256 of them, the operator's bans first.
    pub bans: Vec<BanStatus>,
    /// The number of bans in force.
    pub bans_count: usize,
    /// Peer exchange.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exchange: Option<PeerExchangeStatus>,
    /// Keys that more than one node uses.
    pub shared_keys: Vec<SharedKeyStatus>,
}

/// The epoch of the batch after the head.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct EpochStatus {
    /// Its number.
    pub number: Epoch,
    /// Its validators, in the order in which they become primary.
    pub validators: Vec<PublicKey>,
    /// Their names in `network.names`, by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub names: BTreeMap<PublicKey, String>,
    /// How many of them may fail.
    pub failures: Failures,
    /// The number of signatures in a certificate.
    pub quorum: usize,
    /// The contract that names the next epoch's validators; none on a chain with fixed validators.
    #[schemars(with = "Option<String>")]
    pub contract: Option<Address>,
}

/// The rules of the batch after the head, and the forks to come.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RulesStatus {
    /// The id of the rules of the batch after the head; all zeros mean those of the genesis.
    pub id: RulesId,
    /// The EVM rules.
    pub fork: Fork,
    /// The next fork in this node's schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// When that fork begins, for people: by this machine's clock, or in batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_begins: Option<String>,
    /// Forks that peers' schedules have and this node's lacks. If the validators have them, this node stops there.
    pub unknown: Vec<String>,
}

impl RulesStatus {
    pub(crate) fn of(store: &Store, now_ms: u64) -> Result<RulesStatus, StorageError> {
        let Head { header, .. } = store.head()?;
        let (number, timestamp_ms, chain) = (header.number.next(), header.timestamp_ms, store.chain()?);
        let rules = chain.rules_at(number, timestamp_ms);
        let next = chain.next_fork(number, timestamp_ms).map(|(fork, _)| fork);
        Ok(RulesStatus {
            id: rules.id,
            fork: rules.fork,
            next: next.map(ToString::to_string),
            next_begins: next.map(|fork| begins(fork.at, number, now_ms)),
            unknown: store.unknown_forks().iter().map(ToString::to_string).collect(),
        })
    }
}

/// Describes when a fork begins that the batch `next` does not have yet.
fn begins(at: Activation, next: BatchNumber, now_ms: u64) -> String {
    match at {
        Activation::Batch(first) => match first.get().saturating_sub(next.get()) {
            1 => "begins in 1 batch".to_owned(),
            left => format!("begins in {left} batches"),
        },
        Activation::TimeMs(first_ms) => match first_ms.checked_sub(now_ms) {
            Some(left_ms) if left_ms > 0 => format!("begins in {}", about(Duration::from_millis(left_ms))),
            _ => "begins with the next batch".to_owned(),
        },
    }
}

/// The last committed batch.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct HeadStatus {
    /// Its number.
    pub number: BatchNumber,
    /// Its header's digest: the block hash of JSON-RPC.
    pub digest: Digest,
    /// Root of the state after it.
    pub state_root: Digest,
    /// Its timestamp, in milliseconds since 1970.
    pub timestamp_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a planned fork says when it begins, even one whose time has passed and that waits for a batch.
    #[test]
    fn a_fork_says_when_it_begins() {
        let (next, now_ms) = (BatchNumber::new(100), 1_800_000_000_000);
        let at_batch = |number| begins(Activation::Batch(BatchNumber::new(number)), next, now_ms);
        assert_eq!(
            (at_batch(101), at_batch(160)),
            ("begins in 1 batch".into(), "begins in 60 batches".into())
        );
        let at_time = |ms: i64| begins(Activation::TimeMs(now_ms.saturating_add_signed(ms)), next, now_ms);
        assert_eq!(at_time(59 * 60_000), "begins in 59 min");
        assert_eq!(at_time(-1), "begins with the next batch");
    }
}
