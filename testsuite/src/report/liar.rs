//! [`LiarOpinion`]: what a node thought of a peer that lied to it.

use serde::{Deserialize, Serialize};

/// Of one node and one liar that it was given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LiarOpinion {
    /// The node.
    pub node: String,
    /// The liar, by the first digits of its key.
    pub liar: String,
    /// How it lied: as the fault `lying_peers` names it, or the attack of `among`.
    pub lie: String,
    /// When the node was given it as a peer, in ms since the run began.
    pub at_ms: u64,
    /// Seconds from then until the node was seen to ban it, twice a second; none if it did not while the liar was there.
    pub banned_after_seconds: Option<f64>,
    /// Why the node banned it, or last paused it; none if it held nothing against it.
    pub reason: Option<String>,
    /// The last score that the node gave it, 0 to 1000; none if it was never connected.
    pub score: Option<f64>,
    /// Answers that were late, lost or refused.
    pub failures: u64,
}
