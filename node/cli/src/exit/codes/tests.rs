//! Which error of a start, or of a task, gets which code.

use slipstream_types::{BatchNumber, CodecError};

use super::{super::CommandFailure, *};

/// Goal: a task's error is found below its wrappers, and a bug counts as one wherever it occurred.
#[test]
fn the_cause_of_a_failed_task_decides() {
    let dir = std::path::PathBuf::from("data");
    let low = StorageError::DiskLow { free_mib: 1, min_mib: 2, dir };
    let task = |source: SyncError| TaskFailure::Failed { task: "sync", source: source.into() };
    let full = io::Error::from(io::ErrorKind::StorageFull);
    let full = StorageError::Io { action: "write", path: "data".into(), source: full };
    let panicked = TaskFailure::Panicked { task: "sync", message: "oh".into() };
    let number = BatchNumber::new(3);
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
        let failed = CommandFailure::of(&error).to_string();
        assert_eq!(failed, error.to_string(), "no cause is said twice");
    }
}

/// Goal: a service manager restarts a node only where that can help, whatever stopped its start.
#[test]
fn errors_of_a_start_have_their_codes() {
    let io = |kind: io::ErrorKind| io::Error::from(kind);
    let path = || std::path::PathBuf::from("file");
    let missing = || io(io::ErrorKind::NotFound);
    let json = || serde_json::from_str::<u8>("x").unwrap_err();
    let key = |source| KeyError::Read { path: path(), source };
    let genesis = |source| GenesisFileError::Read { path: path(), source };
    let store = |source| StorageError::Io { action: "write", path: path(), source };
    let token = |source| TokenError::Io { action: "write", path: path(), source };
    let journal = |source| JournalError::Io { action: "open", path: path(), source };
    let files = || io::Error::from(Errno::MFILE);
    let table: [(NodeError, Exit); 24] = [
        (ScheduleFileError::Read { path: path(), source: missing() }.into(), Exit::Config),
        (ScheduleFileError::Json { path: path(), source: json() }.into(), Exit::Config),
        (ScheduleFileError::TooLong { path: path(), max: 1 }.into(), Exit::Config),
        (key(missing()).into(), Exit::Config),
        (key(files()).into(), Exit::TryAgain),
        (KeyError::Malformed { path: path() }.into(), Exit::Config),
        (KeyError::Write { path: path(), source: io(io::ErrorKind::StorageFull) }.into(), Exit::TryAgain),
        (genesis(missing()).into(), Exit::Config),
        (GenesisFileError::Json { path: path(), source: json() }.into(), Exit::Config),
        (NodeError::Codec(CodecError::Invalid { what: "genesis", rule: "x" }), Exit::Config),
        (LockError::Io { path: path(), source: io(io::ErrorKind::PermissionDenied) }.into(), Exit::Config),
        (LockError::Io { path: path(), source: io(io::ErrorKind::QuotaExceeded) }.into(), Exit::TryAgain),
        (store(io(io::ErrorKind::StorageFull)).into(), Exit::TryAgain),
        (store(io(io::ErrorKind::FileTooLarge)).into(), Exit::Config),
        (store(io(io::ErrorKind::PermissionDenied)).into(), Exit::Config),
        (store(files()).into(), Exit::TryAgain),
        (StorageError::NotInitialized.into(), Exit::Failure),
        (token(io(io::ErrorKind::StorageFull)).into(), Exit::TryAgain),
        (TokenError::Malformed { path: path() }.into(), Exit::Config),
        (journal(io(io::ErrorKind::StorageFull)).into(), Exit::TryAgain),
        (NodeError::Io { action: "start", source: files() }, Exit::TryAgain),
        (NodeError::LogFile { path: path(), source: missing() }, Exit::Config),
        (ConsensusError::Storage(StorageError::Poisoned).into(), Exit::TryAgain),
        (NetworkError::Config { key: "network.listen", reason: "x".into() }.into(), Exit::Config),
    ];
    for (error, exit) in table {
        assert_eq!(Exit::of(&error), exit, "{error}");
    }
}
