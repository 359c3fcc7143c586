//! The address book of peer exchange in the node's store: read when the chain is known, and written as it changes.

use std::{sync::Arc, time::Duration};

use slipstream_base::{NodeError, tasks::TaskError};
use slipstream_network::Network;
use slipstream_storage::Store;
use slipstream_types::{Clock, Digest};
use tokio_util::sync::CancellationToken;

/// The name of the store's record.
const KEY: &str = "network/addresses";
/// How often a changed book is written: a crash loses at most what was learned since.
const SAVE_EVERY: Duration = Duration::from_secs(300);

/// Starts peer exchange on the chain, with the book of the previous run.
pub(crate) fn open(
    network: &Network,
    store: &Store,
    chain: Digest,
    clock: Arc<dyn Clock>,
) -> Result<(), NodeError> {
    let saved = store.record(KEY)?;
    Ok(network.begin_exchange(chain, clock, saved.as_deref())?)
}

/// Writes the book as it changes, and at the end.
pub(crate) async fn keep(
    network: Arc<Network>,
    store: Store,
    shutdown: CancellationToken,
) -> Result<(), TaskError> {
    loop {
        let is_over = tokio::select! {
            () = shutdown.cancelled() => true,
            () = tokio::time::sleep(SAVE_EVERY) => false,
        };
        let (network, store) = (network.clone(), store.clone());
        tokio::task::spawn_blocking(move || save(&network, &store)).await?;
        if is_over {
            return Ok(());
        }
    }
}

fn save(network: &Network, store: &Store) {
    let written = match network.addresses() {
        None => return,
        Some(Err(error)) => Err(error.into()),
        Some(Ok(record)) => store.put_record(KEY, &record).map_err(NodeError::from),
    };
    if let Err(error) = written {
        tracing::warn!(%error, "cannot write the address book; after a restart, this node must find its peers again");
    }
}
