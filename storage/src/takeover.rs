//! [`Takeover`]: a later certified state on its way to become the head's, without the batches between.
//!
//! There are two. A [`crate::Restore`] takes all rows of a snapshot into the unused state column; it is recorded, and a kill costs
//! little of it. A [`crate::RangeDeltaTakeover`] takes what changed since the head; it is in memory until its last write. Their
//! chunks differ, so each has its own `add`; callers treat both alike otherwise.

use slipstream_types::{BatchHeader, Certificate, Digest, Path, accumulator::AccumulatorRangeProof};

use crate::{error::StorageError, spans::Span};

/// The batch whose state is restored. The caller has verified the certificate's signatures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RestoreTarget {
    /// The header of the target batch.
    pub header: BatchHeader,
    /// Certifies exactly this batch.
    pub certificate: Certificate,
}

impl RestoreTarget {
    /// Whether header and certificate belong together.
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
    /// Headers that follow each other; the last is the target's. A restore takes up to [`crate::RESTORE_HEADERS_MAX`] of them; a
    /// range delta takes all from the head on.
    pub headers: &'a [BatchHeader],
    /// Their place in the certified ledger. A range delta needs none: its headers begin at the store's own.
    pub proof: &'a AccumulatorRangeProof,
    /// The place of the store's genesis in it. A range delta needs none.
    pub genesis_proof: &'a AccumulatorRangeProof,
}

/// A takeover in progress, for many threads at once.
pub trait Takeover: Send + Sync {
    /// The batch whose state becomes the head's.
    fn target(&self) -> &RestoreTarget;

    /// Up to `max` ranges of paths whose chunks are missing, from the first path on; none when all are in. They may be fetched and
    /// added at the same time and in any order. Ranges under way are still among them; the caller knows which.
    fn missing(&self, max: usize) -> Vec<Span>;

    /// Where the first chunk that is missing starts; none when all are in.
    fn next_path(&self) -> Option<Path> {
        self.missing(1).first().map(|span| span.first)
    }

    /// Rows, or changes, of this target so far.
    fn rows(&self) -> u64;

    /// Share of the state's paths that is done, 0 to 1: paths are hashes, so this is the share of the rows too.
    fn share(&self) -> f64;

    /// Up to `max` hashes of code that accounts of the chunks so far have and the store does not.
    ///
    /// # Errors
    /// Errors of the disk, or damage in the store.
    fn missing_codes(&self, max: usize) -> Result<Vec<Digest>, StorageError>;

    /// Up to `max` of those hashes that are known already, at no cost, while chunks are missing: code may then come beside them.
    fn early_codes(&self, _max: usize) -> Vec<Digest> {
        Vec::new()
    }

    /// Adds code that is missing, by its Keccak-256.
    ///
    /// # Errors
    /// [`crate::RestoreError::UnwantedCode`] or [`crate::RangeDeltaError::UnwantedCode`] if it is not one of the missing ones;
    /// [`crate::RangeDeltaError::OverBudget`]; or what the disk says.
    fn add_code(&self, code: &[u8]) -> Result<(), StorageError>;

    /// Makes the target the head in one durable write, if nothing is missing and the headers lead to the certified ledger.
    ///
    /// # Errors
    /// [`crate::RestoreError`] and [`crate::RangeDeltaError`] name the missing or unfitting part.
    /// [`StorageError::WrongCertificate`] if the certificate ends an epoch while the end of an earlier one is missing. The head has
    /// not moved then.
    fn finish(&self, ancestry: &Ancestry<'_>) -> Result<(), StorageError>;
}
