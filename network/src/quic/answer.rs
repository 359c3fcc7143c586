//! The answering side of a request. Room for the answer is reserved before it is made, and freed when the requester has
//! it. A requester that does not read fills only its own share of the memory.

use std::{sync::Arc, time::Duration};

use quinn::{RecvStream, SendStream, VarInt};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, timeout, timeout_at},
};
use tracing::debug;

use super::{
    frames::{FrameError, Sender, code, read_request_head, response_frame},
    serve::Session,
};
use crate::{MESSAGE_BYTES_MAX, Payload, PeerRejection, Protocol, Refusal, budget::Reservation};

/// How long a request waits for room for its answer. An honest requester with many pieces in flight frees room as it
/// receives answers.
const ROOM_WAIT: Duration = Duration::from_secs(4);
/// Answers up to this length need no room: one for each stream of a connection takes only some MiB. So votes and
/// summaries do not wait behind ranges.
const SHORT_ANSWER_BYTES: usize = 64 << 10;
/// Retry delay for a peer that filled its share.
const BUSY_PAUSE: Duration = Duration::from_millis(500);

/// A request that was read completely.
struct ReceivedRequest {
    protocol: Protocol,
    payload: Vec<u8>,
    answer_bytes_max: usize,
    /// The reserved bytes of the request itself.
    held: Reservation,
}

/// Why a request was not read.
enum RequestFailure {
    Refused(Refusal),
    GivenUp { code: VarInt, why: String },
}

impl From<FrameError> for RequestFailure {
    fn from(error: FrameError) -> RequestFailure {
        match error {
            FrameError::TooLong { bytes, bytes_max } => {
                RequestFailure::Refused(Refusal::too_long(bytes, bytes_max))
            }
            other => RequestFailure::GivenUp { code: code::MALFORMED, why: other.to_string() },
        }
    }
}

/// An answer, or the reason that there is none, and its reserved room.
struct PreparedAnswer {
    outcome: Result<Payload, Refusal>,
    room: Option<Reservation>,
}

impl From<Refusal> for PreparedAnswer {
    fn from(refusal: Refusal) -> PreparedAnswer {
        PreparedAnswer { outcome: Err(refusal), room: None }
    }
}

impl Session {
    pub(super) async fn answer(
        self: Arc<Self>,
        send: SendStream,
        mut receive: RecvStream,
        _slot: OwnedSemaphorePermit,
    ) {
        let mut sender = Sender::new(send, self.link.sent.clone());
        let (made, answer_bytes_max) = match self.take(&mut receive).await {
            Ok(taken) => {
                let answer_bytes_max = taken.answer_bytes_max;
                (self.make(taken).await, answer_bytes_max)
            }
            Err(RequestFailure::Refused(refusal)) => (refusal.into(), MESSAGE_BYTES_MAX),
            Err(RequestFailure::GivenUp { code, why }) => {
                debug!(peer = %self.link.peer, why, "gave up reading a request from the peer");
                let _ = receive.stop(code);
                return sender.abandon(code);
            }
        };
        // The request may be only partly read, and the requester must stop sending it. An error means that the stream
        // has already ended.
        let _ = receive.stop(code::CANCELLED);
        if self.send(&mut sender, made, answer_bytes_max).await {
            return sender.complete();
        }
        debug!(peer = %self.link.peer, "the peer did not take the answer in time");
        self.count_rejection(PeerRejection::AnswerStalled, 1);
        self.shares.answers.bar(Instant::now());
        sender.abandon(code::TOO_SLOW);
    }

    /// Reads a request, within the time for a message and while the connection receives enough bytes.
    async fn take(&self, receive: &mut RecvStream) -> Result<ReceivedRequest, RequestFailure> {
        let read = tokio::select! {
            biased;
            read = timeout(self.transfer_timeout, self.read_request(receive)) => read.ok(),
            () = self.link.received.stalls() => None,
        };
        read.unwrap_or_else(|| {
            self.stood_still(PeerRejection::RequestStalled);
            Err(RequestFailure::GivenUp { code: code::TOO_SLOW, why: "too slow".into() })
        })
    }

