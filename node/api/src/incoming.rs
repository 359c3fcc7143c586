//! [`Incoming`]: bodies of requests, bounded individually, per address and in total, from their first byte until they
//! are answered.

use std::pin::Pin;

use axum::{
    body::{Body, Bytes, HttpBody},
    http::StatusCode,
};
use slipstream_fair::Origin;

use slipstream_fair::{Quota, QuotaShare};

/// Maximum bytes of long bodies that are being read or processed. 16 bodies of the default maximum length fit, each in
/// a buffer of 8 MiB.
const INCOMING_BYTES_MAX: usize = 128 << 20;
/// Bodies up to this length need no budget, so long ones do not shut out ordinary calls.
const SHORT_BYTES_MAX: usize = 64 << 10;
/// The bytes that may arrive in addition to a socket's incomplete message: empty frames, and bytes of the next message
/// that are read ahead.
const MESSAGE_BYTES_BESIDE: usize = 256 << 10;
/// The bytes of a client's control frame besides its payload of at most 125 bytes: head and mask (RFC 6455, 5.2).
const CONTROL_HEAD_BYTES: usize = 6;
/// Maximum bytes of the buffers that sockets have read long messages into and keep until they close.
const KEPT_BYTES_MAX: usize = 128 << 20;
/// The part of both budgets that is reserved for the operator's own hosts, as a divisor.
const RESERVED_SHARE: usize = 8;

/// The memory budget for long bodies.
pub(super) struct Incoming {
    body_bytes_max: usize,
    room: Quota,
    kept: Quota,
}

/// A body that is read completely, and its share of the budget.
pub(super) struct Read {
    bytes: Vec<u8>,
    _share: QuotaShare,
}

impl Read {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Why a body was not read.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum BodyError {
    #[error("the request is longer than {max} bytes (`api.max_body_bytes`); ask for less at once")]
    TooLong { max: usize },
    #[error("too many long requests are being read")]
    NoRoom,
    #[error("the request ended before its body did")]
    Broken,
}

impl BodyError {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            BodyError::TooLong { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            BodyError::NoRoom => StatusCode::SERVICE_UNAVAILABLE,
            BodyError::Broken => StatusCode::BAD_REQUEST,
        }
    }
}

impl Incoming {
    /// Creates the budget, for bodies of at most `body_bytes_max` bytes.
    pub(super) fn new(body_bytes_max: usize) -> Incoming {
        let room = |bytes_max| Quota::new(bytes_max, bytes_max / RESERVED_SHARE);
        Incoming { body_bytes_max, room: room(INCOMING_BYTES_MAX), kept: room(KEPT_BYTES_MAX) }
    }

    /// Bytes of the longest allowed body.
    pub(super) fn body_bytes_max(&self) -> usize {
        self.body_bytes_max
    }

    /// Accounts for the incoming messages of a socket.
    pub(super) fn messages(&self, origin: Origin) -> Messages {
        Messages {
            bytes: 0,
            bytes_max: 2 * self.body_bytes_max + MESSAGE_BYTES_BESIDE,
            share: self.room.share(origin),
            kept: self.kept.share(origin),
        }
    }

    /// Reads a body to its end. A declared length counts only if it is too long: memory is reserved only for bytes that
    /// have arrived.
    ///
    /// # Errors
    /// If the body is too long, exceeds the free budget, or stays unfinished.
    pub(super) async fn read(&self, origin: Origin, mut body: Body) -> Result<Read, BodyError> {
        let too_long = BodyError::TooLong { max: self.body_bytes_max };
        if body.size_hint().lower() > self.body_bytes_max as u64 {
            return Err(too_long);
        }
        let (mut share, mut bytes) = (self.room.share(origin), Vec::new());
        while let Some(data) = next(&mut body).await? {
            let len = bytes.len() + data.len();
            if len > self.body_bytes_max {
                return Err(too_long);
            }
            // A growing vector takes up to twice its bytes.
            if len > SHORT_BYTES_MAX && !share.grow_to(len.next_power_of_two()) {
                return Err(BodyError::NoRoom);
            }
            bytes.extend_from_slice(&data);
        }
        Ok(Read { bytes, _share: share })
    }
}

/// The bytes of a socket's incomplete message, and their share of the budget.
pub(super) struct Messages {
    bytes: usize,
    bytes_max: usize,
    share: QuotaShare,
    /// The bytes of the longest message so far: its read buffer is not released.
    kept: QuotaShare,
}

