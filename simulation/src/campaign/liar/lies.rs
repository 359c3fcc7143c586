//! [`Liar`]: a validator with a key and without honesty. It decides its messages from those of the others, and does no I/O.

use std::collections::BTreeSet;

use clap::ValueEnum;
use slipstream_consensus::simulated::{Request, encode};
use slipstream_eve::{Ballot, Message, Verify, Vote};
use slipstream_types::{BatchNumber, CodecError, Digest, Epoch, LedgerInfo, SecretKey, Signature};

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
}

/// Somebody in a validator's place.
pub(super) struct Liar {
    pub(super) lie: Lie,
    pub(super) key: SecretKey,
    /// Of what is signed in the epoch.
    pub(super) domain: Digest,
    pub(super) epoch: Epoch,
    /// Views, batches and tokens that it has lied about.
    told: BTreeSet<(BatchNumber, u64, Digest)>,
}

impl Liar {
    pub(super) fn new(lie: Lie, key: SecretKey, domain: Digest, epoch: Epoch) -> Liar {
        Liar { lie, key, domain, epoch, told: BTreeSet::new() }
    }

    /// The requests with which it answers what an honest validator said, for all of them; none if it lied about that before.
    ///
    /// # Errors
    /// If a message is longer than any may be, which none here is.
    pub(super) fn hear(&mut self, message: &Message) -> Result<Vec<Vec<u8>>, CodecError> {
        let ballot = match message {
            Message::Verify(verify) => Ballot {
                view: verify.order.order.view,
                number: verify.info.number,
                token: verify.info.digest(),
            },
            Message::Prepare(vote) | Message::Commit(vote) => vote.ballot,
            _ => return Ok(Vec::new()),
        };
        match (self.lie, message) {
            (Lie::DoubleVote, _) if self.is_new(ballot) => self.encoded(&self.double_vote(ballot)),
            (Lie::WrongRoot, Message::Verify(verify)) if self.is_new(ballot) => {
                self.encoded(&self.wrong_root(verify))
            }
            (Lie::Garbage, _) if self.is_new(ballot) => {
                let signature = Signature([0x5a; 64]);
                let forged = self.encoded(&[Message::Prepare(Vote { ballot, signature })])?;
                Ok([forged, vec![vec![0x5a; NOISE_BYTES]]].concat())
            }
            _ => Ok(Vec::new()),
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

    fn encoded(&self, messages: &[Message]) -> Result<Vec<Vec<u8>>, CodecError> {
        let request = |message: &Message| Request::Say(self.epoch, Box::new(message.clone()));
        messages.iter().map(|message| encode(&request(message))).collect()
    }
}

#[cfg(test)]
mod tests {
    use slipstream_consensus::simulated::decode_request;
    use slipstream_eve::{Evidence, Order, SignedOrder};
    use slipstream_testkit::{info, keys, set};
    use slipstream_types::ValidatorSet;

    use super::*;

    const DOMAIN: Digest = Digest::ZERO;

    fn validators() -> (Vec<SecretKey>, ValidatorSet) {
        let keys = keys(0..4);
        let set = set(0, &keys, Default::default());
        (keys, set)
    }

    /// The message of view 0's primary about batch 5.
    fn verify(key: &SecretKey) -> Message {
        let info = info(0, 5);
        let order = Order {
            epoch: Epoch(0),
            view: 0,
            number: info.number,
            parent: Digest::ZERO,
            timestamp_ms: info.timestamp_ms,
            transactions: Digest::ZERO,
        };
        let order = SignedOrder::new(order, &DOMAIN, key);
        Message::Verify(Box::new(Verify { order, before: Digest::ZERO, info }))
    }

    fn liar(lie: Lie, key: &SecretKey) -> Liar {
        Liar::new(lie, key.clone(), DOMAIN, Epoch(0))
    }

    fn said(requests: &[Vec<u8>]) -> Vec<Message> {
        let said = requests.iter().filter_map(|request| match decode_request(request) {
            Ok(Request::Say(_, message)) => Some(*message),
            _ => None,
        });
        said.collect()
    }

    /// Goal: two prepares convict it, each of them is validly signed, and it says them once.
    #[test]
    fn two_votes_convict_the_liar() {
        let (keys, set) = validators();
        let mut liar = liar(Lie::DoubleVote, &keys[3]);
        let said = said(&liar.hear(&verify(&keys[0])).unwrap());
        let [Message::Prepare(first), Message::Prepare(second), Message::Commit(_), Message::Commit(_)] =
            said[..]
        else {
            panic!("{said:?}")
        };
        let seat = set.index_of(&keys[3].public()).unwrap();
        assert!(Evidence::Prepares(seat, Box::new([first, second])).is_valid(&set, &DOMAIN));
        assert_eq!(first.ballot.token, info(0, 5).digest(), "the truth comes first");
        assert!(liar.hear(&verify(&keys[0])).unwrap().is_empty());
        assert!(liar.hear(&Message::Prepare(first)).unwrap().is_empty());
    }

    /// Goal: outcomes are made up with the primary's true order, and no two liars make up the same.
    #[test]
    fn made_up_outcomes_stand_on_true_orders() {
        let (keys, set) = validators();
        let mut roots = BTreeSet::new();
        for key in &keys[2..] {
            let said = said(&liar(Lie::WrongRoot, key).hear(&verify(&keys[0])).unwrap());
            let [Message::Verify(verify), Message::Prepare(vote), Message::Commit(_)] = &said[..] else {
                panic!("{said:?}")
            };
            assert!(verify.order.is_signed(&set, &DOMAIN));
            assert_eq!(vote.ballot.token, verify.info.digest());
            roots.insert(verify.info.state_root);
        }
        assert!(roots.len() == 2 && !roots.contains(&info(0, 5).state_root));
    }

    #[test]
    fn garbage_is_no_message_and_no_vote() {
        let (keys, set) = validators();
        let requests = liar(Lie::Garbage, &keys[3]).hear(&verify(&keys[0])).unwrap();
        assert!(requests.iter().any(|request| decode_request(request).is_err()));
        let [Message::Prepare(forged)] = said(&requests)[..] else { panic!("{requests:?}") };
        let other = Vote { ballot: Ballot { token: Digest::ZERO, ..forged.ballot }, ..forged };
        assert!(!Evidence::Prepares(3, Box::new([forged, other])).is_valid(&set, &DOMAIN));
    }
}
