//! [`Outbox`]: messages that wait for a peer that is slower than they come.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::Priority;

/// A queue bounded in items and bytes. More urgent items go first. When full it drops the oldest of the least urgent. A peer that fell
/// behind can use the newest batch, and fetches older ones by request anyway.
pub(crate) struct Outbox<T> {
    state: Mutex<State<T>>,
    filled: Notify,
    items_max: usize,
    bytes_max: usize,
}

struct State<T> {
    /// One per priority.
    lanes: [VecDeque<T>; Priority::ALL.len()],
    bytes: usize,
}

impl<T: AsRef<[u8]>> State<T> {
    fn items(&self) -> usize {
        self.lanes.iter().map(VecDeque::len).sum()
    }

    fn take(&mut self, lane: Option<usize>) -> Option<T> {
        let item = self.lanes.get_mut(lane?)?.pop_front()?;
        self.bytes -= item.as_ref().len();
        Some(item)
    }

    fn first(&mut self) -> Option<T> {
        let lane = self.lanes.iter().position(|lane| !lane.is_empty());
        self.take(lane)
    }

    fn drop_one(&mut self) -> Option<T> {
        let lane = self.lanes.iter().rposition(|lane| !lane.is_empty());
        self.take(lane)
    }
}

impl<T: AsRef<[u8]>> Outbox<T> {
    pub(crate) fn new(items_max: usize, bytes_max: usize) -> Self {
        let state = Mutex::new(State { lanes: Default::default(), bytes: 0 });
        Outbox { state, filled: Notify::new(), items_max, bytes_max }
    }

    /// Appends an item and returns how many had to go. An item that exceeds the limits alone is itself what goes, with all that is
    /// less urgent.
    pub(crate) fn push(&self, priority: Priority, item: T) -> usize {
        let mut dropped = 0;
        {
            let mut state = self.state.lock();
            state.bytes += item.as_ref().len();
            state.lanes[priority as usize].push_back(item);
            while (state.items() > self.items_max || state.bytes > self.bytes_max)
                && state.drop_one().is_some()
            {
                dropped += 1;
            }
        }
        self.filled.notify_one();
        dropped
    }

    /// Waits for the oldest of the most urgent items. Cancel-safe; meant for one reader.
    pub(crate) async fn pop(&self) -> T {
        loop {
            if let Some(item) = self.state.lock().first() {
                return item;
            }
            self.filled.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PRIORITIES: [Priority; 3] = Priority::ALL;

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    proptest! {
        // The queue equals lists of which the least urgent loses its head until both limits hold.
        #[test]
        fn behaves_like_lists_cut_at_the_least_urgent_head(pushed in prop::collection::vec((0usize..3, 0usize..40), 0..60)) {
            let (queue, mut model) = (Outbox::new(5, 60), [const { Vec::<Vec<u8>>::new() }; 3]);
            for (index, (lane, size)) in pushed.into_iter().enumerate() {
                let item = vec![index as u8; size];
                model[lane].push(item.clone());
                let all = |model: &[Vec<Vec<u8>>]| model.iter().flatten().map(Vec::len).collect::<Vec<_>>();
                let before = all(&model).len();
                while all(&model).len() > 5 || all(&model).iter().sum::<usize>() > 60 {
                    model.iter_mut().rev().find(|lane| !lane.is_empty()).unwrap().remove(0);
                }
                prop_assert_eq!(queue.push(PRIORITIES[lane], item), before - all(&model).len());
                if index % 7 == 6 && let Some(lane) = model.iter_mut().find(|lane| !lane.is_empty()) {
                    prop_assert_eq!(block_on(queue.pop()), lane.remove(0));
                }
            }
            for item in model.into_iter().flatten() {
                prop_assert_eq!(block_on(queue.pop()), item);
            }
        }
    }

    #[tokio::test]
    async fn a_waiting_reader_wakes() {
        let queue = std::sync::Arc::new(Outbox::new(2, 100));
        let reader = tokio::spawn({
            let queue = queue.clone();
            async move { queue.pop().await }
        });
        tokio::task::yield_now().await;
        queue.push(Priority::Second, vec![7u8]);
        assert_eq!(reader.await.unwrap(), vec![7]);
    }
}