impl Messages {
    /// Counts bytes that have arrived.
    ///
    /// # Errors
    /// If the message is too long, or if the budget has no room for it.
    pub(super) fn heard(&mut self, bytes: usize) -> Result<(), BodyError> {
        self.bytes += bytes;
        if self.bytes > self.bytes_max {
            return Err(BodyError::TooLong { max: self.bytes_max });
        }
        // A growing buffer takes up to twice its bytes.
        let taken = self.bytes.next_power_of_two();
        if self.bytes > SHORT_BYTES_MAX && !(self.share.grow_to(taken) && self.kept.grow_to(taken)) {
            return Err(BodyError::NoRoom);
        }
        Ok(())
    }

    /// Deducts a ping or a pong, which belongs to no message.
    pub(super) fn beside(&mut self, payload_bytes: usize) {
        self.bytes = self.bytes.saturating_sub(CONTROL_HEAD_BYTES + payload_bytes);
    }

    /// Ends a message: returns its share, and starts the next message.
    pub(super) fn whole(&mut self) -> QuotaShare {
        self.bytes = 0;
        self.share.split()
    }
}

/// The next part of a body; trailers are ignored.
async fn next(body: &mut Body) -> Result<Option<Bytes>, BodyError> {
    loop {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await;
        match frame.transpose().map_err(|_| BodyError::Broken)?.map(|frame| frame.into_data()) {
            None => return Ok(None),
            Some(Ok(data)) => return Ok(Some(data)),
            Some(Err(_trailers)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn host(number: u8) -> Origin {
        Origin::V4(Ipv4Addr::new(192, 0, 2, number))
    }

    #[tokio::test]
    async fn bodies_are_bounded_by_address_and_together() {
        let incoming = Incoming::new(16 << 20);
        let read = async |origin, len: usize| incoming.read(origin, Body::from(vec![b'x'; len])).await;
        assert_eq!(read(host(1), (16 << 20) + 1).await.err(), Some(BodyError::TooLong { max: 16 << 20 }));
        let mut held = Vec::new();
        while let Ok(body) = read(host(1), 16 << 20).await {
            assert_eq!(body.bytes().len(), 16 << 20);
            held.push(body);
        }
        assert_eq!(held.len(), 2, "a third of seven eighths of 128 MiB");
        assert_eq!(read(host(1), 16 << 20).await.err(), Some(BodyError::NoRoom));
        assert!(read(host(1), SHORT_BYTES_MAX).await.is_ok(), "a short one needs no room");
        assert!(read(host(2), 16 << 20).await.is_ok());
        drop(held);
        assert!(read(host(1), 16 << 20).await.is_ok());
        assert_eq!(incoming.room.free(), INCOMING_BYTES_MAX);
    }

    /// Goal: messages of sockets share the budget of bodies, from their first long byte until they are answered, and
    /// each of them has a limit.
    #[test]
    fn messages_take_their_share_as_they_come() {
        let incoming = Incoming::new(1 << 20);
        let mut messages = incoming.messages(host(1));
        messages.heard(SHORT_BYTES_MAX).unwrap();
        assert_eq!(incoming.room.free(), INCOMING_BYTES_MAX);
        messages.heard(1).unwrap();
        assert_eq!(incoming.room.free(), INCOMING_BYTES_MAX - 2 * SHORT_BYTES_MAX);
        messages.beside(0);
        assert_eq!(incoming.room.free(), INCOMING_BYTES_MAX - 2 * SHORT_BYTES_MAX, "a pong ends no message");
        let whole = messages.whole();
        messages.heard(SHORT_BYTES_MAX).unwrap();
        drop(whole);
        assert_eq!(incoming.room.free(), INCOMING_BYTES_MAX);
        let mut pongs = incoming.messages(host(1));
        for _ in 0..1 << 20 {
            pongs.heard(CONTROL_HEAD_BYTES + 4).unwrap();
            pongs.beside(4);
        }
        assert_eq!(incoming.room.free(), INCOMING_BYTES_MAX, "nor is it a part of one");
        assert_eq!(
            incoming.kept.free(),
            KEPT_BYTES_MAX - 2 * SHORT_BYTES_MAX,
            "as long as the socket is open"
        );
        let endless = (0..).take_while(|_| messages.heard(1 << 10).is_ok()).count();
        assert_eq!(endless, ((2 << 20) + MESSAGE_BYTES_BESIDE - SHORT_BYTES_MAX) >> 10);
        drop(messages);
        assert_eq!(incoming.kept.free(), KEPT_BYTES_MAX);
        let mut crowd: Vec<_> = (0..200).map(|_| incoming.messages(host(2))).collect();
        let refused = crowd.iter_mut().filter_map(|one| one.heard(1 << 20).err()).collect::<Vec<_>>();
        assert!(
            refused.len() > 100 && refused.iter().all(|one| *one == BodyError::NoRoom),
            "{}",
            refused.len()
        );
    }
}
