//! [`Health`]: whether a node is healthy, and if not, why. Status, `/health`, metrics, `eth_syncing` and the log all
//! read this one struct.
//!
//! ```text
//!  store, follower, network, clock ─▶ HealthSigns ─▶ Judge ─▶ Health ─▶ /v1/status, /health, /metrics, eth_syncing
//!                                                               └──▶ HealthReporter ─▶ one line in ten seconds, and a warning on alerts
//! ```

mod judge;

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use slipstream_consensus::{ConsensusStatus, Silence};
use slipstream_network::{BanEnd, ConfiguredPeer, ContactState, Contacts, PeerTarget, Transport};
use slipstream_storage::{StorageError, Store};
use slipstream_sync::{Follower, SyncStatus};
use slipstream_types::{BatchHeader, BatchNumber, Clock};
use tokio::time::Instant;

pub use self::judge::Rules;
use self::judge::{HealthSigns, Judge};
use crate::{names::Names, seat::Seat};

/// A validator unheard for longer than this counts as silent: sync asks each connected one for its head twice a second.
pub const HEARD_WITHIN_MS: u64 = 10_000;

/// A peer whose last report of its head is older than this is not heard: peers are asked twice a second while all is
/// well.
const HEARD_WITHIN: Duration = Duration::from_secs(15);

/// A node's health at one moment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Health {
    /// Whether it has the chain's newest state, so that callers should be sent to it.
    pub ready: bool,
    /// The node's current activity.
    pub state: State,
    /// Why the node is not ready.
    pub blocker: Option<Blocker>,
    /// Why the node signs nothing although it runs as a validator. It serves reads like any node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silence: Option<SilenceStatus>,
    /// The answer of `eth_syncing`: whether the node is behind, or cannot know that it is not.
    pub syncing: bool,
    /// The last committed batch.
    pub head: BatchNumber,
    /// Seconds since that batch's timestamp, by this node's clock: negative if the timestamp is ahead of the clock,
    /// none before the first batch.
    pub head_age_seconds: Option<f64>,
    /// Certified batches after the head.
    pub behind_batches: u64,
    /// Connected peers, configured or not.
    pub peers_connected: usize,
    /// Peers in `network.peers`, except the node itself.
    pub peers_configured: usize,
    /// Batches per second over the last ten seconds.
    pub batches_per_second: f64,
    /// Transactions per second over the last ten seconds, in batches committed by following.
    pub transactions_per_second: f64,
    /// Seconds to the newest certified batch at this rate: 0 if the node is there, none while unknown.
    pub eta_seconds: Option<f64>,
}

/// A node's current activity. At the head, following batch after batch is one state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Follows batch after batch as they are produced.
    AtHead,
    /// Follows many batches that others already have.
    CatchingUp,
    /// Restores a snapshot, or takes the range delta up to one.
    Restoring,
    /// Hears from no peer.
    WaitingForPeers,
    /// Knows of batches that no peer serves in the form that its mode requires.
    Stuck,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::AtHead => "at the head",
            State::CatchingUp => "catching up",
            State::Restoring => "restoring",
            State::WaitingForPeers => "waiting for peers",
            State::Stuck => "stuck",
        })
    }
}

/// Why a node is not ready.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Blocker {
    /// Its kind, for programs.
    pub reason: Reason,
    /// The reason with names and numbers, for people.
    pub text: String,
    /// Whether somebody should look. Catching up ends by itself.
    pub alert: bool,
    /// Milliseconds until this node's next attempt, such as dialling a peer or asking another one; 0 during an attempt.
    /// `None` if the node waits for others.
    pub retry_ms: Option<u64>,
}

/// Why a validator's node signs nothing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SilenceStatus {
    /// The state, for programs.
    #[serde(flatten)]
    pub silence: Silence,
    /// The state in words, for people.
    pub text: String,
    /// What the operator can do.
    pub way_out: String,
}

impl From<Silence> for SilenceStatus {
    fn from(silence: Silence) -> SilenceStatus {
        let text = format!("this validator signs nothing: {silence}");
        SilenceStatus { silence, text, way_out: silence.way_out().to_owned() }
    }
}

