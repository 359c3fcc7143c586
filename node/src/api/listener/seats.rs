//! [`Seats`]: the connections, their activities, and which one goes when a newcomer finds all seats taken.

mod calls;
mod taken;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

pub(crate) use self::calls::Weight;
use self::{
    calls::{Calls, Held, place_in, room},
    taken::Taken,
};
use super::super::{
    incoming::{Messages, Unread},
    room::{Room, Share},
};
use crate::{origin::Origin, probation::Probation};

/// How long the head of a request may take, from its first byte or, for the first one, from the connection's first moment.
pub(super) const HEAD_MAX: Duration = Duration::from_secs(5);
/// Bytes of a head. By itself the HTTP side takes 400 KiB from each connection.
pub(super) const HEAD_BYTES_MAX: usize = 64 << 10;
/// How long a connection may be without a request, and how long a request may take from its head to the answer's first byte. It is
/// above the API's own deadline for an answer.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(60);
/// How long a body may take beside its time at the least rate, 32 kbit/s. A slower sender soon loses its seat.
pub(super) const BODY_GRACE: Duration = Duration::from_secs(5);
pub(super) const BODY_BYTES_PER_SECOND_MIN: usize = 4 << 10;
/// The same of reading an answer, 1 Mbit/s: long ones take room that others need.
pub(in crate::api) const ANSWER_GRACE: Duration = Duration::from_secs(30);
pub(super) const ANSWER_BYTES_PER_SECOND_MIN: usize = 128 << 10;

/// The part of the calls that sockets may have, beside those over HTTP: one for each socket, see `api::ws`. A socket sends several
/// messages at a time, and they wait in line. In one room with HTTP's, they would take the places of callers who have one call.
const SOCKET_CALLS_SHARE: usize = 2;

/// The class of those whose call waits.
const WAITS: u8 = 4;

/// How many may be connected, and call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Calls at a time.
    pub(crate) calls: usize,
    /// Connections beside those that call.
    pub(crate) spare: usize,
    /// Of all connections those that strangers leave to the operator's own hosts.
    pub(crate) reserved: usize,
    /// Connections of one address, unless it is the operator's.
    pub(crate) per_address: usize,
}

/// The present activity of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Doing {
    /// The head of its request is still incomplete, or has yet to come.
    Head,
    /// It has its answer and may ask again.
    Idle,
    /// The head is here, the body is not.
    Body,
    /// Its call is here, and waits for others.
    Wait,
    /// Its request is worked on.
    Work,
    /// The answer is made, and not yet all with the kernel.
    Answer,
    /// It is a WebSocket, which has a place of its own among these: see `api::ws`.
    Socket,
    /// It follows a stream of events, which is no answer that ends.
    Follow,
}

/// A connection's place among the others. Cheap to clone: its stream and its requests share it.
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
    /// The bytes of the head or the body that have come; of an answer, all.
    bytes: usize,
    /// When an answer is to be read.
    answer_end: Instant,
    /// The places of the call that is worked on, or whose answer is being read. A reader that stops gives them back.
    call: Held,
    /// The messages that come over its socket.
    messages: Option<Messages>,
    /// Why nothing more is taken from it.
    overrun: Option<Unread>,
}

impl State {
    /// Whether the connection can be given up for another, and how late. Idle ones go first, then those that are slow to ask or to
    /// read, then those that were active just now. Connections whose call has yet to begin go last.
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
    calls: Calls,
    /// Of the messages of sockets.
    socket_calls: Room,
    taken: Mutex<Taken>,
    /// Told when somebody has left, or may have become one that can go.
    changed: Notify,
}

/// There is no seat now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Full {
    /// Only for this address, which has all that it may have.
    pub(super) is_of_address: bool,
    /// Somebody is on the way out, so that there is a seat in a moment: [`Seats::changed`] tells.
    pub(super) is_one_leaving: bool,
}

