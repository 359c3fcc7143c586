//! The shared parts of the tests: timeouts, devnets, and programs that may be missing.

mod chains;
mod tools;

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

pub(crate) use self::{
    chains::{agree, agreed, fullnode, gone, load_runs, pair, ports, read, receipt, room, stands},
    tools::{data, is_installed, skip, target},
};

/// The timeout of steps that take seconds: six tests share the machine, which may be slow and busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
/// The interval between two checks of a condition.
const POLL: Duration = Duration::from_millis(20);
/// The same, if a check starts a process.
const PAUSE: Duration = Duration::from_millis(50);

/// Returns a program that starts like a node, prints something, and never becomes ready.
pub(crate) fn never_ready() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/data/never-ready.sh")
}

/// Returns the deadline of a wait that starts now.
pub(crate) fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

/// Waits until `look` succeeds. At the deadline it panics with the last result.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
    let deadline = deadline();
    loop {
        match look().await {
            Ok(found) => return found,
            Err(seen) => assert!(Instant::now() < deadline, "{what}: {seen}"),
        }
        tokio::time::sleep(POLL).await;
    }
}

/// As [`until`], in a test without a runtime.
pub(crate) fn until_blocking<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let deadline = deadline();
    loop {
        match look() {
            Ok(found) => return found,
            Err(seen) => assert!(Instant::now() < deadline, "{what}: {seen}"),
        }
        pause();
    }
}

#[allow(clippy::disallowed_methods, reason = "for tests of commands that block, without a runtime")]
pub(crate) fn pause() {
    std::thread::sleep(PAUSE);
}

/// Returns the `slipnet` that cargo built.
pub(crate) fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_slipnet"))
}

/// Returns the output of a command that must have succeeded.
pub(crate) fn succeed(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}
