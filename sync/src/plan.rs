//! What to do next: a pure function of the local head, the mode and what peers offer.

use slipstream_network::PeerId;
use slipstream_types::BatchNumber;

use crate::config::{Mode, SyncConfig};

/// A peer that may be asked, as far as planning goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Who.
    pub peer: PeerId,
    /// Its certified head.
    pub head: BatchNumber,
    /// From where on it serves replay, if it does.
    pub replay_from: Option<BatchNumber>,
    /// From where on it serves deltas (with history, if this node keeps it), if it does.
    pub delta_from: Option<BatchNumber>,
    /// Its snapshots, newest first.
    pub snapshots: Vec<BatchNumber>,
}

/// How a range of batches is followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeMode {
    /// Execute bodies.
    Replay,
    /// Apply deltas.
    Delta,
}

/// The next thing to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// At the head, or nobody to ask.
    Idle,
    /// Batches are certified, but no peer keeps what this mode needs of the next one.
    Stuck {
        /// Where peers are.
        target: BatchNumber,
    },
    /// Follow batches up to the target.
    Range {
        /// How.
        mode: RangeMode,
        /// The highest head among peers that serve the next batch so.
        target: BatchNumber,
        /// Who serves it, best first (the order of the candidates).
        peers: Vec<PeerId>,
    },
    /// Begin from a snapshot.
    Snapshot {
        /// Its batch.
        number: BatchNumber,
        /// Who serves it, best first.
        peers: Vec<PeerId>,
    },
}

/// Decides the next step of a node at `head`. `fresh` says that the node has no batch but genesis: only then `snapshot` begins
/// from one whatever the gap, because later on the gap is what the node missed while it was off. Where nobody keeps the next
/// batch, `snapshot` and `auto` take one in any case: there is no other way on. `begun` is the snapshot that an earlier restore
/// did not finish.
pub fn next_step(
    config: &SyncConfig,
    head: BatchNumber,
    fresh: bool,
    begun: Option<BatchNumber>,
    candidates: &[Candidate],
) -> Step {
    let Some(target) = candidates.iter().map(|peer| peer.head).max().filter(|target| *target > head) else {
        return Step::Idle;
    };
    let gap = target.0 - head.0;
    let wide = config.mode == Mode::Auto && gap > config.snapshot_gap_batches;
    if (wide || (config.mode == Mode::Snapshot && fresh))
        && let Some(step) = snapshot_step(head, begun, candidates)
    {
        return step;
    }
    let order = match config.mode {
        Mode::Replay => &[RangeMode::Replay][..],
        Mode::Delta => &[RangeMode::Delta],
        Mode::Auto | Mode::Snapshot if gap > config.delta_gap_batches => {
            &[RangeMode::Delta, RangeMode::Replay]
        }
        Mode::Auto | Mode::Snapshot => &[RangeMode::Replay, RangeMode::Delta],
    };
    for &mode in order {
        let serves = |peer: &Candidate| {
            let from = match mode {
                RangeMode::Replay => peer.replay_from,
                RangeMode::Delta => peer.delta_from,
            };
            peer.head > head && from.is_some_and(|from| from <= head.next())
        };
        if let Some(target) = candidates.iter().filter(|peer| serves(peer)).map(|peer| peer.head).max() {
            return Step::Range { mode, target, peers: pick(candidates, serves) };
        }
    }
    let snapshot = match config.mode {
        Mode::Auto | Mode::Snapshot => snapshot_step(head, begun, candidates),
        Mode::Replay | Mode::Delta => None,
    };
    snapshot.unwrap_or(Step::Stuck { target })
}

/// Begins from a snapshot above the head, if somebody has one. What is begun is finished while somebody serves it. Else the best
/// peer's newest: the highest would let whoever claims most choose.
fn snapshot_step(head: BatchNumber, begun: Option<BatchNumber>, candidates: &[Candidate]) -> Option<Step> {
    let serves = |number| move |peer: &Candidate| peer.snapshots.contains(&number);
    let begun = begun.filter(|number| *number > head && candidates.iter().any(serves(*number)));
    let newest = candidates.iter().find_map(|peer| peer.snapshots.iter().find(|number| **number > head));
    let number = begun.or(newest.copied())?;
    Some(Step::Snapshot { number, peers: pick(candidates, serves(number)) })
}

