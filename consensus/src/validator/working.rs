//! Chooses the next execution: the core wants one batch after another, and the primary's own are due by time.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use slipstream_eve::{NoOutcome, SignedOrder, Work};
use slipstream_executor::RemainingCapacity;
use slipstream_types::{BatchHeader, BatchNumber, Digest, ValidatorSet, limits};
use tokio::time::Instant;

use super::{
    building::{BuildOutcome, BuildRequest, BuildResult},
    cadence::Cadence,
    driver::{Driver, core_now},
    executed::Executed,
    execution::Failure,
    inputs::{Timer, WorkResult},
    pace::{LIGHT_GAS_MAX, Pace},
    stop::Stop,
};
use crate::{config::ConsensusConfig, error::ConsensusError};

/// Pause before the primary looks for transactions again, if those that it found could not be executed.
const FRUITLESS_PAUSE: Duration = Duration::from_millis(10);

/// A batch that took at most this long did not end for lack of time. It is a third of the shortest time that a primary
/// gives a batch.
const SHORT_MAX: Duration = Duration::from_millis(10);

/// The execution that the core wants.
#[derive(Debug)]
pub(super) enum DueExecution {
    /// Build an own batch, as soon as one is due.
    Build { work: Work, parent: Digest },
    /// Execute the primary's order.
    Execute { work: Work, order: Box<SignedOrder> },
}

/// Executes one batch at a time.
pub(super) struct Working {
    transactions_max: usize,
    /// Counts from the beginning of the last own batch.
    own: Cadence,
    /// When each uncommitted own batch was begun.
    begun: BTreeMap<BatchNumber, Instant>,
    /// Counts from the last move of the head. By this cadence, any primary should have made a batch.
    any: Cadence,
    /// Whether the core knows that a batch is wanted.
    is_wanted: bool,
    due: Option<DueExecution>,
    running: Option<(Work, Stop)>,
    not_before: Instant,
    pub(super) pace: Arc<Mutex<Pace>>,
}

impl Working {
    /// Starts counting now.
    pub(super) fn new(config: &ConsensusConfig, set: &ValidatorSet) -> Working {
        let view_timeout = Duration::from_millis(config.view_timeout_ms.get());
        Working {
            pace: Arc::new(Mutex::new(Pace::new(view_timeout, set))),
            transactions_max: config.batch_transactions_max.get(),
            own: Cadence::new(config),
            begun: BTreeMap::new(),
            any: Cadence::new(config),
            is_wanted: false,
            due: None,
            running: None,
            not_before: Instant::now(),
        }
    }

    /// Notes what the core wants next.
    pub(super) fn begin(&mut self, due: DueExecution) {
        self.due = Some(due);
    }

    /// Drops what the core wanted. A running execution ends as soon as it can.
    pub(super) fn clear(&mut self) {
        self.due = None;
        self.begun.clear();
        if let Some((_, stop)) = self.running.take() {
            stop.stop();
        }
    }

    /// Notes that execution of that work begins.
    fn run(&mut self, work: Work) -> Stop {
        let stop = Stop::default();
        self.running = Some((work, stop.clone()));
        stop
    }

    /// Notes a commit, after which waiting begins anew.
    pub(super) fn committed(&mut self, number: BatchNumber, now: Instant) {
        if let Some(begun) = self.begun.get(&number) {
            self.own.took(now - *begun);
        }
        self.begun = self.begun.split_off(&number.next());
        self.any.made(now);
    }

    /// The room that a finished batch had left for one more transaction, whose gas would have risked no delay; `None`
    /// if it had none. An honest primary ends a batch early only for lack of gas or time, or at the maximum number of
    /// transactions.
    pub(super) fn room_left(
        &self,
        header: &BatchHeader,
        gas_limit: u64,
        took: Option<Duration>,
    ) -> Option<RemainingCapacity> {
        let gas = match header.tx_count {
            0 => gas_limit,
            _ => gas_limit.saturating_sub(header.gas_used).min(LIGHT_GAS_MAX),
        };
        let is_short = header.tx_count == 0 || took.is_some_and(|took| took <= SHORT_MAX);
        let has_place = (header.tx_count as usize) < self.transactions_max;
        (is_short && has_place).then_some(RemainingCapacity { gas, bytes: limits::BODY_BYTES_MAX })
    }

    /// Notes that work has ended. Returns whether it is still wanted.
    fn ended(&mut self, work: Work) -> bool {
        self.running.take_if(|(running, _)| *running == work).is_some()
    }
}

impl Driver {
    /// Begins the work that can begin. Returns whether the core got an input.
    pub(super) fn pursue(&mut self) -> bool {
        if self.tell_wanted() {
            return true;
        }
        self.ask_for_outcome();
        if !self.executions.is_idle() || self.begin_adoption() {
            return false;
        }
        match self.working.due.take() {
            Some(DueExecution::Build { work, parent }) => {
                self.build_if_due(work, parent);
                false
            }
            Some(DueExecution::Execute { work, order }) => self.execute(work, order),
            None => false,
        }
    }

    /// Passes on to the core whether a batch is due, by this validator's pool and clock. Returns whether that changed.
    fn tell_wanted(&mut self) -> bool {
        let now = Instant::now();
        let due = self.working.any.overdue(self.pool.status().pending);
        match due.filter(|due| *due > now) {
            Some(due) => self.timers.set_at(Timer::Wanted, due),
            None => self.timers.cancel(Timer::Wanted),
        }
        let is_wanted = due.is_some_and(|due| due <= now);
        let is_new = std::mem::replace(&mut self.working.is_wanted, is_wanted) != is_wanted;
        if is_new {
            self.core.handle_wanted(is_wanted, core_now());
        }
        is_new
    }

