//! [`Slot`]: what was said of one batch in the view that is on.

use std::collections::BTreeMap;

use slipstream_types::{Digest, LedgerInfo, bounded::BoundedVec};

use crate::message::{Signatures, Vote};

/// What each validator said; signatures are checked before they come here.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Slot {
    /// Tokens by executor: the last that it said, because it executes again on another outcome of the batch before.
    pub(crate) verifies: BTreeMap<u16, Digest>,
    /// What the tokens stand for.
    pub(crate) infos: BTreeMap<Digest, LedgerInfo>,
    pub(crate) prepares: BTreeMap<u16, Vote>,
    pub(crate) commits: BTreeMap<u16, Vote>,
}

impl Slot {
    pub(crate) fn verify(&mut self, seat: u16, info: LedgerInfo) {
        let token = info.digest();
        self.verifies.insert(seat, token);
        self.infos.insert(token, info);
        // What a quorum prepares must stay known; what nobody stands for is forgotten.
        let (verifies, prepares) = (&self.verifies, &self.prepares);
        self.infos.retain(|it, _| {
            verifies.values().any(|token| token == it)
                || prepares.values().any(|vote| vote.ballot.token == *it)
        });
    }

    /// The token that so many executors got.
    pub(crate) fn verified(&self, enough: usize) -> Option<Digest> {
        most(self.verifies.values().copied()).filter(|(_, count)| *count >= enough).map(|(token, _)| token)
    }

    /// Whether some executors got another token than others.
    pub(crate) fn differ(&self) -> bool {
        self.verifies.values().any(|token| Some(token) != self.verifies.values().next())
    }

    /// Whether no token can get so many any more, of so many executors.
    pub(crate) fn is_hopeless(&self, enough: usize, executors: usize) -> bool {
        let silent = executors.saturating_sub(self.verifies.len());
        let best = most(self.verifies.values().copied()).map_or(0, |(_, count)| count);
        best + silent < enough
    }
}

/// The token that most voted for, if these are enough, with their signatures.
pub(crate) fn quorum(votes: &BTreeMap<u16, Vote>, enough: usize) -> Option<(Digest, Signatures)> {
    let (token, count) = most(votes.values().map(|vote| vote.ballot.token))?;
    if count < enough {
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
