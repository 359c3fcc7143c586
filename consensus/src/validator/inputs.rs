//! [`Input`]: everything that a driver reacts to, and how it passes each on.

use std::time::Duration;

use slipstream_eve::{self as eve, Message, SignedOrder};
use slipstream_storage::StorageError;
use slipstream_types::{BatchNumber, Digest};
use tokio::{sync::oneshot, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    Content, Mail,
    building::{BuildRequest, BuildResult},
    driver::{Driver, core_now},
    executed::Executed,
    execution::Failure,
    lanes::LaneAnswer,
    message::{Ordered, OutcomeParts, Response},
};
use crate::error::{ConsensusError, ProposalError, RecordError};

/// The result of work on a thread that may block.
pub(super) enum WorkResult {
    Built(Box<BuildRequest>, Result<BuildResult, ConsensusError>),
    Executed(eve::Work, Box<SignedOrder>, Result<Box<Executed>, Failure>),
    Adopted(BatchNumber, Result<Box<Executed>, Failure>),
    /// The record is durable; for `Convicted`, the evidence.
    Recorded(Result<(), RecordError>),
    Convicted(Result<(), RecordError>),
    /// A commit, or its follow-up, has ended.
    Committed(Result<(), StorageError>),
    /// A committed batch that another validator asked for.
    Looked(Answer, Result<Option<OutcomeParts>, StorageError>),
}

/// Where the answer to a request goes. The asker may be gone.
pub(super) type Answer = oneshot::Sender<Result<Response, ProposalError>>;

/// The purpose of a request to another validator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tag {
    /// The answer carries no information.
    Say,
    /// The answer is the outcome of that batch.
    Fetch(BatchNumber),
}

/// Names a moment that the driver waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Timer {
    /// The core's next timeout.
    Core,
    /// This validator's next batch is due.
    Batch,
    /// A batch is due from the primary, whichever that is.
    Wanted,
    /// It is time to ask another validator for an outcome.
    Fetch,
    /// The view has been unsettled for long.
    Complaint,
}

/// Everything that the driver reacts to.
pub(super) enum Input {
    Done(Result<WorkResult, ConsensusError>),
    Mail(Mail),
    Landed(Result<LaneAnswer<Tag>, ConsensusError>),
    Timer(Timer),
    /// The store's head moved, or the pool has transactions. Every turn looks at both anyway.
    Look,
    Shutdown,
}

impl Driver {
    /// Waits for the next input.
    pub(super) async fn next_input(&mut self, shutdown: &CancellationToken) -> Input {
        let pool = self.pool.clone();
        // The order is fixed, so a simulated run is a function of its seed. The inputs before the mail do not starve
        // it. They are timers, which lie in the future, or work that this actor began, which is bounded for each mail.
        // The mail does not starve the inputs behind it either, because every turn looks at them.
        tokio::select! {
            biased;
            () = shutdown.cancelled() => Input::Shutdown,
            done = self.records.next() => Input::Done(done),
            done = self.commits.next() => Input::Done(done),
            done = self.executions.next() => Input::Done(done),
            done = self.lookups.next() => Input::Done(done),
            timer = self.timers.next() => Input::Timer(timer),
            landed = self.lanes.landed() => Input::Landed(landed),
            Some(mail) = self.mail.recv() => Input::Mail(mail),
            Ok(()) = self.head.changed() => Input::Look,
            () = pool.arrived() => Input::Look,
        }
    }

    /// Takes an input in.
    pub(super) fn take(&mut self, input: Input) -> Result<(), ConsensusError> {
        let fired = self.due_core_timer(core_now());
        // Sync may have been faster than this input.
        self.follow_head()?;
        self.settle();
        match input {
            Input::Done(done) => self.done(done?)?,
            Input::Mail(mail) => self.open(mail),
            Input::Landed(landed) => self.landed(landed?),
            Input::Timer(Timer::Core) => {
                // A decision that came with this input cancels the core's patience, which ran out nevertheless.
                if fired == Some(eve::Timer::Patience) {
                    self.working.pace.lock().ran_out();
                }
                // Both calls get the same time, so that the timer that is checked is the one that fires.
                let now = core_now();
                if self.due_core_timer(now) == Some(eve::Timer::Tell) {
                    self.note_candidates();
                }
                self.core.handle_timeout(now);
            }
            Input::Timer(Timer::Fetch) => self.fetches.ask_next(),
            Input::Timer(Timer::Complaint) => self.complain(),
            // Every turn looks at these anyway.
            Input::Timer(Timer::Batch | Timer::Wanted) | Input::Look | Input::Shutdown => {}
        }
        Ok(())
    }

