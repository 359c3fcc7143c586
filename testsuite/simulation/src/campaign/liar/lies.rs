//! [`Liar`]: a validator with a key and without honesty. It decides its messages from those of the others, and does no I/O.

use std::collections::BTreeSet;

use clap::ValueEnum;
use slipstream_consensus::simulated::{Request, encode};
use slipstream_eve::{Ballot, Message, Prepared, Status, Verify, ViewChange, Vote};
use slipstream_types::{
    BatchNumber, CodecError, Digest, LedgerInfo, SecretKey, Signature, ValidatorSet, bounded::BoundedVec,
};

use super::censor::Censor;

/// Outcomes that it remembers to have lied about: the others repeat what they say of a batch until it is decided.
const TOLD_MAX: usize = 1_024;
/// Bytes that are no message.
const NOISE_BYTES: usize = 300;

/// How it lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Lie {
    /// Votes for every outcome that it hears of, and for one that nobody has.
    DoubleVote,
    /// Tells outcomes that it made up, and votes for these.
    WrongRoot,
    /// Sends what cannot be decoded, and votes that it did not sign.
    Garbage,
    /// Votes for an outcome before some of the others, and before the rest for one that nobody has.
    SplitVotes,
    /// Complains of the primary with each batch, and whenever somebody says how far he is.
    Complaints,
    /// Leaves for the next view with each batch, and says that it saw nothing prepared or decided.
    HiddenPrepares,
    /// Leaves for the next view with each batch, and says that an outcome was prepared that nobody has.
    InventedPrepares,
    /// Any of these, another one with each batch and each view.
    Anything,
    /// Orders empty batches when its turn to be primary comes, one just before patience with it ends. Else it is silent.
    EmptyBatches,
}

impl Lie {
    /// Those that a liar of anything draws from.
    const DRAWN: [Lie; 7] = [
        Lie::DoubleVote,
        Lie::WrongRoot,
        Lie::Garbage,
        Lie::SplitVotes,
        Lie::Complaints,
        Lie::HiddenPrepares,
        Lie::InventedPrepares,
    ];

    /// The lie about a message: itself, unless it is any. One batch in one view, and one view, always draw the same.
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

/// A request, and who gets it.
pub(super) struct Said {
    pub(super) to: Hearers,
    pub(super) request: Vec<u8>,
}

/// The other validators, or every other one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hearers {
    All,
    /// The first, the third, and so on.
    Some,
    Rest,
}

impl Hearers {
    /// Whether the one at this place among the others is one of them.
    pub(super) fn has(self, place: usize) -> bool {
        match self {
            Hearers::All => true,
            Hearers::Some => place.is_multiple_of(2),
            Hearers::Rest => !place.is_multiple_of(2),
        }
    }
}

/// Somebody in a validator's place.
pub(super) struct Liar {
    lie: Lie,
    key: SecretKey,
    seat: u16,
    /// Of what is signed in the epoch.
    domain: Digest,
    set: ValidatorSet,
    /// The outcome that it heard of last.
    heard: Option<LedgerInfo>,
    /// Views, batches and tokens that it has lied about.
    told: BTreeSet<(BatchNumber, u64, Digest)>,
    censor: Censor,
}

impl Liar {
    pub(super) fn new(lie: Lie, key: SecretKey, seat: u16, domain: Digest, set: ValidatorSet) -> Liar {
        let (heard, told, censor) = (None, BTreeSet::new(), Censor::default());
        Liar { lie, key, seat, domain, set, heard, told, censor }
    }

    /// The requests that are due at a time, in milliseconds since the Unix epoch: its next order, if it orders.
    ///
    /// # Errors
    /// As [`Liar::hear`].
    pub(super) fn order(&mut self, now_ms: u64) -> Result<Vec<Said>, CodecError> {
        let Some(ordered) = self.censor.order(self.set.epoch, now_ms, &self.domain, &self.key)? else {
            return Ok(Vec::new());
        };
        let request = encode(&Request::Order(Box::new(ordered)))?;
        Ok(vec![Said { to: Hearers::All, request }])
    }

