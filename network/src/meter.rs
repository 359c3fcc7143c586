//! [`Meter`]: how fast a peer may broadcast. What comes faster is dropped unread; what comes very much faster is a flood.

use std::time::Duration;

use tokio::time::Instant;

use crate::bucket::Bucket;

/// Broadcasts per second of one peer. An honest one sends each batch once, and no network makes as many.
const MESSAGES_PER_SECOND: f64 = 64.0;
/// Broadcasts at once, as after a stop of the machine or of the link.
const MESSAGES_BURST: f64 = 1_024.0;
/// Bytes of broadcasts per second of one peer: half of a link of 1 Gbit/s.
const BYTES_PER_SECOND: f64 = (64 << 20) as f64;
/// Bytes at once: some of the longest messages.
const BYTES_BURST: f64 = (256 << 20) as f64;
/// Dropped broadcasts within [`FLOOD_TIME`] that no honest peer can have sent: it would have had to make a thousand batches more
/// than the burst lets through.
const FLOOD_DROPS: u32 = 1_024;
const FLOOD_TIME: Duration = Duration::from_secs(10);

/// What becomes of a broadcast.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Take,
    /// It is one too many.
    Drop,
    /// It is one too many of very many, which no honest peer sends.
    Flood,
}

/// The meter of one peer.
#[derive(Debug)]
pub(crate) struct Meter {
    messages: Bucket,
    bytes: Bucket,
    drops: u32,
    drops_since: Instant,
}

impl Meter {
    pub(crate) fn new(now: Instant) -> Meter {
        Meter {
            messages: Bucket::full(MESSAGES_PER_SECOND, MESSAGES_BURST, now),
            bytes: Bucket::full(BYTES_PER_SECOND, BYTES_BURST, now),
            drops: 0,
            drops_since: now,
        }
    }

    /// Judges a broadcast by its announced length.
    pub(crate) fn judge(&mut self, bytes: usize, now: Instant) -> Verdict {
        if self.bytes.has(bytes as f64, now) && self.messages.take(1.0, now) {
            self.bytes.take(bytes as f64, now);
            return Verdict::Take;
        }
        if now.saturating_duration_since(self.drops_since) > FLOOD_TIME {
            (self.drops, self.drops_since) = (0, now);
        }
        self.drops += 1;
        if self.drops >= FLOOD_DROPS { Verdict::Flood } else { Verdict::Drop }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    /// Goal: a peer of a fast chain, one that was silent for a while, and one that sends the longest messages lose nothing.
    #[test]
    fn honest_peers_lose_nothing() {
        let start = Instant::now();
        for (every_ms, bytes) in [(20, 100 << 10), (1_000, 48 << 20), (100, 4 << 20)] {
            let mut meter = Meter::new(start);
            let taken = |n: u64| meter.judge(bytes, after(start, n * every_ms)) == Verdict::Take;
            assert!((0..5_000).all(taken), "one of {bytes} bytes every {every_ms} ms");
        }
        let mut meter = Meter::new(start);
        assert!((0..1_000).all(|_| meter.judge(1_000, start) == Verdict::Take));
        let later = after(start, 20_000);
        assert!((0..1_000).all(|_| meter.judge(1_000, later) == Verdict::Take));
    }

    /// Goal: a flood costs what the rate lets through and is told from what is merely too much.
    #[test]
    fn a_flood_is_cut_and_named() {
        let start = Instant::now();
        let mut meter = Meter::new(start);
        let verdicts: Vec<_> = (0..5_000).map(|n| meter.judge(10, after(start, n / 5))).collect();
        let taken = verdicts.iter().filter(|verdict| **verdict == Verdict::Take).count();
        assert!((1_024..1_100).contains(&taken), "{taken}");
        assert_eq!(verdicts.last(), Some(&Verdict::Flood));
        // Twice the rate for an hour is too much, and no proof.
        let mut meter = Meter::new(start);
        let verdicts: Vec<_> = (0..460_000).map(|n| meter.judge(10, after(start, n * 8))).collect();
        assert!(verdicts.contains(&Verdict::Drop) && !verdicts.contains(&Verdict::Flood));
        // Bytes count as well as messages.
        let mut meter = Meter::new(start);
        let taken = (0..20).filter(|_| meter.judge(48 << 20, start) == Verdict::Take).count();
        assert_eq!(taken, 5);
    }
}
