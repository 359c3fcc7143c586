//! [`replay_ahead`]: blocks that are read for while those before them execute.

use std::{sync::mpsc, thread};

use anyhow::{Context, Result};
use slipstream_executor::{Prefetcher, StateReader, Wanted, Warm};
use slipstream_types::{BatchNumber, Hints};

use super::Case;

/// One thread prepares blocks, each on a state of its own and `readahead` of them ahead, and one executes them. `hints` says what a block
/// reads.
///
/// # Errors
/// If a state cannot be read, or a block comes out otherwise.
pub(crate) fn replay_ahead<R>(
    prefetcher: &Prefetcher,
    readahead: usize,
    blocks: &[(&Case, R)],
    hints: impl Fn(&Case, &R) -> Result<Hints> + Sync,
) -> Result<()>
where
    R: StateReader + Clone + 'static,
{
    // One more block is ahead in the hands of the thread that waits to send it.
    let (sender, prepared) = mpsc::sync_channel::<Warm<R>>(readahead - 1);
    thread::scope(|scope| {
        scope.spawn(|| {
            let sender = sender;
            for (case, state) in blocks {
                // A state that cannot be read shows when the block executes.
                let Ok(hints) = hints(case, state) else { return };
                let number = BatchNumber::new(case.block.env.number);
                if sender.send(prefetcher.read_ahead(number, state.clone(), Wanted::from(&hints))).is_err() {
                    return;
                }
            }
        });
        // Its end, on an error too, is what stops the other thread.
        let prepared = prepared;
        for (case, _) in blocks {
            let warm = prepared.recv().context("the thread that prepares blocks has ended")?;
            case.check(&warm)?;
        }
        Ok(())
    })
}
