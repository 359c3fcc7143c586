//! [`Inboxes`]: received broadcasts that the handler has not taken yet, separately for each peer.
//!
//! ```text
//!   connection ─▶ Inbox (own limits, drops oldest) ─┐
//!   connection ─▶ Inbox ────────────────────────────┼─ turns: one message per peer, first come, first served ─▶ handler
//!   connection ─▶ Inbox ────────────────────────────┘
//! ```
//!
//! A peer that floods loses its own oldest messages: by its own limits, and by the total limit while its inbox is the
//! largest.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

/// Maximum number of broadcasts that the handler processes at once. Each peer waits for its turn with only one message,
/// so every peer gets turns.
const TURNS: usize = 16;

/// Limits of one inbox, and of all inboxes together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InboxLimits {
    pub(crate) items_max: usize,
    pub(crate) bytes_max: usize,
    pub(crate) total_bytes_max: usize,
}

/// The inboxes of a node.
pub(crate) struct Inboxes {
    limits: InboxLimits,
    state: Mutex<State>,
    turns: Semaphore,
}

#[derive(Default)]
struct State {
    queues: BTreeMap<u64, Queue>,
    bytes: usize,
    next: u64,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Vec<u8>>,
    bytes: usize,
}

/// The inbox of one connection; its messages are dropped with it.
pub(crate) struct Inbox {
    inboxes: Arc<Inboxes>,
    number: u64,
    filled: Notify,
}

impl Inboxes {
    pub(crate) fn new(limits: InboxLimits) -> Arc<Inboxes> {
        Arc::new(Inboxes { limits, state: Mutex::default(), turns: Semaphore::new(TURNS) })
    }

    /// Opens an inbox for a new connection.
    pub(crate) fn open(self: &Arc<Self>) -> Inbox {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.queues.insert(number, Queue::default());
        Inbox { inboxes: self.clone(), number, filled: Notify::new() }
    }
}

impl State {
    fn drop_oldest(&mut self, number: u64) -> Option<Vec<u8>> {
        let queue = self.queues.get_mut(&number)?;
        let oldest = queue.items.pop_front()?;
        queue.bytes -= oldest.len();
        self.bytes -= oldest.len();
        Some(oldest)
    }

    fn longest(&self) -> Option<u64> {
        self.queues.iter().max_by_key(|(_, queue)| queue.bytes).map(|(number, _)| *number)
    }
}

impl Inbox {
    /// Adds a message, and returns the number of older ones that were dropped, from any inbox. A message that alone
    /// exceeds the limits is itself dropped.
    pub(crate) fn push(&self, item: Vec<u8>) -> usize {
        let limits = self.inboxes.limits;
        let mut dropped = 0;
        {
            let mut state = self.inboxes.state.lock();
            state.bytes += item.len();
            let Some(queue) = state.queues.get_mut(&self.number) else { return 0 };
            queue.bytes += item.len();
            queue.items.push_back(item);
            while state.queues.get(&self.number).is_some_and(|queue| queue.exceeds(&limits)) {
                dropped += usize::from(state.drop_oldest(self.number).is_some());
            }
            while state.bytes > limits.total_bytes_max
                && let Some(longest) = state.longest()
                && state.drop_oldest(longest).is_some()
            {
                dropped += 1;
            }
        }
        self.filled.notify_one();
        dropped
    }

