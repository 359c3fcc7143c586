//! [`Slot`]: the statements on one batch in the present view.

use std::collections::BTreeMap;

use slipstream_types::{Digest, LedgerInfo, bounded::BoundedVec};

use crate::{
    message::{Seat, Signatures, Vote},
    planted::{Fault, lacks},
};

/// The statements of each validator on one number. The core checks signatures before they get here.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Slot {
    /// The last outcome of each executor. An executor executes again when the outcome of the batch before changes.
    pub(crate) verifies: BTreeMap<Seat, Executed>,
    /// The ledger infos that the tokens name.
    pub(crate) infos: BTreeMap<Digest, LedgerInfo>,
    pub(crate) prepares: BTreeMap<Seat, Vote>,
    pub(crate) commits: BTreeMap<Seat, Vote>,
}

/// An outcome, and the outcome that it builds on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Executed {
    /// The token of the batch before.
    pub(crate) before: Digest,
    pub(crate) token: Digest,
}

/// Counts the executors that executed on the decided batch. The others will execute again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tally {
    /// The token that most of these executors got, or `None` without executors.
    pub(crate) best: Option<Digest>,
    /// Number of executors that got the best token.
    pub(crate) alike: usize,
    /// Number of all executors that executed on the decided batch.
    pub(crate) all: usize,
}

impl Slot {
    pub(crate) fn verify(&mut self, seat: Seat, before: Digest, info: LedgerInfo) {
        let token = info.digest();
        self.verifies.insert(seat, Executed { before, token });
        self.infos.insert(token, info);
        // An outcome that a quorum may have prepared must stay known; one without supporters is forgotten.
        let (verifies, prepares) = (&self.verifies, &self.prepares);
        self.infos.retain(|it, _| {
            verifies.values().any(|executed| executed.token == *it)
                || prepares.values().any(|vote| vote.ballot.token == *it)
        });
    }

    /// Counts the executors that executed on `before`.
    pub(crate) fn tally(&self, before: Digest) -> Tally {
        let on_it = self.verifies.values().filter(|executed| executed.before == before);
        let (best, alike) = most(on_it.clone().map(|executed| executed.token)).unzip();
        Tally { best, alike: alike.unwrap_or_default(), all: on_it.count() }
    }
}

/// The token with the most votes and its signatures, if at least `enough` validators voted for it.
pub(crate) fn quorum(votes: &BTreeMap<Seat, Vote>, enough: usize) -> Option<(Digest, Signatures)> {
    let (token, count) = most(votes.values().map(|vote| vote.ballot.token))?;
    if count + usize::from(lacks(Fault::CountTwice)) < enough {
        return None;
    }
    let alike = votes.iter().filter(|(_, vote)| vote.ballot.token == token);
    let signatures = alike.map(|(seat, vote)| (*seat, vote.signature)).collect();
    Some((token, BoundedVec::new(signatures).expect("no more votes than validators")))
}

fn most(tokens: impl Iterator<Item = Digest>) -> Option<(Digest, usize)> {
    let mut counts = BTreeMap::<Digest, usize>::new();
    for token in tokens {
        *counts.entry(token).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count)
}
