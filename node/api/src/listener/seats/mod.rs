//! [`Seats`]: the connections, their activities, and which one is dismissed when a newcomer finds all seats taken.

mod calls;
mod taken;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use slipstream_fair::{Origin, Probation};
use slipstream_fair::{Quota, QuotaShare};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

pub(crate) use self::calls::Weight;
use self::{
    calls::{CallPlace, CallPlaces, place_in, room},
    taken::TakenSeats,
};
use crate::incoming::{BodyError, Messages};

/// Time limit for the head of a request, from its first byte or, for the first head, from the start of the connection.
pub(super) const HEAD_MAX: Duration = Duration::from_secs(5);
/// Maximum bytes of a head. By default the HTTP side accepts 400 KiB from each connection.
pub(super) const HEAD_BYTES_MAX: usize = 64 << 10;
/// How long a connection may be idle, and how long a request may take from its head to the answer's first byte. This is
/// above the API's own deadline for an answer.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(60);
/// How long a body may take in addition to its time at the least rate, 32 kbit/s. A slower sender soon loses its seat.
pub(super) const BODY_GRACE: Duration = Duration::from_secs(5);
pub(super) const BODY_BYTES_PER_SECOND_MIN: usize = 4 << 10;
/// The same limits for a client that reads an answer, at 1 Mbit/s: long answers take memory that others need.
pub(crate) const ANSWER_GRACE: Duration = Duration::from_secs(30);
pub(super) const ANSWER_BYTES_PER_SECOND_MIN: usize = 128 << 10;

/// The calls that sockets may have in addition to those over HTTP, as a divisor of the latter: one call for each
/// socket, see `api::ws`. A socket sends several messages at once, which wait in line. In a budget shared with HTTP,
/// they would take the places of callers that have one call.
const SOCKET_CALLS_SHARE: usize = 2;

/// The rank of connections whose call waits.
const WAITS: u8 = 4;

/// The limits on connections and calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum number of calls at once.
    pub(crate) calls: usize,
    /// Connections besides those with calls.
    pub(crate) spare: usize,
    /// The connections that are reserved for the operator's own hosts.
    pub(crate) reserved: usize,
    /// Maximum number of connections of one address, unless it is the operator's.
    pub(crate) per_address: usize,
}

/// The present activity of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Doing {
    /// The head of its request is incomplete, or has yet to start.
    Head,
    /// It has its answer and may send another request.
    Idle,
    /// The head is read, the body is not.
    Body,
    /// Its call is read, and waits for others.
    Wait,
    /// Its request is being processed.
    Work,
    /// The answer is built, but not yet all in the kernel's buffer.
    Answer,
    /// It is a WebSocket, which occupies a place among the sockets: see `api::ws`.
    Socket,
    /// It follows a stream of events, an answer that does not end.
    Follow,
}

/// A connection's seat. Cheap to clone: its stream and its requests share it.
#[derive(Clone)]
pub(crate) struct Seat(Arc<Shared>);

struct Shared {
    seats: Arc<Seats>,
    number: u64,
    origin: Origin,
    state: Mutex<State>,
    dismissed: CancellationToken,
}

struct State {
    doing: Doing,
    since: Instant,
    /// The bytes of the head or the body read so far; for an answer, its full length.
    bytes: usize,
    /// The deadline for reading an answer.
    answer_end: Instant,
    /// The places of the call that is running or whose answer is being read. A reader that stops releases them.
    call: CallPlace,
    /// The accounting of its socket's incoming messages.
    messages: Option<Messages>,
    /// Why nothing more is read from the connection.
    overrun: Option<BodyError>,
}

impl State {
    /// The order in which connections may be dismissed for others; `None` if not at all. Idle connections go first,
    /// then slow senders and readers, then connections that were active just now. Connections whose call has yet to
    /// start go last.
    fn rank(&self) -> Option<(u8, Instant)> {
        match self.doing {
            Doing::Head | Doing::Idle => Some((0, self.since)),
            Doing::Body => Some((1, self.since)),
            Doing::Answer if self.call.is_empty() => Some((1, self.since)),
            Doing::Wait => Some((WAITS, self.since)),
            Doing::Work | Doing::Answer | Doing::Socket | Doing::Follow => None,
        }
    }
}

/// All seats of the API.
pub(super) struct Seats {
    limits: Limits,
    calls: CallPlaces,
    /// The places for the messages of sockets.
    socket_calls: Quota,
    taken: Mutex<TakenSeats>,
    /// Notified when a connection has left, or may have become dismissible.
    changed: Notify,
}

/// No seat is free now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Full {
    /// Whether only this address is refused, because it has reached its limit.
    pub(super) is_of_address: bool,
    /// Whether a connection is leaving, so that a seat becomes free soon: [`Seats::changed`] signals it.
    pub(super) is_one_leaving: bool,
}