    /// Reads a request, or refuses it at once if the budget has no room. Unread bytes would hold the flow-control
    /// window that other requests need.
    async fn read_request(&self, receive: &mut RecvStream) -> Result<ReceivedRequest, RequestFailure> {
        let head = read_request_head(receive).await?;
        let bytes_max = self.handler.request_bytes_max(self.link.peer, head.protocol);
        if head.length > bytes_max {
            return Err(RequestFailure::Refused(Refusal::too_long(head.length, bytes_max)));
        }
        let read = self.read_counted(receive, head.length).await;
        let (payload, held) = read.map_err(|error| match error {
            FrameError::NoRoom => RequestFailure::Refused(self.no_room_for_request()),
            other => other.into(),
        })?;
        Ok(ReceivedRequest {
            protocol: head.protocol,
            payload,
            answer_bytes_max: head.answer_bytes_max,
            held,
        })
    }

    fn no_room_for_request(&self) -> Refusal {
        self.count_rejection(PeerRejection::RequestNoRoom, 1);
        let pause = self.shares.requests.barred(Instant::now()).max(BUSY_PAUSE);
        Refusal::busy(pause, "no room for more requests from this peer, or for more requests at all")
    }

    /// Reserves the room that the answer will need, and lets the handler make the answer.
    async fn make(&self, taken: ReceivedRequest) -> PreparedAnswer {
        let ReceivedRequest { protocol, payload, answer_bytes_max, held } = taken;
        let peer = self.link.peer;
        let expected = self.handler.answer_bytes_expected(peer, protocol, &payload).min(answer_bytes_max);
        let room = match self.room(expected).await {
            Ok(room) => room,
            Err(refusal) => return refusal.into(),
        };
        if protocol != Protocol::PEERS {
            self.link.used_now();
        }
        let outcome = self.handler.request(peer, protocol, payload).await;
        drop(held);
        self.fit(outcome, room)
    }

    /// Reserves room for an answer of `bytes` bytes; returns `None` if it is short and needs none.
    async fn room(&self, bytes: usize) -> Result<Option<Reservation>, Refusal> {
        if bytes <= SHORT_ANSWER_BYTES {
            return Ok(None);
        }
        let barred = self.shares.answers.barred(Instant::now());
        if !barred.is_zero() {
            return Err(self.no_room(barred));
        }
        let room = timeout(ROOM_WAIT, self.shares.answers.hold(bytes)).await;
        room.map(Some).map_err(|_| self.no_room(BUSY_PAUSE))
    }

    /// Adjusts the room to the answer's true length. If that exceeds the estimate and room is missing, the answer is
    /// dropped.
    fn fit(&self, outcome: Result<Payload, Refusal>, mut room: Option<Reservation>) -> PreparedAnswer {
        let bytes = outcome.as_ref().map_or(0, Payload::len);
        let share = &self.shares.answers;
        let fits = match &mut room {
            Some(room) => share.resize(room, bytes),
            None if bytes <= SHORT_ANSWER_BYTES => true,
            None => {
                room = share.try_hold(bytes);
                room.is_some()
            }
        };
        if fits { PreparedAnswer { outcome, room } } else { self.no_room(BUSY_PAUSE).into() }
    }

    fn no_room(&self, pause: Duration) -> Refusal {
        self.count_rejection(PeerRejection::AnswerNoRoom, 1);
        Refusal::busy(pause, "earlier answers still wait for their receivers")
    }

    /// Sends a response, and holds its room until the requester has it. Returns false if the requester takes nothing,
    /// or is too slow.
    async fn send(&self, sender: &mut Sender, made: PreparedAnswer, answer_bytes_max: usize) -> bool {
        let deadline = Instant::now() + self.transfer_timeout;
        let PreparedAnswer { outcome, room } = made;
        let too_long = outcome.as_ref().ok().map(Payload::len).filter(|bytes| *bytes > answer_bytes_max);
        let sending = async {
            match too_long.filter(|bytes| *bytes <= MESSAGE_BYTES_MAX) {
                Some(bytes) => sender.response_too_long(bytes).await,
                None => {
                    let (status, payload) = response_frame(outcome);
                    sender.response(status, payload).await
                }
            }
        };
        let sent = tokio::select! {
            biased;
            sent = timeout_at(deadline, sending) => sent.ok(),
            () = self.link.sent.stalls() => None,
        };
        match sent {
            None => return false,
            Some(Err(error)) => {
                debug!(peer = %self.link.peer, %error, "the peer stopped the answer");
                return true;
            }
            Some(Ok(())) if room.is_none() => return true,
            Some(Ok(())) => {}
        }
        self.settles(sender, deadline).await
    }
}
