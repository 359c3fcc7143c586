//! [`Leash`]: the questions that a caller's work asks now and then: whether its caller still waits, and whether it must wait for
//! others.
//!
//! ```text
//!   begins ─▶ short, in one of the lane's places ─ SHORT_MAX of CPU time, and a place for long work ─▶ long, on a thread that stands back
//!                                                                                                       └─▶ a turn ─ SLICE ─▶ a turn … ─▶ ends
//! ```
//!
//! Where the places for long work are all taken, it goes on as it is: those who wait for its place want it to end.
//!
//! The meter counts CPU time. On a busy node everything takes long, and a caller must not pay for others' use.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use tokio_util::sync::CancellationToken;

use crate::{
    fair::Place,
    turns::{Turn, Turns},
    workers::step_back,
};

/// CPU time after which work is long. Nearly all that is asked takes less; a call that burns its gas takes some ten times as much.
const SHORT_MAX: Duration = Duration::from_millis(5);
/// CPU time of one turn.
const SLICE: Duration = Duration::from_millis(20);
/// The least part of a thread's time that counts as CPU time: one in so many. It concerns work that mostly waits, for a disk or a
/// lock.
const WAITS_PART: u32 = 16;

/// See the module. Cheap to clone; belongs to the thread of the work, whose CPU time it counts.
#[derive(Clone)]
pub(crate) struct Leash(Arc<Held>);

struct Held {
    gone: CancellationToken,
    turns: Turns,
    begun: Instant,
    pace: Mutex<Pace>,
}

/// How far the work is.
struct Pace {
    /// The lane's place of the work; `None` for work outside the places.
    place: Option<Place>,
    /// CPU time of the thread when the work, or its turn, began; and when that was.
    counted: (Duration, Instant),
    /// CPU time that is noted.
    noted: Duration,
    is_long: bool,
    turn: Option<Turn>,
}

impl Leash {
    /// Of work that begins now, on this thread.
    pub(crate) fn begin(place: Option<Place>, turns: Turns, gone: CancellationToken) -> Leash {
        let begun = Instant::now();
        let counted = (cpu_time(), begun);
        let pace = Pace { place, counted, noted: Duration::ZERO, is_long: false, turn: None };
        Leash(Arc::new(Held { gone, turns, begun, pace: Mutex::new(pace) }))
    }

    /// Of work that nobody meters.
    #[cfg(test)]
    pub(crate) fn loose(gone: CancellationToken) -> Leash {
        Leash::begin(None, Turns::new(1), gone)
    }

    /// Whether nobody waits for the work any more. Long work may wait here for its turn.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut_or(|| false)
    }

    /// The same for work that may be over for another reason.
    pub(crate) fn is_cut_or(&self, is_over: impl Fn() -> bool) -> bool {
        let is_over = || self.0.gone.is_cancelled() || is_over();
        is_over() || self.0.pace.lock().go_on(&self.0.turns, &is_over) || is_over()
    }
}

impl Pace {
    /// Whether the work has to end while it waits for its turn.
    fn go_on(&mut self, turns: &Turns, is_over: &impl Fn() -> bool) -> bool {
        let allowance = if self.is_long { SLICE } else { SHORT_MAX };
        // Reading the thread's own clock takes longer than this.
        if self.counted.1.elapsed() < allowance || cpu_time().saturating_sub(self.counted.0) < allowance {
            return false;
        }
        let used = self.note();
        if !self.is_long {
            self.is_long = self.place.as_mut().is_some_and(Place::lengthen);
            if !self.is_long {
                return false;
            }
            step_back();
        } else if !turns.is_wanted() {
            return false;
        }
        // In this order: whose turn is over does not get in its own way.
        self.turn = None;
        self.turn = turns.take(used, is_over);
        self.counted = (cpu_time(), Instant::now());
        self.turn.is_none()
    }

    /// Notes the CPU time since the last time; returns the late use of the address.
    fn note(&mut self) -> Duration {
        let now = cpu_time();
        let used = now.saturating_sub(self.counted.0);
        self.counted = (now, Instant::now());
        self.noted += used;
        self.place.as_mut().map_or(Duration::ZERO, |place| place.uses(used))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let least = self.begun.elapsed() / WAITS_PART;
        let pace = self.pace.get_mut();
        pace.note();
        if let Some(place) = &mut pace.place
            && !pace.is_long
        {
            place.uses(least.saturating_sub(pace.noted));
        }
    }
}

/// CPU time of the calling thread.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fair::Places, origin::Origin};

    fn burn(leash: &Leash) {
        while !leash.0.pace.lock().is_long {
            assert!(!leash.is_cut());
        }
    }

    /// Goal: work is long by the CPU time that it takes; then it leaves its place, has one of the turns, and pays by address.
    #[tokio::test(start_paused = true)]
    async fn long_work_takes_turns() {
        let (places, turns) = (Places::metered(1, 1), Turns::new(1));
        let host = Origin::V4([192, 0, 2, 1].into());
        let begin = |place| Leash::begin(Some(place), turns.clone(), CancellationToken::new());
        let leash = begin(places.take(host).await);
        assert!(!leash.is_cut());
        assert_eq!(places.free(), 0);
        burn(&leash);
        assert_eq!(places.free(), 1);
        let other = begin(places.take(Origin::Trusted).await);
        assert!(other.is_cut_or(|| true), "over");
        drop(other);
        let gone = std::thread::spawn({
            let turns = turns.clone();
            move || turns.take(Duration::ZERO, || false).is_some()
        });
        while !turns.is_wanted() {
            std::thread::yield_now();
        }
        // It goes on beside the other one until its slice is over.
        while !gone.is_finished() {
            assert!(!leash.is_cut());
        }
        assert!(gone.join().unwrap());
        drop(leash);
        assert!(places.take(host).await.uses(Duration::ZERO) >= SLICE);
        assert!(!turns.is_wanted());
    }
}
