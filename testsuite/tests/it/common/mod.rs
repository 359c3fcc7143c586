//! What the tests share: patience, devnets, and programs that may be missing.

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

/// Longest time for steps that take seconds: six tests share the machine, which may be slow and busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
/// Time between two looks at something that is waited for.
const POLL: Duration = Duration::from_millis(20);
/// The same, where a look is a process.
const PAUSE: Duration = Duration::from_millis(50);

/// A program that is started as a node is, says something, and stays.
pub(crate) fn never_ready() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/data/never-ready.sh")
}

/// The end of what is waited for from now on.
pub(crate) fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

/// Waits until a look finds something. Otherwise it says what it has seen.
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

/// The `slipnet` that cargo built.
pub(crate) fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_slipnet"))
}

/// The output of a command that must have succeeded.
pub(crate) fn succeed(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}
