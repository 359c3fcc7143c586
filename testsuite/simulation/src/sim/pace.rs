//! [`Due`]: the moment at which a node of mode `auto` has to be at the head, whatever peers promise.
//!
//! The same world is run with each way pinned, and without anybody but its honest peers. The best of these times, half as much again, and
//! what one lie can cost are all the time that the node has among the others.

use std::fmt;

use anyhow::{Context, Result};
use slipstream_sync::Mode;

use super::{
    plan::Scenario,
    queue::Moment,
    world::{CATCH_UP, World},
};

/// The most that the time of `auto` may be, as a multiple of the best way's time.
const REGRET_MAX: f64 = 1.5;
/// What a lie can cost once, in deadlines of requests: a restore is compared with other ways every three, what was asked of a liar last is
/// asked of somebody else after one more, and a range delta that cannot be had may come before either.
const LIE_DEADLINES: u64 = 6;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    pub(super) at: Moment,
    /// The best way, and when it was at the head.
    best: (Mode, Moment),
}

impl Due {
    /// The moment in the world of a seed of [`Scenario::Promises`].
    ///
    /// # Errors
    /// The fault that an oracle found in a world without lies, or that no way gets to the head in it.
    pub(super) fn of(seed: u64) -> Result<Due> {
        let mut best: Option<(Mode, Moment)> = None;
        let mut deadline = 0;
        for mode in [Mode::Snapshot, Mode::RangeDelta, Mode::Delta, Mode::Replay] {
            let mut world = World::build(Scenario::Promises, seed, None, false, Some(mode))?;
            deadline = world.nodes[0].plan.sync.request_deadline_ms.get() * 1_000;
            // A way that is slower than another decides nothing.
            let end = best.map_or(CATCH_UP, |(_, took)| took);
            if world.drive(end).with_context(|| format!("among honest peers by {}", mode.name()))? {
                best = Some((mode, world.now));
            }
        }
        let best = best.context("no way gets to the head among honest peers")?;
        let at = (best.1 as f64 * REGRET_MAX) as Moment + LIE_DEADLINES * deadline;
        Ok(Due { at, best })
    }
}

impl fmt::Display for Due {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mode, took) = self.best;
        write!(
            f,
            "{} gets there in {:.3} s among honest peers, and {REGRET_MAX} times that and {LIE_DEADLINES} deadlines are over",
            mode.name(),
            took as f64 / 1e6
        )
    }
}
