//! [`Suppliers`]: the peers that supplied a restore, and those that failed to.

use std::collections::BTreeSet;

use slipstream_network::PeerId;
use slipstream_storage::Span;

/// Maximum number of peers remembered for one restore, in each of the two sets.
const PEERS_MAX: usize = 1_024;

/// The peers that a restore's requests went to.
#[derive(Debug, Default)]
pub(in crate::engine) struct Suppliers {
    /// Peers whose rows or code passed their checks.
    delivered: BTreeSet<PeerId>,
    /// The peer whose chunk implies the largest state, and that size: the chunk's bytes divided by the share of paths
    /// that it covers.
    densest: Option<(PeerId, f64)>,
    /// Peers that were asked in vain; some of them may have delivered before.
    failed: BTreeSet<PeerId>,
}

impl Suppliers {
    /// Records a chunk that came, checked or not. Within an account the share of all paths says nothing, so a chunk
    /// within one account counts only while no wider chunk has come.
    pub(super) fn sent(&mut self, peer: PeerId, bytes: usize, span: Span) {
        let density = match span.is_within_account() {
            true => 0.0,
            false => bytes as f64 / span.share().max(f64::MIN_POSITIVE),
        };
        if self.densest.is_none_or(|(_, most)| most < density) {
            self.densest = Some((peer, density));
        }
    }

    /// Records that a peer sent rows or code that passed their checks.
    pub(in crate::engine) fn delivered(&mut self, peer: PeerId) {
        if self.delivered.len() < PEERS_MAX {
            self.delivered.insert(peer);
        }
    }

    /// Records that a peer was asked in vain.
    pub(in crate::engine) fn failed(&mut self, peer: PeerId) {
        if self.failed.len() < PEERS_MAX {
            self.failed.insert(peer);
        }
    }

    /// The peer whose chunk had the most bytes for its share of all paths.
    pub(in crate::engine) fn densest(&self) -> Option<PeerId> {
        self.densest.map(|(peer, _)| peer)
    }

    /// The peers that delivered.
    pub(in crate::engine) fn deliverers(&self) -> &BTreeSet<PeerId> {
        &self.delivered
    }

    /// The peers that were asked in vain and never delivered.
    pub(in crate::engine) fn broke_promises(&self) -> impl Iterator<Item = PeerId> {
        self.failed.difference(&self.delivered).copied()
    }
}
