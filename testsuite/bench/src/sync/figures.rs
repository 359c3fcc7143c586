//! Figures from runs.

use std::{collections::BTreeMap, time::Duration};

use super::{Plan, floor::Floor, follow::Followed, hostile, mixed, mode::Mode};
use crate::{
    Aim, Figure, Report,
    harness::{ONE_WAY, chain::Source, ratios, workload::Workload},
};

/// All runs, by chain and mode.
#[derive(Default)]
pub(super) struct Samples {
    followed: Vec<(Key, Vec<Followed>)>,
    floors: BTreeMap<String, Vec<(u64, Floor)>>,
    pub(super) hostile: hostile::Runs,
    pub(super) mixed: mixed::Runs,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    workload: Workload,
    mode: Mode,
    one_way: Duration,
}

impl Key {
    /// Returns `transfers.delta`, with the suffix `.0ms` without latency.
    fn label(&self) -> String {
        let latency = if self.one_way.is_zero() { ".0ms" } else { "" };
        format!("{}.{}{latency}", self.workload.name(), self.mode.name())
    }
}

impl Samples {
    pub(super) fn add(&mut self, workload: Workload, mode: Mode, one_way: Duration, followed: Followed) {
        let key = Key { workload, mode, one_way };
        match self.followed.iter_mut().find(|(other, _)| *other == key) {
            Some((_, runs)) => runs.push(followed),
            None => self.followed.push((key, vec![followed])),
        }
    }

    pub(super) fn add_floor(&mut self, workload: Workload, mode: &str, source: &Source, floor: Floor) {
        let label = format!("{}.{mode}", workload.name());
        self.floors.entry(label).or_default().push((source.transactions, floor));
    }

    fn runs(&self, workload: Workload, mode: Mode, one_way: Duration) -> Option<&[Followed]> {
        let key = Key { workload, mode, one_way };
        self.followed.iter().find(|(other, _)| *other == key).map(|(_, runs)| &runs[..])
    }

    fn tps(&self, workload: Workload, mode: Mode) -> Option<Vec<f64>> {
        Some(self.runs(workload, mode, ONE_WAY)?.iter().map(Followed::tps).collect())
    }
}

/// The aims of this bench; other figures have none.
fn aimed(figure: Figure) -> Figure {
    let aim = match figure.name() {
        "replay_vs_v1" => Aim::AtLeast(4.0),
        "delta_vs_v1" => Aim::AtLeast(10.0),
        "delta_tps" => Aim::AtLeast(60_000.0),
        "range_delta_vs_delta" => Aim::AtLeast(3.0),
        "latency_cost" => Aim::AtMost(1.1),
        "mixed_vs_pinned" => Aim::AtLeast(1.3),
        "hostile_half" => Aim::AtMost(2.5),
        "hostile_most" => Aim::AtMost(10.0),
        _ => return figure,
    };
    figure.aim(aim)
}

pub(super) fn report(plan: &Plan, samples: &Samples) -> Report {
    let mut figures = headlines(samples);
    figures.extend(of_latency(samples));
    figures.extend(of_mixed(&samples.mixed));
    figures.extend(of_hostility(&samples.hostile));
    figures.extend(of_floors(samples));
    for (key, runs) in &samples.followed {
        figures.extend(of_runs(&key.label(), runs));
    }
    let figures = figures.into_iter().map(aimed).collect();
    let notes = notes(plan).into_iter().chain(latency_note(samples)).collect();
    Report { bench: "sync", runs: plan.runs, figures, notes }
}

fn headlines(samples: &Samples) -> Vec<Figure> {
    let erc20 = |mode| samples.tps(Workload::Erc20, mode);
    let mut figures = Vec::new();
    if let (Some(v1), Some(replay), Some(delta)) = (erc20(Mode::V1), erc20(Mode::Replay), erc20(Mode::Delta))
    {
        figures.push(Figure::new("replay_vs_v1", "ratio", ratios(&replay, &v1)));
        figures.push(Figure::new("delta_vs_v1", "ratio", ratios(&delta, &v1)));
    }
    let hot = |mode| samples.tps(Workload::Hot, mode);
    if let (Some(net), Some(delta)) = (hot(Mode::RangeDelta), hot(Mode::Delta)) {
        figures.push(Figure::new("range_delta_vs_delta", "ratio", ratios(&net, &delta)));
    }
    figures.extend(
        samples.tps(Workload::Transfers, Mode::Delta).map(|tps| Figure::new("delta_tps", "1/s", tps)),
    );
    figures
}

