//! Jobs: the worker that ships runs them, in time that the seed gives them.
//!
//! A job is atomic for everything else, so it takes effect at one moment: its start or its end, as the seed decides.
//! The engine learns the result at the end.

use anyhow::Result;
use rand::Rng;
use slipstream_sync::{
    engine::JobId,
    work::{Done, Job, RestoreJob},
};

use super::{
    oracle::Claim,
    plan::NodePlan,
    planted,
    queue::Moment,
    world::{Event, To, Work, World},
};

impl World {
    pub(super) fn run_job(&mut self, to: To, id: JobId, job: Job) -> Result<()> {
        let name = name(&job);
        self.trace.note(self.now, format_args!("node {} begins {name} ({})", to.node, id.0), &[]);
        let took = self.time(to, &job);
        let at_once = self.rng.random();
        let work = if at_once { Work::Done(self.take_effect(to, job, took)?) } else { Work::Due(job) };
        self.queue.push(self.now + took, Event::Work { to, id, work: Box::new(work), took });
        Ok(())
    }

    /// Ends a job of a node.
    pub(super) fn worked(&mut self, to: To, id: JobId, work: Work, took: Moment) -> Result<()> {
        if self.process(to).is_none() {
            return Ok(());
        }
        let done = match work {
            Work::Done(done) => done,
            Work::Due(job) => self.take_effect(to, job, 0)?,
        };
        self.trace.note(self.now, format_args!("node {} ends {} ({})", to.node, outcome(&done), id.0), &[]);
        let took = std::time::Duration::from_micros(took);
        self.with_engine(to, |engine, now| engine.handle_done(id, done, took, now))
    }

    /// Runs a job, and compares its result with the ledger. If the head moved, the engine learns of it within `left`.
    fn take_effect(&mut self, to: To, job: Job, left: Moment) -> Result<Done> {
        let claim = Claim::of(&job);
        let defences = self.nodes[to.node].defences;
        let Some(up) = self.process(to) else { return Ok(Done::Kept(Ok(()))) };
        let before = up.store.head()?.header.number;
        let done = planted::run(defences, &up.worker, job);
        let after = up.store.head()?.header.number;
        self.check_done(to, &claim, &done)?;
        // A failed write may be on disk, but missing in memory.
        if after > before && !matches!(done, Done::Committed(Err(_)) | Done::Restored(Err(_))) {
            self.check_state(to.node)?;
            let at = self.now + self.rng.random_range(0..=left);
            self.queue.push(at, Event::Head { to, number: after });
            if !self.is_quiet && self.nodes[to.node].cuts > 0 && self.rng.random_ratio(1, 4) {
                self.nodes[to.node].cuts -= 1;
                let at = self.now + self.rng.random_range(1..2_000);
                self.queue.push(at, Event::Cut(to));
            }
        }
        Ok(done)
    }

    /// Returns a job's duration: a fixed part, and one proportional to its bytes.
    fn time(&mut self, to: To, job: &Job) -> Moment {
        let NodePlan { slowness, is_steady, .. } = self.nodes[to.node].plan;
        let (least, bytes) = match job {
            Job::CheckRange { answer, .. } => (200, answer.len()),
            Job::CheckAnnounced { .. } => (300, 0),
            Job::CheckEpochs { answer, .. } => (200, answer.len()),
            Job::Prepare { range, .. } => (500, range.certified_bytes()),
            // A node that chooses by prices needs measurable ones: work takes time in proportion to its amount.
            Job::Execute { range } if is_steady => (100, 30_000 * range.transactions()),
            Job::Commit { .. } if is_steady => (300, 0),
            Job::Execute { .. } => (2_000, 0),
            Job::Commit { .. } => (3_000, 0),
            Job::Restore(RestoreJob::Chunk { answer, .. } | RestoreJob::Siblings { answer, .. }) => {
                (500, answer.len())
            }
            Job::Restore(RestoreJob::Finish) => (20_000, 0),
            Job::Restore(_) | Job::KeepEpochs(_) => (1_000, 0),
            Job::Audit(_) => (5_000, 0),
            Job::CheckPast { answer, .. } => (200, answer.len()),
            Job::Backfill(_) => (1_000, 0),
            Job::PastStates(answer) => (500, answer.as_ref().map_or(0, |reverse| reverse.answer.len())),
        };
        let luck = if is_steady { 1.0 } else { self.rng.random_range(0.5..3.0) };
        let micros = (least as f64 + bytes as f64 / 100.0) * slowness * luck;
        micros as Moment
    }
}

/// Returns the job's name in the trace.
fn name(job: &Job) -> &'static str {
    match job {
        Job::CheckRange { .. } => "checking a range",
        Job::CheckAnnounced { .. } => "checking an announcement",
        Job::CheckEpochs { .. } => "checking the ends of epochs",
        Job::Prepare { .. } => "preparing",
        Job::Execute { .. } => "executing",
        Job::Commit { .. } => "committing",
        Job::Restore(RestoreJob::Begin { .. }) => "restoring",
        Job::Restore(RestoreJob::Chunk { .. }) => "adding rows",
        Job::Restore(RestoreJob::Siblings { .. }) => "comparing rows",
        Job::Restore(RestoreJob::Codes { .. }) => "adding code",
        Job::Restore(RestoreJob::Finish) => "finishing a restore",
        Job::Restore(RestoreJob::Drop) => "abandoning a restore",
        Job::Audit(_) => "an audit",
        Job::KeepEpochs(_) => "storing epochs",
        Job::CheckPast { .. } => "checking a range of the backfill",
        Job::Backfill(_) => "storing a range of the backfill",
        Job::PastStates(_) => "storing past states",
    }
}

/// Returns the outcome for the trace, without text that a later version may word differently.
fn outcome(done: &Done) -> String {
    match done {
        Done::Range(checked) => format!("checking a range, good: {}", checked.is_ok()),
        Done::Announced(checked) => format!("checking an announcement, good: {}", checked.is_ok()),
        Done::Epochs(proved) => format!("checking the ends of epochs, good: {}", proved.is_good()),
        Done::Prepared(prepared) => format!("preparing, good: {}", prepared.is_ok()),
        Done::Executed(executed) => format!("executing, good: {}", executed.is_ok()),
        Done::Committed(Ok(committed)) => format!("committing up to batch {}", committed.head),
        Done::Committed(Err(_)) => "committing, which failed".into(),
        Done::Restored(restored) => format!("restoring, good: {}", restored.is_ok()),
        Done::Audited(audited) => format!("an audit, good: {}", audited.is_ok()),
        Done::Kept(kept) => format!("storing epochs, good: {}", kept.is_ok()),
        Done::PastChecked(checked) => format!("checking a range of the backfill, good: {}", checked.is_ok()),
        Done::Backfilled(stored) => format!("storing a range of the backfill, good: {}", stored.is_ok()),
        Done::StatesAdded(added) => {
            let is_good = added.as_ref().is_ok_and(|added| !matches!(added.checked, Some(Err(_))));
            format!("storing past states, good: {is_good}")
        }
    }
}
