//! Signals that end a program.

use anyhow::{Result, bail};
use tokio::signal::unix::{SignalKind, signal};

/// Waits for ctrl-c or SIGTERM.
pub async fn interrupted() {
    let mut terminate = signal(SignalKind::terminate()).expect("SIGTERM may be handled");
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

/// Runs `work` until ctrl-c or SIGTERM, which drop it. Everything that it owns ends with it, including processes.
///
/// # Errors
/// The error of `work`, or that it was interrupted.
pub async fn interruptible(work: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::select! {
        biased;
        // This branch comes first: a user who sees the work's output may interrupt it at once.
        () = interrupted() => bail!("interrupted"),
        result = work => result,
    }
}
