//! What came of jobs: where the pipeline goes on, what it cost, and who is to be thanked or blamed.

use std::time::Duration;

use slipstream_network::PeerId;
use slipstream_types::BatchNumber;
use tokio::time::Instant;

use super::{
    Engine, Stage,
    answers::describe_key,
    bootstrap::Bootstrap,
    effect::{Done, Effect, Job, JobId},
    stages::learn,
    streams::{Flight, Key},
    tail::Tail,
};
use crate::{
    SyncError,
    error::Fault,
    peers::UNJUDGED_PAUSE,
    plan::price::Seen,
    protocol::Request,
    verify::{VerifiedRange, Violation},
    work::{Committed, Executed, Prepared, Ready, Restored, Step},
};

/// What a job is about.
#[derive(Debug)]
pub(super) enum Task {
    Check { first: BatchNumber, flight: Flight, at: Instant },
    CheckAnnounced { from: PeerId, payload: Vec<u8> },
    Prepare { first: BatchNumber, transactions: f64, changes: f64, bytes: u64, replay: bool },
    Execute { first: BatchNumber, transactions: f64, bytes: u64, from: PeerId },
    Commit { changes: f64, bytes: u64 },
    Restore { from: Option<(Flight, Instant, usize)>, key: Key, request: Request },
    Put,
    Audit,
    Keep,
}

impl Task {
    pub(super) fn of_restore(flight: &Flight, at: Instant, bytes: usize, key: Key, request: Request) -> Task {
        Task::Restore { from: Some((flight.clone(), at, bytes)), key, request }
    }
}

impl Engine {
    pub(super) fn finished(
        &mut self,
        id: JobId,
        done: Done,
        took: Duration,
        now: Instant,
    ) -> Result<(), SyncError> {
        let Some(task) = self.jobs.remove(&id) else { return Ok(()) };
        match (task, done) {
            (Task::Check { first, flight, at }, Done::Range(checked)) => {
                self.checked(first, &flight, at, checked, took, now);
            }
            (Task::CheckAnnounced { from, payload }, Done::Announced(checked)) => {
                self.checked_announced(from, payload, checked, now);
            }
            (Task::Prepare { first, transactions, changes, bytes, replay }, Done::Prepared(prepared)) => {
                self.stages.worked(Stage::Prepare, now, took, bytes);
                match replay {
                    true => learn(&mut self.stages.costs.prepare, took, transactions),
                    false => learn(&mut self.stages.costs.open, took, changes),
                }
                self.prepared(first, prepared)?;
            }
            (Task::Execute { first, transactions, bytes, from }, Done::Executed(executed)) => {
                self.stages.worked(Stage::Execute, now, took, bytes);
                learn(&mut self.stages.costs.execute, took, transactions);
                match executed? {
                    Executed::Range(range) => self.tail.executed(first, Ready::Executed(range)),
                    Executed::Unprepared(range) => self.tail.unprepared(first, range, from),
                }
            }
            (Task::Commit { changes, bytes }, Done::Committed(committed)) => {
                self.stages.worked(Stage::Commit, now, took, bytes);
                learn(&mut self.stages.costs.commit, took, changes);
                self.committed(committed?, now);
            }
            (Task::Restore { from, key, request }, Done::Restored(restored)) => {
                match (&key, &request) {
                    (Key::Chunk(_), Request::Chunk { bytes_max, .. }) => {
                        self.stages.worked(Stage::Restore, now, took, u64::from(*bytes_max));
                        learn(&mut self.stages.costs.restore, took, f64::from(*bytes_max));
                    }
                    (Key::Chunk(_), _) => {
                        let bytes = from.as_ref().map_or(0, |(_, _, bytes)| *bytes as u64);
                        self.stages.worked(Stage::Restore, now, took, bytes);
                    }
                    _ => {}
                }
                self.restored(from, &key, restored, now)?;
            }
            (Task::Put, Done::Restored(_)) => {}
            (Task::Audit, Done::Audited(audited)) => {
                self.stages.worked(Stage::Audit, now, took, 0);
                self.counters.audited += 1;
                if let Some(alarm) = audited?.alarm {
                    tracing::error!(batch = %alarm.number, what = %alarm.what, certified = %alarm.certified,
                        executed = %alarm.executed,
                        "ALARM: a certified batch is not what executing it here gives; ask the validators' operators, keep the data directory");
                    self.counters.alarm = Some(alarm.to_string());
                }
            }
            (Task::Keep, Done::Kept(kept)) => {
                kept?;
                self.keep_epochs();
            }
            (task, _) => {
                return Err(SyncError::Worker(format!("a job ended with another's result: {task:?}")));
            }
        }
        Ok(())
    }

