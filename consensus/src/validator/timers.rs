//! [`Timers`]: the moments that an actor waits for, by name.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

/// At most one moment for each name. Setting a timer again moves it.
#[derive(Debug)]
pub(super) struct Timers<K> {
    due: BTreeMap<K, Instant>,
}

impl<K: Ord + Copy> Timers<K> {
    pub(super) fn new() -> Timers<K> {
        Timers { due: BTreeMap::new() }
    }

    pub(super) fn set(&mut self, timer: K, after: Duration) {
        self.set_at(timer, Instant::now() + after);
    }

    pub(super) fn set_at(&mut self, timer: K, at: Instant) {
        self.due.insert(timer, at);
    }

    pub(super) fn cancel(&mut self, timer: K) {
        self.due.remove(&timer);
    }

    pub(super) fn is_set(&self, timer: K) -> bool {
        self.due.contains_key(&timer)
    }

    /// Waits for the first timer and removes it; waits for ever if none is set. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> K {
        let first = self.due.iter().min_by_key(|(_, at)| **at).map(|(timer, at)| (*timer, *at));
        let Some((timer, at)) = first else { return std::future::pending().await };
        tokio::time::sleep_until(at).await;
        self.due.remove(&timer);
        timer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: timers fire in the order of their moments. A moved timer fires once, a cancelled one never.
    #[tokio::test(start_paused = true)]
    async fn timers_come_in_order() {
        let mut timers = Timers::new();
        for (name, seconds) in [('a', 5), ('b', 1), ('c', 3), ('d', 2)] {
            timers.set(name, Duration::from_secs(seconds));
        }
        timers.set('b', Duration::from_secs(4));
        timers.cancel('d');
        assert!(timers.is_set('b') && !timers.is_set('d'));
        assert!(tokio::time::timeout(Duration::from_secs(2), timers.next()).await.is_err());
        let begun = Instant::now();
        let mut heard = Vec::new();
        for _ in 0..3 {
            heard.push((timers.next().await, begun.elapsed().as_secs()));
        }
        assert_eq!(heard, [('c', 1), ('b', 2), ('a', 3)]);
        assert!(tokio::time::timeout(Duration::from_secs(60), timers.next()).await.is_err());
    }
}
