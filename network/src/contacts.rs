//! [`Contacts`]: the state of a node's connections to its configured peers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::{BanEnd, BannedBy, PeerId, PeerTarget, SharedKey};

/// Number of connections in a row that a peer may end at once before the log reports it. Two nodes that dial each other
/// at the same moment end one of their connections too.
const ENDED_TOLD_AT: u32 = 3;

/// The state of each configured peer, for operators of a network that does not connect.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Contacts {
    /// Each peer of `network.peers`, in that order, without the node itself; then those that the operator added.
    pub configured: Vec<ConfiguredPeer>,
    /// Keys that more than one node used within the last minute.
    pub shared_keys: Vec<SharedKey>,
    /// Peers of `network.peers` that the operator removed: they are not dialled, and no place is reserved for them.
    pub removed: Vec<PeerTarget>,
}

/// A peer of `network.peers`, or one that the operator added.
#[derive(Clone, PartialEq, Debug)]
pub struct ConfiguredPeer {
    /// The expected peer, and the address to dial.
    pub peer: PeerTarget,
    /// The state of the connection to it.
    pub state: ContactState,
    /// Whether the operator added it.
    pub is_added: bool,
}

/// The state of the connection to a configured peer.
#[derive(Clone, PartialEq, Debug)]
pub enum ContactState {
    /// The peer is connected; either side may have dialled.
    Connected {
        /// The time of the connection.
        since: Instant,
    },
    /// The first attempt is under way, or the first after a connection that had lasted.
    Connecting,
    /// The attempts so far have not led to a connection that lasted.
    Failing {
        /// Why the last attempt failed.
        failure: ContactFailure,
        /// When the first of these attempts began.
        since: Instant,
        /// Number of these attempts.
        attempts: u32,
        /// When the next one begins; in the past while it is under way.
        next_attempt: Instant,
    },
    /// This node, or its operator, has banned the peer.
    Banned {
        /// When the ban ends.
        until: BanEnd,
        /// Whether the operator or the node banned it.
        by: BannedBy,
        /// The reason, in words.
        reason: String,
    },
}

/// Why an attempt to connect to a configured peer failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ContactFailure {
    /// The peer is silent, the handshake failed, or the name has no address. The text gives the error.
    Unreachable(String),
    /// The peer at that address has this key instead of the configured one.
    WrongKey(PeerId),
    /// The connection was made and ended soon. The text gives the reason, and may be the peer's own.
    Ended(String),
}

/// A [`ContactState`] without its data, as status and metrics name it.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema, strum::VariantArray,
)]
#[serde(rename_all = "lowercase")]
pub enum ContactKind {
    /// The peer is connected.
    Connected,
    /// The first attempt is under way.
    Connecting,
    /// No peer answers.
    Unreachable,
    /// Another key answers.
    #[serde(rename = "wrong key")]
    WrongKey,
    /// Connections end soon after they are made.
    Ended,
    /// Banned by this node.
    Banned,
}

impl ContactKind {
    /// All kinds of states.
    pub const ALL: &'static [ContactKind] = <ContactKind as strum::VariantArray>::VARIANTS;

    /// The serialized name.
    pub fn name(self) -> &'static str {
        match self {
            ContactKind::Connected => "connected",
            ContactKind::Connecting => "connecting",
            ContactKind::Unreachable => "unreachable",
            ContactKind::WrongKey => "wrong key",
            ContactKind::Ended => "ended",
            ContactKind::Banned => "banned",
        }
    }
}

impl ContactState {
    /// The state's kind, without its data.
    pub fn kind(&self) -> ContactKind {
        match self {
            ContactState::Connected { .. } => ContactKind::Connected,
            ContactState::Connecting => ContactKind::Connecting,
            ContactState::Failing { failure, .. } => match failure {
                ContactFailure::Unreachable(_) => ContactKind::Unreachable,
                ContactFailure::WrongKey(_) => ContactKind::WrongKey,
                ContactFailure::Ended(_) => ContactKind::Ended,
            },
            ContactState::Banned { .. } => ContactKind::Banned,
        }
    }
}

impl ConfiguredPeer {
    /// Why the peer is not connected, and what to do. `None` if it is connected, or the first attempt is still under way.
    pub fn trouble(&self) -> Option<String> {
        match &self.state {
            ContactState::Connected { .. } | ContactState::Connecting => None,
            ContactState::Failing { failure, .. } => Some(failure.describe(&self.peer)),
            ContactState::Banned { by, reason, .. } => Some(format!("banned by {by}: {reason}")),
        }
    }
}

impl ContactFailure {
    fn describe(&self, peer: &PeerTarget) -> String {
        match self {
            ContactFailure::Unreachable(reason) => reason.clone(),
            ContactFailure::WrongKey(found) => format!(
                "the node at {} does not have the key {}: it presents {found}; check network.peers",
                peer.at, peer.id
            ),
            ContactFailure::Ended(end) => format!("the connection ended soon after its start: {end}"),
        }
    }
}

