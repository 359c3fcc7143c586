//! [`Verdicts`]: which word of others ends a transaction here.

use std::collections::{BTreeSet, HashMap};

use alloy_primitives::B256;
use slipstream_network::PeerId;

/// Transactions that some validators, not yet enough, have refused.
const OPEN_MAX: usize = 4_096;

/// A transaction that a user was told is taken is dropped when the proposer says that it cannot be executed, or more validators
/// than may be faulty: they have it from the proposer. No other peer's word ends it.
#[derive(Debug)]
pub(super) struct Verdicts {
    validators: Vec<PeerId>,
    open: HashMap<B256, BTreeSet<PeerId>>,
}

impl Verdicts {
    /// The proposer first.
    pub(super) fn new(validators: &[PeerId]) -> Verdicts {
        Verdicts { validators: validators.to_vec(), open: HashMap::new() }
    }

    /// Whether this peer's word that the transaction cannot be executed settles it.
    pub(super) fn is_settled_by(&mut self, peer: &PeerId, hash: B256) -> bool {
        match self.validators.iter().position(|validator| validator == peer) {
            None => return false,
            Some(0) => {}
            Some(_) => {
                if self.open.len() >= OPEN_MAX && !self.open.contains_key(&hash) {
                    self.open.clear();
                }
                let said = self.open.entry(hash).or_default();
                said.insert(*peer);
                if said.len() <= self.validators.len().saturating_sub(1) / 3 {
                    return false;
                }
            }
        }
        self.open.remove(&hash);
        true
    }
}

#[cfg(test)]
mod tests {
    use slipstream_types::PublicKey;

    use super::*;

    /// Goal: one lying validator or any number of other peers cannot end a transaction.
    #[test]
    fn the_proposer_or_more_than_may_be_faulty() {
        let validators: Vec<PeerId> = (0..7).map(|byte| PublicKey([byte; 32])).collect();
        let mut verdicts = Verdicts::new(&validators);
        let hash = B256::repeat_byte(1);
        assert!(!verdicts.is_settled_by(&PublicKey([99; 32]), hash));
        for validator in [3, 3, 4, 3] {
            assert!(!verdicts.is_settled_by(&validators[validator], hash));
        }
        assert!(verdicts.is_settled_by(&validators[6], hash));
        assert!(verdicts.is_settled_by(&validators[0], hash));
        assert!(verdicts.open.is_empty());
        for byte in 0..=255 {
            for next in 0..20 {
                verdicts.is_settled_by(&validators[1], B256::right_padding_from(&[byte, next]));
            }
        }
        assert!(verdicts.open.len() <= OPEN_MAX);
    }
}
