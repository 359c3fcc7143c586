//! [`Lane`]: the places of one kind of work, shared evenly among the peers that ask for it.
//!
//! A free place first goes to the class of peers (known, or strangers) whose turn is longer ago. Within the class it
//! goes to the peer that holds the fewest places, and among equals to the one served longest ago. So a peer with one
//! request waits for one turn of each other peer, however much these ask for. Fresh identities together get no more
//! than the known peers do.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use slipstream_network::PeerId;
use tokio::{sync::oneshot, time::timeout};

/// Maximum number of peers whose last turn is remembered. A forgotten peer counts as not served yet.
const TURNS_KEPT: usize = 1_024;

/// Limits of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Maximum number of requests that are worked on at once.
    pub(super) places: usize,
    /// Maximum number of these from one peer. Fewer than all, so that a peer alone never makes the next one wait for all of its
    /// work.
    pub(super) of_peer: usize,
    /// Maximum number of requests that wait.
    pub(super) waiting: usize,
    /// How long a request waits before its peer is told to retry. Short compared with the deadline of an asker, which
    /// would blame this node for missing it.
    pub(super) wait: Duration,
}

/// The class of a peer, by which turns are given; see the module.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Class {
    /// Configured here, or connected for long.
    Known,
    /// Any other peer.
    Stranger,
}

/// The places of one kind of work. See the module.
#[derive(Clone)]
pub(super) struct Lane(Arc<Shared>);

struct Shared {
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Places that each peer holds.
    held: BTreeMap<PeerId, usize>,
    taken: usize,
    queues: BTreeMap<PeerId, Queue>,
    waiting: usize,
    /// The turn in which each class, and each peer, last got a place.
    class_turns: BTreeMap<Class, u64>,
    turns: BTreeMap<PeerId, u64>,
    turn: u64,
    next: u64,
}

struct Queue {
    class: Class,
    waiters: VecDeque<(u64, oneshot::Sender<Permit>)>,
}

/// The right to work in a lane, until it is dropped.
pub(super) struct Permit {
    shared: Arc<Shared>,
    peer: PeerId,
}

/// No place became free in time, or too many requests wait already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LaneFull {
    /// Time until the asker should retry.
    pub(super) retry_after: Duration,
}

impl Lane {
    pub(super) fn new(limits: Limits) -> Lane {
        Lane(Arc::new(Shared { limits, state: Mutex::default() }))
    }

    /// Waits for a place until it is the peer's turn. Dropping the future gives the turn up.
    pub(super) async fn enter(&self, peer: PeerId, class: Class) -> Result<Permit, LaneFull> {
        let full = LaneFull { retry_after: self.0.limits.wait };
        let mut waiting = self.queue(peer, class).ok_or(full)?;
        match timeout(self.0.limits.wait, &mut waiting.place).await {
            Ok(Ok(place)) => Ok(place),
            // Its place in the queue was given to a peer that asks for less.
            Ok(Err(_)) | Err(_) => Err(full),
        }
    }

    fn queue(&self, peer: PeerId, class: Class) -> Option<QueuedRequest> {
        let (sender, place) = oneshot::channel();
        let mut state = self.0.state.lock();
        if state.waiting >= self.0.limits.waiting && !state.displace(&peer) {
            return None;
        }
        let id = state.next;
        state.next += 1;
        state.waiting += 1;
        let queue = state.queues.entry(peer).or_insert(Queue { class, waiters: VecDeque::new() });
        queue.class = class;
        queue.waiters.push_back((id, sender));
        drop(state);
        self.0.grant();
        Some(QueuedRequest { shared: Arc::clone(&self.0), peer, id, place })
    }

    /// Number of requests that hold a place, and of those that wait.
    #[cfg(test)]
    pub(super) fn load(&self) -> (usize, usize) {
        let state = self.0.state.lock();
        (state.taken, state.waiting)
    }
}

impl Shared {
    /// Gives out the free places.
    fn grant(self: &Arc<Self>) {
        loop {
            let Some((peer, sender)) = self.state.lock().next(&self.limits) else { return };
            // If an asker gives up at this moment, it drops the place, which is given out again.
            let _ = sender.send(Permit { shared: Arc::clone(self), peer });
        }
    }
}

impl State {
    /// Picks the peer whose turn it is, and books its place.
    fn next(&mut self, limits: &Limits) -> Option<(PeerId, oneshot::Sender<Permit>)> {
        if self.taken >= limits.places {
            return None;
        }
        let held = |peer: &PeerId| self.held.get(peer).copied().unwrap_or_default();
        let turn = |peer: &PeerId| self.turns.get(peer).copied().unwrap_or_default();
        let class_turn = |class: &Class| self.class_turns.get(class).copied().unwrap_or_default();
        let waits = self.queues.iter().filter(|(peer, _)| held(peer) < limits.of_peer);
        let (peer, _) = waits.min_by_key(|(peer, queue)| {
            let first = queue.waiters.front().map(|(id, _)| *id);
            (class_turn(&queue.class), held(peer), turn(peer), first)
        })?;
        let peer = *peer;
        let queue = self.queues.get_mut(&peer)?;
        let (class, waiter) = (queue.class, queue.waiters.pop_front());
        if queue.waiters.is_empty() {
            self.queues.remove(&peer);
        }
        let (_, sender) = waiter?;
        self.waiting -= 1;
        self.taken += 1;
        *self.held.entry(peer).or_default() += 1;
        self.turn += 1;
        self.class_turns.insert(class, self.turn);
        self.turns.insert(peer, self.turn);
        self.forget();
        Some((peer, sender))
    }

