//! [`PeerRejection`]: the work that a node refused to do for its peers, by reason.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a peer's work was turned away.
#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::VariantArray, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum PeerRejection {
    /// A handshake whose address is not proven yet, while many handshakes are in progress.
    HandshakeUnproven,
    /// A handshake whose host or network, or all strangers together, have the maximum number in progress.
    HandshakeCrowded,
    /// A connection, because strangers use all their places and no other connection is worth less.
    ConnectionFull,
    /// A connection, because its host or network uses all its places.
    ConnectionCrowded,
    /// An existing connection, in favour of one from elsewhere.
    ConnectionEvicted,
    /// A request, because the peer, its host or all peers have used up the bytes for requests here.
    RequestNoRoom,
    /// A request that arrived too slowly.
    RequestStalled,
    /// A request whose answer has no room: the peer, its host or all peers have used up the bytes for answers here.
    AnswerNoRoom,
    /// An answer that its requester did not receive, or received too slowly.
    AnswerStalled,
    /// A broadcast above the peer's rate.
    BroadcastTooMany,
    /// A broadcast that has no room, or arrived too slowly.
    BroadcastNoRoom,
    /// A broadcast that waited and made room for newer ones.
    BroadcastOvertaken,
    /// A broadcast to a peer for which there was no room, or one that made room for others.
    BroadcastUnsent,
    /// A broadcast that its peer did not receive, or received too slowly. A stranger's connection ends with it.
    BroadcastUntaken,
    /// A connection whose peer flooded it with broadcasts.
    Flooded,
}

impl PeerRejection {
    /// All reasons, as metrics list them.
    pub const ALL: &'static [PeerRejection] = <PeerRejection as strum::VariantArray>::VARIANTS;

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The count of each reason since the start.
#[derive(Debug, Default)]
pub(crate) struct PeerRejectionCounts([AtomicU64; PeerRejection::ALL.len()]);

impl PeerRejectionCounts {
    pub(crate) fn add(&self, reason: PeerRejection, count: usize) {
        self.0[reason as usize].fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn list(&self) -> Vec<(PeerRejection, u64)> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        PeerRejection::ALL.iter().copied().zip(counts).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_counts_for_itself() {
        let counts = PeerRejectionCounts::default();
        PeerRejection::ALL.iter().copied().enumerate().for_each(|(n, reason)| counts.add(reason, n + 1));
        let expected: Vec<_> = PeerRejection::ALL.iter().copied().zip(1..).collect();
        assert_eq!(counts.list(), expected);
        let mut names = PeerRejection::ALL.iter().copied().map(PeerRejection::name).collect::<Vec<_>>();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PeerRejection::ALL.len());
    }
}
