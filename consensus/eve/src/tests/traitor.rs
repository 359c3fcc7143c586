//! [`Traitor`]: a validator that sends what it should not.

use rand::Rng;
use slipstream_types::{Digest, LedgerInfo};

use super::world::World;
use crate::{Ballot, Message, SignedOrder, Status, Verify, ViewChange, Vote};

/// How the traitor distorts its messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Traitor {
    /// Orders a different batch for each validator.
    Orders,
    /// Votes for everything.
    Votes,
    /// Executes wrongly.
    Outcomes,
    /// Hides what it saw prepared and decided.
    Forgets,
    /// Invents prepared outcomes.
    Invents,
    /// Complains for ever.
    Complains,
    /// Sends nothing.
    Silent,
    /// Any of these, now and then.
    Anything,
}

impl Traitor {
    pub(super) fn twist(self, world: &mut World, seat: u16, target: u16, message: Message) -> Vec<Message> {
        let honest = vec![message.clone()];
        let traitor = match self {
            Traitor::Anything => match world.random.random_range(0..12) {
                0 => Traitor::Orders,
                1 => Traitor::Votes,
                2 => Traitor::Outcomes,
                3 => Traitor::Forgets,
                4 => Traitor::Invents,
                5 => Traitor::Complains,
                6 => Traitor::Silent,
                _ => return honest,
            },
            traitor => traitor,
        };
        let key = world.keys[usize::from(seat)].clone();
        let junk = |world: &mut World| Digest::tagged("junk", &world.random.random::<u64>().to_le_bytes());
        match (traitor, message) {
            (Traitor::Silent, _) => Vec::new(),
            (Traitor::Orders, Message::Order(signed)) => {
                let mut order = signed.order;
                order.timestamp_ms += u64::from(target);
                vec![Message::Order(SignedOrder::new(order, &world.domain, &key))]
            }
            (Traitor::Votes, Message::Prepare(vote)) => {
                let ballot = Ballot { token: junk(world), ..vote.ballot };
                let other = Vote { ballot, signature: ballot.sign_prepare(&world.domain, &key) };
                [honest, vec![Message::Prepare(other)]].concat()
            }
            (Traitor::Votes, Message::Commit(vote)) => {
                let ballot = Ballot { token: junk(world), ..vote.ballot };
                let other = Vote { ballot, signature: ballot.sign_commit(&key) };
                [vec![Message::Commit(other)], honest].concat()
            }
            (Traitor::Votes, Message::Verify(verify)) => {
                // It prepares and commits to whatever anybody executed.
                let ballot = Ballot {
                    view: verify.order.order.view,
                    number: verify.info.number,
                    token: verify.info.digest(),
                };
                let prepare =
                    Message::Prepare(Vote { ballot, signature: ballot.sign_prepare(&world.domain, &key) });
                let commit = Message::Commit(Vote { ballot, signature: ballot.sign_commit(&key) });
                [honest, vec![prepare, commit]].concat()
            }
            (Traitor::Outcomes, Message::Verify(verify)) => {
                let state_root = Digest::tagged("wrong", verify.info.state_root.as_bytes());
                let info = LedgerInfo { state_root, ..verify.info.clone() };
                vec![Message::Verify(Box::new(Verify { info, ..*verify }))]
            }
            (Traitor::Forgets, Message::ViewChange(change)) => {
                let change = ViewChange::new(change.view, seat, None, None, &world.domain, &key);
                vec![Message::ViewChange(Box::new(change))]
            }
            (Traitor::Invents, Message::ViewChange(change)) => {
                let prepared = change.prepared.clone().map(|mut prepared| {
                    prepared.info.state_root = junk(world);
                    prepared
                });
                let change =
                    ViewChange::new(change.view, seat, change.decided.clone(), prepared, &world.domain, &key);
                vec![Message::ViewChange(Box::new(change))]
            }
            (Traitor::Complains, Message::Status(status)) => {
                vec![Message::Status(Status { complains: true, ..status })]
            }
            _ => honest,
        }
    }
}
