//! The messages by which validators agree, and the statements that they sign.
//!
//! Each kind of vote and each view has a statement of its own, so a signature fits only the vote that it was given for.
//! The core checks Ed25519 signatures when a message arrives, and drops messages that fail.

use serde::{Deserialize, Serialize};
use slipstream_types::{
    BatchNumber, Certificate, CommitStatement, Digest, Epoch, LedgerInfo, PublicKey, SecretKey, Signature,
    ValidatorSet, bounded::BoundedVec, codec, limits,
};

use crate::planted::{Fault, lacks};

/// The index of a validator in the set of its epoch.
pub type Seat = u16;

/// The number of a view, in its epoch.
pub type View = u64;

/// Validator index and signature, one for each validator at most.
pub type Signatures = BoundedVec<(Seat, Signature), { limits::VALIDATORS_MAX }>;

/// A batch as its primary orders it: its content and time, without its outcome.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The epoch of the order.
    pub epoch: Epoch,
    /// The view whose primary orders.
    pub view: View,
    /// Number of the ordered batch.
    pub number: BatchNumber,
    /// [`Order::digest`] of the batch ordered before in this view; [`Digest::ZERO`] for the first batch of a view.
    pub parent: Digest,
    /// The batch's time, in milliseconds since the Unix epoch.
    pub timestamp_ms: u64,
    /// `content_digest` of the body.
    pub transactions: Digest,
}

impl Order {
    /// The digest that the primary signs, in a domain that names chain and epoch.
    pub fn digest(&self, domain: &Digest) -> Digest {
        statement("slipstream/order/1", domain, self)
    }
}

/// An order with its primary's signature. Two different signed orders of one number and view convict the primary.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct SignedOrder {
    /// The order that the primary signed.
    pub order: Order,
    /// The primary's signature on [`Order::digest`].
    pub signature: Signature,
}

impl SignedOrder {
    /// Signs an order in a domain that names chain and epoch.
    pub fn new(order: Order, domain: &Digest, key: &SecretKey) -> SignedOrder {
        let signature = key.sign(order.digest(domain).as_bytes());
        SignedOrder { order, signature }
    }

    /// Whether the primary of its view signed it.
    pub fn is_signed(&self, set: &ValidatorSet, domain: &Digest) -> bool {
        let primary = &set.validators[usize::from(set.primary(self.order.view))].public_key;
        primary.verify_once(self.order.digest(domain).as_bytes(), &self.signature)
    }
}

/// The subject of a vote. The token is [`LedgerInfo::digest`], which binds every header up to the batch, through the
/// accumulator. This is Eve's token chain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Ballot {
    /// The view in which the vote counts.
    pub view: View,
    /// Number of the batch.
    pub number: BatchNumber,
    /// Digest of the ledger info after execution.
    pub token: Digest,
}

impl Ballot {
    /// Signs a validator's prepare of this ballot.
    pub fn sign_prepare(&self, domain: &Digest, key: &SecretKey) -> Signature {
        key.sign(statement("slipstream/prepare/1", domain, self).as_bytes())
    }

    /// Signs a validator's commit of this ballot.
    pub fn sign_commit(&self, key: &SecretKey) -> Signature {
        CommitStatement::new(self.view, self.token).sign(key)
    }

    pub(crate) fn is_prepared_by(&self, domain: &Digest, key: &PublicKey, signature: &Signature) -> bool {
        key.verify(statement("slipstream/prepare/1", domain, self).as_bytes(), signature)
    }

    pub(crate) fn is_committed_by(&self, key: &PublicKey, signature: &Signature) -> bool {
        CommitStatement::new(self.view, self.token).verify(key, signature)
    }
}

/// A ballot and its voter's signature.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Vote {
    /// The ballot that the vote is on.
    pub ballot: Ballot,
    /// The voter's signature on a prepare or a commit.
    pub signature: Signature,
}

/// An executor's outcome of an order. It carries the order, so every validator notices a contradicting order.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Verify {
    /// The order that was executed.
    pub order: SignedOrder,
    /// The token of the batch before, on which the order was executed.
    pub before: Digest,
    /// The ledger info after its execution.
    pub info: LedgerInfo,
    /// How long the executor took, in milliseconds. From it the primary learns how much a quorum can bear. Validators
    /// do not agree on this value. The driver sets it, to 0 if the time is unknown.
    pub took_ms: u32,
}

/// Proof that a quorum prepared a batch in one view: that view cannot have decided another batch of the number.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Prepared {
    /// The view in which a quorum prepared it.
    pub view: View,
    /// Ledger info of the prepared batch.
    pub info: LedgerInfo,
    /// The signatures of a quorum on the prepare.
    pub signatures: Signatures,
}

impl Prepared {
    /// The ballot of its prepares.
    pub fn ballot(&self) -> Ballot {
        Ballot { view: self.view, number: self.info.number, token: self.info.digest() }
    }

