//! The end of a command: one message about its failure, and the exit code. The code tells the process's starter whether another
//! start can help. docs/operations.md has the table.

use std::{
    error::Error,
    io::{self, Write},
    iter,
    process::ExitCode,
};

use miette::{Diagnostic, Report, Result};
use slipstream_archive::ArchiveError;
use slipstream_config::ConfigError;
use slipstream_consensus::{ConsensusError, RecordError};
use slipstream_executor::ExecuteError;
use slipstream_light::LightError;
use slipstream_network::NetworkError;
use slipstream_storage::{ExportError, StorageError};
use slipstream_sync::SyncError;
use slipstream_types::schedule::ScheduleError;

use super::output::{OutputError, plain};
use crate::{
    NodeError, genesis_file::GenesisFileError, keys::KeyError, lock::LockError, operator_token::TokenError,
    schedule_file::ScheduleFileError, tasks::TaskFailure,
};

/// Exit codes, after sysexits.h where it has one. Success is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Exit {
    /// None of the others.
    Failure = 1,
    /// The arguments are wrong.
    Usage = 2,
    /// EX_DATAERR: the store is damaged, or contradicts the certified data.
    Data = 65,
    /// EX_SOFTWARE: the program has a bug.
    Bug = 70,
    /// EX_TEMPFAIL: the same command may succeed later.
    TryAgain = 75,
    /// EX_CONFIG: nothing but another configuration, key, genesis or waypoint helps.
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
    pub(super) fn of(error: &(dyn Error + 'static)) -> Exit {
        causes(error).find_map(known).unwrap_or(Exit::Failure)
    }
}

/// An error and its causes.
pub(super) fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    iter::successors(Some(error), |&error| error.source())
}

fn known(error: &(dyn Error + 'static)) -> Option<Exit> {
    // A transparent variant hides the error that it holds from the list of causes.
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
        return match error {
            TaskFailure::Failed { .. } => None,
            TaskFailure::Panicked { .. } | TaskFailure::Ended { .. } => Some(Exit::Bug),
        };
    }
    if let Some(error) = error.downcast_ref::<StorageError>() {
        return of_storage(error);
    }
    if let Some(error) = error.downcast_ref::<ExportError>() {
        return match error {
            ExportError::Damaged { .. } => Some(Exit::Data),
            ExportError::Untrusted { .. } | ExportError::NoTrust => Some(Exit::Config),
            ExportError::Storage(error) => of_storage(error),
            _ => None,
        };
    }
    if let Some(error) = error.downcast_ref::<ArchiveError>() {
        return of_archive(error);
    }
    if let Some(error) = error.downcast_ref::<LockError>() {
        return of_lock(error);
    }
    if let Some(error) = error.downcast_ref::<NetworkError>() {
        return of_network(error);
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
    let configured = error.is::<ConfigError>()
        || error.is::<KeyError>()
        || error.is::<GenesisFileError>()
        || error.is::<ScheduleFileError>()
        || error.is::<ScheduleError>();
    configured.then_some(Exit::Config)
}

fn of_archive(error: &ArchiveError) -> Option<Exit> {
    match error {
        ArchiveError::Damaged { .. } | ArchiveError::Pieces(_) => Some(Exit::Data),
        ArchiveError::Untrusted { .. } | ArchiveError::OtherLedger { .. } => Some(Exit::Config),
        ArchiveError::Store { .. } | ArchiveError::TooSlow { .. } => Some(Exit::TryAgain),
        ArchiveError::Location(_) => Some(Exit::Usage),
        ArchiveError::Storage(error) => of_storage(error),
        ArchiveError::Thread(_) => Some(Exit::Bug),
        _ => None,
    }
}

fn of_node(error: &NodeError) -> Option<Exit> {
    match error {
        NodeError::Config(_)
        | NodeError::Key(_)
        | NodeError::GenesisFile(_)
        | NodeError::LogFilter { .. }
        | NodeError::OperatorToken(TokenError::Malformed { .. } | TokenError::TooOpen { .. })
        | NodeError::NotAValidator { .. }
        | NodeError::GenesisNotOfWaypoint { .. }
        | NodeError::WrongWaypoint { .. } => Some(Exit::Config),
        NodeError::ApiInUse { .. } | NodeError::Session(_) => Some(Exit::TryAgain),
        NodeError::Lock(error) => of_lock(error),
        NodeError::LogFile { source, .. } => Some(of_io(source).unwrap_or(Exit::Config)),
        NodeError::OperatorToken(TokenError::Io { source, .. }) => of_io(source),
        NodeError::Network(error) => of_network(error),
        NodeError::Storage(error) => of_storage(error),
        NodeError::Sync(error) => of_sync(error),
        NodeError::Consensus(error) => of_consensus(error),
        NodeError::Task(TaskFailure::Panicked { .. } | TaskFailure::Ended { .. }) | NodeError::Api(_) => {
            Some(Exit::Bug)
        }
        _ => None,
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
        // A peer's word on another ledger is unproved.
        SyncError::UnknownWaypoint { .. } | SyncError::OtherLedger { .. } | SyncError::Unrepaired { .. } => {
            Some(Exit::TryAgain)
        }
        SyncError::Worker(_) => Some(Exit::Bug),
        _ => None,
    }
}

fn of_consensus(error: &ConsensusError) -> Option<Exit> {
    match error {
        ConsensusError::NotAValidator { .. } => Some(Exit::Config),
        ConsensusError::Record(RecordError::Unreadable(_)) => Some(Exit::Data),
        ConsensusError::Task { .. } => Some(Exit::Bug),
        error if error.is_retryable() => Some(Exit::TryAgain),
        _ => None,
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
        | StorageError::Schedule(_) => Some(Exit::Config),
        StorageError::Locked { .. }
        | StorageError::DiskLow { .. }
        | StorageError::DiskFull(_)
        | StorageError::Poisoned => Some(Exit::TryAgain),
        StorageError::Corrupt { .. } | StorageError::DamagedSnapshot { .. } => Some(Exit::Data),
        StorageError::Io { source, .. } => of_io(source),
        error if error.is_retryable() => Some(Exit::TryAgain),
        _ => None,
    }
}

/// The exit code for a node's wrong answer, except where time or another anchor helps.
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
        _ => None,
    }
}

