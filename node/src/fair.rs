//! [`Places`]: a fixed number of places, shared fairly by those who ask for them.
//!
//! A semaphore gives its places to whoever came first, so that one caller with many requests takes them all. Here an address
//! holds no more than half of what it leaves free ([`Origin::may_take`]), and a place that becomes free goes to whoever holds the fewest.
//!
//! Places for work ([`Places::metered`]) also know how long each address had some of late: of those who hold as many, whoever used less
//! comes first, and a quarter of the places is left to those who used little. So a short call does not wait for the long ones of many.

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
/// Who used more than this of late leaves a part of the places to others: one in so many.
const LITTLE: Duration = Duration::from_millis(500);
const LEFT_PART: usize = 4;
/// Addresses of which it is known how much they used. When there are more, those are forgotten that used least.
const USERS_MAX: usize = 4_096;

/// Places that are taken and given back. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Places(Arc<Mutex<State>>);

struct State {
    /// Left to those who used little; 0 if nothing is metered.
    left: usize,
    is_metered: bool,
    /// Seconds of late, as of a moment.
    used: HashMap<Origin, (f64, Instant)>,
    free: usize,
    /// Of those who have any.
    taken: HashMap<Origin, usize>,
    next: u64,
    /// In the order in which they came.
    waiting: BTreeMap<u64, (Origin, oneshot::Sender<()>)>,
}

impl State {
    fn taken(&self, origin: Origin) -> usize {
        self.taken.get(&origin).copied().unwrap_or_default()
    }

    /// Seconds that an address had places of late.
    fn used(&self, origin: Origin, now: Instant) -> f64 {
        self.used.get(&origin).map_or(0.0, |used| faded(*used, now))
    }

    fn note_use(&mut self, origin: Origin, since: Instant, now: Instant) {
        if !self.is_metered || !origin.is_stranger() {
            return;
        }
        let used = self.used(origin, now) + now.saturating_duration_since(since).as_secs_f64();
        self.used.insert(origin, (used, now));
        if self.used.len() > USERS_MAX {
            let mut all: Vec<f64> = self.used.values().map(|used| faded(*used, now)).collect();
            let (_, median, _) = all.select_nth_unstable_by(USERS_MAX / 2, f64::total_cmp);
            let median = *median;
            self.used.retain(|_, used| faded(*used, now) > median);
        }
    }

    fn may_take(&self, origin: Origin, now: Instant) -> bool {
        let used_much = origin.is_stranger() && self.used(origin, now) > LITTLE.as_secs_f64();
        let free = if used_much { self.free.saturating_sub(self.left) } else { self.free };
        origin.may_take(self.taken(origin), 1, free)
    }

    fn take(&mut self, origin: Origin) {
        self.free -= 1;
        *self.taken.entry(origin).or_default() += 1;
    }

    fn give_back(&mut self, origin: Origin, now: Instant) {
        self.free += 1;
        if let Some(taken) = self.taken.get_mut(&origin) {
            *taken -= 1;
            if *taken == 0 {
                self.taken.remove(&origin);
            }
        }
        self.grant(now);
    }

    /// Gives free places to those who wait: to the trusted first, then to whoever has the fewest, then to whoever used
    /// least, in quarters of a second, then to whoever came first.
    fn grant(&mut self, now: Instant) {
        loop {
            let waiting = self.waiting.iter().filter(|(_, (origin, _))| self.may_take(*origin, now));
            let first = waiting
                .min_by_key(|(ticket, (origin, _))| {
                    let used = (self.used(*origin, now) * 4.0) as u64;
                    (origin.is_stranger(), self.taken(*origin), used, **ticket)
                })
                .map(|(ticket, _)| *ticket);
            let Some((origin, told)) = first.and_then(|ticket| self.waiting.remove(&ticket)) else { return };
            self.take(origin);
            // Whoever has stopped to wait gives the place back when it goes.
            let _ = told.send(());
        }
    }
}

/// What is left of seconds that were counted at a moment.
fn faded((used, at): (f64, Instant), now: Instant) -> f64 {
    let halves = now.saturating_duration_since(at).as_secs_f64() / HALF_LIFE.as_secs_f64();
    used * (-halves).exp2()
}

impl Places {
    /// Places that are shared by their number alone: for what mostly waits.
    pub(crate) fn new(places: usize) -> Places {
        Self::of(places, false)
    }

    /// Places for work, shared by the time that it takes as well.
    pub(crate) fn metered(places: usize) -> Places {
        Self::of(places, true)
    }

    fn of(places: usize, is_metered: bool) -> Places {
        let state = State {
            left: if is_metered { places / LEFT_PART } else { 0 },
            is_metered,
            used: HashMap::new(),
            free: places,
            taken: HashMap::new(),
            next: 0,
            waiting: BTreeMap::new(),
        };
        Places(Arc::new(Mutex::new(state)))
    }

