//! The share of a block's reads that is predicted, and the share of predictions that is wasted.

use std::collections::BTreeSet;

use slipstream_predict::Predicted;
use slipstream_storage::{MemoryState, StateReader};
use slipstream_types::{Hints, StateKey};

use crate::hints::Case;

/// Counts of rows and code, each counted once per block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Score {
    /// The keys that the blocks read.
    reads: usize,
    /// The keys that were predicted, and therefore prefetched.
    named: usize,
    /// The predicted keys that the blocks read.
    right: usize,
}

impl Score {
    /// Adds a block for which `named` was predicted.
    pub(super) fn add(&mut self, case: &Case, named: &Hints) {
        let codes = case.expected.touched.codes.iter().map(|(hash, _)| Predicted::Code((*hash).into()));
        let reads = case.keys.iter().copied().map(Predicted::Key).chain(codes).collect();
        self.add_sets(&reads, &everything(named, &case.block.state));
    }

    fn add_sets(&mut self, reads: &BTreeSet<Predicted>, named: &BTreeSet<Predicted>) {
        self.reads += reads.len();
        self.named += named.len();
        self.right += reads.intersection(named).count();
    }

    /// Returns the share of the reads that was predicted.
    pub(super) fn predicted_share(self) -> f64 {
        self.right as f64 / self.reads.max(1) as f64
    }

    /// Returns the share of the predicted keys that no block read.
    pub(super) fn wasted_share(self) -> f64 {
        (self.named - self.right) as f64 / self.named.max(1) as f64
    }
}

/// Returns the rows that hints name, and the code of named accounts that have code.
fn everything(hints: &Hints, state: &MemoryState) -> BTreeSet<Predicted> {
    let code = |address| state.account(&address).ok()??.code_hash.map(Predicted::Code);
    let keys = hints.keys().map(|key: StateKey| Predicted::Key(key));
    keys.chain(hints.codes().filter_map(code)).collect()
}

#[cfg(test)]
mod tests {
    use slipstream_types::{Address, Digest};

    use super::*;

    #[test]
    fn shares_are_of_reads_and_of_guesses() {
        let key = |byte| Predicted::Key(StateKey::Account(Address::repeat_byte(byte)));
        let mut score = Score::default();
        score.add_sets(&[key(1), key(2), Predicted::Code(Digest::ZERO)].into(), &[key(1), key(3)].into());
        score.add_sets(&[key(1)].into(), &[key(4), key(1)].into());
        assert_eq!((score.predicted_share(), score.wasted_share()), (0.5, 0.5));
        assert_eq!(Score::default().wasted_share(), 0.0);
    }
}
