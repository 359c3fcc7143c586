//! The simulation's tests, in one program: some compute while others wait for processes and disks. They start in the
//! order of their names: those that wait come first.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a panic is how a test fails, a summary says what it tried

mod lying_peers;
mod persistence;
mod siege;
mod sim;
mod sim_validators;

use std::{fmt::Debug, iter, ops::Range};

use tokio::sync::{Semaphore, SemaphorePermit};

/// Limits the devnets that run at a time beside the computing tests: each could use the whole machine, and a starved
/// node is late.
static ROOM: Semaphore = Semaphore::const_new(3);

/// Waits until there is room for a devnet.
async fn room() -> SemaphorePermit<'static> {
    ROOM.acquire().await.unwrap()
}

/// Returns the defences whose absence nothing detects: neither the seed that did before, nor 200 others. `missed`
/// returns how the first failing seed of a range fails without a defence.
fn unnoticed<P: Copy + PartialEq + Debug>(
    all: impl IntoIterator<Item = P>,
    missed_at: &[(P, u64)],
    missed: impl Fn(P, Range<u64>) -> Option<String>,
) -> Vec<P> {
    let is_unnoticed = |planted: &P| {
        let known = missed_at.iter().filter(|(it, _)| it == planted).map(|(_, seed)| *seed..*seed + 1);
        let found = known.chain(iter::once(0..200)).find_map(|seeds| missed(*planted, seeds));
        println!("{planted:?}: {}", found.as_deref().unwrap_or("nothing"));
        found.is_none()
    };
    all.into_iter().filter(is_unnoticed).collect()
}
