//! [`Said`]: all that honest validators have said, and what that lets the liar say.
//!
//! The set only grows. A said message may arrive at any time, any number of times, in any order, or never. That covers loss, delay,
//! repetition and reordering.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex},
};

use slipstream_eve::{Ballot, Message, Prepared, Signatures};
use slipstream_types::{BatchNumber, Certificate, Digest, Signature, bounded::BoundedVec};

use crate::{
    ground::{Ground, Infos},
    item::{Catalog, Fact, Item, Shown, hash},
    liar,
    place::locked,
    wrong::{Kind, Wrong},
};

/// See the module.
#[derive(Debug)]
pub(crate) struct Said {
    items: BTreeMap<(Fact, u16), Arc<Item>>,
    keys: BTreeSet<u64>,
    key: u64,
    menu: Vec<Arc<Item>>,
    /// Outcomes that a quorum may have prepared, and those that may be certified, if the liar adds its votes.
    pub(crate) prepared: BTreeMap<Shown, Prepared>,
    pub(crate) decided: BTreeMap<Shown, Certificate>,
    pub(crate) wrong: Option<Wrong>,
}

/// All sets of statements that the search met.
#[derive(Default)]
pub(crate) struct Archive {
    known: Mutex<HashMap<u64, Arc<Said>>>,
}

impl Archive {
    /// Returns the set with further statements of one seat.
    pub(crate) fn with(
        &self,
        ground: &Ground,
        catalog: &Catalog,
        said: &Arc<Said>,
        more: &[Arc<Item>],
    ) -> Arc<Said> {
        let new: Vec<_> = more.iter().filter(|item| !said.contains(item.key)).cloned().collect();
        if new.is_empty() {
            return said.clone();
        }
        let key = new.iter().fold(said.key, |key, item| key.wrapping_add(item.key));
        if let Some(known) = locked(&self.known).get(&key) {
            return known.clone();
        }
        let made = Arc::new(said.and(ground, catalog, new, key));
        locked(&self.known).entry(key).or_insert(made).clone()
    }
}

impl Said {
    /// The set before any honest statement.
    pub(crate) fn nothing(ground: &Ground, catalog: &Catalog) -> Said {
        let said = Said::empty();
        let infos = said.infos(ground);
        let menu = liar::menu(ground, catalog, &said, infos);
        Said { menu, ..said }
    }

    fn empty() -> Said {
        Said {
            items: BTreeMap::new(),
            keys: BTreeSet::new(),
            key: 0,
            menu: Vec::new(),
            prepared: BTreeMap::new(),
            decided: BTreeMap::new(),
            wrong: None,
        }
    }

    fn and(&self, ground: &Ground, catalog: &Catalog, new: Vec<Arc<Item>>, key: u64) -> Said {
        let mut wrong = self.wrong.clone();
        let mut said = Said { items: self.items.clone(), keys: self.keys.clone(), ..Said::empty() };
        said.key = key;
        for item in new {
            wrong = wrong.or_else(|| said.contradicted(&item));
            said.keys.insert(item.key);
            said.items.insert((item.fact.clone(), item.from), item);
        }
        let infos = said.infos(ground);
        let known = liar::outcomes(ground, &said, &infos);
        (said.prepared, said.decided) =
            (said.shown(ground, catalog, &known), said.certified(ground, catalog, &known));
        said.wrong = wrong.or_else(|| said.forked()).or_else(|| said.forgotten()).or_else(|| said.lost());
        said.menu = liar::menu(ground, catalog, &said, infos);
        said
    }

    /// The items by content, then by sender.
    pub(crate) fn items(&self) -> impl Iterator<Item = &Arc<Item>> {
        self.items.values()
    }

    /// The messages that the liar may send now, in the same order.
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

    /// Hashes the statements that still count once all honest validators are in this view or above. Statements of left
    /// views count only for what they let a quorum show.
    pub(crate) fn fingerprint(&self, lowest_view: u64) -> u64 {
        let open = self.items().filter(|item| item.fact.view() >= lowest_view || item.is_anybodys());
        let open = open.fold(0_u64, |key, item| key.wrapping_add(item.key));
        let is_left = |shown: &&Shown| shown.0 < lowest_view;
        let prepared: Vec<_> = self.prepared.keys().filter(is_left).collect();
        let decided: Vec<_> = self.decided.keys().filter(is_left).collect();
        hash(&(open, prepared, decided, &self.wrong))
    }

