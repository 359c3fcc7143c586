//! [`DropOldestQueue`]: broadcasts waiting for a peer that is slower than they come.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A queue bounded in items and bytes. When full it drops the oldest: the newest batch is the one that a peer that fell
/// behind can use, and older ones it fetches by request anyway.
pub(crate) struct DropOldestQueue<T> {
    state: Mutex<State<T>>,
    filled: Notify,
    items_max: usize,
    bytes_max: usize,
}

struct State<T> {
    items: VecDeque<T>,
    bytes: usize,
}

impl<T: AsRef<[u8]>> DropOldestQueue<T> {
    pub(crate) fn new(items_max: usize, bytes_max: usize) -> Self {
        let state = Mutex::new(State { items: VecDeque::new(), bytes: 0 });
        DropOldestQueue { state, filled: Notify::new(), items_max, bytes_max }
    }

    /// Appends an item and returns how many older ones had to go. An item that exceeds the limits alone is itself
    /// what goes.
    pub(crate) fn push(&self, item: T) -> usize {
        let mut dropped = 0;
        {
            let mut state = self.state.lock();
            state.bytes += item.as_ref().len();
            state.items.push_back(item);
            while state.items.len() > self.items_max || state.bytes > self.bytes_max {
                let Some(oldest) = state.items.pop_front() else { break };
                state.bytes -= oldest.as_ref().len();
                dropped += 1;
            }
        }
        self.filled.notify_one();
        dropped
    }

    /// Waits for the oldest item. Cancel-safe; meant for one reader.
    pub(crate) async fn pop(&self) -> T {
        loop {
            {
                let mut state = self.state.lock();
                if let Some(item) = state.items.pop_front() {
                    state.bytes -= item.as_ref().len();
                    return item;
                }
            }
            self.filled.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    proptest! {
        // The queue equals a list from which the head is cut until both limits hold.
        #[test]
        fn behaves_like_a_list_cut_at_the_head(sizes in prop::collection::vec(0usize..40, 0..60)) {
            let (queue, mut model) = (DropOldestQueue::new(5, 60), Vec::<Vec<u8>>::new());
            for (index, size) in sizes.into_iter().enumerate() {
                let item = vec![index as u8; size];
                model.push(item.clone());
                let before = model.len();
                while model.len() > 5 || model.iter().map(Vec::len).sum::<usize>() > 60 {
                    model.remove(0);
                }
                prop_assert_eq!(queue.push(item), before - model.len());
                if index % 7 == 6 && !model.is_empty() {
                    prop_assert_eq!(block_on(queue.pop()), model.remove(0));
                }
            }
            for item in model {
                prop_assert_eq!(block_on(queue.pop()), item);
            }
        }
    }

    #[tokio::test]
    async fn a_waiting_reader_wakes() {
        let queue = std::sync::Arc::new(DropOldestQueue::new(2, 100));
        let reader = tokio::spawn({
            let queue = queue.clone();
            async move { queue.pop().await }
        });
        tokio::task::yield_now().await;
        queue.push(vec![7u8]);
        assert_eq!(reader.await.unwrap(), vec![7]);
    }
}
