//! [`Tip`]: a batch that another can follow, committed or only executed, with the data that the next batch needs.

use slipstream_storage::Head;
use slipstream_types::{
    BatchHeader, BatchNumber, Digest, LedgerInfo, ValidatorSet, accumulator::Accumulator,
};

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tip {
    pub(super) header: BatchHeader,
    /// Digest of the header.
    pub(super) digest: Digest,
    /// The accumulator over headers 0 to this one.
    pub(super) accumulator: Accumulator,
    /// The validators of the next epoch, if the batch ended its own.
    pub(super) next: Option<ValidatorSet>,
}

impl Tip {
    pub(super) fn number(&self) -> BatchNumber {
        self.header.number
    }

    /// The ledger info that validators sign for this batch.
    pub(super) fn info(&self) -> LedgerInfo {
        LedgerInfo::of(&self.header, self.accumulator.root(), self.next.clone())
    }

    /// Whether this is the last batch of the set's epoch: no further batch of it may be ordered or executed.
    pub(super) fn is_over(&self, set: &ValidatorSet) -> bool {
        self.next.as_ref().is_some_and(|next| next.epoch > set.epoch)
    }

    /// The tip of the batch that continues this one.
    pub(super) fn followed_by(&self, header: BatchHeader, next: Option<ValidatorSet>) -> Tip {
        let (digest, mut accumulator) = (header.digest(), self.accumulator.clone());
        accumulator.append(digest);
        Tip { header, digest, accumulator, next }
    }

    /// The tip of a committed batch, with the validators that follow it.
    pub(super) fn of(head: Head, next: Option<ValidatorSet>) -> Tip {
        let Head { header, digest, accumulator } = head;
        Tip { header, digest, accumulator, next }
    }
}
