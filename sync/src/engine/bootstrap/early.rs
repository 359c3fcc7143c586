//! [`EarlyAnswers`]: answers for a restore that came before the data that verifies them.
//!
//! The node asks for offer, headers and the first chunks at once, because asking for one after the other would cost a
//! round trip each.

use slipstream_storage::Span;
use slipstream_types::Path;
use tokio::time::Instant;

use crate::{engine::streams::Flight, protocol::Request};

/// Answers that came before the restore began.
#[derive(Debug, Default)]
pub(super) struct EarlyAnswers {
    /// The ranges that may be asked for before the restore begins. Empty for a resumed restore, whose ranges are still
    /// unknown.
    spans: Vec<Span>,
    headers: Option<(Flight, Vec<u8>)>,
    chunks: Vec<EarlyChunk>,
}

/// A chunk before its check.
#[derive(Debug)]
pub(in crate::engine) struct EarlyChunk {
    pub(in crate::engine) first: Path,
    pub(in crate::engine) flight: Flight,
    pub(in crate::engine) at: Instant,
    pub(in crate::engine) request: Request,
    pub(in crate::engine) answer: Vec<u8>,
}

impl EarlyChunk {
    /// The requested paths.
    pub(super) fn span(&self) -> Span {
        let last = match &self.request {
            Request::Chunk { last, .. } => *last,
            Request::RangeDelta(request) => request.last,
            _ => self.first,
        };
        Span { first: self.first, last }
    }
}

impl EarlyAnswers {
    pub(super) fn new(spans: Vec<Span>) -> EarlyAnswers {
        EarlyAnswers { spans, headers: None, chunks: Vec::new() }
    }

    pub(super) fn spans(&self) -> &[Span] {
        &self.spans
    }

    pub(super) fn has_headers(&self) -> bool {
        self.headers.is_some()
    }

    pub(super) fn keep_headers(&mut self, flight: Flight, answer: Vec<u8>) {
        self.headers = Some((flight, answer));
    }

    pub(super) fn take_headers(&mut self) -> Option<(Flight, Vec<u8>)> {
        self.headers.take()
    }

    pub(super) fn has_chunk(&self, first: &Path) -> bool {
        self.chunks.iter().any(|chunk| chunk.first == *first)
    }

    /// Bytes of `wanted` chunks: those that arrived count with their length, the others with the longest allowed.
    pub(super) fn bytes_of(&self, wanted: usize, bytes_max: u32) -> u64 {
        let came: u64 = self.chunks.iter().map(|chunk| chunk.answer.len() as u64).sum();
        let others = wanted.saturating_sub(self.chunks.len()) as u64;
        came + others * u64::from(bytes_max)
    }

    /// Keeps a chunk. The number of requests bounds the bytes of chunks, so no chunk has to be dropped and requested
    /// again.
    pub(super) fn keep_chunk(&mut self, chunk: EarlyChunk) {
        if !self.has_chunk(&chunk.first) {
            self.chunks.push(chunk);
        }
    }

    pub(super) fn into_chunks(self) -> Vec<EarlyChunk> {
        self.chunks
    }
}
