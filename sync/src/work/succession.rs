//! Compares the next validators in certificates with those that the state wants. A quorum decides the content of the
//! ledger, but the owner of the validators contract chooses its successor. Every node has the contract's rows,
//! whichever way it got them.

use slipstream_executor::validators::ValidatorsStorage;
use slipstream_storage::{CommitBatch, Store, View};
use slipstream_types::{Address, BatchHeader, BatchNumber, Certificate, Epoch, ValidatorSet};

use super::Worker;
use crate::SyncError;

/// The certified end of one epoch, if it is known.
struct KnownEnd {
    epoch: Epoch,
    certificate: Option<Certificate>,
}

impl Worker {
    /// Checks the batches that are about to be committed on the state of `base`. Each comes with the certificate of its
    /// range. On a chain without a validators contract, nothing is compared.
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
        let mut end: Option<KnownEnd> = None;
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
                end = Some(KnownEnd { epoch: header.epoch, certificate });
            }
            let known = end.as_ref().and_then(|end| end.certificate.as_ref());
            if known.is_none() && certificate.info.epoch > header.epoch {
                // The end of its epoch is proved and on its way to the store, so nothing can be compared yet.
                continue;
            }
            let ends_here = known.filter(|end| end.info.number == header.number);
            compare(header, ends_here.and_then(|end| end.info.next_validators.as_ref()), wanted.as_ref())?;
        }
        Ok(())
    }

    /// Checks the head that a takeover led to.
    pub(super) fn check_head_succession(&self) -> Result<(), SyncError> {
        check_head(&self.store, self.validators_contract)
    }
}

/// Checks the head, however the node came to it: a takeover, an import, or an earlier process. The state must want the
/// validators after it, because the contract announces every change by a `lastBatch` at or after that change. So this
/// also detects a quorum whose epoch ends elsewhere.
///
/// Compares nothing while the contract waits for a later batch, or if it wants an invalid set.
///
/// # Errors
/// [`SyncError::WrongSuccession`], or if the store cannot be read.
pub(super) fn check_head(store: &Store, contract: Option<Address>) -> Result<(), SyncError> {
    if contract.is_none() {
        return Ok(());
    }
    let storage = ValidatorsStorage::new(contract);
    loop {
        let view = store.view()?;
        let header = view.head();
        let next = store.next_set()?;
        let certificate = store.certificate(header.number)?;
        let has_end = !store.epoch_ends(header.epoch, 1)?.is_empty();
        if store.head()?.header != *header {
            // A validator's consensus committed meanwhile.
            continue;
        }
        if let Some(certificate) = &certificate {
            let wanted = storage.next_validators(header, &view)?;
            compare(header, certificate.info.next_validators.as_ref(), wanted.as_ref())?;
        }
        let Some((last, wanted)) = storage.wanted(next.epoch, &view)? else { return Ok(()) };
        let is_pending = last.is_some_and(|last| last > header.number);
        // The proof that the epoch ends at the head may be on its way to the store.
        let is_unproved = last == Some(header.number) && certificate.is_none() && !has_end;
        return match is_pending || is_unproved {
            true => Ok(()),
            false => compare(header, Some(&next), Some(&wanted)),
        };
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
