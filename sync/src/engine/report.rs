//! The engine's reports about itself.

use std::{collections::VecDeque, time::Duration};

use slipstream_types::BatchNumber;
use tokio::time::Instant;

use super::{Engine, SUMMARY_AGE, answers::describe_key, stages::IDLE_AFTER};
use crate::{
    plan::{
        self, Amount, EmptyPlan, Inputs, Load, Plan, PlanStatus, PlanStep, RangeMode, Stage, part::part,
        price,
    },
    repair::RepairReport,
    status::{Phase, SnapshotStatus, SyncStatus, Waiting},
    work::{Alarm, CommitResult, HintUse},
};

/// The time that a rate covers.
const RATE_WINDOW: Duration = IDLE_AFTER;
/// Maximum number of runs of batches in flight that the status lists.
const RANGES_SHOWN_MAX: usize = 32;
/// Maximum number of samples kept for the rates.
const RATE_SAMPLES: usize = 64;

/// Counts the work done since the start.
#[derive(Debug)]
pub(super) struct Counters {
    batches: u64,
    replayed: u64,
    pub(super) announced: u64,
    transactions: u64,
    hints: HintUse,
    foretold: HintUse,
    pub(super) bytes_received: u64,
    pub(super) audited: u64,
    pub(super) audits_skipped: u64,
    pub(super) alarm: Option<String>,
    pub(super) repair: Option<RepairReport>,
    pub(super) snapshot: Option<SnapshotStatus>,
    active: Duration,
    active_since: Option<Instant>,
    phase: Phase,
    /// Head and transactions at earlier times, oldest first.
    samples: VecDeque<(Instant, BatchNumber, u64)>,
}

impl Counters {
    pub(super) fn new(head: BatchNumber, alarm: Option<&Alarm>, now: Instant) -> Counters {
        Counters {
            batches: 0,
            replayed: 0,
            announced: 0,
            transactions: 0,
            hints: HintUse::default(),
            foretold: HintUse::default(),
            bytes_received: 0,
            audited: 0,
            audits_skipped: 0,
            alarm: alarm.map(Alarm::to_string),
            repair: None,
            snapshot: None,
            active: Duration::ZERO,
            active_since: None,
            phase: Phase::WaitingForPeers,
            samples: VecDeque::from([(now, head, 0)]),
        }
    }

    pub(super) fn add(&mut self, committed: &CommitResult) {
        self.batches += committed.batches;
        self.replayed += committed.replayed;
        self.transactions += committed.transactions;
        for (_, hints) in &committed.hints {
            self.hints.add(*hints);
        }
        self.foretold.add(committed.foretold);
    }

    pub(super) fn head_moved(&mut self, head: BatchNumber, now: Instant) {
        while self.samples.len() >= RATE_SAMPLES
            || self.samples.get(1).is_some_and(|(at, ..)| now.saturating_duration_since(*at) > RATE_WINDOW)
        {
            self.samples.pop_front();
        }
        self.samples.push_back((now, head, self.transactions));
    }

    /// Recent batches and transactions per second; 0 if none came within [`RATE_WINDOW`].
    fn rates(&self, now: Instant, head: BatchNumber) -> (f64, f64) {
        let age = |at: &Instant| now.saturating_duration_since(*at);
        // The counts at the window's start equal those of the last sample before it.
        let before = self.samples.iter().rfind(|(at, ..)| age(at) >= RATE_WINDOW);
        let Some((at, first, transactions)) = before.or(self.samples.front()) else { return (0.0, 0.0) };
        let seconds = age(at).min(RATE_WINDOW).as_secs_f64().max(0.1);
        let per_second = |count: u64| count as f64 / seconds;
        (per_second(head.since(*first)), per_second(self.transactions - transactions))
    }

    fn mark_active(&mut self, active: bool, now: Instant) {
        match (active, self.active_since) {
            (true, None) => self.active_since = Some(now),
            (false, Some(since)) => {
                self.active += now.saturating_duration_since(since);
                self.active_since = None;
            }
            _ => {}
        }
    }
}

