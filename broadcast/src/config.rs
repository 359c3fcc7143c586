//! The operator's settings of the mesh.

use serde::{Deserialize, Serialize};
use slipstream_coding::CodecKind;

/// The `broadcast` section of the configuration.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BroadcastConfig {
    /// How a validator codes the payloads that it is the source of: `gossip` (whole), `reed_solomon` (shards) or `rlnc` (random
    /// linear combinations; payloads above 2 MiB go as shards). What others code every node takes and passes on.
    pub codec: CodecKind,
    /// Bytes of a payload from which it is coded; smaller ones are sent whole.
    pub coded_bytes_min: u32,
    /// Peers that are told of a batch at once, and that a whole payload is sent to.
    pub degree: u16,
    /// Chunks of a coded payload that are sent for each useful one that came; for the first one up to 48 go out, at most 512 KiB. A
    /// node sends at most twice as many times a payload's size. With less than 3 some nodes have to ask for what they lack.
    pub send_cap: u16,
}

impl Default for BroadcastConfig {
    fn default() -> Self {
        BroadcastConfig { codec: CodecKind::ReedSolomon, coded_bytes_min: 64 << 10, degree: 8, send_cap: 3 }
    }
}