impl Seats {
    pub(super) fn new(limits: Limits) -> Arc<Seats> {
        Arc::new(Seats {
            limits,
            calls: Calls::new(limits.calls),
            socket_calls: room((limits.calls / SOCKET_CALLS_SHARE).max(1)),
            taken: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// A seat for a new connection. If all are taken, one connection is told to leave. A stranger never displaces the operator's
    /// host. An address that has its full share displaces only its own connections.
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
            call: Held::default(),
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

    /// Returns when it may be worth to ask for a seat again.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// There is no place for a call.
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
        let call = if doing == Doing::Answer { Held::default() } else { std::mem::take(&mut state.call) };
        drop(state);
        drop(call);
        self.0.seats.changed.notify_one();
    }

    /// So many bytes have come. Only the first of a request count as a beginning: one that comes byte by byte gets no more time than
    /// others.
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

    /// The connection is a socket from now on.
    pub(in crate::api) fn upgraded(&self, messages: Messages) {
        self.turn(Doing::Socket);
        self.0.state.lock().messages = Some(messages);
    }

    /// A message of the socket is whole: its share of the room, for as long as it is worked on.
    pub(crate) fn message_read(&self) -> Option<Share> {
        self.0.state.lock().messages.as_mut().map(Messages::whole)
    }

    /// A ping or a pong of so many bytes was read.
    pub(crate) fn control_read(&self, payload_bytes: usize) {
        if let Some(messages) = &mut self.0.state.lock().messages {
            messages.beside(payload_bytes);
        }
    }

    /// A place for a call of the socket, if there is one. It is none of the places of calls over HTTP.
    pub(crate) fn call_place(&self) -> Option<Share> {
        place_in(&self.0.seats.socket_calls, self.0.origin)
    }

    /// Why nothing more is taken from the socket.
    pub(super) fn overrun(&self) -> Option<String> {
        self.0.state.lock().overrun.as_ref().map(ToString::to_string)
    }

    /// Whether the head that is coming is longer than any may be.
    pub(super) fn head_is_too_long(&self) -> bool {
        let state = self.0.state.lock();
        state.doing == Doing::Head && state.bytes > HEAD_BYTES_MAX
    }

    /// The head of a request has come, and its body is awaited.
    pub(crate) fn head_read(&self) {
        self.turn(Doing::Body);
    }

    /// The request is worked on.
    pub(crate) fn working(&self) {
        let call = std::mem::take(&mut self.0.state.lock().call);
        self.turn(Doing::Work);
        self.0.state.lock().call = call;
    }

    /// Returns when the connection has to go before its call has begun.
    pub(crate) async fn sent_away(&self) {
        self.0.dismissed.cancelled().await;
        if !self.has_to_go() {
            std::future::pending::<()>().await;
        }
    }

    /// A call has come whole: it waits for its turn if there is a place for it.
    pub(crate) fn call_read(&self) -> Result<(), NoPlace> {
        let place = self.0.seats.calls.place(self.0.origin).ok_or(NoPlace)?;
        self.turn(Doing::Wait);
        self.0.state.lock().call = Held::one(place);
        Ok(())
    }

    /// What the call asks for is known: one that may take long needs a place among such calls too, or one on probation. One that finds
    /// none is refused, and has no place while its caller reads that.
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

    /// The answer is made, and has so many bytes.
    pub(crate) fn answered(&self, bytes: usize) {
        self.turn(Doing::Answer);
        let mut state = self.0.state.lock();
        state.answer_end = state.since + ANSWER_GRACE + at_answer_rate(bytes);
    }

    /// Bytes of the answer were taken.
    pub(super) fn read_on(&self) {
        let mut state = self.0.state.lock();
        if matches!(state.doing, Doing::Answer | Doing::Follow) {
            state.since = Instant::now();
        }
    }

    /// Nothing of the answer is taken any more: others may have the places of its call, and its seat.
    pub(super) fn left_unread(&self) {
        let mut state = self.0.state.lock();
        if state.doing == Doing::Answer && !state.call.is_empty() {
            let call = std::mem::take(&mut state.call);
            drop(state);
            drop(call);
            self.0.seats.changed.notify_one();
        }
    }

    /// A stream of events begins. A client that takes nothing of it for as long as a connection may be silent is gone.
    pub(crate) fn follows(&self) {
        self.turn(Doing::Follow);
    }

    /// The time by which the client must have read its answer; `None` while it reads none.
    pub(super) fn answer_end(&self) -> Option<Instant> {
        let state = self.0.state.lock();
        (state.doing == Doing::Answer).then_some(state.answer_end)
    }

    /// All that was written is with the kernel.
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
        self.0.seats.taken.lock().remove(self.0.number);
        self.turn(Doing::Idle);
    }
}

/// A reader's time for so many bytes, beside the time that all have.
pub(in crate::api) fn at_answer_rate(bytes: usize) -> Duration {
    at_rate(bytes, ANSWER_BYTES_PER_SECOND_MIN)
}

/// How long so many bytes take.
fn at_rate(bytes: usize, bytes_per_second: usize) -> Duration {
    Duration::from_millis((bytes as u64).saturating_mul(1_000) / bytes_per_second as u64)
}
