//! [`Verdicts`]: counts the refusals by other validators that end a transaction here.

use std::collections::{BTreeSet, HashMap};

use alloy_primitives::B256;
use slipstream_network::PeerId;

/// Maximum number of transactions that some validators have refused, but not yet enough of them.
const OPEN_MAX: usize = 4_096;

/// Counts the validators that call a user's acknowledged transaction not executable. The transaction is dropped once
/// `enough` validators do, because one of them is then honest. The primary alone is not enough where validators may
/// lie, because each becomes the primary in its turn. Other peers do not count.
#[derive(Debug)]
pub(super) struct Verdicts {
    validators: BTreeSet<PeerId>,
    /// Number of validators that include an honest one.
    enough: usize,
    open: HashMap<B256, BTreeSet<PeerId>>,
}

impl Verdicts {
    /// Makes an empty count; `enough` validators include an honest one.
    pub(super) fn new(validators: &[PeerId], enough: usize) -> Verdicts {
        Verdicts { validators: validators.iter().copied().collect(), enough, open: HashMap::new() }
    }

    /// Sets the validators. Earlier verdicts still count while the set is the same, whichever validator is the primary.
    pub(super) fn follow(&mut self, validators: &[PeerId], enough: usize) {
        let next = Verdicts::new(validators, enough);
        if (&next.validators, next.enough) != (&self.validators, self.enough) {
            *self = next;
        }
    }

    /// Notes that this peer calls the transaction not executable. Returns whether that settles it.
    pub(super) fn is_settled_by(&mut self, peer: &PeerId, hash: B256) -> bool {
        if !self.validators.contains(peer) {
            return false;
        }
        if self.open.len() >= OPEN_MAX && !self.open.contains_key(&hash) {
            self.open.clear();
        }
        let said = self.open.entry(hash).or_default();
        said.insert(*peer);
        if said.len() < self.enough {
            return false;
        }
        self.open.remove(&hash);
        true
    }
}

#[cfg(test)]
mod tests {
    use slipstream_types::PublicKey;

    use super::*;

    /// Goal: neither one lying validator, even as the primary, nor any number of other peers can end a transaction.
    #[test]
    fn as_many_as_have_an_honest_one() {
        let validators: Vec<PeerId> = (0..7).map(|byte| PublicKey([byte; 32])).collect();
        let mut verdicts = Verdicts::new(&validators, 3);
        let hash = B256::repeat_byte(1);
        assert!(!verdicts.is_settled_by(&PublicKey([99; 32]), hash));
        for validator in [0, 0, 4, 0] {
            assert!(!verdicts.is_settled_by(&validators[validator], hash));
        }
        let mut rotated = validators.clone();
        rotated.rotate_left(1);
        verdicts.follow(&rotated, 3);
        assert!(verdicts.is_settled_by(&validators[6], hash));
        assert!(verdicts.open.is_empty());
        // The given `enough` counts, whatever a third of the set would be.
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
