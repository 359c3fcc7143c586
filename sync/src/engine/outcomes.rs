//! Takes results of jobs: advances the pipeline, learns costs, and credits or blames peers.

use std::time::Duration;

use slipstream_types::BatchNumber;
use tokio::time::Instant;

use super::{
    Engine,
    answers::describe_key,
    bootstrap::Bootstrap,
    effect::JobId,
    jobs::{Check, CheckAnnounced, Commit, Execute, FinishedJob, Prepare, RestoreAnswer, RestoreTask},
    pipeline::Pipeline,
    ranges::needed,
    streams::Key,
};
use crate::{
    SyncError,
    error::{Fault, Violation},
    plan::{Amount, Load, RANGE_DELTA_BATCHES_MAX, RangeMode, Ratios, Stage},
    protocol::Request,
    verify::VerifiedRange,
    work::{
        AbandonReason, AuditResult, CommitResult, Done, ExecutionResult, Job, ReadyRange, RestoreJob,
        RestoreOutcome, RestoreResult,
    },
};

/// The work on a chunk besides its rows (its proof, its file), as bytes of rows.
const CHUNK_WORK_BYTES: f64 = 256e3;
/// Maximum number of audits that wait. The audits of one commit share that commit's deltas.
const AUDITS_MAX: usize = 256;
/// After this long without a range delta that is too large, the bound on range deltas doubles.
const RANGE_DELTA_GROWS: Duration = Duration::from_secs(3_600);

impl Engine {
    pub(super) fn finished(
        &mut self,
        id: JobId,
        done: Done,
        took: Duration,
        now: Instant,
    ) -> Result<(), SyncError> {
        match self.jobs.end(id, done)? {
            FinishedJob::Check(check, checked) => self.checked(check, checked, took, now),
            FinishedJob::Announced(check, checked) => self.checked_announced(check, checked, now),
            FinishedJob::Epochs(check, proved) => self.checked_epochs(check, *proved, now),
            FinishedJob::Prepare(prepare, prepared) => {
                let Prepare { first, load, bytes } = prepare;
                self.stages.worked(Stage::Prepare, now, took, bytes);
                self.stages.measured.learn(|costs| &mut costs.prepare, took, load.prepare);
                self.stages.measured.learn(|costs| &mut costs.open, took, load.open);
                self.pace.done(Load { prepare: load.prepare, open: load.open, ..Load::default() }, now);
                self.pipeline.prepared(first, prepared?);
            }
            FinishedJob::Execute(execute, executed) => {
                let Execute { first, load, bytes, from } = execute;
                self.stages.worked(Stage::Execute, now, took, bytes);
                match executed? {
                    ExecutionResult::Range(range) => {
                        self.stages.measured.learn(|costs| &mut costs.execute, took, load.execute);
                        self.pace.done(Load { execute: load.execute, ..Load::default() }, now);
                        self.pipeline.executed(first, ReadyRange::Executed(range));
                    }
                    ExecutionResult::Unprepared(range) => self.pipeline.unprepared(first, range, from),
                }
            }
            FinishedJob::Commit(Commit { load, bytes }, committed) => {
                self.stages.worked(Stage::Commit, now, took, bytes);
                self.stages.measured.learn(|costs| &mut costs.commit, took, load.commit);
                self.pace.done(Load { commit: load.commit, ..Load::default() }, now);
                self.committed(committed?, now);
            }
            FinishedJob::Restore(RestoreTask::Drop, _) => {}
            FinishedJob::Restore(RestoreTask::Begin | RestoreTask::Finish, restored) => {
                self.restored(None, restored, now)?;
            }
            FinishedJob::Restore(RestoreTask::Answer(answer), restored) => {
                self.restore_worked(&answer, took, now);
                self.restored(Some(*answer), restored, now)?;
            }
            FinishedJob::Audit(_, audited) => {
                self.stages.worked(Stage::Audit, now, took, 0);
                self.audited(audited?);
            }
            FinishedJob::Keep(_, kept) => {
                kept?;
                self.keep_epochs();
            }
            FinishedJob::CheckPast(check, checked) => self.past_checked(check, checked, took, now),
            FinishedJob::StorePast(store, stored) => self.past_stored(store, stored, took, now)?,
            FinishedJob::StoreStates(store, added) => self.states_stored(store, added, now)?,
        }
        Ok(())
    }

