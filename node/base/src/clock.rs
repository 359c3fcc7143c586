//! The real clock: the only place in the node that asks the operating system for the time of day.

use std::time::{SystemTime, UNIX_EPOCH};

use slipstream_types::Clock;

/// Time of day from the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "this is the production implementation of the seam")]
    fn now_ms(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
    }
}
