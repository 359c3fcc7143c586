//! [`Liar`]: a Byzantine validator. It derives its messages from those of the others, and does no I/O.

use std::collections::BTreeSet;

use clap::ValueEnum;
use slipstream_consensus::simulated::{Request, encode};
use slipstream_eve::{Ballot, Message, Prepared, Status, Verify, ViewChange, Vote};
use slipstream_types::{
    BatchNumber, CodecError, Digest, LedgerInfo, SecretKey, Signature, ValidatorSet, bounded::BoundedVec,
};

use super::censor::Censor;

/// The most outcomes for which the liar remembers that it lied: the others repeat their messages until a batch is
/// decided.
const TOLD_MAX: usize = 1_024;
/// The length of a message that cannot be decoded.
const NOISE_BYTES: usize = 300;

/// How the validator lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Lie {
    /// Votes for every outcome that it hears of, and for one that no validator has.
    DoubleVote,
    /// Reports outcomes that it made up, and votes for them.
    WrongRoot,
    /// Sends bytes that cannot be decoded, and votes with invalid signatures.
    Garbage,
    /// Sends votes for an outcome to some of the others, and votes for an outcome that no validator has to the rest.
    SplitVotes,
    /// Complains about the primary with each batch, and with each status that it hears.
    Complaints,
    /// Leaves for the next view with each batch, and claims that it saw nothing prepared or decided.
    HiddenPrepares,
    /// Leaves for the next view with each batch, and claims that an outcome was prepared that no validator has.
    InventedPrepares,
    /// Tells any of these lies, another one with each batch and each view.
    Anything,
    /// Orders empty batches as the primary, each just before the other validators' timeout. Otherwise it is silent.
    EmptyBatches,
}

impl Lie {
    /// The lies that `Anything` draws from.
    const DRAWN: [Lie; 7] = [
        Lie::DoubleVote,
        Lie::WrongRoot,
        Lie::Garbage,
        Lie::SplitVotes,
        Lie::Complaints,
        Lie::HiddenPrepares,
        Lie::InventedPrepares,
    ];

    /// Returns the lie for a message: itself, or a drawn one for `Anything`. The draw depends on batch and view alone.
    fn about(self, message: &Message) -> Lie {
        if self != Lie::Anything {
            return self;
        }
        let drawn = match (ballot(message), message) {
            (Some(ballot), _) => ballot.number.get().wrapping_add(ballot.view),
            (None, Message::ViewChange(change)) => change.view,
            (None, Message::Status(status)) => status.view,
            (None, _) => 0,
        };
        Lie::DRAWN[(drawn % Lie::DRAWN.len() as u64) as usize]
    }
}

/// A request, with its receivers.
pub(super) struct OutgoingMessage {
    pub(super) to: Recipients,
    pub(super) request: Vec<u8>,
}

/// All other validators, or every second one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Recipients {
    All,
    /// Every second one, starting with the first.
    Some,
    Rest,
}

impl Recipients {
    /// Whether the validator with index `place` among the others is a recipient.
    pub(super) fn has(self, place: usize) -> bool {
        match self {
            Recipients::All => true,
            Recipients::Some => place.is_multiple_of(2),
            Recipients::Rest => !place.is_multiple_of(2),
        }
    }
}

/// A Byzantine validator.
pub(super) struct Liar {
    lie: Lie,
    key: SecretKey,
    seat: u16,
    /// The signature domain of the epoch.
    domain: Digest,
    set: ValidatorSet,
    /// The last outcome that the liar heard of.
    heard: Option<LedgerInfo>,
    /// The batches, views and tokens that the liar has lied about.
    told: BTreeSet<(BatchNumber, u64, Digest)>,
    censor: Censor,
}

impl Liar {
    pub(super) fn new(lie: Lie, key: SecretKey, seat: u16, domain: Digest, set: ValidatorSet) -> Liar {
        let (heard, told, censor) = (None, BTreeSet::new(), Censor::default());
        Liar { lie, key, seat, domain, set, heard, told, censor }
    }

