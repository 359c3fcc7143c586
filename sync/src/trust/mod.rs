//! [`Trust`]: the signers of each epoch, followed certificate by certificate from the genesis on.

use std::collections::BTreeMap;

use slipstream_storage::Store;
use slipstream_types::{BatchNumber, Certificate, Digest, Epoch, Genesis, ValidatorSet};

use crate::error::{SyncError, TrustError, Violation};

/// Epoch ends that are read from a store at once.
const READ_ENDS: usize = 64;

/// The validators of every epoch up to the last known one. A certificate counts only in its own epoch: keys of former
/// validators may be unguarded, and must not sign later batches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trust {
    /// The terms of all epochs from 0 on.
    terms: BTreeMap<Epoch, Term>,
}

/// The validators of one epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Term {
    set: ValidatorSet,
    /// The end of the epoch before; `None` for epoch 0, which begins with the genesis.
    after: Option<EpochEnd>,
}

/// The statement that ended an epoch. Two certificates for it may have different signers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct EpochEnd {
    number: BatchNumber,
    /// Digest of its ledger info, and so also of the next validators.
    info: Digest,
}

impl Trust {
    /// The validators of the genesis, for epoch 0.
    pub fn of_genesis(genesis: &Genesis) -> Trust {
        let first = Term { set: genesis.validator_set(), after: None };
        Trust { terms: BTreeMap::from([(Epoch(0), first)]) }
    }

    /// Reads the validators from a store's genesis and epoch ends, each end verified by the set before it.
    ///
    /// # Errors
    /// If the store lacks a genesis or is unreadable; [`SyncError::WrongEpochEnd`] if it holds an end that its validators did
    /// not sign.
    pub fn of(store: &Store) -> Result<Trust, SyncError> {
        let mut trust = Self::of_genesis(&store.genesis()?);
        loop {
            let epoch = trust.epoch();
            let ends = store.epoch_ends(epoch, READ_ENDS)?;
            trust.learn(&ends).map_err(|source| SyncError::WrongEpochEnd { epoch, source })?;
            if ends.len() < READ_ENDS {
                return Ok(trust);
            }
        }
    }

    /// The last epoch whose validators are known.
    pub fn epoch(&self) -> Epoch {
        self.terms.keys().next_back().copied().unwrap_or_default()
    }

    /// The validators of the last known epoch.
    pub fn set(&self) -> &ValidatorSet {
        let (_, term) = self.terms.last_key_value().expect("epoch 0 is always known");
        &term.set
    }

    /// The validators of an epoch, if it is known.
    pub(crate) fn set_of(&self, epoch: Epoch) -> Option<&ValidatorSet> {
        self.terms.get(&epoch).map(|term| &term.set)
    }

    /// Checks that a quorum of its epoch signed a certificate, and that its batch is in that epoch as far as is known.
    ///
    /// # Errors
    /// [`TrustError::UnknownEpoch`] for an epoch after the last known one; otherwise the violation.
    pub fn verify(&self, certificate: &Certificate) -> Result<(), TrustError> {
        let (number, epoch) = (certificate.info.number, certificate.info.epoch);
        let Some(term) = self.terms.get(&epoch) else {
            return Err(TrustError::UnknownEpoch { number, epoch, known: self.epoch() });
        };
        let last = self.term_after(epoch).and_then(|next| next.after);
        if last.is_some_and(|end| number > end.number) || term.after.is_some_and(|end| number <= end.number) {
            return Err(Violation::OutsideEpoch { number, epoch }.into());
        }
        Ok(certificate.verify(&term.set).map_err(Violation::from)?)
    }

    /// Learns epoch ends, each verified by the validators of the epoch that it ends. Known ends change nothing, and
    /// their signatures are not checked.
    ///
    /// # Errors
    /// The fault of the first refused certificate; those before it are learned.
    pub fn learn(&mut self, certificates: &[Certificate]) -> Result<(), Violation> {
        certificates.iter().try_for_each(|certificate| self.learn_end(certificate).map(|_| ()))
    }

    /// As [`Trust::learn`], for one certificate. Returns whether it is news. Checks that cost no signature come first.
    pub(crate) fn learn_end(&mut self, certificate: &Certificate) -> Result<bool, Violation> {
        let info = &certificate.info;
        let (number, epoch) = (info.number, info.epoch);
        let wrong = |reason| Violation::WrongEpochEnd { number, epoch, reason };
        let next = info.next_validators.as_ref();
        let next = next.ok_or_else(|| wrong("it names no validators for the next epoch"))?;
        if next.epoch.0.checked_sub(1) != Some(epoch.0) {
            return Err(wrong("it names validators, but not for the next epoch"));
        }
        let end = EpochEnd { number, info: info.digest() };
        if self.term_after(epoch).is_some_and(|next| next.after == Some(end)) {
            return Ok(false);
        }
        // An empty set would need no signatures at all, and a set that is too small could certify two batches of one
        // number.
        if next.check().is_err() {
            return Err(wrong(
                "its validator set for the next epoch is empty, has duplicates, or is too small for the failures to tolerate",
            ));
        }
        self.verify(certificate).map_err(|error| match error {
            TrustError::UnknownEpoch { .. } => wrong("the end of an earlier epoch is missing"),
            TrustError::Violation(violation) => violation,
        })?;
        if self.terms.contains_key(&next.epoch) {
            return Err(wrong("another certificate ends the epoch"));
        }
        self.terms.insert(next.epoch, Term { set: next.clone(), after: Some(end) });
        Ok(true)
    }

    /// Whether this knows all that `other` knows, and agrees with it.
    pub(crate) fn continues(&self, other: &Trust) -> bool {
        other.terms.last_key_value().is_none_or(|(epoch, term)| self.terms.get(epoch) == Some(term))
    }

    /// The validators of the next epoch, if this batch is known to end its own.
    pub(crate) fn end_of(&self, epoch: Epoch, number: BatchNumber) -> Option<&ValidatorSet> {
        let ends_here = |next: &&Term| next.after.is_some_and(|end| end.number == number);
        self.term_after(epoch).filter(ends_here).map(|next| &next.set)
    }

    fn term_after(&self, epoch: Epoch) -> Option<&Term> {
        self.terms.get(&Epoch(epoch.0.checked_add(1)?))
    }
}

#[cfg(test)]
mod tests;
