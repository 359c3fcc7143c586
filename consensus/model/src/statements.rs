//! [`StatementSet`]: all that honest validators have said, and what that lets the liar say.
//!
//! The set only grows. A said message may arrive at any time, any number of times, in any order, or never. That covers loss, delay,
//! repetition and reordering.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use slipstream_eve::{Ballot, Message, Prepared};
use slipstream_types::{BatchNumber, Certificate, Digest, Signature};

use crate::{
    constants::{Constants, InfosByToken},
    item::{Item, OutcomeRef, Statement, hash},
    violation::{Violation, ViolationKind},
};

/// See the module.
#[derive(Debug)]
pub(crate) struct StatementSet {
    pub(crate) items: BTreeMap<(Statement, u16), Arc<Item>>,
    pub(crate) keys: BTreeSet<u64>,
    pub(crate) key: u64,
    pub(crate) menu: Vec<Arc<Item>>,
    /// Outcomes that a quorum may have prepared, and those that may be certified, if the liar adds its votes.
    pub(crate) prepared: BTreeMap<OutcomeRef, Prepared>,
    pub(crate) decided: BTreeMap<OutcomeRef, Certificate>,
    pub(crate) wrong: Option<Violation>,
}

impl StatementSet {
    /// The empty set.
    pub(crate) fn empty() -> StatementSet {
        StatementSet {
            items: BTreeMap::new(),
            keys: BTreeSet::new(),
            key: 0,
            menu: Vec::new(),
            prepared: BTreeMap::new(),
            decided: BTreeMap::new(),
            wrong: None,
        }
    }

    /// The items by content, then by sender.
    pub(crate) fn items(&self) -> impl Iterator<Item = &Arc<Item>> {
        self.items.values()
    }

    /// The messages that the liar may send now, in an order that depends only on this set.
    pub(crate) fn menu(&self) -> impl Iterator<Item = &Arc<Item>> {
        self.menu.iter()
    }

    /// Whether the item with that key was said.
    pub(crate) fn contains(&self, key: u64) -> bool {
        self.keys.contains(&key)
    }

    /// A key that changes when a seat says something new.
    pub(crate) fn of(&self, seat: u16) -> u64 {
        let own = self.items().filter(|item| item.from == seat || item.is_anybodys());
        own.fold(0, |key, item| key.wrapping_add(item.key))
    }

    /// Hashes the statements that still count once all honest validators are in this view or above. Statements of views
    /// that all have left count only through the proofs that a quorum of them gives.
    pub(crate) fn fingerprint(&self, lowest_view: u64) -> u64 {
        let open = self.items().filter(|item| item.statement.view() >= lowest_view || item.is_anybodys());
        let open = open.fold(0_u64, |key, item| key.wrapping_add(item.key));
        let is_left = |shown: &&OutcomeRef| shown.0 < lowest_view;
        let prepared: Vec<_> = self.prepared.keys().filter(is_left).collect();
        let decided: Vec<_> = self.decided.keys().filter(is_left).collect();
        hash(&(open, prepared, decided, &self.wrong))
    }

    /// The ledger infos of the tokens that honest validators said.
    pub(crate) fn infos(&self, constants: &Constants) -> BTreeMap<BatchNumber, InfosByToken> {
        let mut infos = BTreeMap::<BatchNumber, InfosByToken>::new();
        let genesis = constants.genesis.clone();
        infos.entry(genesis.number).or_default().insert(genesis.digest(), genesis);
        for item in self.items() {
            if let Message::Verify(verify) = &item.message {
                infos
                    .entry(verify.info.number)
                    .or_default()
                    .insert(verify.info.digest(), verify.info.clone());
            }
        }
        infos
    }

    pub(crate) fn votes(&self) -> (Votes, Votes) {
        let (mut prepares, mut commits) = (Votes::new(), Votes::new());
        for item in self.items() {
            match &item.message {
                Message::Prepare(vote) => {
                    prepares.entry(vote.ballot).or_default().insert(item.from, vote.signature);
                }
                Message::Commit(vote) => {
                    commits.entry(vote.ballot).or_default().insert(item.from, vote.signature);
                }
                _ => {}
            }
        }
        (prepares, commits)
    }

    /// The violation, if the item contradicts what its author said before.
    pub(crate) fn contradicted(&self, item: &Item) -> Option<Violation> {
        let place = |statement: &Statement| match statement {
            Statement::Order { view, number, .. } => Some((0, *view, *number)),
            Statement::Prepare(it) => Some((1, it.view, it.number)),
            Statement::Commit(it) => Some((2, it.view, it.number)),
            _ => None,
        };
        let this = place(&item.statement)?;
        let is_vote = this.0 > 0;
        let mut before = self.items().filter(|other| other.from == item.from);
        let is_against = |other: &&Arc<Item>| match &other.statement {
            Statement::ViewChange { view, .. } => is_vote && *view > this.1,
            statement => place(statement) == Some(this),
        };
        let against = before.find(is_against)?;
        Some(Violation::new(ViolationKind::TwoFaced, format!("{} says {item} after {against}", item.from)))
    }

    pub(crate) fn forked(&self) -> Option<Violation> {
        let mut first = BTreeMap::new();
        self.decided.keys().find_map(|(_, number, token)| {
            let known = *first.entry(*number).or_insert(*token);
            let text =
                || format!("batch {number} can be certified as {} and as {}", known.short(), token.short());
            (known != *token).then(|| Violation::new(ViolationKind::Forked, text()))
        })
    }

    /// An outcome that a quorum prepared and no honest validator executed. A validator keeps an outcome on disk from
    /// before it announces the outcome until the number is committed.
    pub(crate) fn lost(&self) -> Option<Violation> {
        let is_said = |token: &Digest| {
            self.items()
                .any(|item| matches!(&item.statement, Statement::Verify { token: said, .. } if said == token))
        };
        let (_, number, token) = self.prepared.keys().find(|(.., token)| !is_said(token))?;
        Some(Violation::new(
            ViolationKind::Lost,
            format!("no honest validator has the outcome {} of batch {number}", token.short()),
        ))
    }

    pub(crate) fn forgotten(&self) -> Option<Violation> {
        self.decided.keys().find_map(|(view, number, token)| {
            let is_other = |it: &&OutcomeRef| it.0 > *view && it.1 == *number && it.2 != *token;
            let other = self.prepared.keys().find(is_other)?;
            let (later, text) = (other.0, (token.short(), other.2.short()));
            let text = format!(
                "batch {number} can be certified as {} in view {view} and prepared as {} in view {later}",
                text.0, text.1
            );
            Some(Violation::new(ViolationKind::Forgotten, text))
        })
    }
}

/// The signatures on each ballot, by seat.
pub(crate) type Votes = BTreeMap<Ballot, BTreeMap<u16, Signature>>;
