//! [`SyncStatus`]: the daemon's present state, for operators and metrics.

use std::fmt;

use serde::{Deserialize, Serialize};
use slipstream_network::PeerId;
use slipstream_types::BatchNumber;

use crate::{
    config::Mode,
    plan::{
        PlanStatus, Stage,
        part::{PeerMode, PeerModeReason},
        price::Bound,
    },
    repair::RepairReport,
    work::HintUse,
};

/// What a follower does now. Its text is part of the status, of metrics and of docs/operations.md.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Debug,
    Default,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    strum::VariantArray,
)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// It is at the head, or leaves the next batch to others in this process.
    Idle,
    /// No peer is connected.
    #[default]
    #[serde(rename = "waiting for peers")]
    WaitingForPeers,
    /// It restores a snapshot.
    Snapshot,
    /// It applies a range delta.
    #[serde(rename = "range delta")]
    RangeDelta,
    /// It executes batches.
    Replay,
    /// It applies deltas.
    Delta,
    /// No peer serves the next batch as the policy asks.
    Stuck,
}

impl Phase {
    /// Whether batches or rows are in flight.
    pub fn catches_up(self) -> bool {
        matches!(self, Phase::Snapshot | Phase::RangeDelta | Phase::Replay | Phase::Delta)
    }

    /// All phases.
    pub const ALL: &'static [Phase] = <Phase as strum::VariantArray>::VARIANTS;

    /// Its name in the status and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Idle => "idle",
            Phase::WaitingForPeers => "waiting for peers",
            Phase::Snapshot => "snapshot",
            Phase::RangeDelta => "range delta",
            Phase::Replay => "replay",
            Phase::Delta => "delta",
            Phase::Stuck => "stuck",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the follower is doing and did since it started.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SyncStatus {
    /// The configured mode.
    pub mode: Mode,
    /// What it does now.
    pub phase: Phase,
    /// Why it does that.
    pub reason: String,
    /// Why it stands still and when it tries again; `None` while it works.
    pub waiting: Option<Waiting>,
    /// What bounds the rate, if that is known; `None` at the target.
    pub bottleneck: Option<Bound>,
    /// Batches per second, lately.
    pub batches_per_second: f64,
    /// Transactions per second, lately.
    pub transactions_per_second: f64,
    /// Seconds to the target: the work ahead at the pace of the slowest stage. Never 0 while work is left; `None` at
    /// the target, and while nobody can tell.
    pub eta_seconds: Option<f64>,
    /// What each way to the target would take.
    pub plan: PlanStatus,
    /// The local head.
    pub head: BatchNumber,
    /// The highest certified batch that peers have shown since start, even peers that are gone, or the waypoint's.
    pub target: BatchNumber,
    /// The batch of the operator's waypoint until the ledger has passed it: before that nothing vouches for the state.
    pub waypoint: Option<BatchNumber>,
    /// Batches committed by following, since start.
    pub batches: u64,
    /// Of these, the batches executed here.
    pub batches_replayed: u64,
    /// Batches that came whole by announcement, so that nothing of them was fetched.
    pub batches_announced: u64,
    /// Transactions in these batches.
    pub transactions: u64,
    /// Bytes of verified answers and announcements.
    pub bytes_received: u64,
    /// Seconds spent behind the head.
    pub active_seconds: f64,
    /// Hinted keys that execution used, over the keys that it read; `None` before a batch with hints was replayed.
    pub hint_recall: Option<f64>,
    /// Hinted keys that execution used, over the hinted keys; `None` before a batch with hints was replayed.
    pub hint_precision: Option<f64>,
    /// The counts behind both, since start.
    pub hints: HintUse,
    /// The same for predictions, which stand in for batches without hints.
    pub foretold: HintUse,
    /// The running or last restore.
    pub snapshot: Option<SnapshotStatus>,
    /// The history that is fetched beside the head, newest first; `None` while nothing is missing.
    pub backfill: Option<BackfillStatus>,
    /// The past states that are restored by reverse deltas; `None` while none is missing that a peer knows.
    pub past_states: Option<PastStatesStatus>,
    /// The pipeline, stage by stage.
    pub stages: Vec<StageStatus>,
    /// Requests in flight.
    pub requests: usize,
    /// Requests that also went to a second peer because the first was late.
    pub hedges: u64,
    /// Batches applied by their deltas and executed again.
    pub audited: u64,
    /// Batches drawn for an audit and skipped, because too many waited.
    pub audits_skipped: u64,
    /// The last certified batch that execution did not reproduce.
    pub alarm: Option<String>,
    /// The last repair of the state, in this run or an earlier one.
    pub repair: Option<RepairReport>,
    /// Each peer, including banned ones with their reason.
    pub peers: Vec<PeerStatus>,
}

/// One stage, for operators.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct StageStatus {
    /// The stage.
    pub stage: Stage,
    /// Share of the last seconds in which it worked, in percent. Several jobs at once count each, so it may exceed 100.
    pub busy_percent: f64,
    /// Bytes that wait for it.
    pub queue_bytes: u64,
    /// Bytes per second that it processed in the last seconds.
    pub bytes_per_second: f64,
    /// Seconds of work since start.
    pub busy_seconds: f64,
    /// Bytes processed since start.
    pub bytes: u64,
}