impl Engine {
    /// Records what the node does now. At the head this changes with every batch, so the operators' texts are not made
    /// here.
    pub(super) fn note(&mut self, plan: &Plan, holds: bool) {
        let of_mode = |mode| match mode {
            RangeMode::Replay => Phase::Replay,
            RangeMode::Delta => Phase::Delta,
        };
        let phase = match (&self.restore, plan.step) {
            (Some(restore), _) if restore.range_delta().is_some() => Phase::RangeDelta,
            (Some(_), _) => Phase::Snapshot,
            _ if !self.pipeline.is_empty() => self.mode.map_or(Phase::Replay, of_mode),
            _ if holds => Phase::Idle,
            (None, PlanStep::Idle) if self.book.is_empty() => Phase::WaitingForPeers,
            (None, PlanStep::Idle) => Phase::Idle,
            (None, PlanStep::Stuck) => Phase::Stuck,
            (None, PlanStep::Range(mode)) => of_mode(mode),
            (None, PlanStep::Snapshot(_)) => Phase::Snapshot,
            (None, PlanStep::RangeDelta(_)) => Phase::RangeDelta,
        };
        if phase != self.counters.phase {
            tracing::debug!(%phase, batch = self.head.get(), target = plan.target.get(), reason = %plan.reason, "phase");
            self.counters.phase = phase;
        }
    }

    /// Reports the daemon's present state.
    pub fn status(&self, now: Instant) -> SyncStatus {
        let counters = &self.counters;
        let active = counters.active
            + counters.active_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let waypoint = Some(self.waypoint).filter(|waypoint| *waypoint > self.head);
        // The operator vouches for the waypoint's batch, whichever peers are connected.
        let target = self.newest.max(self.head).max(self.waypoint);
        let (batches_per_second, transactions_per_second) = counters.rates(now, self.head);
        let gap = target.since(self.head);
        let snapshot = self.restore.as_ref().and_then(|restore| restore.status(now));
        let eta = (gap > 0).then(|| self.eta_seconds(snapshot.as_ref(), now)).flatten();
        let [fetch, prepare, execute, commit] = self.pipeline.queues();
        let queues = |stage| match stage {
            Stage::Fetch => fetch,
            Stage::Check => self.checking.bytes(),
            Stage::Prepare => prepare,
            Stage::Execute => execute,
            Stage::Commit => commit,
            Stage::Restore | Stage::Audit => 0,
        };
        SyncStatus {
            mode: self.config.mode,
            phase: counters.phase,
            reason: self.plan.as_ref().map_or_else(String::new, |plan| plan.reason.clone()),
            waiting: self.waiting(now),
            bottleneck: self.plan.as_ref().filter(|_| gap > 0).and_then(|plan| plan.bound),
            batches_per_second,
            transactions_per_second,
            eta_seconds: eta,
            plan: self.plan_status(now),
            head: self.head,
            target,
            waypoint,
            batches: counters.batches,
            batches_replayed: counters.replayed,
            batches_announced: counters.announced,
            transactions: counters.transactions,
            bytes_received: counters.bytes_received,
            active_seconds: active.as_secs_f64(),
            hint_recall: counters.hints.recall(),
            hint_precision: counters.hints.precision(),
            hints: counters.hints,
            foretold: counters.foretold,
            snapshot: snapshot.or_else(|| counters.snapshot.clone()),
            backfill: self.backfill_status(now),
            past_states: self.past_states_status(now),
            stages: self.stages.status(now, queues),
            requests: self.streams.in_flight(),
            hedges: self.streams.hedges(),
            audited: counters.audited,
            audits_skipped: counters.audits_skipped,
            alarm: counters.alarm.clone(),
            repair: counters.repair.clone(),
            peers: self
                .book
                .statuses(now, self.config.history, |peer| part(self.plan.as_ref(), self.head.next(), peer)),
        }
    }

    /// Seconds to the target: the work ahead at the pipeline's pace, after the rows of a restore. `None` while the time
    /// is unknown, because no peer is connected or none has the next batch.
    fn eta_seconds(&self, snapshot: Option<&SnapshotStatus>, now: Instant) -> Option<f64> {
        let plan = match &self.restore {
            Some(restore) => restore.behind.as_ref().or(self.plan.as_ref())?,
            None => self.plan.as_ref()?,
        };
        if self.book.is_empty()
            || matches!(plan.step, PlanStep::Idle | PlanStep::Stuck) && self.pipeline.is_empty()
        {
            return None;
        }
        let price = |load: &Load| price::of(load, self.stages.costs(), self.cores, &plan.supply).seconds;
        let seconds = match (&self.restore, snapshot.and_then(|snapshot| snapshot.eta_seconds)) {
            // The restore's rows come first, and nothing else moves meanwhile.
            (Some(_), Some(rows)) => rows + price(&plan.load),
            (Some(restore), None) => {
                let all = self.plan.as_ref().map_or(0.0, |plan| plan.seconds);
                (all - restore.age(now).as_secs_f64()).max(price(&plan.load))
            }
            (None, _) if matches!(plan.step, PlanStep::Snapshot(_) | PlanStep::RangeDelta(_)) => plan.seconds,
            (None, _) => price(&plan.load),
        };
        Some(self.pace.seconds(now, seconds.max(0.0), price)).filter(|seconds| seconds.is_finite())
    }

