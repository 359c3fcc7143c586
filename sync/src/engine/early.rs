//! [`Early`]: answers for a restore that came before what they are checked by.
//!
//! Offer, headers and the first chunks are asked for at once, as each of them in its turn would cost a round trip.

use slipstream_storage::Span;
use slipstream_types::Path;
use tokio::time::Instant;

use super::streams::Flight;
use crate::protocol::Request;

/// Bytes of chunks that are kept: what is beyond is asked for again.
const CHUNKS_BYTES_MAX: usize = 32 << 20;

/// What came early.
#[derive(Debug, Default)]
pub(super) struct Early {
    headers: Option<(Flight, Vec<u8>)>,
    chunks: Vec<EarlyChunk>,
}

/// A chunk that nobody looked at yet.
#[derive(Debug)]
pub(super) struct EarlyChunk {
    pub(super) first: Path,
    pub(super) flight: Flight,
    pub(super) at: Instant,
    pub(super) request: Request,
    pub(super) answer: Vec<u8>,
}

impl EarlyChunk {
    /// The paths that were asked for.
    pub(super) fn span(&self) -> Span {
        let last = match &self.request {
            Request::Chunk { last, .. } => *last,
            Request::RangeDelta(request) => request.last,
            _ => self.first,
        };
        Span { first: self.first, last }
    }
}

impl Early {
    pub(super) fn has_headers(&self) -> bool {
        self.headers.is_some()
    }

    pub(super) fn keep_headers(&mut self, flight: Flight, answer: Vec<u8>) {
        self.headers = Some((flight, answer));
    }

    pub(super) fn take_headers(&mut self) -> Option<(Flight, Vec<u8>)> {
        self.headers.take()
    }

    /// False if there is no room for it.
    pub(super) fn keep_chunk(&mut self, chunk: EarlyChunk) -> bool {
        let bytes: usize = self.chunks.iter().map(|chunk| chunk.answer.len()).sum();
        let fits = bytes + chunk.answer.len() <= CHUNKS_BYTES_MAX;
        if fits {
            self.chunks.push(chunk);
        }
        fits
    }

    pub(super) fn take_chunks(&mut self) -> Vec<EarlyChunk> {
        std::mem::take(&mut self.chunks)
    }
}
