//! [`Permits`]: a fixed number of places, shared fairly by the addresses that request them.
//!
//! A semaphore serves requests in order of arrival, so that one caller with many requests takes everything. Here an
//! address that holds a place gets another only if it then leaves free twice as many as it holds
//! ([`Origin::may_take`]). A place that becomes free goes to the address that holds the fewest.
//!
//! Places for work ([`Permits::metered`]) also track the load of each address. Among addresses that hold equally many
//! places, the address with the shorter work comes first. Further ties go to the address with less recent use. A
//! quarter of the places is left to addresses that used little. Work that turns out to be long releases its place and
//! continues in a place for long work ([`Permit::lengthen`]), if one is free. So a short call does not wait for the
//! long calls of many addresses.
//!
//! If no place for long work is free, the work keeps its own place. A quarter of the places must still keep becoming
//! free: they admit only work on probation, which ends when it is long ([`Permit::settle`]). Otherwise a stream of new
//! addresses, each with little use, could take them all.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::oneshot, time::Instant};

use crate::origin::Origin;

/// The half-life of recorded use.
const HALF_LIFE: Duration = Duration::from_secs(10);
/// An address whose recent use exceeds this leaves a part of the places to others; `LEFT_PART` is the divisor.
const LITTLE: Duration = Duration::from_millis(500);
const LEFT_PART: usize = 4;
/// The assumed duration of an unknown address's work: longer than most requests.
const UNKNOWN: Duration = Duration::from_millis(5);
/// How much each further piece of work changes the estimate, as a divisor.
const NEWS_PART: f64 = 4.0;
/// Maximum number of addresses with recorded use. Beyond that, the half with the least use is forgotten.
const USERS_MAX: usize = 4_096;

/// Places to take and release. Cheap to clone.
#[derive(Clone)]
pub struct Permits(Arc<Mutex<State>>);

struct State {
    /// Places left to addresses with little use; 0 if use is not metered.
    left: usize,
    is_metered: bool,
    used: HashMap<Origin, Use>,
    all: usize,
    free: usize,
    /// Taken places whose work may run for any time: it is not on probation, and has not moved to a place for long work.
    staying: usize,
    has_long: bool,
    /// Free places for long work.
    free_long: usize,
    /// The number of places of each address that has any.
    taken: HashMap<Origin, usize>,
    next: u64,
    /// The queued requests, in order of arrival.
    waiting: BTreeMap<u64, (PermitRequest, oneshot::Sender<()>)>,
}

/// A request for a place.
#[derive(Clone, Copy)]
struct PermitRequest {
    origin: Origin,
    /// The work ends when it turns out to be long, unless it [settles](Permit::settle).
    on_probation: bool,
}

/// The known load of an address.
#[derive(Clone, Copy)]
struct Use {
    /// Seconds of recent use, as of `at`.
    seconds: f64,
    at: Instant,
    /// The typical duration of the address's work, in seconds.
    typical: f64,
}

impl State {
    fn taken(&self, origin: Origin) -> usize {
        self.taken.get(&origin).copied().unwrap_or_default()
    }

    /// Seconds of recent work of an address.
    fn used(&self, origin: Origin, now: Instant) -> f64 {
        self.used.get(&origin).map_or(0.0, |used| faded(used, now))
    }

    /// The expected duration of the address's next piece of work, in seconds.
    fn typical(&self, origin: Origin) -> f64 {
        self.used.get(&origin).map_or(UNKNOWN.as_secs_f64(), |used| used.typical)
    }

    /// Records that a piece of work has ended and took `took` in total.
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

    /// Whether the address's recent work took long. The answer expires: otherwise an address whose long work finds no
    /// place could never show that its work is short now.
    fn is_known_long(&self, origin: Origin, now: Instant) -> bool {
        let is_fresh = |used: &&Use| now.saturating_duration_since(used.at) < HALF_LIFE;
        self.used.get(&origin).filter(is_fresh).is_some_and(|used| used.typical > UNKNOWN.as_secs_f64())
    }

    fn is_known_short(&self, origin: Origin, now: Instant) -> bool {
        self.used.get(&origin).is_some_and(|used| {
            used.typical <= UNKNOWN.as_secs_f64() && faded(used, now) <= LITTLE.as_secs_f64()
        })
    }

    /// Whether one more place may go to work that can run for any time, while `left` places stay free of such work. Each
    /// free place for long work allows one more, because work can move there.
    fn may_stay(&self, left: usize) -> bool {
        !self.has_long || self.staying < self.all - left + self.free_long
    }

    fn may_take(&self, PermitRequest { origin, on_probation }: PermitRequest, now: Instant) -> bool {
        let mut free = self.free;
        if origin.is_stranger() && self.used(origin, now) > LITTLE.as_secs_f64() {
            // Frequent short work may use a part of those places, and leaves at least one to newcomers.
            free = free.saturating_sub(if on_probation { self.left / 2 } else { self.left });
        }
        if origin.is_stranger() && !on_probation {
            // An address may be known for short work and start long work now, so part of the reserve applies to it too.
            let left = if self.is_known_short(origin, now) { self.left.div_ceil(2) } else { self.left };
            free = if self.may_stay(left) { free } else { 0 };
        }
        origin.may_take(self.taken(origin), 1, free)
    }

    fn take(&mut self, PermitRequest { origin, on_probation }: PermitRequest) {
        self.free -= 1;
        self.staying += usize::from(!on_probation);
        *self.taken.entry(origin).or_default() += 1;
    }

