//! [`ExchangeStatus`]: the operators' view of peer exchange.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::PeerId;

/// The state of peer exchange.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExchangeStatus {
    /// The addresses that this node advertises; empty if it advertises none.
    pub advertised: Vec<SocketAddr>,
    /// Maximum number of connections of its own choice: `network.outbound`, or half of the places that configured peers leave.
    pub outbound_max: usize,
    /// The chosen peers that are connected, the longest-connected first.
    pub chosen: Vec<PeerId>,
    /// Peers in the address book that others reported, or that connected to this node.
    pub heard: usize,
    /// Peers in the address book that this node has dialled successfully.
    pub reached: usize,
    /// The count of each event since the start.
    pub events: Vec<(ExchangeEvent, u64)>,
}

/// An event of peer exchange.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Debug,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    strum::VariantArray,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum ExchangeEvent {
    /// A peer of the book was dialled for a place.
    Dialled,
    /// A peer of the book was dialled only to see whether it answers.
    Felt,
    /// A peer that was dialled for either reason answered with its key.
    Reached,
    /// No peer answered, or the handshake failed.
    Unreachable,
    /// Another key answered; the peer's record is dropped.
    WrongKey,
    /// A connection of this node's choice ended without being dropped by it.
    Lost,
    /// A chosen peer made room for another one, because its turn was over or it was useless.
    Rotated,
    /// A record of a peer that was not in the book, or a new address of one that was.
    Heard,
    /// A record that was not kept: outdated, out of reach, or its slot was taken.
    NotKept,
    /// An answer with a record that its peer did not sign, or that is malformed.
    Forged,
    /// A peer's question was answered.
    Answered,
    /// A peer asked too often.
    TooOften,
}

impl ExchangeEvent {
    /// All events.
    pub const ALL: &'static [ExchangeEvent] = <ExchangeEvent as strum::VariantArray>::VARIANTS;

    /// The serialized name.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The count of each event.
#[derive(Debug, Default)]
pub(super) struct Counts([u64; ExchangeEvent::ALL.len()]);

impl Counts {
    pub(super) fn add(&mut self, event: ExchangeEvent) {
        self.0[event as usize] += 1;
    }

    pub(super) fn list(&self) -> Vec<(ExchangeEvent, u64)> {
        ExchangeEvent::ALL.iter().copied().zip(self.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_counts_for_itself() {
        let mut counts = Counts::default();
        for (n, event) in ExchangeEvent::ALL.iter().copied().enumerate() {
            (0..=n).for_each(|_| counts.add(event));
        }
        let expected: Vec<_> = ExchangeEvent::ALL.iter().copied().zip(1..).collect();
        assert_eq!(counts.list(), expected);
        let mut names = ExchangeEvent::ALL.iter().copied().map(ExchangeEvent::name).collect::<Vec<_>>();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ExchangeEvent::ALL.len());
    }
}
