//! [`Judge`]: derives health from signs, and remembers since when they hold. Pure: time and signs are inputs.

use std::time::Duration;

use slipstream_base::about;
use slipstream_consensus::Silence;
use slipstream_sync::Phase;
use slipstream_types::BatchNumber;
use tokio::time::Instant;

use super::{Blocker, Health, Reason, SilenceStatus, State};

/// Batches behind from which a node counts as catching up; smaller gaps come and go with every batch at the head.
const BEHIND_BATCHES: u64 = 16;
/// A node that was catching up is at the head again when it is at most this many batches behind. The gap between the
/// two limits keeps its state from changing with every batch.
const AT_HEAD_BATCHES: u64 = 2;
/// A node that was unready becomes ready again only this many times nearer to the head. So readiness does not flap with
/// every batch.
const READY_AGAIN_NEARER: u32 = 8;
/// The time after which missing peers raise an alert; the restart of a single peer takes less.
const NO_PEERS_AFTER: Duration = Duration::from_secs(5);
/// The time after which a node behind the head that receives nothing is stalled: three request deadlines. A slow peer
/// takes less.
const STALLED_AFTER: Duration = Duration::from_secs(30);

/// The operator's requirements for a node.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The maximum age of the head: `sync.head_age_max_s`.
    pub head_age_max: Option<Duration>,
    /// The maximum number of certified batches ahead of the head: `sync.head_lag_max_batches`.
    pub head_lag_max: Option<u64>,
}

/// The signs from which health is judged.
#[derive(Clone, Debug, Default)]
pub(super) struct HealthSigns {
    pub(super) head: BatchNumber,
    /// The distance of the head's timestamp from the clock; `None` before the first batch.
    pub(super) head_age: Option<Duration>,
    /// Whether the head's timestamp lies ahead of the clock.
    pub(super) is_ahead: bool,
    /// Before the first batch: the time until the genesis's timestamp, 0 once that has passed.
    pub(super) begins_in: Option<Duration>,
    pub(super) phase: Phase,
    /// The reason why sync waits, while it waits.
    pub(super) waiting: Option<String>,
    /// The highest certified batch that any peer has ever announced, or the waypoint's.
    pub(super) target: BatchNumber,
    /// The batch of the operator's waypoint, until the ledger has passed it.
    pub(super) waypoint: Option<BatchNumber>,
    /// Peers that reported their head recently.
    pub(super) heard: usize,
    /// The highest of these heads.
    pub(super) newest: BatchNumber,
    /// Bytes and rows received since start.
    pub(super) received: (u64, u64),
    pub(super) connected: usize,
    /// Whether the node depends on others. Only the validator of a chain with one validator can work alone.
    pub(super) needs_peers: bool,
    pub(super) configured: usize,
    /// Configured peers that the operator removed, and that are not dialled.
    pub(super) removed: usize,
    /// Why peers are missing: the reason for one configured peer, or the reason that keeps all away.
    pub(super) missing: Option<String>,
    /// When sync will retry what it waits for.
    pub(super) retry: Option<Duration>,
    /// When the next configured peer will be dialled.
    pub(super) redial: Option<Duration>,
    /// The votes on the current batch, and the validators that do not vote.
    pub(super) votes: Option<String>,
    /// Why this validator signs nothing.
    pub(super) silence: Option<Silence>,
    pub(super) batches_per_second: f64,
    pub(super) transactions_per_second: f64,
    pub(super) eta_seconds: Option<f64>,
}

/// Judges signs, in chronological order.
#[derive(Debug)]
pub(super) struct Judge {
    rules: Rules,
    started: Instant,
    /// When a peer was last heard.
    heard_at: Option<Instant>,
    /// When the head last moved since start.
    moved_at: Option<Instant>,
    /// When the head moved before that.
    moved_before: Option<Instant>,
    /// When anything last arrived or was processed.
    busy_at: Instant,
    last: Option<(BatchNumber, (u64, u64))>,
    state: State,
    /// Whether the node lags so far that callers should go elsewhere. The lag ends nearer to the head than it begins.
    lags: bool,
    /// Whether the node's head is too old. A more recent head, or several moves of the head, clear this.
    is_old: bool,
    /// The head at which it started to sync; `None` unless it is syncing.
    pub(super) syncing_from: Option<BatchNumber>,
}