    /// The core's timer that its next timeout fires, if that is due.
    fn due_core_timer(&self, now: std::time::Instant) -> Option<eve::Timer> {
        let (timer, at) = self.core.timers().iter().min_by_key(|(_, at)| **at)?;
        (*at <= now).then_some(*timer)
    }

    /// Takes a message or a request of another validator.
    fn open(&mut self, Mail { seat, content }: Mail) {
        match content {
            Content::Offer(order, bytes, answer) => {
                self.hear(seat, false);
                _ = answer.send(self.offered(seat, order, bytes));
            }
            Content::Misfit(order) => self.core.handle_misfit(&order, core_now()),
            Content::Order(ordered, answer) => {
                self.hear(seat, false);
                let taken = self.ordered(seat, *ordered);
                _ = answer.send(taken.map(|()| Response::Taken));
            }
            Content::Word(word, answer) => {
                self.hear(seat, matches!(*word, Message::Status(_)));
                self.word(seat, *word);
                if let Some(answer) = answer {
                    _ = answer.send(Ok(Response::Taken));
                }
            }
            Content::Outcome(number, token, answer) => {
                self.hear(seat, false);
                self.tell_outcome(number, token, answer);
            }
        }
    }

    fn word(&mut self, seat: u16, word: Message) {
        if let Message::Verify(verify) = &word {
            let patience = Duration::from_millis(self.core.patience_ms());
            let took = Duration::from_millis(verify.took_ms.into());
            self.working.pace.lock().heard(seat, verify.info.number, took, patience);
            self.neglect.note_time(seat, self.committed, verify.info.number, took);
        }
        self.core.handle_message(seat, word, core_now());
    }

    fn tell_outcome(&mut self, number: BatchNumber, token: Digest, answer: Answer) {
        match self.outcome(number, &token) {
            Some(parts) => _ = answer.send(Ok(Response::Outcome(Box::new(parts)))),
            None if number > self.committed => _ = answer.send(Ok(Response::Lacks)),
            None => {
                let ledger = self.ledger.clone();
                let look = move || WorkResult::Looked(answer, ledger.committed(number, token));
                self.lookups.add("look for an outcome", look);
            }
        }
    }

    /// Returns whether the body of a signed order is wanted here. The core also takes an unwanted order, because that
    /// order may contradict another.
    fn offered(&mut self, seat: u16, order: SignedOrder, bytes: usize) -> Result<bool, ProposalError> {
        let is_wanted = self.core.wants(&order.order);
        if !is_wanted {
            self.core.handle_message(seat, Message::Order(order), core_now());
        } else if !self.bodies.has_room(bytes) {
            return Err(ProposalError::Busy);
        }
        Ok(is_wanted)
    }

    /// Keeps the body of an order that the core still wants, then passes the order to the core.
    fn ordered(&mut self, seat: u16, ordered: Ordered) -> Result<(), ProposalError> {
        let order = ordered.order.clone();
        if self.core.wants(&order.order) {
            let digest = order.order.digest(&self.ledger.domain);
            if !self.bodies.insert(digest, ordered) {
                return Err(ProposalError::Busy);
            }
            self.neglect.note_order(Instant::now(), order.order.number, order.order.view);
        }
        self.core.handle_message(seat, Message::Order(order), core_now());
        Ok(())
    }

    fn done(&mut self, done: WorkResult) -> Result<(), ConsensusError> {
        match done {
            WorkResult::Built(request, result) => self.built(&request, result?),
            WorkResult::Executed(work, order, result) => self.executed(work, &order, result)?,
            WorkResult::Adopted(number, result) => self.adopted(number, result)?,
            WorkResult::Recorded(result) => {
                result?;
                let outputs = self.flushing.take().unwrap_or_default();
                self.carry_out(outputs)?;
            }
            WorkResult::Convicted(result) => result?,
            // The core learns of the commit from the store's head.
            WorkResult::Committed(result) => result?,
            WorkResult::Looked(answer, result) => {
                let response = match result? {
                    Some(parts) => Response::Outcome(Box::new(parts)),
                    None => Response::Lacks,
                };
                _ = answer.send(Ok(response));
            }
        }
        Ok(())
    }
}