fn pick(candidates: &[Candidate], wanted: impl Fn(&Candidate) -> bool) -> Vec<PeerId> {
    candidates.iter().filter(|peer| wanted(peer)).map(|peer| peer.peer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(id: u8, head: u64) -> Candidate {
        let from = Some(BatchNumber(1));
        Candidate {
            peer: slipstream_types::PublicKey([id; 32]),
            head: BatchNumber(head),
            replay_from: from,
            delta_from: from,
            snapshots: vec![],
        }
    }

    fn step(mode: Mode, head: u64, candidates: &[Candidate]) -> Step {
        next_step(&SyncConfig { mode, ..Default::default() }, BatchNumber(head), head == 0, None, candidates)
    }

    fn mode_of(step: Step) -> Option<RangeMode> {
        if let Step::Range { mode, .. } = step { Some(mode) } else { None }
    }

    #[test]
    fn idle_at_the_head_and_alone() {
        assert_eq!(step(Mode::Auto, 5, &[]), Step::Idle);
        assert_eq!(step(Mode::Auto, 5, &[peer(1, 5), peer(2, 3)]), Step::Idle);
    }

    #[test]
    fn pinned_modes_stay() {
        for gap in [1, 100, 100_000] {
            assert_eq!(mode_of(step(Mode::Replay, 0, &[peer(1, gap)])), Some(RangeMode::Replay));
            assert_eq!(mode_of(step(Mode::Delta, 0, &[peer(1, gap)])), Some(RangeMode::Delta));
        }
    }

    #[test]
    fn auto_goes_by_the_gap() {
        assert_eq!(mode_of(step(Mode::Auto, 10, &[peer(1, 12)])), Some(RangeMode::Replay));
        assert_eq!(mode_of(step(Mode::Auto, 10, &[peer(1, 500)])), Some(RangeMode::Delta));
        let far = Candidate { snapshots: vec![BatchNumber(20_000)], ..peer(1, 20_050) };
        let number = BatchNumber(20_000);
        assert_eq!(
            step(Mode::Auto, 10, std::slice::from_ref(&far)),
            Step::Snapshot { number, peers: vec![far.peer] }
        );
        assert_eq!(
            mode_of(step(Mode::Auto, 10, &[peer(1, 20_050)])),
            Some(RangeMode::Delta),
            "nobody has one"
        );
    }

    #[test]
    fn a_snapshot_is_only_the_beginning() {
        let with = Candidate { snapshots: vec![BatchNumber(40)], ..peer(1, 50) };
        let number = BatchNumber(40);
        let peers = vec![with.peer];
        assert_eq!(step(Mode::Snapshot, 0, &[peer(2, 50), with.clone()]), Step::Snapshot { number, peers });
        assert!(mode_of(step(Mode::Snapshot, 40, &[with])).is_some());
        assert!(
            mode_of(step(Mode::Snapshot, 0, &[peer(1, 50)])).is_some(),
            "a chain without snapshots can be followed"
        );
    }

    #[test]
    fn a_begun_snapshot_is_finished_while_somebody_serves_it() {
        let config = SyncConfig { mode: Mode::Snapshot, ..Default::default() };
        let numbers = |numbers: &[u64]| numbers.iter().copied().map(BatchNumber).collect();
        let one = Candidate { snapshots: numbers(&[60, 50]), ..peer(1, 65) };
        let other = Candidate { snapshots: numbers(&[70]), ..peer(2, 75) };
        let step = |begun: Option<u64>| {
            let begun = begun.map(BatchNumber);
            next_step(&config, BatchNumber(0), true, begun, &[one.clone(), other.clone()])
        };
        let at = |number, peer| Step::Snapshot { number: BatchNumber(number), peers: vec![peer] };
        assert_eq!(step(Some(50)), at(50, one.peer));
        assert_eq!(step(Some(40)), at(60, one.peer), "pruned everywhere");
        assert_eq!(step(None), at(60, one.peer), "the best peer's, not the highest claim");
    }

    #[test]
    fn where_nobody_keeps_the_next_batch_a_snapshot_goes_on() {
        let from = Some(BatchNumber(4_001));
        let snapshots = vec![BatchNumber(4_900), BatchNumber(4_800)];
        let pruned = Candidate { replay_from: from, delta_from: from, snapshots, ..peer(1, 5_000) };
        let peers = || std::slice::from_ref(&pruned);
        let at = |number| Step::Snapshot { number: BatchNumber(number), peers: vec![pruned.peer] };
        for mode in [Mode::Auto, Mode::Snapshot] {
            for head in [0, 10, 3_999] {
                assert_eq!(step(mode, head, peers()), at(4_900), "{mode:?} {head}");
            }
            assert!(mode_of(step(mode, 4_000, peers())).is_some(), "the next batch is kept");
        }
        for mode in [Mode::Replay, Mode::Delta] {
            assert_eq!(step(mode, 10, peers()), Step::Stuck { target: BatchNumber(5_000) });
        }
        let begun = |number| {
            let config = SyncConfig::default();
            next_step(&config, BatchNumber(3_000), false, Some(BatchNumber(number)), peers())
        };
        assert_eq!(begun(4_800), at(4_800));
        let late = Candidate { snapshots: vec![BatchNumber(2_900)], ..pruned.clone() };
        assert_eq!(step(Mode::Auto, 3_000, &[late]), Step::Stuck { target: BatchNumber(5_000) });
    }

    #[test]
    fn a_begun_snapshot_that_the_head_has_passed_is_forgotten() {
        let config = SyncConfig::default();
        let snapshots = vec![BatchNumber(20_000), BatchNumber(100)];
        let far = Candidate { snapshots, ..peer(1, 20_050) };
        let number = BatchNumber(20_000);
        assert_eq!(
            next_step(&config, BatchNumber(150), false, Some(BatchNumber(100)), std::slice::from_ref(&far)),
            Step::Snapshot { number, peers: vec![far.peer] }
        );
    }

    #[test]
    fn only_peers_that_keep_the_next_batch_are_asked() {
        let pruned = Candidate { replay_from: Some(BatchNumber(30)), ..peer(1, 60) };
        let Step::Range { target, peers, .. } = step(Mode::Replay, 10, &[pruned.clone(), peer(2, 50)]) else {
            panic!("expected a range")
        };
        assert_eq!((target, peers), (BatchNumber(50), vec![peer(2, 50).peer]));
        assert_eq!(step(Mode::Replay, 10, &[pruned]), Step::Stuck { target: BatchNumber(60) });
    }
}
