//! The part of `/v1/status` and the metrics about peers: connected and configured peers, and keys with more than one
//! user.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use slipstream_base::clock::SystemClock;
use slipstream_network::{
    Ban, BanEnd, BannedBy, ConfiguredPeer, ContactKind, ContactState, Contacts, ExchangeEvent,
    ExchangeStatus, PeerId, PeerStats, PeerTarget, SharedKey,
};
use slipstream_types::Clock as _;
use tokio::time::Instant;

use crate::metrics::{Metrics, gauge, raise};

/// Maximum number of bans that the status lists; it also states the total.
const BANS_SHOWN_MAX: usize = 256;

/// Where this node knows a peer from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PeerFrom {
    /// `network.peers` names it.
    Config,
    /// The operator added it.
    Added,
    /// The peer connected to this node, or other peers reported it.
    #[default]
    Found,
}

impl PeerFrom {
    /// Its serialised form.
    pub fn name(self) -> &'static str {
        match self {
            PeerFrom::Config => "config",
            PeerFrom::Added => "added",
            PeerFrom::Found => "found",
        }
    }
}

/// One open connection.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ConnectedPeer {
    /// The peer's key.
    pub id: PeerId,
    /// Its name in `network.names`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where this node knows the peer from.
    #[serde(default)]
    pub from: PeerFrom,
    /// The peer's address.
    pub address: Option<String>,
    /// Bytes sent on this connection.
    pub bytes_sent: u64,
    /// Bytes received on this connection.
    pub bytes_received: u64,
    /// Round-trip time in milliseconds.
    pub rtt_ms: f64,
    /// Seconds since the connection was made.
    pub connected_seconds: u64,
}

impl ConnectedPeer {
    pub(super) fn all(connected: Vec<PeerStats>, contacts: &Contacts) -> Vec<ConnectedPeer> {
        let from: BTreeMap<PeerId, PeerFrom> = contacts
            .configured
            .iter()
            .map(|it| (it.peer.id, if it.is_added { PeerFrom::Added } else { PeerFrom::Config }))
            .collect();
        let of = |peer: PeerStats| ConnectedPeer::of(from.get(&peer.id).copied().unwrap_or_default(), peer);
        connected.into_iter().map(of).collect()
    }

    fn of(from: PeerFrom, peer: PeerStats) -> ConnectedPeer {
        ConnectedPeer {
            id: peer.id,
            name: None,
            from,
            address: peer.address.map(|address| address.to_string()),
            bytes_sent: peer.bytes_sent,
            bytes_received: peer.bytes_received,
            rtt_ms: peer.rtt_ms,
            connected_seconds: peer.since.elapsed().as_secs(),
        }
    }
}

/// A peer from `network.peers`, or one that the operator added, connected or not.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ConfiguredPeerStatus {
    /// The peer as configured.
    pub peer: PeerTarget,
    /// Its name in `network.names`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The state of the contact with it.
    pub state: ContactKind,
    /// Seconds since it connected, or since it was lost; none during the first attempt, and for a banned peer.
    pub seconds: Option<u64>,
    /// Consecutive failed attempts.
    pub attempts: u32,
    /// Milliseconds until the next attempt; 0 during one, none while connected.
    pub next_attempt_ms: Option<u64>,
    /// Why there is no connection, and what to do.
    pub problem: Option<String>,
    /// Whether the operator added it, rather than the configuration.
    pub added: bool,
}

impl ConfiguredPeerStatus {
    fn of(configured: &ConfiguredPeer, now: Instant) -> ConfiguredPeerStatus {
        let ago = |since: Instant| Some(now.saturating_duration_since(since).as_secs());
        let until = |at: Instant| Some(at.saturating_duration_since(now).as_millis() as u64);
        let (seconds, attempts, next_attempt_ms) = match configured.state {
            ContactState::Connected { since } => (ago(since), 0, None),
            ContactState::Connecting => (None, 0, Some(0)),
            ContactState::Failing { since, attempts, next_attempt, .. } => {
                (ago(since), attempts, until(next_attempt))
            }
            ContactState::Banned { until: end, .. } => (None, 0, end.instant().and_then(until)),
        };
        let (peer, state, problem) = (configured.peer.clone(), configured.state.kind(), configured.trouble());
        let added = configured.is_added;
        ConfiguredPeerStatus { peer, name: None, state, seconds, attempts, next_attempt_ms, problem, added }
    }

    pub(super) fn all(contacts: &Contacts, now: Instant) -> Vec<ConfiguredPeerStatus> {
        contacts.configured.iter().map(|configured| ConfiguredPeerStatus::of(configured, now)).collect()
    }
}

/// A peer from `network.peers` that the operator removed: the node neither dials it nor reserves a place for it.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RemovedPeerStatus {
    /// The peer as configured, in the form that `slipstream peers add` accepts.
    pub peer: PeerTarget,
    /// Its name in `network.names`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl RemovedPeerStatus {
    pub(super) fn of(peer: &PeerTarget) -> RemovedPeerStatus {
        RemovedPeerStatus { peer: peer.clone(), name: None }
    }
}

