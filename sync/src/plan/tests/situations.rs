//! Goal: real situations are decided right, by the work ahead and all work in flight.

use super::*;

/// Batches of 340 transfers.
const TRANSFERS: Totals = Totals {
    transactions: 340,
    gas: 340 * 21_000,
    body_bytes: 340 * 110,
    receipts_bytes: 340 * 40,
    delta_bytes: 340 * 160,
};
/// An empty batch.
const EMPTY: Totals = Totals { transactions: 0, gas: 0, body_bytes: 8, receipts_bytes: 8, delta_bytes: 200 };

/// A node with history and the default configuration that `init` writes, at `head`.
fn by_default(head: u64, stretches: &[(Totals, u64)]) -> Case {
    Case { policy: SyncConfig::default(), course: course(stretches), ..Case::new(Mode::Auto, head) }
}

/// One unmeasured peer on loopback, with a snapshot of `rows` rows.
fn loopback(head: u64, snapshot: u64, rows: u64) -> [Candidate; 1] {
    let offered = SnapshotOffer::new(BatchNumber::new(snapshot), rows);
    [Candidate { snapshots: vec![offered], bytes_per_second: 2e6, ..peer(1, head) }]
}

/// Goal: an empty node with the default configuration takes the snapshot of a chain of 680,000 transfers, both before
/// and after something is measured.
#[test]
fn an_empty_node_takes_the_snapshot_at_once() {
    for (stretches, head, snapshot) in [
        (&[(TRANSFERS, 2_000)][..], 2_000, 1_900),
        (&[(Totals { transactions: 200, gas: 200 * 21_000, ..TRANSFERS }, 1_350)], 1_350, 1_300),
        (&[(EMPTY, 1_000), (TRANSFERS, 1_000)], 2_000, 1_900),
        (&[(EMPTY, 1_000), (times(TRANSFERS, 20), 100), (EMPTY, 900)], 2_000, 1_200),
    ] {
        let case = by_default(0, stretches);
        let [stranger] = loopback(head, snapshot, 20_000);
        let known = Candidate { is_proven: true, bytes_per_second: 500e6, ..stranger.clone() };
        for peer in [stranger, known] {
            let plan = case.plan(std::slice::from_ref(&peer));
            assert_eq!(plan.step, PlanStep::Snapshot(BatchNumber::new(snapshot)), "{plan:?}");
        }
    }
}

/// Goal: the batches behind a snapshot count by their own work. A snapshot before a burst saves nothing, and empty
/// batches are no work.
#[test]
fn a_tail_is_priced_by_its_own_batches() {
    let burst = [(EMPTY, 1_000), (times(TRANSFERS, 20), 100), (EMPTY, 100)];
    let before = by_default(0, &burst).plan(&loopback(1_200, 1_000, 2_000_000));
    assert!(matches!(before.step, PlanStep::Range(_)), "it saves empty batches alone: {before:?}");
    let behind = by_default(0, &burst).plan(&loopback(1_200, 1_100, 20_000));
    assert!(matches!(behind.step, PlanStep::Snapshot(_)), "{behind:?}");
    let peers = loopback(5_000, 4_900, 2_000_000).map(|peer| Candidate { range_delta_from: None, ..peer });
    let empty = by_default(0, &[(EMPTY, 5_000)]).plan(&peers);
    assert!(matches!(empty.step, PlanStep::Range(_)), "{empty:?}");
    assert!(empty.seconds < 10.0, "{empty:?}");
}

/// Goal: everything was requested and came over a fast link. The work left to execute counts, so a snapshot is still
/// taken if it is far cheaper, but not if execution is nearly done.
#[test]
fn what_waits_for_execution_counts() {
    let case = by_default(0, &[(TRANSFERS, 2_000)]);
    let peers = loopback(2_000, 1_900, 20_000).map(|peer| Candidate { is_proven: true, ..peer });
    let with = |first: u64, before: NextStage| {
        let load = case.in_flight(RangeMode::Replay, first, 2_000, before);
        let in_flight =
            WorkInFlight { load, came: true, kept: BatchNumber::new(first), ..WorkInFlight::default() };
        let asked = Some((2_000, in_flight));
        Case { head: first, asked, current: Some(RangeMode::Replay), ..case.clone() }
    };
    let plan = with(100, NextStage::Prepare).plan(&peers);
    assert_eq!(plan.step, PlanStep::Snapshot(BatchNumber::new(1_900)), "{plan:?}");
    let plan = with(1_880, NextStage::Prepare).plan(&peers);
    assert_eq!(plan.step, PlanStep::Range(RangeMode::Replay), "{plan:?}");
    assert!(!plan.reason.contains("at the head") && plan.seconds > 0.1, "{plan:?}");
    let stranger = peers.map(|peer| Candidate { is_proven: false, ..peer });
    let plan = with(100, NextStage::Prepare).plan(&stranger);
    assert!(
        matches!(plan.step, PlanStep::Range(_)),
        "a lone stranger's promise drops nothing that came: {plan:?}"
    );
}

