//! [`Bucket`]: a token bucket: a burst, then a rate per second.

use tokio::time::Instant;

/// A token bucket, which starts full.
#[derive(Debug)]
pub(crate) struct Bucket {
    per_second: f64,
    burst: f64,
    left: f64,
    counted: Instant,
}

impl Bucket {
    pub(crate) fn full(per_second: f64, burst: f64, now: Instant) -> Bucket {
        Bucket { per_second, burst, left: burst, counted: now }
    }

    /// Takes `amount` tokens and returns true, or takes none and returns false if the bucket has fewer.
    pub(crate) fn take(&mut self, amount: f64, now: Instant) -> bool {
        let has = self.has(amount, now);
        if has {
            self.left -= amount;
        }
        has
    }

    pub(crate) fn has(&mut self, amount: f64, now: Instant) -> bool {
        let seconds = now.saturating_duration_since(self.counted).as_secs_f64();
        self.left = (self.left + seconds * self.per_second).min(self.burst);
        self.counted = now;
        self.left >= amount
    }

    /// Whether the bucket is full, as if no token had ever been taken.
    pub(crate) fn is_full(&mut self, now: Instant) -> bool {
        self.has(self.burst, now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_then_a_rate() {
        let start = Instant::now();
        let mut bucket = Bucket::full(2.0, 10.0, start);
        assert!((0..10).all(|_| bucket.take(1.0, start)));
        assert!(!bucket.take(1.0, start));
        let later = start + Duration::from_secs(3);
        assert!(bucket.take(6.0, later) && !bucket.has(1.0, later));
        assert!(!bucket.is_full(later + Duration::from_secs(4)));
        assert!(bucket.is_full(later + Duration::from_secs(5)));
        assert!(!bucket.take(11.0, later + Duration::from_secs(500)));
    }
}
