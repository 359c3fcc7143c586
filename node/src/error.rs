//! [`NodeError`]: why a node did not start, or had to stop.

use std::{io, net::SocketAddr, path::PathBuf};

use slipstream_config::ConfigError;
use slipstream_consensus::{ConsensusError, JournalError};
use slipstream_executor::SessionError;
use slipstream_network::{NetworkError, PeerId};
use slipstream_storage::StorageError;
use slipstream_sync::SyncError;
use slipstream_types::{CodecError, Digest, Waypoint, schedule::ScheduleError};

use crate::{
    genesis_file::GenesisFileError, keys::KeyError, lock::LockError, log::FilterError,
    operator_token::TokenError, schedule_file::ScheduleFileError, tasks::TaskFailure,
};

/// Why a node did not start, or had to stop. The text says what, where and what to do.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The key file.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The genesis file.
    #[error(transparent)]
    GenesisFile(#[from] GenesisFileError),
    /// The schedule of forks.
    #[error(transparent)]
    ScheduleFile(#[from] ScheduleFileError),
    /// The schedule does not fit the chain.
    #[error("the schedule {} does not fit the chain: {source}", path.display())]
    Schedule {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: ScheduleError,
    },
    /// The data directory's lock.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A log filter.
    #[error("{place}: {source}")]
    LogFilter {
        /// The configuration's key, or the environment's variable.
        place: &'static str,
        /// What is wrong with it.
        source: FilterError,
    },
    /// The log file cannot be opened.
    #[error("cannot write the log file {}: {source}; make its directory, or change log.file.path in the configuration", path.display())]
    LogFile {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The operator's token.
    #[error(transparent)]
    OperatorToken(#[from] TokenError),
    /// The node's key is not one of the genesis' validators.
    #[error(
        "this node is configured as a validator, but its key {peer} is not in the validator set of {}; use the key file that \
         belongs to the set, or `role: fullnode`",
        genesis.display()
    )]
    NotAValidator {
        /// The public key.
        peer: PeerId,
        /// The genesis file.
        genesis: PathBuf,
    },
    /// The genesis file is of another ledger than the waypoint.
    #[error(
        "{} is not the genesis of the ledger that waypoint {waypoint} names, whose batch 0 is {expected}: use the right file, or \
         leave `genesis` out and let peers send it",
        genesis.display()
    )]
    GenesisNotOfWaypoint {
        /// What the operator gave.
        waypoint: Waypoint,
        /// Digest of batch 0 by the waypoint.
        expected: Digest,
        /// The file.
        genesis: PathBuf,
    },
    /// Waypoint and genesis file contradict each other.
    #[error(
        "the waypoint {waypoint} is of another chain: the genesis file {} has {found}; correct `waypoint` or `genesis` in the \
         configuration",
        genesis.display()
    )]
    WrongWaypoint {
        /// What the configuration says.
        waypoint: Waypoint,
        /// The genesis' own.
        found: Waypoint,
        /// The genesis file.
        genesis: PathBuf,
    },
    /// The API's port is taken.
    #[error(
        "cannot listen on {address}: another process uses this TCP port; change api.listen in the configuration or stop the other process"
    )]
    ApiInUse {
        /// The address from the configuration.
        address: SocketAddr,
    },
    /// The API's address cannot be used.
    #[error("cannot listen on {address}: {source}; check api.listen in the configuration")]
    ApiBind {
        /// The address from the configuration.
        address: SocketAddr,
        /// What the operating system said.
        source: io::Error,
    },
    /// The network.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The store.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// What batches are executed with.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The sync daemon.
    #[error(transparent)]
    Sync(#[from] SyncError),
    /// The validator.
    #[error(transparent)]
    Consensus(#[from] ConsensusError),
    /// The journal of users' transactions.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A genesis that cannot be encoded.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The API could not be put together, which is a bug.
    #[error("cannot set up the API: {0}")]
    Api(String),
    /// A task ended while the node ran.
    #[error(transparent)]
    Task(#[from] TaskFailure),
    /// The operating system refused something that always works.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// What it said.
        source: io::Error,
    },
}
