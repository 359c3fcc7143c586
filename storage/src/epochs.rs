//! The certificates that end epochs. Each names the next epoch's validators, so that all of them together lead from
//! the genesis to the current validators. They are few, and never pruned: a node that begins anew needs every one.

use std::{
    cmp::Ordering,
    ops::ControlFlow,
    sync::{Arc, atomic},
};

use slipstream_types::{BatchHeader, BatchNumber, Certificate, Epoch, LedgerInfo, ValidatorSet};

use crate::{
    backend::{Column, Direction, Reader, WriteBatch},
    error::StorageError,
    nodes::load_accumulator,
    schema,
    store::Store,
    writer::Writer,
};

/// See [`slipstream_types::ValidatorSet::check`].
const NO_SET: &str = "its validator set for the next epoch is empty, has duplicates, or is too small for the failures to tolerate";

impl Store {
    /// Returns the validators of the batch after the head. Later epochs may be known already; see [`Store::epoch`].
    ///
    /// # Errors
    /// [`StorageError::NotInitialized`], or if the database is damaged.
    pub fn next_set(&self) -> Result<Arc<ValidatorSet>, StorageError> {
        let head = self.head()?.header;
        let last = self.0.next_set.lock().clone();
        // The set is still valid if the head has not ended its epoch: otherwise `self.epoch()` would be later.
        let goes_on = |set: &Arc<ValidatorSet>| set.epoch == head.epoch && self.epoch() == head.epoch;
        if let Some(set) = last.filter(goes_on) {
            return Ok(set);
        }
        let set = Arc::new(self.read_next_set(&head)?);
        *self.0.next_set.lock() = Some(Arc::clone(&set));
        Ok(set)
    }

    fn read_next_set(&self, head: &BatchHeader) -> Result<ValidatorSet, StorageError> {
        let before = Epoch(head.epoch.0.saturating_sub(1));
        let mut ends = self.epoch_ends(before, 2)?;
        // The head's own epoch continues until its last batch; the end of the epoch before names its validators.
        ends.retain(|end| end.info.epoch < head.epoch || end.info.number == head.number);
        match ends.pop().and_then(|end| end.info.next_validators) {
            Some(next) => Ok(next),
            None if head.epoch == Epoch(0) => Ok(self.genesis()?.validator_set()),
            None => {
                Err(StorageError::corrupt(format!("the certificate that ends epoch {before} is missing")))
            }
        }
    }

    /// Returns the certificates that end epochs, from that of `first` on without a gap: at most `max`.
    pub fn epoch_ends(&self, first: Epoch, max: usize) -> Result<Vec<Certificate>, StorageError> {
        epoch_ends_of(&*self.0.backend, first, max)
    }

    /// Returns the certificate that ends an epoch with this batch, if one does.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn epoch_end_at(&self, number: BatchNumber) -> Result<Option<Certificate>, StorageError> {
        let (mut first, mut behind) = (0, self.epoch().0);
        while first < behind {
            let middle = u64::midpoint(first, behind);
            let Some(end) = self.epoch_ends(Epoch(middle), 1)?.pop() else { return Ok(None) };
            match end.info.number.cmp(&number) {
                Ordering::Equal => return Ok(Some(end)),
                Ordering::Less => first = middle + 1,
                Ordering::Greater => behind = middle,
            }
        }
        Ok(None)
    }

    /// Returns the ledger info that validators sign for a batch, whether or not the store has its certificate.
    /// Returns `None` if the batch's header or the ledger before it is missing. If the batch ends its epoch, the
    /// validators of the next one come from the certificate that ends the epoch.
    pub fn ledger_info(&self, number: BatchNumber) -> Result<Option<LedgerInfo>, StorageError> {
        if number == BatchNumber::GENESIS {
            return Ok(Some(self.genesis()?.ledger_info()?));
        }
        if let Some(certificate) = self.certificate(number)? {
            return Ok(Some(certificate.info));
        }
        let Some(header) = self.header(number)? else { return Ok(None) };
        let Some(accumulator) = load_accumulator(&*self.0.backend, number)? else { return Ok(None) };
        let end = self.epoch_ends(header.epoch, 1)?.pop().filter(|end| end.info.number == number);
        let next_validators = end.and_then(|end| end.info.next_validators);
        Ok(Some(LedgerInfo::of(&header, accumulator.root(), next_validators)))
    }

    /// Durably stores the certificate that ends the last known epoch; its batch need not be stored yet. A certificate
    /// that is stored already is not an error. The caller has verified its signatures. Certificates that come with a
    /// batch do not need this call.
    ///
    /// # Errors
    /// [`StorageError::WrongCertificate`] if it names no validators for the next epoch, if an epoch end before it is
    /// missing, or if another batch ends its epoch.
    pub fn put_epoch_end(&self, certificate: &Certificate) -> Result<(), StorageError> {
        let writer = self.writer();
        self.current()?;
        if certificate.info.next_validators.is_none() {
            return Err(refused(
                certificate,
                "it does not end an epoch: it names no validators for the next epoch",
            ));
        }
        let mut writes = WriteBatch::default();
        let known = writer.stage_epoch_end(self.epoch(), certificate, &mut writes)?;
        if known > self.epoch() {
            self.write(writes, true)?;
            writer.learn_epoch(known);
        }
        Ok(())
    }
}