/// An address that is not there yet is one of a network that comes up later than the node.
fn of_io(error: &io::Error) -> Option<Exit> {
    match error.kind() {
        io::ErrorKind::StorageFull
        | io::ErrorKind::QuotaExceeded
        | io::ErrorKind::AddrNotAvailable
        | io::ErrorKind::ConnectionRefused
        | io::ErrorKind::TimedOut => Some(Exit::TryAgain),
        io::ErrorKind::PermissionDenied
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::ReadOnlyFilesystem => Some(Exit::Config),
        _ => None,
    }
}

/// The failure of a command, ready to be shown. It has no causes any more, as they are in its text.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(super) struct Failed {
    text: String,
    help: Option<String>,
    exit: Exit,
    /// Whether the operator has read it already, in the log.
    told: bool,
}

impl Diagnostic for Failed {
    fn help<'a>(&'a self) -> Option<Box<dyn std::fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn std::fmt::Display + 'a>)
    }
}

/// Longest text that is shown, in characters. It may quote what a hostile node answered.
const TEXT_CHARS_MAX: usize = 8_192;

impl Failed {
    /// A failure that no error of the libraries describes. Nothing that the text quotes can steer a terminal.
    pub(super) fn new(exit: Exit, text: impl Into<String>) -> Failed {
        let text: String = text.into().chars().take(TEXT_CHARS_MAX).collect();
        Failed { text: plain(&text), help: None, exit, told: false }
    }

