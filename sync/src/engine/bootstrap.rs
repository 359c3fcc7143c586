//! [`Bootstrap`]: a snapshot is restored from all peers that serve it.
//!
//! ```text
//!  Offer ─▶ Headers ─▶ Begin ─▶ rows (siblings of older rows, chunks; then code) ─▶ Finish
//! ```
//! They are checked in this order; a new restore asks for the first three kinds at once, as it knows its ranges beforehand.
//! What is restored survives a crash and a change of the target; what is missing is what the worker says after every job.

use std::{collections::BTreeMap, time::Duration};

use slipstream_storage::{RESTORE_RANGES_BITS, RestoreTarget, Span};
use slipstream_types::{
    BatchHeader, BatchNumber, Certificate, Digest, Path, Waypoint, accumulator::AccumulatorRangeProof,
    bounded::BoundedVec, codec,
};
use tokio::time::Instant;

use super::{
    early::{Early, EarlyChunk},
    effect::{Ancestry, Effect, Job, RestoreJob},
    stages::IDLE_AFTER,
    streams::{Key, Needs, Streams},
};
use crate::{
    error::Fault,
    plan::Plan,
    protocol::{ANSWER_BYTES_MAX, Headers, Offer, RangeDeltaRequest, Request},
    status::SnapshotStatus,
    trust::Trust,
    verify,
    work::{CHUNK_BYTES, Progress, RANGE_DELTA_RANGES_BITS},
};

/// Headers fetched with a snapshot: BLOCKHASH reaches back this far.
const TAIL_HEADERS: u64 = 256;
/// Bytes of chunks that are asked for or with the worker, as estimated: hides the round trips, and bounds the memory for chunks
/// to some 60 MiB should each of them be as long as it may.
const CHUNKS_BYTES: u64 = 16 << 20;

/// A restore under way.
#[derive(Debug)]
pub(super) struct Bootstrap {
    number: BatchNumber,
    /// By what changed after a batch, up to the head; else by all rows.
    net: Option<Net>,
    /// The operator's waypoint, if it lies on the way there.
    passing: Option<BatchNumber>,
    is_offer_refused: bool,
    /// Whether nothing of it is here, so that its ranges are known before it begins.
    is_new: bool,
    stage: Stage,
    /// Ranges whose answer is kept or with the worker, and the bytes of it.
    adding: BTreeMap<Path, u64>,
    /// Whether there is no range left that nobody was asked for.
    is_all_asked: bool,
    is_comparing: bool,
    is_adding_codes: bool,
    progress: Option<Progress>,
    began: Instant,
    /// When the last answer for it passed its checks.
    moved_at: Instant,
    /// Share that was done when it began: a resumed one did not get it at this rate.
    share_before: Option<f64>,
    /// Bytes of everything, as far as is known, and bytes that came.
    bytes_total: f64,
    bytes: u64,
    /// Bytes of the chunks that came, and the share of all paths that was asked for with them; checked or not.
    arrived: (u64, f64),
    pub(super) early: Early,
    /// How what lies behind it is fetched, once that is asked for.
    pub(super) behind: Option<Plan>,
}

/// A restore by the net change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Net {
    /// The batch after which changes are asked for; at or below the head.
    pub(super) base: BatchNumber,
    /// The node's head.
    pub(super) head: BatchNumber,
}

#[derive(Debug)]
enum Stage {
    Offer,
    Headers(Box<Offered>),
    /// A job of the worker is all that is waited for.
    Busy,
    Rows,
}

/// What is known of the snapshot's ledger, checked.
#[derive(Debug)]
struct Offered {
    certificate: Certificate,
    genesis_proof: AccumulatorRangeProof,
    passes: Option<Waypoint>,
}

/// What a restore begins with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Beginning {
    /// The snapshot.
    pub(super) number: BatchNumber,
    /// If it takes what changed since the head, and not all rows.
    pub(super) net: Option<Net>,
    /// The operator's waypoint, if it lies on the way there.
    pub(super) passing: Option<BatchNumber>,
    /// Whether no rows of any snapshot are here.
    pub(super) is_new: bool,
    /// Bytes that it is thought to take.
    pub(super) bytes: f64,
}