    /// Returns the requests that are due at `now_ms` (since the Unix epoch): the liar's next order, if it orders
    /// batches.
    ///
    /// # Errors
    /// As [`Liar::hear`].
    pub(super) fn order(&mut self, now_ms: u64) -> Result<Vec<OutgoingMessage>, CodecError> {
        let Some(ordered) = self.censor.order(self.set.epoch, now_ms, &self.domain, &self.key)? else {
            return Ok(Vec::new());
        };
        let request = encode(&Request::Order(Box::new(ordered)))?;
        Ok(vec![OutgoingMessage { to: Recipients::All, request }])
    }

    /// Returns the requests with which the liar reacts to an honest validator's message; empty if it has lied about
    /// that outcome before.
    ///
    /// # Errors
    /// If a message is too long, which none here is.
    pub(super) fn hear(&mut self, message: &Message) -> Result<Vec<OutgoingMessage>, CodecError> {
        if let Message::Verify(verify) = message {
            self.heard = Some(verify.info.clone());
        }
        let lie = self.lie.about(message);
        match (lie, message) {
            (Lie::Complaints, Message::Status(status)) => return self.to_all(&[complaint(*status)]),
            (Lie::HiddenPrepares | Lie::InventedPrepares, Message::ViewChange(change)) => {
                return self.leave(lie, change.view);
            }
            (Lie::WrongRoot, Message::Prepare(_) | Message::Commit(_)) => return Ok(Vec::new()),
            (Lie::EmptyBatches, Message::ViewChange(change))
                if self.set.primary(change.view) == self.seat =>
            {
                let new = self.censor.hear(change, self.set.quorum(), &self.domain, &self.key);
                return self
                    .to_all(&new.map(|new| Message::NewView(Box::new(new))).into_iter().collect::<Vec<_>>());
            }
            (Lie::EmptyBatches, message) => {
                self.censor.see(view_of(message));
                return Ok(Vec::new());
            }
            _ => {}
        }
        let Some(ballot) = ballot(message).filter(|ballot| self.is_new(*ballot)) else {
            return Ok(Vec::new());
        };
        match (lie, message) {
            // `about` never returns `Anything`, and `EmptyBatches` returned above.
            (Lie::Anything | Lie::EmptyBatches, _) => Ok(Vec::new()),
            (Lie::DoubleVote, _) => self.to_all(&self.double_vote(ballot)),
            (Lie::WrongRoot, Message::Verify(verify)) => self.to_all(&self.wrong_root(verify)),
            (Lie::WrongRoot, _) => Ok(Vec::new()),
            (Lie::Garbage, _) => {
                let signature = Signature([0x5a; 64]);
                let mut said = self.to_all(&[Message::Prepare(Vote { ballot, signature })])?;
                said.push(OutgoingMessage { to: Recipients::All, request: vec![0x5a; NOISE_BYTES] });
                Ok(said)
            }
            (Lie::SplitVotes, _) => self.split_vote(ballot),
            (Lie::Complaints, _) => {
                let Ballot { view, number, .. } = ballot;
                let decided = number.before(1);
                let status = Status {
                    view,
                    changing: false,
                    complains: true,
                    decided,
                    ordered: number,
                    neglected: false,
                    silence: None,
                };
                self.to_all(&[complaint(status)])
            }
            (Lie::HiddenPrepares | Lie::InventedPrepares, _) => {
                self.leave(lie, ballot.view.saturating_add(1))
            }
        }
    }

    fn is_new(&mut self, ballot: Ballot) -> bool {
        let is_new = self.told.insert((ballot.number, ballot.view, ballot.token));
        while self.told.len() > TOLD_MAX {
            self.told.pop_first();
        }
        is_new
    }

    /// Returns two prepares and two commits. The first of each counts with validators that have not seen the second.
    fn double_vote(&self, ballot: Ballot) -> [Message; 4] {
        let token = self.made_up(&ballot.token);
        let other = Ballot { token, ..ballot };
        let (prepare, commit) =
            (|it| Message::Prepare(self.prepare(it)), |it| Message::Commit(self.commit(it)));
        [prepare(ballot), prepare(other), commit(ballot), commit(other)]
    }

