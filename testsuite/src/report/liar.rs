//! [`LiarOpinion`]: a node's opinion of a peer that lied to it.

use serde::{Deserialize, Serialize};

/// A node's opinion of one of its liars.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LiarOpinion {
    /// The node.
    pub node: String,
    /// The liar, by the first digits of its key.
    pub liar: String,
    /// The lie, as named by the fault `lying_peers`, or the attack of `among`.
    pub lie: String,
    /// When the node got it as a peer, in ms since the run began.
    pub at_ms: u64,
    /// Seconds from then until the node was seen to ban it, sampled twice a second; `None` if it did not while the liar
    /// was there.
    pub banned_after_seconds: Option<f64>,
    /// Why the node banned it, or last paused it; `None` if it had no reason.
    pub reason: Option<String>,
    /// The last score that the node gave it, 0 to 1000; `None` if it was never connected.
    pub score: Option<f64>,
    /// Answers that were late, lost or refused.
    pub failures: u64,
}
