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
    /// When the node got the liar as a peer, in ms since the run began.
    pub at_ms: u64,
    /// Seconds from then until a sample, taken twice a second, showed a ban; `None` if the node did not ban the liar
    /// while it was there.
    pub banned_after_seconds: Option<f64>,
    /// Why the node banned the liar, or last paused it; `None` if the node gave no reason.
    pub reason: Option<String>,
    /// The last score that the node gave the liar, 0 to 1000; `None` if the two were never connected.
    pub score: Option<f64>,
    /// Answers that were late, lost or refused.
    pub failures: u64,
}
