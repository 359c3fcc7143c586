//! `/v1/status`: what a node is and does, in one JSON document.

use std::sync::Arc;

use serde::Serialize;
use slipstream_broadcast::{Broadcaster, MeshStatus};
use slipstream_config::Role;
use slipstream_consensus::{ConsensusStatus, Forwarder, Pool, PoolStatus, Proof, Validator};
use slipstream_executor::{HotStats, StallStats};
use slipstream_network::{PeerAddress, PeerId, Transport};
use slipstream_storage::{DiskRoom, Head, StorageError, Store};
use slipstream_sync::{Follower, ServeStatus, SyncServer, SyncStatus};
use slipstream_types::{
    Address, BatchNumber, Digest, Epoch, Failures, PublicKey, RulesId, Waypoint, chain::Fork,
};
use tokio::time::Instant;

use super::{
    metrics::{Metrics, raise},
    peers::{
        BanStatus, ConfiguredPeerStatus, ConnectedPeer, PeerExchangeStatus, SharedKeyStatus, sample_exchange,
        sample_peers,
    },
    spread::sample_mesh,
};
use crate::{
    Log,
    health::{Health, HealthSource, Reason},
    rpc::client_version,
    seat::Seat,
};

/// The document.
#[derive(Debug, Serialize)]
pub struct NodeStatus {
    /// Program and version.
    pub client: String,
    /// EIP-155 chain id.
    pub chain_id: u64,
    /// Digest of the genesis header: the chain's identity.
    pub genesis: Digest,
    /// Validator or fullnode.
    pub role: Role,
    /// The node's public key.
    pub peer_id: PeerId,
    /// Where it listens for peers.
    pub network_address: String,
    /// The same as an entry for another node's `network.peers`.
    pub peer_address: String,
    /// Whether the node is as it should be, and why not.
    pub health: Health,
    /// The last committed batch.
    pub head: HeadStatus,
    /// The newest certified position, as another node's `waypoint`.
    pub waypoint: Waypoint,
    /// Who certifies the batch after the head.
    pub epoch: EpochStatus,
    /// Under which rules the chain goes on, and the forks to come.
    pub rules: RulesStatus,
    /// Following the chain.
    pub sync: SyncStatus,
    /// How new batches came and went.
    pub mesh: MeshStatus,
    /// Serving it to peers.
    pub serve: ServeStatus,
    /// Certifying it; validators only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consensus: Option<ConsensusStatus>,
    /// What the last batches touched, kept for the next, whether sync or consensus committed them.
    pub hot_cache: HotStats,
    /// What execution waited for, whether sync or consensus executed.
    pub stalls: StallStats,
    /// The transaction pool.
    pub pool: PoolStatus,
    /// The room that the database has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskStatus>,
    /// Connected peers.
    pub peers: Vec<ConnectedPeer>,
    /// The peers of `network.peers`, and those that the operator added.
    pub configured_peers: Vec<ConfiguredPeerStatus>,
    /// Who is not let in: at most 256 of them, the operator's bans first.
    pub bans: Vec<BanStatus>,
    /// How many bans stand.
    pub bans_count: usize,
    /// Peer exchange.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exchange: Option<PeerExchangeStatus>,
    /// Keys that more than one node uses.
    pub shared_keys: Vec<SharedKeyStatus>,
}

/// The file system of the database.
#[derive(Debug, Serialize)]
pub struct DiskStatus {
    /// Free for the node now.
    pub free_bytes: u64,
    /// Below this the node stops: `storage.disk_free_min_mib`. 0 is no limit.
    pub min_bytes: u64,
}

/// The epoch of the batch after the head.
#[derive(Debug, Serialize)]
pub struct EpochStatus {
    /// Its number.
    pub number: Epoch,
    /// Its validators, in the order in which they are primary.
    pub validators: Vec<PublicKey>,
    /// How many of them may fail.
    pub failures: Failures,
    /// Signatures that make a certificate.
    pub quorum: usize,
    /// The contract that says who validates the next one; none on a chain that keeps its validators.
    pub contract: Option<Address>,
}

