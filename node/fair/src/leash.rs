//! [`Leash`]: lets a caller's work check now and then whether the caller still waits, and whether other work goes
//! first.
//!
//! ```text
//!   starts ─▶ short, in one of the lane's places ─ SHORT_MAX of CPU time, a free place for long work ─▶ long, at low priority
//!                                                                                                       └─▶ turns of SLICE ─▶ ends
//! ```
//!
//! If all places for long work are taken, the work continues in its own place: callers that wait for that place want
//! the work to end. Work on probation first needs permission to be long, from its caller's [`Probation`] and from its
//! place. Otherwise it ends.
//!
//! The meter counts CPU time. On a busy node everything takes long, and a caller must not pay for the load of others.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use tokio_util::sync::CancellationToken;

use crate::{
    Permit,
    probation::Probation,
    turns::{Turn, Turns},
    workers::step_back,
};

/// CPU time after which work counts as long. Nearly all requests take less; a call that burns all its gas takes about
/// ten times as much.
const SHORT_MAX: Duration = Duration::from_millis(5);
/// Wall-clock limit for work on probation: work that waits for a disk uses little CPU time, and others want its place.
const PROBATION_MAX: Duration = Duration::from_secs(1);
/// CPU time of one turn.
const SLICE: Duration = Duration::from_millis(20);
/// The least part of a thread's elapsed time that counts as CPU time, as a divisor. It affects work that mostly waits
/// for a disk or a lock.
const WAITS_PART: u32 = 16;

/// A check on a caller's work. Cheap to clone; belongs to the thread of the work, whose CPU time it counts.
#[derive(Clone)]
pub struct Leash(Arc<LeashState>);

struct LeashState {
    gone: CancellationToken,
    turns: Turns,
    begun: Instant,
    pace: Mutex<WorkProgress>,
}

/// The progress of the work.
struct WorkProgress {
    /// The work's place in the lane; `None` for work without one.
    place: Option<Permit>,
    /// Gives permission to be long; `None` once that is settled.
    probation: Option<Probation>,
    is_refused: bool,
    /// The thread's CPU time when the work or its turn started, and the moment of that start.
    counted: (Duration, Instant),
    /// CPU time recorded so far.
    noted: Duration,
    is_long: bool,
    turn: Option<Turn>,
}

impl Leash {
    /// The leash of work that starts now, on this thread.
    pub fn begin(
        place: Option<Permit>,
        probation: Option<Probation>,
        turns: Turns,
        gone: CancellationToken,
    ) -> Leash {
        let begun = Instant::now();
        let counted = (cpu_time(), begun);
        let pace = WorkProgress {
            place,
            probation,
            is_refused: false,
            counted,
            noted: Duration::ZERO,
            is_long: false,
            turn: None,
        };
        Leash(Arc::new(LeashState { gone, turns, begun, pace: Mutex::new(pace) }))
    }

    /// Whether the work must end: nobody waits for it any more, or it may not be long. Long work may wait here for its
    /// turn.
    pub fn is_cut(&self) -> bool {
        self.is_cut_or(|| false)
    }

    /// Like [`Leash::is_cut`], for work that may also be over for another reason.
    pub fn is_cut_or(&self, is_over: impl Fn() -> bool) -> bool {
        let is_over = || self.0.gone.is_cancelled() || is_over();
        is_over() || self.0.pace.lock().go_on(&self.0.turns, &is_over) || is_over()
    }
}

impl WorkProgress {
    /// Whether the work must end now, or after a wait for its turn.
    fn go_on(&mut self, turns: &Turns, is_over: &impl Fn() -> bool) -> bool {
        if self.is_refused {
            return true;
        }
        let allowance = if self.is_long { SLICE } else { SHORT_MAX };
        let took = self.counted.1.elapsed();
        // Checked first, because reading the thread's CPU clock is slower.
        if took < allowance {
            return false;
        }
        if cpu_time().saturating_sub(self.counted.0) < allowance {
            return took >= PROBATION_MAX && !self.settle();
        }
        let used = self.note();
        if !self.is_long {
            if !self.settle() {
                return true;
            }
            self.is_long = self.place.as_mut().is_some_and(Permit::lengthen);
            if !self.is_long {
                return false;
            }
            step_back();
        } else if !turns.is_wanted() {
            return false;
        }
        // The old turn is released first, so that the thread does not block itself.
        self.turn = None;
        self.turn = turns.take(used, is_over);
        self.counted = (cpu_time(), Instant::now());
        self.turn.is_none()
    }

