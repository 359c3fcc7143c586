//! [`Tip`]: the last committed batch, and what it allows the next one to be.

use slipstream_types::{
    BatchHeader, BatchNumber, Digest, LedgerInfo, ValidatorSet, accumulator::Accumulator,
};

use crate::error::ProposalError;

/// The last committed batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tip {
    pub(crate) header: BatchHeader,
    /// The header's digest.
    pub(crate) digest: Digest,
    /// Over the headers 0 to this one.
    pub(crate) accumulator: Accumulator,
    /// The validators of the next epoch, if the batch ended its own.
    pub(crate) next: Option<ValidatorSet>,
}

impl Tip {
    pub(crate) fn number(&self) -> BatchNumber {
        self.header.number
    }

    /// What validators sign for this batch.
    pub(crate) fn info(&self) -> LedgerInfo {
        LedgerInfo {
            next_validators: self.next.clone(),
            ..ledger_info(&self.header, self.accumulator.root())
        }
    }

    /// Whether the epoch of these validators has its last batch: nothing more of it may be proposed or signed.
    pub(crate) fn is_over(&self, set: &ValidatorSet) -> bool {
        self.next.as_ref().is_some_and(|next| next.epoch > set.epoch)
    }

    /// What validators sign for a batch that continues this one, if it does not end its epoch. Only execution tells whether it does.
    pub(crate) fn info_after(&self, header: &BatchHeader) -> LedgerInfo {
        let mut accumulator = self.accumulator.clone();
        accumulator.append(header.digest());
        ledger_info(header, accumulator.root())
    }

    /// What the header of the next batch must say before anything is executed.
    pub(crate) fn check(&self, header: &BatchHeader, set: &ValidatorSet) -> Result<(), ProposalError> {
        let number = header.number;
        if self.is_over(set) {
            return Err(ProposalError::EpochOver { number, epoch: set.epoch });
        }
        if header.parent != self.digest {
            return Err(ProposalError::WrongParent { number, expected: self.digest, found: header.parent });
        }
        let (timestamp_ms, parent_ms) = (header.timestamp_ms, self.header.timestamp_ms);
        if timestamp_ms < parent_ms {
            return Err(ProposalError::BeforeParent { number, timestamp_ms, parent_ms });
        }
        let differs = |field, expected: String, found: String| {
            Err(ProposalError::Differs { number, field, expected, found })
        };
        if header.epoch != set.epoch {
            return differs("epoch", set.epoch.to_string(), header.epoch.to_string());
        }
        let proposer = set.validators[0].fee_recipient;
        if header.proposer != proposer {
            return differs("proposer", proposer.to_string(), header.proposer.to_string());
        }
        Ok(())
    }
}

/// Without the validators of the next epoch.
fn ledger_info(header: &BatchHeader, accumulator_root: Digest) -> LedgerInfo {
    LedgerInfo {
        epoch: header.epoch,
        number: header.number,
        accumulator_root,
        state_root: header.state_root,
        timestamp_ms: header.timestamp_ms,
        next_validators: None,
    }
}
