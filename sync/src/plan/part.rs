//! The part of one peer in a plan and its reason, for operators who see that a peer delivers nothing.

use std::fmt;

use serde::{Deserialize, Serialize};
use slipstream_types::BatchNumber;

use super::{Candidate, Plan, PlanStep, RangeMode};

/// What a peer is asked for next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PeerMode {
    /// Bodies, to be executed here.
    Replay,
    /// Deltas, to be applied here.
    Delta,
    /// Either, as it comes: batches are followed in both modes at once.
    Both,
    /// Rows of a snapshot.
    Snapshot,
    /// The range delta up to a snapshot.
    RangeDelta,
    /// Nothing.
    #[default]
    Nothing,
}

impl PeerMode {
    /// The mode's serialized name.
    pub fn name(self) -> &'static str {
        match self {
            PeerMode::Replay => "replay",
            PeerMode::Delta => "delta",
            PeerMode::Both => "both",
            PeerMode::Snapshot => "snapshot",
            PeerMode::RangeDelta => "range_delta",
            PeerMode::Nothing => "nothing",
        }
    }
}

/// Why a peer has its [`PeerMode`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PeerModeReason {
    /// It serves what the plan takes.
    Planned,
    /// Both modes are used, and it serves only this one.
    ServesOnlyThis,
    /// It serves only what the other mode would need.
    ServesOtherMode,
    /// It does not keep the next batch any more.
    Pruned,
    /// It does not offer the snapshot that is being restored, or not the range up to it.
    LacksSnapshot,
    /// It has no batch that this node lacks.
    NothingNew,
    /// It has not reported yet what it has.
    #[default]
    Unheard,
    /// It is paused after answers that were late, lost or refused.
    Paused,
    /// It was proved wrong.
    Banned,
}

impl fmt::Display for PeerModeReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PeerModeReason::Planned => "it serves what the plan needs",
            PeerModeReason::ServesOnlyThis => "it serves only this mode",
            PeerModeReason::ServesOtherMode => "it serves only the other mode",
            PeerModeReason::Pruned => "it does not keep the next batch",
            PeerModeReason::LacksSnapshot => "it does not offer the snapshot in progress",
            PeerModeReason::NothingNew => "it has no batch that this node lacks",
            PeerModeReason::Unheard => "it has not reported yet what it has",
            PeerModeReason::Paused => "it is paused",
            PeerModeReason::Banned => "it is banned",
        })
    }
}

/// Returns the part of a peer that may be asked. `next` is the first batch that this node lacks. Without a plan, peers
/// have no part.
pub fn part(plan: Option<&Plan>, next: BatchNumber, peer: &Candidate) -> (PeerMode, PeerModeReason) {
    let nothing = |reason| (PeerMode::Nothing, reason);
    if peer.head < next {
        return nothing(PeerModeReason::NothingNew);
    }
    let Some(plan) = plan else { return nothing(PeerModeReason::NothingNew) };
    let mode = match plan.step {
        PlanStep::Idle => return nothing(PeerModeReason::NothingNew),
        PlanStep::Stuck => return nothing(PeerModeReason::Pruned),
        PlanStep::Snapshot(number) if peer.offers(number) => {
            return (PeerMode::Snapshot, PeerModeReason::Planned);
        }
        PlanStep::RangeDelta(number)
            if peer.offers(number) && peer.range_delta_from.is_some_and(|from| from <= next) =>
        {
            return (PeerMode::RangeDelta, PeerModeReason::Planned);
        }
        PlanStep::Snapshot(_) | PlanStep::RangeDelta(_) => return nothing(PeerModeReason::LacksSnapshot),
        PlanStep::Range(mode) => mode,
    };
    let serves = (peer.serves(RangeMode::Replay, next), peer.serves(RangeMode::Delta, next));
    match (serves, mode, plan.replayed.is_some()) {
        ((false, false), ..) => nothing(PeerModeReason::Pruned),
        ((true, true), _, true) => (PeerMode::Both, PeerModeReason::Planned),
        ((true, false), _, true) => (PeerMode::Replay, PeerModeReason::ServesOnlyThis),
        ((false, true), _, true) => (PeerMode::Delta, PeerModeReason::ServesOnlyThis),
        ((true, _), RangeMode::Replay, false) => (PeerMode::Replay, PeerModeReason::Planned),
        ((_, true), RangeMode::Delta, false) => (PeerMode::Delta, PeerModeReason::Planned),
        _ => nothing(PeerModeReason::ServesOtherMode),
    }
}

