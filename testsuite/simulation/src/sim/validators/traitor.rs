//! [`Habit`]: the messages of a Byzantine validator. The validator runs the same code as all others; its messages are
//! altered as they leave.

use rand::{Rng, rngs::StdRng, seq::IndexedRandom};
use serde::Serialize;
use slipstream_consensus::simulated::{Ordered, Request, Response};
use slipstream_eve::{Ballot, Message, Order, Prepared, SignedOrder, Status, Verify, ViewChange, Vote};
use slipstream_types::{
    Blob, BlobKind, Body, Certificate, CommitStatement, Digest, LedgerInfo, Receipts, SecretKey, Signature,
    bounded::BoundedVec, codec,
};

use super::fault::{Troubles, WorldFault};

/// The share of messages that a traitor of habit `Anything` alters.
const ANYTHING: f64 = 0.3;
/// The share of outcomes that the traitor alters when it shows them.
const SHOWN: f64 = 0.7;
/// How far ahead a false time is, in milliseconds.
const FALSE_TIME_MS: u64 = 3_600_000;

/// How the traitor breaks the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::VariantArray)]
pub(super) enum Habit {
    /// Orders a different batch for each validator.
    Orders,
    /// Votes for every order.
    Votes,
    /// Reports outcomes other than its own.
    Outcomes,
    /// Sends bodies other than those that it ordered.
    Bodies,
    /// Orders times in the future.
    Times,
    /// Shows outcomes other than the requested ones.
    Shows,
    /// Hides what it saw prepared or decided.
    Forgets,
    /// Invents a prepared outcome.
    Invents,
    /// Complains without end.
    Complains,
    /// Sends nothing at all.
    Silent,
    /// Any of these, at random.
    Anything,
}

impl Habit {
    pub(super) const ALL: &'static [Habit] = <Habit as strum::VariantArray>::VARIANTS;

    /// Draws a habit; every other traitor does anything.
    pub(super) fn draw(rng: &mut StdRng) -> Habit {
        match rng.random_bool(0.5) {
            true => Habit::Anything,
            false => *Habit::ALL.choose(rng).expect("there are habits"),
        }
    }

    /// Returns the habit for this request; `None` if the traitor is honest this time.
    fn now(self, request: &Request, rng: &mut StdRng) -> Option<Habit> {
        match self {
            Habit::Anything if rng.random_bool(ANYTHING) => habits_for(request).choose(rng).copied(),
            Habit::Anything => None,
            habit => Some(habit),
        }
    }
}

/// Returns the habits that fit a request.
fn habits_for(request: &Request) -> &'static [Habit] {
    let Request::Say(_, message) = request else {
        return &[Habit::Orders, Habit::Bodies, Habit::Times, Habit::Silent];
    };
    match **message {
        Message::Verify(_) => &[Habit::Outcomes, Habit::Votes, Habit::Silent],
        Message::Prepare(_) | Message::Commit(_) => &[Habit::Votes, Habit::Silent],
        Message::ViewChange(_) => &[Habit::Forgets, Habit::Invents, Habit::Silent],
        Message::Status(_) => &[Habit::Complains, Habit::Silent],
        _ => &[Habit::Silent],
    }
}

/// A traitor with a validator's key.
pub(super) struct Traitor<'a> {
    pub(super) key: &'a SecretKey,
    pub(super) seat: u16,
    /// The signature domain of the epoch.
    pub(super) domain: Digest,
    pub(super) rng: &'a mut StdRng,
    pub(super) troubles: &'a mut Troubles,
}

