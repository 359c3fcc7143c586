//! [`Event`]s: the changes at a node, as they happen, for listeners at `/v1/events`.
//!
//! ```text
//!  store's head ─────────────────────────────────────▶ Head ──┐
//!  NodeStatus, once a second ─▶ Changes (what is new) ─▶ …  ──┼─▶ Ring ─▶ listeners, each at its own place in it
//! ```
//!
//! The ring holds the last events once for all listeners, bounded in bytes. A listener that is slow, or comes back with the id of
//! its last event, goes on from there as far as the ring reaches. It is told how many events it missed.

mod changes;
mod ring;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use slipstream_network::PeerId;
use slipstream_storage::Store;
use slipstream_sync::Phase;
use slipstream_types::{BatchNumber, Digest};
use tokio_util::sync::CancellationToken;

pub(crate) use self::{
    changes::Changes,
    ring::{Heard, Listener, Ring},
};
use crate::{
    health::{Blocker, State},
    status::Progress,
    tasks::TaskError,
};

/// What changed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// There is a new head. Of batches that are committed at once, only the last.
    Head {
        /// Its number.
        number: BatchNumber,
        /// Its header's digest: the block hash of JSON-RPC.
        digest: Digest,
        /// Milliseconds since 1970.
        timestamp_ms: u64,
    },
    /// The node does something else. Told once it has lasted a second.
    Phase {
        /// What it does, as `health.state` in the status.
        state: State,
        /// How, as `sync.phase` in the status.
        phase: Phase,
        /// How far it is.
        progress: Progress,
    },
    /// There is another reason why the node is not ready, or none any more.
    Blocker {
        /// The reason.
        blocker: Option<Blocker>,
    },
    /// A peer came, went, or was banned.
    Peer {
        /// Who.
        peer: PeerId,
        /// What `network.names` calls it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// What happened.
        change: PeerChange,
        /// Why, of a ban.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// There is a new snapshot, which peers can restore from.
    Snapshot {
        /// Its batch.
        number: BatchNumber,
    },
}

/// What happened with a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PeerChange {
    /// A connection was made.
    Connected,
    /// Its connection ended.
    Ended,
    /// It was proved wrong, and is kept out.
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

/// Tells of every head until it is told to stop.
pub(crate) async fn tell_heads(
    store: Store,
    ring: Arc<Ring>,
    shutdown: CancellationToken,
) -> Result<(), TaskError> {
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
            // It came while the one before was read.
            Ok(head) if told == Some(head.digest) => {}
            Ok(head) => {
                told = Some(head.digest);
                ring.tell(&Event::Head {
                    number: head.header.number,
                    digest: head.digest,
                    timestamp_ms: head.header.timestamp_ms,
                });
            }
            // A task that writes to the store meets the same error, and stops the node with a better place to name.
            Err(error) => tracing::debug!(%error, "the head cannot be read"),
        }
    }
}
