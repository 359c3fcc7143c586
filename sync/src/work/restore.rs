//! The worker's side of a restore: rows are checked and written beside the engine.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use slipstream_network::PeerId;
use slipstream_storage::{
    Advance, Checked, RESTORE_RANGES_BITS, RangeDeltaError, Restore, RestoreTarget, Span, StorageError,
    VerifiedChunk,
};
use slipstream_types::{
    BatchNumber, Blob, BlobKind, Digest, Path, codec, delta::Code, keccak256, tree::StateRangeProof,
};

use super::{Worker, expect_waypoint};
use crate::{
    SyncError,
    engine::{Ancestry, RestoreJob},
    error::Fault,
    planted::Planted,
    protocol::{ANSWER_BYTES_MAX, CODES_MAX, Codes, RangeDeltaRequest, Request},
    range_delta,
    verify::Violation,
};

/// Uncompressed bytes of a chunk: long enough that its proof is below 0.1 %, short enough that a failure costs little.
pub(crate) const CHUNK_BYTES: u32 = 1 << 20;
/// Rows of a chunk that does not end its range, at least: no row has more than 128 bytes.
const CHUNK_ROWS_MIN: usize = CHUNK_BYTES as usize / 128;
/// Ranges that the engine is told of: all that a restore begins with.
const SPANS: usize = 1 << RESTORE_RANGES_BITS;
/// Siblings kept until a chunk shows whether they were right; bounds the memory for them to 9 MiB. For further ones nobody is blamed.
const DOUBTS_MAX: usize = 256;

/// Most bytes of a net change, which is in memory until its end.
const NET_BYTES_MAX: u64 = 512 << 20;
/// A net change is asked for in so many ranges, as a power of two, so that many peers can send at once.
pub(crate) const NET_RANGES_BITS: u8 = 4;

/// The restore that is under way.
pub(super) struct Active {
    by: By,
    ancestry: Box<Ancestry>,
}

/// How the state gets here.
#[derive(Clone)]
enum By {
    /// By all its rows.
    Rows(Arc<Restore>, Doubts),
    /// By what changed since the head.
    Net(Arc<Advance>),
}

/// Siblings that did not fit this node's rows, by the path at which their range begins. Either they are a lie, or the rows have
/// changed; a chunk of the same range tells.
type Doubts = Arc<parking_lot::Mutex<Doubting>>;

#[derive(Default)]
struct Doubting {
    waiting: BTreeMap<Path, Doubted>,
    /// Some of their siblings were right.
    trusted: BTreeSet<PeerId>,
}

struct Doubted {
    from: PeerId,
    span: Span,
    proof: StateRangeProof,
}

/// What came of part of a restore.
#[derive(Debug)]
pub struct Restored {
    /// Of the answer that it was about.
    pub step: Step,
    /// What is missing now; none when no restore is under way.
    pub progress: Option<Progress>,
}

/// What one job did.
#[derive(Debug)]
pub enum Step {
    /// The restore is under way.
    Begun,
    /// Rows were added, or the answer was wrong.
    Chunk {
        /// Where its range began.
        first: Path,
        /// What was wrong.
        checked: Result<(), Fault>,
        /// A peer that sent siblings of this range earlier, and whether they were right.
        judged: Option<(PeerId, bool)>,
    },
    /// Siblings were compared, or they were wrong in themselves.
    Siblings {
        /// Where their range begins.
        first: Path,
        /// What was wrong.
        checked: Result<(), Fault>,
    },
    /// Code was added, or it is not what was asked for.
    Codes(Result<(), Fault>),
    /// The state is the node's; this is its head.
    Finished(BatchNumber),
    /// It is put down.
    Dropped,
}

/// What a restore still needs, and how far it is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Counts up: jobs run side by side, and an earlier view may be told later.
    pub sequence: u64,
    /// The snapshot.
    pub number: BatchNumber,
    /// Rows so far.
    pub rows: u64,
    /// Share of the paths that is done, 0 to 1.
    pub share: f64,
    /// Rows, and bytes of them, kept of an older snapshot.
    pub kept: (u64, u64),
    /// A range of older rows to compare, if there are any.
    pub older: Option<Span>,
    /// Whether siblings of a peer none of whose siblings were right so far did not fit, and no chunk showed yet who is right.
    pub is_in_doubt: bool,
    /// Ranges whose chunks are missing, the most urgent first.
    pub spans: Vec<Span>,
    /// Missing code; known once all rows are in.
    pub codes: Vec<Digest>,
}

impl Progress {
    /// Whether only [`RestoreJob::Finish`] is left.
    pub fn is_complete(&self) -> bool {
        self.older.is_none() && self.spans.is_empty() && self.codes.is_empty()
    }
}