    /// The ledger infos of the tokens that honest validators said.
    fn infos(&self, ground: &Ground) -> BTreeMap<BatchNumber, Infos> {
        let mut infos = BTreeMap::<BatchNumber, Infos>::new();
        let genesis = ground.genesis.clone();
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

    fn votes(&self) -> (Votes, Votes) {
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

    fn shown(
        &self,
        ground: &Ground,
        catalog: &Catalog,
        infos: &BTreeMap<BatchNumber, Infos>,
    ) -> BTreeMap<Shown, Prepared> {
        let sign = |ballot: &Ballot, seat| liar::prepare(ground, catalog, seat, *ballot);
        let all = quorums(ground, self.votes().0, sign);
        let prepared = all.filter_map(|(ballot, signatures)| {
            let info = infos.get(&ballot.number)?.get(&ballot.token)?.clone();
            Some((shown(&ballot), Prepared { view: ballot.view, info, signatures }))
        });
        prepared.collect()
    }

    fn certified(
        &self,
        ground: &Ground,
        catalog: &Catalog,
        infos: &BTreeMap<BatchNumber, Infos>,
    ) -> BTreeMap<Shown, Certificate> {
        let sign = |ballot: &Ballot, seat| liar::commit(ground, catalog, seat, *ballot);
        let all = quorums(ground, self.votes().1, sign);
        let certified = all.filter_map(|(ballot, signatures)| {
            let info = infos.get(&ballot.number)?.get(&ballot.token)?.clone();
            Some((shown(&ballot), Certificate { info, view: ballot.view, signatures }))
        });
        certified.collect()
    }

    /// The violation, if the item's author may not say it beside what it said before.
    fn contradicted(&self, item: &Item) -> Option<Wrong> {
        let place = |fact: &Fact| match fact {
            Fact::Order { view, number, .. } => Some((0, *view, *number)),
            Fact::Prepare(it) => Some((1, it.view, it.number)),
            Fact::Commit(it) => Some((2, it.view, it.number)),
            _ => None,
        };
        let this = place(&item.fact)?;
        let is_vote = this.0 > 0;
        let mut before = self.items().filter(|other| other.from == item.from);
        let is_against = |other: &&Arc<Item>| match &other.fact {
            Fact::ViewChange { view, .. } => is_vote && *view > this.1,
            fact => place(fact) == Some(this),
        };
        let against = before.find(is_against)?;
        Some(Wrong::new(Kind::TwoFaced, format!("{} says {item} after {against}", item.from)))
    }

    fn forked(&self) -> Option<Wrong> {
        let mut first = BTreeMap::new();
        self.decided.keys().find_map(|(_, number, token)| {
            let known = *first.entry(*number).or_insert(*token);
            let text =
                || format!("batch {number} can be certified as {} and as {}", known.short(), token.short());
            (known != *token).then(|| Wrong::new(Kind::Forked, text()))
        })
    }

    /// An outcome that a quorum prepared and no honest validator executed. A validator has an outcome on disk before it
    /// says it, until its number is committed.
    fn lost(&self) -> Option<Wrong> {
        let is_said = |token: &Digest| {
            self.items().any(|item| matches!(&item.fact, Fact::Verify { token: said, .. } if said == token))
        };
        let (_, number, token) = self.prepared.keys().find(|(.., token)| !is_said(token))?;
        Some(Wrong::new(
            Kind::Lost,
            format!("no honest validator has the outcome {} of batch {number}", token.short()),
        ))
    }

    fn forgotten(&self) -> Option<Wrong> {
        self.decided.keys().find_map(|(view, number, token)| {
            let is_other = |it: &&Shown| it.0 > *view && it.1 == *number && it.2 != *token;
            let other = self.prepared.keys().find(is_other)?;
            let (later, text) = (other.0, (token.short(), other.2.short()));
            let text = format!(
                "batch {number} can be certified as {} in view {view} and prepared as {} in view {later}",
                text.0, text.1
            );
            Some(Wrong::new(Kind::Forgotten, text))
        })
    }
}

type Votes = BTreeMap<Ballot, BTreeMap<u16, Signature>>;

fn shown(ballot: &Ballot) -> Shown {
    (ballot.view, ballot.number, ballot.token)
}

/// The votes that form a quorum with the liar's signature, if there is a liar.
fn quorums(
    ground: &Ground,
    votes: Votes,
    sign: impl Fn(&Ballot, u16) -> Arc<Item>,
) -> impl Iterator<Item = (Ballot, Signatures)> {
    votes.into_iter().filter_map(move |(ballot, mut signatures)| {
        if signatures.len() < ground.quorum_of_honest() {
            return None;
        }
        if let Some(liar) = ground.liar
            && let Message::Prepare(vote) | Message::Commit(vote) = sign(&ballot, liar).message
        {
            signatures.insert(liar, vote.signature);
        }
        Some((ballot, BoundedVec::new(signatures.into_iter().collect()).ok()?))
    })
}
