//! Goal: the cheapest way is taken as the bottleneck changes, policies are kept, and every plan says why.

mod situations;

use slipstream_types::Totals;

use super::*;

fn peer(id: u8, head: u64) -> Candidate {
    let from = Some(BatchNumber::new(1));
    Candidate {
        peer: slipstream_types::PublicKey([id; 32]),
        head: BatchNumber::new(head),
        replay_from: from,
        delta_from: from,
        whole_from: from,
        range_delta_from: from,
        snapshots: vec![],
        bytes_per_second: 50e6,
        is_proven: false,
    }
}

fn offering(id: u8, head: u64, number: u64, bytes: u64) -> Candidate {
    let offered = SnapshotOffer { number: BatchNumber::new(number), rows: bytes / 100, bytes };
    Candidate { snapshots: vec![offered], ..peer(id, head) }
}

/// A node behind some peers. Its batches have 250 transactions.
#[derive(Clone)]
struct Case {
    policy: SyncConfig,
    head: u64,
    begun: Option<u64>,
    waypoint: u64,
    given_up: usize,
    current: Option<RangeMode>,
    is_mixed: bool,
    course: Course,
    ratios: Ratios,
    costs: Costs,
    /// The last requested batch, and the work in flight.
    asked: Option<(u64, WorkInFlight)>,
}

/// Batches of 250 transactions.
const BATCH: Totals = Totals {
    transactions: 250,
    gas: 250 * 21_000,
    body_bytes: 30_000,
    receipts_bytes: 20_000,
    delta_bytes: 20_000,
};

fn times(batch: Totals, batches: u64) -> Totals {
    Totals {
        transactions: batch.transactions * batches,
        gas: batch.gas * batches,
        body_bytes: batch.body_bytes * batches,
        receipts_bytes: batch.receipts_bytes * batches,
        delta_bytes: batch.delta_bytes * batches,
    }
}

/// A ledger with stretches of these batches, each with its number of batches.
fn course(stretches: &[(Totals, u64)]) -> Course {
    let mut course = Course::default();
    let (mut number, mut sum) = (0, Totals::default());
    course.mark(BatchNumber::GENESIS, sum);
    for (batch, batches) in stretches {
        (number, sum) = (number + batches, sum.plus(times(*batch, *batches)));
        course.mark(BatchNumber::new(number), sum);
    }
    course
}

impl Case {
    fn new(mode: Mode, head: u64) -> Case {
        Case {
            policy: SyncConfig { mode, history: false, ..Default::default() },
            head,
            begun: None,
            waypoint: 0,
            given_up: 0,
            current: None,
            is_mixed: false,
            course: course(&[(BATCH, 1_000_000)]),
            ratios: Ratios::default(),
            costs: Costs::presumed(2.0),
            asked: None,
        }
    }

    fn plan(&self, peers: &[Candidate]) -> Plan {
        decide(&self.policy, &self.inputs(peers))
    }

    fn inputs<'a>(&'a self, peers: &'a [Candidate]) -> Inputs<'a> {
        let head = BatchNumber::new(self.head);
        let none = WorkInFlight { kept: head, ..WorkInFlight::default() };
        let (asked, in_flight) =
            self.asked.map_or((head, none), |(asked, in_flight)| (BatchNumber::new(asked), in_flight));
        Inputs {
            head,
            asked,
            in_flight,
            begun: self.begun.map(BatchNumber::new),
            waypoint: BatchNumber::new(self.waypoint),
            peers,
            given_up: self.given_up,
            rows_known: 0.0,
            range_delta_max: RANGE_DELTA_BATCHES_MAX,
            course: &self.course,
            ratios: &self.ratios,
            costs: &self.costs,
            machine: Machine {
                cores: 2.0,
                parts: OptionalParts { history: self.policy.history, hints: true },
            },
            current: self.current,
            is_mixed: self.is_mixed,
        }
    }

    /// The work on requested batches in a mode, from the stage `before` on.
    fn in_flight(&self, mode: RangeMode, first: u64, last: u64, before: NextStage) -> Load {
        let amount = self.course.amount(BatchNumber::new(first), BatchNumber::new(last));
        let parts = OptionalParts { history: self.policy.history, hints: true };
        Load::of(mode, &amount, before, &self.ratios, parts)
    }