impl Worker {
    pub(super) fn restore(&self, job: RestoreJob) -> Result<Restored, SyncError> {
        let step = match job {
            RestoreJob::Begin { target, ancestry, net } => self.begin(&target, ancestry, net)?,
            RestoreJob::Chunk { answer, request } => self.chunk(answer, &request)?,
            RestoreJob::Siblings { answer, span, from } => self.siblings(&answer, span, from)?,
            RestoreJob::Codes { answer, hashes } => self.codes(&answer, &hashes)?,
            RestoreJob::Finish => self.finish()?,
            RestoreJob::Drop => {
                // Its last rows become durable when it is dropped.
                *self.active.lock() = None;
                Step::Dropped
            }
        };
        Ok(Restored { step, progress: self.progress()? })
    }

    fn active(&self) -> Option<By> {
        self.active.lock().as_ref().map(|active| active.by.clone())
    }

    /// A ledger that does not pass through the operator's waypoint is not begun.
    fn begin(&self, target: &RestoreTarget, ancestry: Box<Ancestry>, net: bool) -> Result<Step, SyncError> {
        if let (Some(waypoint), Some(found)) = (self.expected_waypoint(), ancestry.passes) {
            expect_waypoint(&waypoint, found)?;
            tracing::info!(%waypoint, snapshot = %target.header.number, "the snapshot's ledger passes through the waypoint");
        }
        let by = match net {
            false => By::Rows(Arc::new(self.store.restore(target)?), Doubts::default()),
            true => By::Net(Arc::new(self.store.advance(target, NET_RANGES_BITS, NET_BYTES_MAX)?)),
        };
        *self.active.lock() = Some(Active { by, ancestry });
        Ok(Step::Begun)
    }

    fn chunk(&self, answer: Vec<u8>, request: &Request) -> Result<Step, SyncError> {
        match (self.active(), request) {
            (Some(By::Rows(restore, doubts)), Request::Chunk { first, last, .. }) => {
                self.rows(&restore, &doubts, answer, Span { first: *first, last: *last })
            }
            (Some(By::Net(advance)), Request::RangeDelta(request)) => net_changes(&advance, answer, request),
            (_, Request::Chunk { first, .. } | Request::RangeDelta(RangeDeltaRequest { first, .. })) => {
                Ok(Step::Chunk { first: *first, checked: Ok(()), judged: None })
            }
            _ => Err(SyncError::Worker("a request that asks for no chunk".into())),
        }
    }

    fn rows(
        &self,
        restore: &Restore,
        doubts: &Doubts,
        answer: Vec<u8>,
        span: Span,
    ) -> Result<Step, SyncError> {
        let first = span.first;
        let root = restore.target().header.state_root;
        let chunk = match open_chunk(answer, span, root) {
            Ok(chunk) => chunk,
            Err(_) if self.defences.lacks(Planted::UnprovenChunk) => {
                return Ok(Step::Chunk { first, checked: Ok(()), judged: None });
            }
            Err(fault) => return Ok(Step::Chunk { first, checked: Err(fault), judged: None }),
        };
        // A chunk that ends before the siblings' range cannot tell right from wrong.
        let doubted = doubts.lock().waiting.remove(&first);
        let doubted = doubted.filter(|doubted| doubted.span.last == chunk.last());
        let judged = doubted.map(|doubted| (doubted.from, chunk.confirms(&doubted.proof)));
        if let Some((peer, true)) = judged {
            doubts.lock().trusted.insert(peer);
        }
        restore.add_verified(chunk)?;
        Ok(Step::Chunk { first, checked: Ok(()), judged })
    }

    /// Lies about a range that is then divided cost no rows, and are not looked into.
    fn siblings(&self, answer: &[u8], span: Span, from: PeerId) -> Result<Step, SyncError> {
        let first = span.first;
        let done = |checked| Ok(Step::Siblings { first, checked });
        let Some(By::Rows(restore, doubts)) = self.active() else { return done(Ok(())) };
        let proof = match open_siblings(answer, span) {
            Ok(proof) => proof,
            Err(fault) => return done(Err(fault)),
        };
        let compared = restore.check_range(span, &proof)?;
        let mut doubts = doubts.lock();
        match compared {
            Checked::Kept => _ = doubts.trusted.insert(from),
            Checked::Divided => {}
            Checked::Refetch => {
                tracing::debug!(?first, "rows of the older snapshot do not fit and are fetched again");
                if doubts.waiting.len() < DOUBTS_MAX {
                    doubts.waiting.insert(first, Doubted { from, span, proof });
                }
            }
        }
        done(Ok(()))
    }

    fn codes(&self, answer: &[u8], hashes: &[Digest]) -> Result<Step, SyncError> {
        let opened = match self.defences.lacks(Planted::UnhashedCode) {
            true => decode_codes(answer),
            false => open_codes(answer, hashes),
        };
        let codes = match opened {
            Ok(codes) => codes,
            Err(fault) => return Ok(Step::Codes(Err(fault))),
        };
        codes.codes.iter().try_for_each(|code| match self.active() {
            Some(By::Rows(restore, _)) => restore.add_code(code),
            Some(By::Net(advance)) => advance.add_code(code),
            None => Ok(()),
        })?;
        Ok(Step::Codes(Ok(())))
    }

