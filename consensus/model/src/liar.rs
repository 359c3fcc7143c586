//! The liar may send any message that its own key can sign, at any time, to anybody, any number of times.
//!
//! The liar is stateless and bound by no promise. Everything that it could ever sign is available from the beginning. Messages that
//! include signatures of others are available as soon as those were given. The menu:
//!
//! * as the primary of a view: two orders for the first number of each history, one that continues each of them, and one that
//!   continues none;
//! * as an executor: for each order the right outcome and a wrong one, on every outcome of the batch before that an
//!   honest validator reported;
//! * as a verifier: a prepare and a commit for every outcome that an honest validator reported, or that can be shown to
//!   be prepared;
//! * complaints about every view, which it makes once and for all (see [`crate::node`]);
//! * for every view, a view change that hides what was decided and prepared, shows any decision or prepare that can be
//!   shown, or invents a prepare;
//! * as the primary of a view: its beginning, with view changes of any quorum;
//! * any certificate that three validators can have signed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use slipstream_eve::{Ballot, Message, NewView, Prepared, SignedOrder, Verify, ViewChange, Vote};
use slipstream_types::{BatchNumber, LedgerInfo, Signature, bounded::BoundedVec};

use crate::{
    constants::{Constants, InfosByToken},
    item::{Catalog, Item, Statement},
    statements::StatementSet,
};

struct Liar<'a> {
    constants: &'a Constants,
    catalog: &'a Catalog,
    said: &'a StatementSet,
    seat: u16,
    items: Vec<Arc<Item>>,
}

/// Returns all that the liar may say after `said`, in an order that depends on nothing else.
pub(crate) fn menu(
    constants: &Constants,
    catalog: &Catalog,
    said: &StatementSet,
    infos: BTreeMap<BatchNumber, InfosByToken>,
) -> Vec<Arc<Item>> {
    let Some(seat) = constants.liar else { return Vec::new() };
    let mut liar = Liar { constants, catalog, said, seat, items: Vec::new() };
    let orders = liar.orders();
    liar.outcomes(&orders, infos);
    liar.votes();
    liar.changes(&orders);
    for certificate in said.decided.values() {
        liar.say(Message::Decided(Box::new(certificate.clone())));
    }
    let mut items = liar.items;
    items.sort_by(|a, b| a.statement.cmp(&b.statement));
    items.dedup_by_key(|item| item.key);
    items
}

/// The outcomes of the tokens that honest validators said, and the liar's own: the right and a wrong outcome of each
/// order.
pub(crate) fn outcomes(
    constants: &Constants,
    said: &StatementSet,
    infos: &BTreeMap<BatchNumber, InfosByToken>,
) -> BTreeMap<BatchNumber, InfosByToken> {
    let mut known = infos.clone();
    let honest = said.items().filter_map(|item| match &item.message {
        Message::Order(order) => Some(order),
        _ => None,
    });
    for order in honest.chain(constants.lying_orders.iter().map(|(_, order)| order)) {
        let before = order.order.number.before(1);
        for before in infos.get(&before).into_iter().flat_map(|it| it.values()) {
            for is_wrong in [false, true] {
                let info = constants.execute(before, &order.order, is_wrong);
                known.entry(info.number).or_default().insert(info.digest(), info);
            }
        }
    }
    match constants.liar {
        Some(_) => known,
        None => infos.clone(),
    }
}

/// The liar's prepare.
pub(crate) fn prepare(constants: &Constants, catalog: &Catalog, seat: u16, ballot: Ballot) -> Arc<Item> {
    let vote = || Vote { ballot, signature: ballot.sign_prepare(&constants.domain, constants.key(seat)) };
    catalog.item(&constants.set, seat, Statement::Prepare(ballot), || Message::Prepare(vote()))
}

/// The liar's commit.
pub(crate) fn commit(constants: &Constants, catalog: &Catalog, seat: u16, ballot: Ballot) -> Arc<Item> {
    let vote = || Vote { ballot, signature: ballot.sign_commit(constants.key(seat)) };
    catalog.item(&constants.set, seat, Statement::Commit(ballot), || Message::Commit(vote()))
}

