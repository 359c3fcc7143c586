//! [`replay_ahead`]: a replay that reads for later blocks while earlier ones execute.

use std::{sync::mpsc, thread};

use anyhow::{Context, Result};
use slipstream_executor::{PrefetchRequest, Prefetcher, WarmState};
use slipstream_storage::StateReader;
use slipstream_types::{BatchNumber, Hints};

use super::Case;

/// Replays blocks with two threads. One thread prepares up to `readahead` blocks ahead, each on its own state; the
/// other thread executes them. `hints` returns what a block reads.
///
/// # Errors
/// If a state cannot be read, or a block has another outcome.
pub(crate) fn replay_ahead<R>(
    prefetcher: &Prefetcher,
    readahead: usize,
    blocks: &[(&Case, R)],
    hints: impl Fn(&Case, &R) -> Result<Hints> + Sync,
) -> Result<()>
where
    R: StateReader + Clone + 'static,
{
    // One less, because the sending thread holds one more block.
    let (sender, prepared) = mpsc::sync_channel::<WarmState<R>>(readahead - 1);
    thread::scope(|scope| {
        scope.spawn(|| {
            let sender = sender;
            for (case, state) in blocks {
                // A state that cannot be read fails when the block executes.
                let Ok(hints) = hints(case, state) else { return };
                let number = BatchNumber::new(case.block.env.number);
                if sender
                    .send(prefetcher.read_ahead(number, state.clone(), PrefetchRequest::from(&hints)))
                    .is_err()
                {
                    return;
                }
            }
        });
        // Dropping `prepared`, also on an error, stops the other thread.
        let prepared = prepared;
        for (case, _) in blocks {
            let warm = prepared.recv().context("the thread that prepares blocks ended early")?;
            case.check(&warm)?;
        }
        Ok(())
    })
}
