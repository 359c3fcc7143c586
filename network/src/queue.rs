//! [`Outbox`]: messages that wait because the peer receives more slowly than they are produced.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use crate::{
    Priority,
    budget::{Reservation, Share},
};

/// A queue bounded in items, and in bytes by its peer's share of the bytes that a node holds for all peers. More urgent
/// items go first. When full it drops the oldest of the least urgent. A peer that fell behind can use the newest batch,
/// and requests older ones anyway.
///
/// An item counts from when it is pushed until the [`Reservation`] that [`Outbox::pop`] returns with it is dropped.
pub(crate) struct Outbox<T> {
    state: Mutex<State<T>>,
    filled: Notify,
    items_max: usize,
    share: Share,
}

struct State<T> {
    /// One queue per priority.
    lanes: [VecDeque<(T, Reservation)>; Priority::ALL.len()],
}

impl<T> State<T> {
    fn items(&self) -> usize {
        self.lanes.iter().map(VecDeque::len).sum()
    }

    fn first(&mut self) -> Option<(T, Reservation)> {
        self.lanes.iter_mut().find_map(VecDeque::pop_front)
    }

    /// Drops the oldest item of the least urgent lane that is no more urgent than `priority`.
    fn drop_one(&mut self, priority: Priority) -> Option<(T, Reservation)> {
        self.lanes[priority as usize..].iter_mut().rev().find_map(VecDeque::pop_front)
    }

    /// Bytes of the items that are no more urgent than `priority`.
    fn bytes(&self, priority: Priority) -> usize {
        self.lanes[priority as usize..].iter().flatten().map(|(_, held)| held.bytes()).sum()
    }
}

impl<T: AsRef<[u8]>> Outbox<T> {
    pub(crate) fn new(items_max: usize, share: Share) -> Self {
        let state = Mutex::new(State { lanes: Default::default() });
        Outbox { state, filled: Notify::new(), items_max, share }
    }

    /// Appends an item and returns the number of dropped ones. The new item itself is dropped if dropping all items
    /// that are no more urgent would not make enough room: then other peers fill the node's memory.
    pub(crate) fn push(&self, priority: Priority, item: T) -> usize {
        let bytes = item.as_ref().len();
        let mut dropped = 0;
        {
            let mut state = self.state.lock();
            let held = loop {
                match self.share.try_hold(bytes) {
                    Some(held) if state.items() < self.items_max => break held,
                    None if !self.can_make_room(&state, priority, bytes) => return dropped + 1,
                    Some(_) | None => {}
                }
                match state.drop_one(priority) {
                    Some(_) => dropped += 1,
                    None => return dropped + 1,
                }
            };
            state.lanes[priority as usize].push_back((item, held));
        }
        self.filled.notify_one();
        dropped
    }

    /// Whether dropping every item that is no more urgent than `priority` would make enough room.
    fn can_make_room(&self, state: &State<T>, priority: Priority, bytes: usize) -> bool {
        state.bytes(priority).saturating_add(self.share.room()) >= self.share.charged(bytes)
    }

    /// Waits for the oldest of the most urgent items. Cancel-safe; meant for one reader.
    pub(crate) async fn pop(&self) -> (T, Reservation) {
        loop {
            if let Some(item) = self.state.lock().first() {
                return item;
            }
            self.filled.notified().await;
        }
    }

    /// Whether the peer gets no long messages for a while, because it or another peer of its party left messages
    /// unread.
    pub(crate) fn is_barred(&self, now: Instant) -> bool {
        !self.share.barred(now).is_zero()
    }

    /// Records that the peer did not receive its messages.
    pub(crate) fn bar(&self, now: Instant) {
        self.share.bar(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::budget::Budget;

    const PRIORITIES: &[Priority] = Priority::ALL;

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    const KIB: usize = 1 << 10;

    fn share(kib: usize) -> Share {
        Budget::new(kib * KIB, kib * KIB, false).share(None, false)
    }

    proptest! {
        // The queue equals lists whose least urgent one loses its head until both limits hold.
        #[test]
        fn behaves_like_lists_cut_at_the_least_urgent_head(pushed in prop::collection::vec((0usize..3, 0usize..40), 0..60)) {
            let (queue, mut model) = (Outbox::new(5, share(60)), [const { Vec::<Vec<u8>>::new() }; 3]);
            for (index, (lane, size)) in pushed.into_iter().enumerate() {
                let item = vec![index as u8; size * KIB];
                let all = |model: &[Vec<Vec<u8>>]| model.iter().flatten().map(Vec::len).collect::<Vec<_>>();
                let more_urgent: usize = all(&model[..lane]).iter().sum();
                if more_urgent + item.len() > 60 * KIB {
                    prop_assert_eq!(queue.push(PRIORITIES[lane], item), 1);
                    continue;
                }
                model[lane].push(item.clone());
                let before = all(&model).len();
                while all(&model).len() > 5 || all(&model).iter().sum::<usize>() > 60 * KIB {
                    model.iter_mut().rev().find(|lane| !lane.is_empty()).unwrap().remove(0);
                }
                prop_assert_eq!(queue.push(PRIORITIES[lane], item), before - all(&model).len());
                if index % 7 == 6 && let Some(lane) = model.iter_mut().find(|lane| !lane.is_empty()) {
                    prop_assert_eq!(block_on(queue.pop()).0, lane.remove(0));
                }
            }
            for item in model.into_iter().flatten() {
                prop_assert_eq!(block_on(queue.pop()).0, item);
            }
        }
    }

    #[tokio::test]
    async fn a_waiting_reader_wakes() {
        let queue = std::sync::Arc::new(Outbox::new(2, share(100)));
        let reader = tokio::spawn({
            let queue = queue.clone();
            async move { queue.pop().await.0 }
        });
        tokio::task::yield_now().await;
        queue.push(Priority::Second, vec![7u8]);
        assert_eq!(reader.await.unwrap(), vec![7]);
    }

    /// Goal: a popped item counts until it is released. If other peers use up the room, a peer loses nothing from its
    /// queue.
    #[test]
    fn what_is_under_way_counts_and_others_cost_a_queue_nothing() {
        let budget = Budget::new(10 * KIB, 15 * KIB, false);
        let [one, other] = [(); 2].map(|()| Outbox::new(9, budget.share(None, false)));
        assert_eq!(one.push(Priority::Second, vec![1; 10 * KIB]), 0);
        let (_, held) = block_on(one.pop());
        assert_eq!(one.push(Priority::Second, vec![2; KIB]), 1, "its share is under way");
        assert_eq!(other.push(Priority::Second, vec![3; 4 * KIB]), 0);
        assert_eq!(other.push(Priority::Second, vec![4; 8 * KIB]), 1, "all have five");
        assert_eq!(
            other.push(Priority::First, vec![5; 5 * KIB]),
            1,
            "the older one goes for what is more urgent"
        );
        drop(held);
        assert_eq!(one.push(Priority::Second, vec![6; 10 * KIB]), 0);
        assert_eq!([block_on(other.pop()).0, block_on(one.pop()).0], [vec![5; 5 * KIB], vec![6; 10 * KIB]]);
    }
}