/// The results of dialling each configured peer since its last connection that lasted.
#[derive(Debug, Default)]
pub(crate) struct Attempts(BTreeMap<PeerId, FailedAttempts>);

#[derive(Debug)]
struct FailedAttempts {
    failure: ContactFailure,
    since: Instant,
    attempts: u32,
    next_attempt: Instant,
    /// The failure that was logged last.
    told: Option<ContactFailure>,
}

impl Attempts {
    /// Records a failed attempt that began at `began`. `next_attempt` is the time of the next one. Returns a text for
    /// the log, once for each kind of failure.
    pub(crate) fn failed(
        &mut self,
        peer: &PeerTarget,
        failure: ContactFailure,
        began: Instant,
        next_attempt: Instant,
    ) -> Option<String> {
        let failing = self.0.entry(peer.id).or_insert_with(|| FailedAttempts {
            failure: failure.clone(),
            since: began,
            attempts: 0,
            next_attempt,
            told: None,
        });
        failing.attempts = failing.attempts.saturating_add(1);
        (failing.failure, failing.next_attempt) = (failure, next_attempt);
        let is_early =
            matches!(failing.failure, ContactFailure::Ended(_)) && failing.attempts < ENDED_TOLD_AT;
        let is_told = failing.told.as_ref().is_some_and(|told| told.is_alike(&failing.failure));
        if is_early || is_told {
            return None;
        }
        failing.told = Some(failing.failure.clone());
        Some(failing.failure.describe(peer))
    }

    /// Forgets the failures of a peer whose connection lasted.
    pub(crate) fn lasted(&mut self, peer: &PeerId) {
        self.0.remove(peer);
    }

    /// Number of failed attempts in a row.
    pub(crate) fn count(&self, peer: &PeerId) -> u32 {
        self.0.get(peer).map_or(0, |failing| failing.attempts)
    }

    /// The state of a peer without a connection.
    pub(crate) fn state(&self, peer: &PeerId) -> ContactState {
        match self.0.get(peer) {
            None => ContactState::Connecting,
            Some(FailedAttempts { failure, since, attempts, next_attempt, .. }) => ContactState::Failing {
                failure: failure.clone(),
                since: *since,
                attempts: *attempts,
                next_attempt: *next_attempt,
            },
        }
    }
}

impl ContactFailure {
    /// Whether a log that reports one of the two failures need not report the other.
    fn is_alike(&self, other: &ContactFailure) -> bool {
        match (self, other) {
            (ContactFailure::WrongKey(one), ContactFailure::WrongKey(other)) => one == other,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slipstream_types::SecretKey;

    use super::*;
    use crate::PeerAddress;

    fn peer() -> PeerTarget {
        let id = SecretKey::from_seed([1; 32]).public();
        PeerAddress { id, address: "192.0.2.7:7400".parse().unwrap() }.into()
    }

    /// Goal: each kind of failure is logged once, however often the peer is dialled; the state keeps counting.
    #[test]
    fn a_failure_is_told_once_and_counted_on() {
        let (peer, start) = (peer(), Instant::now());
        let mut attempts = Attempts::default();
        assert_eq!(attempts.state(&peer.id), ContactState::Connecting);
        let other = SecretKey::from_seed([2; 32]).public();
        let mut told = Vec::new();
        for second in 0..30 {
            let failure = match second {
                0..10 => ContactFailure::Unreachable(format!("no answer {second}")),
                10..20 => ContactFailure::WrongKey(other),
                _ => ContactFailure::Ended("closed by the peer: no free place".into()),
            };
            let now = start + Duration::from_secs(second);
            told.extend(attempts.failed(&peer, failure, now, now + Duration::from_secs(1)));
        }
        let expected = [
            "no answer 0".to_owned(),
            format!(
                "the node at 192.0.2.7:7400 does not have the key {}: it presents {other}; check network.peers",
                peer.id
            ),
            "the connection ended soon after its start: closed by the peer: no free place".to_owned(),
        ];
        assert_eq!(told, expected);
        match attempts.state(&peer.id) {
            state @ ContactState::Failing { since, attempts: 30, next_attempt, .. } => {
                assert_eq!((state.kind(), since), (ContactKind::Ended, start));
                assert_eq!(next_attempt, start + Duration::from_secs(30));
            }
            state => panic!("{state:?}"),
        }
        attempts.lasted(&peer.id);
        assert_eq!(attempts.state(&peer.id), ContactState::Connecting);
        let failure = ContactFailure::Unreachable("gone again".into());
        assert_eq!(attempts.failed(&peer, failure, start, start).as_deref(), Some("gone again"));
    }

    /// Goal: the connection that two crossing attempts end is not worth a warning.
    #[test]
    fn a_connection_that_ends_at_once_is_told_of_when_it_happens_again_and_again() {
        let (peer, now) = (peer(), Instant::now());
        let mut attempts = Attempts::default();
        let ended = || ContactFailure::Ended("closed by the peer".into());
        let told: Vec<_> = (0..5).map(|_| attempts.failed(&peer, ended(), now, now).is_some()).collect();
        assert_eq!(told, [false, false, true, false, false]);
    }
}