impl Bootstrap {
    pub(super) fn new(beginning: Beginning, now: Instant) -> Self {
        let Beginning { number, net, passing, is_new, bytes } = beginning;
        Bootstrap {
            number,
            net,
            passing,
            is_offer_refused: false,
            is_new: is_new || net.is_some(),
            stage: Stage::Offer,
            adding: BTreeMap::new(),
            is_all_asked: false,
            is_comparing: false,
            is_adding_codes: false,
            progress: None,
            began: now,
            moved_at: now,
            share_before: None,
            bytes_total: bytes,
            bytes: 0,
            arrived: (0, 0.0),
            early: Early::default(),
            behind: None,
        }
    }

    pub(super) fn number(&self) -> BatchNumber {
        self.number
    }

    /// If it takes what changed since the head, and not all rows.
    pub(super) fn net(&self) -> Option<Net> {
        self.net
    }

    /// The first header that is fetched with it.
    fn first_header(&self) -> BatchNumber {
        match self.net {
            Some(Net { head, .. }) => head.next(),
            None => BatchNumber(self.number.0.saturating_sub(TAIL_HEADERS - 1)),
        }
    }

    /// Whether a key is its own, so that it goes when the restore does.
    pub(super) fn owns(key: &Key) -> bool {
        matches!(key, Key::Offer | Key::Headers | Key::Siblings(_) | Key::Chunk(_) | Key::Codes)
    }

    /// Whether an answer of this key is with the worker.
    pub(super) fn is_checking(&self, key: &Key) -> bool {
        match key {
            Key::Chunk(first) => self.adding.contains_key(first),
            Key::Siblings(_) => self.is_comparing,
            Key::Codes => self.is_adding_codes,
            _ => false,
        }
    }

    /// Wants what is missing; the job to finish when nothing is.
    pub(super) fn advance(&mut self, streams: &mut Streams) -> Option<Job> {
        let number = self.number;
        let needs = match self.net {
            Some(Net { base, .. }) => Needs::Net(base, number),
            None => Needs::Snapshot(number),
        };
        match &self.stage {
            Stage::Offer => {
                // The certificate of the snapshot itself says what its batch's waypoint is.
                let passing = self.passing.filter(|passing| *passing < number);
                streams.want(Key::Offer, Request::Offer { number, passing }, needs, 8_192);
                self.want_first(streams, needs);
            }
            Stage::Headers(_) => self.want_first(streams, needs),
            Stage::Busy => {}
            Stage::Rows => return self.want_rows(streams, needs),
        }
        None
    }

    /// Asked for beside the offer.
    fn want_first(&mut self, streams: &mut Streams, needs: Needs) {
        let (first, last) = (self.first_header(), self.number);
        let bytes = (last.0 - first.0 + 1) * 400;
        if !self.early.has_headers() {
            streams.want(Key::Headers, Request::Headers { first, last }, needs, bytes);
        }
        if self.is_new {
            let bits = if self.net.is_some() { RANGE_DELTA_RANGES_BITS } else { RESTORE_RANGES_BITS };
            self.want_chunks(&Span::divided(bits), streams, needs);
        }
    }

    /// Bytes that a chunk of a range is thought to have: paths are hashes, so a range has its share of everything.
    fn chunk_bytes(&self, span: Span) -> u64 {
        let done = self.progress.as_ref().map_or(0.0, |it| it.share - self.share_before.unwrap_or_default());
        let total = match self.arrived {
            _ if done > 0.02 => self.bytes as f64 / done,
            (bytes, share) if share > 0.0 => bytes as f64 / share,
            _ => self.bytes_total,
        };
        ((total * span.share()) as u64).clamp(1_024, CHUNK_BYTES.into())
    }

