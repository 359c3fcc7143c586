//! [`Timers`]: the moments that a core waits for.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::effect::Timer;

/// At most one deadline for each timer. Setting a timer again moves its deadline.
#[derive(Clone, Debug)]
pub(crate) struct Timers {
    /// The time of the input that is being handled.
    now: Instant,
    deadlines: BTreeMap<Timer, Instant>,
}

impl Timers {
    pub(crate) fn new(now: Instant) -> Timers {
        Timers { now, deadlines: BTreeMap::new() }
    }

    /// Notes the time of an input.
    pub(crate) fn note(&mut self, now: Instant) {
        self.now = now;
    }

    /// Moves all deadlines by the time since the last input.
    pub(crate) fn start(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.now);
        self.deadlines.values_mut().for_each(|at| *at += passed);
        self.now = now;
    }

    /// Sets a timer, counted from the input that is being handled.
    pub(crate) fn set(&mut self, timer: Timer, after_ms: u64) {
        self.deadlines.insert(timer, self.now + Duration::from_millis(after_ms));
    }

    /// Cancels a timer. Returns whether it was set.
    pub(crate) fn cancel(&mut self, timer: Timer) -> bool {
        self.deadlines.remove(&timer).is_some()
    }

    pub(crate) fn is_set(&self, timer: Timer) -> bool {
        self.deadlines.contains_key(&timer)
    }

    pub(crate) fn deadlines(&self) -> &BTreeMap<Timer, Instant> {
        &self.deadlines
    }

    /// The timer that is due first, and its deadline. If several share the deadline, the first in the order of
    /// [`Timer`]'s variants.
    pub(crate) fn first(&self) -> Option<(Timer, Instant)> {
        let first = self.deadlines.iter().min_by_key(|(_, at)| **at);
        first.map(|(timer, at)| (*timer, *at))
    }
}
