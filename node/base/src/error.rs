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

/// Milliseconds of a year of 365 days.
pub const YEAR_MS: u64 = 365 * 24 * 3_600 * 1_000;

/// Why a node did not start, or had to stop. The text names the fault, its place and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The configuration is missing or wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The key file is missing or wrong.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The genesis file is missing or wrong.
    #[error(transparent)]
    GenesisFile(#[from] GenesisFileError),
    /// The file with the schedule of forks is missing or wrong.
    #[error(transparent)]
    ScheduleFile(#[from] ScheduleFileError),
    /// The schedule does not fit the chain.
    #[error("the schedule {} does not fit the chain: {source}", path.display())]
    Schedule {
        /// The file of the schedule.
        path: PathBuf,
        /// The rule that the schedule breaks.
        source: ScheduleError,
    },
    /// The data directory is in use, or cannot be locked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A log filter is wrong.
    #[error("{place}: {source}")]
    LogFilter {
        /// The configuration key or environment variable that holds the filter.
        place: &'static str,
        /// The fault of the filter.
        source: FilterError,
    },
    /// The log file cannot be opened.
    #[error("cannot write the log file {}: {source}; make its directory, or change log.file.path in the configuration", path.display())]
    LogFile {
        /// The log file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The operator's token cannot be read or created.
    #[error(transparent)]
    OperatorToken(#[from] TokenError),
    /// The node's key is not one of the genesis's validators.
    #[error(
        "this node is configured as a validator, but its key {peer} is not in the validator set of {}; use the key file that \
         belongs to the set, or `role: fullnode`",
        genesis.display()
    )]
    NotAValidator {
        /// The node's public key.
        peer: PeerId,
        /// The genesis file with the validator set.
        genesis: PathBuf,
    },
    /// The genesis file belongs to another ledger than the waypoint.
    #[error(
        "{} is not the genesis of the ledger that waypoint {waypoint} names, whose batch 0 is {expected}: use the right file, or \
         leave `genesis` out and let peers send it",
        genesis.display()
    )]
    GenesisNotOfWaypoint {
        /// The operator's waypoint.
        waypoint: Waypoint,
        /// The digest of batch 0 according to the waypoint.
        expected: Digest,
        /// The genesis file of the other ledger.
        genesis: PathBuf,
    },
    /// Waypoint and genesis file contradict each other.
    #[error(
        "the waypoint {waypoint} is of another chain: the genesis file {} has {found}; correct `waypoint` or `genesis` in the \
         configuration",
        genesis.display()
    )]
    WrongWaypoint {
        /// The waypoint of the configuration.
        waypoint: Waypoint,
        /// The waypoint of the genesis.
        found: Waypoint,
        /// The genesis file of the other chain.
        genesis: PathBuf,
    },
    /// A time in the chain's files is so far from now that its unit, or the machine's clock, must be wrong.
    #[error(
        "{}: {what} is {timestamp_ms} ms since 1970, {} years from now by this machine's clock: write milliseconds, or set the clock",
        path.display(),
        timestamp_ms.abs_diff(*now_ms) / YEAR_MS
    )]
    WrongTime {
        /// The file that contains the time.
        path: PathBuf,
        /// The name of the time, for the message.
        what: String,
        /// The time, in milliseconds since 1970.
        timestamp_ms: u64,
        /// The machine's time, in milliseconds since 1970.
        now_ms: u64,
    },
    /// The process may open fewer files than a node needs.
    #[error(
        "this process may open {limit} files, and a node needs at least {min}: raise the limit (`ulimit -n`, LimitNOFILE of systemd)"
    )]
    FewFiles {
        /// The process's limit on open files.
        limit: u64,
        /// The fewest open files that a node needs.
        min: u64,
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
        /// The operating system's error.
        source: io::Error,
    },
    /// The network cannot start, or failed.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The store cannot be opened, or failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The execution of batches cannot be set up.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The sync daemon cannot start, or failed.
    #[error(transparent)]
    Sync(#[from] SyncError),
    /// The validator cannot start, or failed.
    #[error(transparent)]
    Consensus(#[from] ConsensusError),
    /// The journal of users' transactions cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The genesis cannot be encoded.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The API could not be set up, which is a bug.
    #[error("cannot set up the API: {0}")]
    Api(String),
    /// A task ended while the node was running.
    #[error(transparent)]
    Task(#[from] TaskFailure),
    /// The operating system refused something that normally works.
    #[error("cannot {action}: {source}")]
    Io {
        /// The attempted action, for the message.
        action: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}