    fn want_rows(&mut self, streams: &mut Streams, needs: Needs) -> Option<Job> {
        let number = self.number;
        let progress = self.progress.as_ref()?;
        if progress.is_complete() {
            if !self.adding.is_empty() || self.is_comparing || self.is_adding_codes {
                return None;
            }
            self.stage = Stage::Busy;
            return Some(Job::Restore(RestoreJob::Finish));
        }
        // What one peer says of its siblings costs rows while nobody knows it: the chunks that judge it come first.
        let may_compare = !self.is_comparing && !progress.is_in_doubt;
        if let Some(Span { first, last }) = progress.older.filter(|_| may_compare) {
            streams.want(Key::Siblings(first), Request::RangeProof { number, first, last }, needs, 4_096);
        }
        if !progress.codes.is_empty()
            && !self.is_adding_codes
            && let Ok(hashes) = BoundedVec::new(progress.codes.clone())
        {
            let bytes = progress.codes.len() as u64 * 8_192;
            streams.want(Key::Codes, Request::Codes { number, hashes }, needs, bytes);
        }
        let spans = progress.spans.clone();
        self.want_chunks(&spans, streams, needs);
        None
    }

    fn want_chunks(&mut self, spans: &[Span], streams: &mut Streams, needs: Needs) {
        let number = self.number;
        let mut open = streams.chunk_bytes() + self.adding.values().sum::<u64>();
        self.is_all_asked = true;
        for span in spans {
            let Span { first, last } = *span;
            let key = Key::Chunk(first);
            if self.adding.contains_key(&first) {
                continue;
            }
            let bytes = self.chunk_bytes(*span);
            if streams.is_wanted(&key) {
                streams.estimate(&key, bytes);
                continue;
            }
            if open >= CHUNKS_BYTES {
                self.is_all_asked = false;
                return;
            }
            let bytes_max = CHUNK_BYTES;
            let request = match self.net {
                Some(Net { base: from, .. }) => {
                    Request::RangeDelta(RangeDeltaRequest { from, to: number, first, last, bytes_max })
                }
                None => Request::Chunk { number, first, last, bytes_max },
            };
            streams.want(key, request, needs, bytes);
            open += bytes;
        }
    }

    /// Whether everything is here and only has to become the state.
    pub(super) fn is_finishing(&self) -> bool {
        matches!(self.stage, Stage::Busy) && self.progress.is_some()
    }

    /// Whether all rows are asked for, so that peers may send what lies behind the snapshot.
    pub(super) fn is_all_asked(&self) -> bool {
        self.is_all_asked
    }

    /// Takes in an offer.
    pub(super) fn offered(&mut self, answer: &[u8], genesis: Digest, trust: &Trust) -> Result<(), Fault> {
        let offer: Offer = codec::decode("snapshot offer", answer, ANSWER_BYTES_MAX)?;
        let passes = verify::offer(&offer, self.number, self.passing, genesis, trust)?;
        let Offer { certificate, genesis_proof, .. } = offer;
        self.stage = Stage::Headers(Box::new(Offered { certificate, genesis_proof, passes }));
        Ok(())
    }

    /// A peer that has the snapshot does not give its offer.
    pub(super) fn offer_refused(&mut self) {
        self.is_offer_refused = true;
    }

    /// Whether peers that have the snapshot cannot show that its ledger passes through the waypoint: they may have begun behind it.
    pub(super) fn is_unproved(&self) -> bool {
        self.passing.is_some() && self.is_offer_refused && self.awaits_offer()
    }

    /// Whether headers cannot be checked yet.
    pub(super) fn awaits_offer(&self) -> bool {
        matches!(self.stage, Stage::Offer)
    }

    /// Takes in headers; the job that begins the restore. The accumulator proves every field of the header; the certificate alone
    /// repeats only a few.
    pub(super) fn headers(&mut self, answer: &[u8]) -> Result<Option<Job>, Fault> {
        let Stage::Headers(offered) = &self.stage else { return Ok(None) };
        let headers: Headers = codec::decode("headers", answer, ANSWER_BYTES_MAX)?;
        let Offered { certificate, genesis_proof, passes } = &**offered;
        verify::headers(&headers, self.first_header(), certificate)?;
        let header: Option<BatchHeader> = headers.headers.last().cloned();
        let Some(header) = header else { return Ok(None) };
        let target = Box::new(RestoreTarget { header, certificate: certificate.clone() });
        let ancestry = Box::new(Ancestry { headers, genesis_proof: genesis_proof.clone(), passes: *passes });
        let net = self.net.is_some();
        self.stage = Stage::Busy;
        Ok(Some(Job::Restore(RestoreJob::Begin { target, ancestry, net })))
    }