    /// Makes room for a peer by dropping the last request of the longest queue. Returns false if the peer's own queue
    /// would be as long.
    fn displace(&mut self, peer: &PeerId) -> bool {
        let own = self.queues.get(peer).map_or(0, |queue| queue.waiters.len());
        let longest = self.queues.iter().max_by_key(|(_, queue)| queue.waiters.len());
        let Some(longest) = longest.filter(|(_, queue)| queue.waiters.len() > own + 1) else { return false };
        let longest = *longest.0;
        let dropped = self.queues.get_mut(&longest).and_then(|queue| queue.waiters.pop_back());
        self.waiting -= usize::from(dropped.is_some());
        dropped.is_some()
    }

    fn forget(&mut self) {
        if self.turns.len() > TURNS_KEPT
            && let Some(oldest) = self.turns.iter().min_by_key(|(_, turn)| **turn).map(|(peer, _)| *peer)
        {
            self.turns.remove(&oldest);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.taken -= 1;
        if let Some(held) = state.held.get_mut(&self.peer) {
            *held -= 1;
            if *held == 0 {
                state.held.remove(&self.peer);
            }
        }
        drop(state);
        self.shared.grant();
    }
}

/// A request in a queue. Dropping it takes it out of the queue.
struct QueuedRequest {
    shared: Arc<Shared>,
    peer: PeerId,
    id: u64,
    place: oneshot::Receiver<Permit>,
}

impl Drop for QueuedRequest {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        let Some(queue) = state.queues.get_mut(&self.peer) else { return };
        let before = queue.waiters.len();
        queue.waiters.retain(|(id, _)| *id != self.id);
        let left = before - queue.waiters.len();
        if queue.waiters.is_empty() {
            state.queues.remove(&self.peer);
        }
        state.waiting -= left;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use slipstream_types::PublicKey;

    use super::*;

    const LIMITS: Limits = Limits { places: 4, of_peer: 3, waiting: 8, wait: Duration::from_secs(2) };

    fn peer(id: u8) -> PeerId {
        PublicKey([id; 32])
    }

    fn now(lane: &Lane, id: u8) -> Option<Permit> {
        lane.enter(peer(id), Class::Stranger).now_or_never().and_then(Result::ok)
    }

    #[tokio::test(start_paused = true)]
    async fn one_peer_never_takes_all_places_and_a_wait_ends() {
        let lane = Lane::new(LIMITS);
        let held: Vec<_> = (0..3).filter_map(|_| now(&lane, 1)).collect();
        assert_eq!(held.len(), 3);
        assert!(now(&lane, 1).is_none(), "a fourth place is somebody else's");
        let other = now(&lane, 2);
        assert!(other.is_some());
        let full = lane.enter(peer(3), Class::Stranger).await.err();
        assert_eq!(full, Some(LaneFull { retry_after: LIMITS.wait }));
        assert_eq!(lane.load(), (4, 0), "who gave up waits no more");
        drop(held);
        assert!(now(&lane, 3).is_some());
    }

    /// Goal: a peer that asks for little overtakes one that asks for much.
    #[tokio::test(start_paused = true)]
    async fn turns_go_round_the_peers_and_not_the_requests() {
        let lane = Lane::new(Limits { places: 1, of_peer: 1, ..LIMITS });
        let first = now(&lane, 1).unwrap();
        let ask = |id, class| {
            let lane = lane.clone();
            tokio::spawn(async move { (id, lane.enter(peer(id), class).await.ok()) })
        };
        let mut asked: Vec<_> = (0..4).map(|_| ask(1, Class::Stranger)).collect();
        tokio::task::yield_now().await;
        asked.extend([ask(2, Class::Stranger), ask(3, Class::Known)]);
        tokio::task::yield_now().await;
        drop(first);
        let mut order = Vec::new();
        while !asked.is_empty() {
            let (done, at, _) = futures::future::select_all(&mut asked).await;
            drop(asked.remove(at));
            order.push(done.unwrap().0);
        }
        assert_eq!(order, [3, 2, 1, 1, 1, 1]);
    }

    /// Goal: a flood of one peer's requests displaces no other peer from the queue.
    #[tokio::test(start_paused = true)]
    async fn a_full_queue_drops_the_last_of_the_longest() {
        let lane = Lane::new(Limits { places: 1, of_peer: 1, ..LIMITS });
        let _first = now(&lane, 1).unwrap();
        let mut flood: Vec<_> = (0..8).map(|_| Box::pin(lane.enter(peer(1), Class::Stranger))).collect();
        assert!(flood.iter_mut().all(|asked| asked.now_or_never().is_none()));
        assert!(lane.enter(peer(1), Class::Stranger).await.is_err(), "its own queue is the longest");
        let mut other = Box::pin(lane.enter(peer(2), Class::Stranger));
        assert!((&mut other).now_or_never().is_none(), "it waits");
        assert!(flood.pop().unwrap().now_or_never().unwrap().is_err());
        assert_eq!(lane.load(), (1, 8));
    }
}
