//! The operator's settings of the mesh.

use serde::{Deserialize, Serialize};
use slipstream_coding::CodecKind;

/// The `broadcast` section of the configuration.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BroadcastConfig {
    /// How a validator codes the payloads that it is the source of: `gossip` (whole), `reed_solomon` (shards) or `rlnc`
    /// (random linear combinations; payloads above 2 MiB go as shards). Every node takes and passes on what others
    /// code, by any codec.
    pub codec: CodecKind,
    /// Bytes of a payload from which it is coded; smaller payloads are sent whole.
    pub coded_bytes_min: u32,
    /// Peers that hear of a batch at once. A payload that is sent whole goes to this number of peers.
    pub degree: u16,
    /// Chunks of a coded payload that are sent for each useful one that arrives. For the first one up to 48 go out, at
    /// most 512 KiB. In all, a node sends at most twice this multiple of a payload's size. With less than 3 some nodes
    /// have to ask for what they lack.
    pub send_cap: u16,
}

impl Default for BroadcastConfig {
    fn default() -> Self {
        BroadcastConfig { codec: CodecKind::ReedSolomon, coded_bytes_min: 64 << 10, degree: 8, send_cap: 3 }
    }
}
