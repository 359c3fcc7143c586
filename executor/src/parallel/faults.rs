//! [`InjectedFaults`]: injects concurrency bugs, to test whether replicas mask them. A node injects none: only code
//! that makes its own [`Workers`](super::Workers) can add them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use alloy_primitives::B256;

use crate::evm::ConcurrencyBug;

/// Injects a [`ConcurrencyBug`] at a rate. Spares transactions that ran ahead and whose reads hold, and everything that
/// runs on one thread.
#[derive(Debug)]
pub struct InjectedFaults {
    bug: ConcurrencyBug,
    /// Share of transactions that go wrong, out of 2^32.
    rate: u64,
    seed: u64,
    /// Whether a transaction's hash alone decides if the transaction goes wrong; otherwise chance decides each time.
    by_transaction: bool,
    /// Number of conflicting transactions that ran side by side, and number of these that went wrong.
    met: AtomicU64,
    struck: AtomicU64,
}

impl InjectedFaults {
    /// Spoils a share `rate` of the conflicting transactions that run side by side; the seed decides which.
    pub fn new(bug: ConcurrencyBug, rate: f64, seed: u64) -> InjectedFaults {
        let rate = (rate.clamp(0.0, 1.0) * (1u64 << 32) as f64) as u64;
        InjectedFaults { bug, rate, seed, by_transaction: false, met: 0.into(), struck: 0.into() }
    }

    /// As [`InjectedFaults::new`], but deterministic: if two instances with equal seeds run the same conflicting transaction,
    /// both fail or both succeed.
    pub fn alike(bug: ConcurrencyBug, rate: f64, seed: u64) -> InjectedFaults {
        InjectedFaults { by_transaction: true, ..InjectedFaults::new(bug, rate, seed) }
    }

    /// Returns the number of conflicting transactions that ran side by side so far, and the number of these that went
    /// wrong.
    pub fn counts(&self) -> (u64, u64) {
        (self.met.load(Relaxed), self.struck.load(Relaxed))
    }

    /// The bug that spoils this transaction now, or `None`.
    pub(super) fn strike(&self, hash: &B256) -> Option<ConcurrencyBug> {
        let met = self.met.fetch_add(1, Relaxed);
        let step = if self.by_transaction {
            hash.0.first_chunk().map_or(0, |it| u64::from_le_bytes(*it))
        } else {
            met
        };
        // SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
        let state = self.seed.wrapping_add(step.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let strikes = ((mixed ^ (mixed >> 31)) >> 32) < self.rate;
        self.struck.fetch_add(u64::from(strikes), Relaxed);
        strikes.then_some(self.bug)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_that_are_alike_strike_the_same_transactions() {
        let struck = |seed| {
            let faults = InjectedFaults::alike(ConcurrencyBug::TornRead, 0.25, seed);
            // In any order, and any number of times.
            let hashes = (0..2_000u16).rev().map(|index| alloy_primitives::keccak256(index.to_le_bytes()));
            let struck: Vec<B256> = hashes.filter(|hash| faults.strike(hash).is_some()).collect();
            assert!(struck.iter().all(|hash| faults.strike(hash).is_some()));
            struck
        };
        assert_eq!(struck(1), struck(1));
        assert_ne!(struck(1), struck(2));
        assert!((400..600).contains(&struck(1).len()));
    }

    #[test]
    fn faults_strike_at_their_rate() {
        for (rate, least, most) in [(0.0, 0, 0), (0.25, 2_300, 2_700), (1.0, 10_000, 10_000)] {
            let faults = InjectedFaults::new(ConcurrencyBug::LostUpdate, rate, 7);
            let struck = (0..10_000).filter(|_| faults.strike(&B256::ZERO).is_some()).count() as u64;
            assert!((least..=most).contains(&struck), "{rate}: {struck}");
            assert_eq!(faults.counts(), (10_000, struck));
        }
    }
}
