//! [`Item`]: one message that somebody may take, with the statement that distinguishes it from others.

use std::{
    collections::HashMap,
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex},
};

use slipstream_eve::{Ballot, Message, NewView, Prepared, ViewChange};
use slipstream_types::{BatchNumber, Certificate, Digest, ValidatorSet};

use crate::memo::locked;

/// View, number and token of something prepared or decided.
pub(crate) type OutcomeRef = (u64, BatchNumber, Digest);

/// The content of a message, regardless of who signed its quorum. A status keeps only view and complaint.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Statement {
    Order { view: u64, number: BatchNumber, digest: Digest },
    Verify { view: u64, number: BatchNumber, order: Digest, before: Digest, token: Digest },
    Prepare(Ballot),
    Commit(Ballot),
    Status { view: u64, complains: bool },
    ViewChange { view: u64, decided: Option<OutcomeRef>, prepared: Option<OutcomeRef> },
    NewView { view: u64, decided: Option<OutcomeRef>, prepared: Option<OutcomeRef> },
    Decided(OutcomeRef),
}

/// Messages of different topics need not wait for each other in a core: see [`crate::reaction`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Topic {
    Orders,
    Outcome(Digest),
    Views,
}

impl Statement {
    /// The statement in a message. Evidence has none: it only convicts.
    pub(crate) fn of(message: &Message, domain: &Digest) -> Option<Statement> {
        let shown = |it: &Prepared| (it.view, it.info.number, it.info.digest());
        let certified = |it: &Certificate| (it.view, it.info.number, it.info.digest());
        Some(match message {
            Message::Order(signed) => Statement::Order {
                view: signed.order.view,
                number: signed.order.number,
                digest: signed.order.digest(domain),
            },
            Message::Verify(verify) => Statement::Verify {
                view: verify.order.order.view,
                number: verify.order.order.number,
                order: verify.order.order.digest(domain),
                before: verify.before,
                token: verify.info.digest(),
            },
            Message::Prepare(vote) => Statement::Prepare(vote.ballot),
            Message::Commit(vote) => Statement::Commit(vote.ballot),
            Message::Status(status) => Statement::Status { view: status.view, complains: status.complains },
            Message::ViewChange(change) => {
                let ViewChange { view, decided, prepared, .. } = change.as_ref();
                Statement::ViewChange {
                    view: *view,
                    decided: decided.as_ref().map(certified),
                    prepared: prepared.as_ref().map(shown),
                }
            }
            Message::NewView(new) => begun(new),
            Message::Decided(certificate) => Statement::Decided(certified(certificate)),
            Message::Evidence(_) => return None,
        })
    }

    pub(crate) fn topic(&self) -> Topic {
        match self {
            Statement::Order { .. } => Topic::Orders,
            Statement::Verify { token, .. } | Statement::Decided((.., token)) => Topic::Outcome(*token),
            Statement::Prepare(ballot) | Statement::Commit(ballot) => Topic::Outcome(ballot.token),
            Statement::Status { .. } | Statement::ViewChange { .. } | Statement::NewView { .. } => {
                Topic::Views
            }
        }
    }

    pub(crate) fn view(&self) -> u64 {
        match self {
            Statement::Order { view, .. }
            | Statement::Verify { view, .. }
            | Statement::Status { view, .. }
            | Statement::ViewChange { view, .. }
            | Statement::NewView { view, .. } => *view,
            Statement::Prepare(ballot) | Statement::Commit(ballot) => ballot.view,
            Statement::Decided((view, ..)) => *view,
        }
    }
}

/// The statement of a new view: the decision and the prepared outcome that its view changes leave. Their authors do not
/// count.
fn begun(new: &NewView) -> Statement {
    Statement::NewView {
        view: new.view,
        decided: new.decided().map(|it| (it.view, it.info.number, it.info.digest())),
        prepared: new.prepared().map(|it| (it.view, it.info.number, it.info.digest())),
    }
}

/// A message of one seat. Items are interned: equal statements of one seat are one item.
#[derive(Debug)]
pub(crate) struct Item {
    /// Hash of author and statement.
    pub(crate) key: u64,
    /// The seat that said it. A statement that a quorum signed counts as said by the seat that said it first.
    pub(crate) from: u16,
    pub(crate) statement: Statement,
    pub(crate) message: Message,
}

impl Item {
    /// Whether the item may come from any seat.
    pub(crate) fn is_anybodys(&self) -> bool {
        matches!(self.statement, Statement::Decided(_) | Statement::NewView { .. })
    }

    pub(crate) fn key(from: u16, statement: &Statement, set: &ValidatorSet) -> u64 {
        hash(&(Item::author(from, statement, set), statement))
    }

    /// The author that counts: a quorum's proof is the same from every seat.
    fn author(from: u16, statement: &Statement, set: &ValidatorSet) -> u16 {
        match statement {
            Statement::Decided(_) => u16::MAX,
            Statement::NewView { view, .. } => set.primary(*view),
            _ => from,
        }
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |it: &Option<OutcomeRef>| match it {
            Some((view, number, token)) => format!("{number}={} of view {view}", token.short()),
            None => "nothing".into(),
        };
        match &self.statement {
            Statement::Order { view, number, digest } => {
                write!(f, "Order {number} {} (view {view})", digest.short())
            }
            Statement::Verify { view, number, token, .. } => {
                write!(f, "Verify {number}={} (view {view})", token.short())
            }
            Statement::Prepare(it) => {
                write!(f, "Prepare {}={} (view {})", it.number, it.token.short(), it.view)
            }
            Statement::Commit(it) => {
                write!(f, "Commit {}={} (view {})", it.number, it.token.short(), it.view)
            }
            Statement::Status { view, complains: true } => write!(f, "complaint of view {view}"),
            Statement::Status { view, .. } => write!(f, "Status in view {view}"),
            Statement::ViewChange { view, decided, prepared } => {
                write!(f, "ViewChange to {view}, decided {}, prepared {}", shown(decided), shown(prepared))
            }
            Statement::NewView { view, decided, prepared } => {
                write!(f, "NewView {view}, decided {}, prepared {}", shown(decided), shown(prepared))
            }
            Statement::Decided(it) => write!(f, "certificate of {}", shown(&Some(*it))),
        }?;
        write!(f, " of {}", self.from)
    }
}

/// All items that were said, or could be.
#[derive(Default)]
pub(crate) struct Catalog {
    items: Mutex<HashMap<u64, Arc<Item>>>,
}

impl Catalog {
    /// Returns the item of a statement. Makes the message only if the item is new.
    pub(crate) fn item(
        &self,
        set: &ValidatorSet,
        from: u16,
        statement: Statement,
        message: impl FnOnce() -> Message,
    ) -> Arc<Item> {
        let key = Item::key(from, &statement, set);
        let mut items = locked(&self.items);
        let item = || Arc::new(Item { key, from, statement, message: message() });
        items.entry(key).or_insert_with(item).clone()
    }
}

/// Hashes a value, the same in every run.
pub(crate) fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
