//! Connects the mesh to the rest of the node: reads the head from the store for the mesh, and hands the mesh's batches
//! to sync.

use std::sync::Arc;

use slipstream_base::NodeError;
use slipstream_broadcast::{Broadcaster, Delivery, Head, Ledger, LedgerError, NewBatch, Threads};
use slipstream_config::NodeConfig;
use slipstream_consensus::DecidedBatch;
use slipstream_network::{PeerId, Transport};
use slipstream_status::seat;
use slipstream_storage::{StorageError, Store};
use slipstream_sync::Follower;
use slipstream_types::{BatchNumber, SecretKey};
use tokio::{sync::watch, time::Instant};

/// The store's ledger, and the sync that extends it.
pub(crate) struct NodeLedger {
    pub(crate) store: Store,
    pub(crate) follower: Arc<Follower>,
}

impl Ledger for NodeLedger {
    fn watch(&self) -> watch::Receiver<BatchNumber> {
        self.store.watch_head()
    }

    fn head(&self) -> Result<Head, LedgerError> {
        Ok(head(&self.store)?)
    }

    fn expect(&self, number: BatchNumber, until: Instant) {
        self.follower.expect(number, until);
    }

    fn heard(&self, peer: PeerId, number: BatchNumber) {
        self.follower.hear_of(peer, number);
    }

    fn give_up(&self, number: BatchNumber) {
        self.follower.give_up(number);
    }

    fn deliver(&self, delivery: Delivery) {
        let Delivery { from, header, certificate, body, hints } = delivery;
        self.follower.announce(from, header, certificate, body, hints);
    }
}

fn head(store: &Store) -> Result<Head, StorageError> {
    loop {
        let (head, set) = (store.head()?, store.next_set()?);
        // A commit between the two reads may have ended an epoch; the set would then belong to another head.
        if store.head()?.header.number == head.header.number {
            return Ok(Head {
                number: head.header.number,
                digest: head.digest,
                accumulator: head.accumulator,
                set,
            });
        }
    }
}

/// Builds the mesh of a starting node.
///
/// # Errors
/// If the store cannot be read, or the system refuses random bytes.
pub(crate) fn broadcaster(
    config: &NodeConfig,
    store: &Store,
    transport: Arc<dyn Transport>,
    key: SecretKey,
) -> Result<Arc<Broadcaster>, NodeError> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|error| NodeError::Io {
        action: "draw a secret for the mesh",
        source: std::io::Error::other(error),
    })?;
    let (broadcast, wants) = (config.broadcast.clone(), seat::wants(config, false));
    Ok(Broadcaster::new(broadcast, wants, head(store)?, transport, (key, seed), Arc::new(Threads)))
}

/// Converts a batch that consensus decided into the mesh's form.
pub(crate) fn fresh(decided: DecidedBatch) -> NewBatch {
    let DecidedBatch { leads, header, certificate, body, hints } = decided;
    NewBatch { leads, header, certificate, body, hints }
}