/// Why the node stands still.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Waiting {
    /// What is missing.
    pub reason: String,
    /// Milliseconds until the next try; `None` if no clock decides that.
    pub retry_ms: Option<u64>,
}

/// Progress of a restore.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SnapshotStatus {
    /// The batch.
    pub number: BatchNumber,
    /// Rows restored.
    pub rows: u64,
    /// Rows in all, extrapolated from the share that is done; 0 at the very beginning.
    pub rows_total: u64,
    /// Rows restored per second since it began or was resumed.
    pub rows_per_second: f64,
    /// Seconds until the rows are in, at this rate.
    pub eta_seconds: Option<f64>,
    /// Share of the state's paths that is done, 0 to 1: paths are hashes, so this is the share of the rows too.
    pub share: f64,
    /// Rows kept from an older snapshot whose peers stopped serving it.
    pub rows_kept: u64,
    /// Bytes of these rows, which were not fetched again.
    pub bytes_kept: u64,
}

/// Progress of the history below the state that the node began at.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct BackfillStatus {
    /// The first batch that the windows of `storage.prune` keep. For a window of time or of bytes it is 1 until it is
    /// known.
    pub wanted_from: BatchNumber,
    /// The wanted bodies, receipts and deltas are stored from this batch on.
    pub lowest: BatchNumber,
    /// Number of batches from the first wanted one up to `lowest`.
    pub batches_left: u64,
    /// Batches stored per second, lately.
    pub batches_per_second: f64,
    /// Compressed bytes of these batches per second, lately.
    pub bytes_per_second: f64,
    /// Seconds until all are stored at this rate; `None` while it rests.
    pub eta_seconds: Option<f64>,
    /// Which peers are asked for what, or why it waits.
    pub reason: String,
}

/// The past states that `storage.state_history` wants and that a peer knows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PastStatesStatus {
    /// The first batch whose state is wanted, limited by the stored deltas that lead from there.
    pub wanted_from: BatchNumber,
    /// The states behind this batch and all later ones are known.
    pub lowest: BatchNumber,
    /// Which peer is asked for the next ones, or why they wait.
    pub reason: String,
}

/// One peer.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PeerStatus {
    /// Its key.
    pub id: PeerId,
    /// This node's operator's name for it; sync itself knows no names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its certified head.
    pub head: Option<BatchNumber>,
    /// Milliseconds since it reported its head; `None` before its first report.
    pub heard_ms_ago: Option<u64>,
    /// The first batches that it claims to serve, for each mode.
    pub serves: Serves,
    /// What it is asked for next.
    pub mode: PeerMode,
    /// Why it has that mode.
    pub mode_reason: PeerModeReason,
    /// Batches that it sent to be executed here, since it connected.
    pub batches_replayed: u64,
    /// Batches that it sent to be applied here by their deltas, since it connected.
    pub batches_applied: u64,
    /// Bytes of answers that passed their checks.
    pub verified_bytes: u64,
    /// Verified bytes per second of its answers' time; older answers count less.
    pub bytes_per_second: u64,
    /// The 95 % quantile of the time that a MiB or less takes; 0 before the first answer.
    pub tail_ms: u64,
    /// 0 to 1000: the best is asked first. An unknown peer has 200, a banned one 0.
    pub score: u32,
    /// What changed the score, newest first; a few of each cause.
    pub reasons: Vec<ScoreReason>,
    /// Answers that were late, lost or refused.
    pub failures: u64,
    /// Milliseconds for which it is not asked; 0 if it is not paused.
    pub pause_ms: u64,
    /// Whether it was proved wrong.
    pub banned: bool,
    /// Why it was last paused or banned.
    pub last_reason: Option<String>,
    /// Seconds since then: an old reason says nothing about the peer now. `None` for a ban, which still holds.
    pub last_reason_seconds_ago: Option<u64>,
}

/// What a peer keeps for each mode of this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Serves {
    /// First batch that can be replayed from it; `None` if it keeps no bodies.
    pub replay_from: Option<BatchNumber>,
    /// First batch that can be applied by its deltas; `None` if it keeps none.
    pub delta_from: Option<BatchNumber>,
}

/// Changes of a score that have the same cause.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ScoreReason {
    /// What happened last.
    pub what: String,
    /// How often it happened, within a minute.
    pub times: u64,
    /// Points by which the score changed in total.
    pub change: i64,
    /// Seconds since the last of them.
    pub seconds_ago: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: programs match on one list of words, in JSON and in metrics.
    #[test]
    fn phases_are_named_as_they_are_serialized() {
        for &phase in Phase::ALL {
            let text = serde_json::to_string(&phase).unwrap();
            assert_eq!(text, format!("\"{}\"", phase.name()));
            assert_eq!(serde_json::from_str::<Phase>(&text).unwrap(), phase);
        }
    }
}
