//! [`Exit`]: the only place where errors get their exit codes. The errors of a start are matched exhaustively, so that
//! each new one needs a decision.

use std::{error::Error, io, iter, process::ExitCode};

use rustix::io::Errno;
use slipstream_archive::ArchiveError;
use slipstream_base::{
    NodeError, genesis_file::GenesisFileError, keys::KeyError, lock::LockError, operator_token::TokenError,
    schedule_file::ScheduleFileError, tasks::TaskFailure,
};
use slipstream_config::ConfigError;
use slipstream_consensus::{ConsensusError, JournalError, RecordError};
use slipstream_executor::ExecuteError;
use slipstream_light::LightError;
use slipstream_network::NetworkError;
use slipstream_storage::{ExportError, Limit, StorageError};
use slipstream_sync::SyncError;
use slipstream_types::schedule::ScheduleError;

use super::super::text::OutputError;

/// Exit codes, after sysexits.h where it has one. Success is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    /// Any other failure.
    Failure = 1,
    /// The arguments are wrong.
    Usage = 2,
    /// EX_DATAERR: the store is damaged, or contradicts the certified data.
    Data = 65,
    /// EX_SOFTWARE: the program has a bug.
    Bug = 70,
    /// EX_TEMPFAIL: the same command may succeed later.
    TryAgain = 75,
    /// EX_CONFIG: only another configuration, key, genesis or waypoint helps.
    Config = 78,
    /// A shell's code for a program that a closed pipe ended: 128 + SIGPIPE.
    ClosedPipe = 141,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

impl Exit {
    /// The exit code for an error: the first of its causes that has one decides.
    pub(crate) fn of(error: &(dyn Error + 'static)) -> Exit {
        causes(error).find_map(known).unwrap_or(Exit::Failure)
    }
}

/// An error and its causes.
pub(crate) fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    iter::successors(Some(error), |&error| error.source())
}

/// The code of one error; `None` leaves the decision to its causes.
fn known(error: &(dyn Error + 'static)) -> Option<Exit> {
    // A transparent variant hides its inner error from the chain of causes.
    if let Some(error) = error.downcast_ref::<NodeError>() {
        return of_node(error);
    }
    if let Some(error) = error.downcast_ref::<SyncError>() {
        return of_sync(error);
    }
    if let Some(error) = error.downcast_ref::<ConsensusError>() {
        return of_consensus(error);
    }
    if let Some(error) = error.downcast_ref::<TaskFailure>() {
        return of_task(error);
    }
    if let Some(error) = error.downcast_ref::<StorageError>() {
        return of_storage(error);
    }
    if let Some(error) = error.downcast_ref::<ExportError>() {
        return of_export(error);
    }
    if let Some(error) = error.downcast_ref::<ArchiveError>() {
        return of_archive(error);
    }
    if let Some(error) = error.downcast_ref::<JournalError>() {
        return of_journal(error);
    }
    if let Some(error) = error.downcast_ref::<LockError>() {
        return of_lock(error);
    }
    if let Some(error) = error.downcast_ref::<NetworkError>() {
        return of_network(error);
    }
    if let Some(error) = error.downcast_ref::<KeyError>() {
        return of_key(error);
    }
    if let Some(error) = error.downcast_ref::<TokenError>() {
        return of_token(error);
    }
    if let Some(error) = error.downcast_ref::<GenesisFileError>() {
        return Some(of_genesis(error));
    }
    if let Some(error) = error.downcast_ref::<LightError>() {
        return Some(of_light(error));
    }
    if let Some(OutputError::Closed) = error.downcast_ref::<OutputError>() {
        return Some(Exit::ClosedPipe);
    }
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return of_io(error);
    }
    let configured =
        error.is::<ConfigError>() || error.is::<ScheduleFileError>() || error.is::<ScheduleError>();
    configured.then_some(Exit::Config)
}

fn of_node(error: &NodeError) -> Option<Exit> {
    match error {
        NodeError::Config(_)
        | NodeError::ScheduleFile(_)
        | NodeError::Schedule { .. }
        | NodeError::LogFilter { .. }
        | NodeError::NotAValidator { .. }
        | NodeError::GenesisNotOfWaypoint { .. }
        | NodeError::WrongWaypoint { .. }
        | NodeError::WrongTime { .. }
        | NodeError::FewFiles { .. }
        | NodeError::Codec(_) => Some(Exit::Config),
        NodeError::ApiInUse { .. } | NodeError::Session(_) => Some(Exit::TryAgain),
        NodeError::Key(error) => of_key(error),
        NodeError::GenesisFile(error) => Some(of_genesis(error)),
        NodeError::Lock(error) => of_lock(error),
        NodeError::LogFile { source, .. } => Some(of_io(source).unwrap_or(Exit::Config)),
        NodeError::ApiBind { source, .. } | NodeError::Io { source, .. } => of_io(source),
        NodeError::OperatorToken(error) => of_token(error),
        NodeError::Network(error) => of_network(error),
        NodeError::Storage(error) => of_storage(error),
        NodeError::Sync(error) => of_sync(error),
        NodeError::Consensus(error) => of_consensus(error),
        NodeError::Journal(error) => of_journal(error),
        NodeError::Task(error) => of_task(error),
        NodeError::Api(_) => Some(Exit::Bug),
    }
}