    fn build_if_due(&mut self, work: Work, parent: Digest) {
        let now = Instant::now();
        // Transactions in executed batches are not due again.
        let pending = self.pool.status().pending.saturating_sub(self.held.transactions());
        let due = self.working.own.due(pending).map(|due| due.max(self.working.not_before));
        let chain = self.held.before(work.number).filter(|_| !self.held.is_full());
        let chain = match (due, chain) {
            (Some(due), Some(chain)) if due <= now => chain,
            (due, _) => {
                match due.filter(|due| *due > now) {
                    Some(due) => self.timers.set_at(Timer::Batch, due),
                    None => self.timers.cancel(Timer::Batch),
                }
                return self.working.begin(DueExecution::Build { work, parent });
            }
        };
        self.timers.cancel(Timer::Batch);
        let request = BuildRequest {
            work,
            parent,
            begun: now,
            transactions_max: self.working.transactions_max,
            may_be_empty: self.working.own.may_be_empty(now),
            now_ms: self.clock.now_ms(),
            ahead: self.held.ahead(),
            patience: Duration::from_millis(self.core.patience_ms()),
            pace: Arc::clone(&self.working.pace),
            stop: self.working.run(work),
        };
        let (ledger, pool) = (self.ledger.clone(), self.pool.clone());
        self.executions.add_long("build", request.stop.clone(), move || {
            let built = ledger.build(&chain, &pool, &request);
            move |is_cut| {
                let built = built.and_then(|built| ledger.keep_built(built, is_cut));
                WorkResult::Built(Box::new(request), built)
            }
        });
    }

    /// Takes the result of a build.
    pub(super) fn built(&mut self, request: &BuildRequest, built: BuildResult) {
        let BuildRequest { work, parent, begun, .. } = *request;
        let is_wanted = self.working.ended(work);
        self.pool.drop_too_slow(&built.too_slow);
        match built.batch {
            BuildOutcome::Made(executed) => {
                let executed = Arc::new(*executed);
                self.keep(&executed);
                if is_wanted {
                    self.working.own.made(begun);
                    self.working.begun.insert(executed.number(), begun);
                    self.held.push(Arc::clone(&executed));
                }
                if let Some(order) = executed.parts.order.clone() {
                    self.core.handle_built(work, order, executed.parts.info.clone(), core_now());
                }
            }
            BuildOutcome::Nothing(rejected) => {
                if self.held.transactions() == 0 {
                    self.pool.reject(&rejected);
                }
                self.build_again(is_wanted, work, parent);
            }
            BuildOutcome::Overtaken => self.build_again(is_wanted, work, parent),
        }
    }

    fn build_again(&mut self, is_wanted: bool, work: Work, parent: Digest) {
        if is_wanted {
            self.working.not_before = Instant::now() + FRUITLESS_PAUSE;
            self.working.begin(DueExecution::Build { work, parent });
        }
    }

    /// Begins to execute an ordered batch, if its body is here. Returns whether the core learned that it is not.
    fn execute(&mut self, work: Work, order: Box<SignedOrder>) -> bool {
        let Some(ordered) = self.ordered_batch(&order) else {
            self.core.handle_executed(work, Err(NoOutcome::Missing), core_now());
            return true;
        };
        let Some(chain) = self.held.before(work.number).filter(|_| !self.held.is_full()) else {
            self.working.begin(DueExecution::Execute { work, order });
            return false;
        };
        let (stop, pace) = (self.working.run(work), Arc::clone(&self.working.pace));
        let (ledger, now_ms) = (self.ledger.clone(), self.clock.now_ms());
        self.executions.add_long("execute", stop.clone(), move || {
            let begun = Instant::now();
            let executed = ledger.execute(&chain, &ordered, work.sequential, now_ms, &stop);
            pace.lock().executed(work.number, begun.elapsed() + stop.spent(), false);
            move |is_cut| {
                let executed = executed.and_then(|executed| ledger.keep_executed(executed, is_cut));
                WorkResult::Executed(work, order, executed)
            }
        });
        false
    }

    /// Takes the result of an execution.
    pub(super) fn executed(
        &mut self,
        work: Work,
        order: &SignedOrder,
        result: Result<Box<Executed>, Failure>,
    ) -> Result<(), ConsensusError> {
        let is_wanted = self.working.ended(work);
        let result = match result {
            Ok(executed) => {
                let executed = Arc::new(*executed);
                self.keep(&executed);
                self.bodies.remove(&order.order.digest(&self.ledger.domain));
                if is_wanted {
                    self.held.push(Arc::clone(&executed));
                }
                Ok(executed.parts.info.clone())
            }
            Err(failure) => {
                let (reason, error) = failure.no_outcome()?;
                if let Some(error) = error {
                    self.refuse(work.number, &error);
                }
                Err(reason)
            }
        };
        self.core.handle_executed(work, result, core_now());
        Ok(())
    }

    /// Keeps durable outcomes until their number is committed.
    pub(super) fn keep(&mut self, executed: &Executed) {
        let number: BatchNumber = executed.number();
        if number <= self.committed {
            return self.forget_outcomes(number);
        }
        if let Some(name) = self.kept.insert(Arc::clone(&executed.parts)) {
            let store = self.ledger.store.clone();
            let forget = move || WorkResult::Committed(store.remove_records(&name, &name));
            self.commits.add("forget an outcome", forget);
        }
    }

    /// Removes the outcomes of committed batches from number `first` on.
    pub(super) fn forget_outcomes(&mut self, first: BatchNumber) {
        let ledger = self.ledger.clone();
        self.commits.add("forget outcomes", move || WorkResult::Committed(ledger.forget_outcomes(first)));
    }
}