impl Judge {
    pub(super) fn new(rules: Rules, now: Instant) -> Judge {
        Judge {
            rules,
            started: now,
            heard_at: None,
            moved_at: None,
            moved_before: None,
            busy_at: now,
            last: None,
            state: State::WaitingForPeers,
            lags: false,
            is_old: false,
            syncing_from: None,
        }
    }

    /// Judges the current signs.
    pub(super) fn judge(&mut self, signs: &HealthSigns, now: Instant) -> Health {
        self.remember(signs, now);
        let behind = signs.target.since(signs.head);
        self.state = self.state(signs, behind);
        self.lags = self.lags(behind);
        self.is_old = self.is_old(signs, now);
        let blocker = self.blocker(signs, behind, now);
        let reason = blocker.as_ref().map(|blocker| blocker.reason);
        let syncing = match reason {
            Some(Reason::Behind | Reason::Stalled) => true,
            Some(Reason::NoPeers) => behind > 0 || self.heard_at.is_none() || self.is_old,
            Some(Reason::Halted | Reason::NoBatch) => false,
            // The operator may accept a node as ready although it is far behind. Callers still learn the distance.
            None => behind >= BEHIND_BATCHES,
        };
        self.syncing_from = syncing.then(|| self.syncing_from.unwrap_or(signs.head));
        Health {
            ready: blocker.is_none(),
            state: self.state,
            syncing,
            blocker,
            silence: signs.silence.map(SilenceStatus::from),
            head: signs.head,
            head_age_seconds: signs.head_age.map(|age| match signs.is_ahead {
                true => -age.as_secs_f64(),
                false => age.as_secs_f64(),
            }),
            behind_batches: behind,
            peers_connected: signs.connected,
            peers_configured: signs.configured,
            batches_per_second: signs.batches_per_second,
            transactions_per_second: signs.transactions_per_second,
            eta_seconds: match reason {
                Some(Reason::NoPeers | Reason::Stalled | Reason::Halted | Reason::NoBatch) => None,
                Some(Reason::Behind) => signs.eta_seconds,
                None if self.state == State::WaitingForPeers => None,
                None if behind == 0 => Some(0.0),
                None => signs.eta_seconds,
            },
        }
    }

    fn remember(&mut self, signs: &HealthSigns, now: Instant) {
        if signs.heard > 0 {
            self.heard_at = Some(now);
        }
        let seen = (signs.head, signs.received);
        if self.last.is_some_and(|(head, _)| head != signs.head) {
            self.moved_before = self.moved_at.replace(now);
        }
        if self.last != Some(seen) || signs.waiting.is_none() {
            self.busy_at = now;
        }
        self.last = Some(seen);
    }

    fn state(&self, signs: &HealthSigns, behind: u64) -> State {
        let behind_max = match self.state {
            State::CatchingUp | State::Restoring => AT_HEAD_BATCHES,
            _ => BEHIND_BATCHES - 1,
        };
        match signs.phase {
            Phase::Snapshot | Phase::RangeDelta => State::Restoring,
            Phase::Stuck => State::Stuck,
            _ if signs.needs_peers && signs.heard == 0 => State::WaitingForPeers,
            _ if behind > behind_max => State::CatchingUp,
            _ => State::AtHead,
        }
    }

    fn lags(&self, behind: u64) -> bool {
        self.rules.head_lag_max.is_some_and(|most| match self.lags {
            true => behind > most.saturating_add(1) / u64::from(READY_AGAIN_NEARER),
            false => behind > most,
        })
    }

    /// Whether the head is too old. A head that moves at this node counts as new, whatever its timestamp. A clock may
    /// be wrong, or the chain's time may be catching up after a pause. A head that was too old is new again if its
    /// timestamp is much nearer, or if it moves twice in time. A single step of a nearly stuck node is not enough.
    fn is_old(&self, signs: &HealthSigns, now: Instant) -> bool {
        let Some((most, age)) = self.rules.head_age_max.zip(signs.head_age) else { return false };
        let is_long_ago = |at: Option<Instant>| at.is_none_or(|at| now.saturating_duration_since(at) > most);
        match self.is_old {
            true => age > most / READY_AGAIN_NEARER && is_long_ago(self.moved_before),
            false => age > most && is_long_ago(self.moved_at),
        }
    }