    fn step(&self, peers: &[Candidate]) -> PlanStep {
        self.plan(peers).step
    }
}

#[test]
fn idle_at_the_head_and_alone() {
    let case = Case::new(Mode::Auto, 5);
    assert_eq!(case.step(&[]), PlanStep::Idle);
    assert_eq!(case.step(&[peer(1, 5), peer(2, 3)]), PlanStep::Idle);
}

#[test]
fn pinned_modes_stay() {
    for gap in [1, 100, 1_000_000] {
        let peers = [offering(1, gap, gap, 1_000)];
        assert_eq!(Case::new(Mode::Replay, 0).step(&peers), PlanStep::Range(RangeMode::Replay));
        assert_eq!(Case::new(Mode::Delta, 0).step(&peers), PlanStep::Range(RangeMode::Delta));
    }
}

#[test]
fn the_mode_follows_the_bottleneck() {
    let case = Case::new(Mode::Auto, 0);
    let near = |rate| [Candidate { bytes_per_second: rate, ..peer(1, 5_000) }];
    let wide = case.plan(&near(100e6));
    assert_eq!(wide.step, PlanStep::Range(RangeMode::Delta), "{wide:?}");
    assert!(wide.reason.contains("replay") && wide.reason.contains("cpu"), "{}", wide.reason);
    // Deltas of many slots per transaction, over a thin link: bodies are shorter, and execution has time.
    let heavy = Case {
        course: course(&[(Totals { delta_bytes: 200_000, ..BATCH }, 1_000_000)]),
        ratios: Ratios { hints: 0.025, ..Ratios::default() },
        ..Case::new(Mode::Auto, 0)
    };
    let thin = heavy.plan(&near(200e3));
    assert_eq!(
        (thin.step, thin.bound),
        (PlanStep::Range(RangeMode::Replay), Some(Bound::Network)),
        "{thin:?}"
    );
    assert_eq!(heavy.step(&near(100e6)), PlanStep::Range(RangeMode::Delta));
}

#[test]
fn a_mode_in_use_stays_until_another_is_much_cheaper() {
    let ratios = Ratios { delta: 0.5, body: 0.35, hints: 0.0, ..Ratios::default() };
    let costs = Costs { prepare: 0.0, execute: 0.0, ..Costs::presumed(2.0) };
    let thin = [Candidate { bytes_per_second: 1e5, ..peer(1, 5_000) }];
    for current in [RangeMode::Replay, RangeMode::Delta] {
        let case = Case { current: Some(current), ratios, costs, ..Case::new(Mode::Auto, 0) };
        assert_eq!(case.step(&thin), PlanStep::Range(current));
    }
}

#[test]
fn batches_at_the_head_are_executed() {
    let case = Case::new(Mode::Auto, 100);
    assert_eq!(case.step(&[peer(1, 104)]), PlanStep::Range(RangeMode::Replay));
    let costs = Costs { execute: 1e-5, ..Costs::presumed(2.0) };
    let slow = Case { costs, ..Case::new(Mode::Auto, 100) };
    assert_eq!(slow.step(&[peer(1, 104)]), PlanStep::Range(RangeMode::Delta), "it could not keep up");
}

#[test]
fn a_snapshot_is_taken_where_the_gap_costs_more_than_the_state() {
    let small = [offering(1, 20_050, 20_000, 1_000_000)];
    let plan = Case::new(Mode::Auto, 10).plan(&small);
    assert_eq!(plan.step, PlanStep::Snapshot(BatchNumber::new(20_000)), "{plan:?}");
    assert!(plan.reason.contains("one by one"), "{}", plan.reason);
    let large = [offering(1, 20_050, 20_000, 1_000_000_000_000)];
    assert!(matches!(Case::new(Mode::Auto, 10).step(&large), PlanStep::Range(_)));
    assert!(matches!(Case::new(Mode::Auto, 20_000).step(&small), PlanStep::Range(_)), "the gap is short");
    let forbidding = SyncConfig { forbid: vec![Mode::Snapshot, Mode::RangeDelta], ..Default::default() };
    let case = Case { policy: forbidding, ..Case::new(Mode::Auto, 10) };
    assert!(matches!(case.step(&small), PlanStep::Range(_)));
}

