//! [`Timers`]: when the engine wants to be woken if nothing happens before, and why.
//!
//! At the end of a turn, one place computes every instant from what the engine knows. So a deadline cannot be forgotten or outlive its
//! reason. Each change that time alone brings has a name here; the engine never polls "now and then".

use slipstream_network::PeerId;
use tokio::time::Instant;

use super::{Engine, SUMMARY_AGE, bootstrap::Bootstrap};

/// Identifies a change that time alone brings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, strum::VariantArray)]
pub(super) enum Timer {
    /// A peer's summary is old: the peer is asked for the next one.
    Summary,
    /// An answer takes longer than its peer's answers do: another peer is asked too.
    Hedge,
    /// A peer's pause ends: it may be asked again.
    Pause,
    /// A peer's ban ends: it is taken back into the book, if it is connected.
    Ban,
    /// A new batch was left to others in this process for long enough.
    Patience,
    /// The mesh did not assemble a batch in time.
    Coming,
    /// A peer is asked again about a batch that it announced.
    Rumour,
    /// The first plan stops waiting for the headers that it asked for.
    Survey,
    /// A restore's speed is judged, and compared with other ways.
    Standstill,
    /// A snapshot that was given up may be tried again.
    GivenUp,
    /// Range deltas may be longer again.
    RangeDelta,
    /// A peer of the backfill becomes late, or one may be asked again.
    Backfill,
}

impl Timer {
    const ALL: &'static [Timer] = <Timer as strum::VariantArray>::VARIANTS;
}

/// An instant for each running [`Timer`].
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Timers([Option<Instant>; Timer::ALL.len()]);

impl Timers {
    /// When a timer ends, if it runs.
    pub(super) fn get(&self, timer: Timer) -> Option<Instant> {
        self.0[timer as usize]
    }

    /// The next timer to end.
    pub(super) fn next(&self) -> Option<(Instant, Timer)> {
        Timer::ALL.iter().copied().filter_map(|timer| Some((self.get(timer)?, timer))).min()
    }

    /// Sets a timer. Ignores a time that has passed: the engine has acted on it, and now waits for an event. Otherwise
    /// the timer would wake the engine for ever.
    fn set(&mut self, timer: Timer, at: Option<Instant>, now: Instant) {
        self.0[timer as usize] = at.filter(|at| *at > now);
    }
}

impl Engine {
    /// Computes the timers that the engine waits for after a turn.
    pub(super) fn wind(&self, now: Instant) -> Timers {
        let mut timers = Timers::default();
        let is_asked = |peer: &PeerId| self.is_questioned(peer);
        timers.set(Timer::Summary, self.book.next_stale(now, SUMMARY_AGE, is_asked), now);
        timers.set(Timer::Hedge, self.streams.next_hedge(now), now);
        timers.set(Timer::Pause, self.book.next_unpaused(now), now);
        timers.set(Timer::Ban, self.book.next_unbanned(), now);
        timers.set(Timer::Patience, self.ahead_at.map(|at| at + self.patience), now);
        timers.set(Timer::Coming, self.coming_until(), now);
        timers.set(Timer::Rumour, self.rumours.next(), now);
        timers.set(Timer::Survey, self.survey_ends(), now);
        timers.set(Timer::Standstill, self.restore.as_ref().and_then(Bootstrap::look_at), now);
        timers.set(Timer::GivenUp, self.ignored_offers.next(now), now);
        timers.set(Timer::RangeDelta, self.range_delta_grows, now);
        timers.set(Timer::Backfill, self.backfill.next_look(now), now);
        timers
    }
}
