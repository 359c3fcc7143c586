//! Goal: the plan is about the work that is left, not about what was requested. It changes if another way is far
//! cheaper, given all work in flight. It changes once, and only for peers that have delivered.

use std::time::Duration;

use slipstream_types::{bounded::BoundedVec, codec};

use crate::{
    Mode, Phase,
    engine::{
        rig::{A, B, FAR, Node, Rig, long_chain, pruned, serves},
        timers::Timer,
    },
    plan::Way,
    protocol::{ANSWER_BYTES_MAX, Request, Survey},
    serve,
};

/// A node without a ledger that has all bodies from `A`, and executes a batch in about `batch_seconds` seconds.
fn fetched(batch_seconds: f64) -> Rig {
    let mut rig = Node::new(Mode::Auto, 0).rig_on(long_chain());
    // A batch of this chain uses about 100,000 gas.
    rig.engine.stages.measured.fix(|costs| &mut costs.execute, batch_seconds / 2e5);
    let mut rig = rig.peer(A, serves(1..=FAR).without_deltas());
    rig.step().answer_if(A, |request| matches!(request, Request::Survey { .. }));
    rig.holds_jobs = true;
    rig.answer(A);
    rig.holds_jobs = false;
    rig
}

fn asks_for_rows(rig: &Rig) -> bool {
    rig.open.iter().any(|open| matches!(open.request, Request::Chunk { .. }))
}

/// Goal: a fast link has brought everything, and execution is slow. A snapshot is taken as soon as a peer that
/// delivered offers one, and the bodies are dropped.
#[test]
fn a_snapshot_is_taken_although_everything_was_fetched() {
    let mut rig = fetched(1.0);
    assert_eq!((rig.head(), rig.asked(A).len()), (0, 0));
    assert!(rig.status().eta_seconds.is_some_and(|seconds| seconds > 20.0), "{:#?}", rig.status());
    assert!(rig.status().reason.contains("the rest takes"), "{}", rig.status().reason);
    // Its answer passes its checks: now it has delivered.
    rig.holds_jobs = true;
    rig.work_checks();
    rig.meet(A, serves(1..=FAR).without_deltas().offering(FAR - 10, 100, 8_000));
    rig.until(Timer::Summary);
    assert_eq!(rig.status().phase, Phase::Snapshot);
    assert!(asks_for_rows(&rig));
    rig.holds_jobs = false;
    rig.work().serve(A);
    let status = rig.status();
    assert_eq!(rig.head(), FAR);
    assert_eq!(status.batches, 10, "those behind it alone");
    assert_eq!(status.snapshot.map(|snapshot| snapshot.number.get()), Some(FAR - 10));
    rig.blames_nobody();
}

/// Goal: fetched batches are dropped only if that pays, and not on a lone stranger's word.
#[test]
fn what_was_fetched_is_dropped_only_if_that_pays() {
    let mut rig = fetched(1e-4);
    rig.holds_jobs = true;
    rig.work_checks();
    rig.meet(A, serves(1..=FAR).without_deltas().offering(FAR - 10, 100, 8_000));
    rig.until(Timer::Summary);
    assert!(!asks_for_rows(&rig), "the batches take less");
    rig.holds_jobs = false;
    rig.work().serve(A);
    assert_eq!((rig.head(), rig.status().batches), (FAR, FAR));

    let mut rig = fetched(1.0);
    rig.holds_jobs = true;
    rig.work_checks();
    rig.meet(B, pruned(FAR).offering(FAR - 10, 100, 8_000));
    rig.step();
    assert!(!asks_for_rows(&rig), "a lone stranger offers it");
    rig.holds_jobs = false;
    rig.work().serve(A);
    assert_eq!((rig.head(), rig.status().batches), (FAR, FAR));
}

/// Goal: if costs go up and down from range to range, requested ranges are dropped at most once for each way.
#[test]
fn it_does_not_flap() {
    let mut node = Node::new(Mode::Auto, 0);
    node.config.range_batches_max = 8.try_into().unwrap();
    let mut rig = node.rig_on(long_chain()).peer(A, serves(1..=FAR));
    rig.step().answer_if(A, |request| matches!(request, Request::Survey { .. }));
    let (mut asked, mut before) = (0, Vec::new());
    for turn in 0..1_000 {
        if rig.head() == FAR {
            break;
        }
        let cost = if turn % 2 == 0 { 1e-6 } else { 1e-11 };
        rig.engine.stages.measured.fix(|costs| &mut costs.execute, cost);
        rig.answer_one(A, |_| true);
        let open: Vec<Request> = rig.asked(A).into_iter().cloned().collect();
        asked += open.iter().filter(|request| !before.contains(*request)).count();
        before = open;
    }
    assert_eq!(rig.head(), FAR);
    assert!(asked <= 4 * 10, "{asked} requests for ten ranges");
}