/// The kinds of [`Blocker`].
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    strum::VariantArray,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Reason {
    /// No peer reports its head, and this node needs peers.
    NoPeers,
    /// Certified batches are ahead, and this node is catching up.
    Behind,
    /// Certified batches are ahead, and nothing arrives.
    Stalled,
    /// Nobody has a batch after the head, and the head is too old.
    Halted,
    /// The chain has not begun.
    NoBatch,
}

impl Reason {
    /// All of them.
    pub const ALL: &'static [Reason] = <Reason as strum::VariantArray>::VARIANTS;

    /// Its form in JSON and metrics.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The inputs from which a node's health is judged.
pub struct HealthSource {
    store: Store,
    follower: Arc<Follower>,
    /// `None` in tests of other parts: such a node works alone.
    seat: Option<Arc<Seat>>,
    transport: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    names: Arc<Names>,
    judge: Mutex<Judge>,
}

impl HealthSource {
    /// The health of a node with these parts; `seat` is `None` for a node that works alone.
    pub fn new(
        rules: Rules,
        store: Store,
        follower: Arc<Follower>,
        seat: Option<Arc<Seat>>,
        transport: Arc<dyn Transport>,
        clock: Arc<dyn Clock>,
        names: Arc<Names>,
    ) -> HealthSource {
        let judge = Mutex::new(Judge::new(rules, Instant::now()));
        HealthSource { store, follower, seat, transport, clock, names, judge }
    }

    /// Whether missing history is being fetched.
    pub fn is_backfilling(&self) -> bool {
        self.follower.is_backfilling()
    }

    /// The first batch whose past state is being fetched; `None` if none is.
    pub fn past_states_to_come(&self) -> Option<BatchNumber> {
        self.follower.past_states_to_come()
    }

    /// The time by the node's clock.
    pub fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Reads the health. Blocks on the store for a moment.
    pub fn read(&self) -> Result<Health, StorageError> {
        let head = self.store.head()?;
        let validator = self.seat.as_ref().and_then(|seat| seat.validator());
        let consensus = validator.map(|validator| validator.status());
        Ok(self.judge(&head.header, &self.follower.status(), consensus.as_ref(), &self.transport.contacts()))
    }

    /// The head at which the node started to sync, according to the last judgement; `None` unless it is syncing.
    pub fn syncing_from(&self) -> Option<BatchNumber> {
        self.judge.lock().syncing_from
    }

