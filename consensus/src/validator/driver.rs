//! [`Driver`]: the actor. It turns events into the core's inputs; `effects` and `working` carry out what the core
//! wants.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use slipstream_eve::{self as eve, Core, Evidence, Message, Output, Settings, SignedOrder};
use slipstream_network::Transport;
use slipstream_storage::StorageError;
use slipstream_types::{BatchNumber, Clock, Digest};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    Content, Decided, Mail,
    bodies::Bodies,
    executed::Executed,
    execution::{Built, Failure, Making},
    fetching::Fetches,
    kept::Kept,
    lanes::{Landed, Lanes},
    ledger::Ledger,
    logged_refusals::LoggedRefusals,
    message::{Ordered, OutcomeParts, Response},
    neglect::Neglect,
    opening::Opened,
    records::{Convictions, EVIDENCE},
    status::{Heard, Shown},
    timers::Timers,
    tip::Tip,
    uncommitted_chain::UncommittedChain,
    work_queue::WorkQueue,
    working::Working,
};
use crate::{
    config::ConsensusConfig,
    error::{ConsensusError, ProposalError, RecordError},
    pool::Pool,
};

/// The parts of a driver.
pub(super) struct Parts {
    pub(super) config: ConsensusConfig,
    pub(super) ledger: Arc<Ledger>,
    pub(super) pool: Pool,
    pub(super) seat: u16,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) decided: mpsc::Sender<Decided>,
    pub(super) mail: mpsc::Receiver<Mail>,
    pub(super) shown: Arc<watch::Sender<Shown>>,
    pub(super) view: watch::Sender<u64>,
    pub(super) evidence: watch::Sender<Arc<Vec<Evidence>>>,
}

/// A validator's only task. See the module above.
pub struct Driver {
    pub(super) seat: u16,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) pool: Pool,
    pub(super) core: Core,
    pub(super) held: UncommittedChain,
    pub(super) kept: Kept,
    pub(super) bodies: Bodies,
    pub(super) working: Working,
    pub(super) fetches: Fetches,
    pub(super) neglect: Neglect,
    /// Executes one batch after the other.
    pub(super) executions: WorkQueue<Done>,
    /// Commits batches, while the next one is executed.
    pub(super) commits: WorkQueue<Done>,
    /// Makes durable what is about to be sent, beside executions and commits.
    pub(super) records: WorkQueue<Done>,
    /// Reads committed batches that others request.
    pub(super) lookups: WorkQueue<Done>,
    pub(super) lanes: Lanes<Tag>,
    pub(super) timers: Timers<Timer>,
    /// Outputs that wait for a record.
    pub(super) flushing: Option<Vec<Output>>,
    /// The last batch whose commit the core knows.
    pub(super) committed: BatchNumber,
    pub(super) decided: mpsc::Sender<Decided>,
    pub(super) convictions: Convictions,
    mail: mpsc::Receiver<Mail>,
    head: watch::Receiver<BatchNumber>,
    /// When each other validator was last heard.
    pub(super) heard: BTreeMap<u16, Heard>,
    /// The refusals that were logged for the current batch.
    pub(super) said: LoggedRefusals,
    pub(super) shown: Arc<watch::Sender<Shown>>,
    pub(super) view: watch::Sender<u64>,
    pub(super) evidence: watch::Sender<Arc<Vec<Evidence>>>,
}

/// The result of work on a thread that may block.
pub(super) enum Done {
    Built(Box<Making>, Result<Built, ConsensusError>),
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
enum Input {
    Done(Result<Done, ConsensusError>),
    Mail(Mail),
    Landed(Result<Landed<Tag>, ConsensusError>),
    Timer(Timer),
    /// The store's head moved, or the pool has transactions. Every turn looks at both anyway.
    Look,
    Shutdown,
}

/// The present, as the core takes it.
pub(super) fn core_now() -> std::time::Instant {
    Instant::now().into_std()
}

impl Driver {
    /// # Errors
    /// If the records, the outcomes or the head cannot be read.
    pub(super) fn new(parts: Parts) -> Result<Driver, ConsensusError> {
        let Parts { config, ledger, pool, seat, transport, clock, decided, mail, .. } = parts;
        let Parts { shown, view, evidence, .. } = parts;
        let head = ledger.store.watch_head();
        let Opened { tip, certificate, record, outcomes, ordered, bound, held, kept } =
            Opened::open(&ledger)?;
        let mut bodies = Bodies::default();
        for ordered in ordered.into_iter().filter(|ordered| kept.of_order(&ordered.order).is_none()) {
            bodies.insert(ordered.order.order.digest(&ledger.domain), ordered);
        }
        // Evidence of an earlier epoch names seats that other validators hold now.
        let convictions = EVIDENCE.load(&ledger.store)?.unwrap_or_default().into_inner();
        let is_of_now = |evidence: &Evidence| evidence.is_valid(&ledger.set, &ledger.domain);
        let convictions = convictions.into_iter().filter(is_of_now).collect();
        let convictions = Convictions::new(convictions).expect("no more than were stored");
        let settings = Settings {
            view_timeout_ms: config.view_timeout_ms.get(),
            rotate_after: config.rotate_after,
            protect_after: config.protect_after,
            protect_wait_ms: config.protect_wait_ms,
            recalls_votes: true,
        };
        let core = Core::new(
            eve::Setup {
                set: ledger.set.clone(),
                key: ledger.key.clone(),
                seat,
                domain: ledger.domain,
                settings,
                head: tip.info(),
                certificate,
                record,
                outcomes,
                kept: bound,
            },
            core_now(),
        );
        let others =
            ledger.set.validators.iter().enumerate().filter(|(index, _)| *index != usize::from(seat));
        let others = others.map(|(index, other)| (index as u16, other.public_key));
        let lanes = Lanes::new(transport, others);
        let queue = || WorkQueue::new(ledger.seams.machine.clone());
        let driver = Driver {
            seat,
            clock,
            committed: tip.number(),
            core,
            held,
            kept,
            bodies,
            working: Working::new(&config, &ledger.set),
            fetches: Fetches::new(seat, lanes.seats()),
            neglect: Neglect::new(&ledger.set),
            executions: queue(),
            commits: queue(),
            records: queue(),
            lookups: queue(),
            lanes,
            timers: Timers::new(),
            flushing: None,
            decided,
            convictions,
            mail,
            head,
            heard: BTreeMap::new(),
            said: LoggedRefusals::default(),
            shown,
            view,
            evidence,
            ledger,
            pool,
        };
        driver.report();
        driver.show_evidence();
        Ok(driver)
    }

