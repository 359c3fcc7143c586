//! [`Bootstrap`]: restores a snapshot from all peers that serve it.
//!
//! ```text
//!  Asking ── offer, headers ─▶ Beginning ─▶ Fetching ── siblings of older rows, chunks; then code ─▶ Finishing
//! ```
//! Answers are checked in this order. A new restore asks for offer, headers and first chunks at once, because it knows
//! its ranges beforehand. Restored rows survive a crash and a change of the target. After every job the worker reports
//! what is missing.

mod early;
mod fetching;
mod suppliers;
mod wants;

use std::time::Duration;

use slipstream_storage::{RESTORE_RANGES_BITS, RestoreTarget, Span};
use slipstream_types::{
    BatchHeader, BatchNumber, Certificate, Digest, Waypoint, accumulator::AccumulatorRangeProof, codec,
};
use tokio::time::Instant;

pub(super) use self::early::EarlyChunk;
use self::{early::EarlyAnswers, fetching::Fetching, suppliers::Suppliers};
use super::{
    effect::Effects,
    jobs::{RestoreTask, Running},
    streams::{Flight, Key, Streams},
};
use crate::{
    error::Fault,
    plan::Plan,
    protocol::{ANSWER_BYTES_MAX, Headers, Offer},
    status::SnapshotStatus,
    trust::Trust,
    verify,
    work::{Ancestry, Job, Progress, RANGE_DELTA_RANGES_BITS, RestoreJob},
};

/// Headers fetched with a snapshot, because BLOCKHASH reaches back this far.
const TAIL_HEADERS: u64 = 256;
/// How often a restore is compared with the ways of peers that have delivered.
pub(super) const COMPARE: Duration = Duration::from_secs(3);
/// A restore's rate is meaningful from this share on.
const SHOWN_SHARE: f64 = 0.01;
/// A restore in progress.
#[derive(Debug)]
pub(super) struct Bootstrap {
    beginning: RestoreSetup,
    began: Instant,
    /// When the restore's last answer passed its checks.
    moved_at: Instant,
    /// Time between two judgements of the restore's speed.
    patience: Duration,
    /// When the current judgement began, and the share that was done then; `None` if no rows could come yet.
    pace: (Instant, Option<f64>),
    /// When the restore's rate was last compared with another way's.
    compared_at: Instant,
    /// Bytes of rows that passed their checks.
    bytes: u64,
    /// Bytes of the chunks that came, checked or not, and their share of all paths.
    arrived: (u64, f64),
    /// Bytes of the longest of these chunks.
    longest: u64,
    suppliers: Suppliers,
    /// The plan for the batches behind the snapshot, once they are asked for.
    pub(super) behind: Option<Plan>,
    state: State,
}

/// The inputs of a new restore.
#[derive(Clone, Copy, Debug)]
pub(super) struct RestoreSetup {
    /// Number of the snapshot's batch.
    pub(super) number: BatchNumber,
    /// The base of a range delta; `None` if the restore takes all rows.
    pub(super) range_delta: Option<DeltaBase>,
    /// The operator's waypoint, if it lies above the head and not above the snapshot.
    pub(super) passing: Option<BatchNumber>,
    /// Whether the store has no rows of any snapshot. The restore's ranges are then known before it begins.
    pub(super) is_new: bool,
    /// Bytes that the restore is expected to take.
    pub(super) bytes: f64,
    /// Whether batches in flight were dropped for this restore on strangers' promises alone.
    pub(super) is_on_word: bool,
}

/// The base of a range delta.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeltaBase {
    /// The batch whose later changes are asked for; at or below the head.
    pub(super) from: BatchNumber,
    /// Number of the node's head.
    pub(super) head: BatchNumber,
}

#[derive(Debug)]
enum State {
    /// Asking for the snapshot's ledger: the offer, and the headers that the offer proves.
    Asking(LedgerRequests),
    /// The worker begins it.
    Beginning(EarlyAnswers),
    /// Asking for the snapshot's rows and code.
    Fetching(Fetching),
    /// Everything is here, and the worker makes it the node's state.
    Finishing(Fetching),
}

