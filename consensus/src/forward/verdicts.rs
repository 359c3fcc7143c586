//! [`Verdicts`]: which word of others ends a transaction here.

use std::collections::{BTreeSet, HashMap};

use alloy_primitives::B256;
use slipstream_network::PeerId;

/// Transactions that some validators, not yet enough, have refused.
const OPEN_MAX: usize = 4_096;

/// A transaction that a user was told is taken is dropped when the proposer says that it cannot be executed, or so many
/// validators that one of them is honest: they have it from the proposer. No other peer's word ends it.
#[derive(Debug)]
pub(super) struct Verdicts {
    validators: Vec<PeerId>,
    /// So many of them that one is honest.
    enough: usize,
    open: HashMap<B256, BTreeSet<PeerId>>,
}

impl Verdicts {
    /// The proposer first; `enough` validators say what an honest one says.
    pub(super) fn new(validators: &[PeerId], enough: usize) -> Verdicts {
        Verdicts { validators: validators.to_vec(), enough, open: HashMap::new() }
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
                if said.len() < self.enough {
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
    fn the_proposer_or_as_many_as_have_an_honest_one() {
        let validators: Vec<PeerId> = (0..7).map(|byte| PublicKey([byte; 32])).collect();
        let mut verdicts = Verdicts::new(&validators, 3);
        let hash = B256::repeat_byte(1);
        assert!(!verdicts.is_settled_by(&PublicKey([99; 32]), hash));
        for validator in [3, 3, 4, 3] {
            assert!(!verdicts.is_settled_by(&validators[validator], hash));
        }
        assert!(verdicts.is_settled_by(&validators[6], hash));
        assert!(verdicts.is_settled_by(&validators[0], hash));
        assert!(verdicts.open.is_empty());
        // As many as the set says, not a third of them.
        let mut verdicts = Verdicts::new(&validators, 2);
        assert!(!verdicts.is_settled_by(&validators[3], hash));
        assert!(verdicts.is_settled_by(&validators[4], hash));
        for byte in 0..=255 {
            for next in 0..20 {
                verdicts.is_settled_by(&validators[1], B256::right_padding_from(&[byte, next]));
            }
        }
        assert!(verdicts.open.len() <= OPEN_MAX);
    }
}
