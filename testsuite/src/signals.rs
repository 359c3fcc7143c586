//! Signals that ask a program to end.

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

/// Ends the work on ctrl-c; everything that it holds, processes too, is dropped and thereby ended.
///
/// # Errors
/// The work's own, or that it was interrupted.
pub async fn interruptible(work: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::select! {
        biased;
        // First: whoever sees what the work says may interrupt it at once.
        () = interrupted() => bail!("interrupted"),
        result = work => result,
    }
}