#[derive(Debug)]
struct LedgerRequests {
    /// `None` until an offer passed its checks.
    offered: Option<Box<LedgerProof>>,
    /// Whether a peer that has the snapshot refused its offer.
    is_offer_refused: bool,
    early: EarlyAnswers,
}

/// The checked facts about the snapshot's ledger.
#[derive(Debug)]
struct LedgerProof {
    certificate: Certificate,
    genesis_proof: AccumulatorRangeProof,
    passes: Option<Waypoint>,
}

impl Bootstrap {
    /// Begins a restore whose speed is judged every `patience`.
    pub(super) fn new(beginning: RestoreSetup, patience: Duration, now: Instant) -> Self {
        let spans = match beginning.range_delta {
            Some(_) => Span::divided(RANGE_DELTA_RANGES_BITS),
            None if beginning.is_new => Span::divided(RESTORE_RANGES_BITS),
            None => Vec::new(),
        };
        let early = EarlyAnswers::new(spans);
        Bootstrap {
            beginning,
            began: now,
            moved_at: now,
            patience,
            pace: (now, None),
            compared_at: now,
            bytes: 0,
            arrived: (0, 0.0),
            longest: 0,
            suppliers: Suppliers::default(),
            behind: None,
            state: State::Asking(LedgerRequests { offered: None, is_offer_refused: false, early }),
        }
    }

    pub(super) fn number(&self) -> BatchNumber {
        self.beginning.number
    }

    /// The base of a range delta; `None` if the restore takes all rows.
    pub(super) fn range_delta(&self) -> Option<DeltaBase> {
        self.beginning.range_delta
    }

    /// The first header that the restore fetches.
    fn first_header(&self) -> BatchNumber {
        match self.beginning.range_delta {
            Some(DeltaBase { head, .. }) => head.next(),
            None => self.number().before(TAIL_HEADERS - 1),
        }
    }

    /// Whether a key belongs to restores, so that it is dropped with the restore.
    pub(super) fn owns(key: &Key) -> bool {
        match key {
            Key::Offer | Key::Headers | Key::Siblings(_) | Key::Chunk(_) | Key::Codes => true,
            Key::Survey | Key::Range(_) => false,
        }
    }

    fn early(&self) -> Option<&EarlyAnswers> {
        match &self.state {
            State::Asking(LedgerRequests { early, .. }) | State::Beginning(early) => Some(early),
            State::Fetching(_) | State::Finishing(_) => None,
        }
    }

    fn fetching(&self) -> Option<&Fetching> {
        match &self.state {
            State::Asking(_) | State::Beginning(_) => None,
            State::Fetching(fetching) | State::Finishing(fetching) => Some(fetching),
        }
    }

    /// Whether an answer of this key has arrived and waits for the restore to begin.
    pub(super) fn has_early(&self, key: &Key) -> bool {
        matches!((key, self.early()), (Key::Chunk(first), Some(early)) if early.has_chunk(first))
    }

    /// Whether all data is here and only has to become the state.
    pub(super) fn is_finishing(&self) -> bool {
        matches!(self.state, State::Finishing(_))
    }

    /// Takes an offer. Returns the headers that came before it.
    pub(super) fn offered(
        &mut self,
        answer: &[u8],
        genesis: Digest,
        trust: &Trust,
    ) -> Result<Option<(Flight, Vec<u8>)>, Fault> {
        let RestoreSetup { number, passing, .. } = self.beginning;
        let State::Asking(asking) = &mut self.state else { return Ok(None) };
        let offer: Offer = codec::decode("snapshot offer", answer, ANSWER_BYTES_MAX)?;
        let passes = verify::offer(&offer, number, passing, genesis, trust)?;
        let Offer { certificate, genesis_proof, .. } = offer;
        asking.offered = Some(Box::new(LedgerProof { certificate, genesis_proof, passes }));
        Ok(asking.early.take_headers())
    }