    fn audited(&mut self, audited: AuditResult) {
        self.counters.audited += 1;
        if let Some(alarm) = audited.alarm {
            tracing::error!(batch = %alarm.number, what = %alarm.what, certified = %alarm.certified,
                executed = %alarm.executed,
                "ALARM: executing a certified batch here gives another result; ask the validators' operators, and keep the data directory");
            self.counters.alarm = Some(alarm.to_string());
        }
    }

    /// Records a chunk's cost. A range delta's changes do not fill the requested length, so only rows show what a byte
    /// costs.
    fn restore_worked(&mut self, answer: &RestoreAnswer, took: Duration, now: Instant) {
        match (&answer.key, &answer.request) {
            (Key::Chunk(_), Request::Chunk { bytes_max, .. }) => {
                self.stages.worked(Stage::Restore, now, took, u64::from(*bytes_max));
                let bytes = f64::from(*bytes_max) + CHUNK_WORK_BYTES;
                self.stages.measured.learn(|costs| &mut costs.restore, took, bytes);
            }
            (Key::Chunk(_), _) => self.stages.worked(Stage::Restore, now, took, answer.bytes as u64),
            _ => {}
        }
    }

    fn checked(&mut self, check: Check, checked: Result<VerifiedRange, Fault>, took: Duration, now: Instant) {
        let Check { first, flight, at } = check;
        let key = Key::Range(first);
        let range = match checked {
            Ok(range) => range,
            // The peer may only be an epoch ahead: its next summary leads there.
            Err(fault @ Fault::Unverified(_)) => {
                return self.claimed(flight.peer, &describe_key(&key), &fault, now);
            }
            Err(fault) => return self.punish(flight.peer, &describe_key(&key), &fault, now),
        };
        let bytes = range.certified_bytes();
        self.stages.worked(Stage::Check, now, took, bytes as u64);
        self.stages.measured.learn(|costs| &mut costs.check, took, bytes as f64);
        self.credit(&flight, at, now, bytes);
        self.book.advance(&flight.peer, now, range.certificate());
        self.learn_end(range.certificate());
        let amount = self.learn_headers(&range);
        // The range was given up meanwhile and requested in another way, so this result no longer fits.
        if self.pipeline.get(first).is_some_and(|piece| !range.has(needed(piece.mode))) {
            return;
        }
        self.settle(&key, now);
        if let Some(mode) = self.pipeline.get(first).map(|piece| piece.mode) {
            self.book.sent(&flight.peer, mode, range.batches().len() as u64);
            let bytes = self.ratios.bytes(mode, &amount, self.optional_parts());
            let load = match mode {
                RangeMode::Replay => Load { replay_bytes: bytes, ..Load::default() },
                RangeMode::Delta => Load { delta_bytes: bytes, ..Load::default() },
            };
            self.pace.done(load, now);
        }
        if let Some(rest) = self.pipeline.arrived(first, range, amount, flight.peer) {
            self.want_rest(rest);
        }
    }

    /// Records the totals of a range's last header, and the compression of its parts. Returns the work in the range.
    fn learn_headers(&mut self, range: &VerifiedRange) -> Amount {
        let mut amount = Amount::default();
        let mut receipts_before = None;
        for batch in range.batches() {
            let header = &batch.header;
            let (body, changes) = (f64::from(header.tx_bytes), f64::from(header.delta_bytes));
            let receipts_up_to = header.totals.receipts_bytes;
            let receipts = receipts_before.map_or(0, |before| receipts_up_to.saturating_sub(before)) as f64;
            receipts_before = Some(receipts_up_to);
            let parts = [
                (&mut self.ratios.body, &batch.body, body),
                (&mut self.ratios.receipts, &batch.receipts, receipts),
                (&mut self.ratios.delta, &batch.delta, changes),
                (&mut self.ratios.hints, &batch.hints, changes),
            ];
            for (ratio, blob, content) in parts {
                if let Some(blob) = blob {
                    Ratios::learn(ratio, blob.len() as f64, content);
                }
            }
            amount = amount.plus(Amount {
                batches: 1.0,
                transactions: header.tx_count.into(),
                gas: header.gas_used as f64,
                body,
                receipts,
                changes,
            });
        }
        if let Some(last) = range.batches().last() {
            self.course.mark(last.header.number, last.header.totals);
        }
        amount
    }