    /// Returns votes for the true outcome to some validators, and for another one to the rest, so that none receives
    /// both.
    fn split_vote(&self, ballot: Ballot) -> Result<Vec<OutgoingMessage>, CodecError> {
        let [prepare, other_prepare, commit, other_commit] = self.double_vote(ballot);
        let mut said = self.said(Recipients::Some, &[prepare, commit])?;
        said.extend(self.said(Recipients::Rest, &[other_prepare, other_commit])?);
        Ok(said)
    }

    /// Returns the liar's view change to `view`.
    fn leave(&self, lie: Lie, view: u64) -> Result<Vec<OutgoingMessage>, CodecError> {
        let prepared = if lie == Lie::InventedPrepares { self.invent(view)? } else { None };
        let change = ViewChange::new(view, self.seat, None, prepared, &self.domain, &self.key);
        self.to_all(&[Message::ViewChange(Box::new(change))])
    }

    /// Invents an outcome that a quorum prepared in the previous view: all signatures are the liar's own. Returns
    /// `None` until the liar has heard of an outcome.
    fn invent(&self, view: u64) -> Result<Option<Prepared>, CodecError> {
        let Some(truth) = &self.heard else { return Ok(None) };
        let info = LedgerInfo { state_root: self.made_up(&truth.state_root), ..truth.clone() };
        let ballot = Ballot { view: view.saturating_sub(1), number: info.number, token: info.digest() };
        let signature = ballot.sign_prepare(&self.domain, &self.key);
        let signatures = (0..).take(self.set.quorum()).map(|seat| (seat, signature)).collect();
        Ok(Some(Prepared { view: ballot.view, info, signatures: BoundedVec::new(signatures)? }))
    }

    fn wrong_root(&self, verify: &Verify) -> [Message; 3] {
        let state_root = self.made_up(&verify.info.state_root);
        let info = LedgerInfo { state_root, ..verify.info.clone() };
        let ballot = Ballot { view: verify.order.order.view, number: info.number, token: info.digest() };
        let verify = Verify { info, ..verify.clone() };
        [
            Message::Verify(Box::new(verify)),
            Message::Prepare(self.prepare(ballot)),
            Message::Commit(self.commit(ballot)),
        ]
    }

    /// Makes up a digest that depends on the liar's key, so that two liars differ.
    fn made_up(&self, truth: &Digest) -> Digest {
        Digest::tagged("slipnet/made-up/1", &[truth.as_bytes(), &self.key.public().0[..]].concat())
    }

    fn prepare(&self, ballot: Ballot) -> Vote {
        Vote { ballot, signature: ballot.sign_prepare(&self.domain, &self.key) }
    }

    fn commit(&self, ballot: Ballot) -> Vote {
        Vote { ballot, signature: ballot.sign_commit(&self.key) }
    }

    fn to_all(&self, messages: &[Message]) -> Result<Vec<OutgoingMessage>, CodecError> {
        self.said(Recipients::All, messages)
    }

    fn said(&self, to: Recipients, messages: &[Message]) -> Result<Vec<OutgoingMessage>, CodecError> {
        let request = |message: &Message| Request::Say(self.set.epoch, Box::new(message.clone()));
        messages
            .iter()
            .map(|message| encode(&request(message)).map(|request| OutgoingMessage { to, request }))
            .collect()
    }
}

/// Returns the ballot of a message's outcome, if it has one.
fn ballot(message: &Message) -> Option<Ballot> {
    match message {
        Message::Verify(verify) => Some(Ballot {
            view: verify.order.order.view,
            number: verify.info.number,
            token: verify.info.digest(),
        }),
        Message::Prepare(vote) | Message::Commit(vote) => Some(vote.ballot),
        _ => None,
    }
}

/// Returns the newest view that a message proves to have begun, or that its sender wants.
fn view_of(message: &Message) -> u64 {
    match message {
        Message::Order(signed) => signed.order.view,
        Message::ViewChange(change) => change.view,
        Message::NewView(new) => new.view,
        Message::Status(status) => status.view,
        message => ballot(message).map_or(0, |ballot| ballot.view),
    }
}

/// Returns a complaint that claims the progress of another validator's status.
fn complaint(status: Status) -> Message {
    Message::Status(Status { changing: false, complains: true, ..status })
}

#[cfg(test)]
mod tests;