#[test]
fn one_liar_about_a_size_decides_nothing() {
    let mut peers: Vec<_> = (2..5).map(|id| offering(id, 20_050, 20_000, 1_000_000_000_000)).collect();
    peers.push(offering(1, 20_050, 20_000, 1));
    assert!(matches!(Case::new(Mode::Auto, 10).step(&peers), PlanStep::Range(_)));
}

#[test]
fn a_range_delta_is_taken_where_rows_change_often() {
    // A state of 1,000 rows, and changes of 250 in each of 4,000 batches.
    let peers = [offering(1, 4_050, 4_000, 100_000)];
    let case = Case {
        policy: SyncConfig { forbid: vec![Mode::Snapshot], history: false, ..Default::default() },
        ..Case::new(Mode::Auto, 10)
    };
    assert_eq!(case.step(&peers), PlanStep::RangeDelta(BatchNumber::new(4_000)));
    let keeping = SyncConfig { forbid: vec![Mode::Snapshot], history: true, ..Default::default() };
    let case = Case { policy: keeping, ..Case::new(Mode::Auto, 10) };
    assert_eq!(case.step(&peers), PlanStep::RangeDelta(BatchNumber::new(4_000)), "history comes afterwards");
    let pinned = Case::new(Mode::RangeDelta, 10);
    assert_eq!(pinned.step(&[offering(1, 60, 40, 100_000)]), PlanStep::RangeDelta(BatchNumber::new(40)));
    assert!(matches!(
        Case::new(Mode::RangeDelta, 40).step(&[offering(1, 60, 40, 100_000)]),
        PlanStep::Range(_)
    ));
}

#[test]
fn a_pinned_snapshot_is_only_the_beginning() {
    let with = offering(1, 50, 40, 1_000_000_000);
    let number = BatchNumber::new(40);
    assert_eq!(Case::new(Mode::Snapshot, 0).step(&[peer(2, 50), with.clone()]), PlanStep::Snapshot(number));
    assert!(matches!(Case::new(Mode::Snapshot, 40).step(&[with]), PlanStep::Range(_)));
    let none = Case::new(Mode::Snapshot, 0).step(&[peer(1, 50)]);
    assert!(matches!(none, PlanStep::Range(_)), "a chain without snapshots can be followed");
}

#[test]
fn a_begun_snapshot_is_finished_while_somebody_serves_it() {
    let mut one = offering(1, 65, 60, 1_000);
    one.snapshots.push(SnapshotOffer { number: BatchNumber::new(50), ..one.snapshots[0] });
    let peers = [one, offering(2, 75, 70, 1_000)];
    let step = |begun| Case { begun, ..Case::new(Mode::Snapshot, 0) }.step(&peers);
    assert_eq!(step(Some(50)), PlanStep::Snapshot(BatchNumber::new(50)));
    assert_eq!(step(Some(40)), PlanStep::Snapshot(BatchNumber::new(60)), "pruned everywhere");
    assert_eq!(
        step(None),
        PlanStep::Snapshot(BatchNumber::new(60)),
        "the best peer's, not the highest claim"
    );
}

#[test]
fn where_nobody_keeps_the_next_batch_a_snapshot_goes_on() {
    let from = Some(BatchNumber::new(4_001));
    let pruned = Candidate {
        replay_from: from,
        delta_from: from,
        range_delta_from: from,
        ..offering(1, 5_000, 4_900, 1_000_000_000_000)
    };
    let peers = [pruned];
    for mode in [Mode::Auto, Mode::Snapshot, Mode::RangeDelta] {
        for head in [0, 10, 3_999] {
            assert_eq!(
                Case::new(mode, head).step(&peers),
                PlanStep::Snapshot(BatchNumber::new(4_900)),
                "{mode:?} {head}"
            );
        }
    }
    assert!(
        matches!(Case::new(Mode::Auto, 4_000).step(&peers), PlanStep::Range(_)),
        "the next batch is kept"
    );
    for mode in [Mode::Replay, Mode::Delta] {
        let plan = Case::new(mode, 10).plan(&peers);
        assert_eq!((plan.step, plan.target), (PlanStep::Stuck, BatchNumber::new(5_000)));
    }
}