    fn checked(
        &mut self,
        first: BatchNumber,
        flight: &Flight,
        at: Instant,
        checked: Result<VerifiedRange, Fault>,
        took: Duration,
        now: Instant,
    ) {
        let key = Key::Range(first);
        self.checking.done(&key);
        let range = match checked {
            Ok(range) => range,
            // It may only be an epoch ahead: its next summary leads there.
            Err(fault @ Fault::Unverified(_)) => {
                self.heard.insert(flight.peer);
                let reason = format!("{}: {fault}", describe_key(&key));
                return self.book.busy(&flight.peer, now, UNJUDGED_PAUSE, reason);
            }
            Err(fault) => return self.punish(flight.peer, &describe_key(&key), &fault, now),
        };
        let bytes = range.certified_bytes();
        self.stages.worked(Stage::Check, now, took, bytes as u64);
        learn(&mut self.stages.costs.check, took, bytes as f64);
        self.credit(flight, at, now, bytes);
        self.book.advance(&flight.peer, now, range.certificate());
        self.learn_sizes(&range);
        // What was given up and is asked for again in another way is not what came here.
        if self.tail.get(first).is_some_and(|piece| !range.has(self.needed(piece.mode))) {
            return;
        }
        self.settle(&key, now);
        if let Some(rest) = self.tail.arrived(first, range, flight.peer) {
            self.want_rest(rest);
        }
    }

    fn learn_sizes(&mut self, range: &VerifiedRange) {
        for batch in range.batches() {
            let header = &batch.header;
            let bytes = |blob: &Option<slipstream_types::Blob>| blob.as_ref().map(|blob| blob.len() as f64);
            let seen = Seen {
                transactions: header.tx_count.into(),
                changes: header.delta_bytes.into(),
                body: bytes(&batch.body),
                receipts: bytes(&batch.receipts),
                delta: bytes(&batch.delta),
                hints: bytes(&batch.hints),
            };
            let of_header = || {
                let (count, body) = (header.tx_count.into(), header.tx_bytes.into());
                crate::plan::price::Sizes::of_header(count, body, header.delta_bytes.into())
            };
            self.sizes.get_or_insert_with(of_header).learn(&seen);
        }
    }

    fn prepared(
        &mut self,
        first: BatchNumber,
        prepared: Result<Box<Prepared>, SyncError>,
    ) -> Result<(), SyncError> {
        self.tail.prepared(first, prepared?);
        Ok(())
    }

    fn committed(&mut self, committed: Committed, now: Instant) {
        self.counters.add(&committed);
        for (peer, hints) in &committed.hints {
            self.book.judge_hints(peer, now, hints);
        }
        // Audits are for the spare time: what does not fit is left out rather than hold up the head.
        let room = AUDITS_MAX.saturating_sub(self.audits.len());
        self.counters.audits_skipped += committed.audits.len().saturating_sub(room) as u64;
        self.audits.extend(committed.audits.into_iter().take(room).map(Job::Audit));
        self.tail.committed(committed.head);
        self.moved(committed.head, now);
    }