/// The least seconds of work without latency for which the aim counts: shorter work is mostly the first round trips.
const WORK_SECONDS: f64 = 10.0;

/// One mode with latency and without.
struct Latency {
    /// `transfers.delta`.
    label: String,
    with: Vec<f64>,
    without: Vec<f64>,
}

impl Latency {
    /// Returns all modes that ran with latency and without.
    fn all(samples: &Samples) -> Vec<Latency> {
        let both =
            samples.followed.iter().filter(|(key, _)| key.one_way.is_zero()).filter_map(|(key, without)| {
                let with = samples.runs(key.workload, key.mode, ONE_WAY)?;
                let seconds = |runs: &[Followed]| runs.iter().map(|run| run.seconds).collect();
                let label = format!("{}.{}", key.workload.name(), key.mode.name());
                Some(Latency { label, with: seconds(with), without: seconds(without) })
            });
        both.collect()
    }

    fn cost(&self, name: impl Into<String>) -> Figure {
        Figure::new(name, "ratio", ratios(&self.with, &self.without))
    }

    /// Whether the work is long enough for the aim.
    fn is_long(&self) -> bool {
        Figure::new("seconds", "s", self.without.clone()).value() >= WORK_SECONDS
    }
}

/// Returns the time with latency over the time without. The worst mode's figure has the name of the aim, among modes
/// whose work is long enough. Then follow the seconds that latency adds to each mode: they belong to the start, however
/// long the chain is.
fn of_latency(samples: &Samples) -> Vec<Figure> {
    let all = Latency::all(samples);
    let costs: Vec<_> = all.iter().map(|mode| mode.cost(format!("latency_cost.{}", mode.label))).collect();
    let long = all.iter().zip(&costs).filter(|(mode, _)| mode.is_long());
    let worst = long.max_by(|a, b| a.1.value().total_cmp(&b.1.value()));
    let worst = worst.map(|(mode, _)| mode.cost("latency_cost"));
    let added = all.iter().map(|mode| {
        let more = mode.with.iter().zip(&mode.without).map(|(with, without)| with - without).collect();
        Figure::new(format!("latency_seconds.{}", mode.label), "s", more)
    });
    worst.into_iter().chain(costs).chain(added).collect()
}

/// Names the modes that `latency_cost` leaves out.
fn latency_note(samples: &Samples) -> Option<String> {
    let all = Latency::all(samples);
    let short: Vec<&str> = all.iter().filter(|mode| !mode.is_long()).map(|mode| &*mode.label).collect();
    (!short.is_empty()).then(|| {
        format!(
            "latency_cost: the worst of the modes that work for at least {WORK_SECONDS} s at 0 ms; too short for it: {}. latency_seconds \
             says what latency adds to these",
            short.join(", ")
        )
    })
}

/// Returns `auto` over the better pinned mode, run by run.
fn of_mixed(runs: &mixed::Runs) -> Vec<Figure> {
    if runs.iter().any(Vec::is_empty) {
        return Vec::new();
    }
    let [replay, delta, auto] =
        runs.each_ref().map(|runs| runs.iter().map(Followed::tps).collect::<Vec<_>>());
    let pinned: Vec<f64> = replay.iter().zip(&delta).map(|(replay, delta)| replay.max(*delta)).collect();
    let mut figures = vec![Figure::new("mixed_vs_pinned", "ratio", ratios(&auto, &pinned))];
    for (mode, tps) in mixed::MODES.iter().zip([replay, delta, auto]) {
        figures.push(Figure::new(format!("mixed_tps.{}", mode.name()), "1/s", tps));
    }
    for (mode, runs) in mixed::MODES.iter().zip(runs) {
        // CPU per transaction shows the replayed share of the chain: a replayed transaction takes several times as
        // much.
        let cpu = runs.iter().map(|run| 1e6 * run.per_transaction(run.cpu_s)).collect();
        figures.push(Figure::new(format!("cpu_us_per_tx.mixed.{}", mode.name()), "us", cpu));
    }
    figures
}

fn of_hostility(runs: &hostile::Runs) -> Vec<Figure> {
    if runs.iter().any(Vec::is_empty) {
        return Vec::new();
    }
    let seconds = runs.each_ref().map(|runs| runs.iter().map(|run| run.seconds).collect::<Vec<_>>());
    let [none, half, most] = &seconds;
    let mut figures = vec![
        Figure::new("hostile_half", "ratio", ratios(half, none)),
        Figure::new("hostile_most", "ratio", ratios(most, none)),
    ];
    for (count, seconds) in hostile::HOSTILE.into_iter().zip(&seconds) {
        figures.push(Figure::new(format!("hostile_seconds.{count}_of_10"), "s", seconds.clone()));
    }
    figures
}