#[test]
fn a_snapshot_below_the_waypoint_is_taken() {
    for (mode, head, step) in [
        (Mode::Snapshot, 0, PlanStep::Snapshot(BatchNumber::new(40))),
        (Mode::RangeDelta, 10, PlanStep::RangeDelta(BatchNumber::new(40))),
    ] {
        for waypoint in [0, 40, 41, 1_000] {
            let case = Case { waypoint, ..Case::new(mode, head) };
            assert_eq!(case.step(&[offering(1, 60, 40, 1_000)]), step, "{mode:?}, waypoint {waypoint}");
        }
    }
}

/// Goal: the first-ranked peer cannot lead to an unvouched ledger while another peer can show the waypoint.
#[test]
fn a_snapshot_that_can_show_the_waypoint_goes_first() {
    for (mode, head, step) in [
        (Mode::Snapshot, 0, PlanStep::Snapshot(BatchNumber::new(50))),
        (Mode::RangeDelta, 10, PlanStep::RangeDelta(BatchNumber::new(50))),
    ] {
        let case = Case { waypoint: 45, ..Case::new(mode, head) };
        assert_eq!(case.step(&[offering(1, 60, 40, 1_000), offering(2, 60, 50, 1_000)]), step, "{mode:?}");
    }
}

/// Goal: a node whose peers are all below its waypoint does not take their head for the ledger's.
#[test]
fn who_is_before_the_waypoint_waits_for_it() {
    let reason = |waypoint| Case { waypoint, ..Case::new(Mode::Auto, 50) }.plan(&[peer(1, 50)]).reason;
    assert_eq!(reason(51), "no peer has reached the waypoint's batch 51 yet");
    assert_eq!(reason(50), "no peer has a newer batch");
}

/// Goal: a pinned mode that cannot be used is named with the reason, whatever is done instead.
#[test]
fn a_leap_that_cannot_be_made_is_explained() {
    let pruned = |peer: Candidate| Candidate { range_delta_from: Some(BatchNumber::new(4_000)), ..peer };
    let far = offering(1, 90_000, 80_000, 1_000);
    let none = "no peer offers a snapshot ahead of this node";
    for (mode, head, given_up, peer, expected) in [
        (Mode::Snapshot, 0, 0, peer(1, 5_000), Some(format!("the policy asks for snapshot, but {none}; "))),
        (Mode::Snapshot, 0, 0, peer(1, 5), Some(format!("the policy asks for snapshot, but {none}; "))),
        (Mode::Snapshot, 10, 0, peer(1, 5_000), Some(format!("the policy asks for snapshot, but {none}; "))),
        (
            Mode::Snapshot,
            0,
            2,
            peer(1, 5_000),
            Some(
                "the policy asks for snapshot, but peers do not send the snapshots that they offer; ".into(),
            ),
        ),
        (
            Mode::RangeDelta,
            0,
            0,
            peer(1, 5_000),
            Some(format!("the policy asks for range_delta, but {none}; ")),
        ),
        (
            Mode::RangeDelta,
            10,
            0,
            pruned(offering(1, 5_000, 4_900, 1_000)),
            Some(format!(
                "the policy asks for range_delta, but no peer that offers a snapshot at most {RANGE_DELTA_BATCHES_MAX} batches ahead keeps the \
                 deltas from batch 1 on; "
            )),
        ),
        (
            Mode::RangeDelta,
            10,
            0,
            far,
            Some("the policy asks for range_delta, but no peer that offers a snapshot at most".into()),
        ),
        (Mode::Snapshot, 10, 0, peer(1, 30), None),
        (Mode::RangeDelta, 10, 0, peer(1, 30), None),
        (Mode::Auto, 0, 0, peer(1, 5_000), None),
    ] {
        let plan = Case { given_up, ..Case::new(mode, head) }.plan(&[peer]);
        let found = plan.reason.contains("the policy asks for").then_some(&plan.reason);
        match &expected {
            Some(expected) => assert!(plan.reason.starts_with(expected), "{expected}: {plan:?}"),
            None => assert_eq!(found, None, "{mode:?} {head}"),
        }
        assert!(matches!(plan.step, PlanStep::Range(_)), "{plan:?}");
    }
}

