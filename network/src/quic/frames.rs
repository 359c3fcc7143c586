//! The wire format on a stream: a head of fixed size, then a payload whose length was checked before it is read.

use bytes::Bytes;
use quinn::{ReadError, ReadExactError, RecvStream, SendStream, VarInt, WriteError};

use crate::{MESSAGE_BYTES_MAX, Protocol};

/// Stream error codes, application level.
pub(crate) mod code {
    use quinn::VarInt;

    /// The asker does not want the answer any more, or a sender gave up.
    pub(crate) const CANCELLED: VarInt = VarInt::from_u32(1);
    /// The other side took longer than the transfer timeout.
    pub(crate) const TOO_SLOW: VarInt = VarInt::from_u32(2);
    /// The stream breaks the wire format, or announces more than is taken.
    pub(crate) const MALFORMED: VarInt = VarInt::from_u32(3);
}

/// Bytes read at once; a payload's memory grows with what has arrived, not with what was announced.
const READ_STEP: usize = 64 * 1024;

/// Why a stream's content could not be taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("{bytes} bytes exceed the limit of {bytes_max}")]
    TooLong { bytes: usize, bytes_max: usize },
    #[error("the stream ended inside the message")]
    Truncated,
    #[error("bytes follow the message")]
    Trailing,
    #[error("unknown status {0}")]
    UnknownStatus(u8),
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl From<ReadExactError> for FrameError {
    fn from(error: ReadExactError) -> Self {
        match error {
            ReadExactError::FinishedEarly(_) => FrameError::Truncated,
            ReadExactError::ReadError(error) => FrameError::Read(error),
        }
    }
}

/// What a response starts with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    Answer,
    Refusal,
    Busy,
}

impl Status {
    fn byte(self) -> u8 {
        match self {
            Status::Answer => 0,
            Status::Refusal => 1,
            Status::Busy => 2,
        }
    }

    fn from_byte(byte: u8) -> Result<Status, FrameError> {
        match byte {
            0 => Ok(Status::Answer),
            1 => Ok(Status::Refusal),
            2 => Ok(Status::Busy),
            other => Err(FrameError::UnknownStatus(other)),
        }
    }
}

/// Reads a request's head: its protocol and the length of its payload.
pub(crate) async fn read_request_head(stream: &mut RecvStream) -> Result<(Protocol, usize), FrameError> {
    let (tag, length) = read_tagged_head(stream).await?;
    Ok((Protocol(tag), checked(length, MESSAGE_BYTES_MAX)?))
}

/// Reads a response's head; the limit depends on the status.
pub(crate) async fn read_response_head(
    stream: &mut RecvStream,
    bytes_max: impl FnOnce(Status) -> usize,
) -> Result<(Status, usize), FrameError> {
    let (tag, length) = read_tagged_head(stream).await?;
    let status = Status::from_byte(tag)?;
    Ok((status, checked(length, bytes_max(status))?))
}

/// Reads a broadcast's head: the length of its payload.
pub(crate) async fn read_broadcast_head(stream: &mut RecvStream) -> Result<usize, FrameError> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    checked(u32::from_le_bytes(head), MESSAGE_BYTES_MAX)
}

async fn read_tagged_head(stream: &mut RecvStream) -> Result<(u8, u32), FrameError> {
    let mut head = [0; 5];
    stream.read_exact(&mut head).await?;
    let [tag, length @ ..] = head;
    Ok((tag, u32::from_le_bytes(length)))
}

fn checked(length: u32, bytes_max: usize) -> Result<usize, FrameError> {
    let bytes = usize::try_from(length).unwrap_or(usize::MAX);
    if bytes > bytes_max { Err(FrameError::TooLong { bytes, bytes_max }) } else { Ok(bytes) }
}

/// Reads a payload of a length that was checked, and the end of the stream behind it.
pub(crate) async fn read_payload(stream: &mut RecvStream, length: usize) -> Result<Vec<u8>, FrameError> {
    let mut payload = Vec::with_capacity(length.min(READ_STEP));
    while payload.len() < length {
        let wanted = (length - payload.len()).min(READ_STEP);
        match stream.read_chunk(wanted, true).await? {
            Some(chunk) => payload.extend_from_slice(&chunk.bytes),
            None => return Err(FrameError::Truncated),
        }
    }
    match stream.read_chunk(1, true).await? {
        None => Ok(payload),
        Some(_) => Err(FrameError::Trailing),
    }
}

/// What goes first on a connection. Among equals the stream that began first does: an answer that is whole is of use, halves of
/// several are not.
mod priority {
    pub(super) const BROADCAST: i32 = 2;
    pub(super) const SHORT: i32 = 1;
}

/// Messages up to this length do not wait behind long ones: requests, summaries, votes.
const SHORT_BYTES: usize = 16 << 10;

/// A sending half that resets the stream unless it was completed: quinn by itself would finish a dropped stream, and a
/// half-sent message would look complete to whoever does not count.
pub(crate) struct Sender {
    stream: SendStream,
    on_drop: Option<VarInt>,
}

impl Sender {
    pub(crate) fn new(stream: SendStream) -> Sender {
        Sender { stream, on_drop: Some(code::CANCELLED) }
    }

    pub(crate) async fn request(&mut self, protocol: Protocol, payload: Bytes) -> Result<(), WriteError> {
        self.tagged(protocol.0, payload).await
    }

    pub(crate) async fn response(&mut self, status: Status, payload: Bytes) -> Result<(), WriteError> {
        self.tagged(status.byte(), payload).await
    }

    pub(crate) async fn broadcast(&mut self, payload: Bytes) -> Result<(), WriteError> {
        self.overtake(priority::BROADCAST);
        self.framed(&length_of(&payload), payload).await
    }

    async fn tagged(&mut self, tag: u8, payload: Bytes) -> Result<(), WriteError> {
        if payload.len() <= SHORT_BYTES {
            self.overtake(priority::SHORT);
        }
        let [a, b, c, d] = length_of(&payload);
        self.framed(&[tag, a, b, c, d], payload).await
    }

    /// Goes before what is less urgent on the connection.
    fn overtake(&self, priority: i32) {
        // An error means that the stream has ended, which the next write says too.
        let _ = self.stream.set_priority(priority);
    }

    async fn framed(&mut self, head: &[u8], payload: Bytes) -> Result<(), WriteError> {
        self.stream.write_all(head).await?;
        if !payload.is_empty() {
            self.stream.write_chunk(payload).await?;
        }
        self.stream.finish().map_err(WriteError::from)
    }

    /// Leaves the rest to quinn, which delivers what is written even after this is dropped.
    pub(crate) fn complete(mut self) {
        self.on_drop = None;
    }

    /// Gives the message up for a reason that the other side is told.
    pub(crate) fn abandon(mut self, code: VarInt) {
        self.on_drop = Some(code);
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if let Some(code) = self.on_drop {
            // An error means that the stream was reset before or is acknowledged to its end: nothing is left to do.
            let _ = self.stream.reset(code);
        }
    }
}

fn length_of(payload: &Bytes) -> [u8; 4] {
    let length = u32::try_from(payload.len()).expect("callers check MESSAGE_BYTES_MAX, which fits 32 bits");
    length.to_le_bytes()
}
