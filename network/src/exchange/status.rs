//! [`ExchangeStatus`]: the operators' view of peer exchange.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::PeerId;

/// How a node stands with peers that its configuration does not name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExchangeStatus {
    /// Where this node tells others that it is reached; empty if it tells nothing.
    pub advertised: Vec<SocketAddr>,
    /// Connections of its own choice that it keeps at most: `network.outbound`, or half of what configured peers leave.
    pub outbound_max: usize,
    /// Whom it chose and is connected with, the longest of them first.
    pub chosen: Vec<PeerId>,
    /// Peers in the address book that others told of, or that came in.
    pub heard: usize,
    /// Peers in the address book that this node has dialled.
    pub reached: usize,
    /// How often each happened since the start.
    pub events: Vec<(ExchangeEvent, u64)>,
}

/// What happens in peer exchange.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ExchangeEvent {
    /// A peer of the book was dialled for a place.
    Dialled,
    /// A peer of the book was dialled only to see whether it is there.
    Felt,
    /// A peer that was dialled for either reason answered with its key.
    Reached,
    /// Nobody answered, or the handshake failed.
    Unreachable,
    /// Another key answered; the peer's record is forgotten.
    WrongKey,
    /// A connection of this node's choice ended by itself.
    Lost,
    /// A chosen peer made room for another one, as its turn was over or it was of no use.
    Rotated,
    /// A record of a peer that was not in the book, or of a new address of one that was.
    Heard,
    /// A record that was not kept: out of date, out of reach, or its slot was taken.
    NotKept,
    /// An answer with a record that its peer did not sign, or that is none.
    Forged,
    /// A peer's question was answered.
    Answered,
    /// A peer asked too often.
    TooOften,
}

impl ExchangeEvent {
    /// All of them.
    pub const ALL: [ExchangeEvent; 12] = [
        ExchangeEvent::Dialled,
        ExchangeEvent::Felt,
        ExchangeEvent::Reached,
        ExchangeEvent::Unreachable,
        ExchangeEvent::WrongKey,
        ExchangeEvent::Lost,
        ExchangeEvent::Rotated,
        ExchangeEvent::Heard,
        ExchangeEvent::NotKept,
        ExchangeEvent::Forged,
        ExchangeEvent::Answered,
        ExchangeEvent::TooOften,
    ];

    /// As it is serialized.
    pub fn name(self) -> &'static str {
        match self {
            ExchangeEvent::Dialled => "dialled",
            ExchangeEvent::Felt => "felt",
            ExchangeEvent::Reached => "reached",
            ExchangeEvent::Unreachable => "unreachable",
            ExchangeEvent::WrongKey => "wrong_key",
            ExchangeEvent::Lost => "lost",
            ExchangeEvent::Rotated => "rotated",
            ExchangeEvent::Heard => "heard",
            ExchangeEvent::NotKept => "not_kept",
            ExchangeEvent::Forged => "forged",
            ExchangeEvent::Answered => "answered",
            ExchangeEvent::TooOften => "too_often",
        }
    }
}

/// How often each event happened.
#[derive(Debug, Default)]
pub(super) struct Counts([u64; ExchangeEvent::ALL.len()]);

impl Counts {
    pub(super) fn add(&mut self, event: ExchangeEvent) {
        self.0[event as usize] += 1;
    }

    pub(super) fn list(&self) -> Vec<(ExchangeEvent, u64)> {
        ExchangeEvent::ALL.into_iter().zip(self.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_counts_for_itself() {
        let mut counts = Counts::default();
        for (n, event) in ExchangeEvent::ALL.into_iter().enumerate() {
            (0..=n).for_each(|_| counts.add(event));
        }
        let expected: Vec<_> = ExchangeEvent::ALL.into_iter().zip(1..).collect();
        assert_eq!(counts.list(), expected);
        let mut names = ExchangeEvent::ALL.map(ExchangeEvent::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ExchangeEvent::ALL.len());
    }
}