    /// Takes part until shutdown, then finishes the work in progress.
    ///
    /// # Errors
    /// If continuing would be useless or unsafe, above all when the store fails or work panics. The node should then
    /// stop.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), ConsensusError> {
        let ended = self.work(&shutdown).await;
        self.working.clear();
        // The next owner of the store must find this validator's writes.
        self.executions.finish().await;
        self.commits.finish().await;
        self.records.finish().await;
        self.lookups.finish().await;
        ended
    }

    async fn work(&mut self, shutdown: &CancellationToken) -> Result<(), ConsensusError> {
        loop {
            self.turn()?;
            match self.next_input(shutdown).await {
                Input::Shutdown => return Ok(()),
                input => self.take(input)?,
            }
        }
    }

    /// Does everything that can be done now.
    fn turn(&mut self) -> Result<(), ConsensusError> {
        loop {
            self.follow_head()?;
            self.settle();
            self.flush()?;
            if !self.pursue() {
                break;
            }
        }
        self.watch_view();
        self.report();
        Ok(())
    }

    async fn next_input(&mut self, shutdown: &CancellationToken) -> Input {
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

    fn take(&mut self, input: Input) -> Result<(), ConsensusError> {
        let fired = self.due_core_timer();
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
                if self.due_core_timer() == Some(eve::Timer::Tell) {
                    self.note_candidates();
                }
                self.core.handle_timeout(core_now());
            }
            Input::Timer(Timer::Fetch) => self.fetches.ask_next(),
            Input::Timer(Timer::Complaint) => self.complain(),
            // Every turn looks at these anyway.
            Input::Timer(Timer::Batch | Timer::Wanted) | Input::Look | Input::Shutdown => {}
        }
        Ok(())
    }

    /// The core's timer that its next timeout fires, if that is due.
    fn due_core_timer(&self) -> Option<eve::Timer> {
        let now = core_now();
        let (timer, at) = self.core.timers().iter().min_by_key(|(_, at)| **at)?;
        (*at <= now).then_some(*timer)
    }

    /// Passes a new head to the core.
    fn follow_head(&mut self) -> Result<(), ConsensusError> {
        let number = *self.head.borrow_and_update();
        if number <= self.committed {
            return Ok(());
        }
        let tip = self.ledger.tip()?;
        if tip.number() > self.core.decided()
            && let Some(certificate) = self.ledger.store.certificate(tip.number())?
        {
            self.core.handle_certificate(&certificate);
        }
        let header = tip.header.clone();
        self.follow(tip);
        self.watch_primary(&header)
    }

    /// Settles everything up to a newly committed batch.
    pub(super) fn follow(&mut self, tip: Tip) {
        self.committed = tip.number();
        self.held.settle(&tip);
        self.fetches.settle(tip.number());
        self.bodies.settle(tip.number(), self.core.decided(), self.core.view());
        self.working.committed(tip.number(), Instant::now());
        // A commit in progress forgets its own outcomes.
        if let Some(first) = self.kept.settle(tip.number())
            && (first < tip.number() || self.commits.is_idle())
        {
            self.forget_outcomes(first);
        }
        self.core.handle_committed(tip.info(), core_now());
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
                let look = move || Done::Looked(answer, ledger.committed(number, token));
                self.lookups.add("look for an outcome", look);
            }
        }
    }

    /// Returns whether the body of a signed order is wanted here. The core takes an order that is not, because it may
    /// contradict another.
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

    /// This validator's outcome of a batch above the head, by its token.
    fn outcome(&self, number: BatchNumber, token: &slipstream_types::Digest) -> Option<OutcomeParts> {
        let kept = self.kept.get(number, token).map(|parts| parts.outcome());
        kept.or_else(|| self.held.get(number, token).map(|held| held.parts.outcome()))
    }

    fn done(&mut self, done: Done) -> Result<(), ConsensusError> {
        match done {
            Done::Built(making, result) => self.built(&making, result?),
            Done::Executed(work, order, result) => self.executed(work, &order, result)?,
            Done::Adopted(number, result) => self.adopted(number, result)?,
            Done::Recorded(result) => {
                result?;
                let outputs = self.flushing.take().unwrap_or_default();
                self.carry_out(outputs)?;
            }
            Done::Convicted(result) => result?,
            // The core learns of it from the head.
            Done::Committed(result) => result?,
            Done::Looked(answer, result) => {
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