    /// A place, once there is one for this caller. May be dropped at any time.
    pub(crate) async fn take(&self, origin: Origin) -> Place {
        let (told, granted) = oneshot::channel();
        let waiting = {
            let mut state = self.0.lock();
            let ticket = state.next;
            state.next += 1;
            state.waiting.insert(ticket, (origin, told));
            state.grant(Instant::now());
            Waiting { places: self.clone(), origin, ticket, came: false }
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

    /// Takes all places that are free, for as long as what it returns is held.
    #[cfg(test)]
    pub(crate) fn occupy(&self) -> Vec<Place> {
        let mut state = self.0.lock();
        let place = || Place { places: self.clone(), origin: Origin::Trusted, since: Instant::now() };
        let free = state.free;
        (0..free).for_each(|_| state.take(Origin::Trusted));
        (0..free).map(|_| place()).collect()
    }
}

/// A caller in the queue.
struct Waiting {
    places: Places,
    origin: Origin,
    ticket: u64,
    came: bool,
}

impl Waiting {
    fn enter(mut self) -> Place {
        self.came = true;
        Place { places: self.places.clone(), origin: self.origin, since: Instant::now() }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.came {
            return;
        }
        let mut state = self.places.0.lock();
        // Not in the queue any more: the place was given, and nobody takes it.
        if state.waiting.remove(&self.ticket).is_none() {
            state.give_back(self.origin, Instant::now());
        }
    }
}

/// A place that is taken, until it is dropped.
pub(crate) struct Place {
    places: Places,
    origin: Origin,
    since: Instant,
}

impl Drop for Place {
    fn drop(&mut self) {
        let (mut state, now) = (self.places.0.lock(), Instant::now());
        state.note_use(self.origin, self.since, now);
        state.give_back(self.origin, now);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::Ipv4Addr,
        pin::Pin,
        task::{Context, Poll, Waker},
    };

    use super::*;

    fn poll_now<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn host(number: u8) -> Origin {
        Origin::V4(Ipv4Addr::new(192, 0, 2, number))
    }

    fn taken(places: &Places, origin: Origin) -> Vec<Place> {
        let mut all = Vec::new();
        while let Poll::Ready(place) = poll_now(Box::pin(places.take(origin)).as_mut()) {
            all.push(place);
        }
        all
    }

    /// Goal: one address that asks for ever leaves places to others, and what becomes free goes to whoever has least.
    #[test]
    fn one_address_cannot_take_all() {
        let places = Places::new(8);
        let hog = taken(&places, host(1));
        assert_eq!(hog.len(), 3);
        let (mut more, mut other) = (Box::pin(places.take(host(1))), Box::pin(places.take(host(2))));
        assert!(poll_now(more.as_mut()).is_pending());
        let Poll::Ready(second) = poll_now(other.as_mut()) else { panic!("more than half is left") };
        let own = taken(&places, Origin::Trusted);
        assert_eq!(own.len(), 4, "all that is left");
        let mut waiting = Box::pin(places.take(host(3)));
        assert!(poll_now(waiting.as_mut()).is_pending());
        let mut late = Box::pin(places.take(Origin::Trusted));
        assert!(poll_now(late.as_mut()).is_pending());
        let mut hog = hog;
        hog.pop();
        let Poll::Ready(_late) = poll_now(late.as_mut()) else { panic!("the trusted come first") };
        hog.pop();
        assert!(poll_now(waiting.as_mut()).is_ready());
        assert!(poll_now(more.as_mut()).is_pending(), "it was here before, and has one");
        drop((second, own));
        assert!(poll_now(more.as_mut()).is_ready());
    }

    /// Goal: who goes away while it waits, or just as it gets its place, leaves nothing taken.
    #[test]
    fn who_stops_to_wait_takes_nothing() {
        let places = Places::new(1);
        let held = taken(&places, host(1)).pop();
        let mut gone = Box::pin(places.take(host(2)));
        let mut granted = Box::pin(places.take(host(3)));
        assert!(poll_now(gone.as_mut()).is_pending() && poll_now(granted.as_mut()).is_pending());
        drop(gone);
        drop(held);
        assert_eq!(places.free(), 0, "it is kept for the third");
        drop(granted);
        assert_eq!(places.free(), 1);
        assert!(places.0.lock().taken.is_empty() && places.0.lock().waiting.is_empty());
    }

    /// Goal: many addresses with long work leave places to whoever needs little, who also comes first in the queue.
    #[tokio::test(start_paused = true)]
    async fn whoever_used_little_comes_first() {
        let places = Places::metered(8);
        let mut busy: Vec<Place> = Vec::new();
        for number in 1..=8 {
            busy.push(places.take(host(number)).await);
        }
        assert_eq!(places.free(), 0, "nobody is known yet");
        tokio::time::advance(Duration::from_secs(5)).await;
        let mut again: Vec<_> = (1..=8).map(|number| Box::pin(places.take(host(number)))).collect();
        assert!(again.iter_mut().all(|one| poll_now(one.as_mut()).is_pending()));
        let mut honest = Box::pin(places.take(host(9)));
        assert!(poll_now(honest.as_mut()).is_pending());
        busy.pop();
        assert!(poll_now(honest.as_mut()).is_ready(), "before eight that were here before");
        busy.clear();
        let ready = again.iter_mut().filter_map(|one| match poll_now(one.as_mut()) {
            Poll::Ready(place) => Some(place),
            Poll::Pending => None,
        });
        let held: Vec<Place> = ready.collect();
        assert_eq!((held.len(), places.free()), (6, 2), "a quarter is left to others");
        assert!(poll_now(Box::pin(places.take(host(10))).as_mut()).is_ready());
        tokio::time::advance(10 * HALF_LIFE).await;
        drop(again);
        assert!(poll_now(Box::pin(places.take(host(8))).as_mut()).is_ready(), "it is forgotten");
    }
}
