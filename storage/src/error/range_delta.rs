//! [`RangeDeltaError`].

use slipstream_types::{BatchNumber, Digest, Path};

use super::ChunkError;

/// Why making or applying a range delta failed. The store wrote nothing.
#[derive(Debug, thiserror::Error)]
pub enum RangeDeltaError {
    /// No batch lies between the two ends.
    #[error("cannot make a range delta from batch {from} to batch {to}: the first must be below the second")]
    EmptyRange {
        /// The batch before the range.
        from: BatchNumber,
        /// Last batch of the range.
        to: BatchNumber,
    },
    /// A delta of the range is pruned, never existed, or is still to come.
    #[error("the delta of batch {number} is not kept")]
    NotKept {
        /// Number of the missing delta's batch.
        number: BatchNumber,
    },
    /// The range exceeds what may be merged at once.
    #[error("the deltas after batch {from} up to batch {to} are too large to merge: they exceed {max} {of}")]
    TooLarge {
        /// The batch before the range.
        from: BatchNumber,
        /// Last batch of the range.
        to: BatchNumber,
        /// The limit, in the unit `of`.
        max: u64,
        /// The unit of `max`.
        of: &'static str,
    },
    /// The snapshot is not that of the range delta's last batch.
    #[error("the snapshot of batch {snapshot} cannot prove a range delta up to batch {to}")]
    OtherSnapshot {
        /// Number of the snapshot's batch.
        snapshot: BatchNumber,
        /// The range's last batch.
        to: BatchNumber,
    },
    /// Range deltas move the head forward only.
    #[error("cannot advance to batch {target}: the store's head is already at batch {head}")]
    NotAhead {
        /// Number of the store's head.
        head: BatchNumber,
        /// The batch that the range delta leads to.
        target: BatchNumber,
    },
    /// The range has more batches than one write can take headers of.
    #[error(
        "cannot advance from batch {head} to batch {target} at once: the limit is {max} batches; begin from a snapshot"
    )]
    TooFar {
        /// Number of the store's head.
        head: BatchNumber,
        /// The batch that the range delta leads to.
        target: BatchNumber,
        /// Maximum number of batches that one range delta may span.
        max: u64,
    },
    /// The chunk does not turn the head's state into the target's.
    #[error("range delta chunk refused: {0}")]
    Chunk(#[from] ChunkError),
    /// The chunk overlaps with what was added before, or spans two of the requested ranges.
    #[error("the range delta chunk from path {first:?} to {last:?} does not lie in one missing range")]
    NotMissing {
        /// First path of the chunk.
        first: Path,
        /// Last path of the chunk.
        last: Path,
    },
    /// The range delta needs more memory until its end than the caller allows.
    #[error(
        "the range delta to batch {target} takes {bytes} bytes of memory, above the limit of {max}: fetch batch by \
        batch, or begin from a snapshot"
    )]
    OverBudget {
        /// The batch that the range delta leads to.
        target: BatchNumber,
        /// Bytes it would take.
        bytes: u64,
        /// Bytes that it may take.
        max: u64,
    },
    /// There are more changes than the batches' deltas hold, so some rows did not really change. The total does not
    /// show who sent them.
    #[error(
        "the range delta to batch {target} has {bytes} bytes of changes, but its batches have only {max}: a peer \
        adds rows that did not change; fetch batch by batch, or begin from a snapshot"
    )]
    Padded {
        /// The batch that the range delta leads to.
        target: BatchNumber,
        /// Bytes of changes so far.
        bytes: u64,
        /// Bytes of the batches' deltas, by their headers.
        max: u64,
    },
    /// Code that nobody asked for.
    #[error("code {hash} is not needed")]
    UnwantedCode {
        /// Keccak-256 of the code.
        hash: Digest,
    },
    /// Finished too early: chunks are missing.
    #[error("the range delta to batch {target} is incomplete: the changes from path {next:?} on are missing")]
    RowsMissing {
        /// The batch that the range delta leads to.
        target: BatchNumber,
        /// Where the first missing range starts.
        next: Path,
    },
    /// Finished too early: code is missing.
    #[error("the range delta to batch {target} is incomplete: code {hash} is missing")]
    CodeMissing {
        /// The batch that the range delta leads to.
        target: BatchNumber,
        /// One of the missing hashes.
        hash: Digest,
    },
    /// The headers between the head and the target were refused.
    #[error("the headers up to batch {target} were refused: {reason}")]
    BadHeaders {
        /// The batch that the range delta leads to.
        target: BatchNumber,
        /// The rule that the headers break.
        reason: &'static str,
    },
    /// The head moved meanwhile. A new range delta from the new head can succeed.
    #[error(
        "the head moved from batch {base} to batch {head} during the fetch of the range delta to batch {target}"
    )]
    HeadMoved {
        /// The head that the range delta began at.
        base: BatchNumber,
        /// Number of the store's head now.
        head: BatchNumber,
        /// The batch that the range delta leads to.
        target: BatchNumber,
    },
}

impl RangeDeltaError {
    /// Whether the caller's input was refused, so that the peer it came from is at fault.
    pub(crate) fn is_bad_supply(&self) -> bool {
        use RangeDeltaError::{BadHeaders, Chunk, UnwantedCode};
        matches!(self, Chunk(_) | UnwantedCode { .. } | BadHeaders { .. })
    }
}