#[cfg(test)]
mod tests {
    use slipstream_types::SecretKey;

    use super::*;
    use crate::{
        plan::{Load, price::Supply},
        protocol::SnapshotOffer,
    };

    fn plan(step: PlanStep, replayed: Option<f64>) -> Plan {
        let target = BatchNumber::new(900);
        Plan {
            step,
            replayed,
            replaces: false,
            target,
            seconds: 1.0,
            bound: None,
            load: Load::default(),
            supply: Supply::default(),
            reason: String::new(),
        }
    }

    /// A peer at batch 900 that serves bodies and deltas from these batches on.
    fn peer(replay_from: Option<u64>, delta_from: Option<u64>) -> Candidate {
        Candidate {
            peer: SecretKey::from_seed([1; 32]).public(),
            head: BatchNumber::new(900),
            replay_from: replay_from.map(BatchNumber::new),
            delta_from: delta_from.map(BatchNumber::new),
            whole_from: None,
            range_delta_from: None,
            snapshots: Vec::new(),
            bytes_per_second: 1e6,
            is_proven: true,
        }
    }

    /// Goal: an operator sees for each peer what it is asked for, or what it lacks.
    #[test]
    fn each_peer_has_a_part_and_a_reason() {
        use PeerModeReason::{LacksSnapshot, NothingNew, Planned, Pruned, ServesOnlyThis, ServesOtherMode};
        let next = BatchNumber::new(101);
        let (replay, delta) = (PlanStep::Range(RangeMode::Replay), PlanStep::Range(RangeMode::Delta));
        let cases = [
            (plan(replay, None), peer(Some(1), Some(1)), (PeerMode::Replay, Planned)),
            (plan(replay, None), peer(None, Some(1)), (PeerMode::Nothing, ServesOtherMode)),
            (plan(delta, None), peer(Some(200), Some(101)), (PeerMode::Delta, Planned)),
            (plan(delta, None), peer(Some(102), Some(102)), (PeerMode::Nothing, Pruned)),
            (plan(delta, Some(0.3)), peer(Some(1), Some(1)), (PeerMode::Both, Planned)),
            (plan(delta, Some(0.3)), peer(Some(1), None), (PeerMode::Replay, ServesOnlyThis)),
            (plan(delta, Some(0.3)), peer(None, Some(1)), (PeerMode::Delta, ServesOnlyThis)),
            (
                plan(PlanStep::Snapshot(BatchNumber::new(800)), None),
                peer(Some(1), Some(1)),
                (PeerMode::Nothing, LacksSnapshot),
            ),
            (plan(PlanStep::Stuck, None), peer(Some(500), None), (PeerMode::Nothing, Pruned)),
            (plan(PlanStep::Idle, None), peer(Some(1), Some(1)), (PeerMode::Nothing, NothingNew)),
        ];
        for (plan, peer, expected) in cases {
            assert_eq!(part(Some(&plan), next, &peer), expected, "{plan:?} {peer:?}");
        }
        // A range delta comes from peers that keep the changes from the next batch on.
        let delta = plan(PlanStep::RangeDelta(BatchNumber::new(800)), None);
        let offered = SnapshotOffer { number: BatchNumber::new(800), rows: 9, bytes: 900 };
        for (from, expected) in [
            (Some(101), (PeerMode::RangeDelta, Planned)),
            (Some(102), (PeerMode::Nothing, LacksSnapshot)),
            (None, (PeerMode::Nothing, LacksSnapshot)),
        ] {
            let range_delta_from = from.map(BatchNumber::new);
            let peer = Candidate { range_delta_from, snapshots: vec![offered], ..peer(Some(1), Some(1)) };
            assert_eq!(part(Some(&delta), next, &peer), expected, "{from:?}");
        }
        let behind = Candidate { head: BatchNumber::new(100), ..peer(Some(1), Some(1)) };
        assert_eq!(part(Some(&plan(replay, None)), next, &behind), (PeerMode::Nothing, NothingNew));
        assert_eq!(part(None, next, &peer(Some(1), None)), (PeerMode::Nothing, NothingNew));
    }
}