fn of_task(error: &TaskFailure) -> Option<Exit> {
    match error {
        // The task's error decides.
        TaskFailure::Failed { .. } => None,
        TaskFailure::Panicked { .. } | TaskFailure::Ended { .. } => Some(Exit::Bug),
    }
}

fn of_sync(error: &SyncError) -> Option<Exit> {
    match error {
        SyncError::Storage(error) => of_storage(error),
        SyncError::Diverged { .. } | SyncError::WrongSuccession { .. } | SyncError::WrongEpochEnd { .. } => {
            Some(Exit::Data)
        }
        SyncError::Execute { source, .. } => match &**source {
            ExecuteError::State(error) => of_storage(error),
            _ => Some(Exit::Data),
        },
        SyncError::WrongWaypoint { .. } => Some(Exit::Config),
        // A peer's claim about another ledger is unproven.
        SyncError::UnknownWaypoint { .. } | SyncError::OtherLedger { .. } | SyncError::Unrepaired { .. } => {
            Some(Exit::TryAgain)
        }
        SyncError::Worker(_) => Some(Exit::Bug),
        SyncError::Unreadable { .. } | SyncError::NoRandomness(_) => None,
    }
}

fn of_consensus(error: &ConsensusError) -> Option<Exit> {
    match error {
        ConsensusError::NotAValidator { .. } => Some(Exit::Config),
        ConsensusError::Storage(error) | ConsensusError::Record(RecordError::Storage(error)) => {
            of_storage(error)
        }
        ConsensusError::Record(RecordError::Unreadable(_)) => Some(Exit::Data),
        ConsensusError::Task { .. } => Some(Exit::Bug),
        ConsensusError::Execute { source: ExecuteError::State(error), .. } => of_storage(error),
        ConsensusError::Execute { source, .. } => source.is_retryable().then_some(Exit::TryAgain),
        ConsensusError::Codec(_) => None,
    }
}

fn of_storage(error: &StorageError) -> Option<Exit> {
    match error {
        StorageError::WrongGenesis { .. }
        | StorageError::WrongWaypoint { .. }
        | StorageError::UnprovenWaypoint { .. }
        | StorageError::NewerFormat { .. }
        | StorageError::OtherFormat { .. }
        | StorageError::OtherRules { .. }
        | StorageError::Limit { what: Limit::FileSize, .. }
        | StorageError::Schedule(_) => Some(Exit::Config),
        StorageError::Locked { .. }
        | StorageError::TreeInUse { .. }
        | StorageError::DiskLow { .. }
        | StorageError::DiskFull(_)
        | StorageError::InodesLow { .. }
        | StorageError::Limit { what: Limit::OpenFiles | Limit::Quota, .. }
        | StorageError::Poisoned => Some(Exit::TryAgain),
        StorageError::Corrupt { .. } | StorageError::DamagedSnapshot { .. } => Some(Exit::Data),
        StorageError::Io { source, .. } => of_io(source),
        StorageError::Restore(_) | StorageError::RangeDelta(_) => {
            error.is_retryable().then_some(Exit::TryAgain)
        }
        StorageError::StateNotKept { .. }
        | StorageError::NotProvable { .. }
        | StorageError::HistoryTooLong { .. }
        | StorageError::NotInitialized
        | StorageError::NotBelow { .. }
        | StorageError::NotNext { .. }
        | StorageError::WrongParent { .. }
        | StorageError::StateRootMismatch { .. }
        | StorageError::UnknownCode { .. }
        | StorageError::WrongCertificate { .. }
        | StorageError::RecordTooLong { .. }
        | StorageError::NoSnapshot { .. }
        | StorageError::Repair(_)
        | StorageError::Rollback(_)
        | StorageError::Codec(_)
        | StorageError::Genesis(_)
        | StorageError::Accumulator(_)
        | StorageError::Database(_) => None,
    }
}

