//! [`Takeover`]: a later certified state that becomes the head's without the batches in between.
//!
//! There are two kinds. A [`crate::Restore`] takes all rows of a snapshot into the unused state column; it is
//! recorded, and a kill costs little of it. A [`crate::RangeDeltaTakeover`] takes what changed since the head; it is
//! in memory until its last write. Their chunks differ, so each has its own `add`; otherwise callers treat both
//! alike.

use slipstream_types::{BatchHeader, Certificate, Digest, Path, accumulator::AccumulatorRangeProof};

use crate::{error::StorageError, span::Span};

/// Maximum number of headers that come with a restored state: as far back as BLOCKHASH looks.
pub const RESTORE_HEADERS_MAX: usize = 256;

/// The batch whose state is restored. The caller has verified the certificate's signatures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RestoreTarget {
    /// The header of the target batch.
    pub header: BatchHeader,
    /// Certifies exactly this batch.
    pub certificate: Certificate,
}

impl RestoreTarget {
    /// Checks that header and certificate belong together.
    pub(crate) fn check(&self) -> Result<(), StorageError> {
        let info = &self.certificate.info;
        if self.header.number != info.number || self.header.state_root != info.state_root {
            let reason = "it is not about the header that comes with it";
            return Err(StorageError::WrongCertificate { number: info.number, reason });
        }
        Ok(())
    }
}

/// The ledger that a takeover ends with.
#[derive(Clone, Copy, Debug)]
pub struct Ancestry<'a> {
    /// Headers that follow each other; the last is the target's. A restore takes up to [`RESTORE_HEADERS_MAX`] of them;
    /// a range delta takes all from the head on.
    pub headers: &'a [BatchHeader],
    /// Proves their place in the certified ledger. A range delta does not need it: its headers continue the store's
    /// own.
    pub proof: &'a AccumulatorRangeProof,
    /// Proves the place of the store's genesis in that ledger. A range delta does not need it.
    pub genesis_proof: &'a AccumulatorRangeProof,
}

/// A takeover in progress, for many threads at once.
pub trait Takeover: Send + Sync {
    /// The batch whose state becomes the head's.
    fn target(&self) -> &RestoreTarget;

    /// Returns up to `max` ranges of paths whose chunks are missing, from the first path on; none once all are there.
    /// They may be fetched and added at the same time and in any order. Ranges in flight are still among them; the
    /// caller knows which.
    fn missing(&self, max: usize) -> Vec<Span>;

    /// Returns where the first missing chunk starts; `None` once all are there.
    fn next_path(&self) -> Option<Path> {
        self.missing(1).first().map(|span| span.first)
    }

    /// Number of rows, or changes, of this target so far.
    fn rows(&self) -> u64;

    /// Share of the state's paths that is done, 0 to 1. Paths are hashes, so this is the share of the rows too.
    fn share(&self) -> f64;

    /// Returns up to `max` hashes of code that accounts in the chunks so far name and the store lacks.
    ///
    /// # Errors
    /// Errors of the disk, or damage in the store.
    fn missing_codes(&self, max: usize) -> Result<Vec<Digest>, StorageError>;

    /// Returns up to `max` hashes of missing code that are known without cost while chunks are missing. So code can be
    /// fetched beside chunks.
    fn early_codes(&self, _max: usize) -> Vec<Digest> {
        Vec::new()
    }

    /// Adds missing code, identified by its Keccak-256.
    ///
    /// # Errors
    /// [`crate::RestoreError::UnwantedCode`] or [`crate::RangeDeltaError::UnwantedCode`] if it is not missing;
    /// [`crate::RangeDeltaError::OverBudget`]; or errors of the disk.
    fn add_code(&self, code: &[u8]) -> Result<(), StorageError>;

    /// Makes the target the head in one durable write, if nothing is missing and the headers lead to the certified ledger.
    ///
    /// # Errors
    /// [`crate::RestoreError`] and [`crate::RangeDeltaError`] name the missing or unfitting part.
    /// [`StorageError::WrongCertificate`] if the certificate ends an epoch while the end of an earlier one is missing. The head has
    /// not moved then.
    fn finish(&self, ancestry: &Ancestry<'_>) -> Result<(), StorageError>;
}

/// Whether each header continues the one before it. `digests` are those of the headers, in their order.
pub(crate) fn follow_each_other(headers: &[BatchHeader], digests: &[Digest]) -> bool {
    headers
        .windows(2)
        .zip(digests)
        .all(|(pair, digest)| Some(pair[0].number) == pair[1].number.previous() && pair[1].parent == *digest)
}
