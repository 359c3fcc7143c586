//! A turn of the engine: after any event, it decides what follows.

use slipstream_types::BatchNumber;
use tokio::time::Instant;

use super::{
    Engine, SUMMARY_AGE,
    bootstrap::{Bootstrap, DeltaBase},
    jobs::{AuditTask, Commit, Execute, Prepare, RestoreTask},
    pipeline::{FreeStages, State},
    streams::{Key, Subject},
    timers::Timer,
};
use crate::{
    plan::{self, Candidate, Inputs, OptionalParts, Plan, PlanStep, WorkInFlight, price::Machine},
    protocol::Request,
    work::Job,
};

/// A node leaves new batches to consensus while it is at most this many batches behind. Further back, consensus cannot
/// help.
const PATIENCE_BATCHES: u64 = 2;
/// Approximate bytes of an answer that describes a peer: its summary, or the ends of epochs.
const QUESTION_BYTES: u64 = 1_024;

impl Engine {
    pub(super) fn turn(&mut self, now: Instant) {
        #[cfg(test)]
        {
            self.turns += 1;
        }
        if self.timers.get(Timer::Ban).is_some_and(|at| at <= now) {
            self.book.retain(now, &self.connected);
        }
        self.ask_summaries(now);
        self.look_ahead(now);
        self.ignored_offers.expire(now);
        self.grow_range_delta(now);
        let candidates = self.candidates(now);
        self.wholes_rest = self.wholes_rest.filter(|until| *until > now);
        self.wholes = if self.wholes_rest.is_none() { wholes(&candidates) } else { Vec::new() };
        self.direct(&candidates, now);
        while self.take_over_from_strangers(&candidates, now)
            || self.take_alone(&candidates, true, now)
            || self.assign(&candidates, now)
            || self.take_alone(&candidates, false, now)
            || self.take_over(&candidates, now)
            || self.lend(&candidates)
        {
            // The wanted ranges are asked for, so plan more. Each is as long as its peers are fast by then.
            self.direct(&candidates, now);
        }
        self.mark_active(now);
        self.start_checks();
        self.start_epochs();
        self.start_announced(now);
        self.start_work();
        self.start_audit();
        self.backfill(now);
        self.timers = self.wind(now);
    }

    /// Asks peers for the wanted keys. Returns false if all peers are busy or everything is asked for.
    fn assign(&mut self, candidates: &[Candidate], now: Instant) -> bool {
        let (checking, jobs, restore) = (&self.checking, &self.jobs, &self.restore);
        let is_checking = |key: &Key| {
            checking.has(key, &jobs.checks)
                || jobs.restore.has(key)
                || restore.as_ref().is_some_and(|restore| restore.has_early(key))
        };
        self.streams.assign(now, candidates, &mut self.book, is_checking, &mut self.effects)
    }

    fn ask_summaries(&mut self, now: Instant) {
        let (head, book) = (self.head, &self.book);
        self.rumours
            .retain(|peer, number| number > head && book.head_of(peer).is_none_or(|head| number > head));
        self.heard.extend(self.rumours.take_due(now));
        let mut stale = self.book.stale(now, SUMMARY_AGE);
        stale.extend(std::mem::take(&mut self.heard));
        for peer in stale {
            if self.is_questioned(&peer) || !self.book.may_ask(&peer, now) {
                continue;
            }
            let (about, request) = match self.unproven.contains_key(&peer) {
                true => {
                    let first = self.trust.epoch();
                    (Subject::Epochs { first }, Request::Epochs { first })
                }
                false => (Subject::Summary, Request::Summary),
            };
            self.streams.ask(peer, about, request, (now, QUESTION_BYTES), &mut self.effects);
        }
    }

    /// The peers that may be asked, with the offers and rates to plan with.
    pub(super) fn candidates(&self, now: Instant) -> Vec<Candidate> {
        let mut candidates = self.book.candidates(now, self.config.history);
        let are_batches_under_way = self.restore.is_none() && !self.pipeline.is_empty();
        let takes_word = !are_batches_under_way || self.ignored_offers.takes_word(now);
        for candidate in &mut candidates {
            if !takes_word && !candidate.is_proven {
                candidate.snapshots.clear();
            }
            let links = &self.streams.links;
            let measured = Some(candidate.bytes_per_second).filter(|rate| *rate > 0.0);
            let measured = links.rate(&candidate.peer, now).or(measured);
            let rate = measured.unwrap_or_else(|| links.presumed(&candidate.peer));
            candidate.bytes_per_second = rate.min(links.rate_max(&candidate.peer, now));
            self.ignored_offers.filter(candidate, now);
        }
        candidates
    }

