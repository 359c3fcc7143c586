//! [`Claim`]: an epoch that a peer's range belongs to and that nobody has proved to this node.
//!
//! Such a range is no lie: epochs end while ranges are in flight. But a peer has what it serves, so its own summary
//! leads to that epoch. If a summary requested later does not, the claim counts as a failure. Otherwise ranges under
//! invented epochs would cost their sender nothing, however often.

use slipstream_network::PeerId;
use slipstream_types::Epoch;
use tokio::time::Instant;

use super::{Engine, streams::Flight};
use crate::error::{Fault, TrustError};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    epoch: Epoch,
    at: Instant,
}

impl Engine {
    /// Records an answer that cannot be judged yet. Its sender pauses, and is then asked for its summary first.
    pub(super) fn claimed(&mut self, peer: PeerId, what: &str, fault: &Fault, now: Instant) {
        if let Fault::Unverified(TrustError::UnknownEpoch { epoch, .. }) = fault {
            self.claims.entry(peer).or_insert(Claim { epoch: *epoch, at: now });
        }
        self.book.expire(&peer);
        self.book.unjudged(&peer, now, format!("{what}: {fault}"));
    }

    /// Judges a peer's earlier claim by the summary that it sent since.
    pub(super) fn judge_claim(&mut self, flight: &Flight, now: Instant) {
        let peer = flight.peer;
        let Some(claim) = self.claims.get(&peer).copied() else { return };
        if claim.epoch > self.trust.epoch() {
            if self.unproven.contains_key(&peer) {
                // Its epoch ends come next.
                return;
            }
            if flight.sent.at < claim.at {
                return self.book.expire(&peer);
            }
            let reason =
                format!("it served batches of epoch {}, but its epoch ends do not lead there", claim.epoch);
            self.book.bench(&peer, now, reason);
        }
        self.claims.remove(&peer);
    }
}