    /// Judges inputs that were already read.
    pub(crate) fn judge(
        &self,
        head: &BatchHeader,
        sync: &SyncStatus,
        consensus: Option<&ConsensusStatus>,
        contacts: &Contacts,
    ) -> Health {
        let connected = self.transport.peers().len();
        let mut signs = signs(head, self.clock.now_ms(), sync, consensus, contacts, connected);
        signs.missing = missing(contacts, &self.names);
        signs.silence = self.seat.as_ref().and_then(|seat| seat.silence(consensus));
        signs.needs_peers = self.seat.as_ref().is_some_and(|seat| seat.needs_peers());
        self.judge.lock().judge(&signs, Instant::now())
    }
}

/// The time until a configured peer is dialled again.
fn redial(state: &ContactState, now: Instant) -> Option<Duration> {
    match state {
        ContactState::Connecting => Some(Duration::ZERO),
        ContactState::Failing { next_attempt: at, .. }
        | ContactState::Banned { until: BanEnd::At(at), .. } => Some(at.saturating_duration_since(now)),
        ContactState::Connected { .. } | ContactState::Banned { until: BanEnd::Never, .. } => None,
    }
}

/// Why the first missing configured peer is not connected, prefixed with the peer's name.
fn missing(contacts: &Contacts, names: &Names) -> Option<String> {
    // Two nodes with one key displace each other at every peer, which explains the peers' errors.
    let shared = contacts.shared_keys.iter().find(|key| key.own).map(|key| names.call(&key.id, key));
    let trouble = |peer: &ConfiguredPeer| {
        let ConfiguredPeer { peer: PeerTarget { id, at }, .. } = peer;
        Some(names.call(id, format_args!("{at}: {}", peer.trouble()?)))
    };
    shared.or_else(|| contacts.configured.iter().find_map(trouble))
}

fn signs(
    head: &BatchHeader,
    now_ms: u64,
    sync: &SyncStatus,
    consensus: Option<&ConsensusStatus>,
    contacts: &Contacts,
    connected: usize,
) -> HealthSigns {
    let is_heard = |ms_ago: u64| Duration::from_millis(ms_ago) < HEARD_WITHIN;
    let heard = sync.peers.iter().filter(|peer| peer.heard_ms_ago.is_some_and(is_heard));
    // Peers on an empty chain report that they have no head.
    let heads: Vec<_> = heard.map(|peer| peer.head.unwrap_or_default()).collect();
    HealthSigns {
        head: head.number,
        // The genesis's timestamp says when the chain was planned, not that it runs.
        head_age: (head.number > BatchNumber::GENESIS)
            .then(|| Duration::from_millis(now_ms.abs_diff(head.timestamp_ms))),
        is_ahead: head.timestamp_ms > now_ms,
        begins_in: (head.number == BatchNumber::GENESIS)
            .then(|| Duration::from_millis(head.timestamp_ms.saturating_sub(now_ms))),
        phase: sync.phase,
        waiting: sync.waiting.as_ref().map(|waiting| waiting.reason.clone()),
        target: sync.target,
        waypoint: sync.waypoint,
        heard: heads.len(),
        newest: heads.into_iter().max().unwrap_or_default(),
        received: (sync.bytes_received, sync.snapshot.as_ref().map_or(0, |snapshot| snapshot.rows)),
        connected,
        needs_peers: false,
        silence: None,
        configured: contacts.configured.len(),
        removed: contacts.removed.len(),
        missing: None,
        retry: sync.waiting.as_ref().and_then(|waiting| waiting.retry_ms).map(Duration::from_millis),
        redial: contacts.configured.iter().filter_map(|peer| redial(&peer.state, Instant::now())).min(),
        votes: consensus.and_then(votes),
        batches_per_second: sync.batches_per_second,
        transactions_per_second: sync.transactions_per_second,
        eta_seconds: sync.eta_seconds,
    }
}

/// The votes for the next batch, and the validators that do not vote.
fn votes(status: &ConsensusStatus) -> Option<String> {
    let votes = status.voting.map(|votes| {
        let (number, most) = (votes.number, votes.prepares.max(votes.commits));
        let (quorum, view) = (status.quorum, status.view);
        format!("batch {number} has {most} of the {quorum} votes that it needs, in view {view}")
    });
    let all: Vec<String> = votes.into_iter().chain(status.silent(HEARD_WITHIN_MS)).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

#[cfg(test)]
mod tests {
    use slipstream_network::{ContactFailure, PeerName, SharedKey};

    use super::*;
    use crate::fixture::key;

    /// Goal: the first missing peer, or the key that two nodes share, is prefixed with its name. Without a name the
    /// text is unchanged.
    #[test]
    fn who_is_missing_has_its_name() {
        let now = Instant::now();
        let failing = |seed| ConfiguredPeer {
            peer: format!("{}@192.0.2.{seed}:7400", key(seed)).parse().unwrap(),
            state: ContactState::Failing {
                failure: ContactFailure::Unreachable("no answer within 5s".into()),
                since: now,
                attempts: 1,
                next_attempt: now,
            },
            is_added: false,
        };
        let connected = ConfiguredPeer { state: ContactState::Connected { since: now }, ..failing(2) };
        let mut contacts = Contacts { configured: vec![connected, failing(3)], ..Contacts::default() };
        let named =
            Names::new(&[2, 3].map(|seed| format!("{}=peer {seed}", key(seed)).parse::<PeerName>().unwrap()));
        assert_eq!(missing(&contacts, &named).unwrap(), "peer 3 192.0.2.3:7400: no answer within 5s");
        assert_eq!(missing(&contacts, &Names::default()).unwrap(), "192.0.2.3:7400: no answer within 5s");
        let id = contacts.configured[0].peer.id;
        contacts.shared_keys = vec![SharedKey { id, own: true, addresses: Vec::new() }];
        let shared = missing(&contacts, &named).unwrap();
        assert!(shared.starts_with("peer 2 another node uses this node's key "), "{shared}");
        assert_eq!(missing(&Contacts::default(), &named), None);
    }
}
