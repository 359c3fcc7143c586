//! [`Places`]: a fixed number of places, shared fairly by those who ask for them.
//!
//! A semaphore gives its places to whoever came first, so that one caller with many requests takes them all. Here an address holds
//! at most half of the places that it leaves free ([`Origin::may_take`]). A place that becomes free goes to the address that holds
//! the fewest.
//!
//! Places for work ([`Places::metered`]) also know the load of each address. Among addresses that hold as many, the one with the
//! shorter work comes first, then the one that used less of late. A quarter of the places is left to those that used little. Work
//! that turns out to be long leaves its place to others while it goes on ([`Place::lengthen`]), as far as there are places for long
//! work. So a short call does not wait for the long ones of many.
//!
//! Where the places for long work do not suffice, it keeps its own. A quarter of the places must come round all the same: these have
//! only work on probation, which ends when it is long ([`Place::settle`]). Ever new addresses used little, each of them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::oneshot, time::Instant};

use crate::origin::Origin;

/// The time after which what was used counts half.
const HALF_LIFE: Duration = Duration::from_secs(10);
/// An address that used more than this of late leaves a part of the places to others: one in so many.
const LITTLE: Duration = Duration::from_millis(500);
const LEFT_PART: usize = 4;
/// The assumed time of the work of an unknown address: longer than most requests.
const UNKNOWN: Duration = Duration::from_millis(5);
/// How much each further piece of work changes the estimate: one part in so many.
const NEWS_PART: f64 = 4.0;
/// Addresses of which it is known how much they used. When there are more, those are forgotten that used least.
const USERS_MAX: usize = 4_096;

/// Places that are taken and given back. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Places(Arc<Mutex<State>>);

struct State {
    /// Left to those who used little; 0 if nothing is metered.
    left: usize,
    is_metered: bool,
    used: HashMap<Origin, Use>,
    all: usize,
    free: usize,
    /// Of those that are taken, those whose work goes on in them if it turns out to be long and finds no place for that.
    staying: usize,
    has_long: bool,
    /// Places for work that is long already.
    free_long: usize,
    /// Of those who have any.
    taken: HashMap<Origin, usize>,
    next: u64,
    /// In the order in which they came.
    waiting: BTreeMap<u64, (Asked, oneshot::Sender<()>)>,
}

/// Who wants a place, and for what.
#[derive(Clone, Copy)]
struct Asked {
    origin: Origin,
    /// The work ends when it turns out to be long, unless it [settles](Place::settle).
    on_probation: bool,
}

/// The known load of an address.
#[derive(Clone, Copy)]
struct Use {
    /// Seconds of late, as of a moment.
    seconds: f64,
    at: Instant,
    /// Seconds that one piece of its work takes.
    typical: f64,
}

impl State {
    fn taken(&self, origin: Origin) -> usize {
        self.taken.get(&origin).copied().unwrap_or_default()
    }

    /// Seconds of work that an address asked for of late.
    fn used(&self, origin: Origin, now: Instant) -> f64 {
        self.used.get(&origin).map_or(0.0, |used| faded(used, now))
    }

    /// Seconds that its next piece of work may take.
    fn typical(&self, origin: Origin) -> f64 {
        self.used.get(&origin).map_or(UNKNOWN.as_secs_f64(), |used| used.typical)
    }

    /// A piece of work has ended, and took so long in all.
    fn note_end(&mut self, origin: Origin, took: Duration) {
        if let Some(used) = self.used.get_mut(&origin) {
            used.typical += (took.as_secs_f64() - used.typical) / NEWS_PART;
        }
    }

    fn note_use(&mut self, origin: Origin, used: Duration, now: Instant) {
        if !self.is_metered || !origin.is_stranger() {
            return;
        }
        let (seconds, typical) = (self.used(origin, now) + used.as_secs_f64(), self.typical(origin));
        self.used.insert(origin, Use { seconds, at: now, typical });
        if self.used.len() > USERS_MAX {
            let mut all: Vec<f64> = self.used.values().map(|used| faded(used, now)).collect();
            let (_, median, _) = all.select_nth_unstable_by(USERS_MAX / 2, f64::total_cmp);
            let median = *median;
            self.used.retain(|_, used| faded(used, now) > median);
        }
    }