    /// The snapshot's certificate, from the offer until the restore begins.
    pub(super) fn certificate(&self) -> Option<&Certificate> {
        match &self.state {
            State::Asking(LedgerRequests { offered: Some(offered), .. }) => Some(&offered.certificate),
            _ => None,
        }
    }

    /// Records that a peer that has the snapshot refused its offer.
    pub(super) fn offer_refused(&mut self) {
        if let State::Asking(asking) = &mut self.state {
            asking.is_offer_refused = true;
        }
    }

    /// Whether batches in flight were dropped for this restore on strangers' promises alone.
    pub(super) fn is_on_word(&self) -> bool {
        self.beginning.is_on_word
    }

    /// Whether peers that have the snapshot cannot prove that its ledger passes through the waypoint: they may have
    /// begun behind it.
    pub(super) fn is_unproved(&self) -> bool {
        let is_refused = |asking: &LedgerRequests| asking.offered.is_none() && asking.is_offer_refused;
        self.beginning.passing.is_some() && matches!(&self.state, State::Asking(asking) if is_refused(asking))
    }

    /// Keeps headers that cannot be checked yet. Returns headers that can be.
    pub(super) fn keep_headers(&mut self, flight: &Flight, answer: Vec<u8>) -> Option<Vec<u8>> {
        match &mut self.state {
            State::Asking(LedgerRequests { offered: None, early, .. }) => {
                early.keep_headers(flight.clone(), answer);
                None
            }
            _ => Some(answer),
        }
    }

    /// Takes headers. Returns the snapshot's header, and the job that begins the restore. The accumulator proves every
    /// field of the header; the certificate repeats only a few of them.
    pub(super) fn headers(&mut self, answer: &[u8]) -> Result<Option<(BatchHeader, Job)>, Fault> {
        let first = self.first_header();
        let State::Asking(LedgerRequests { offered: Some(offered), early, .. }) = &mut self.state else {
            return Ok(None);
        };
        let headers: Headers = codec::decode("headers", answer, ANSWER_BYTES_MAX)?;
        let LedgerProof { certificate, genesis_proof, passes } = &**offered;
        verify::headers(&headers, first, certificate)?;
        let header: Option<BatchHeader> = headers.headers.last().cloned();
        let Some(header) = header else { return Ok(None) };
        let target = Box::new(RestoreTarget { header: header.clone(), certificate: certificate.clone() });
        let ancestry = Box::new(Ancestry { headers, genesis_proof: genesis_proof.clone(), passes: *passes });
        let range_delta = self.beginning.range_delta.is_some();
        self.state = State::Beginning(std::mem::take(early));
        Ok(Some((header, Job::Restore(RestoreJob::Begin { target, ancestry, range_delta }))))
    }

    /// Returns the chunk if it can be added now. Keeps it while the restore has not begun.
    pub(super) fn chunk(&mut self, chunk: EarlyChunk, running: &Running<RestoreTask>) -> Option<EarlyChunk> {
        if self.has_chunk(&chunk.span(), running) {
            return None;
        }
        self.suppliers.sent(chunk.flight.peer, chunk.answer.len(), chunk.span());
        self.arrived.0 += chunk.answer.len() as u64;
        self.arrived.1 += chunk.span().share();
        self.longest = self.longest.max(chunk.answer.len() as u64);
        match &mut self.state {
            State::Asking(LedgerRequests { early, .. }) | State::Beginning(early) => {
                early.keep_chunk(chunk);
                None
            }
            State::Fetching(_) | State::Finishing(_) => Some(chunk),
        }
    }

    /// The peers that supplied the restore, and those that failed to.
    pub(super) fn suppliers(&self) -> &Suppliers {
        &self.suppliers
    }

