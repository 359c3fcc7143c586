//! Chooses a restore's next requests, from the missing parts and the requests in flight.

use slipstream_storage::{RESTORE_RANGES_BITS, Span};
use slipstream_types::bounded::BoundedVec;

use super::{Bootstrap, DeltaBase, LedgerRequests, State, fetching::Fetching};
use crate::{
    engine::{
        jobs::{RestoreTask, Running},
        streams::{Key, Requirement, Streams},
    },
    protocol::{RangeDeltaRequest, Request},
    work::{CHUNK_BYTES, Job, RestoreJob},
};

/// Bound on the estimated bytes of chunks that are requested or with the worker. It hides round trips, and limits the
/// memory for chunks to some 60 MiB if each is as long as allowed.
const CHUNKS_BYTES: u64 = 16 << 20;
/// Maximum number of uncompressed bytes of a chunk of rows before the restore has begun. Until then, all ranges of a
/// new restore may be asked for at once. So a state of a few MB can arrive whole before any check, and a large
/// state merely begins with short chunks.
const EARLY_CHUNK_BYTES: u32 = (CHUNKS_BYTES >> RESTORE_RANGES_BITS) as u32;
/// Approximate encoded bytes of a header. A higher value would leave room for fewer chunks beside thousands of headers.
const HEADER_BYTES: u64 = 240;

impl Bootstrap {
    /// What a peer must have to supply the restore.
    pub(in crate::engine) fn needs(&self) -> Requirement {
        match self.beginning.range_delta {
            Some(DeltaBase { from, .. }) => Requirement::RangeDelta(from, self.number()),
            None => Requirement::Snapshot(self.number()),
        }
    }

    /// Asks for what is missing. Returns the job that finishes the restore once nothing is missing.
    pub(in crate::engine) fn advance(
        &mut self,
        streams: &mut Streams,
        running: &Running<RestoreTask>,
    ) -> Option<Job> {
        match &self.state {
            State::Asking(asking) => self.want_ledger(asking, streams, running),
            State::Fetching(fetching) if fetching.is_complete() => {
                if !running.is_working() {
                    self.state = State::Finishing(fetching.clone());
                    return Some(Job::Restore(RestoreJob::Finish));
                }
            }
            State::Fetching(fetching) => self.want_rows(fetching, streams, running),
            State::Beginning(_) | State::Finishing(_) => {}
        }
        None
    }

    fn want_ledger(&self, asking: &LedgerRequests, streams: &mut Streams, running: &Running<RestoreTask>) {
        let (number, needs) = (self.number(), self.needs());
        if asking.offered.is_none() {
            // If the waypoint is the snapshot's own batch, the snapshot's certificate proves it.
            let passing = self.beginning.passing.filter(|passing| *passing < number);
            streams.want(Key::Offer, Request::Offer { number, passing }, needs, 8_192);
        }
        let (first, last) = (self.first_header(), number);
        let bytes = (last.since(first) + 1) * HEADER_BYTES;
        if !asking.early.has_headers() {
            streams.want(Key::Headers, Request::Headers { first, last }, needs, bytes);
        }
        self.want_chunks(asking.early.spans(), streams, running);
    }

    fn want_rows(&self, fetching: &Fetching, streams: &mut Streams, running: &Running<RestoreTask>) {
        let (number, needs) = (self.number(), self.needs());
        let progress = &fetching.progress;
        // While it is unclear whether a peer's siblings are right, relying on them could lose good rows. So the chunks
        // that test them come first.
        if let Some(Span { first, last }) = progress.older.filter(|_| !progress.is_in_doubt)
            && !running.has(&Key::Siblings(first))
        {
            streams.want(Key::Siblings(first), Request::RangeProof { number, first, last }, needs, 4_096);
        }
        if !progress.codes.is_empty()
            && !running.has(&Key::Codes)
            && let Ok(hashes) = BoundedVec::new(progress.codes.clone())
        {
            let bytes = progress.codes.len() as u64 * 8_192;
            streams.want(Key::Codes, Request::Codes { number, hashes }, needs, bytes);
        }
        self.want_chunks(&progress.spans, streams, running);
    }

    /// Whether a chunk has come and waits, or is with the worker.
    pub(super) fn has_chunk(&self, span: &Span, running: &Running<RestoreTask>) -> bool {
        running.has_chunk(&span.first) || self.early().is_some_and(|early| early.has_chunk(&span.first))
    }

    fn want_chunks(&self, spans: &[Span], streams: &mut Streams, running: &Running<RestoreTask>) {
        // Before anything is checked, peers' claims about lengths count for nothing. Each chunk counts as its maximum,
        // so early chunks are bounded, and all of them are kept.
        let (early, bytes_max) = (self.early(), self.chunk_bytes_max());
        let wanted =
            early.map_or_else(|| streams.chunk_bytes(), |early| early.bytes_of(streams.chunks(), bytes_max));
        let mut open = wanted + running.chunk_bytes();
        for span in spans {
            if self.has_chunk(span, running) {
                continue;
            }
            let (key, bytes) = (Key::Chunk(span.first), self.chunk_bytes(*span));
            if streams.is_wanted(&key) {
                streams.estimate(&key, bytes);
                continue;
            }
            if open >= CHUNKS_BYTES {
                return;
            }
            streams.want(key, self.chunk_request(*span), self.needs(), bytes);
            open += early.map_or(bytes, |_| bytes_max.into());
        }
    }

    /// Maximum number of uncompressed bytes of the next chunk.
    pub(super) fn chunk_bytes_max(&self) -> u32 {
        let is_early = self.early().is_some() && self.beginning.range_delta.is_none();
        if is_early { EARLY_CHUNK_BYTES } else { CHUNK_BYTES }
    }

    fn chunk_request(&self, span: Span) -> Request {
        let (number, Span { first, last }, bytes_max) = (self.number(), span, self.chunk_bytes_max());
        match self.beginning.range_delta {
            Some(DeltaBase { from, .. }) => {
                Request::RangeDelta(RangeDeltaRequest { from, to: number, first, last, bytes_max })
            }
            None => Request::Chunk { number, first, last, bytes_max },
        }
    }

    /// Whether every chunk is requested or here. The engine may then request the batches after the snapshot.
    pub(in crate::engine) fn is_all_asked(&self, streams: &Streams, running: &Running<RestoreTask>) -> bool {
        let is_asked =
            |span: &Span| self.has_chunk(span, running) || streams.is_wanted(&Key::Chunk(span.first));
        match (self.early(), self.fetching()) {
            (Some(early), _) => !early.spans().is_empty() && early.spans().iter().all(is_asked),
            (None, fetching) => fetching.is_none_or(|fetching| fetching.progress.spans.iter().all(is_asked)),
        }
    }
}