/// Goal: a lie about a snapshot costs the restore's patience once. A snapshot that was given up is not retried at once,
/// and the batches go on.
#[test]
fn a_lying_offer_costs_once() {
    let rig = Node::new(Mode::Auto, 0).rig_on(long_chain());
    let mut rig = rig.peer(A, serves(1..=FAR)).peer(B, pruned(FAR).offering(FAR - 10, 100, 8_000));
    rig.engine.stages.measured.fix(|costs| &mut costs.execute, 1e-4);
    rig.engine.stages.measured.fix(|costs| &mut costs.commit, 1e-3);
    rig.step().answer_if(A, |request| matches!(request, Request::Survey { .. }));
    assert_eq!(rig.status().phase, Phase::Snapshot);
    // B sends nothing.
    rig.until(Timer::Standstill);
    assert_ne!(rig.status().phase, Phase::Snapshot);
    rig.meet(B, pruned(FAR).offering(FAR, 100, 8_000));
    rig.step();
    assert!(!asks_for_rows(&rig));
    rig.serve(A);
    assert_eq!(rig.head(), FAR);
}

/// Goal: a restore that turns out far slower than batches from a peer that has delivered is given up within seconds.
/// The restore's peer is not blamed.
#[test]
fn a_restore_that_shows_to_be_long_is_left() {
    let mut node = Node::new(Mode::Auto, 0);
    node.config.forbid = vec![Mode::RangeDelta];
    let rig = node.rig_on(long_chain());
    let mut rig = rig.peer(A, serves(1..=FAR).offering(FAR - 10, 100, 8_000));
    // Half a second for all batches, in either mode.
    rig.engine.stages.measured.fix(|costs| &mut costs.commit, 4e-6);
    rig.step().answer_if(A, |request| matches!(request, Request::Survey { .. }));
    assert_eq!(rig.status().phase, Phase::Snapshot, "{:#?}", rig.status());
    rig.answer_if(A, |request| !matches!(request, Request::Chunk { .. }));
    let mut seconds = 0;
    while rig.status().phase == Phase::Snapshot {
        assert!(seconds < 10, "{:#?}", rig.status());
        rig.answer_one(A, |request| matches!(request, Request::Chunk { .. }));
        rig.wait(Duration::from_secs(1));
        seconds += 1;
    }
    assert!(seconds >= 3, "{seconds}");
    rig.serve(A);
    assert_eq!((rig.head(), rig.status().batches), (FAR, FAR));
    rig.blames_nobody();
}

/// Goal: a false survey bans its sender and teaches nothing, and another peer is asked.
#[test]
fn a_lying_survey_is_asked_of_somebody_else() {
    let is_survey = |request: &Request| matches!(request, Request::Survey { .. });
    let lies: [fn(&mut Survey); 4] = [
        |survey| survey.headers = BoundedVec::default(),
        |survey| {
            let mut headers = survey.headers.to_vec();
            headers[3].header.totals.gas /= 2;
            survey.headers = BoundedVec::new(headers).unwrap();
        },
        |survey| {
            let mut headers = survey.headers.to_vec();
            headers.pop();
            survey.headers = BoundedVec::new(headers).unwrap();
        },
        |survey| {
            let mut headers = survey.headers.to_vec();
            headers.swap(0, 1);
            survey.headers = BoundedVec::new(headers).unwrap();
        },
    ];
    for lie in lies {
        let rig = Node::new(Mode::Auto, 0).rig_on(long_chain());
        let mut rig = rig.peer(A, serves(1..=FAR)).peer(B, serves(1..=FAR));
        rig.step();
        let asked = rig.open.iter().find(|open| is_survey(&open.request)).expect("somebody is asked");
        let (liar, request) = (asked.peer, asked.request.clone());
        let payload = codec::encode("request", &request).unwrap();
        let truth = serve::answer(&long_chain().store, &payload).unwrap();
        let mut survey: Survey = codec::decode("survey", &truth, ANSWER_BYTES_MAX).unwrap();
        lie(&mut survey);
        rig.lie(liar, &codec::encode("survey", &survey).unwrap());
        assert!(matches!(&rig.bans[..], [(banned, _)] if *banned == liar), "{:?}", rig.bans);
        let other = if liar == A { B } else { A };
        assert!(rig.asked(other).into_iter().any(is_survey), "{:#?}", rig.open);
        rig.serve(other);
        assert_eq!(rig.head(), FAR);
    }
}

/// Goal: the status says what each way would take, what is in flight, and what an empty node would do. The status gives
/// a remaining time as long as work is left, however little was requested.
#[test]
fn the_status_compares_all_ways() {
    let mut rig = fetched(1.0);
    let plan = rig.status().plan;
    assert_eq!((plan.batches, plan.ways.len()), (FAR, 5));
    assert!(plan.transactions >= 4 * FAR - 4, "{plan:?}");
    let replay = plan.ways.iter().find(|status| status.way == Way::Replay).unwrap();
    assert!(replay.seconds.is_some_and(|seconds| seconds > 20.0), "{plan:#?}");
    assert!(plan.ways.iter().any(|status| status.way == Way::Snapshot && status.why_not.is_some()));
    let (first, last) = (plan.ranges.first().unwrap(), plan.ranges.last().unwrap());
    assert_eq!((first.first.get(), last.last.get()), (1, FAR));
    let empty = plan.if_empty.unwrap();
    assert_eq!((empty.way, empty.ways.len()), (Some(Way::Replay), 5));
    rig.work().serve(A);
    let status = rig.status();
    assert_eq!((rig.head(), status.eta_seconds, status.plan.batches), (FAR, None, 0));
    assert_eq!(status.plan.ways, []);
}