    /// Whether its work took long of late. What was long once must be able to show that it is short now, which it cannot while long
    /// work finds no place.
    fn is_known_long(&self, origin: Origin, now: Instant) -> bool {
        let is_fresh = |used: &&Use| now.saturating_duration_since(used.at) < HALF_LIFE;
        self.used.get(&origin).filter(is_fresh).is_some_and(|used| used.typical > UNKNOWN.as_secs_f64())
    }

    fn is_known_short(&self, origin: Origin, now: Instant) -> bool {
        self.used.get(&origin).is_some_and(|used| {
            used.typical <= UNKNOWN.as_secs_f64() && faded(used, now) <= LITTLE.as_secs_f64()
        })
    }

    /// Whether one more place may have work that goes on in it, if so many are left to work that does not. Work that finds a place for
    /// long work goes there.
    fn may_stay(&self, left: usize) -> bool {
        !self.has_long || self.staying < self.all - left + self.free_long
    }

    fn may_take(&self, Asked { origin, on_probation }: Asked, now: Instant) -> bool {
        let mut free = self.free;
        if origin.is_stranger() && self.used(origin, now) > LITTLE.as_secs_f64() {
            // Much short work finds a part of those places, and leaves one to whoever comes new.
            free = free.saturating_sub(if on_probation { self.left / 2 } else { self.left });
        }
        if origin.is_stranger() && !on_probation {
            // An address may be known for short work, and begin long work now: it gets a part too.
            let left = if self.is_known_short(origin, now) { self.left.div_ceil(2) } else { self.left };
            free = if self.may_stay(left) { free } else { 0 };
        }
        origin.may_take(self.taken(origin), 1, free)
    }

    fn take(&mut self, Asked { origin, on_probation }: Asked) {
        self.free -= 1;
        self.staying += usize::from(!on_probation);
        *self.taken.entry(origin).or_default() += 1;
    }

    fn give_back(&mut self, Asked { origin, on_probation }: Asked, is_long: bool, now: Instant) {
        if is_long {
            self.free_long += 1;
        } else {
            self.free += 1;
            self.staying -= usize::from(!on_probation);
        }
        if let Some(taken) = self.taken.get_mut(&origin) {
            *taken -= 1;
            if *taken == 0 {
                self.taken.remove(&origin);
            }
        }
        self.grant(now);
    }

    /// Gives free places to those who wait. The trusted come first, then the address that holds the fewest. Ties go to the shortest
    /// work, in units of [`UNKNOWN`], then to the least used time, in quarters of a second, then to whoever came first.
    fn grant(&mut self, now: Instant) {
        loop {
            let waiting = self.waiting.iter().filter(|(_, (asked, _))| self.may_take(*asked, now));
            let first = waiting
                .min_by_key(|(ticket, (Asked { origin, .. }, _))| {
                    let used = (self.used(*origin, now) * 4.0) as u64;
                    let long = (self.typical(*origin) / UNKNOWN.as_secs_f64()) as u64;
                    (origin.is_stranger(), self.taken(*origin), long, used, **ticket)
                })
                .map(|(ticket, _)| *ticket);
            let Some((asked, told)) = first.and_then(|ticket| self.waiting.remove(&ticket)) else { return };
            self.take(asked);
            // A caller that has stopped waiting gives the place back when it goes.
            let _ = told.send(());
        }
    }
}

/// The rest of seconds that were counted at an earlier moment.
fn faded(used: &Use, now: Instant) -> f64 {
    let halves = now.saturating_duration_since(used.at).as_secs_f64() / HALF_LIFE.as_secs_f64();
    used.seconds * (-halves).exp2()
}

impl Places {
    /// Places that are shared by their number alone, for work that mostly waits.
    pub(crate) fn new(places: usize) -> Places {
        Self::of(places, 0, false)
    }

    /// Places for work, shared by the time that it takes as well, and further ones for work that is long already.
    pub(crate) fn metered(places: usize, long: usize) -> Places {
        Self::of(places, long, true)
    }