    /// Whether a quorum of the set prepared it.
    pub fn is_valid(&self, set: &ValidatorSet, domain: &Digest) -> bool {
        let ballot = self.ballot();
        let signed = |(seat, signature): &(Seat, Signature)| {
            let validator = set.validators.get(usize::from(*seat));
            validator.is_some_and(|it| ballot.is_prepared_by(domain, &it.public_key, signature))
        };
        self.info.epoch == set.epoch
            && self.signatures.len() >= set.quorum()
            && self.signatures.windows(2).all(|pair| pair[0].0 < pair[1].0)
            && self.signatures.iter().all(signed)
    }
}

/// A validator's statement that it has left all views below `view`. It shows what was decided and prepared in them.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ViewChange {
    /// The view that the validator goes to.
    pub view: View,
    /// Seat of the validator that left.
    pub seat: Seat,
    /// The highest certificate of this epoch that the validator has.
    pub decided: Option<Certificate>,
    /// The last outcome that the validator saw prepared, unless that is decided.
    pub prepared: Option<Prepared>,
    /// The validator's signature on all of this.
    pub signature: Signature,
}

impl ViewChange {
    /// Signs a validator's statement.
    pub fn new(
        view: View,
        seat: Seat,
        decided: Option<Certificate>,
        prepared: Option<Prepared>,
        domain: &Digest,
        key: &SecretKey,
    ) -> ViewChange {
        let said = statement("slipstream/view-change/1", domain, &(view, seat, &decided, &prepared));
        ViewChange { view, seat, decided, prepared, signature: key.sign(said.as_bytes()) }
    }

    /// Whether the validator signed this statement, and the proofs in it hold.
    pub fn is_valid(&self, set: &ValidatorSet, domain: &Digest) -> bool {
        let Some(validator) = set.validators.get(usize::from(self.seat)) else { return false };
        let content = (self.view, self.seat, &self.decided, &self.prepared);
        let said = statement("slipstream/view-change/1", domain, &content);
        validator.public_key.verify(said.as_bytes(), &self.signature)
            && self.decided.as_ref().is_none_or(|it| it.verify(set).is_ok())
            && self.prepared.as_ref().is_none_or(|it| {
                it.view < self.view && (it.is_valid(set, domain) || lacks(Fault::BelievePrepared))
            })
    }
}

/// A primary's message that begins its view, with the view changes of a quorum that left the views below.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct NewView {
    /// The view that begins.
    pub view: View,
    /// The view changes of a quorum, by ascending seat.
    pub changes: BoundedVec<ViewChange, { limits::VALIDATORS_MAX }>,
    /// The primary's signature on all of this.
    pub signature: Signature,
}

impl NewView {
    /// Signs the beginning of a view.
    ///
    /// # Panics
    /// If there are more changes than a set may have validators.
    pub fn new(view: View, changes: Vec<ViewChange>, domain: &Digest, key: &SecretKey) -> NewView {
        let said = statement("slipstream/new-view/1", domain, &(view, &changes));
        let signature = key.sign(said.as_bytes());
        let changes = BoundedVec::new(changes).expect("no more of them than validators");
        NewView { view, changes, signature }
    }

    /// Whether the view's primary signed it, and it holds valid view changes of a quorum.
    pub fn is_valid(&self, set: &ValidatorSet, domain: &Digest) -> bool {
        let said = statement("slipstream/new-view/1", domain, &(self.view, &*self.changes));
        let primary = &set.validators[usize::from(set.primary(self.view))].public_key;
        self.changes.len() >= set.quorum()
            && self.changes.windows(2).all(|pair| pair[0].seat < pair[1].seat)
            && primary.verify(said.as_bytes(), &self.signature)
            && self.changes.iter().all(|it| it.view == self.view && it.is_valid(set, domain))
    }

    /// The last prepared outcome, if it is above the highest decision. The view must begin with this outcome; its
    /// primary has no choice.
    ///
    /// A quorum committed to each batch that an earlier view decided. That quorum and this one share more validators
    /// than may lie. So an honest validator is in both, and its view change shows the batch as prepared or decided. A
    /// prepared batch also proves that the batches below it are decided: honest validators prepare a batch only after
    /// that.
    pub fn prepared(&self) -> Option<&Prepared> {
        let decided = self.decided().map(|certificate| certificate.info.number);
        let prepared = self.changes.iter().filter_map(|change| change.prepared.as_ref());
        let rank = |view: View| match view {
            _ if lacks(Fault::AdoptLast) => 0,
            view if lacks(Fault::AdoptLower) => !view,
            view => view,
        };
        let highest = prepared.max_by_key(|it| (it.info.number, rank(it.view)));
        highest.filter(|it| decided.is_none_or(|number| it.info.number > number))
    }

    /// The highest decision that one of the changes shows.
    pub fn decided(&self) -> Option<&Certificate> {
        let decided = self.changes.iter().filter_map(|change| change.decided.as_ref());
        decided.max_by_key(|certificate| certificate.info.number)
    }
}