impl Liar<'_> {
    fn say(&mut self, message: Message) {
        if let Some(statement) = Statement::of(&message, &self.constants.domain) {
            self.add(statement, || message);
        }
    }

    /// Adds an item. Signs only what the liar never said before.
    fn add(&mut self, statement: Statement, message: impl FnOnce() -> Message) -> Arc<Item> {
        let item = self.catalog.item(&self.constants.set, self.seat, statement, message);
        self.items.push(item.clone());
        item
    }

    fn views(&self) -> std::ops::RangeInclusive<u64> {
        0..=self.constants.bounds.last_view
    }

    /// Says the liar's own orders, and returns them with those of honest primaries. Of two orders that differ only in
    /// their names, the second appears once an honest validator has executed one of that number. Until then the two are
    /// interchangeable.
    fn orders(&mut self) -> Vec<SignedOrder> {
        let executed: BTreeSet<(u64, BatchNumber)> = self
            .said
            .items()
            .filter_map(|item| match &item.statement {
                Statement::Verify { view, number, .. } => Some((*view, *number)),
                _ => None,
            })
            .collect();
        let own = self.constants.lying_orders.iter();
        let own =
            own.filter(|(is_first, it)| *is_first || executed.contains(&(it.order.view, it.order.number)));
        let mut all: Vec<SignedOrder> = own.map(|(_, order)| order.clone()).collect();
        for order in &all {
            self.say(Message::Order(order.clone()));
        }
        let honest = self.said.items().filter_map(|item| match &item.message {
            Message::Order(order) => Some(order.clone()),
            _ => None,
        });
        all.extend(honest);
        all
    }

    fn outcomes(&mut self, orders: &[SignedOrder], infos: BTreeMap<BatchNumber, InfosByToken>) {
        let constants = self.constants;
        for order in orders {
            let before = order.order.number.before(1);
            for before in infos.get(&before).into_iter().flat_map(|it| it.values()) {
                for is_wrong in [false, true] {
                    let info = constants.execute(before, &order.order, is_wrong);
                    let verify = Verify { order: order.clone(), before: before.digest(), info, took_ms: 0 };
                    self.say(Message::Verify(Box::new(verify)));
                }
            }
        }
    }

    fn votes(&mut self) {
        let mut ballots: BTreeSet<Ballot> = self
            .said
            .items()
            .filter_map(|item| match &item.statement {
                Statement::Verify { view, number, token, .. } => {
                    Some(Ballot { view: *view, number: *number, token: *token })
                }
                Statement::Prepare(ballot) => Some(*ballot),
                _ => None,
            })
            .collect();
        for (view, number, token) in self.said.prepared.keys() {
            let later = self.views().filter(|later| later > view);
            ballots.extend(later.map(|view| Ballot { view, number: *number, token: *token }));
        }
        for ballot in ballots {
            self.items.push(prepare(self.constants, self.catalog, self.seat, ballot));
            self.items.push(commit(self.constants, self.catalog, self.seat, ballot));
        }
    }

    /// The liar's changes to a view: with each decision and each prepared batch that can be shown, or without.
    fn own_changes(&mut self, view: u64) -> Vec<Arc<Item>> {
        let (constants, said, seat) = (self.constants, self.said, self.seat);
        let prepared = || said.prepared.iter().filter(|(shown, _)| shown.0 < view).map(Some);
        let decided = said.decided.iter().filter(|(shown, _)| shown.0 < view).map(Some);
        let mut changes = Vec::new();
        for decided in std::iter::once(None).chain(decided) {
            for prepared in std::iter::once(None).chain(prepared()) {
                let statement = Statement::ViewChange {
                    view,
                    decided: decided.map(|(shown, _)| *shown),
                    prepared: prepared.map(|(shown, _)| *shown),
                };
                let sign = || {
                    let (decided, prepared) =
                        (decided.map(|it| it.1.clone()), prepared.map(|it| it.1.clone()));
                    ViewChange::new(view, seat, decided, prepared, &constants.domain, constants.key(seat))
                };
                changes.push(self.add(statement, || Message::ViewChange(Box::new(sign()))));
            }
        }
        changes
    }

    fn changes(&mut self, orders: &[SignedOrder]) {
        for view in self.views().skip(1) {
            let own = self.own_changes(view);
            if self.constants.set.primary(view) == self.seat {
                self.beginnings(view, own);
            }
            let made_up = orders.iter().find(|order| order.order.number.get() == 1);
            if let Some(info) =
                made_up.map(|it| self.constants.execute(&self.constants.genesis, &it.order, true))
            {
                self.invent(view, info);
            }
        }
    }

    /// Adds a view change that claims a prepared outcome without any signatures.
    fn invent(&mut self, view: u64, info: LedgerInfo) {
        let prepared = Some(Prepared { view: view - 1, info, signatures: BoundedVec::default() });
        let (seat, domain, key) = (self.seat, &self.constants.domain, self.constants.key(self.seat));
        let shown = prepared.as_ref().map(|it| (it.view, it.info.number, it.info.digest()));
        let statement = Statement::ViewChange { view, decided: None, prepared: shown };
        self.add(statement, || {
            Message::ViewChange(Box::new(ViewChange::new(view, seat, None, prepared, domain, key)))
        });
    }

    /// Begins the liar's own view with any view changes of three validators, the liar among them or not.
    fn beginnings(&mut self, view: u64, own: Vec<Arc<Item>>) {
        let mut by_seat: BTreeMap<u16, Vec<ViewChange>> = BTreeMap::new();
        for item in self.said.items().chain(&own) {
            if let Message::ViewChange(change) = &item.message
                && change.view == view
            {
                by_seat.entry(change.seat).or_default().push(change.as_ref().clone());
            }
        }
        let mut sets: Vec<Vec<ViewChange>> = vec![Vec::new()];
        for changes in by_seat.values() {
            let more = sets.iter().flat_map(|set| {
                changes.iter().map(|change| [&set[..], std::slice::from_ref(change)].concat())
            });
            let more: Vec<_> = more.collect();
            sets.extend(more);
        }
        let (constants, quorum) = (self.constants, self.constants.set.quorum());
        for set in sets.into_iter().filter(|set| set.len() == quorum) {
            let Ok(changes) = BoundedVec::new(set.clone()) else { continue };
            let unsigned = NewView { view, changes, signature: Signature([0; 64]) };
            let sign = || NewView::new(view, set, &constants.domain, constants.key(self.seat));
            if let Some(statement) = Statement::of(&Message::NewView(Box::new(unsigned)), &constants.domain) {
                let item = self
                    .catalog
                    .item(&constants.set, self.seat, statement, || Message::NewView(Box::new(sign())));
                self.items.push(item);
            }
        }
    }
}
