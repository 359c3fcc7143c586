//! [`Places`]: a fixed number of places, shared fairly by those who ask for them.
//!
//! A semaphore gives its places to whoever came first, so that one caller with many requests takes them all. Here an address
//! holds no more than half of what it leaves free ([`Origin::may_take`]), and a place that becomes free goes to whoever holds the fewest.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::origin::Origin;

/// Places that are taken and given back. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Places(Arc<Mutex<State>>);

struct State {
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

    fn may_take(&self, origin: Origin) -> bool {
        origin.may_take(self.taken(origin), 1, self.free)
    }

    fn take(&mut self, origin: Origin) {
        self.free -= 1;
        *self.taken.entry(origin).or_default() += 1;
    }

    fn give_back(&mut self, origin: Origin) {
        self.free += 1;
        if let Some(taken) = self.taken.get_mut(&origin) {
            *taken -= 1;
            if *taken == 0 {
                self.taken.remove(&origin);
            }
        }
        self.grant();
    }

    /// Gives free places to those who wait: to the trusted first, then to whoever has the fewest, then to whoever came first.
    fn grant(&mut self) {
        loop {
            let waiting = self.waiting.iter().filter(|(_, (origin, _))| self.may_take(*origin));
            let first = waiting
                .min_by_key(|(ticket, (origin, _))| (origin.is_stranger(), self.taken(*origin), **ticket))
                .map(|(ticket, _)| *ticket);
            let Some((origin, told)) = first.and_then(|ticket| self.waiting.remove(&ticket)) else { return };
            self.take(origin);
            // Whoever has stopped to wait gives the place back when it goes.
            let _ = told.send(());
        }
    }
}

impl Places {
    pub(crate) fn new(places: usize) -> Places {
        let state = State { free: places, taken: HashMap::new(), next: 0, waiting: BTreeMap::new() };
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
            state.grant();
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
        let place = || Place { places: self.clone(), origin: Origin::Trusted };
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
        Place { places: self.places.clone(), origin: self.origin }
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
            state.give_back(self.origin);
        }
    }
}

/// A place that is taken, until it is dropped.
pub(crate) struct Place {
    places: Places,
    origin: Origin,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.0.lock().give_back(self.origin);
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
}