    /// Each way to the target with its price, and the batches in flight.
    fn plan_status(&self, now: Instant) -> PlanStatus {
        let candidates = self.candidates(now);
        let in_flight = self.pipeline.in_flight(&self.ratios, self.optional_parts());
        let inputs = Inputs { asked: self.pipeline.last(), in_flight, ..self.inputs(self.head, &candidates) };
        let target = self.newest.max(self.head);
        let Amount { transactions, gas, .. } = self.course.amount(self.head, target);
        let empty = Inputs {
            begun: None,
            current: None,
            is_mixed: false,
            ..self.inputs(BatchNumber::GENESIS, &candidates)
        };
        let step = plan::decide(&self.config, &empty);
        let if_empty = EmptyPlan {
            transactions: self.course.amount(BatchNumber::GENESIS, target).transactions as u64,
            way: step.way(),
            ways: plan::compare(&self.config, &empty),
            reason: step.reason,
        };
        PlanStatus {
            batches: target.since(self.head),
            transactions: transactions as u64,
            gas: gas as u64,
            ways: plan::compare(&self.config, &inputs),
            ranges: self.pipeline.alike(RANGES_SHOWN_MAX),
            if_empty: (!candidates.is_empty()).then_some(if_empty),
        }
    }

    /// Returns why the node waits, or `None` while it works.
    fn waiting(&self, now: Instant) -> Option<Waiting> {
        let retry_ms = |at: Instant| at.saturating_duration_since(now).as_millis() as u64;
        if self.jobs.is_working() {
            return None;
        }
        if let Some((key, late_at)) = self.streams.awaited() {
            return (self.newest > self.head).then(|| Waiting {
                reason: format!("a peer has not answered yet: {}", describe_key(&key)),
                retry_ms: Some(retry_ms(late_at)),
            });
        }
        let reason = self.plan.as_ref().map_or("no peer is connected", |plan| plan.reason.as_str());
        let paused = self.book.next_unpaused(now);
        let retry = paused.map_or(SUMMARY_AGE.as_millis() as u64, retry_ms);
        let reason = match paused {
            Some(_) if self.book.all_paused(now) => format!("all peers are paused; {reason}"),
            _ => reason.to_owned(),
        };
        Some(Waiting { reason, retry_ms: Some(retry) })
    }

    /// Counts the time behind the head.
    pub(super) fn mark_active(&mut self, now: Instant) {
        let active = !self.pipeline.is_empty() || self.restore.is_some();
        self.counters.mark_active(active, now);
        if self.pipeline.is_empty() || self.restore.is_some() {
            self.pace.pause();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a rate covers the last seconds: it is 0 if nothing came in them, and what came after that counts in full.
    #[test]
    fn rates_are_of_the_last_seconds_and_end_at_zero() {
        let start = Instant::now();
        let at = |second: u64| start + Duration::from_secs(second);
        let mut counters = Counters::new(BatchNumber::new(1_000), None, start);
        for second in 1..=30 {
            counters.transactions += 50;
            counters.head_moved(BatchNumber::new(1_000 + 5 * second), at(second));
        }
        let head = BatchNumber::new(1_150);
        assert_eq!(counters.rates(at(30), head), (5.0, 50.0));
        let (fading, _) = counters.rates(at(35), head);
        assert!((2.0..3.0).contains(&fading), "{fading}");
        assert_eq!(counters.rates(at(40), head), (0.0, 0.0));
        assert_eq!(counters.rates(at(3_600), head), (0.0, 0.0));
        counters.head_moved(BatchNumber::new(1_170), at(3_600));
        assert_eq!(counters.rates(at(3_601), BatchNumber::new(1_170)), (2.0, 0.0));
    }
}
