//! [`Seats`]: who is connected, what each does, and who goes when there is no seat for somebody new.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// How long the head of a request may take, from its first byte or, for the first one, from the connection's first moment.
pub(super) const HEAD_MAX: Duration = Duration::from_secs(5);
/// How long a connection may be without a request, and how long one may take from its head to the answer's first byte: above
/// the time that the API gives itself for an answer.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(60);

/// What a connection does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Doing {
    /// The head of its request is not whole, or has not begun to come.
    Head,
    /// It has its answer and may ask again.
    Idle,
    /// The head is here, the body is not.
    Body,
    /// Its request is worked on.
    Work,
    /// The answer is made, and not yet all with the kernel.
    Answer,
}

/// A connection's place among the others. Cheap to clone: its stream and its requests share it.
#[derive(Clone)]
pub(crate) struct Seat(Arc<Shared>);

struct Shared {
    seats: Arc<Seats>,
    number: u64,
    state: Mutex<State>,
    dismissed: CancellationToken,
}

struct State {
    doing: Doing,
    since: Instant,
    /// The place of the call that is worked on, or whose answer is being read.
    call: Option<OwnedSemaphorePermit>,
}

impl State {
    /// Whether the connection can be given up for another, and how late: those that ask for nothing go before those that are
    /// slow to ask or to read.
    fn rank(&self) -> Option<(u8, Instant)> {
        match self.doing {
            Doing::Head | Doing::Idle => Some((0, self.since)),
            Doing::Body => Some((1, self.since)),
            Doing::Answer if self.call.is_none() => Some((1, self.since)),
            Doing::Work | Doing::Answer => None,
        }
    }
}

/// All seats.
pub(super) struct Seats {
    room: Arc<Semaphore>,
    calls: Arc<Semaphore>,
    taken: Mutex<Taken>,
    /// Told when somebody may have become one that can go.
    changed: Notify,
}

#[derive(Default)]
struct Taken {
    next: u64,
    seats: BTreeMap<u64, (Seat, OwnedSemaphorePermit)>,
}

