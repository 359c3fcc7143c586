//! [`Event`]s: the changes at a node, as they happen, for listeners at `/v1/events`.
//!
//! ```text
//!  store's head ─────────────────────────────────────▶ Head ──┐
//!  NodeStatus, once a second ─▶ Changes (differences) ─▶ …  ──┼─▶ Ring ─▶ listeners, each at its own position
//! ```
//!
//! The ring holds the latest events once for all listeners, bounded in bytes. A listener that is slow, or returns with
//! the id of its last event, resumes there if the ring still has that event. Otherwise it learns how many events it
//! missed.

mod changes;
mod ring;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use slipstream_base::tasks::TaskError;
use slipstream_network::PeerId;
use slipstream_storage::Store;
use slipstream_sync::Phase;
use slipstream_types::{BatchNumber, Digest};
use tokio_util::sync::CancellationToken;

pub(crate) use self::changes::Changes;
pub use self::ring::{Id, Listener, NextEvent, Ring, StreamedEvent};
use crate::{
    health::{Blocker, State},
    progress::Progress,
};

/// A change at a node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The head moved. If several batches are committed at once, only the last one is reported.
    Head {
        /// Its number.
        number: BatchNumber,
        /// Its header's digest: the block hash of JSON-RPC.
        digest: Digest,
        /// Milliseconds since 1970.
        timestamp_ms: u64,
    },
    /// The node's activity changed. Sent once the change has lasted a second.
    Phase {
        /// The activity, as `health.state` in the status.
        state: State,
        /// The phase, as `sync.phase` in the status.
        phase: Phase,
        /// The progress of the work.
        progress: Progress,
    },
    /// The reason why the node is not ready changed, appeared or disappeared.
    Blocker {
        /// The new reason; `None` if the node is ready.
        blocker: Option<Blocker>,
    },
    /// A peer connected, left, or was banned.
    Peer {
        /// The peer's key.
        peer: PeerId,
        /// Its name in `network.names`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// What happened.
        change: PeerChange,
        /// The reason of a ban.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A new snapshot exists, from which peers can restore.
    Snapshot {
        /// Its batch.
        number: BatchNumber,
    },
}

/// What happened to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PeerChange {
    /// A connection was made.
    Connected,
    /// Its connection ended.
    Ended,
    /// It was proven wrong, and is banned.
    Banned,
}

impl Event {
    /// The event's name in the stream.
    pub fn name(&self) -> &'static str {
        match self {
            Event::Head { .. } => "head",
            Event::Phase { .. } => "phase",
            Event::Blocker { .. } => "blocker",
            Event::Peer { .. } => "peer",
            Event::Snapshot { .. } => "snapshot",
        }
    }
}

/// Reports every head until `shutdown`.
pub async fn tell_heads(store: Store, ring: Arc<Ring>, shutdown: CancellationToken) -> Result<(), TaskError> {
    let mut heads = store.watch_head();
    heads.mark_unchanged();
    let mut told = None;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            changed = heads.changed() => changed?,
        }
        let reading = store.clone();
        let head = tokio::task::spawn_blocking(move || reading.head()).await?;
        match head {
            // This head arrived while the previous one was read.
            Ok(head) if told == Some(head.digest) => {}
            Ok(head) => {
                told = Some(head.digest);
                ring.tell(&Event::Head {
                    number: head.header.number,
                    digest: head.digest,
                    timestamp_ms: head.header.timestamp_ms,
                });
            }
            // A task that writes to the store meets the same error, and stops the node with a more specific message.
            Err(error) => tracing::debug!(%error, "the head cannot be read"),
        }
    }
}