#[test]
fn only_peers_that_keep_the_next_batch_count() {
    let pruned = Candidate { replay_from: Some(BatchNumber::new(30)), ..peer(1, 60) };
    let case = Case::new(Mode::Replay, 10);
    assert_eq!(case.step(&[pruned.clone(), peer(2, 50)]), PlanStep::Range(RangeMode::Replay));
    assert_eq!(case.step(&[pruned]), PlanStep::Stuck);
}

/// Goal: free promises earn nothing: neither an empty snapshot nor an endless one passes for a short one.
#[test]
fn an_offer_that_cannot_be_true_is_not_cheap() {
    let offer = |rows, bytes| {
        let offered = SnapshotOffer { number: BatchNumber::new(20_000), rows, bytes };
        [Candidate { snapshots: vec![offered], ..peer(1, 20_050) }]
    };
    let case = Case::new(Mode::Auto, 10);
    assert!(matches!(case.step(&offer(10_000, 800_000)), PlanStep::Snapshot(_)));
    for (rows, bytes) in
        [(u64::MAX, 0), (0, 0), (0, 800_000), (10_000, 0), (1, u64::MAX), (u64::MAX, u64::MAX)]
    {
        let slow = offer(rows, bytes).map(|peer| Candidate { bytes_per_second: 10e6, ..peer });
        assert!(matches!(case.step(&slow), PlanStep::Range(_)), "{rows} rows of {bytes} bytes");
    }
}

/// Goal: a lone peer's claim does not make its snapshot shorter than others, and others go first.
#[test]
fn a_lone_offer_is_no_cheaper_than_what_others_say() {
    let large = 1_000_000_000_000;
    let mut peers: Vec<_> = (2..5).map(|id| offering(id, 20_050, 20_000, large)).collect();
    peers.insert(0, offering(1, 20_050, 20_010, 1_000_000));
    assert!(
        matches!(Case::new(Mode::Auto, 10).step(&peers), PlanStep::Range(_)),
        "it is thought to be as long"
    );
    let pinned = Case::new(Mode::Snapshot, 0);
    assert_eq!(pinned.step(&peers), PlanStep::Snapshot(BatchNumber::new(20_000)), "three offer it");
    peers[0].is_proven = true;
    assert_eq!(pinned.step(&peers), PlanStep::Snapshot(BatchNumber::new(20_010)), "it has delivered");
}

/// Goal: peers with bodies and hints, and peers with deltas over a thin link, are used at once, if that pays. A pinned
/// or forbidden mode is not mixed.
#[test]
fn peers_that_serve_different_things_are_used_at_once() {
    let bodies = Candidate { delta_from: None, bytes_per_second: 100e6, ..peer(1, 5_000) };
    let deltas = |rate| Candidate { replay_from: None, bytes_per_second: rate, ..peer(2, 5_000) };
    let case = Case::new(Mode::Auto, 0);
    let plan = case.plan(&[bodies.clone(), deltas(2.5e6)]);
    let replayed = plan.replayed.expect("both modes");
    assert!((0.2..0.8).contains(&replayed), "{plan:?}");
    assert!(plan.reason.contains("and deltas of the others take"), "{}", plan.reason);
    assert_eq!(case.plan(&[bodies.clone(), deltas(50e3)]).replayed, None, "it would bring next to nothing");
    for mode in [Mode::Replay, Mode::Delta] {
        assert_eq!(Case::new(mode, 0).plan(&[bodies.clone(), deltas(2.5e6)]).replayed, None);
    }
    let near = Case::new(Mode::Auto, 4_990);
    assert_eq!(near.plan(&[bodies.clone(), deltas(2.5e6)]).replayed, None, "at the head");
    // A mix that has begun goes on with less.
    let thin = (1..100).map(|part| deltas(f64::from(part) * 50e3));
    let switches: Vec<[bool; 2]> = thin
        .map(|deltas| {
            let peers = [bodies.clone(), deltas];
            [false, true]
                .map(|is_mixed| Case { is_mixed, ..Case::new(Mode::Auto, 0) }.plan(&peers).replayed.is_some())
        })
        .collect();
    assert!(switches.iter().all(|[begins, stays]| stays >= begins));
    assert!(switches.iter().any(|[begins, stays]| stays > begins));
}