    /// Whether the work may take as long as it needs. Work on probation needs a place for long calls first.
    fn settle(&mut self) -> bool {
        let Some(probation) = &self.probation else { return true };
        let may_stay = self.place.as_mut().is_none_or(Permit::settle);
        if probation.lengthen(may_stay) {
            self.probation = None;
        } else {
            self.is_refused = true;
        }
        !self.is_refused
    }

    /// Records the CPU time since the last call; returns the address's recent use.
    fn note(&mut self) -> Duration {
        let now = cpu_time();
        let used = now.saturating_sub(self.counted.0);
        self.counted = (now, Instant::now());
        self.noted += used;
        self.place.as_mut().map_or(Duration::ZERO, |place| place.uses(used))
    }
}

impl Drop for LeashState {
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
    use crate::{origin::Origin, permits::Permits, quota::Quota};

    fn burn(leash: &Leash) {
        while !leash.0.pace.lock().is_long {
            assert!(!leash.is_cut());
        }
    }

    /// Goal: CPU time decides that work is long. It then releases its place, takes turns, and counts against its
    /// address.
    #[tokio::test(start_paused = true)]
    async fn long_work_takes_turns() {
        let (places, turns) = (Permits::metered(1, 1), Turns::new(1));
        let host = Origin::V4([192, 0, 2, 1].into());
        let begin = |place| Leash::begin(Some(place), None, turns.clone(), CancellationToken::new());
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
        // It runs alongside the other one until its slice is over.
        while !gone.is_finished() {
            assert!(!leash.is_cut());
        }
        assert!(gone.join().unwrap());
        drop(leash);
        assert!(places.take(host).await.uses(Duration::ZERO) >= SLICE);
        assert!(!turns.is_wanted());
    }

    /// Runs work on probation until it is long or must end; returns whether it is long.
    async fn lengthens(places: &Permits, host: Origin, rooms: &[Quota; 2]) -> bool {
        let [mut place, long] = rooms.each_ref().map(|room| room.share(host));
        assert!(place.grow_to(1));
        let probation = Probation::new(place, long);
        let place = places.take_on_probation(host).await;
        let leash =
            Leash::begin(Some(place), Some(probation.clone()), Turns::new(1), CancellationToken::new());
        while !leash.is_cut() && leash.0.pace.lock().probation.is_some() {}
        assert_eq!(leash.is_cut(), probation.is_refused() || probation.begins_again());
        !leash.is_cut()
    }

    /// Goal: endless work on probation ends once it is long if its caller or the lane has no place for that, and
    /// continues otherwise.
    #[tokio::test(start_paused = true)]
    async fn work_on_probation_asks_before_it_is_long() {
        let host = |number| Origin::V4([192, 0, 2, number].into());
        let (places, rooms) = (Permits::metered(4, 1), [Quota::new(1, 0), Quota::new(1, 0)]);
        assert!(lengthens(&places, host(1), &rooms).await);
        let mut taken = rooms[1].share(host(2));
        assert!(taken.grow_to(1));
        assert!(!lengthens(&places, host(1), &rooms).await, "too many long calls");
        drop(taken);
        assert!(lengthens(&places, host(1), &rooms).await);
        // One in the place for long work, three in the others.
        let mut endless = Vec::new();
        for number in 2..=5 {
            let mut place = places.take(host(number)).await;
            place.lengthen();
            endless.push(place);
        }
        assert_eq!(places.free(), 1);
        assert!(!lengthens(&places, host(1), &rooms).await, "long work has all places that it may");
        endless.pop();
        assert!(lengthens(&places, host(1), &rooms).await);
        assert_eq!((places.free(), rooms[0].free(), rooms[1].free()), (2, 1, 1));
    }

    /// Goal: work on probation that waits, for example for a disk, must end after a while, however little it computes.
    #[tokio::test(start_paused = true)]
    async fn waiting_on_probation_has_an_end() {
        let (places, few, long) = (Permits::metered(2, 1), Quota::new(1, 0), Quota::new(1, 0));
        let host = Origin::V4([192, 0, 2, 1].into());
        let [mut taken, mut place] = [long.share(Origin::Trusted), few.share(host)];
        assert!(taken.grow_to(1) && place.grow_to(1));
        let probation = Probation::new(place, long.share(host));
        let place = places.take_on_probation(host).await;
        let leash =
            Leash::begin(Some(place), Some(probation.clone()), Turns::new(1), CancellationToken::new());
        assert!(!leash.is_cut());
        while leash.0.begun.elapsed() <= PROBATION_MAX {
            std::thread::park_timeout(PROBATION_MAX);
        }
        assert!(leash.is_cut() && probation.is_refused() && few.free() == 1);
        assert_eq!(leash.0.pace.lock().noted, Duration::ZERO, "it used little");
        drop(leash);
        assert!(places.is_known_long(host), "its wait counts in part");
    }
}
