//! [`FairQueue`]: a queue per peer, served in turns, so that one peer's flood displaces only its own messages.

use std::collections::{BTreeMap, VecDeque};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::PeerId;

/// Limits of a [`FairQueue`], set by its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FairLimits {
    /// Maximum number of messages of one peer; beyond it the peer's oldest is dropped.
    pub peer_items_max: usize,
    /// Maximum bytes of one peer's messages, likewise.
    pub peer_bytes_max: usize,
    /// Maximum bytes of all peers' messages; beyond it the peer with the most bytes loses its oldest.
    pub bytes_max: usize,
}

/// Messages that wait for this node, by peer; see the module.
#[derive(Debug)]
pub struct FairQueue {
    state: Mutex<State>,
    arrived: Notify,
}

#[derive(Debug)]
struct State {
    limits: FairLimits,
    /// Queues with at least one message.
    queues: BTreeMap<PeerId, Queue>,
    /// Peers in the order of their turns.
    turns: VecDeque<PeerId>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Queue {
    payloads: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl FairQueue {
    /// Makes an empty queue.
    pub fn new(limits: FairLimits) -> FairQueue {
        let state = State { limits, queues: BTreeMap::new(), turns: VecDeque::new(), bytes: 0 };
        FairQueue { state: Mutex::new(state), arrived: Notify::new() }
    }

    /// Adds a message. Returns the number of older messages that were dropped: those of the same peer, or of a peer
    /// with more bytes.
    pub fn push(&self, peer: PeerId, payload: Vec<u8>) -> usize {
        let dropped = self.state.lock().push(peer, payload);
        self.arrived.notify_one();
        dropped
    }

    /// Returns the next message, taking turns between peers; waits if there is none. Dropping the future loses nothing.
    pub async fn pop(&self) -> (PeerId, Vec<u8>) {
        loop {
            if let Some(next) = self.try_pop() {
                return next;
            }
            self.arrived.notified().await;
        }
    }

    /// As [`FairQueue::pop`], but returns `None` at once if there is no message.
    pub fn try_pop(&self) -> Option<(PeerId, Vec<u8>)> {
        self.state.lock().pop()
    }
}

impl State {
    fn push(&mut self, peer: PeerId, payload: Vec<u8>) -> usize {
        let mut dropped = 0;
        while self.queues.get(&peer).is_some_and(|queue| {
            queue.payloads.len() >= self.limits.peer_items_max
                || queue.bytes + payload.len() > self.limits.peer_bytes_max
        }) {
            self.take(peer);
            dropped += 1;
        }
        if !self.queues.contains_key(&peer) {
            self.turns.push_back(peer);
        }
        let queue = self.queues.entry(peer).or_default();
        queue.bytes += payload.len();
        self.bytes += payload.len();
        queue.payloads.push_back(payload);
        while self.bytes > self.limits.bytes_max
            && let Some(most) = self.queues.iter().max_by_key(|(_, queue)| queue.bytes).map(|(peer, _)| *peer)
        {
            self.take(most);
            dropped += 1;
        }
        dropped
    }

    fn pop(&mut self) -> Option<(PeerId, Vec<u8>)> {
        let peer = *self.turns.front()?;
        let payload = self.take(peer)?;
        // The peer's next message waits for a turn of every other peer.
        if self.queues.contains_key(&peer) {
            self.turns.rotate_left(1);
        }
        Some((peer, payload))
    }

    /// Takes the oldest message of a peer.
    fn take(&mut self, peer: PeerId) -> Option<Vec<u8>> {
        let queue = self.queues.get_mut(&peer)?;
        let payload = queue.payloads.pop_front()?;
        queue.bytes -= payload.len();
        self.bytes -= payload.len();
        if queue.payloads.is_empty() {
            self.queues.remove(&peer);
            self.turns.retain(|other| *other != peer);
        }
        Some(payload)
    }
}

#[cfg(test)]
mod tests {
    use slipstream_types::PublicKey;

    use super::*;

    const PEER_ITEMS_MAX: usize = 4;
    const PEER_BYTES_MAX: usize = 1 << 20;
    const BYTES_MAX: usize = (2 << 20) + 1_000;
    const LIMITS: FairLimits =
        FairLimits { peer_items_max: PEER_ITEMS_MAX, peer_bytes_max: PEER_BYTES_MAX, bytes_max: BYTES_MAX };

    fn peer(id: u8) -> PeerId {
        PublicKey([id; 32])
    }

    fn order(broadcasts: &FairQueue) -> Vec<(u8, u8)> {
        let mut state = broadcasts.state.lock();
        std::iter::from_fn(|| state.pop()).map(|(peer, payload)| (peer.0[0], payload[0])).collect()
    }

    /// Goal: a flood of one peer displaces only its own announcements, and delays no other peer's turn.
    #[test]
    fn a_flood_displaces_its_own() {
        let broadcasts = FairQueue::new(LIMITS);
        broadcasts.push(peer(1), vec![0]);
        let dropped: usize = (0..200).map(|i| broadcasts.push(peer(2), vec![i])).sum();
        assert_eq!(dropped, 200 - PEER_ITEMS_MAX);
        (3..40).for_each(|id| assert_eq!(broadcasts.push(peer(id), vec![0]), 0));
        let order = order(&broadcasts);
        assert_eq!(order[..2], [(1, 0), (2, 196)]);
        assert_eq!(order[2].0, 3, "turn by turn");
        assert_eq!(order[39..], [(2, 197), (2, 198), (2, 199)]);
    }

    #[test]
    fn bytes_are_bounded_and_the_longest_pay() {
        let broadcasts = FairQueue::new(LIMITS);
        broadcasts.push(peer(1), vec![1; 100]);
        let long = || vec![9; PEER_BYTES_MAX];
        assert_eq!((2..=3).map(|id| broadcasts.push(peer(id), long())).sum::<usize>(), 0);
        assert_eq!(broadcasts.push(peer(2), long()), 1, "of its own");
        assert_eq!(broadcasts.push(peer(4), long()), 1, "there is room for two of them");
        let state = broadcasts.state.lock();
        assert!(state.bytes <= BYTES_MAX && state.queues.contains_key(&peer(1)));
    }

    #[tokio::test]
    async fn who_waits_is_woken() {
        let broadcasts = std::sync::Arc::new(FairQueue::new(LIMITS));
        let waiting = tokio::spawn({
            let broadcasts = std::sync::Arc::clone(&broadcasts);
            async move { broadcasts.pop().await }
        });
        tokio::task::yield_now().await;
        broadcasts.push(peer(1), vec![7]);
        assert_eq!(waiting.await.unwrap(), (peer(1), vec![7]));
    }
}
