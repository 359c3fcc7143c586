//! The wire format of a stream: a head of fixed size, then a payload whose length is checked before it is read.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use quinn::{ReadError, ReadExactError, RecvStream, SendStream, VarInt, WriteError};

use crate::{MESSAGE_BYTES_MAX, Payload, Protocol, REFUSAL_BYTES_MAX, Refusal, RefusalKind, pace::Pace};

/// Stream error codes, application level.
pub(crate) mod code {
    use quinn::VarInt;

    /// The requester does not want the answer any more, or a sender gave up.
    pub(crate) const CANCELLED: VarInt = VarInt::from_u32(1);
    /// The other side took longer than the transfer timeout.
    pub(crate) const TOO_SLOW: VarInt = VarInt::from_u32(2);
    /// The stream breaks the wire format, or announces more than is accepted.
    pub(crate) const MALFORMED: VarInt = VarInt::from_u32(3);
}

/// Maximum bytes per read.
const READ_STEP: usize = 64 * 1024;

/// Why a stream's content was not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("{bytes} bytes exceed the limit of {bytes_max}")]
    TooLong { bytes: usize, bytes_max: usize },
    #[error("no room for the message")]
    NoRoom,
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

/// The first byte of a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    Answer,
    Busy,
    NotKept,
    Malformed,
    Failed,
}

/// Bytes before the text of a "busy" refusal: the milliseconds after which to retry.
const RETRY_AFTER_BYTES: usize = 4;

impl Status {
    fn byte(self) -> u8 {
        match self {
            Status::Answer => 0,
            Status::Busy => 1,
            Status::NotKept => 2,
            Status::Malformed => 3,
            Status::Failed => 4,
        }
    }

    fn from_byte(byte: u8) -> Result<Status, FrameError> {
        match byte {
            0 => Ok(Status::Answer),
            1 => Ok(Status::Busy),
            2 => Ok(Status::NotKept),
            3 => Ok(Status::Malformed),
            4 => Ok(Status::Failed),
            other => Err(FrameError::UnknownStatus(other)),
        }
    }

    /// Maximum bytes of the payload after this status, given the limit of an answer.
    fn bytes_max(self, answer_bytes_max: usize) -> usize {
        match self {
            Status::Answer => answer_bytes_max.min(MESSAGE_BYTES_MAX),
            Status::Busy => RETRY_AFTER_BYTES + REFUSAL_BYTES_MAX,
            Status::NotKept | Status::Malformed | Status::Failed => REFUSAL_BYTES_MAX,
        }
    }
}

/// Encodes an outcome as a response.
pub(crate) fn response_frame(outcome: Result<Payload, Refusal>) -> (Status, Payload) {
    let refusal = match outcome {
        Ok(payload) if payload.len() <= MESSAGE_BYTES_MAX => return (Status::Answer, payload),
        Ok(payload) => {
            let bytes = payload.len();
            Refusal::failed(format!("the answer of {bytes} bytes exceeds the limit of {MESSAGE_BYTES_MAX}"))
        }
        Err(refusal) => refusal,
    };
    let text = refusal.text().as_bytes();
    match refusal.kind() {
        RefusalKind::Busy { retry_after_ms } => {
            let text = [&retry_after_ms.to_le_bytes(), text].concat();
            (Status::Busy, text.into())
        }
        RefusalKind::NotKept => (Status::NotKept, text.to_vec().into()),
        RefusalKind::Malformed => (Status::Malformed, text.to_vec().into()),
        RefusalKind::Failed => (Status::Failed, text.to_vec().into()),
    }
}

/// Decodes a response whose head and payload were read.
fn outcome(status: Status, payload: Vec<u8>) -> Result<Result<Vec<u8>, Refusal>, FrameError> {
    let text = String::from_utf8_lossy(&payload);
    let refusal = match status {
        Status::Answer => return Ok(Ok(payload)),
        Status::Busy => {
            let (wait, text) =
                payload.split_first_chunk::<RETRY_AFTER_BYTES>().ok_or(FrameError::Truncated)?;
            let wait = Duration::from_millis(u32::from_le_bytes(*wait).into());
            Refusal::busy(wait, String::from_utf8_lossy(text))
        }
        Status::NotKept => Refusal::not_kept(text),
        Status::Malformed => Refusal::malformed(text),
        Status::Failed => Refusal::failed(text),
    };
    Ok(Err(refusal))
}