    fn give_back(
        &mut self,
        PermitRequest { origin, on_probation }: PermitRequest,
        is_long: bool,
        now: Instant,
    ) {
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

    /// Grants free places to waiting requests. The trusted come first, then the address that holds the fewest. Ties go
    /// to the shortest work, in units of [`UNKNOWN`]. Further ties go to the least use, in quarters of a second, and
    /// then to the first arrival.
    fn grant(&mut self, now: Instant) {
        loop {
            let waiting = self.waiting.iter().filter(|(_, (asked, _))| self.may_take(*asked, now));
            let first = waiting
                .min_by_key(|(ticket, (PermitRequest { origin, .. }, _))| {
                    let used = (self.used(*origin, now) * 4.0) as u64;
                    let long = (self.typical(*origin) / UNKNOWN.as_secs_f64()) as u64;
                    (origin.is_stranger(), self.taken(*origin), long, used, **ticket)
                })
                .map(|(ticket, _)| *ticket);
            let Some((asked, told)) = first.and_then(|ticket| self.waiting.remove(&ticket)) else { return };
            self.take(asked);
            // A caller that has stopped waiting releases the place when it is dropped.
            let _ = told.send(());
        }
    }
}

/// The recorded seconds of use, decayed to `now`.
fn faded(used: &Use, now: Instant) -> f64 {
    let halves = now.saturating_duration_since(used.at).as_secs_f64() / HALF_LIFE.as_secs_f64();
    used.seconds * (-halves).exp2()
}

impl Permits {
    /// Places that are shared by number alone, for work that mostly waits.
    pub fn new(places: usize) -> Permits {
        Self::of(places, 0, false)
    }

    /// Places for work, shared by its duration as well, and extra ones for long work.
    pub(crate) fn metered(places: usize, long: usize) -> Permits {
        Self::of(places, long, true)
    }

    fn of(places: usize, free_long: usize, is_metered: bool) -> Permits {
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
        Permits(Arc::new(Mutex::new(state)))
    }

    /// Returns a place, once one is free for this caller. Cancel safe.
    pub async fn take(&self, origin: Origin) -> Permit {
        self.wait(PermitRequest { origin, on_probation: false }).await
    }

    /// Like [`Permits::take`], for work on probation, which may also use places that long work must leave free.
    pub(crate) async fn take_on_probation(&self, origin: Origin) -> Permit {
        self.wait(PermitRequest { origin, on_probation: true }).await
    }

    /// Whether this caller's recent work took long. Forgotten after a while without work.
    pub fn is_known_long(&self, origin: Origin) -> bool {
        self.0.lock().is_known_long(origin, Instant::now())
    }

    async fn wait(&self, asked: PermitRequest) -> Permit {
        let (told, granted) = oneshot::channel();
        let waiting = {
            let mut state = self.0.lock();
            let ticket = state.next;
            state.next += 1;
            state.waiting.insert(ticket, (asked, told));
            state.grant(Instant::now());
            Waiting { places: self.clone(), asked, ticket, came: false }
        };
        // Never fails: the sender is dropped only after it has granted the place.
        let _ = granted.await;
        waiting.enter()
    }

    /// The number of free places.
    #[cfg(any(test, feature = "testing"))]
    pub fn free(&self) -> usize {
        self.0.lock().free
    }

    /// Takes all free places until the result is dropped.
    #[cfg(any(test, feature = "testing"))]
    pub fn occupy(&self) -> Vec<Permit> {
        let asked = PermitRequest { origin: Origin::Trusted, on_probation: false };
        let mut state = self.0.lock();
        let place = || Permit::new(self.clone(), asked);
        let free = state.free;
        (0..free).for_each(|_| state.take(asked));
        (0..free).map(|_| place()).collect()
    }
}

/// A queued request.
struct Waiting {
    places: Permits,
    asked: PermitRequest,
    ticket: u64,
    came: bool,
}

impl Waiting {
    fn enter(mut self) -> Permit {
        self.came = true;
        Permit::new(self.places.clone(), self.asked)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.came {
            return;
        }
        let mut state = self.places.0.lock();
        // The request is no longer queued: its place was granted, but the caller has gone.
        if state.waiting.remove(&self.ticket).is_none() {
            state.give_back(self.asked, false, Instant::now());
        }
    }
}

/// A taken place, released on drop.
pub struct Permit {
    places: Permits,
    asked: PermitRequest,
    is_long: bool,
    /// The total time that the work has used.
    used: Duration,
}

impl Permit {
    fn new(places: Permits, asked: PermitRequest) -> Permit {
        Permit { places, asked, is_long: false, used: Duration::ZERO }
    }

    /// Records further use of the work, and returns the address's recent use including it.
    pub(crate) fn uses(&mut self, used: Duration) -> Duration {
        self.used += used;
        let (mut state, now) = (self.places.0.lock(), Instant::now());
        state.note_use(self.asked.origin, used, now);
        Duration::try_from_secs_f64(state.used(self.asked.origin, now)).unwrap_or_default()
    }

    /// Whether the work may take as long as it needs. Work on probation may do so only if enough other places keep
    /// becoming free.
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

    /// Call when the work is long. Moves it to a place for long work, if one is free, so that others may have its
    /// place. Returns whether it moved; its address holds as many places as before.
    pub fn lengthen(&mut self) -> bool {
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

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.places.0.lock();
        state.note_end(self.asked.origin, self.used);
        state.give_back(self.asked, self.is_long, Instant::now());
    }
}

#[cfg(test)]
mod tests;