fn of_floors(samples: &Samples) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (label, floors) in &samples.floors {
        let mut add = |name: &str, unit, value: &dyn Fn(f64, &Floor) -> f64| {
            let samples =
                floors.iter().map(|(transactions, floor)| value(*transactions as f64, floor)).collect();
            figures.push(Figure::new(format!("{name}.{label}"), unit, samples));
        };
        add("floor_tps", "1/s", &|transactions, floor| transactions / floor.seconds);
        add("floor_cpu_us_per_tx", "us", &|transactions, floor| 1e6 * floor.cpu_s / transactions);
        if label.ends_with(".replay") {
            add("floor_share_execute", "ratio", &|_, floor| floor.execute / floor.seconds);
            add("floor_share_root", "ratio", &|_, floor| floor.root / floor.seconds);
        }
        add("floor_share_commit", "ratio", &|_, floor| floor.commit / floor.seconds);
    }
    for (key, runs) in samples.followed.iter().filter(|(key, _)| !key.one_way.is_zero()) {
        let floor = match key.mode {
            Mode::Replay => "replay",
            Mode::Delta => "delta",
            _ => continue,
        };
        let label = format!("{}.{floor}", key.workload.name());
        let Some(floors) = samples.floors.get(&label) else { continue };
        let floor_tps: Vec<_> =
            floors.iter().map(|(transactions, floor)| *transactions as f64 / floor.seconds).collect();
        let tps: Vec<_> = runs.iter().map(Followed::tps).collect();
        figures.push(Figure::new(format!("time_vs_floor.{label}"), "ratio", ratios(&floor_tps, &tps)));
    }
    figures
}

fn of_runs(label: &str, runs: &[Followed]) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut add = |name: &str, unit, value: &dyn Fn(&Followed) -> f64| {
        figures.push(Figure::new(format!("{name}.{label}"), unit, runs.iter().map(value).collect()));
    };
    add("tps", "1/s", &Followed::tps);
    add("seconds", "s", &|run| run.seconds);
    add("bytes_per_tx", "bytes", &|run| run.per_transaction(run.bytes as f64));
    add("cpu_us_per_tx", "us", &|run| 1e6 * run.per_transaction(run.cpu_s));
    add("server_cpu_us_per_tx", "us", &|run| 1e6 * run.per_transaction(run.server_cpu_s));
    add("relay_cpu_us_per_tx", "us", &|run| 1e6 * run.per_transaction(run.relay_cpu_s));
    add("connect_seconds", "s", &|run| run.connect_seconds);
    // All runs of a mode have the same stages as the first one.
    for (index, (stage, _)) in runs[0].stages.iter().enumerate() {
        add(&format!("busy_{stage}"), "ratio", &|run| run.stages[index].1 / run.seconds);
    }
    figures
}