/// Under which rules the chain goes on.
#[derive(Debug, Serialize)]
pub struct RulesStatus {
    /// Of the batch after the head; zeros are those of the genesis.
    pub id: RulesId,
    /// EVM rules.
    pub fork: Fork,
    /// The fork of this node's schedule that comes next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Forks that peers' schedules have and this node's lacks: it stops there if the validators have them.
    pub unknown: Vec<String>,
}

impl RulesStatus {
    fn of(store: &Store) -> Result<RulesStatus, StorageError> {
        let Head { header, .. } = store.head()?;
        let (number, timestamp_ms, chain) = (header.number.next(), header.timestamp_ms, store.chain()?);
        let rules = chain.rules_at(number, timestamp_ms);
        Ok(RulesStatus {
            id: rules.id,
            fork: rules.fork,
            next: chain.next_fork(number, timestamp_ms).map(|(fork, _)| fork.to_string()),
            unknown: store.unknown_forks().iter().map(ToString::to_string).collect(),
        })
    }
}

/// The last committed batch.
#[derive(Debug, Serialize)]
pub struct HeadStatus {
    /// Its number.
    pub number: BatchNumber,
    /// Its header's digest: the block hash of JSON-RPC.
    pub digest: Digest,
    /// Root of the state after it.
    pub state_root: Digest,
    /// Milliseconds since 1970.
    pub timestamp_ms: u64,
}

/// Everything that a status is read from.
pub(crate) struct StatusSource {
    pub(crate) role: Role,
    pub(crate) address: PeerAddress,
    pub(crate) chain_id: u64,
    pub(crate) genesis: Digest,
    /// The genesis as a waypoint, for as long as nothing else is certified here.
    pub(crate) origin: Waypoint,
    pub(crate) store: Store,
    pub(crate) pool: Pool,
    pub(crate) forwarder: Arc<Forwarder>,
    pub(crate) follower: Arc<Follower>,
    pub(crate) server: Arc<SyncServer>,
    pub(crate) seat: Arc<Seat>,
    pub(crate) validators_contract: Option<Address>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) broadcaster: Arc<Broadcaster>,
    pub(crate) health: Arc<HealthSource>,
    pub(crate) log: Log,
}

impl StatusSource {
    /// Reads the status. Blocks on the store for a moment.
    pub(crate) fn read(&self) -> Result<NodeStatus, StorageError> {
        let head = self.store.head()?;
        let certificate = self.store.latest_certificate()?;
        let sync = self.follower.status();
        let (contacts, bans) = (self.transport.contacts(), self.transport.bans());
        let validator = self.seat.validator();
        let consensus = validator.as_ref().map(|validator| validator.status());
        Ok(NodeStatus {
            client: client_version(),
            chain_id: self.chain_id,
            genesis: self.genesis,
            role: self.role,
            peer_id: self.address.id,
            network_address: self.address.address.to_string(),
            peer_address: self.address.to_string(),
            health: self.health.judge(&head.header, &sync, consensus.as_ref(), &contacts),
            head: HeadStatus {
                number: head.header.number,
                digest: head.digest,
                state_root: head.header.state_root,
                timestamp_ms: head.header.timestamp_ms,
            },
            waypoint: certificate.map_or(self.origin, |certificate| Waypoint::of(&certificate.info)),
            epoch: self.epoch(),
            rules: RulesStatus::of(&self.store)?,
            sync,
            mesh: self.broadcaster.status(),
            serve: self.server.status(),
            consensus,
            hot_cache: self.follower.hot_stats(),
            stalls: self.follower.stall_stats(),
            pool: self.pool.status(),
            disk: self
                .store
                .disk_room()?
                .map(|DiskRoom { free_bytes, min_bytes }| DiskStatus { free_bytes, min_bytes }),
            peers: self.transport.peer_stats().into_iter().map(ConnectedPeer::from).collect(),
            configured_peers: ConfiguredPeerStatus::all(&contacts, Instant::now()),
            bans: BanStatus::first(&bans, Instant::now()),
            bans_count: bans.len(),
            exchange: self.transport.exchange().map(PeerExchangeStatus::from),
            shared_keys: contacts.shared_keys.iter().map(SharedKeyStatus::from).collect(),
        })
    }

