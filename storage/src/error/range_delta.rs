//! [`RangeDeltaError`].

use slipstream_types::{BatchNumber, Digest, Path};

use super::ChunkError;

/// Why a range delta was not made, or not taken over. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum RangeDeltaError {
    /// No batch lies between the two.
    #[error("there is no range delta from batch {from} to batch {to}: the first must be below the second")]
    EmptyRange {
        /// The batch before the range.
        from: BatchNumber,
        /// Its last batch.
        to: BatchNumber,
    },
    /// A delta of the range is pruned, was never there, or is not there yet.
    #[error("the delta of batch {number} is not kept here")]
    NotKept {
        /// The batch.
        number: BatchNumber,
    },
    /// More than may be merged at once.
    #[error(
        "the deltas after batch {from} up to batch {to} are too large to be merged here: above {max} {of}"
    )]
    TooLarge {
        /// The batch before the range.
        from: BatchNumber,
        /// Its last batch.
        to: BatchNumber,
        /// The limit.
        max: u64,
        /// What it counts.
        of: &'static str,
    },
    /// The values of a range delta are those of its last batch.
    #[error("a range delta up to batch {to} cannot be proved by the snapshot of batch {snapshot}")]
    OtherSnapshot {
        /// The snapshot's batch.
        snapshot: BatchNumber,
        /// The range's last batch.
        to: BatchNumber,
    },
    /// Range deltas move the head forward only.
    #[error("cannot advance to batch {target}: the store's head is already at batch {head}")]
    NotAhead {
        /// The store's head.
        head: BatchNumber,
        /// Where to.
        target: BatchNumber,
    },
    /// More batches than one write takes the headers of.
    #[error(
        "cannot advance from batch {head} to batch {target} at once: {max} batches is the most; begin from a snapshot"
    )]
    TooFar {
        /// The store's head.
        head: BatchNumber,
        /// Where to.
        target: BatchNumber,
        /// Most batches.
        max: u64,
    },
    /// A chunk that does not make the head's state that of the target.
    #[error("range delta chunk refused: {0}")]
    Chunk(#[from] ChunkError),
    /// A chunk that overlaps with what was added before, or with two ranges of those asked for.
    #[error("no range delta chunk is missing from path {first:?} to {last:?}")]
    NotMissing {
        /// Where the chunk starts.
        first: Path,
        /// Where it ends.
        last: Path,
    },
    /// What is held until the end is more than was allowed.
    #[error(
        "the range delta to batch {target} takes {bytes} bytes of memory, more than the {max} that it may: fetch batch by batch, or \
         begin from a snapshot"
    )]
    OverBudget {
        /// Where to.
        target: BatchNumber,
        /// Bytes it would take.
        bytes: u64,
        /// Bytes that it may take.
        max: u64,
    },
    /// More changes than the deltas of the batches have, so that some did not change: whose, nobody can tell from the sum.
    #[error(
        "the range delta to batch {target} has {bytes} bytes of changes, and the batches that it passes have {max}: a peer adds rows \
         that did not change; fetch batch by batch, or begin from a snapshot"
    )]
    Padded {
        /// Where to.
        target: BatchNumber,
        /// Bytes of changes so far.
        bytes: u64,
        /// Bytes that the batches' headers say.
        max: u64,
    },
    /// Code that nobody asked for.
    #[error("code {hash} is not one that is missing")]
    UnwantedCode {
        /// Its Keccak-256.
        hash: Digest,
    },
    /// Finished too early: chunks are missing.
    #[error(
        "the range delta to batch {target} is not complete: what changed from path {next:?} on is missing"
    )]
    RowsMissing {
        /// Where to.
        target: BatchNumber,
        /// Where the first missing range starts.
        next: Path,
    },
    /// Finished too early: code is missing.
    #[error("the range delta to batch {target} is not complete: code {hash} is missing")]
    CodeMissing {
        /// Where to.
        target: BatchNumber,
        /// One of the missing hashes.
        hash: Digest,
    },
    /// The headers between the head and the target.
    #[error("the headers up to batch {target} were refused: {reason}")]
    BadHeaders {
        /// Where to.
        target: BatchNumber,
        /// What is wrong.
        reason: &'static str,
    },
    /// Something else moved the head meanwhile. Whoever begins anew from there can succeed.
    #[error(
        "the head moved from batch {base} to batch {head} while the range delta to batch {target} was fetched"
    )]
    HeadMoved {
        /// The head that the range delta stands on.
        base: BatchNumber,
        /// The head now.
        head: BatchNumber,
        /// Where to.
        target: BatchNumber,
    },
}

impl RangeDeltaError {
    /// Whether what the caller gave was refused, so that the peer it came from is at fault.
    pub(crate) fn is_bad_supply(&self) -> bool {
        use RangeDeltaError::{BadHeaders, Chunk, UnwantedCode};
        matches!(self, Chunk(_) | UnwantedCode { .. } | BadHeaders { .. })
    }
}