    /// The restore's suppliers, to record their answers.
    pub(super) fn suppliers_mut(&mut self) -> &mut Suppliers {
        &mut self.suppliers
    }

    /// Records `bytes` bytes of rows that passed their checks.
    pub(super) fn added(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Takes the worker's report of what is missing. Returns the chunks that waited for the restore to begin.
    pub(super) fn progressed(
        &mut self,
        progress: Option<Progress>,
        streams: &mut Streams,
        effects: &mut Effects,
    ) -> Vec<EarlyChunk> {
        let seen = self.fetching().map_or(0, |fetching| fetching.progress.sequence);
        let Some(progress) = progress.filter(|progress| progress.sequence > seen) else {
            return Vec::new();
        };
        // A range that was cut, or filled by a longer chunk, is no longer wanted as it was.
        let wanted: Vec<Span> = progress.spans.clone();
        let is_wanted =
            |key: &Key| matches!(key, Key::Chunk(first) if wanted.iter().any(|span| span.first == *first));
        streams.drop_all(|key| matches!(key, Key::Chunk(_)) && !is_wanted(key), effects);
        let begun = match &mut self.state {
            State::Fetching(fetching) | State::Finishing(fetching) => {
                fetching.progress = progress;
                return Vec::new();
            }
            State::Asking(_) | State::Beginning(_) => State::Fetching(Fetching::new(progress)),
        };
        match std::mem::replace(&mut self.state, begun) {
            State::Asking(LedgerRequests { early, .. }) | State::Beginning(early) => {
                let chunks = early.into_chunks().into_iter();
                chunks.filter(|chunk| is_wanted(&Key::Chunk(chunk.first))).collect()
            }
            State::Fetching(_) | State::Finishing(_) => Vec::new(),
        }
    }

    /// The restore's status for operators.
    pub(super) fn status(&self, now: Instant) -> Option<SnapshotStatus> {
        self.fetching().map(|fetching| fetching.status(self.age(now), self.idle(now)))
    }

    /// Records an answer that passed its checks.
    pub(super) fn moved(&mut self, now: Instant) {
        self.moved_at = now;
    }

    /// When to judge the restore's speed next. `None` for a finishing restore, which needs no peer.
    pub(super) fn look_at(&self) -> Option<Instant> {
        (!self.is_finishing()).then_some(self.pace.0 + self.patience)
    }

    /// The patience given to [`Bootstrap::new`].
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// Seconds to the restore's end at the rate since the last judgement. The rate counts the share of paths whose rows
    /// are proved. So the rate is a share of the whole state, whatever its peers claim about the state's size.
    pub(super) fn seconds_left(&self, now: Instant) -> f64 {
        let (since, before) = self.pace;
        let seconds = now.saturating_duration_since(since).as_secs_f64();
        match &self.state {
            State::Asking(_) | State::Beginning(_) => f64::INFINITY,
            State::Fetching(fetching) => fetching.seconds_left(before, seconds, self.moved_at > since),
            State::Finishing(_) => 0.0,
        }
    }

    /// Seconds to the restore's end at the rate since it began, once that rate is meaningful; at most once in
    /// [`COMPARE`].
    pub(super) fn shown_seconds_left(&mut self, now: Instant) -> Option<f64> {
        if now.saturating_duration_since(self.compared_at) < COMPARE {
            return None;
        }
        self.compared_at = now;
        let fetching = self.fetching().filter(|fetching| fetching.done() >= SHOWN_SHARE)?;
        let left = fetching.seconds_left(None, self.age(now).as_secs_f64(), true);
        Some(left)
    }

    /// Ends a judgement; the next one counts from now on.
    pub(super) fn look_again(&mut self, now: Instant) {
        self.pace = (now, self.fetching().map(|fetching| fetching.progress.share));
    }

    /// Time since an answer last passed its checks.
    fn idle(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.moved_at)
    }

    /// Time since it began.
    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.began)
    }
}
