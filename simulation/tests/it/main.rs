//! The simulation's tests, in one program: some compute, and some wait for processes and disks meanwhile.
//! They begin in the order of their names: those that wait come first.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a panic is how a test fails, a summary says what it tried

mod lying_peers;
mod persistence;
mod siege;
mod sim;
mod sim_validators;

use tokio::sync::{Semaphore, SemaphorePermit};

/// Devnets that run at a time, beside what computes: each could use the whole machine, and a node that gets none of it is late.
static ROOM: Semaphore = Semaphore::const_new(3);

/// Waits until there is room for a devnet.
async fn room() -> SemaphorePermit<'static> {
    ROOM.acquire().await.unwrap()
}