    /// The rows that can be added now; they are kept while the restore has not begun.
    pub(super) fn chunk(&mut self, chunk: EarlyChunk) -> Option<EarlyChunk> {
        let (first, bytes) = (chunk.first, chunk.answer.len() as u64);
        if self.adding.contains_key(&first) {
            return None;
        }
        self.arrived.0 += bytes;
        self.arrived.1 += chunk.span().share();
        if self.progress.is_some() {
            self.adding.insert(first, bytes);
            return Some(chunk);
        }
        if self.early.keep_chunk(chunk) {
            self.adding.insert(first, bytes);
        }
        None
    }

    /// The job for siblings that came.
    pub(super) fn siblings(
        &mut self,
        request: &Request,
        answer: Vec<u8>,
        from: slipstream_network::PeerId,
    ) -> Option<Job> {
        let Request::RangeProof { first, last, .. } = *request else { return None };
        if self.is_comparing {
            return None;
        }
        self.is_comparing = true;
        Some(Job::Restore(RestoreJob::Siblings { answer, span: Span { first, last }, from }))
    }

    /// A chunk is with the store, or was wrong.
    pub(super) fn added(&mut self, first: &Path, bytes: usize) {
        self.adding.remove(first);
        self.bytes += bytes as u64;
    }

    /// The job for code that came.
    pub(super) fn codes(&mut self, request: &Request, answer: Vec<u8>) -> Option<Job> {
        let Request::Codes { hashes, .. } = request else { return None };
        if std::mem::replace(&mut self.is_adding_codes, true) {
            return None;
        }
        Some(Job::Restore(RestoreJob::Codes { answer, hashes: hashes.to_vec() }))
    }

    /// Code is with the store, or was wrong.
    pub(super) fn added_codes(&mut self) {
        self.is_adding_codes = false;
    }

    /// Siblings are compared, or were wrong.
    pub(super) fn compared(&mut self) {
        self.is_comparing = false;
    }

    /// The worker says what is missing now. Returns the rows that waited for it to begin.
    pub(super) fn progressed(
        &mut self,
        progress: Option<Progress>,
        streams: &mut Streams,
        effects: &mut Vec<Effect>,
    ) -> Vec<EarlyChunk> {
        let seen = self.progress.as_ref().map_or(0, |progress| progress.sequence);
        let Some(progress) = progress.filter(|progress| progress.sequence > seen) else {
            return Vec::new();
        };
        self.share_before.get_or_insert(progress.share);
        self.stage = Stage::Rows;
        // A range that was cut, or filled by a longer chunk, is not wanted as it was.
        let wanted = |path: &Path| progress.spans.iter().any(|span| span.first == *path);
        streams.drop_all(|key| matches!(key, Key::Chunk(path) if !wanted(path)), effects);
        let (early, useless): (Vec<_>, Vec<_>) =
            self.early.take_chunks().into_iter().partition(|chunk| wanted(&chunk.first));
        for chunk in useless {
            self.adding.remove(&chunk.first);
        }
        self.progress = Some(progress);
        early
    }

    /// For operators.
    pub(super) fn status(&self, now: Instant) -> Option<SnapshotStatus> {
        let progress = self.progress.as_ref()?;
        let elapsed = now.saturating_duration_since(self.began).as_secs_f64().max(1e-3);
        let done = progress.share - self.share_before.unwrap_or_default();
        let rows_total = if progress.share > 0.001 { progress.rows as f64 / progress.share } else { 0.0 };
        // The rate since it began says nothing of a restore that gets nothing any more.
        let is_moving = done > 0.0 && self.idle(now) < IDLE_AFTER;
        Some(SnapshotStatus {
            number: progress.number,
            rows: progress.rows,
            rows_total: rows_total as u64,
            share: progress.share,
            rows_per_second: if is_moving { rows_total * done / elapsed } else { 0.0 },
            eta_seconds: is_moving.then(|| elapsed * (1.0 - progress.share).max(0.0) / done),
            rows_kept: progress.kept.0,
            bytes_kept: progress.kept.1,
        })
    }

    /// Notes an answer that passed its checks.
    pub(super) fn moved(&mut self, now: Instant) {
        self.moved_at = now;
    }

    /// How long no answer passed its checks.
    pub(super) fn idle(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.moved_at)
    }

    /// How long it has been under way.
    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.began)
    }
}
