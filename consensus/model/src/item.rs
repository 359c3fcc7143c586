//! [`Item`]: one message that somebody may take, with what distinguishes it from others.

use std::{
    collections::HashMap,
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, PoisonError},
};

use slipstream_eve::{Ballot, Message, NewView, Prepared, ViewChange};
use slipstream_types::{BatchNumber, Certificate, Digest, ValidatorSet};

/// View, number and token of something prepared or decided.
pub(crate) type Shown = (u64, BatchNumber, Digest);

/// The content of a message, regardless of who signed its quorum. A status keeps only view and complaint.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Fact {
    Order { view: u64, number: BatchNumber, digest: Digest },
    Verify { view: u64, number: BatchNumber, order: Digest, before: Digest, token: Digest },
    Prepare(Ballot),
    Commit(Ballot),
    Status { view: u64, complains: bool },
    ViewChange { view: u64, decided: Option<Shown>, prepared: Option<Shown> },
    NewView { view: u64, decided: Option<Shown>, prepared: Option<Shown> },
    Decided(Shown),
}

/// Messages of different topics need not wait for each other in a core: see [`crate::react`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Topic {
    Orders,
    Outcome(Digest),
    Views,
}

impl Fact {
    /// The fact that a message states. Evidence has none: it only convicts.
    pub(crate) fn of(message: &Message, domain: &Digest) -> Option<Fact> {
        let shown = |it: &Prepared| (it.view, it.info.number, it.info.digest());
        let certified = |it: &Certificate| (it.view, it.info.number, it.info.digest());
        Some(match message {
            Message::Order(signed) => Fact::Order {
                view: signed.order.view,
                number: signed.order.number,
                digest: signed.order.digest(domain),
            },
            Message::Verify(verify) => Fact::Verify {
                view: verify.order.order.view,
                number: verify.order.order.number,
                order: verify.order.order.digest(domain),
                before: verify.before,
                token: verify.info.digest(),
            },
            Message::Prepare(vote) => Fact::Prepare(vote.ballot),
            Message::Commit(vote) => Fact::Commit(vote.ballot),
            Message::Status(status) => Fact::Status { view: status.view, complains: status.complains },
            Message::ViewChange(change) => {
                let ViewChange { view, decided, prepared, .. } = change.as_ref();
                Fact::ViewChange {
                    view: *view,
                    decided: decided.as_ref().map(certified),
                    prepared: prepared.as_ref().map(shown),
                }
            }
            Message::NewView(new) => begun(new),
            Message::Decided(certificate) => Fact::Decided(certified(certificate)),
            Message::Evidence(_) => return None,
        })
    }

    pub(crate) fn topic(&self) -> Topic {
        match self {
            Fact::Order { .. } => Topic::Orders,
            Fact::Verify { token, .. } | Fact::Decided((.., token)) => Topic::Outcome(*token),
            Fact::Prepare(ballot) | Fact::Commit(ballot) => Topic::Outcome(ballot.token),
            Fact::Status { .. } | Fact::ViewChange { .. } | Fact::NewView { .. } => Topic::Views,
        }
    }

    pub(crate) fn view(&self) -> u64 {
        match self {
            Fact::Order { view, .. }
            | Fact::Verify { view, .. }
            | Fact::Status { view, .. }
            | Fact::ViewChange { view, .. }
            | Fact::NewView { view, .. } => *view,
            Fact::Prepare(ballot) | Fact::Commit(ballot) => ballot.view,
            Fact::Decided((view, ..)) => *view,
        }
    }
}

/// A view begins with the outcome that its view changes leave; their authors do not count.
fn begun(new: &NewView) -> Fact {
    Fact::NewView {
        view: new.view,
        decided: new.decided().map(|it| (it.view, it.info.number, it.info.digest())),
        prepared: new.prepared().map(|it| (it.view, it.info.number, it.info.digest())),
    }
}

/// A message of one seat. Items are interned: equal facts of one seat are one item.
#[derive(Debug)]
pub(crate) struct Item {
    /// Hash of author and fact.
    pub(crate) key: u64,
    /// The seat that said it. A fact that a quorum signed counts as said by the seat that said it first.
    pub(crate) from: u16,
    pub(crate) fact: Fact,
    pub(crate) message: Message,
}

impl Item {
    /// Whether it may come from any seat.
    pub(crate) fn is_anybodys(&self) -> bool {
        matches!(self.fact, Fact::Decided(_) | Fact::NewView { .. })
    }

    pub(crate) fn key(from: u16, fact: &Fact, set: &ValidatorSet) -> u64 {
        hash(&(Item::author(from, fact, set), fact))
    }

    /// The author that counts: a quorum's proof is the same from every seat.
    fn author(from: u16, fact: &Fact, set: &ValidatorSet) -> u16 {
        match fact {
            Fact::Decided(_) => u16::MAX,
            Fact::NewView { view, .. } => set.primary(*view),
            _ => from,
        }
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |it: &Option<Shown>| match it {
            Some((view, number, token)) => format!("{number}={} of view {view}", token.short()),
            None => "nothing".into(),
        };
        match &self.fact {
            Fact::Order { view, number, digest } => {
                write!(f, "Order {number} {} (view {view})", digest.short())
            }
            Fact::Verify { view, number, token, .. } => {
                write!(f, "Verify {number}={} (view {view})", token.short())
            }
            Fact::Prepare(it) => write!(f, "Prepare {}={} (view {})", it.number, it.token.short(), it.view),
            Fact::Commit(it) => write!(f, "Commit {}={} (view {})", it.number, it.token.short(), it.view),
            Fact::Status { view, complains: true } => write!(f, "complaint of view {view}"),
            Fact::Status { view, .. } => write!(f, "Status in view {view}"),
            Fact::ViewChange { view, decided, prepared } => {
                write!(f, "ViewChange to {view}, decided {}, prepared {}", shown(decided), shown(prepared))
            }
            Fact::NewView { view, decided, prepared } => {
                write!(f, "NewView {view}, decided {}, prepared {}", shown(decided), shown(prepared))
            }
            Fact::Decided(it) => write!(f, "certificate of {}", shown(&Some(*it))),
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
    /// Returns the item of a fact; makes the message only for the first.
    pub(crate) fn item(
        &self,
        set: &ValidatorSet,
        from: u16,
        fact: Fact,
        message: impl FnOnce() -> Message,
    ) -> Arc<Item> {
        let key = Item::key(from, &fact, set);
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        let item = || Arc::new(Item { key, from, fact, message: message() });
        items.entry(key).or_insert_with(item).clone()
    }
}

/// Hashes a value, the same in every run.
pub(crate) fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
