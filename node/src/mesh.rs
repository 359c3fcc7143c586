//! What the mesh has to do with the rest of the node: it reads the ledger's end from the store, and hands batches to sync.

use std::sync::Arc;

use slipstream_broadcast::{Broadcaster, Delivery, Fresh, Head, Ledger, LedgerError, PublishError, Wants};
use slipstream_config::NodeConfig;
use slipstream_consensus::Decided;
use slipstream_executor::HintsMode;
use slipstream_network::Transport;
use slipstream_storage::{StorageError, Store};
use slipstream_sync::Follower;
use slipstream_types::BatchNumber;
use tokio::sync::watch;

use crate::error::NodeError;

/// The store's ledger, and sync that goes on with it.
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

    fn expect(&self, number: BatchNumber) {
        self.follower.expect(number);
    }

    fn deliver(&self, delivery: Delivery) {
        let Delivery { from, header, certificate, body, hints } = delivery;
        self.follower.announce(from, header, certificate, body, hints);
    }
}

fn head(store: &Store) -> Result<Head, StorageError> {
    let head = store.head()?;
    Ok(Head {
        number: head.header.number,
        digest: head.digest,
        accumulator: head.accumulator,
        set: Arc::new(store.next_set()?),
    })
}

/// The mesh of a node that starts.
///
/// # Errors
/// If the store cannot be read, or the system gives no random bytes.
pub(crate) fn broadcaster(
    config: &NodeConfig,
    store: &Store,
    transport: Arc<dyn Transport>,
) -> Result<Arc<Broadcaster>, NodeError> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|error| NodeError::Io {
        action: "draw a secret for the mesh",
        source: std::io::Error::other(error),
    })?;
    Ok(Broadcaster::new(config.broadcast.clone(), wants(config, false), head(store)?, transport, seed))
}

/// What of new batches a node wants to be sent: who validates has them from consensus, who applies deltas executes none.
pub(crate) fn wants(config: &NodeConfig, validates: bool) -> Wants {
    let body = !validates && config.sync.executes_head();
    Wants { body, hints: body && config.executor.hints != HintsMode::Off }
}

/// What consensus decided, as the mesh takes it.
pub(crate) fn fresh(decided: Decided) -> Fresh {
    let Decided { leads, header, certificate, body, hints } = decided;
    Fresh { leads, header, certificate, body, hints }
}

/// Tells of a batch that could not be spread: peers fetch it.
pub(crate) fn tell_unpublished(error: &PublishError) {
    tracing::error!(%error, "a batch is not spread; peers have to fetch it");
}