/// Goal: a new node knows no peer, and still uses peers that serve different things at once. Many promises do not add
/// up.
#[test]
fn strangers_that_serve_different_things_are_used_at_once() {
    let plan = |of_a_kind: u8, is_proven: bool| {
        let bodies = |id| Candidate { delta_from: None, ..peer(id, 5_000) };
        let deltas = |id| Candidate { replay_from: None, ..peer(100 + id, 5_000) };
        let peers: Vec<_> = (1..=of_a_kind)
            .flat_map(|id| [bodies(id), deltas(id)])
            .map(|peer| Candidate { bytes_per_second: 2e6, is_proven, ..peer })
            .collect();
        Case::new(Mode::Auto, 0).plan(&peers).replayed
    };
    let replayed = plan(1, false).expect("both modes");
    assert!((0.2..0.8).contains(&replayed), "{replayed}");
    assert_eq!(plan(1, true), Some(replayed), "each is the only one of its kind");
    assert_eq!(plan(10, false), None, "ten strangers are worth one peer");
}

/// Goal: a node with a ledger does not start over because it hears an archive before its peers. An empty node does, and
/// so does a node whose peers have pruned the next batches.
#[test]
fn an_archive_alone_replaces_no_ledger() {
    let archive = Candidate {
        replay_from: None,
        delta_from: None,
        range_delta_from: None,
        ..offering(1, 4_900, 4_900, 1_000_000)
    };
    let snapshot = PlanStep::Snapshot(BatchNumber::new(4_900));
    assert_eq!(Case::new(Mode::Auto, 0).step(std::slice::from_ref(&archive)), snapshot);
    for head in [10, 3_999] {
        assert_eq!(
            Case::new(Mode::Auto, head).step(std::slice::from_ref(&archive)),
            PlanStep::Stuck,
            "{head}"
        );
    }
    let from = Some(BatchNumber::new(4_001));
    let pruned = Candidate { replay_from: from, delta_from: from, range_delta_from: from, ..peer(2, 5_000) };
    assert_eq!(Case::new(Mode::Auto, 10).step(&[archive, pruned]), snapshot);
}

/// Goal: of several claims about one snapshot the median counts; neither the highest nor the lowest decides.
#[test]
fn the_median_of_what_peers_say_counts() {
    let told = [(1, 200_000), (2, 220_000), (3, 90_000_000)];
    let peers = told.map(|(id, bytes)| offering(id, 900, 800, bytes));
    assert_eq!(told_rows(&peers, Some(BatchNumber::new(800))), Some(2_200.0));
    assert_eq!(told_rows(&peers, Some(BatchNumber::new(801))), None);
}

/// Goal: a snapshot below the waypoint is taken only if none at or above it is offered, however many peers offer it and
/// however well they rank.
#[test]
fn many_offers_below_the_waypoint_do_not_count_more() {
    let offers = [(1, 40), (2, 40), (3, 60), (4, 60)];
    let peers = offers.map(|(id, number)| offering(id, 1_000, number, 200_000));
    for (waypoint, taken) in [(50, 60), (0, 40), (60, 60), (61, 40)] {
        let case = Case { waypoint, ..Case::new(Mode::Snapshot, 0) };
        assert_eq!(case.step(&peers), PlanStep::Snapshot(BatchNumber::new(taken)), "{waypoint}");
    }
}