/// The head of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RequestHead {
    pub(crate) protocol: Protocol,
    /// Maximum bytes of the answer that the requester accepts.
    pub(crate) answer_bytes_max: usize,
    /// Bytes of the payload.
    pub(crate) length: usize,
}

/// Reads a request's head.
pub(crate) async fn read_request_head(stream: &mut RecvStream) -> Result<RequestHead, FrameError> {
    let mut most = [0; 4];
    let mut tag = [0];
    stream.read_exact(&mut tag).await?;
    stream.read_exact(&mut most).await?;
    let length = read_length(stream).await?;
    let answer_bytes_max = checked(u32::from_le_bytes(most), usize::MAX)?.min(MESSAGE_BYTES_MAX);
    Ok(RequestHead {
        protocol: Protocol(tag[0]),
        answer_bytes_max,
        length: checked(length, MESSAGE_BYTES_MAX)?,
    })
}

/// Reads a response. An answer longer than `answer_bytes_max` is refused by its head alone.
pub(crate) async fn read_response(
    stream: &mut RecvStream,
    answer_bytes_max: usize,
    pace: &Pace,
) -> Result<Result<Vec<u8>, Refusal>, FrameError> {
    let mut tag = [0];
    stream.read_exact(&mut tag).await?;
    let length = read_length(stream).await?;
    let status = Status::from_byte(tag[0])?;
    let length = checked(length, status.bytes_max(answer_bytes_max))?;
    // The requester has room for the answer that it asked for.
    outcome(status, read_payload(stream, length, pace, |_| true).await?)
}

/// Reads a broadcast's head: the length of its payload.
pub(crate) async fn read_broadcast_head(stream: &mut RecvStream) -> Result<usize, FrameError> {
    checked(read_length(stream).await?, MESSAGE_BYTES_MAX)
}

async fn read_length(stream: &mut RecvStream) -> Result<u32, FrameError> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await?;
    Ok(u32::from_le_bytes(length))
}

fn checked(length: u32, bytes_max: usize) -> Result<usize, FrameError> {
    let bytes = usize::try_from(length).unwrap_or(usize::MAX);
    if bytes > bytes_max { Err(FrameError::TooLong { bytes, bytes_max }) } else { Ok(bytes) }
}

/// Reads a payload of a checked length, and the end of the stream after it. Its memory grows with the bytes that
/// arrive, not with the announced length. Above [`SHORT_BYTES`], `make_room` approves each size before it is allocated.
pub(crate) async fn read_payload(
    stream: &mut RecvStream,
    length: usize,
    pace: &Pace,
    mut make_room: impl FnMut(usize) -> bool,
) -> Result<Vec<u8>, FrameError> {
    let mut payload = Vec::with_capacity(length.min(SHORT_BYTES));
    while payload.len() < length {
        let wanted = (length - payload.len()).min(READ_STEP);
        match stream.read_chunk(wanted, true).await? {
            Some(chunk) => {
                pace.moved(chunk.bytes.len());
                let needed = payload.len() + chunk.bytes.len();
                if needed > payload.capacity() {
                    let bytes = needed.max(2 * payload.capacity()).max(READ_STEP).min(length);
                    if !make_room(bytes) {
                        return Err(FrameError::NoRoom);
                    }
                    payload.reserve_exact(bytes - payload.len());
                }
                payload.extend_from_slice(&chunk.bytes);
            }
            None => return Err(FrameError::Truncated),
        }
    }
    match stream.read_chunk(1, true).await? {
        None => Ok(payload),
        Some(_) => Err(FrameError::Trailing),
    }
}

