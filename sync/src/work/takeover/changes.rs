//! A takeover by a range delta, which has what changed since the head.

use slipstream_storage::{RangeDeltaError, RangeDeltaTakeover, RestoreTarget, StorageError, Store, Takeover};
use slipstream_types::{BatchHeader, BatchNumber};

use super::{Ancestry, ChunkResult, RANGE_DELTA_RANGES_BITS, TakeoverMethod};
use crate::{
    SyncError,
    error::Violation,
    protocol::Request,
    range_delta::{self, BASE_STEP},
};

/// See the module.
pub(super) struct Changes {
    takeover: RangeDeltaTakeover,
    /// Encoded bytes of all changes in the batches. No chunk has more.
    bytes_max: u64,
}

impl Changes {
    /// Begins a takeover that takes at most `memory_max` bytes of memory.
    pub(super) fn begin(
        store: &Store,
        target: &RestoreTarget,
        ancestry: &Ancestry,
        memory_max: u64,
    ) -> Result<Changes, SyncError> {
        let takeover = store.take_range_delta(target, RANGE_DELTA_RANGES_BITS, memory_max)?;
        // The headers were requested behind the head at that time. If the head moved since, they do not continue what
        // is taken over.
        let (base, first) = (takeover.base().number, ancestry.headers.headers.first());
        if let Some(asked) = first.and_then(|first| first.number.previous()).filter(|asked| *asked != base) {
            let target = target.header.number;
            return Err(
                StorageError::from(RangeDeltaError::HeadMoved { base: asked, head: base, target }).into()
            );
        }
        let bytes_max = changes_bytes(store, &ancestry.headers.headers)?;
        Ok(Changes { takeover: takeover.of_changes(bytes_max), bytes_max })
    }
}

/// Bytes of all changes in the batches of the headers. The batches include earlier ones that peers send again, because
/// requests begin at a multiple of [`BASE_STEP`].
fn changes_bytes(store: &Store, headers: &[BatchHeader]) -> Result<u64, SyncError> {
    let first = headers.first().map_or(BatchNumber::GENESIS, |header| header.number);
    let from = first.before(BASE_STEP - 1);
    let asked_again = store.headers(from, first.since(from) as usize)?;
    Ok(asked_again.iter().chain(headers).map(|header| u64::from(header.delta_bytes)).sum())
}

impl TakeoverMethod for Changes {
    fn takeover(&self) -> &dyn Takeover {
        &self.takeover
    }

    fn add(&self, answer: Vec<u8>, request: &Request) -> Result<ChunkResult, SyncError> {
        // A request of another kind belongs to an earlier, abandoned takeover: its answer is ignored.
        let Request::RangeDelta(request) = request else { return Ok(ChunkResult::checked(Ok(()))) };
        let chunk = match range_delta::open(answer, request) {
            Ok(chunk) => chunk,
            Err(violation) => return Ok(ChunkResult::checked(Err(violation.into()))),
        };
        // Several chunks together may have too many changes, for which no single peer is to blame. One chunk alone is its
        // sender's fault.
        if chunk.entry_bytes() > self.bytes_max {
            let violation = Violation::Unrelated("one chunk has more changes than all batches together");
            return Ok(ChunkResult::checked(Err(violation.into())));
        }
        match self.takeover.add(chunk) {
            Err(StorageError::RangeDelta(RangeDeltaError::Chunk(error))) => {
                Ok(ChunkResult::checked(Err(Violation::from(error).into())))
            }
            added => Ok(ChunkResult::checked(Ok(added?))),
        }
    }
}
