//! Headers and certificates.

use slipstream_types::{
    Address, BatchHeader, BatchNumber, Certificate, Digest, Epoch, LedgerInfo, RulesId, SecretKey, Totals,
    ValidatorSet, accumulator::Accumulator,
};

/// Milliseconds between two batches of [`next_header`].
pub const BATCH_INTERVAL_MS: u64 = 100;

/// Batches that [`certify`] signs in one view. It is small, so that code that expects view 0 everywhere fails on a
/// short chain.
const VIEW_BATCHES: u64 = 3;

/// Returns a header of epoch 0 without transactions; its other fields are zero.
pub fn header(number: u64, parent: Digest) -> BatchHeader {
    BatchHeader {
        number: BatchNumber::new(number),
        parent,
        epoch: Epoch(0),
        rules: RulesId::GENESIS,
        timestamp_ms: 0,
        proposer: Address::ZERO,
        tx_count: 0,
        tx_bytes: 0,
        gas_used: 0,
        delta_bytes: 0,
        transactions_root: Digest::ZERO,
        receipts_root: Digest::ZERO,
        delta_digest: Digest::ZERO,
        state_root: Digest::ZERO,
        totals: Totals::default(),
    }
}

/// Returns the header of an empty child batch: same epoch, [`BATCH_INTERVAL_MS`] later, with this state root.
pub fn next_header(parent: &BatchHeader, state_root: Digest) -> BatchHeader {
    BatchHeader {
        epoch: parent.epoch,
        timestamp_ms: parent.timestamp_ms + BATCH_INTERVAL_MS,
        state_root,
        totals: parent.totals,
        ..header(parent.number.get() + 1, parent.digest())
    }
}

/// A placeholder `LedgerInfo` with zero roots and time, for tests that look at epochs, numbers and signatures alone.
pub fn info(epoch: u64, number: u64) -> LedgerInfo {
    LedgerInfo {
        epoch: Epoch(epoch),
        number: BatchNumber::new(number),
        accumulator_root: Digest::ZERO,
        state_root: Digest::ZERO,
        timestamp_ms: 0,
        next_validators: None,
    }
}

/// Signs `info` with these keys, as validators 0, 1, 2 and so on in view 0.
///
/// # Panics
/// If there are more keys than a certificate holds.
pub fn sign(info: LedgerInfo, keys: &[SecretKey]) -> Certificate {
    Certificate::signed(info, 0, (0..).zip(keys)).expect("a test has few validators")
}

/// Certifies a batch with these keys: validators 0, 1, 2 and so on, in views of three batches each. `before`
/// accumulates all earlier headers. `next` is the next epoch's validators if the batch ends its epoch.
///
/// # Panics
/// As [`sign`].
pub fn certify(
    before: &Accumulator,
    header: &BatchHeader,
    next: Option<ValidatorSet>,
    keys: &[SecretKey],
) -> Certificate {
    let mut accumulator = before.clone();
    accumulator.append(header.digest());
    let info = LedgerInfo::of(header, accumulator.root(), next);
    let view = info.number.get() / VIEW_BATCHES;
    Certificate::signed(info, view, (0..).zip(keys)).expect("a test has few validators")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{keys, set};

    /// Goal: the chain is a valid ledger: each header follows its parent, and a quorum signs the root over all of them.
    #[test]
    fn a_chain_of_headers_is_certified() {
        let keys = keys(1..=4);
        let mut accumulator = Accumulator::default();
        let mut parent = header(0, Digest::ZERO);
        accumulator.append(parent.digest());
        for number in 1..=3 {
            let next = next_header(&parent, Digest([number; 32]));
            assert_eq!((next.number, next.parent), (parent.number.next(), parent.digest()));
            assert_eq!(next.timestamp_ms, parent.timestamp_ms + BATCH_INTERVAL_MS);
            let certificate = certify(&accumulator, &next, None, &keys[..3]);
            accumulator.append(next.digest());
            assert_eq!(certificate.info, LedgerInfo::of(&next, accumulator.root(), None));
            certificate.verify(&set(0, &keys, Address::ZERO)).unwrap();
            parent = next;
        }
    }
}