    pub(super) fn of(error: &(dyn Error + 'static)) -> Failed {
        Self::new(Exit::of(error), once(error))
    }

    pub(super) fn with_help(mut self, help: &str) -> Failed {
        self.help = Some(help.to_owned());
        self
    }

    /// Writes it to the log, where it outlives the process; does nothing where the log hides errors.
    pub(super) fn log(mut self, message: &'static str) -> Failed {
        if tracing::enabled!(tracing::Level::ERROR) {
            tracing::error!(failure = %self.text, help = self.help, "{message}");
            self.told = true;
        }
        self
    }
}

/// Whether the same question may be answered later.
pub(super) fn is_temporary(error: &Report) -> bool {
    error.downcast_ref::<Failed>().is_some_and(|failed| failed.exit == Exit::TryAgain)
}

/// The text of an error and of its causes, each once. Most of our texts quote their cause in the middle of the sentence.
fn once(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in causes(error).skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Turns the errors of libraries into failures.
pub(super) trait OrFail<T> {
    fn or_fail(self) -> Result<T>;
}

impl<T, E: Error + 'static> OrFail<T> for std::result::Result<T, E> {
    fn or_fail(self) -> Result<T> {
        self.map_err(|error| Failed::of(&error).into())
    }
}

/// Shows how a command ended, and tells its exit code.
pub(super) fn end(result: Result<()>) -> ExitCode {
    result.map_or_else(|report| show(&report, io::stderr().lock()).into(), |()| ExitCode::SUCCESS)
}

/// Ends the program with the exit code of a reported result. It skips what libraries do at an exit: RocksDB destroys its locks
/// there, and a thread that still reads the store would abort.
pub(super) fn at_once(result: &Result<()>) -> ! {
    signal_hook::low_level::exit(result.as_ref().map_or_else(|report| exit_of(report) as i32, |()| 0))
}

fn exit_of(report: &Report) -> Exit {
    report.downcast_ref::<Failed>().map_or(Exit::Failure, |failed| failed.exit)
}

/// As [`end`], by another way than standard error; the exit code is for the end of the program.
pub(super) fn tell(report: &Report, to: impl Write) -> Report {
    let exit = show(report, to);
    Failed { told: true, ..Failed::new(exit, report.to_string()) }.into()
}

/// Shows a failure that was not reported yet. If it cannot be written, it is lost.
fn show(report: &Report, mut to: impl Write) -> Exit {
    let failed = report.downcast_ref::<Failed>();
    let exit = exit_of(report);
    if exit != Exit::ClosedPipe && !failed.is_some_and(|failed| failed.told) {
        let _ = writeln!(to, "{report:?}");
    }
    exit
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a task's error is found below its wrappers, and a bug is one wherever it came up.
    #[test]
    fn the_cause_of_a_failed_task_decides() {
        let dir = std::path::PathBuf::from("data");
        let low = StorageError::DiskLow { free_mib: 1, min_mib: 2, dir };
        let task = |source: SyncError| TaskFailure::Failed { task: "sync", source: source.into() };
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let full = StorageError::Io { action: "write", path: "data".into(), source: full };
        let panicked = TaskFailure::Panicked { task: "sync", message: "oh".into() };
        let number = slipstream_types::BatchNumber::new(3);
        let diverged = SyncError::Diverged { number, field: "state_root" };
        let of_execution = |source| SyncError::Execute { number, source: Box::new(source) };
        let gas = ExecuteError::GasLimit { index: 0, hash: Default::default(), gas_limit: 2, left: 1 };
        for (error, exit) in [
            (NodeError::Task(task(low.into())), Exit::TryAgain),
            (NodeError::Consensus(full.into()), Exit::TryAgain),
            (NodeError::Task(panicked), Exit::Bug),
            (NodeError::Task(task(diverged)), Exit::Data),
            (NodeError::Task(task(of_execution(gas))), Exit::Data),
            (NodeError::Task(task(of_execution(StorageError::Poisoned.into()))), Exit::TryAgain),
        ] {
            assert_eq!(Exit::of(&error), exit, "{error}");
            let failed = Failed::of(&error).to_string();
            assert_eq!(failed, error.to_string(), "no cause is said twice");
        }
    }

    /// Goal: a hostile node's answer can neither steer the terminal nor flood it.
    #[test]
    fn quoted_text_is_plain_and_short() {
        let text = Failed::new(Exit::Data, "the node says \u{1b}[2J\r\u{9b}gone\nand more").to_string();
        assert_eq!(text, "the node says  [2J  gone\nand more");
        let flood = Failed::new(Exit::Data, "é".repeat(TEXT_CHARS_MAX + 1)).to_string();
        assert_eq!(flood.chars().count(), TEXT_CHARS_MAX);
    }
}
