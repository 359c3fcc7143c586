//! [`Turns`]: runs callers' long work in time slices, on fewer threads than cores, so that short work finds a core.
//!
//! A thread that has finished a slice queues again if another thread waits. The address that used the least CPU time
//! recently goes first. So the long call of a modest caller does not queue behind those of a greedy one.

use std::{
    collections::BTreeMap,
    sync::Arc,
    thread::{self, Thread},
    time::Duration,
};

use parking_lot::Mutex;

/// How often waiting threads check whether they still have to wait.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Turns that threads take and release. Cheap to clone.
#[derive(Clone)]
pub struct Turns(Arc<Mutex<State>>);

struct State {
    free: usize,
    next: u64,
    /// Ordered by the use of each thread's address, then by arrival.
    waiting: BTreeMap<(Duration, u64), Thread>,
}

impl State {
    /// Wakes the threads whose turn it is: a thread that has left the queue has a turn.
    fn grant(&mut self) {
        while self.free > 0
            && let Some((_, first)) = self.waiting.pop_first()
        {
            self.free -= 1;
            first.unpark();
        }
    }
}

impl Turns {
    /// Allows `free` turns at a time.
    pub fn new(free: usize) -> Turns {
        Turns(Arc::new(Mutex::new(State { free, next: 0, waiting: BTreeMap::new() })))
    }

    /// Blocks the thread until it has a turn; `None` once `is_over` returns true. `used` is the recent use of the
    /// caller's address.
    pub fn take(&self, used: Duration, is_over: impl Fn() -> bool) -> Option<Turn> {
        let place = {
            let mut state = self.0.lock();
            let place = (used, state.next);
            state.next += 1;
            state.waiting.insert(place, thread::current());
            state.grant();
            place
        };
        loop {
            let mut state = self.0.lock();
            if !state.waiting.contains_key(&place) {
                return Some(Turn(self.clone()));
            }
            if is_over() {
                state.waiting.remove(&place);
                return None;
            }
            drop(state);
            thread::park_timeout(LOOK_INTERVAL);
        }
    }

    /// Whether any thread waits for a turn.
    pub fn is_wanted(&self) -> bool {
        !self.0.lock().waiting.is_empty()
    }
}

/// A turn, released on drop.
pub struct Turn(Turns);

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.free += 1;
        state.grant();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Goal: only the allowed number of turns runs at once, and the address with the least use is next. A thread that
    /// gives up frees its place.
    #[test]
    fn whoever_used_least_is_next() {
        let turns = Turns::new(1);
        let first = turns.take(Duration::ZERO, || false).unwrap();
        assert!(turns.take(Duration::ZERO, || true).is_none() && !turns.is_wanted());
        let (tell, told) = mpsc::channel();
        let threads = [30, 10, 20].map(|used| {
            let (turns, tell) = (turns.clone(), tell.clone());
            thread::spawn(move || {
                let _turn = turns.take(Duration::from_millis(used), || false);
                tell.send(used).unwrap();
            })
        });
        while turns.0.lock().waiting.len() < 3 {
            thread::yield_now();
        }
        assert!(turns.is_wanted() && told.try_recv().is_err());
        drop(first);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [10, 20, 30]);
        assert_eq!(turns.0.lock().free, 1);
    }
}