    /// Waits for a message and for one of the turns of all inboxes. Then takes the oldest message, which counts until
    /// that moment. The caller drops the turn when it has handled the message. Cancel-safe; meant for one reader.
    pub(crate) async fn pop(&self) -> (Vec<u8>, SemaphorePermit<'_>) {
        loop {
            while self.is_empty() {
                self.filled.notified().await;
            }
            let turn = self.inboxes.turns.acquire().await.expect("the semaphore is never closed");
            if let Some(item) = self.inboxes.state.lock().drop_oldest(self.number) {
                return (item, turn);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.inboxes.state.lock().queues.get(&self.number).is_none_or(|queue| queue.items.is_empty())
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let mut state = self.inboxes.state.lock();
        if let Some(queue) = state.queues.remove(&self.number) {
            state.bytes -= queue.bytes;
        }
    }
}

impl Queue {
    fn exceeds(&self, limits: &InboxLimits) -> bool {
        self.items.len() > limits.items_max || self.bytes > limits.bytes_max
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: InboxLimits = InboxLimits { items_max: 5, bytes_max: 60, total_bytes_max: 100 };

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    proptest! {
        // A single inbox equals a list whose head is cut until both limits hold.
        #[test]
        fn behaves_like_a_list_cut_at_the_head(sizes in prop::collection::vec(0usize..40, 0..60)) {
            let inbox = Inboxes::new(LIMITS).open();
            let mut model = Vec::<Vec<u8>>::new();
            for (index, size) in sizes.into_iter().enumerate() {
                let item = vec![index as u8; size];
                model.push(item.clone());
                let before = model.len();
                while model.len() > 5 || model.iter().map(Vec::len).sum::<usize>() > 60 {
                    model.remove(0);
                }
                prop_assert_eq!(inbox.push(item), before - model.len());
                if index % 7 == 6 && !model.is_empty() {
                    prop_assert_eq!(block_on(inbox.pop()).0, model.remove(0));
                }
            }
            for item in model {
                prop_assert_eq!(block_on(inbox.pop()).0, item);
            }
        }
    }

    /// Goal: the total limit takes from the peers with the most bytes, never from those with few.
    #[test]
    fn a_flood_takes_no_place_of_others() {
        let inboxes = Inboxes::new(LIMITS);
        let (honest, flooders) = (inboxes.open(), [inboxes.open(), inboxes.open(), inboxes.open()]);
        assert_eq!(honest.push(vec![1; 20]), 0);
        for _ in 0..100 {
            for flooder in &flooders {
                flooder.push(vec![2; 20]);
            }
            assert!(inboxes.state.lock().bytes <= 100);
        }
        assert_eq!(honest.push(vec![3; 10]), 1);
        assert_eq!(block_on(honest.pop()).0, vec![1; 20]);
        assert_eq!(block_on(honest.pop()).0, vec![3; 10]);
        drop(flooders);
        assert_eq!(inboxes.state.lock().bytes, 0);
    }

    /// Goal: a peer with a hundred waiting messages gets one turn for each turn of the others.
    #[tokio::test]
    async fn turns_go_round() {
        let inboxes = Inboxes::new(InboxLimits { items_max: 200, bytes_max: 1_000, total_bytes_max: 1_000 });
        let all: Vec<_> = (0..TURNS).map(|_| inboxes.turns.try_acquire().unwrap()).collect();
        let (order, mut tasks) = (Arc::new(Mutex::new(Vec::new())), Vec::new());
        for (peer, messages) in [(0, 100), (1, 2), (2, 2)] {
            let (inbox, order) = (inboxes.open(), order.clone());
            for _ in 0..messages {
                inbox.push(vec![0]);
            }
            tasks.push(tokio::spawn(async move {
                for _ in 0..messages {
                    let _turn = inbox.pop().await;
                    order.lock().push(peer);
                    tokio::task::yield_now().await;
                }
            }));
        }
        tokio::task::yield_now().await;
        // One turn at a time, so that the order is visible.
        let mut all = all.into_iter();
        drop(all.next());
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(order.lock()[..6], [0, 1, 2, 0, 1, 2]);
    }

    /// Goal: waiting for a message takes no turn from other peers.
    #[tokio::test]
    async fn an_empty_inbox_takes_no_turn() {
        let inboxes = Inboxes::new(LIMITS);
        let inbox = inboxes.open();
        let all: Vec<_> = (0..TURNS).map(|_| inboxes.turns.try_acquire().unwrap()).collect();
        let mut reader = std::pin::pin!(inbox.pop());
        let is_waiting = std::future::poll_fn(|context| {
            std::task::Poll::Ready(reader.as_mut().poll(context).is_pending())
        });
        assert!(is_waiting.await);
        drop(all);
        assert_eq!(inboxes.turns.available_permits(), TURNS, "nobody waits for one");
    }

    #[tokio::test]
    async fn a_waiting_reader_wakes() {
        let inbox = Arc::new(Inboxes::new(LIMITS).open());
        let reader = tokio::spawn({
            let inbox = inbox.clone();
            async move { inbox.pop().await.0 }
        });
        tokio::task::yield_now().await;
        inbox.push(vec![7u8]);
        assert_eq!(reader.await.unwrap(), vec![7]);
    }
}