/// A validator's progress. Receivers send that validator what it lacks. These answers are the only retransmission.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The view that the validator is in.
    pub view: View,
    /// Whether the validator has left the views below and waits for this one to begin.
    pub changing: bool,
    /// Whether the validator wants another primary.
    pub complains: bool,
    /// The last decision that the validator knows.
    pub decided: BatchNumber,
    /// The validator has the outcome or the order of every batch up to this number.
    pub ordered: BatchNumber,
    /// Whether the validator complains about transactions that the primary omits. No decision ends this complaint.
    pub neglected: bool,
    /// Why the validator signs nothing, or `None` if it signs.
    pub silence: Option<Silence>,
}

/// Why a running validator signs nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Silence {
    /// It has no record of its votes, and waits for the statuses of a quorum.
    Listening,
    /// It may have voted up to this batch, and has lost those votes. It votes again once the others have decided that
    /// batch.
    LostVotes {
        /// The last batch that it may have voted on.
        until: BatchNumber,
    },
    /// Its votes are of a later epoch than its ledger. It votes once its ledger reaches that epoch.
    LostLedger {
        /// The epoch of its votes.
        epoch: Epoch,
    },
}

/// Two signed statements of one validator that exclude each other.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Evidence {
    /// A primary ordered two batches of one number in one view.
    Orders(Box<[SignedOrder; 2]>),
    /// A validator prepared two outcomes of one number in one view.
    Prepares(Seat, Box<[Vote; 2]>),
    /// A validator committed to two outcomes of one number in one view. A commit signs the ledger info's digest, so the
    /// evidence adds the ledger info, which has the number.
    Commits(Seat, View, Box<[(LedgerInfo, Signature); 2]>),
}

impl Evidence {
    /// The seat of the validator that the evidence convicts.
    pub fn author(&self, set: &ValidatorSet) -> Seat {
        match self {
            Evidence::Orders(orders) => set.primary(orders[0].order.view),
            Evidence::Prepares(seat, _) | Evidence::Commits(seat, ..) => *seat,
        }
    }

    /// View and number of both statements.
    pub fn place(&self) -> (View, BatchNumber) {
        match self {
            Evidence::Orders(orders) => (orders[0].order.view, orders[0].order.number),
            Evidence::Prepares(_, votes) => (votes[0].ballot.view, votes[0].ballot.number),
            Evidence::Commits(_, view, commits) => (*view, commits[0].0.number),
        }
    }

    /// Whether the evidence proves its claim.
    pub fn is_valid(&self, set: &ValidatorSet, domain: &Digest) -> bool {
        let key = |seat: Seat| set.validators.get(usize::from(seat)).map(|author| author.public_key);
        match self {
            Evidence::Orders(orders) => {
                let [a, b] = orders.as_ref();
                (a.order.view, a.order.number) == (b.order.view, b.order.number)
                    && a.order != b.order
                    && a.is_signed(set, domain)
                    && b.is_signed(set, domain)
            }
            Evidence::Prepares(seat, votes) => key(*seat).is_some_and(|key| {
                let [a, b] = [votes[0].ballot, votes[1].ballot];
                (a.view, a.number) == (b.view, b.number)
                    && a.token != b.token
                    && votes.iter().all(|vote| vote.ballot.is_prepared_by(domain, &key, &vote.signature))
            }),
            Evidence::Commits(seat, view, commits) => key(*seat).is_some_and(|key| {
                let [(a, _), (b, _)] = commits.as_ref();
                let is_signed = |(info, signature): &(LedgerInfo, Signature)| {
                    info.epoch == set.epoch
                        && CommitStatement::new(*view, info.digest()).verify(&key, signature)
                };
                a.number == b.number && a != b && commits.iter().all(is_signed)
            }),
        }
    }
}

/// A message from one core to another. An order's body and hints are sent with it, outside this type.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Message {
    /// The primary's order to execute a batch next.
    Order(SignedOrder),
    /// An executor's outcome of an order.
    Verify(Box<Verify>),
    /// A vote: enough executors got this outcome, and everything below is decided.
    Prepare(Vote),
    /// A vote: a quorum prepared this outcome.
    Commit(Vote),
    /// Proof that a quorum committed to this outcome.
    Decided(Box<Certificate>),
    /// A validator's statement that it has left for a later view.
    ViewChange(Box<ViewChange>),
    /// A primary's message that begins its view.
    NewView(Box<NewView>),
    /// The sender's progress.
    Status(Status),
    /// A proof that a validator contradicted itself.
    Evidence(Evidence),
}

fn statement<T: Serialize>(tag: &str, domain: &Digest, content: &T) -> Digest {
    let content = codec::encode("consensus statement", content).expect("a bounded value can be encoded");
    Digest::tagged(tag, &[domain.as_bytes(), content.as_slice()].concat())
}