impl Seats {
    /// For so many calls at a time, and for so many connections more.
    pub(super) fn new(calls_max: usize, spare: usize) -> Arc<Seats> {
        let calls = calls_max.min(Semaphore::MAX_PERMITS - spare);
        Arc::new(Seats {
            room: Arc::new(Semaphore::new(calls + spare)),
            calls: Arc::new(Semaphore::new(calls)),
            taken: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// A seat for a new connection, which another has to leave if there is no free one. Waits while all others work.
    pub(super) async fn take(self: &Arc<Self>) -> Seat {
        let place = loop {
            let changed = self.changed.notified();
            if let Ok(place) = self.room.clone().try_acquire_owned() {
                break place;
            }
            self.dismiss_one();
            tokio::select! {
                place = self.room.clone().acquire_owned() => break place.expect("the semaphore is never closed"),
                () = changed => {}
            }
        };
        let mut taken = self.taken.lock();
        let number = taken.next;
        taken.next += 1;
        let state = State { doing: Doing::Head, since: Instant::now(), call: None };
        let shared = Shared {
            seats: self.clone(),
            number,
            state: Mutex::new(state),
            dismissed: CancellationToken::new(),
        };
        let seat = Seat(Arc::new(shared));
        taken.seats.insert(number, (seat.clone(), place));
        seat
    }

    /// Tells the connection that can go first to go, unless one is going already.
    fn dismiss_one(&self) {
        let taken = self.taken.lock();
        let ranks = taken.seats.values().filter_map(|(seat, _)| Some((seat.0.state.lock().rank()?, seat)));
        let ranked: Vec<_> = ranks.collect();
        if ranked.iter().any(|(_, seat)| seat.0.dismissed.is_cancelled()) {
            return;
        }
        if let Some((_, seat)) = ranked.into_iter().min_by_key(|(rank, _)| *rank) {
            seat.0.dismissed.cancel();
        }
    }
}

/// There is no place for a call.
#[derive(Debug)]
pub(crate) struct NoPlace;

impl Seat {
    fn turn(&self, doing: Doing) {
        let mut state = self.0.state.lock();
        (state.doing, state.since) = (doing, Instant::now());
        if doing != Doing::Answer {
            state.call = None;
        }
        drop(state);
        self.0.seats.changed.notify_one();
    }

    /// Bytes have come. Only the first of a request count: one that comes byte by byte gets no more time than others.
    pub(super) fn heard(&self) {
        if self.0.state.lock().doing == Doing::Idle {
            self.turn(Doing::Head);
        }
    }

    /// The head of a request has come, and its body is awaited.
    pub(crate) fn head_read(&self) {
        self.turn(Doing::Body);
    }

    /// The request is worked on.
    pub(crate) fn working(&self) {
        self.turn(Doing::Work);
    }

    /// A call has come whole: it is worked on if there is a place for it.
    pub(crate) fn call_read(&self) -> Result<(), NoPlace> {
        let place = self.0.seats.calls.clone().try_acquire_owned().map_err(|_| NoPlace)?;
        self.turn(Doing::Work);
        self.0.state.lock().call = Some(place);
        Ok(())
    }

    /// The answer is made.
    pub(crate) fn answered(&self) {
        self.turn(Doing::Answer);
    }

    /// Bytes of the answer were taken.
    pub(super) fn read_on(&self) {
        let mut state = self.0.state.lock();
        if state.doing == Doing::Answer {
            state.since = Instant::now();
        }
    }

    /// All that was written is with the kernel.
    pub(super) fn flushed(&self) {
        if self.0.state.lock().doing == Doing::Answer {
            self.turn(Doing::Idle);
        }
    }

    /// When the connection has taken too long for what it does.
    pub(super) fn deadline(&self) -> Instant {
        let state = self.0.state.lock();
        state.since + if state.doing == Doing::Head { HEAD_MAX } else { IDLE_MAX }
    }

    /// Cancelled when the connection is to go.
    pub(super) fn dismissal(&self) -> &CancellationToken {
        &self.0.dismissed
    }

    /// Whether it is to go, and does nothing that it should be let finish.
    pub(super) fn has_to_go(&self) -> bool {
        self.0.dismissed.is_cancelled() && self.0.state.lock().rank().is_some()
    }

    /// The connection has ended.
    pub(super) fn leave(&self) {
        self.turn(Doing::Idle);
        self.0.seats.taken.lock().seats.remove(&self.0.number);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use tokio::time::advance;

    use super::*;

    async fn has_to_wait(newcomer: Pin<&mut impl Future<Output = Seat>>) -> bool {
        tokio::select! {
            biased;
            _ = newcomer => false,
            () = std::future::ready(()) => true,
        }
    }

    /// Goal: with all seats taken a newcomer gets that of whoever has asked for nothing for longest, and calls are never cut.
    #[tokio::test(start_paused = true)]
    async fn who_asks_for_nothing_goes_first() {
        let seats = Seats::new(2, 2);
        let mut taken = Vec::new();
        for _ in 0..4 {
            taken.push(seats.take().await);
            advance(Duration::from_secs(1)).await;
        }
        taken[0].call_read().unwrap();
        taken[1].head_read();
        taken[2].answered();
        taken[2].flushed();
        // The first works, the second sends its body; the third is idle for less long than the fourth is silent.
        let mut here = vec![0, 1, 2, 3];
        for gone in [3, 2, 1] {
            let mut newcomer = Box::pin(seats.take());
            assert!(has_to_wait(newcomer.as_mut()).await);
            let going: Vec<_> = here.extract_if(.., |index| taken[*index].has_to_go()).collect();
            assert_eq!(going, [gone]);
            taken[gone].leave();
            newcomer.await.working();
        }
        let mut last = Box::pin(seats.take());
        assert!(has_to_wait(last.as_mut()).await, "all work");
        assert!(!taken[0].has_to_go());
        taken[0].answered();
        assert!(has_to_wait(last.as_mut()).await, "its answer is not read yet");
        assert!(!taken[0].has_to_go());
        taken[0].flushed();
        assert!(has_to_wait(last.as_mut()).await);
        assert!(taken[0].has_to_go());
        taken[0].leave();
        last.await;
    }

    /// Goal: calls have fewer places than connections, and give them back when their answer has been read.
    #[tokio::test]
    async fn calls_are_counted_apart() {
        let seats = Seats::new(1, 1);
        let (first, second) = (seats.take().await, seats.take().await);
        first.call_read().unwrap();
        assert!(second.call_read().is_err());
        first.answered();
        assert!(second.call_read().is_err());
        first.flushed();
        second.call_read().unwrap();
        assert!(first.call_read().is_err());
        second.leave();
        first.call_read().unwrap();
    }
}