fn of_export(error: &ExportError) -> Option<Exit> {
    match error {
        ExportError::Damaged { .. } => Some(Exit::Data),
        ExportError::Untrusted { .. } | ExportError::NoTrust => Some(Exit::Config),
        ExportError::Storage(error) => of_storage(error),
        ExportError::Io { source, .. } => of_io(source),
        ExportError::NotEmpty { .. } | ExportError::NoSnapshot { .. } | ExportError::NotFresh { .. } => None,
    }
}

fn of_archive(error: &ArchiveError) -> Option<Exit> {
    match error {
        ArchiveError::Damaged { .. } | ArchiveError::Pieces(_) => Some(Exit::Data),
        ArchiveError::Untrusted { .. } | ArchiveError::OtherLedger { .. } => Some(Exit::Config),
        ArchiveError::Store { .. } | ArchiveError::TooSlow { .. } => Some(Exit::TryAgain),
        ArchiveError::Location(_) => Some(Exit::Usage),
        ArchiveError::Storage(error) => of_storage(error),
        ArchiveError::Thread(_) => Some(Exit::Bug),
        ArchiveError::Open { .. }
        | ArchiveError::NoSnapshot { .. }
        | ArchiveError::NotInStore { .. }
        | ArchiveError::ReadOnly { .. }
        | ArchiveError::TooMany { .. }
        | ArchiveError::NotFresh { .. }
        | ArchiveError::Random(_) => None,
    }
}

fn of_journal(error: &JournalError) -> Option<Exit> {
    match error {
        JournalError::Io { source, .. } => of_io(source),
        JournalError::Full { .. } | JournalError::SenderFull { .. } => Some(Exit::TryAgain),
    }
}

fn of_key(error: &KeyError) -> Option<Exit> {
    match error {
        KeyError::Read { source, .. } | KeyError::Write { source, .. } => {
            Some(of_io(source).unwrap_or(Exit::Config))
        }
        KeyError::TooOpen { .. } | KeyError::Malformed { .. } => Some(Exit::Config),
        KeyError::Randomness(_) => None,
    }
}

fn of_token(error: &TokenError) -> Option<Exit> {
    match error {
        TokenError::Io { source, .. } => of_io(source),
        TokenError::TooOpen { .. } | TokenError::Malformed { .. } => Some(Exit::Config),
        TokenError::Randomness(_) => None,
    }
}

fn of_genesis(error: &GenesisFileError) -> Exit {
    match error {
        GenesisFileError::Read { source, .. } | GenesisFileError::Write { source, .. } => {
            of_io(source).unwrap_or(Exit::Config)
        }
        GenesisFileError::TooLong { .. }
        | GenesisFileError::Json { .. }
        | GenesisFileError::Invalid { .. } => Exit::Config,
    }
}

/// The exit code for a node's wrong answer, except where waiting or another trust anchor helps.
fn of_light(error: &LightError) -> Exit {
    match error {
        LightError::TooOld { .. } | LightError::UnknownEpoch { .. } => Exit::TryAgain,
        LightError::Genesis(_)
        | LightError::OtherWaypoint { .. }
        | LightError::WaypointInsideEpoch { .. } => Exit::Config,
        _ => Exit::Data,
    }
}

fn of_lock(error: &LockError) -> Option<Exit> {
    match error {
        LockError::Held { .. } => Some(Exit::TryAgain),
        LockError::Io { source, .. } => of_io(source),
    }
}

fn of_network(error: &NetworkError) -> Option<Exit> {
    match error {
        NetworkError::AddressInUse { .. } => Some(Exit::TryAgain),
        NetworkError::Config { .. } => Some(Exit::Config),
        NetworkError::Bind { source, .. } => of_io(source),
        NetworkError::UnknownPeer { .. }
        | NetworkError::Deadline { .. }
        | NetworkError::TooLong { .. }
        | NetworkError::Refused { .. }
        | NetworkError::Closed { .. }
        | NetworkError::Banned { .. }
        | NetworkError::Malformed { .. }
        | NetworkError::NoRandomness(_)
        | NetworkError::Tls { .. } => None,
    }
}

/// Codes for the operating system's errors that time resolves, and for errors that only another configuration resolves.
/// Time resolves a missing address: a network may come up later than the node.
fn of_io(error: &io::Error) -> Option<Exit> {
    if matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE)) {
        return Some(Exit::TryAgain);
    }
    match error.kind() {
        io::ErrorKind::StorageFull
        | io::ErrorKind::QuotaExceeded
        | io::ErrorKind::AddrNotAvailable
        | io::ErrorKind::ConnectionRefused
        | io::ErrorKind::TimedOut => Some(Exit::TryAgain),
        io::ErrorKind::PermissionDenied
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::IsADirectory
        | io::ErrorKind::FileTooLarge
        | io::ErrorKind::ReadOnlyFilesystem => Some(Exit::Config),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
