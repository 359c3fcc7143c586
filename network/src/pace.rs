//! [`Pace`]: detects a peer that does not receive, or send, the bytes that a node holds for it. A time limit alone
//! would let the peer occupy that memory until just before the limit.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::sleep;

/// A window is 1/`WINDOW_PART` of the time for one message, and `WINDOWS` slow windows in a row are a stall. One slow
/// window says little about the peer: recovery from lost packets takes seconds, and this machine may have been
/// suspended.
const WINDOW_PART: u32 = 12;
const WINDOWS: u32 = 2;
/// The slowest link that a node can use.
const FLOOR_BYTES_PER_SECOND: u32 = 32 << 10;

/// Counts the bytes that a connection moves in one direction. Streams of one connection move one after another, so a
/// single stream may stand still for long. The connection as a whole must move.
#[derive(Debug)]
pub(crate) struct Pace {
    window: Duration,
    moved: AtomicU64,
}

impl Pace {
    /// Makes the pace of a connection whose messages each have `transfer_timeout`.
    pub(crate) fn new(transfer_timeout: Duration) -> Pace {
        Pace { window: transfer_timeout / WINDOW_PART, moved: AtomicU64::new(0) }
    }

    pub(crate) fn moved(&self, bytes: usize) {
        self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// All bytes moved.
    #[cfg(test)]
    pub(crate) fn total(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Resolves when too few bytes have moved for some windows. Wait for it while something is waiting to move.
    pub(crate) async fn stalls(&self) {
        self.stalls_by(|| self.moved.load(Ordering::Relaxed)).await;
    }

    /// As [`Pace::stalls`], with another count of bytes.
    pub(crate) async fn stalls_by(&self, count: impl Fn() -> u64) {
        let least = f64::from(FLOOR_BYTES_PER_SECOND) * self.window.as_secs_f64();
        let mut slow = 0;
        while slow < WINDOWS {
            let before = count();
            sleep(self.window).await;
            let is_slow = (count().saturating_sub(before) as f64) < least;
            slow = if is_slow { slow + 1 } else { 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    /// Goal: a peer that moves enough may take its time. One that moves almost nothing is noticed within three windows.
    #[tokio::test(start_paused = true)]
    async fn a_floor_in_rate_and_not_in_time() {
        let (pace, start) = (Pace::new(Duration::from_secs(30)), Instant::now());
        let moving = async {
            for _ in 0..100 {
                sleep(Duration::from_secs(1)).await;
                pace.moved(2 * FLOOR_BYTES_PER_SECOND as usize);
            }
            for _ in 0..100 {
                sleep(Duration::from_secs(1)).await;
                pace.moved(1_000);
            }
        };
        tokio::select! {
            () = pace.stalls() => {}
            () = moving => panic!("a byte now and then is not enough"),
        }
        let took = start.elapsed();
        assert!(
            took > Duration::from_secs(100) && took <= Duration::from_secs(100) + 3 * pace.window,
            "{took:?}"
        );
    }
}