/// A ban in force. It survives a restart, whether the node or the operator imposed it.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct BanStatus {
    /// The banned peer.
    pub id: PeerId,
    /// Its name in `network.names`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether this node banned it for what it sent, or the operator did.
    pub by: BannedBy,
    /// The reason.
    pub reason: String,
    /// Seconds until it ends; `None` if it holds until it is lifted.
    pub seconds_left: Option<u64>,
    /// When it ends, in milliseconds since 1970 by this node's clock; `None` if it holds until it is lifted.
    pub until_ms: Option<u64>,
}

impl BanStatus {
    /// The status of this ban.
    pub fn of(ban: &Ban, now: Instant) -> BanStatus {
        let left = match ban.until {
            BanEnd::At(until) => Some(until.saturating_duration_since(now)),
            BanEnd::Never => None,
        };
        BanStatus {
            id: ban.peer,
            name: None,
            by: ban.by,
            reason: ban.reason.clone(),
            seconds_left: left.map(|left| left.as_secs()),
            until_ms: left.map(|left| SystemClock.now_ms().saturating_add(left.as_millis() as u64)),
        }
    }

    /// The first bans, the operator's before those of the node.
    pub(super) fn first(bans: &[Ban], now: Instant) -> Vec<BanStatus> {
        bans.iter().take(BANS_SHOWN_MAX).map(|ban| BanStatus::of(ban, now)).collect()
    }
}

/// A key that more than one node used within the last minute.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SharedKeyStatus {
    /// The key.
    pub id: PeerId,
    /// Its name in `network.names`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether it is this node's own.
    pub own: bool,
    /// The known addresses of its users.
    pub addresses: Vec<String>,
    /// What that means, and what to do.
    pub problem: String,
}

impl From<&SharedKey> for SharedKeyStatus {
    fn from(key: &SharedKey) -> Self {
        let addresses = key.addresses.iter().map(ToString::to_string).collect();
        SharedKeyStatus { id: key.id, name: None, own: key.own, addresses, problem: key.to_string() }
    }
}

/// Peer exchange: the peers that the node chose itself, and how many it knows.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PeerExchangeStatus {
    /// The addresses that the node advertises for itself.
    pub advertised: Vec<String>,
    /// Maximum number of connections of its own choice that it keeps.
    pub outbound_max: usize,
    /// The connected peers that it chose, longest connected first.
    pub chosen: Vec<PeerId>,
    /// Their names in `network.names`, by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub names: BTreeMap<PeerId, String>,
    /// Peers in the address book that others reported, or that connected to this node.
    pub heard: usize,
    /// Peers in the address book that the node has dialled.
    pub reached: usize,
    /// How often each event happened since the start.
    pub events: BTreeMap<ExchangeEvent, u64>,
}

impl From<ExchangeStatus> for PeerExchangeStatus {
    fn from(status: ExchangeStatus) -> Self {
        PeerExchangeStatus {
            advertised: status.advertised.iter().map(ToString::to_string).collect(),
            outbound_max: status.outbound_max,
            chosen: status.chosen,
            names: BTreeMap::new(),
            heard: status.heard,
            reached: status.reached,
            events: status.events.into_iter().collect(),
        }
    }
}

/// Sets the metrics of peer exchange.
pub(super) fn sample_exchange(status: &PeerExchangeStatus, metrics: &Metrics) {
    metrics.network_chosen_peers.set(gauge(status.chosen.len() as u64));
    for (part, count) in [("heard", status.heard), ("reached", status.reached)] {
        metrics.network_addresses.with_label_values(&[part]).set(gauge(count as u64));
    }
    for (event, count) in &status.events {
        raise(&metrics.network_exchange.with_label_values(&[event.name()]), *count);
    }
}

/// Sets the metrics of connected and configured peers.
pub(super) fn sample_peers(
    connected: &[ConnectedPeer],
    configured: &[ConfiguredPeerStatus],
    shared_keys: usize,
    metrics: &Metrics,
) {
    let sum = |bytes: fn(&ConnectedPeer) -> u64| connected.iter().map(bytes).sum::<u64>();
    metrics.network_peers.set(gauge(connected.len() as u64));
    metrics.network_sent_bytes.set(gauge(sum(|peer| peer.bytes_sent)));
    metrics.network_received_bytes.set(gauge(sum(|peer| peer.bytes_received)));
    metrics.network_shared_keys.set(gauge(shared_keys as u64));
    // Added peers may have been removed.
    metrics.network_configured_peer_up.reset();
    for &state in ContactKind::ALL {
        let count = configured.iter().filter(|peer| peer.state == state).count();
        metrics.network_configured_peers.with_label_values(&[state.name()]).set(gauge(count as u64));
    }
    for peer in configured {
        let is_up = peer.state == ContactKind::Connected;
        metrics.network_configured_peer_up.with_label_values(&[&peer.peer.to_string()]).set(is_up.into());
    }
}