    /// Continues the work in progress, or begins a new step.
    fn direct(&mut self, candidates: &[Candidate], now: Instant) {
        // A restore that has everything needs no more peers.
        if self.restore.as_ref().is_some_and(Bootstrap::is_finishing) {
            return self.look_behind(candidates);
        }
        if let Some(number) = self.restore.as_ref().map(Bootstrap::number) {
            let is_served = match self.restore.as_ref().and_then(Bootstrap::range_delta) {
                Some(DeltaBase { from, .. }) => self.book.serving_range_delta(from, number).next().is_some(),
                None => self.book.is_offered(number),
            };
            if !is_served {
                if self.restore.as_ref().is_some_and(Bootstrap::is_unproved) {
                    tracing::info!(batch = %number, waypoint = %self.waypoint, "no peer proves that the snapshot's \
                        ledger passes through the waypoint; trying another way");
                    self.ignored_offers.unproved(number, now);
                } else {
                    tracing::info!(batch = %number, "no connected peer serves the snapshot now; giving it up");
                    if self.restore.as_ref().is_some_and(Bootstrap::is_on_word) {
                        self.ignored_offers.took_word(now);
                    }
                }
                return self.abandon();
            }
            if self.is_outpaced(candidates, now) {
                tracing::info!(batch = %number, "the snapshot arrives too slowly; trying another way");
                self.blame_slow(now);
                return self.abandon();
            }
            if self.is_outpaced_by_proven(candidates, now) {
                tracing::info!(batch = %number, "another way is far shorter than the rest of the snapshot; taking it");
                return self.abandon();
            }
            // The end of an epoch is stored only after the ends of the epochs before it.
            let may_finish = !self.keeps_epochs();
            let restore = self.restore.as_mut().filter(|_| may_finish);
            let job = restore.and_then(|restore| restore.advance(&mut self.streams, &self.jobs.restore));
            if let Some(job) = job {
                self.run(RestoreTask::Finish, job);
            }
            return self.look_behind(candidates);
        }
        if self.awaits_survey(candidates, now) {
            return;
        }
        let plan = self.decide(candidates);
        let holds = self.leaves_to_others(&plan, now);
        match plan.step {
            _ if holds => {}
            PlanStep::Range(mode) => {
                if plan.replaces {
                    self.replace(&plan);
                }
                if plan.replayed.is_some() && self.mix.is_none() {
                    tracing::info!(batch = self.head.get(), target = plan.target.get(), reason = %plan.reason, "\
                        following batches in both modes at once");
                }
                // Once everything is asked for, the modes stay.
                if self.pipeline.last() < plan.target {
                    self.fill(mode, plan.replayed, candidates);
                }
            }
            PlanStep::Snapshot(number) => self.leap(number, false, candidates, now),
            PlanStep::RangeDelta(number) => self.leap(number, true, candidates, now),
            PlanStep::Idle | PlanStep::Stuck => {}
        }
        self.remode(candidates);
        self.note(&plan, holds);
        // Once everything is asked for, nothing is left to plan. The last plan's reason still holds for the work in
        // flight.
        if plan.step != PlanStep::Idle || self.pipeline.is_empty() {
            self.plan = Some(plan);
        }
    }

    /// Asks for the batches behind a snapshot once all of its rows are asked for: neither needs to wait for the other.
    fn look_behind(&mut self, candidates: &[Candidate]) {
        let (streams, running) = (&self.streams, &self.jobs.restore);
        if !self.restore.as_ref().is_some_and(|restore| restore.is_all_asked(streams, running)) {
            return;
        }
        let Some(number) = self.restore.as_ref().map(Bootstrap::number) else { return };
        let in_flight = self.pipeline.in_flight(&self.ratios, self.optional_parts());
        let inputs = Inputs { asked: self.pipeline.last(), in_flight, ..self.inputs(number, candidates) };
        let plan = plan::decide(&self.config, &inputs);
        if let PlanStep::Range(mode) = plan.step {
            self.fill(mode, plan.replayed, candidates);
            if let Some(restore) = &mut self.restore {
                restore.behind = Some(plan);
            }
        }
    }

