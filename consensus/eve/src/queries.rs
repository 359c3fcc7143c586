//! The queries that a driver may make to a [`Core`] at any time.

use std::{collections::BTreeMap, time::Instant};

use slipstream_types::BatchNumber;

use crate::{
    core::Core,
    effect::Timer,
    message::{Seat, Status, View},
    state::Phase,
};

impl Core {
    /// The view that this validator is in, or goes to.
    pub fn view(&self) -> View {
        self.view.number
    }

    /// Whether this validator has left the views below and waits for this one to begin.
    pub fn is_changing(&self) -> bool {
        self.view.phase == Phase::Changing
    }

    /// Whether the view's primary omits transactions that it should order, as this validator's driver sees it.
    pub(crate) fn is_neglected(&self) -> bool {
        self.view.phase == Phase::Active { is_neglected: true }
    }

    /// The timers that are set, and when each is due.
    pub fn timers(&self) -> &BTreeMap<Timer, Instant> {
        self.timers.deadlines()
    }

    /// The seat of the view's primary.
    pub fn primary(&self) -> Seat {
        self.set.primary(self.view.number)
    }

    /// Whether this validator is the view's primary.
    pub fn is_primary(&self) -> bool {
        self.primary() == self.seat
    }

    /// The last decision that this validator knows.
    pub fn decided(&self) -> BatchNumber {
        self.decisions.last
    }

    /// The last batch that this validator knows to be decided, or may have helped to decide by its vote. `None` while
    /// this validator does not know its votes. The number survives restarts, because the record keeps a prepared batch
    /// before any vote to commit it.
    pub fn voted(&self) -> Option<BatchNumber> {
        let prepared =
            self.memory.prepared.as_ref().map_or(BatchNumber::GENESIS, |prepared| prepared.info.number);
        (!self.is_silent()).then_some(prepared.max(self.decisions.last))
    }

    /// Whether this validator wants another primary.
    pub fn complains(&self) -> bool {
        self.view.complains
    }

    /// The last status of each other validator, by seat.
    pub fn heard(&self) -> &BTreeMap<Seat, Status> {
        &self.others.heard
    }

    /// How often the others agreed on an outcome other than this validator's.
    pub fn divergences(&self) -> u64 {
        self.seen.divergences
    }

    /// Counts the prepares and the commits of the next batch to be decided.
    pub fn votes(&self) -> (usize, usize) {
        self.term
            .slots
            .get(&self.decisions.last.next())
            .map_or((0, 0), |slot| (slot.prepares.len(), slot.commits.len()))
    }
}
