//! Access to a data directory, for a command itself or through the node that runs on it.

use miette::Result;
use slipstream_base::{
    DATABASE,
    lock::{self, DataLock, Holder, LockError},
};
use slipstream_config::NodeConfig;

use super::{
    ask::NodeUrl,
    exit::{CommandFailure, Exit, OrFail as _},
};

/// How a read-only command gets at a data directory.
pub(super) enum Access {
    /// The command holds the directory itself.
    Stopped(DataLock),
    /// A node runs on the directory and answers on this API.
    Running(NodeUrl),
}

/// Locks the directory, or finds the node that holds it. A directory without a database stays unchanged.
pub(super) fn look(config: &NodeConfig) -> Result<Access> {
    check_database(config)?;
    match lock::acquire(&config.data_dir, None) {
        Err(LockError::Held { holder: Holder { api: Some(api), .. }, .. }) => {
            Ok(Access::Running(NodeUrl::of(api)))
        }
        locked => Ok(Access::Stopped(locked.or_fail()?)),
    }
}

/// Locks the directory for a command that changes it or reads all of it.
pub(super) fn take(config: &NodeConfig) -> Result<DataLock> {
    match lock::acquire(&config.data_dir, None) {
        Err(LockError::Held { holder, .. }) if holder.api.is_some() => {
            let dir = config.data_dir.display();
            let text = format!(
                "this command needs {dir} for itself, but the directory is in use by {holder}; stop the node first"
            );
            Err(CommandFailure::new(Exit::TryAgain, text).into())
        }
        locked => locked.or_fail(),
    }
}

/// As [`take`], for a directory that must have a database.
pub(super) fn take_database(config: &NodeConfig) -> Result<DataLock> {
    check_database(config)?;
    take(config)
}

pub(super) fn check_database(config: &NodeConfig) -> Result<()> {
    if config.data_dir.join(DATABASE).exists() {
        return Ok(());
    }
    let dir = config.data_dir.display();
    let text = format!("there is no database in {dir}: start the node once, or import a snapshot");
    Err(CommandFailure::new(Exit::Failure, text).into())
}
