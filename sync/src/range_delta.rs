//! Range deltas, on the asking side: the batch from which to ask, and what an answer must be before the store looks at
//! it.

use slipstream_storage::{CheckedRangeDelta, RangeDeltaChunk};
use slipstream_types::{BatchNumber, Blob, BlobKind};

use crate::{
    error::Violation,
    protocol::{CHUNK_BYTES_MAX, RangeDeltaRequest},
};

/// Range deltas begin at multiples of this. So nodes that are about as far behind get the same answers, and no peer can
/// make a server merge a range for every batch. Other requests are refused.
pub const BASE_STEP: u64 = 64;
/// Maximum number of rows that a server merges: 32 MiB of memory.
pub const ROWS_MAX: u64 = 199_728;
/// Maximum bytes of a chunk besides its changes: ends, count, and a proof of the greatest depth on both sides.
const FRAME_BYTES_MAX: usize = 40 << 10;

/// The batch whose later changes a node with this head asks for, from a peer that keeps the deltas from `deltas_from`
/// on. `None` if the peer lacks one of the deltas after that batch, even if the node's head is past the missing delta.
pub fn base(head: BatchNumber, deltas_from: BatchNumber) -> Option<BatchNumber> {
    let base = head.before(head.get() % BASE_STEP);
    (deltas_from <= base.next()).then_some(base)
}

/// Checks the form of an answer without the state: it must be a chunk, begin and end where it should, and be long
/// enough. [`slipstream_storage::RangeDeltaTakeover::add`] checks its content.
pub fn open(answer: Vec<u8>, request: &RangeDeltaRequest) -> Result<CheckedRangeDelta, Violation> {
    let blob = Blob::from_bytes(answer)?;
    let bytes_max = request.bytes_max.min(CHUNK_BYTES_MAX) as usize;
    if blob.content_len(BlobKind::RangeDelta)? > bytes_max + FRAME_BYTES_MAX {
        return Err(Violation::Unrelated("the chunk is longer than requested"));
    }
    let chunk: RangeDeltaChunk = blob.open(BlobKind::RangeDelta)?;
    if chunk.first != request.first || chunk.last > request.last {
        return Err(Violation::Unrelated("the chunk begins or ends at another path than requested"));
    }
    if chunk.last < request.last && !chunk.is_full(bytes_max) {
        return Err(Violation::Unrelated("the chunk ends before it is full"));
    }
    Ok(chunk.check()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_about_as_far_behind_ask_alike() {
        let base = |head, deltas_from| {
            base(BatchNumber::new(head), BatchNumber::new(deltas_from)).map(|base| base.get())
        };
        assert_eq!(
            [base(0, 1), base(63, 1), base(64, 1), base(130, 0)],
            [Some(0), Some(0), Some(64), Some(128)]
        );
        // A server that keeps fewer deltas than that serves other requests.
        assert_eq!([base(130, 128), base(130, 129), base(130, 130)], [Some(128), Some(128), None]);
    }
}
