//! Repairs a node whose state is wrong. The running node records the fault, and the next start repairs it before
//! anything else uses the store. See [`slipstream_sync::repair`].

use std::{error::Error, iter, path::Path};

use slipstream_api::starting::Starting;
use slipstream_base::{NodeError, tasks::TaskFailure};
use slipstream_config::NodeConfig;
use slipstream_network::Transport;
use slipstream_storage::{Damage, Maintenance, Repair, StorageError, Store};
use slipstream_sync::{
    RepairMode, SyncError,
    repair::{REPAIR_PATIENCE, REPAIR_RECORD, RepairCause, RepairRecord, repair},
};
use slipstream_types::BatchNumber;

/// Opens the store. First repairs its state if a repair is due or if its rows do not match the head. With
/// `sync.repair: off` it performs only a repair that an operator requested, even if something else was recorded before.
///
/// # Errors
/// The errors of [`Store::open`], and [`SyncError::Unrepaired`].
pub(crate) async fn open_repaired(
    config: &NodeConfig,
    dir: &Path,
    transport: &dyn Transport,
    starting: &Starting,
) -> Result<Store, NodeError> {
    let record = match open_database(config, dir).await {
        Ok(store) => {
            let record = RepairRecord::of(&store)?;
            if !is_wanted(&record, is_automatic(config)) {
                if record.due.is_some() {
                    tracing::warn!(due = ?record.due, "a repair is due, but `sync.repair` is `off`: the node uses the state as it is");
                }
                return Ok(store);
            }
            store.close();
            record
        }
        Err(NodeError::Storage(error @ StorageError::Corrupt { .. })) => {
            let record = closed_record(config, dir)?;
            if !is_automatic(config) && record.due != Some(RepairCause::Operator) {
                return Err(NodeError::Storage(error));
            }
            tracing::error!(%error, "the state is wrong; the node compares it with that of peers");
            record
        }
        Err(error) => return Err(error),
    };
    starting.stage("repairing the state from peers");
    tracing::warn!(due = ?record.due, "repairing the state before the node begins");
    let (storage, path) = (config.storage.clone(), dir.to_owned());
    let session = on_disk(move || Ok(Repair::open(&storage, &path)?)).await?;
    repair(session, transport, REPAIR_PATIENCE, record).await?;
    open_database(config, dir).await
}

/// Opens the database. This reads the whole state back into the tree, so it runs on a blocking thread.
async fn open_database(config: &NodeConfig, dir: &Path) -> Result<Store, NodeError> {
    let (storage, dir) = (config.storage.clone(), dir.to_owned());
    let open = move || {
        let store = Store::open(&storage, &dir)?;
        if let Err(error) = store.keep_reserve() {
            tracing::warn!(%error, "cannot reserve space for `slipstream db prune`: on a full disk, free some space by hand before it");
        }
        Ok::<_, StorageError>(store)
    };
    let opened = tokio::task::spawn_blocking(open).await;
    let store = opened.map_err(|error| NodeError::Io {
        action: "open the store",
        source: std::io::Error::other(error),
    })??;
    Ok(store)
}

/// Whether a store is repaired although it can be opened.
fn is_wanted(record: &RepairRecord, is_automatic: bool) -> bool {
    match record.due {
        Some(RepairCause::Incident { .. }) => is_automatic,
        Some(RepairCause::Operator) => true,
        None => false,
    }
}

/// Records a failure that a repair may fix, for the next start. Returns false if no repair can fix it, or if its batch
/// was repaired before: then the node stops and waits for its operator.
pub(crate) async fn note(config: &NodeConfig, store: &Store, failure: &TaskFailure) -> bool {
    if !is_automatic(config) {
        return false;
    }
    let Some(number) = store.head().ok().and_then(|head| incident(failure, head.header.number)) else {
        return false;
    };
    let (store, what) = (store.clone(), failure.to_string());
    let noted = on_disk(move || {
        let mut record = RepairRecord::of(&store)?;
        if !record.note(number, what) {
            tracing::error!(batch = %number, "the state was already repaired for this batch: the fault is elsewhere");
            return Ok(false);
        }
        store.put_record(REPAIR_RECORD, &record.encode()?)?;
        Ok(true)
    });
    noted.await.unwrap_or_else(|error| {
        tracing::error!(%error, "cannot record that a repair is due");
        false
    })
}

/// The batch at which the state proved wrong, if a failure says so.
fn incident(failure: &TaskFailure, head: BatchNumber) -> Option<BatchNumber> {
    let failure: &(dyn Error + 'static) = failure;
    iter::successors(Some(failure), |&error| error.source()).find_map(|error| {
        match error.downcast_ref::<SyncError>() {
            Some(SyncError::Diverged { number, .. } | SyncError::Execute { number, .. }) => Some(*number),
            _ => error.is::<Damage>().then(|| head.next()),
        }
    })
}

fn is_automatic(config: &NodeConfig) -> bool {
    config.sync.repair == RepairMode::Auto
}

/// The repair record of a store that cannot be opened.
fn closed_record(config: &NodeConfig, dir: &Path) -> Result<RepairRecord, NodeError> {
    let record = Maintenance::open(&config.storage, dir)?.record(REPAIR_RECORD)?;
    Ok(record.map(|bytes| RepairRecord::decode(&bytes)).unwrap_or_default())
}

/// Runs work that waits for the disk on a blocking thread.
async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, NodeError> + Send + 'static,
) -> Result<T, NodeError> {
    let worked = tokio::task::spawn_blocking(work).await;
    worked
        .map_err(|error| NodeError::Io { action: "repair the store", source: std::io::Error::other(error) })?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(source: SyncError) -> TaskFailure {
        TaskFailure::Failed { task: "sync", source: source.into() }
    }

    /// Goal: with `sync.repair: off` only a repair that an operator requested runs, even if a fault was recorded under
    /// `auto`.
    #[test]
    fn what_was_noted_waits_for_the_operator() {
        let due = |due| RepairRecord { due, ..RepairRecord::default() };
        let incident =
            due(Some(RepairCause::Incident { number: BatchNumber::new(3), what: "another root".into() }));
        assert!(is_wanted(&incident, true) && !is_wanted(&incident, false));
        assert!(is_wanted(&due(Some(RepairCause::Operator)), false) && !is_wanted(&due(None), true));
    }

    /// Goal: signs of a wrong state are distinguished from faults that a repair cannot fix.
    #[test]
    fn a_wrong_state_is_an_incident() {
        let head = BatchNumber::new(9);
        let number = BatchNumber::new(12);
        let of = |error| incident(&failed(error), head);
        assert_eq!(of(SyncError::Diverged { number, field: "state root" }), Some(number));
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("FORMAT"), "nonsense").unwrap();
        let damage = Store::open(&slipstream_storage::StorageConfig::default(), dir.path()).err().unwrap();
        assert_eq!(of(damage.into()), Some(BatchNumber::new(10)));
        assert_eq!(of(StorageError::Poisoned.into()), None);
        assert_eq!(of(SyncError::Worker("it panicked".into())), None);
        assert_eq!(incident(&TaskFailure::Ended { task: "sync" }, head), None);
    }
}