    fn committed(&mut self, committed: CommitResult, now: Instant) {
        self.counters.add(&committed);
        for (peer, hints) in &committed.hints {
            self.book.judge_hints(peer, now, hints);
        }
        // Audits are for spare time: those that do not fit are left out rather than delay the head.
        let room = AUDITS_MAX.saturating_sub(self.audits.len());
        self.counters.audits_skipped += committed.audits.len().saturating_sub(room) as u64;
        self.audits.extend(committed.audits.into_iter().take(room));
        self.backfill_lacks(self.pipeline.commits_lacking());
        self.pipeline.committed(committed.head);
        self.moved(committed.head, now);
    }

    fn restored(
        &mut self,
        answer: Option<RestoreAnswer>,
        restored: Result<RestoreResult, SyncError>,
        now: Instant,
    ) -> Result<(), SyncError> {
        let restored = match restored {
            // The disk lost the restored data, and the restore was given up: the next turn begins anew.
            Err(SyncError::Storage(error)) if error.is_retryable() => {
                tracing::warn!(%error, "the restore begins anew");
                self.abandon();
                return Ok(());
            }
            restored => restored?,
        };
        let Some(restore) = &mut self.restore else {
            // The job began a restore that is abandoned by now. The worker still holds it, and the state below it.
            if matches!(restored.step, RestoreOutcome::Begun) {
                self.run(RestoreTask::Drop, Job::Restore(RestoreJob::Drop));
            }
            return Ok(());
        };
        let (checked, judged) = match restored.step {
            RestoreOutcome::Chunk { checked, judged, .. } => {
                restore.added(answer.as_ref().filter(|_| checked.is_ok()).map_or(0, |answer| answer.bytes));
                (checked, judged)
            }
            RestoreOutcome::Siblings { checked, .. } | RestoreOutcome::Codes(checked) => (checked, None),
            RestoreOutcome::Finished(head) => {
                self.restore_finished(head, now);
                return Ok(());
            }
            RestoreOutcome::Begun => {
                // A range delta is not recorded, and the record of an earlier restore stays beside it.
                if restore.range_delta().is_none() {
                    self.begun = Some(restore.number());
                }
                (Ok(()), None)
            }
            RestoreOutcome::Dropped => (Ok(()), None),
            RestoreOutcome::Abandoned { why, reason } => {
                self.put_down(why, &reason, now);
                return Ok(());
            }
        };
        if answer.is_some() && checked.is_ok() {
            restore.moved(now);
        }
        for chunk in restore.progressed(restored.progress, &mut self.streams, &mut self.effects) {
            self.add_chunk(chunk);
        }
        if let Some(RestoreAnswer { key, flight, at, bytes, .. }) = answer {
            // Siblings are small beside what they save, and are judged later.
            let earned = if matches!(key, Key::Siblings(_)) { 0 } else { bytes };
            match checked {
                Ok(()) => {
                    if let (Key::Chunk(_) | Key::Codes, Some(restore)) = (key, &mut self.restore) {
                        restore.suppliers_mut().delivered(flight.peer);
                        self.ignored_offers.kept(&flight.peer);
                    }
                    self.settle(&key, now);
                    self.credit(&flight, at, now, earned);
                }
                Err(fault) => self.punish(flight.peer, &describe_key(&key), &fault, now),
            }
        }
        if let Some((peer, false)) = judged {
            self.punish(peer, "range proof", &Violation::WrongSiblings.into(), now);
        }
        Ok(())
    }