fn notes(plan: &Plan) -> Vec<String> {
    let mut notes = vec![
        "a run: a fresh fullnode process with its mode pinned, one peer, through a relay that adds 75 ms each way (.0ms: none); \
         from the first request for data (the first verified summary is there) to the head of the chain; tps counts all of the \
         chain's transactions. connect_seconds: from the ready line until then"
            .to_owned(),
        format!(
            "v1: one random peer, one chunk of 1,000 transactions in flight, no overlap, no hints; it shares transport, server, \
             verification, executor and store with the node; it follows the first {} batches",
            plan.v1_batches
        ),
        "delta, range_delta and snapshot: sync.history off; delta_history: bodies and receipts are fetched and kept too; replay_unhinted: \
         executor.hints off"
            .to_owned(),
        "busy_STAGE: seconds that a stage worked over the seconds of the run, by the status of the follower; stages overlap and may \
         have several workers, so they add up to more than 1. Of v1 they are shares, and wait is the wait for the network"
            .to_owned(),
        "floor: the same work in this process on batches in memory, the next one made ready beside the commit of the one \
         before; nothing is fetched or verified"
            .to_owned(),
        "bytes: what the follower's connections received, headers and acknowledgements included; CPU: user and system time of \
         the follower, of the serving node and of the relay's thread, in ticks of 10 ms but for the relay and v1"
            .to_owned(),
        format!(
            "hostile: {} from 10 peers in this process, no relay; hostile ones corrupt, stall, shorten, answer late (0.5 s before \
             the deadline) and forge, in turn; their summaries are true",
            hostile::MODE.name()
        ),
    ];
    if plan.runs < 3 {
        notes.push("--quick: a look, on short chains".to_owned());
    }
    notes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn followed(seconds: f64) -> Followed {
        Followed {
            transactions: 1_000,
            seconds,
            connect_seconds: 0.0,
            bytes: 1,
            cpu_s: 1.0,
            server_cpu_s: 1.0,
            relay_cpu_s: 1.0,
            stages: vec![("commit".into(), seconds / 2.0)],
        }
    }

    #[test]
    fn a_plan_can_be_cut_to_a_few_modes() {
        let mut plan = Plan::new(false);
        plan.retain(&["erc20.v1", "transfers.replay"].map(str::to_owned));
        let modes: Vec<_> = plan.cases.iter().map(|case| (case.workload, case.modes.clone())).collect();
        assert_eq!(modes, [(Workload::Transfers, vec![Mode::Replay]), (Workload::Erc20, vec![Mode::V1])]);
        assert!(!plan.floors && plan.cases.iter().all(|case| !case.hostile));
        assert!(report(&plan, &Samples::default()).figures.is_empty());
    }

    /// Goal: the aim for latency counts only work that is long enough, and the notes name the rest.
    #[test]
    fn short_work_is_not_what_latency_is_judged_by() {
        let mut samples = Samples::default();
        for (mode, with, without) in
            [(Mode::Delta, 12.0, 10.0), (Mode::DeltaHistory, 30.0, 20.0), (Mode::Snapshot, 1.0, 0.25)]
        {
            samples.add(Workload::Transfers, mode, ONE_WAY, followed(with));
            samples.add(Workload::Transfers, mode, Duration::ZERO, followed(without));
        }
        let figures = of_latency(&samples);
        let value = |name: &str| figures.iter().find(|figure| figure.name() == name).map(Figure::value);
        assert_eq!(value("latency_cost"), Some(1.5));
        assert_eq!(value("latency_cost.transfers.snapshot"), Some(4.0));
        assert_eq!(value("latency_seconds.transfers.snapshot"), Some(0.75));
        assert!(latency_note(&samples).unwrap().contains("too short for it: transfers.snapshot. "));

        let mut short = Samples::default();
        short.add(Workload::Transfers, Mode::Snapshot, ONE_WAY, followed(1.0));
        short.add(Workload::Transfers, Mode::Snapshot, Duration::ZERO, followed(0.25));
        assert!(of_latency(&short).iter().all(|figure| figure.name() != "latency_cost"));
        assert!(latency_note(&Samples::default()).is_none());
    }

    /// Goal: each figure that has an aim exists exactly once, whatever the size of the run.
    #[test]
    fn every_aim_has_its_figure() {
        for quick in [true, false] {
            let plan = Plan::new(quick);
            let mut samples = Samples::default();
            for case in &plan.cases {
                for &mode in &case.modes {
                    samples.add(case.workload, mode, ONE_WAY, followed(20.0));
                    if case.both_latencies && mode != Mode::V1 {
                        samples.add(case.workload, mode, Duration::ZERO, followed(10.0));
                    }
                }
            }
            samples.hostile = [1.0, 2.0, 9.0].map(|seconds| vec![followed(seconds)]);
            samples.mixed = [4.0, 3.0, 2.0].map(|seconds| vec![followed(seconds)]);
            let report = report(&plan, &samples);
            let value = |name: &str| {
                let figures: Vec<_> = report.figures.iter().filter(|figure| figure.name() == name).collect();
                assert_eq!(figures.len(), 1, "{name}");
                figures[0].value()
            };
            for name in ["replay_vs_v1", "delta_vs_v1", "range_delta_vs_delta"] {
                assert_eq!(value(name), 1.0);
            }
            assert_eq!((value("delta_tps"), value("latency_cost")), (50.0, 2.0));
            assert_eq!(value("mixed_vs_pinned"), 1.5);
            assert_eq!((value("hostile_half"), value("hostile_most")), (2.0, 9.0));
            assert_eq!(value("latency_cost.transfers.delta"), 2.0);
            let names: BTreeSet<_> = report.figures.iter().map(Figure::name).collect();
            assert_eq!(names.len(), report.figures.len(), "a figure comes twice");
        }
    }
}