    fn restored(
        &mut self,
        from: Option<(Flight, Instant, usize)>,
        key: &Key,
        restored: Result<Restored, SyncError>,
        now: Instant,
    ) -> Result<(), SyncError> {
        let restored = match restored {
            // The disk lost what was restored, and it was given up: the next turn begins anew.
            Err(SyncError::Storage(error)) if error.is_retryable() => {
                tracing::warn!(%error, "the restore begins anew");
                self.abandon();
                return Ok(());
            }
            restored => restored?,
        };
        let Some(restore) = &mut self.restore else { return Ok(()) };
        let (checked, judged) = match restored.step {
            Step::Chunk { first, checked, judged } => {
                let bytes = from.as_ref().filter(|_| checked.is_ok()).map_or(0, |(_, _, bytes)| *bytes);
                restore.added(&first, bytes);
                (checked, judged)
            }
            Step::Siblings { checked, .. } => {
                restore.compared();
                (checked, None)
            }
            Step::Codes(checked) => {
                restore.added_codes();
                (checked, None)
            }
            Step::Finished(head) => {
                let (number, seconds) = (restore.number(), restore.age(now).as_secs_f64());
                tracing::info!(batch = %number, seconds, "the state is restored and its root checked");
                self.counters.snapshot = restore.status(now);
                self.plan = restore.behind.take().or(self.plan.take());
                // What is recorded of another snapshot's rows outlives a net change.
                if restore.net().is_none() {
                    self.begun = None;
                }
                self.restore = None;
                self.moved(head, now);
                return Ok(());
            }
            Step::Begun => {
                // A net change is not recorded, and a recorded restore is still there beside it.
                if restore.net().is_none() {
                    self.begun = Some(restore.number());
                }
                (Ok(()), None)
            }
            Step::Dropped => (Ok(()), None),
        };
        let early = self.emit(|engine, effects| match &mut engine.restore {
            Some(restore) => restore.progressed(restored.progress, &mut engine.streams, effects),
            None => Vec::new(),
        });
        for chunk in early {
            self.add_chunk(chunk);
        }
        if let Some((flight, at, bytes)) = from {
            match checked {
                Ok(()) => {
                    self.settle(key, now);
                    self.credit(&flight, at, now, bytes);
                }
                Err(fault) => self.punish(flight.peer, &describe_key(key), &fault, now),
            }
        }
        if let Some((peer, false)) = judged {
            self.punish(peer, "range proof", &Violation::WrongSiblings.into(), now);
        }
        Ok(())
    }

    /// Puts the restore down; what is restored stays, and is taken up when the plan comes back to it. What was fetched behind it has
    /// nothing to stand on.
    pub(super) fn abandon(&mut self) {
        if self.restore.take().is_some() {
            self.tail = Tail::new(self.head);
            self.emit(|engine, effects| {
                let goes = |key: &Key| Bootstrap::owns(key) || matches!(key, Key::Range(_));
                engine.streams.drop_all(goes, effects);
            });
            self.run(Task::Put, Job::Restore(super::RestoreJob::Drop));
        }
    }

    /// A batch that was announced is checked: it goes on to others, and to execution.
    fn checked_announced(
        &mut self,
        from: PeerId,
        payload: Vec<u8>,
        checked: Result<Option<VerifiedRange>, Fault>,
        now: Instant,
    ) {
        match checked {
            Ok(Some(range)) => {
                self.counters.bytes_received += range.certified_bytes() as u64;
                let number = range.certificate().info.number;
                if self.announcements.relay(number) {
                    self.effects.push_back(Effect::Relay { payload, except: from });
                }
                self.learn_sizes(&range);
                if self.executes_head() && self.restore.is_none() && number > self.head {
                    self.emit(|engine, effects| {
                        if engine.tail.announced(range, from) {
                            engine.announcements.taken(number);
                            engine.streams.settle(&Key::Range(number), effects);
                        }
                    });
                }
            }
            Ok(None) => {}
            Err(fault) => self.punish(from, "announcement", &fault, now),
        }
        self.announcements.checked();
    }
}

/// Audits that wait. Those of one commit share its deltas.
const AUDITS_MAX: usize = 256;
