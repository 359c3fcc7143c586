//! Collecting signatures on one ledger info until they are a certificate.

use std::collections::BTreeMap;

use slipstream_types::{
    BatchNumber, Certificate, CommitStatement, LedgerInfo, Signature, ValidatorSet, bounded::BoundedVec,
};

/// The view that everybody signs in while the proposer is fixed.
pub(crate) const VIEW: u64 = 0;

/// The signatures on one ledger info. Holds at most one per validator, each verified.
#[derive(Debug)]
pub(crate) struct Votes {
    info: LedgerInfo,
    statement: CommitStatement,
    signatures: BTreeMap<u16, Signature>,
}

/// What became of a signature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// It counts.
    Counted,
    /// The validator's signature is there already.
    Repeated,
    /// It is not that validator's signature on this ledger info.
    Invalid,
}

impl Votes {
    pub(crate) fn new(info: LedgerInfo) -> Votes {
        let statement = CommitStatement::new(VIEW, info.digest());
        Votes { info, statement, signatures: BTreeMap::new() }
    }

    pub(crate) fn add(&mut self, set: &ValidatorSet, index: u16, signature: Signature) -> Verdict {
        let Some(validator) = set.validators.get(usize::from(index)) else {
            return Verdict::Invalid;
        };
        if self.signatures.contains_key(&index) {
            return Verdict::Repeated;
        }
        if !self.statement.verify(&validator.public_key, &signature) {
            return Verdict::Invalid;
        }
        self.signatures.insert(index, signature);
        Verdict::Counted
    }

    /// The batch.
    pub(crate) fn number(&self) -> BatchNumber {
        self.info.number
    }

    pub(crate) fn len(&self) -> usize {
        self.signatures.len()
    }

    /// The certificate, once a quorum has signed.
    pub(crate) fn certificate(&self, set: &ValidatorSet) -> Option<Certificate> {
        if self.signatures.len() < set.quorum() {
            return None;
        }
        let signatures = self.signatures.iter().map(|(index, signature)| (*index, *signature)).collect();
        let signatures = BoundedVec::new(signatures).expect("no more signatures than validators");
        Some(Certificate { info: self.info.clone(), view: VIEW, signatures })
    }
}

#[cfg(test)]
mod tests {
    use slipstream_types::{Address, Digest, Epoch, SecretKey, Validator};

    use super::*;

    fn keys(count: u8) -> (Vec<SecretKey>, ValidatorSet) {
        let keys: Vec<_> = (0..count).map(|seed| SecretKey::from_seed([seed; 32])).collect();
        let validators = keys
            .iter()
            .map(|key| Validator { public_key: key.public(), fee_recipient: Address::ZERO })
            .collect();
        (keys, ValidatorSet::new(Epoch(0), BoundedVec::new(validators).unwrap()))
    }

    fn info(number: u64) -> LedgerInfo {
        LedgerInfo {
            epoch: Epoch(0),
            number: BatchNumber(number),
            accumulator_root: Digest::ZERO,
            state_root: Digest::ZERO,
            timestamp_ms: 0,
            next_validators: None,
        }
    }

    fn signature(number: u64, key: &SecretKey) -> Signature {
        CommitStatement::new(VIEW, info(number).digest()).sign(key)
    }

    // Only a quorum of different, valid signatures makes a certificate, in whatever order they come, and it verifies.
    #[test]
    fn quorum_of_distinct_valid_signatures() {
        let (keys, set) = keys(4);
        let mut votes = Votes::new(info(1));
        assert_eq!(votes.add(&set, 2, signature(1, &keys[2])), Verdict::Counted);
        assert_eq!(votes.add(&set, 2, signature(1, &keys[2])), Verdict::Repeated);
        assert_eq!(votes.add(&set, 1, signature(1, &keys[3])), Verdict::Invalid);
        assert_eq!(votes.add(&set, 1, signature(2, &keys[1])), Verdict::Invalid);
        assert_eq!(votes.add(&set, 4, signature(1, &keys[0])), Verdict::Invalid);
        assert_eq!(votes.add(&set, 0, signature(1, &keys[0])), Verdict::Counted);
        assert_eq!(votes.len(), 2);
        assert_eq!(votes.certificate(&set), None);
        assert_eq!(votes.add(&set, 1, signature(1, &keys[1])), Verdict::Counted);
        votes.certificate(&set).unwrap().verify(&set).unwrap();
    }
}
