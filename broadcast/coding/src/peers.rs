//! Keeps the knowledge of a codec about each peer.

use std::collections::BTreeMap;

use slipstream_types::PublicKey;

use crate::limits::PEERS_MAX;

/// A value for each of at most [`PEERS_MAX`] peers.
#[derive(Debug)]
pub(crate) struct Peers<T>(BTreeMap<PublicKey, T>);

impl<T> Peers<T> {
    pub(crate) fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Returns the entry of a peer, or inserts `first`. Returns `None` if there is no room for another peer.
    pub(crate) fn of(&mut self, peer: &PublicKey, first: T) -> Option<&mut T> {
        if self.0.len() >= PEERS_MAX && !self.0.contains_key(peer) {
            return None;
        }
        Some(self.0.entry(*peer).or_insert(first))
    }

    /// Drops all knowledge of a peer.
    pub(crate) fn forget(&mut self, peer: &PublicKey) {
        self.0.remove(peer);
    }
}