impl Seats {
    pub(super) fn new(limits: Limits) -> Arc<Seats> {
        Arc::new(Seats {
            limits,
            calls: CallPlaces::new(limits.calls),
            socket_calls: room((limits.calls / SOCKET_CALLS_SHARE).max(1)),
            taken: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// Returns a seat for a new connection. If all are taken, one connection is dismissed. A stranger never displaces
    /// the operator's host. An address at its limit displaces only its own connections.
    pub(super) fn take(self: &Arc<Self>, origin: Origin) -> Result<Seat, Full> {
        let mut taken = self.taken.lock();
        let Limits { calls, spare, reserved, per_address } = self.limits;
        let room = calls + spare;
        let is_own = origin.is_stranger() && taken.count(origin) >= per_address;
        let full = if !origin.is_stranger() {
            (taken.seats.len() >= room).then_some((|_, _| true) as fn(Origin, Origin) -> bool)
        } else if is_own {
            Some((|one, newcomer| one == newcomer) as fn(Origin, Origin) -> bool)
        } else if taken.seats.len() >= room || taken.strangers >= room - reserved {
            Some((|one, _| one.is_stranger()) as fn(Origin, Origin) -> bool)
        } else {
            None
        };
        if let Some(may_go) = full {
            taken.dismiss_one(origin, |one| may_go(one, origin));
            return Err(Full { is_of_address: is_own, is_one_leaving: taken.leaving().next().is_some() });
        }
        let number = taken.next;
        taken.next += 1;
        let now = Instant::now();
        let state = State {
            doing: Doing::Head,
            since: now,
            bytes: 0,
            answer_end: now,
            call: CallPlace::default(),
            messages: None,
            overrun: None,
        };
        let shared = Shared {
            seats: self.clone(),
            number,
            origin,
            state: Mutex::new(state),
            dismissed: CancellationToken::new(),
        };
        let seat = Seat(Arc::new(shared));
        taken.insert(seat.clone());
        Ok(seat)
    }

    /// Returns when another attempt to get a seat may succeed.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// No place for a call is free.
#[derive(Debug)]
pub(crate) struct NoPlace;

impl Seat {
    /// The caller that the seat belongs to.
    pub(crate) fn origin(&self) -> Origin {
        self.0.origin
    }

    fn turn(&self, doing: Doing) {
        let mut state = self.0.state.lock();
        (state.doing, state.since, state.bytes) = (doing, Instant::now(), 0);
        let call =
            if doing == Doing::Answer { CallPlace::default() } else { std::mem::take(&mut state.call) };
        drop(state);
        drop(call);
        self.0.seats.changed.notify_one();
    }

    /// Counts bytes that have arrived. Only the first byte of a request starts its clock: a request that arrives byte
    /// by byte gets no extra time.
    pub(super) fn heard(&self, bytes: usize) {
        let begins = self.0.state.lock().doing == Doing::Idle;
        if begins {
            self.turn(Doing::Head);
        }
        let mut state = self.0.state.lock();
        if matches!(state.doing, Doing::Head | Doing::Body) {
            state.bytes += bytes;
        } else if state.doing == Doing::Socket {
            state.since = Instant::now();
            state.overrun = state.messages.as_mut().and_then(|messages| messages.heard(bytes).err());
        }
    }

    /// Marks the connection as a socket from now on.
    pub(crate) fn upgraded(&self, messages: Messages) {
        self.turn(Doing::Socket);
        self.0.state.lock().messages = Some(messages);
    }

    /// Ends a message of the socket. Returns the message's share of the memory, which is held while the message is
    /// processed.
    pub(crate) fn message_read(&self) -> Option<QuotaShare> {
        self.0.state.lock().messages.as_mut().map(Messages::whole)
    }

    /// Counts a ping or a pong with a payload of this length.
    pub(crate) fn control_read(&self, payload_bytes: usize) {
        if let Some(messages) = &mut self.0.state.lock().messages {
            messages.beside(payload_bytes);
        }
    }

    /// A place for a call of the socket, if one is free. Separate from the places of calls over HTTP.
    pub(crate) fn call_place(&self) -> Option<QuotaShare> {
        place_in(&self.0.seats.socket_calls, self.0.origin)
    }

    /// Why nothing more is read from the socket.
    pub(super) fn overrun(&self) -> Option<String> {
        self.0.state.lock().overrun.as_ref().map(ToString::to_string)
    }

    /// Whether the incoming head is longer than allowed.
    pub(super) fn head_is_too_long(&self) -> bool {
        let state = self.0.state.lock();
        state.doing == Doing::Head && state.bytes > HEAD_BYTES_MAX
    }

    /// Call when the head of a request is read; its body follows.
    pub(crate) fn head_read(&self) {
        self.turn(Doing::Body);
    }

    /// Call when the request is being processed.
    pub(crate) fn working(&self) {
        let call = std::mem::take(&mut self.0.state.lock().call);
        self.turn(Doing::Work);
        self.0.state.lock().call = call;
    }

    /// Returns when the connection must go before its call has started.
    pub(crate) async fn sent_away(&self) {
        self.0.dismissed.cancelled().await;
        if !self.has_to_go() {
            std::future::pending::<()>().await;
        }
    }

    /// Call when a call is read completely. The call waits for its turn, if it gets a place.
    pub(crate) fn call_read(&self) -> Result<(), NoPlace> {
        let place = self.0.seats.calls.place(self.0.origin).ok_or(NoPlace)?;
        self.turn(Doing::Wait);
        self.0.state.lock().call = CallPlace::one(place);
        Ok(())
    }

    /// Call when the call's content is known. A call that may take long also needs a place among the long calls, or one
    /// on probation. Without such a place it is refused, and holds no place while its caller reads the refusal.
    pub(crate) fn weighed(&self, weight: Weight) -> Result<Option<Probation>, NoPlace> {
        let Some(further) = self.0.seats.calls.places_for(self.0.origin, weight) else {
            let call = std::mem::take(&mut self.0.state.lock().call);
            drop(call);
            return Err(NoPlace);
        };
        let probation = further.probation();
        self.0.state.lock().call.extend(further);
        Ok(probation)
    }

    /// Call when the answer is built; it has `bytes` bytes.
    pub(crate) fn answered(&self, bytes: usize) {
        self.turn(Doing::Answer);
        let mut state = self.0.state.lock();
        state.answer_end = state.since + ANSWER_GRACE + at_answer_rate(bytes);
    }

    /// Call when bytes of the answer were read.
    pub(super) fn read_on(&self) {
        let mut state = self.0.state.lock();
        if matches!(state.doing, Doing::Answer | Doing::Follow) {
            state.since = Instant::now();
        }
    }

    /// Call when the client has stopped reading the answer: others may take the places of its call, and its seat.
    pub(super) fn left_unread(&self) {
        let mut state = self.0.state.lock();
        if state.doing == Doing::Answer && !state.call.is_empty() {
            let call = std::mem::take(&mut state.call);
            drop(state);
            drop(call);
            self.0.seats.changed.notify_one();
        }
    }

    /// Call when a stream of events starts. A client that reads nothing for the longest allowed silence is gone.
    pub(crate) fn follows(&self) {
        self.turn(Doing::Follow);
    }

    /// The time by which the client must have read its answer; `None` if it is reading none.
    pub(super) fn answer_end(&self) -> Option<Instant> {
        let state = self.0.state.lock();
        (state.doing == Doing::Answer).then_some(state.answer_end)
    }

    /// Call when all written bytes are in the kernel's buffer.
    pub(super) fn flushed(&self) {
        let is_answer = self.0.state.lock().doing == Doing::Answer;
        if is_answer {
            self.0.seats.taken.lock().note_caller(self.0.origin);
            self.turn(Doing::Idle);
        }
    }

    /// When the connection's present activity has taken too long.
    pub(super) fn deadline(&self) -> Instant {
        let state = self.0.state.lock();
        state.since
            + match state.doing {
                Doing::Head => HEAD_MAX,
                Doing::Body => BODY_GRACE + at_rate(state.bytes, BODY_BYTES_PER_SECOND_MIN),
                Doing::Idle | Doing::Wait | Doing::Work | Doing::Answer | Doing::Socket | Doing::Follow => {
                    IDLE_MAX
                }
            }
    }

    /// Cancelled when the connection is dismissed.
    pub(super) fn dismissal(&self) -> &CancellationToken {
        &self.0.dismissed
    }

    /// Whether the connection is dismissed and is doing nothing that it should finish.
    pub(super) fn has_to_go(&self) -> bool {
        self.0.dismissed.is_cancelled() && self.0.state.lock().rank().is_some()
    }

    /// Call when the connection has ended.
    pub(super) fn leave(&self) {
        self.0.seats.taken.lock().remove(self.0.number);
        self.turn(Doing::Idle);
    }
}

/// A reader's time for `bytes` bytes, in addition to the grace that all readers have.
pub(crate) fn at_answer_rate(bytes: usize) -> Duration {
    at_rate(bytes, ANSWER_BYTES_PER_SECOND_MIN)
}

/// The time that `bytes` bytes take at a rate.
fn at_rate(bytes: usize, bytes_per_second: usize) -> Duration {
    Duration::from_millis((bytes as u64).saturating_mul(1_000) / bytes_per_second as u64)
}
