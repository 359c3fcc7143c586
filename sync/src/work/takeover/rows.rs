//! A takeover by all rows of a snapshot. Rows of an older snapshot stay where a peer's siblings show that they are
//! right.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use slipstream_network::PeerId;
use slipstream_storage::{RangeCheck, Restore, Span, Takeover, VerifiedChunk};
use slipstream_types::{Blob, BlobKind, Digest, Path, codec, tree::StateRangeProof};

use super::{ChunkResult, OlderRows, TakeoverMethod};
use crate::{
    SyncError,
    error::{Fault, Violation},
    protocol::{ANSWER_BYTES_MAX, Request},
};

/// Maximum bytes of a row. A chunk that ends before its range must have at least as many rows as fill the requested bytes.
const ROW_BYTES: usize = 128;
/// Maximum number of siblings kept until a chunk shows whether they were right. This bounds their memory to 9 MiB.
/// Nobody is blamed for further ones.
const DOUBTS_MAX: usize = 256;

/// See the module.
pub(super) struct Rows {
    restore: Restore,
    doubts: Mutex<Doubts>,
}

/// Siblings that did not fit this node's rows, by the path at which their range begins. Either they are a lie, or the rows have
/// changed; a chunk of the same range shows which.
#[derive(Default)]
struct Doubts {
    waiting: BTreeMap<Path, DoubtedSiblings>,
    /// Peers of which some siblings were right.
    trusted: BTreeSet<PeerId>,
}

struct DoubtedSiblings {
    from: PeerId,
    span: Span,
    proof: StateRangeProof,
}

impl Rows {
    pub(super) fn new(restore: Restore) -> Rows {
        Rows { restore, doubts: Mutex::default() }
    }

    /// Judges the siblings that wait for this chunk. Returns their sender, and whether they were right.
    fn judge(&self, first: Path, chunk: &VerifiedChunk) -> Option<(PeerId, bool)> {
        let mut doubts = self.doubts.lock();
        // A chunk that ends before the siblings' range cannot tell right from wrong.
        let doubted = doubts.waiting.remove(&first).filter(|doubted| doubted.span.last == chunk.last())?;
        let are_right = chunk.confirms(&doubted.proof);
        if are_right {
            doubts.trusted.insert(doubted.from);
        }
        Some((doubted.from, are_right))
    }
}

impl TakeoverMethod for Rows {
    fn takeover(&self) -> &dyn Takeover {
        &self.restore
    }

    fn add(&self, answer: Vec<u8>, request: &Request) -> Result<ChunkResult, SyncError> {
        // An answer that comes after its takeover was abandoned belongs to another one.
        let Request::Chunk { first, last, bytes_max, .. } = *request else {
            return Ok(ChunkResult::checked(Ok(())));
        };
        let root = self.restore.target().header.state_root;
        let chunk = match open_chunk(answer, Span { first, last }, bytes_max, root) {
            Ok(chunk) => chunk,
            Err(fault) => return Ok(ChunkResult::checked(Err(fault))),
        };
        let judged = self.judge(first, &chunk);
        self.restore.add(chunk)?;
        Ok(ChunkResult { checked: Ok(()), judged })
    }

    /// Compares rows with siblings. If the comparison divides the range, a lie costs no rows, and is ignored.
    fn compare(&self, answer: &[u8], span: Span, from: PeerId) -> Result<Result<(), Fault>, SyncError> {
        let proof = match open_siblings(answer, span) {
            Ok(proof) => proof,
            Err(fault) => return Ok(Err(fault)),
        };
        let compared = self.restore.check_range(span, &proof)?;
        let mut doubts = self.doubts.lock();
        match compared {
            RangeCheck::Kept => _ = doubts.trusted.insert(from),
            RangeCheck::Divided => {}
            RangeCheck::Refetch => {
                let first = span.first;
                tracing::debug!(?first, "rows of the older snapshot do not match; fetching them again");
                if doubts.waiting.len() < DOUBTS_MAX {
                    doubts.waiting.insert(first, DoubtedSiblings { from, span, proof });
                }
            }
        }
        Ok(Ok(()))
    }

    fn older(&self) -> Result<OlderRows, SyncError> {
        let span = self.restore.unchecked(1)?.first().copied();
        let kept = self.restore.retargeted();
        let doubts = self.doubts.lock();
        let is_doubted = |doubted: &DoubtedSiblings| !doubts.trusted.contains(&doubted.from);
        Ok(OlderRows {
            span,
            kept: (kept.rows, kept.bytes),
            urgent: doubts.waiting.keys().copied().collect(),
            is_in_doubt: doubts.waiting.values().any(is_doubted),
        })
    }
}

fn open_chunk(answer: Vec<u8>, span: Span, bytes_max: u32, root: Digest) -> Result<VerifiedChunk, Fault> {
    let content = Blob::from_bytes(answer)?.content(BlobKind::StateChunk)?;
    let chunk = VerifiedChunk::open(content, root).map_err(Violation::from)?;
    if chunk.first() != span.first || chunk.last() > span.last {
        return Err(Violation::Unrelated("the chunk begins or ends at another path than requested").into());
    }
    // Otherwise a liar could serve one path at a time for ever, each with a good proof.
    if chunk.last() < span.last && chunk.rows() < bytes_max as usize / ROW_BYTES {
        return Err(Violation::Unrelated("the chunk ends before it is full").into());
    }
    Ok(chunk)
}

fn open_siblings(answer: &[u8], span: Span) -> Result<StateRangeProof, Fault> {
    let proof: StateRangeProof = codec::decode("range proof", answer, ANSWER_BYTES_MAX)?;
    proof.check_places(span.first, span.last).map_err(Violation::from)?;
    Ok(proof)
}