    fn restore_finished(&mut self, head: BatchNumber, now: Instant) {
        let Some(restore) = self.restore.take() else { return };
        let (number, seconds) = (restore.number(), restore.age(now).as_secs_f64());
        tracing::info!(batch = %number, seconds, "restored the state and checked its root");
        self.counters.snapshot = restore.status(now);
        // The record of another snapshot's rows outlives a range delta.
        if restore.range_delta().is_none() {
            self.begun = None;
        }
        self.plan = restore.behind.or(self.plan.take());
        self.backfill.leapt();
        self.moved(head, now);
    }

    /// Halves the bound on range deltas: no peer can serve one over this many batches. After a while a longer one is
    /// tried again.
    pub(super) fn range_delta_too_long(&mut self, number: BatchNumber, now: Instant) {
        self.range_delta_max = number.since(self.head) / 2;
        self.range_delta_grows = Some(now + RANGE_DELTA_GROWS);
    }

    /// Doubles the bound on range deltas when that is due.
    pub(super) fn grow_range_delta(&mut self, now: Instant) {
        if self.range_delta_grows.is_some_and(|at| at <= now) {
            self.range_delta_max = (self.range_delta_max.max(1) * 2).min(RANGE_DELTA_BATCHES_MAX);
            let is_short = self.range_delta_max < RANGE_DELTA_BATCHES_MAX;
            self.range_delta_grows = is_short.then(|| now + RANGE_DELTA_GROWS);
        }
    }

    /// Abandons a takeover that cannot end. A takeover that was too large is tried again once half of its batches are
    /// left, or once the bound grows. Surplus unchanged rows cannot be traced to a chunk. Most likely they are in the
    /// chunk with the most rows for its share of the paths. So the snapshots of that chunk's sender are ignored for a
    /// while.
    fn put_down(&mut self, why: AbandonReason, reason: &str, now: Instant) {
        let Some(number) = self.restore.as_ref().map(Bootstrap::number) else { return };
        tracing::info!(batch = %number, reason, "giving up the way to the snapshot; taking another way");
        match why {
            AbandonReason::TooLarge => self.range_delta_too_long(number, now),
            AbandonReason::Padded => {
                let densest = self.restore.as_ref().and_then(|restore| restore.suppliers().densest());
                self.ignored_offers.broken(densest, now);
            }
            AbandonReason::Overtaken => {}
        }
        self.abandon();
    }

    /// Abandons the restore. Restored rows stay, and a later plan may resume from them. Batches fetched behind it lose
    /// their base.
    pub(super) fn abandon(&mut self) {
        if self.restore.take().is_some() {
            self.pipeline = Pipeline::new(self.head);
            let goes = |key: &Key| Bootstrap::owns(key) || matches!(key, Key::Range(_));
            self.streams.drop_all(goes, &mut self.effects);
            self.run(RestoreTask::Drop, Job::Restore(RestoreJob::Drop));
        }
    }

    /// Takes the result of an announcement's check: a valid batch goes on to execution.
    fn checked_announced(
        &mut self,
        check: CheckAnnounced,
        checked: Result<Option<VerifiedRange>, Fault>,
        now: Instant,
    ) {
        let CheckAnnounced { from, number } = check;
        match checked {
            Ok(Some(range)) => {
                self.counters.bytes_received += range.certified_bytes() as u64;
                self.learn_end(range.certificate());
                self.announcements.passed(number);
                let amount = self.learn_headers(&range);
                let is_next = self.executes_head() && self.restore.is_none() && number > self.head;
                if is_next && self.pipeline.announced(range, amount, from) {
                    self.book.sent(&from, RangeMode::Replay, 1);
                    self.announcements.taken(number);
                    self.counters.announced += 1;
                    self.streams.settle(&Key::Range(number), &mut self.effects);
                }
            }
            Ok(None) => {}
            Err(fault) => {
                self.expected.end(number);
                self.punish(from, "announcement", &fault, now);
            }
        }
    }
}