/// Orders the streams of a connection. Among equals, the stream that began first goes first: one whole answer is
/// useful, halves of several are not.
mod priority {
    pub(super) const BROADCAST: i32 = 2;
    pub(super) const SHORT: i32 = 1;
}

/// Messages up to this length do not wait behind long ones: requests, summaries, votes. They need no reserved room at
/// the receiver either: a connection has at most as many at once as it has streams.
pub(crate) const SHORT_BYTES: usize = 16 << 10;

/// A sending half that resets the stream unless it was completed. quinn itself would finish a dropped stream, and a
/// half-sent message would then look complete.
pub(crate) struct Sender {
    stream: SendStream,
    /// Counts the bytes that the connection sends.
    pace: Arc<Pace>,
    on_drop: Option<VarInt>,
}

impl Sender {
    pub(crate) fn new(stream: SendStream, pace: Arc<Pace>) -> Sender {
        Sender { stream, pace, on_drop: Some(code::CANCELLED) }
    }

    pub(crate) async fn request(
        &mut self,
        protocol: Protocol,
        answer_bytes_max: usize,
        payload: Payload,
    ) -> Result<(), WriteError> {
        let most = u32::try_from(answer_bytes_max).unwrap_or(u32::MAX).to_le_bytes();
        let head = [&[protocol.0], most.as_slice(), &length_of(payload.len())].concat();
        self.framed(head, payload).await
    }

    /// Announces the length of a too long answer; the requester refuses it and reads no further.
    pub(crate) async fn response_too_long(&mut self, bytes: usize) -> Result<(), WriteError> {
        let head = [&[Status::Answer.byte()], length_of(bytes).as_slice()].concat();
        self.framed(head, Payload::default()).await
    }

    pub(crate) async fn response(&mut self, status: Status, payload: Payload) -> Result<(), WriteError> {
        let head = [&[status.byte()], length_of(payload.len()).as_slice()].concat();
        self.framed(head, payload).await
    }

    pub(crate) async fn broadcast(&mut self, payload: Bytes) -> Result<(), WriteError> {
        self.overtake(priority::BROADCAST);
        self.write(length_of(payload.len()).to_vec(), payload.into()).await
    }

    async fn framed(&mut self, head: Vec<u8>, payload: Payload) -> Result<(), WriteError> {
        if payload.len() <= SHORT_BYTES {
            self.overtake(priority::SHORT);
        }
        self.write(head, payload).await
    }

    /// Prioritises this stream over less urgent ones of the connection.
    fn overtake(&self, priority: i32) {
        // An error means that the stream has ended, which the next write reports too.
        let _ = self.stream.set_priority(priority);
    }

    async fn write(&mut self, head: Vec<u8>, payload: Payload) -> Result<(), WriteError> {
        let mut pieces = vec![Bytes::from(head)];
        pieces.extend(payload.into_pieces());
        let mut left = pieces.as_mut_slice();
        while !left.is_empty() {
            let written = self.stream.write_chunks(left).await?;
            self.pace.moved(written.bytes);
            left = &mut left[written.chunks..];
        }
        self.stream.finish().map_err(WriteError::from)
    }

    /// Resolves when the peer has received everything written, does not want it, or is gone.
    pub(crate) async fn settled(&self) {
        let _ = self.stream.stopped().await;
    }

    /// Leaves the rest to quinn, which delivers the written bytes even after this is dropped.
    pub(crate) fn complete(mut self) {
        self.on_drop = None;
    }

    /// Aborts the message with a code that the other side receives.
    pub(crate) fn abandon(mut self, code: VarInt) {
        self.on_drop = Some(code);
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if let Some(code) = self.on_drop {
            // An error means that the stream was already reset or fully acknowledged: nothing is left to do.
            let _ = self.stream.reset(code);
        }
    }
}

fn length_of(bytes: usize) -> [u8; 4] {
    let length = u32::try_from(bytes).expect("callers check MESSAGE_BYTES_MAX, which fits 32 bits");
    length.to_le_bytes()
}
