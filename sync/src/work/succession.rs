//! Whether the validators that certificates name for the next epoch are those that the state wants. A quorum decides what the ledger is;
//! to whom it passes on is for the owner of the validators contract, and every node has the contract's rows, however it came by them.

use slipstream_executor::ValidatorsStorage;
use slipstream_storage::{CommitBatch, View};
use slipstream_types::{BatchHeader, BatchNumber, Certificate, Epoch, ValidatorSet};

use super::Worker;
use crate::SyncError;

/// The certified end of one epoch, if it is known.
struct End {
    epoch: Epoch,
    certificate: Option<Certificate>,
}

impl Worker {
    /// Checks the batches that are about to be committed on the state of `base`, each of which `certificates` tells the certificate of
    /// its range. On a chain whose genesis names no validators contract there is nothing to compare with.
    ///
    /// # Errors
    /// [`SyncError::WrongSuccession`] for the first batch that is certified with other validators.
    pub(super) fn check_succession<'a>(
        &self,
        base: &View,
        batches: impl Iterator<Item = (CommitBatch<'a>, &'a Certificate)>,
    ) -> Result<(), SyncError> {
        if self.validators_contract.is_none() {
            return Ok(());
        }
        let mut storage = ValidatorsStorage::new(self.validators_contract);
        let mut end: Option<End> = None;
        for (batch, certificate) in batches {
            let header = batch.header;
            storage.apply(batch.delta);
            let wanted = storage.next_validators(header, base)?;
            if certificate.info.number == header.number {
                compare(header, certificate.info.next_validators.as_ref(), wanted.as_ref())?;
                continue;
            }
            if end.as_ref().is_none_or(|end| end.epoch != header.epoch) {
                let certificate = self.store.epoch_ends(header.epoch, 1)?.pop();
                end = Some(End { epoch: header.epoch, certificate });
            }
            let known = end.as_ref().and_then(|end| end.certificate.as_ref());
            if known.is_none() && certificate.info.epoch > header.epoch {
                // Its end is proved, and on its way to the store: what is compared is not here yet.
                continue;
            }
            let ends_here = known.filter(|end| end.info.number == header.number);
            compare(header, ends_here.and_then(|end| end.info.next_validators.as_ref()), wanted.as_ref())?;
        }
        Ok(())
    }

    /// Checks the head, which was taken over with its certificate.
    pub(super) fn check_head_succession(&self) -> Result<(), SyncError> {
        let view = self.store.view()?;
        let header = view.head();
        let Some(certificate) = self.store.certificate(header.number)? else { return Ok(()) };
        let wanted = ValidatorsStorage::new(self.validators_contract).next_validators(header, &view)?;
        match self.validators_contract {
            Some(_) => compare(header, certificate.info.next_validators.as_ref(), wanted.as_ref()),
            None => Ok(()),
        }
    }
}

fn compare(
    header: &BatchHeader,
    certified: Option<&ValidatorSet>,
    wanted: Option<&ValidatorSet>,
) -> Result<(), SyncError> {
    if certified == wanted {
        return Ok(());
    }
    let number: BatchNumber = header.number;
    let (certified, wanted) = (describe(certified), describe(wanted));
    Err(SyncError::WrongSuccession { number, epoch: header.epoch, certified, wanted })
}

fn describe(set: Option<&ValidatorSet>) -> String {
    let Some(set) = set else { return "no change".into() };
    let keys: Vec<_> = set.validators.iter().map(|validator| validator.public_key.short()).collect();
    format!(
        "{} ({} of any kind and {} of commission may fail)",
        keys.join(" "),
        set.failures.any,
        set.failures.commission
    )
}