/// Goal: deltas replace bodies that wait for execution, if they are far cheaper and their peer has delivered; nothing
/// flaps.
#[test]
fn deltas_replace_ranges_that_wait_for_execution() {
    let policy =
        SyncConfig { forbid: vec![Mode::Snapshot, Mode::RangeDelta], history: false, ..Default::default() };
    let case = Case { policy, ..by_default(0, &[(TRANSFERS, 2_000)]) };
    let load = case.in_flight(RangeMode::Replay, 0, 2_000, NextStage::Prepare);
    let kept_load = case.in_flight(RangeMode::Replay, 0, 64, NextStage::Execute);
    let in_flight =
        WorkInFlight { load, came: true, kept: BatchNumber::new(64), kept_load, ..WorkInFlight::default() };
    let case = Case { asked: Some((2_000, in_flight)), current: Some(RangeMode::Replay), ..case };
    let fast = Candidate { bytes_per_second: 100e6, is_proven: true, ..peer(1, 2_000) };
    let plan = case.plan(std::slice::from_ref(&fast));
    assert_eq!((plan.step, plan.replaces), (PlanStep::Range(RangeMode::Delta), true), "{plan:?}");
    for other in [
        Candidate { bytes_per_second: 1e6, ..fast.clone() },
        Candidate { is_proven: false, ..fast.clone() },
        Candidate { delta_from: None, ..fast.clone() },
    ] {
        let plan = case.plan(std::slice::from_ref(&other));
        assert_eq!((plan.step, plan.replaces), (PlanStep::Range(RangeMode::Replay), false), "{plan:?}");
    }
    // A changed mode stays: the same facts, with the deltas in flight.
    let load = kept_load.plus(case.in_flight(RangeMode::Delta, 64, 2_000, NextStage::Fetch));
    let turned = Case {
        asked: Some((2_000, WorkInFlight { load, ..in_flight })),
        current: Some(RangeMode::Delta),
        ..case
    };
    assert!(!turned.plan(std::slice::from_ref(&fast)).replaces);
    // One more batch, which only a slow peer has: neither mode replaces the other for it.
    let slow = Candidate { head: BatchNumber::new(2_001), bytes_per_second: 1.0, ..peer(2, 2_001) };
    for current in [RangeMode::Replay, RangeMode::Delta] {
        let load = turned.in_flight(current, 64, 2_000, NextStage::Fetch);
        let in_flight = WorkInFlight { load, kept_load: Load::default(), ..in_flight };
        let thin = Candidate { bytes_per_second: 1e5, ..fast.clone() };
        let case = Case {
            head: 64,
            asked: Some((2_000, in_flight)),
            current: Some(current),
            course: course(&[(TRANSFERS, 2_001)]),
            ..turned.clone()
        };
        let plan = case.plan(&[thin, slow.clone()]);
        assert!(!plan.replaces, "{current}: {plan:?}");
    }
}

/// Goal: each way has its price or its reason, whatever the policy takes.
#[test]
fn all_ways_are_compared() {
    let case = by_default(0, &[(TRANSFERS, 2_000)]);
    let peers = loopback(2_000, 1_900, 20_000);
    let find = |case: &Case, way: Way| {
        let ways = compare(&case.policy, &case.inputs(&peers));
        ways.into_iter().find(|status| status.way == way).unwrap()
    };
    for way in [Way::Replay, Way::Delta, Way::Mixed, Way::RangeDelta, Way::Snapshot] {
        let status = find(&case, way);
        assert!(status.seconds.is_some_and(|seconds| seconds > 0.0) && status.bound.is_some(), "{status:?}");
        assert_eq!(status.why_not, None);
    }
    assert!(find(&case, Way::Snapshot).seconds < find(&case, Way::Replay).seconds);
    let pinned = Case { policy: SyncConfig { mode: Mode::Replay, ..Default::default() }, ..case.clone() };
    let status = find(&pinned, Way::Snapshot);
    assert!(
        status.seconds.is_some() && status.why_not.as_deref() == Some("sync.mode is replay"),
        "{status:?}"
    );
    let none = compare(&case.policy, &case.inputs(&[peer(1, 2_000)]));
    let status = none.iter().find(|status| status.way == Way::Snapshot).unwrap();
    assert!(status.seconds.is_none() && status.why_not.is_some(), "{status:?}");
    assert_eq!(compare(&case.policy, &case.inputs(&[peer(1, 0)])), []);
}
