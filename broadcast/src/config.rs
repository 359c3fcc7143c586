//! What an operator decides of the mesh.

use serde::{Deserialize, Serialize};
use slipstream_coding::CodecKind;

/// The `broadcast` section of the configuration.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BroadcastConfig {
    /// How this node codes payloads of at least `coded_bytes_min` when it is their source; smaller ones are sent whole. What others code
    /// it takes and passes on in any way.
    pub codec: CodecKind,
    /// Bytes of a payload from which it is coded.
    pub coded_bytes_min: u32,
    /// Peers that a whole payload is sent to.
    pub degree: u16,
    /// Chunks of a coded payload that are sent for each that came. With what goes out for the first one a node sends at most twice as many
    /// times the payload's size.
    pub send_cap: u16,
}

impl Default for BroadcastConfig {
    fn default() -> Self {
        BroadcastConfig { codec: CodecKind::ReedSolomon, coded_bytes_min: 64 << 10, degree: 8, send_cap: 3 }
    }
}
