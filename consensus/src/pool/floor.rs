//! [`TipFloor`]: the price of entry into a pool that was full a moment ago.

use std::time::Duration;

use tokio::time::Instant;

/// Time after which the floor is half as high. After a minute of a full pool, a sender needs to wait only a few
/// minutes.
const HALF_LIFE: Duration = Duration::from_secs(60);

/// The least tip that a newcomer must offer. Every eviction raises it to the tip of the evicted transaction. So an
/// attacker that fills the pool to drive others out must pay for each transaction as much as the evicted ones had
/// offered. The price does not fall as soon as a batch makes room, but decays.
#[derive(Clone, Copy, Debug)]
pub(super) struct TipFloor {
    wei: u128,
    at: Instant,
}

impl TipFloor {
    pub(super) fn new(now: Instant) -> TipFloor {
        TipFloor { wei: 0, at: now }
    }

    /// Wei per gas now.
    pub(super) fn wei(&self, now: Instant) -> u128 {
        let half_life_ms = HALF_LIFE.as_millis();
        let elapsed_ms = now.saturating_duration_since(self.at).as_millis();
        let halved =
            u32::try_from(elapsed_ms / half_life_ms).ok().and_then(|halvings| self.wei.checked_shr(halvings));
        let halved = halved.unwrap_or(0);
        // A straight line from one halving to the next.
        halved - (halved / 2).saturating_mul(elapsed_ms % half_life_ms) / half_life_ms
    }

    /// Raises the floor to the tip of an evicted transaction.
    pub(super) fn raise(&mut self, evicted_wei: u128, now: Instant) {
        *self = TipFloor { wei: self.wei(now).max(evicted_wei), at: now };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the floor follows the evicted tips, halves in a minute and ends at zero.
    #[test]
    fn the_floor_decays() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut floor = TipFloor::new(begun);
        assert_eq!(floor.wei(at(5)), 0);
        floor.raise(1_000_000_000, begun);
        floor.raise(7, begun);
        assert_eq!(floor.wei(begun), 1_000_000_000);
        assert_eq!(floor.wei(at(60)), 500_000_000);
        assert!((749_000_000..752_000_000).contains(&floor.wei(at(30))));
        assert_eq!(floor.wei(at(60 * 31)), 0);
        assert_eq!(floor.wei(at(u64::from(u32::MAX))), 0);
        floor.raise(3, at(120));
        assert_eq!(floor.wei(at(120)), 250_000_000);
    }
}