    fn finish(&self) -> Result<Step, SyncError> {
        let active = self.active.lock().take();
        match active.map(|active| (active.by, *active.ancestry)) {
            Some((By::Rows(restore, _), Ancestry { headers, genesis_proof, .. })) => {
                let restore = Arc::into_inner(restore)
                    .ok_or_else(|| SyncError::Worker("a restore was finished while it was in use".into()))?;
                restore.finish(&headers.headers, &headers.proof, &genesis_proof)?;
            }
            Some((By::Net(advance), Ancestry { headers, .. })) => advance.finish(&headers.headers)?,
            None => {}
        }
        self.layers.clear();
        self.hot.write().clear();
        Ok(Step::Finished(self.store.head()?.header.number))
    }

    fn progress(&self) -> Result<Option<Progress>, SyncError> {
        let Some(by) = self.active() else { return Ok(None) };
        // Held while looking, so that a later number is a later view.
        let mut sequence = self.looks.lock();
        *sequence += 1;
        let (restore, doubts) = match by {
            By::Rows(restore, doubts) => (restore, doubts),
            By::Net(advance) => return Ok(Some(net_progress(*sequence, &advance))),
        };
        let mut spans = restore.next_ranges(SPANS);
        let is_in_doubt = {
            let doubts = doubts.lock();
            spans.sort_by_key(|span| !doubts.waiting.contains_key(&span.first));
            doubts.waiting.values().any(|doubted| !doubts.trusted.contains(&doubted.from))
        };
        let older = restore.unchecked(1)?.first().copied();
        let rows_done = spans.is_empty() && older.is_none();
        let codes = if rows_done { restore.missing_codes(CODES_MAX)? } else { Vec::new() };
        let kept = restore.retargeted();
        Ok(Some(Progress {
            sequence: *sequence,
            number: restore.target().header.number,
            rows: restore.rows(),
            share: restore.share(),
            kept: (kept.rows, kept.bytes),
            older,
            is_in_doubt,
            spans,
            codes,
        }))
    }
}

fn net_changes(advance: &Advance, answer: Vec<u8>, request: &RangeDeltaRequest) -> Result<Step, SyncError> {
    let first = request.first;
    let checked = match range_delta::open(answer, request) {
        Err(violation) => Err(violation.into()),
        Ok(chunk) => match advance.add(chunk) {
            Ok(()) => Ok(()),
            Err(StorageError::RangeDelta(RangeDeltaError::Chunk(error))) => {
                Err(Violation::from(error).into())
            }
            Err(error) => return Err(error.into()),
        },
    };
    Ok(Step::Chunk { first, checked, judged: None })
}

fn net_progress(sequence: u64, advance: &Advance) -> Progress {
    let spans = advance.missing(SPANS);
    let codes = if spans.is_empty() { advance.missing_codes(CODES_MAX) } else { Vec::new() };
    Progress {
        sequence,
        number: advance.target().header.number,
        rows: advance.changes(),
        share: advance.share(),
        kept: (0, 0),
        older: None,
        is_in_doubt: false,
        spans,
        codes,
    }
}

fn open_chunk(answer: Vec<u8>, span: Span, root: Digest) -> Result<VerifiedChunk, Fault> {
    let content = Blob::from_bytes(answer)?.content(BlobKind::StateChunk)?;
    let chunk = VerifiedChunk::open(content, root).map_err(Violation::from)?;
    if chunk.first() != span.first || chunk.last() > span.last {
        return Err(Violation::Unrelated("the chunk begins or ends elsewhere").into());
    }
    // Or a liar could serve one path at a time for ever, each with a good proof.
    if chunk.last() < span.last && chunk.rows() < CHUNK_ROWS_MIN {
        return Err(Violation::Unrelated("the chunk ends early").into());
    }
    Ok(chunk)
}

fn decode_codes(answer: &[u8]) -> Result<Codes, Fault> {
    Ok(codec::decode("codes", answer, ANSWER_BYTES_MAX)?)
}

fn open_codes(answer: &[u8], hashes: &[Digest]) -> Result<Codes, Fault> {
    let codes = decode_codes(answer)?;
    let same = |(code, hash): (&Code, &Digest)| keccak256(&code[..]).0 == hash.0;
    if codes.codes.len() != hashes.len() || !codes.codes.iter().zip(hashes).all(same) {
        return Err(Violation::Unrelated("code that does not have the hash asked for").into());
    }
    Ok(codes)
}

fn open_siblings(answer: &[u8], span: Span) -> Result<StateRangeProof, Fault> {
    let proof: StateRangeProof = codec::decode("range proof", answer, ANSWER_BYTES_MAX)?;
    proof.check_places(span.first, span.last).map_err(Violation::from)?;
    Ok(proof)
}