impl Writer<'_> {
    /// If a certificate ends an epoch, adds it to the writes. Returns the last epoch that is known once they are
    /// written.
    pub(crate) fn stage_epoch_end(
        &self,
        known: Epoch,
        certificate: &Certificate,
        writes: &mut WriteBatch,
    ) -> Result<Epoch, StorageError> {
        let info = &certificate.info;
        let Some(next) = &info.next_validators else { return Ok(known) };
        if info.epoch > known {
            return Err(refused(certificate, "the store lacks the end of an earlier epoch"));
        }
        if next.epoch.0.checked_sub(1) != Some(info.epoch.0) {
            return Err(refused(certificate, "it names validators, but not for the next epoch"));
        }
        if next.check().is_err() {
            return Err(refused(certificate, NO_SET));
        }
        if info.epoch < known {
            return match self.store.epoch_ends(info.epoch, 1)?.first() {
                Some(stored) if stored.info == *info => Ok(known),
                _ => Err(refused(certificate, "its epoch ends with another batch")),
            };
        }
        writes.put(Column::EpochEnds, schema::epoch_key(info.epoch), schema::encode(certificate));
        Ok(next.epoch)
    }

    /// Publishes the last known epoch, once it is written.
    pub(crate) fn learn_epoch(&self, known: Epoch) {
        self.store.0.epoch.store(known.0, atomic::Ordering::Release);
    }
}

/// As [`Store::epoch_ends`], on any reader.
pub(crate) fn epoch_ends_of(
    reader: &dyn Reader,
    first: Epoch,
    max: usize,
) -> Result<Vec<Certificate>, StorageError> {
    let mut ends: Vec<Certificate> = Vec::new();
    if max == 0 {
        return Ok(ends);
    }
    let key = schema::epoch_key(first);
    reader.scan(Column::EpochEnds, &key, Direction::Up, &mut |key, value| {
        let due = first.0.checked_add(ends.len() as u64).map(|epoch| schema::epoch_key(Epoch(epoch)));
        if due.is_none_or(|due| due != key) {
            return Ok(ControlFlow::Break(()));
        }
        ends.push(schema::decode("epoch end", value)?);
        Ok(if ends.len() == max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(ends)
}

/// Loads the last epoch whose validators a database names.
pub(crate) fn load_epoch(reader: &dyn Reader) -> Result<Epoch, StorageError> {
    let mut known = Epoch(0);
    let last = schema::epoch_key(Epoch(u64::MAX));
    reader.scan(Column::EpochEnds, &last, Direction::Down, &mut |_, value| {
        let end: Certificate = schema::decode("epoch end", value)?;
        known = end.info.next_validators.map_or(known, |next| next.epoch);
        Ok(ControlFlow::Break(()))
    })?;
    Ok(known)
}

fn refused(certificate: &Certificate, reason: &'static str) -> StorageError {
    let number: BatchNumber = certificate.info.number;
    StorageError::WrongCertificate { number, reason }
}