    /// What proves that validators lied, if this node is one.
    pub(crate) fn evidence(&self) -> Vec<Proof> {
        self.seat.validator().map(|validator| validator.evidence()).unwrap_or_default()
    }

    /// The validator that this node is now.
    pub(crate) fn validator(&self) -> Option<Validator> {
        self.seat.validator()
    }

    fn epoch(&self) -> EpochStatus {
        let set = self.seat.set();
        EpochStatus {
            number: set.epoch,
            validators: set.validators.iter().map(|validator| validator.public_key).collect(),
            failures: set.failures,
            quorum: set.quorum(),
            contract: self.validators_contract,
        }
    }

    /// Brings the sampled metrics up to date.
    pub(crate) fn sample(&self, metrics: &Metrics) -> Result<(), StorageError> {
        let status = self.read()?;
        metrics.head_number.set(gauge(status.head.number.get()));
        metrics.unknown_forks.set(gauge(status.rules.unknown.len() as u64));
        sample_health(&status.health, metrics);
        metrics.certificate_number.set(gauge(status.waypoint.number.get()));
        metrics.epoch_number.set(gauge(status.epoch.number.0));
        metrics.epoch_validators.set(gauge(status.epoch.validators.len() as u64));
        metrics.sync_target_number.set(gauge(status.sync.target.get()));
        metrics.sync_phase.reset();
        metrics.sync_phase.with_label_values(&[status.sync.phase.name()]).set(1);
        raise(&metrics.sync_batches, status.sync.batches);
        raise(&metrics.sync_batches_replayed, status.sync.batches_replayed);
        raise(&metrics.sync_batches_announced, status.sync.batches_announced);
        raise(&metrics.sync_transactions, status.sync.transactions);
        raise(&metrics.sync_received_bytes, status.sync.bytes_received);
        sample_foresight(&status, metrics);
        sample_consensus(status.consensus.as_ref(), metrics);
        sample_pipeline(&status.sync, metrics);
        let reads = self.store.read_counts();
        raise(&metrics.storage_keys_read, reads.keys);
        raise(&metrics.storage_blocks_read, reads.blocks);
        raise(&metrics.serve_answers, status.serve.answers);
        raise(&metrics.serve_bytes, status.serve.bytes);
        raise(&metrics.serve_cache_hits, status.serve.cache_hits);
        raise(&metrics.serve_cache_misses, status.serve.cache_misses);
        metrics.serve_cache_bytes.set(gauge(status.serve.cache_bytes));
        raise(&metrics.serve_refused_busy, status.serve.refused_busy);
        metrics.storage_disk_free_bytes.set(gauge(status.disk.as_ref().map_or(0, |disk| disk.free_bytes)));
        raise(&metrics.log_lines_lost, self.log.lines_lost());
        for (reason, count) in self.transport.turned_away() {
            raise(&metrics.network_turned_away.with_label_values(&[reason.name()]), count);
        }
        sample_mesh(&status.mesh, metrics);
        sample_peers(&status.peers, &status.configured_peers, status.shared_keys.len(), metrics);
        if let Some(exchange) = &status.exchange {
            sample_exchange(exchange, metrics);
        }
        metrics.pool_pending.set(gauge(status.pool.pending as u64));
        metrics.pool_queued.set(gauge(status.pool.queued as u64));
        metrics.pool_bytes.set(gauge(status.pool.bytes as u64));
        metrics.pool_tip_min_wei.set(gauge(status.pool.tip_min_wei));
        metrics.pool_journal_bytes.set(gauge(self.forwarder.journal_bytes()));
        for (reason, count) in self.pool.refused() {
            raise(&metrics.pool_refused.with_label_values(&[reason.name()]), count);
        }
        Ok(())
    }
}

