//! [`Due`]: the time by which a node of mode `auto` must be at the head, whatever peers promise.
//!
//! The same world runs once per way, with that way pinned and only its honest peers connected. The deadline in the full
//! world is the best of these times, plus half of it, plus what one lie can cost.

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
/// The most that one lie can cost, in request deadlines. A restore is compared with other ways every three deadlines.
/// The last request to a liar moves to another peer after one more deadline. An unavailable range delta may come before
/// either.
const LIE_DEADLINES: u64 = 6;

/// The deadline, and what it derives from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    pub(super) at: Moment,
    /// The best way, and the time at which it reached the head.
    best: (Mode, Moment),
}

impl Due {
    /// Returns the deadline for the world of a seed of [`Scenario::Promises`].
    ///
    /// # Errors
    /// If an oracle found a fault in a world without lies, or if no way reaches the head in it.
    pub(super) fn of(seed: u64) -> Result<Due> {
        let mut best: Option<(Mode, Moment)> = None;
        let mut deadline = 0;
        for mode in [Mode::Snapshot, Mode::RangeDelta, Mode::Delta, Mode::Replay] {
            let mut world = World::build(Scenario::Promises, seed, None, false, Some(mode))?;
            deadline = world.nodes[0].plan.sync.request_deadline_ms.get() * 1_000;
            // A way that is slower than the best so far need not finish.
            let end = best.map_or(CATCH_UP, |(_, took)| took);
            if world.drive(end).with_context(|| format!("among honest peers, in mode {}", mode.name()))? {
                best = Some((mode, world.now));
            }
        }
        let best = best.context("no mode reaches the head among honest peers")?;
        let at = (best.1 as f64 * REGRET_MAX) as Moment + LIE_DEADLINES * deadline;
        Ok(Due { at, best })
    }
}

impl fmt::Display for Due {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mode, took) = self.best;
        write!(
            f,
            "among honest peers, mode {} reaches it in {:.3} s; the limit is {REGRET_MAX} times that plus {LIE_DEADLINES} deadlines",
            mode.name(),
            took as f64 / 1e6
        )
    }
}