    /// The first fault that applies; later ones may be its consequences.
    fn blocker(&self, signs: &HealthSigns, behind: u64, now: Instant) -> Option<Blocker> {
        let since = |at: Instant| now.saturating_duration_since(at);
        let unheard = since(self.heard_at.unwrap_or(self.started));
        let is_unheard = self.heard_at.is_none() || unheard >= NO_PEERS_AFTER;
        if signs.needs_peers && signs.heard == 0 && is_unheard {
            let alert = unheard >= NO_PEERS_AFTER;
            return Some(blocker(Reason::NoPeers, no_peers(signs), alert, signs.redial));
        }
        let idle = since(self.busy_at);
        if behind > 0 && idle >= STALLED_AFTER {
            let why = signs.waiting.as_deref().unwrap_or("nothing arrives");
            let text = format!(
                "{}, and has received nothing for {} s: {why}",
                is_behind(signs, behind),
                idle.as_secs()
            );
            return Some(blocker(Reason::Stalled, text, true, signs.retry));
        }
        if let Some(waypoint) = signs.waypoint {
            let text = format!(
                "the ledger has not passed the waypoint at batch {waypoint} yet: {}",
                is_behind(signs, behind)
            );
            return Some(blocker(Reason::Behind, text, false, signs.retry));
        }
        if self.lags || (behind > 0 && self.is_old) {
            let why = signs.waiting.as_ref().map_or_else(String::new, |why| format!(": {why}"));
            let text = format!("{}{why}", is_behind(signs, behind));
            return Some(blocker(Reason::Behind, text, false, signs.retry));
        }
        if let Some(left) = signs.begins_in.filter(|left| !left.is_zero()) {
            let text = format!(
                "the chain begins in {}, according to its genesis time and this machine's clock",
                about(left)
            );
            return Some(blocker(Reason::NoBatch, text, false, None));
        }
        let up = since(self.started);
        let is_late = self.rules.head_age_max.is_some_and(|most| up > most);
        match signs.head_age {
            None if is_late => {
                let text = format!(
                    "the chain has no batch yet, {} s after this node started{}",
                    up.as_secs(),
                    votes(signs)
                );
                Some(blocker(Reason::NoBatch, text, true, None))
            }
            Some(age) if self.is_old => Some(blocker(Reason::Halted, halted(signs, age), true, None)),
            _ => None,
        }
    }
}

fn blocker(reason: Reason, text: String, alert: bool, retry: Option<Duration>) -> Blocker {
    let retry_ms = retry.map(|retry| u64::try_from(retry.as_millis()).unwrap_or(u64::MAX));
    Blocker { reason, text, alert, retry_ms }
}

fn is_behind(signs: &HealthSigns, behind: u64) -> String {
    let batches = if behind == 1 { "batch" } else { "batches" };
    format!(
        "this node is {behind} {batches} behind: its head is {}, the newest certified batch {}",
        signs.head, signs.target
    )
}

fn halted(signs: &HealthSigns, age: Duration) -> String {
    let newest = match signs.heard {
        0 => format!("its last one is {}", signs.head),
        1 => format!("the newest certified batch that its only peer has is {}", signs.newest),
        heard => format!("the newest certified batch that any of {heard} peers has is {}", signs.newest),
    };
    if signs.is_ahead {
        return format!(
            "the newest batch was made {} ahead of this machine's clock, and none has come since: set the clock; {newest}{}",
            about(age),
            votes(signs)
        );
    }
    format!("the chain has made no batch for {} s: {newest}{}", age.as_secs(), votes(signs))
}

fn votes(signs: &HealthSigns) -> String {
    let silence = signs
        .silence
        .map(|silence| format!("this validator signs nothing: {silence}; {}", silence.way_out()));
    silence.iter().chain(&signs.votes).map(|text| format!("; {text}")).collect()
}

fn no_peers(signs: &HealthSigns) -> String {
    let missing = signs.missing.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
    match (signs.connected, signs.configured) {
        (0, 0) if signs.removed > 0 => {
            "no peer is connected, and the operator removed those of network.peers: `slipstream peers add` adds them again".into()
        }
        (0, 0) => "no peer is connected, and network.peers names none".into(),
        (0, 1) => format!("no peer is connected: the configured one is unreachable{missing}"),
        (0, configured) => {
            format!("no peer is connected: all {configured} configured ones are unreachable{missing}")
        }
        (1, _) => "the only connected peer does not announce its head".into(),
        (connected, _) => format!("{connected} peers are connected, and none announces its head"),
    }
}

#[cfg(test)]
mod tests;
