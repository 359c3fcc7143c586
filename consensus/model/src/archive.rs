//! [`Archive`]: all sets of statements that the search met, each stored once.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
};

use slipstream_eve::{Ballot, Message, Prepared, Signatures};
use slipstream_types::{BatchNumber, Certificate, bounded::BoundedVec};

use crate::{
    constants::{Constants, InfosByToken},
    item::{Catalog, Item, OutcomeRef},
    liar,
    memo::locked,
    statements::{StatementSet, Votes},
};

/// All sets of statements that the search met.
#[derive(Default)]
pub(crate) struct Archive {
    known: Mutex<HashMap<u64, Arc<StatementSet>>>,
}

impl Archive {
    /// Returns the set with further statements of one seat.
    pub(crate) fn with(
        &self,
        constants: &Constants,
        catalog: &Catalog,
        said: &Arc<StatementSet>,
        more: &[Arc<Item>],
    ) -> Arc<StatementSet> {
        let new: Vec<_> = more.iter().filter(|item| !said.contains(item.key)).cloned().collect();
        if new.is_empty() {
            return said.clone();
        }
        let key = new.iter().fold(said.key, |key, item| key.wrapping_add(item.key));
        if let Some(known) = locked(&self.known).get(&key) {
            return known.clone();
        }
        let made = Arc::new(extended(constants, catalog, said, new, key));
        locked(&self.known).entry(key).or_insert(made).clone()
    }
}

/// The set before any honest statement.
pub(crate) fn before_any(constants: &Constants, catalog: &Catalog) -> StatementSet {
    let said = StatementSet::empty();
    let infos = said.infos(constants);
    let menu = liar::menu(constants, catalog, &said, infos);
    StatementSet { menu, ..said }
}

/// The set with new items, whose key is `key`.
fn extended(
    constants: &Constants,
    catalog: &Catalog,
    before: &StatementSet,
    new: Vec<Arc<Item>>,
    key: u64,
) -> StatementSet {
    let mut wrong = before.wrong.clone();
    let mut said =
        StatementSet { items: before.items.clone(), keys: before.keys.clone(), ..StatementSet::empty() };
    said.key = key;
    for item in new {
        wrong = wrong.or_else(|| said.contradicted(&item));
        said.keys.insert(item.key);
        said.items.insert((item.statement.clone(), item.from), item);
    }
    let infos = said.infos(constants);
    let known = liar::outcomes(constants, &said, &infos);
    (said.prepared, said.decided) =
        (prepared(constants, catalog, &said, &known), decided(constants, catalog, &said, &known));
    said.wrong = wrong.or_else(|| said.forked()).or_else(|| said.forgotten()).or_else(|| said.lost());
    said.menu = liar::menu(constants, catalog, &said, infos);
    said
}

/// The outcomes that a quorum may have prepared, if the liar adds its votes.
fn prepared(
    constants: &Constants,
    catalog: &Catalog,
    said: &StatementSet,
    infos: &BTreeMap<BatchNumber, InfosByToken>,
) -> BTreeMap<OutcomeRef, Prepared> {
    let sign = |ballot: &Ballot, seat| liar::prepare(constants, catalog, seat, *ballot);
    let all = quorums(constants, said.votes().0, sign);
    let prepared = all.filter_map(|(ballot, signatures)| {
        let info = infos.get(&ballot.number)?.get(&ballot.token)?.clone();
        Some((shown(&ballot), Prepared { view: ballot.view, info, signatures }))
    });
    prepared.collect()
}

/// The outcomes that may be certified, if the liar adds its votes.
fn decided(
    constants: &Constants,
    catalog: &Catalog,
    said: &StatementSet,
    infos: &BTreeMap<BatchNumber, InfosByToken>,
) -> BTreeMap<OutcomeRef, Certificate> {
    let sign = |ballot: &Ballot, seat| liar::commit(constants, catalog, seat, *ballot);
    let all = quorums(constants, said.votes().1, sign);
    let certified = all.filter_map(|(ballot, signatures)| {
        let info = infos.get(&ballot.number)?.get(&ballot.token)?.clone();
        Some((shown(&ballot), Certificate { info, view: ballot.view, signatures }))
    });
    certified.collect()
}

fn shown(ballot: &Ballot) -> OutcomeRef {
    (ballot.view, ballot.number, ballot.token)
}

/// The votes that form a quorum with the liar's signature, if there is a liar.
fn quorums(
    constants: &Constants,
    votes: Votes,
    sign: impl Fn(&Ballot, u16) -> Arc<Item>,
) -> impl Iterator<Item = (Ballot, Signatures)> {
    votes.into_iter().filter_map(move |(ballot, mut signatures)| {
        if signatures.len() < constants.quorum_of_honest() {
            return None;
        }
        if let Some(liar) = constants.liar
            && let Message::Prepare(vote) | Message::Commit(vote) = sign(&ballot, liar).message
        {
            signatures.insert(liar, vote.signature);
        }
        Some((ballot, BoundedVec::new(signatures.into_iter().collect()).ok()?))
    })
}