/// Whether it is ready, and why not. What nobody can tell is NaN: a series that comes and goes is hard to alert on.
fn sample_health(health: &Health, metrics: &Metrics) {
    metrics.head_age_seconds.set(health.head_age_seconds.unwrap_or(f64::NAN));
    metrics.sync_eta_seconds.set(health.eta_seconds.unwrap_or(f64::NAN));
    metrics.ready.set(health.ready.into());
    let found = health.blocker.as_ref().map(|blocker| blocker.reason);
    for reason in Reason::ALL {
        metrics.blocker.with_label_values(&[reason.name()]).set((found == Some(reason)).into());
    }
}

/// How agreement goes, as this validator sees it.
fn sample_consensus(consensus: Option<&ConsensusStatus>, metrics: &Metrics) {
    let Some(status) = consensus else {
        // It may have been a validator in the epoch before.
        return [&metrics.consensus_primary, &metrics.consensus_unsettled]
            .into_iter()
            .for_each(|it| it.set(0));
    };
    metrics.consensus_view.set(gauge(status.view));
    metrics.consensus_primary.set(status.is_primary.into());
    metrics.consensus_unsettled.set((status.complains || status.changing).into());
    raise(&metrics.consensus_divergences, status.divergences);
    raise(&metrics.consensus_refused, status.refused);
    metrics.consensus_evidence.set(gauge(status.evidence.len() as u64));
}

/// What execution found read already.
fn sample_foresight(status: &NodeStatus, metrics: &Metrics) {
    let (hints, foretold, hot) = (status.sync.hints, status.sync.foretold, status.hot_cache);
    raise(&metrics.hints_named, hints.named);
    raise(&metrics.hints_used, hints.used);
    raise(&metrics.hints_reads, hints.reads);
    raise(&metrics.hints_values_wrong, hints.values_wrong);
    raise(&metrics.predictors_named, foretold.named);
    raise(&metrics.predictors_used, foretold.used);
    raise(&metrics.predictors_reads, foretold.reads);
    raise(&metrics.hot_cache_hits, hot.hits);
    raise(&metrics.hot_cache_misses, hot.misses);
    metrics.hot_cache_bytes.set(gauge(hot.bytes as u64));
    raise(&metrics.execute_stalls, status.stalls.stalls);
    raise(&metrics.execute_stalled_seconds, status.stalls.seconds);
}

/// Where sync spends its time, and how far it is.
fn sample_pipeline(sync: &SyncStatus, metrics: &Metrics) {
    for stage in &sync.stages {
        let label = [stage.stage.name()];
        raise(&metrics.sync_stage_busy_seconds.with_label_values(&label), stage.busy_seconds);
        raise(&metrics.sync_stage_bytes.with_label_values(&label), stage.bytes);
        metrics.sync_stage_queue_bytes.with_label_values(&label).set(gauge(stage.queue_bytes));
    }
    metrics.sync_requests.set(gauge(sync.requests as u64));
    raise(&metrics.sync_hedges, sync.hedges);
    raise(&metrics.sync_audited, sync.audited);
    raise(&metrics.sync_audits_skipped, sync.audits_skipped);
    metrics.sync_alarm.set(sync.alarm.is_some().into());
    if let Some(repair) = &sync.repair {
        metrics.sync_repair_bytes.set(gauge(repair.bytes));
        metrics.sync_repair_rows.set(gauge(repair.rows_put + repair.rows_removed + repair.codes));
    }
    metrics.sync_restore_ratio.set(sync.snapshot.as_ref().map_or(0.0, |snapshot| snapshot.share));
}

pub(super) fn gauge(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
