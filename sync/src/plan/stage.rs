//! [`Stage`]: the stages of the pipeline, whose work the planner prices.

use serde::{Deserialize, Serialize};

/// The stages of the pipeline, in order.
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
pub enum Stage {
    /// Waiting for peers.
    Fetch,
    /// Checking certificates, proofs and digests.
    Check,
    /// Decoding, recovering senders, reading hinted rows; opening deltas.
    Prepare,
    /// Executing.
    Execute,
    /// Roots and durable writes.
    Commit,
    /// Checking and writing a snapshot's rows.
    Restore,
    /// Executing applied batches again.
    Audit,
}

impl Stage {
    /// All stages, in the order of the pipeline.
    pub const ALL: &'static [Stage] = <Stage as strum::VariantArray>::VARIANTS;

    /// Its name in the status and in metrics.
    pub fn name(self) -> &'static str {
        self.into()
    }
}