impl Traitor<'_> {
    /// Returns the messages that the traitor sends to one validator instead of `request`.
    pub(super) fn twist(&mut self, habit: Habit, target: u64, request: Request) -> Vec<Request> {
        let Some(habit) = habit.now(&request, self.rng) else { return vec![request] };
        if habit == Habit::Silent {
            self.troubles.insert(WorldFault::Silence);
            return Vec::new();
        }
        match request {
            Request::Order(ordered) => vec![Request::Order(Box::new(self.order(habit, target, *ordered)))],
            Request::Say(epoch, message) => {
                let said = self.say(habit, *message);
                said.into_iter().map(|message| Request::Say(epoch, Box::new(message))).collect()
            }
            request => vec![request],
        }
    }

    /// Returns the answer that the traitor gives instead of `response`.
    pub(super) fn show(&mut self, habit: Habit, response: Response) -> Response {
        let lies = match habit {
            Habit::Anything => self.rng.random_bool(SHOWN),
            habit => habit == Habit::Shows,
        };
        match response {
            Response::Outcome(mut parts) if lies => {
                self.troubles.insert(WorldFault::FalseShown);
                // Either all parts fit together but differ from the agreed outcome, or empty receipts stand beside a
                // true body.
                let none = Blob::seal(BlobKind::Receipts, &Receipts::default());
                match none.ok().filter(|none| *none != parts.receipts && self.rng.random()) {
                    Some(none) => parts.receipts = none,
                    None => parts.header.timestamp_ms += 1,
                }
                Response::Outcome(parts)
            }
            response => response,
        }
    }

    fn order(&mut self, habit: Habit, target: u64, ordered: Ordered) -> Ordered {
        let signed = |order: Order| SignedOrder::new(order, &self.domain, self.key);
        let order = ordered.order.order.clone();
        match habit {
            Habit::Orders => {
                self.troubles.insert(WorldFault::TwoOrders);
                let order = Order { timestamp_ms: order.timestamp_ms + target, ..order };
                Ordered { order: signed(order), ..ordered }
            }
            Habit::Times => {
                self.troubles.insert(WorldFault::FalseTime);
                let order = Order { timestamp_ms: order.timestamp_ms + FALSE_TIME_MS, ..order };
                Ordered { order: signed(order), ..ordered }
            }
            Habit::Bodies => {
                let Some(body) = without_the_last(&ordered.body) else { return ordered };
                self.troubles.insert(WorldFault::FalseBody);
                Ordered { body, ..ordered }
            }
            _ => ordered,
        }
    }

    fn say(&mut self, habit: Habit, message: Message) -> Vec<Message> {
        match (habit, message) {
            (Habit::Votes, Message::Prepare(vote)) => {
                self.troubles.insert(WorldFault::TwoVotes);
                let ballot = Ballot { token: self.junk(), ..vote.ballot };
                vec![Message::Prepare(vote), Message::Prepare(self.prepare(ballot))]
            }
            (Habit::Votes, Message::Commit(vote)) => {
                self.troubles.insert(WorldFault::TwoVotes);
                let ballot = Ballot { token: self.junk(), ..vote.ballot };
                vec![Message::Commit(self.commit(ballot)), Message::Commit(vote)]
            }
            (Habit::Votes, Message::Verify(verify)) => {
                // The traitor votes to prepare and to commit every outcome that it hears of.
                let (view, number) = (verify.order.order.view, verify.info.number);
                let ballot = Ballot { view, number, token: verify.info.digest() };
                let votes = [Message::Prepare(self.prepare(ballot)), Message::Commit(self.commit(ballot))];
                [vec![Message::Verify(verify)], votes.to_vec()].concat()
            }
            (Habit::Outcomes, Message::Verify(verify)) => {
                self.troubles.insert(WorldFault::FalseOutcome);
                let state_root = Digest::tagged("wrong", verify.info.state_root.as_bytes());
                let info = LedgerInfo { state_root, ..verify.info.clone() };
                vec![Message::Verify(Box::new(Verify { info, ..*verify }))]
            }
            (Habit::Forgets, Message::ViewChange(change)) => {
                self.troubles.insert(WorldFault::Hidden);
                vec![Message::ViewChange(Box::new(self.change(change.view, None, None)))]
            }
            (Habit::Invents, Message::ViewChange(change)) => {
                self.troubles.insert(WorldFault::Hidden);
                let ViewChange { view, decided, prepared, .. } = *change;
                let prepared = prepared.map(|it| {
                    let info = LedgerInfo { state_root: self.junk(), ..it.info };
                    Prepared { info, ..it }
                });
                vec![Message::ViewChange(Box::new(self.change(view, decided, prepared)))]
            }
            (Habit::Complains, Message::Status(status)) => {
                self.troubles.insert(WorldFault::Complaints);
                vec![Message::Status(Status { complains: true, ..status })]
            }
            (_, message) => vec![message],
        }
    }

    fn junk(&mut self) -> Digest {
        Digest::tagged("junk", &self.rng.random::<u64>().to_le_bytes())
    }

    fn prepare(&self, ballot: Ballot) -> Vote {
        Vote { ballot, signature: self.sign("slipstream/prepare/1", &ballot) }
    }

    fn commit(&self, ballot: Ballot) -> Vote {
        Vote { ballot, signature: CommitStatement::new(ballot.view, ballot.token).sign(self.key) }
    }

    fn change(&self, view: u64, decided: Option<Certificate>, prepared: Option<Prepared>) -> ViewChange {
        let signature = self.sign("slipstream/view-change/1", &(view, self.seat, &decided, &prepared));
        ViewChange { view, seat: self.seat, decided, prepared, signature }
    }

    fn sign<T: Serialize>(&self, tag: &str, content: &T) -> Signature {
        let content = codec::encode("consensus statement", content).expect("it was decoded before");
        let said = Digest::tagged(tag, &[self.domain.as_bytes(), content.as_slice()].concat());
        self.key.sign(said.as_bytes())
    }
}

/// Returns the body without its last transaction; `None` if the body is empty.
fn without_the_last(body: &Blob) -> Option<Blob> {
    let opened: Body = body.open(BlobKind::Body).ok()?;
    let mut transactions = opened.transactions.to_vec();
    transactions.pop()?;
    let opened = Body { transactions: BoundedVec::new(transactions).ok()? };
    Blob::seal(BlobKind::Body, &opened).ok()
}