    /// Decides the next step, given the work in flight.
    fn decide(&self, candidates: &[Candidate]) -> Plan {
        let in_flight = self.pipeline.in_flight(&self.ratios, self.optional_parts());
        let inputs = Inputs { asked: self.pipeline.last(), in_flight, ..self.inputs(self.head, candidates) };
        plan::decide(&self.config, &inputs)
    }

    /// Decides the step after `head`, as if nothing were in flight.
    pub(super) fn decide_behind(&self, head: BatchNumber, candidates: &[Candidate]) -> Plan {
        plan::decide(&self.config, &self.inputs(head, candidates))
    }

    /// The inputs of a plan that starts at `head`, as if nothing were in flight.
    pub(super) fn inputs<'a>(&'a self, head: BatchNumber, candidates: &'a [Candidate]) -> Inputs<'a> {
        Inputs {
            head,
            asked: head,
            in_flight: WorkInFlight { kept: head, ..WorkInFlight::default() },
            begun: self.begun,
            waypoint: self.waypoint,
            peers: candidates,
            given_up: self.ignored_offers.len(),
            rows_known: 0.0,
            range_delta_max: self.range_delta_max,
            course: &self.course,
            ratios: &self.ratios,
            costs: self.stages.costs(),
            machine: Machine { cores: self.cores, parts: self.optional_parts() },
            current: self.mode,
            is_mixed: self.mix.is_some(),
        }
    }

    /// The optional parts that are fetched along with the needed ones.
    pub(super) fn optional_parts(&self) -> OptionalParts {
        let history = !self.wholes.is_empty() && self.is_near(self.pipeline.last());
        OptionalParts { history, hints: self.hints }
    }

    /// Whether the next batches are still left to this process's consensus or mesh.
    fn leaves_to_others(&self, plan: &Plan, now: Instant) -> bool {
        let is_near = plan.target.since(self.head) <= PATIENCE_BATCHES;
        let is_coming =
            matches!(plan.step, PlanStep::Range(_)) && self.coming_until().is_some_and(|at| at > now);
        is_coming || is_near && self.is_patient(now)
    }

    /// Until when the next batch to fetch is left to the mesh; `None` if the mesh has not announced it.
    pub(super) fn coming_until(&self) -> Option<Instant> {
        self.expected.until(self.pipeline.next())
    }

    /// Hands the pipeline's next jobs to the worker. Batches behind a snapshot wait for it.
    fn start_work(&mut self) {
        if self.restore.is_some() || self.keeps_epochs() {
            return;
        }
        let free = FreeStages {
            prepare: !self.jobs.prepare.is_any(),
            execute: !self.jobs.execute.is_any(),
            commit: !self.jobs.commit.is_any(),
        };
        for (first, job) in self.pipeline.work(self.head, self.book.target(), free) {
            let bytes = self.pipeline.get(first).map_or(0, |piece| piece.bytes);
            let load = self.pipeline.left(|at, _| at == first, &self.ratios, self.optional_parts());
            match &job {
                Job::Prepare { .. } => self.run(Prepare { first, load, bytes }, job),
                Job::Execute { range } => {
                    let from = range.from();
                    self.run(Execute { first, load, bytes, from }, job);
                }
                Job::Commit { .. } => {
                    let is_it = |_, state: &State| matches!(state, State::Committing);
                    let load = self.pipeline.left(is_it, &self.ratios, self.optional_parts());
                    self.run(Commit { load, bytes: self.pipeline.committing_bytes() }, job);
                }
                _ => {}
            }
        }
    }

    /// Starts the next audit, one at a time.
    fn start_audit(&mut self) {
        if !self.jobs.audit.is_any()
            && let Some(audit) = self.audits.pop_front()
        {
            self.run(AuditTask, Job::Audit(audit));
        }
    }
}

/// The first whole batch and the head of each peer that keeps all parts that this node keeps. If a proven peer serves
/// deltas, strangers do not count: otherwise the last batches would wait for strangers alone.
fn wholes(candidates: &[Candidate]) -> Vec<(BatchNumber, BatchNumber)> {
    let have_proven_deltas = candidates.iter().any(|peer| peer.is_proven && peer.delta_from.is_some());
    let believed = candidates.iter().filter(|peer| peer.is_proven || !have_proven_deltas);
    believed.filter_map(|peer| Some((peer.whole_from?, peer.head))).collect()
}
