//! [`Meter`]: bounds a peer's rate of broadcasts. Excess messages are dropped unread; a large excess is a flood.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::bucket::Bucket;

/// Messages per second of one peer. A node's only provider sends it all chunks of each batch: up to 64 of the body, and
/// as many of the hints. It repeats some, and adds a few notices. At ten batches a second that is some 1,500.
const MESSAGES_PER_SECOND: f64 = 2_048.0;
/// Messages in a burst, as after a pause of the machine or of the link.
const MESSAGES_BURST: f64 = 8_192.0;
/// Bytes of broadcasts per second of one peer: half of a 1 Gbit/s link.
const BYTES_PER_SECOND: f64 = (64 << 20) as f64;
/// Bytes in a burst: several of the longest messages.
const BYTES_BURST: f64 = (256 << 20) as f64;
/// All peers of one party together get the rate of this many peers. A party makes keys for free, and a new key has a
/// full burst.
const PEERS_PER_PARTY: f64 = 4.0;
/// Dropped broadcasts within [`FLOOD_TIME`] that prove dishonesty: an honest peer would have to send thirty thousand
/// chunks beyond the burst.
const FLOOD_DROPS: u32 = 16_384;
const FLOOD_TIME: Duration = Duration::from_secs(10);

/// The verdict on a broadcast.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Take,
    /// It exceeds the rate.
    Drop,
    /// It exceeds the rate by far more than an honest peer would.
    Flood,
}

/// An allowance of broadcasts.
#[derive(Debug)]
pub(crate) struct Rate(Mutex<Buckets>);

#[derive(Debug)]
struct Buckets {
    messages: Bucket,
    bytes: Bucket,
}

impl Rate {
    /// The rate of `peers` peers.
    fn of(peers: f64, now: Instant) -> Rate {
        Rate(Mutex::new(Buckets {
            messages: Bucket::full(peers * MESSAGES_PER_SECOND, peers * MESSAGES_BURST, now),
            bytes: Bucket::full(peers * BYTES_PER_SECOND, peers * BYTES_BURST, now),
        }))
    }

    /// The rate of a party, which may have many keys.
    pub(crate) fn of_party(now: Instant) -> Rate {
        Rate::of(PEERS_PER_PARTY, now)
    }

    /// Whether nothing was taken from the allowance recently.
    pub(crate) fn is_full(&self, now: Instant) -> bool {
        let buckets = &mut *self.0.lock();
        buckets.messages.is_full(now) && buckets.bytes.is_full(now)
    }

    fn take(&self, bytes: usize, now: Instant) -> bool {
        let (buckets, bytes) = (&mut *self.0.lock(), bytes as f64);
        let has = buckets.messages.has(1.0, now) && buckets.bytes.has(bytes, now);
        has && buckets.messages.take(1.0, now) && buckets.bytes.take(bytes, now)
    }
}

/// The meter of one peer.
#[derive(Debug)]
pub(crate) struct Meter {
    own: Rate,
    /// The shared rate of all peers of its party.
    together: Option<Arc<Rate>>,
    drops: u32,
    drops_since: Instant,
}

impl Meter {
    pub(crate) fn new(together: Option<Arc<Rate>>, now: Instant) -> Meter {
        Meter { own: Rate::of(1.0, now), together, drops: 0, drops_since: now }
    }

    /// Judges a broadcast by its announced length. If other peers of the party used up the shared rate, that proves
    /// nothing against this one.
    pub(crate) fn judge(&mut self, bytes: usize, now: Instant) -> Verdict {
        if self.own.take(bytes, now) {
            let is_taken = self.together.as_ref().is_none_or(|together| together.take(bytes, now));
            return if is_taken { Verdict::Take } else { Verdict::Drop };
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

    /// Goal: a peer of a fast chain, one that was silent for a while, and one that sends the longest messages lose
    /// nothing.
    #[test]
    fn honest_peers_lose_nothing() {
        let start = Instant::now();
        for (every_ms, bytes) in [(20, 100 << 10), (1_000, 48 << 20), (100, 4 << 20)] {
            let mut meter = Meter::new(None, start);
            let taken = |n: u64| meter.judge(bytes, after(start, n * every_ms)) == Verdict::Take;
            assert!((0..5_000).all(taken), "one of {bytes} bytes every {every_ms} ms");
        }
        // Ten batches a second, all their chunks from one peer, and a quarter of them repeated.
        let mut meter = Meter::new(None, start);
        for n in 0..600 {
            let sent = (0..160).all(|_| meter.judge(8 << 10, after(start, n * 100)) == Verdict::Take);
            assert!(sent, "batch {n}");
        }
        let mut meter = Meter::new(None, start);
        assert!((0..1_000).all(|_| meter.judge(1_000, start) == Verdict::Take));
        let later = after(start, 20_000);
        assert!((0..1_000).all(|_| meter.judge(1_000, later) == Verdict::Take));
    }

    /// Goal: a flood gets only what the rate admits, and is told apart from a mere excess.
    #[test]
    fn a_flood_is_cut_and_named() {
        let start = Instant::now();
        let mut meter = Meter::new(None, start);
        let verdicts: Vec<_> = (0..60_000).map(|n| meter.judge(10, after(start, n / 60))).collect();
        let taken = verdicts.iter().filter(|verdict| **verdict == Verdict::Take).count();
        assert!((8_192..10_300).contains(&taken), "{taken}");
        assert_eq!(verdicts.last(), Some(&Verdict::Flood));
        // Twice the rate for ten minutes is an excess, but no proof of a flood.
        let mut meter = Meter::new(None, start);
        let verdicts: Vec<_> = (0..2_100_000).map(|n| meter.judge(10, after(start, n * 2 / 7))).collect();
        assert!(verdicts.contains(&Verdict::Drop) && !verdicts.contains(&Verdict::Flood));
        // Ever new keys of one party share the rate of a few peers, and none of them is blamed for the others.
        let together = Arc::new(Rate::of_party(start));
        let mut taken = 0;
        for _ in 0..100 {
            let mut meter = Meter::new(Some(together.clone()), start);
            let verdicts: Vec<_> = (0..2_000).map(|_| meter.judge(10, start)).collect();
            assert!(!verdicts.contains(&Verdict::Flood));
            taken += verdicts.into_iter().filter(|verdict| *verdict == Verdict::Take).count();
        }
        assert_eq!(taken as f64, PEERS_PER_PARTY * MESSAGES_BURST);
        assert!(!together.is_full(start) && together.is_full(after(start, 60_000)));
        // Bytes count as well as messages.
        let mut meter = Meter::new(None, start);
        let taken = (0..20).filter(|_| meter.judge(48 << 20, start) == Verdict::Take).count();
        assert_eq!(taken, 5);
    }
}