    /// The requests with which it answers what an honest validator said; none if it lied about that before.
    ///
    /// # Errors
    /// If a message is longer than any may be, which none here is.
    pub(super) fn hear(&mut self, message: &Message) -> Result<Vec<Said>, CodecError> {
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
            // Every message has a lie that is one.
            (Lie::Anything | Lie::EmptyBatches, _) => Ok(Vec::new()),
            (Lie::DoubleVote, _) => self.to_all(&self.double_vote(ballot)),
            (Lie::WrongRoot, Message::Verify(verify)) => self.to_all(&self.wrong_root(verify)),
            (Lie::WrongRoot, _) => Ok(Vec::new()),
            (Lie::Garbage, _) => {
                let signature = Signature([0x5a; 64]);
                let mut said = self.to_all(&[Message::Prepare(Vote { ballot, signature })])?;
                said.push(Said { to: Hearers::All, request: vec![0x5a; NOISE_BYTES] });
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

    /// The first of each two votes counts where nothing is known to be wrong.
    fn double_vote(&self, ballot: Ballot) -> [Message; 4] {
        let token = self.made_up(&ballot.token);
        let other = Ballot { token, ..ballot };
        let (prepare, commit) =
            (|it| Message::Prepare(self.prepare(it)), |it| Message::Commit(self.commit(it)));
        [prepare(ballot), prepare(other), commit(ballot), commit(other)]
    }

    /// The truth before some, and another outcome before the rest: nobody hears both.
    fn split_vote(&self, ballot: Ballot) -> Result<Vec<Said>, CodecError> {
        let [prepare, other_prepare, commit, other_commit] = self.double_vote(ballot);
        let mut said = self.said(Hearers::Some, &[prepare, commit])?;
        said.extend(self.said(Hearers::Rest, &[other_prepare, other_commit])?);
        Ok(said)
    }

    /// Its word that it left for a view.
    fn leave(&self, lie: Lie, view: u64) -> Result<Vec<Said>, CodecError> {
        let prepared = if lie == Lie::InventedPrepares { self.invent(view)? } else { None };
        let change = ViewChange::new(view, self.seat, None, prepared, &self.domain, &self.key);
        self.to_all(&[Message::ViewChange(Box::new(change))])
    }

    /// An outcome that a quorum prepared in the view before, as it says: all signatures are its own. None before it heard of an outcome.
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

    /// Two liars make up different things: they do not know each other.
    fn made_up(&self, truth: &Digest) -> Digest {
        Digest::tagged("slipnet/made-up/1", &[truth.as_bytes(), &self.key.public().0[..]].concat())
    }

    fn prepare(&self, ballot: Ballot) -> Vote {
        Vote { ballot, signature: ballot.sign_prepare(&self.domain, &self.key) }
    }

    fn commit(&self, ballot: Ballot) -> Vote {
        Vote { ballot, signature: ballot.sign_commit(&self.key) }
    }

    fn to_all(&self, messages: &[Message]) -> Result<Vec<Said>, CodecError> {
        self.said(Hearers::All, messages)
    }

    fn said(&self, to: Hearers, messages: &[Message]) -> Result<Vec<Said>, CodecError> {
        let request = |message: &Message| Request::Say(self.set.epoch, Box::new(message.clone()));
        messages.iter().map(|message| encode(&request(message)).map(|request| Said { to, request })).collect()
    }
}

/// The outcome that a message is about, if it is about one.
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

/// The newest view that a message shows to have begun, or to be wanted by its sender.
fn view_of(message: &Message) -> u64 {
    match message {
        Message::Order(signed) => signed.order.view,
        Message::ViewChange(change) => change.view,
        Message::NewView(new) => new.view,
        Message::Status(status) => status.view,
        message => ballot(message).map_or(0, |ballot| ballot.view),
    }
}

/// As far as somebody else is, and in want of another primary.
fn complaint(status: Status) -> Message {
    Message::Status(Status { changing: false, complains: true, ..status })
}

#[cfg(test)]
mod tests;