    fn of(places: usize, free_long: usize, is_metered: bool) -> Places {
        let has_long = free_long > 0;
        let left = (places / LEFT_PART).max(usize::from(has_long && places > 1));
        let state = State {
            left: if is_metered { left } else { 0 },
            is_metered,
            used: HashMap::new(),
            all: places,
            free: places,
            staying: 0,
            has_long,
            free_long,
            taken: HashMap::new(),
            next: 0,
            waiting: BTreeMap::new(),
        };
        Places(Arc::new(Mutex::new(state)))
    }

    /// A place, once there is one for this caller. May be dropped at any time.
    pub(crate) async fn take(&self, origin: Origin) -> Place {
        self.wait(Asked { origin, on_probation: false }).await
    }

    /// The same for work on probation, which finds a place where long work has all that it may.
    pub(crate) async fn take_on_probation(&self, origin: Origin) -> Place {
        self.wait(Asked { origin, on_probation: true }).await
    }

    /// Whether the work of this caller took long of late. After a while without work nobody knows.
    pub(crate) fn is_known_long(&self, origin: Origin) -> bool {
        self.0.lock().is_known_long(origin, Instant::now())
    }

    async fn wait(&self, asked: Asked) -> Place {
        let (told, granted) = oneshot::channel();
        let waiting = {
            let mut state = self.0.lock();
            let ticket = state.next;
            state.next += 1;
            state.waiting.insert(ticket, (asked, told));
            state.grant(Instant::now());
            Waiting { places: self.clone(), asked, ticket, came: false }
        };
        // Never fails: the other end is dropped only after it has told.
        let _ = granted.await;
        waiting.enter()
    }

    /// Places that nobody has.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.0.lock().free
    }

    /// Takes all free places, for as long as the result is held.
    #[cfg(test)]
    pub(crate) fn occupy(&self) -> Vec<Place> {
        let asked = Asked { origin: Origin::Trusted, on_probation: false };
        let mut state = self.0.lock();
        let place = || Place::new(self.clone(), asked);
        let free = state.free;
        (0..free).for_each(|_| state.take(asked));
        (0..free).map(|_| place()).collect()
    }
}

/// A caller in the queue.
struct Waiting {
    places: Places,
    asked: Asked,
    ticket: u64,
    came: bool,
}

impl Waiting {
    fn enter(mut self) -> Place {
        self.came = true;
        Place::new(self.places.clone(), self.asked)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.came {
            return;
        }
        let mut state = self.places.0.lock();
        // Not in the queue any more: the place was granted, and the caller has gone.
        if state.waiting.remove(&self.ticket).is_none() {
            state.give_back(self.asked, false, Instant::now());
        }
    }
}

/// A place that is taken, until it is dropped.
pub(crate) struct Place {
    places: Places,
    asked: Asked,
    is_long: bool,
    /// The time that the work used in all.
    used: Duration,
}

impl Place {
    fn new(places: Places, asked: Asked) -> Place {
        Place { places, asked, is_long: false, used: Duration::ZERO }
    }

    /// Notes the work's use beside the use noted before; the address's late use, with that.
    pub(crate) fn uses(&mut self, used: Duration) -> Duration {
        self.used += used;
        let (mut state, now) = (self.places.0.lock(), Instant::now());
        state.note_use(self.asked.origin, used, now);
        Duration::try_from_secs_f64(state.used(self.asked.origin, now)).unwrap_or_default()
    }

    /// Whether the work may go on for as long as it takes. On probation it may only where enough places come round without this one.
    pub(crate) fn settle(&mut self) -> bool {
        if self.asked.on_probation {
            let mut state = self.places.0.lock();
            if !state.may_stay(state.left) {
                return false;
            }
            state.staying += 1;
            self.asked.on_probation = false;
        }
        true
    }

    /// The work is long: others may have its place while it goes on, if there is one left for long work, which is told. Its address has as
    /// many as before.
    pub(crate) fn lengthen(&mut self) -> bool {
        let mut state = self.places.0.lock();
        if self.is_long || self.asked.on_probation || state.free_long == 0 {
            return self.is_long;
        }
        state.free_long -= 1;
        state.free += 1;
        state.staying -= 1;
        self.is_long = true;
        state.grant(Instant::now());
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.places.0.lock();
        state.note_end(self.asked.origin, self.used);
        state.give_back(self.asked, self.is_long, Instant::now());
    }
}

#[cfg(test)]
mod tests;
