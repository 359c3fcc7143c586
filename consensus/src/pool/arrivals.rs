//! The hashes of what reached the pool last, for those who ask now and then what is new.

use std::collections::VecDeque;

use alloy_primitives::B256;

/// Hashes that are kept, 2 MiB: some seconds of the heaviest load, minutes of an ordinary one.
const ARRIVALS_MAX: usize = 65_536;

/// The last arrivals, in order, under consecutive numbers.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    kept: VecDeque<B256>,
    /// All that there ever were.
    count: u64,
}

impl Arrivals {
    pub(super) fn push(&mut self, hash: B256) {
        if self.kept.len() == ARRIVALS_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(hash);
        self.count += 1;
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// At most `max` from a number on, and the number behind them. What is no longer kept is left out.
    pub(super) fn since(&self, number: u64, max: usize) -> (Vec<B256>, u64) {
        let first_kept = self.count - self.kept.len() as u64;
        let from = number.clamp(first_kept, self.count);
        let hashes: Vec<B256> = self.kept.range((from - first_kept) as usize..).take(max).copied().collect();
        let after = from + hashes.len() as u64;
        (hashes, after)
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::U256;

    use super::*;

    fn hashes(range: std::ops::Range<usize>) -> Vec<B256> {
        range.map(|number| B256::from(U256::from(number))).collect()
    }

    /// Goal: everything is told once and in order, in parts; who comes too late gets what is kept.
    #[test]
    fn arrivals_are_told_once_and_in_order() {
        let mut arrivals = Arrivals::default();
        assert_eq!(arrivals.since(0, 10), (vec![], 0));
        hashes(0..5).into_iter().for_each(|hash| arrivals.push(hash));
        assert_eq!(arrivals.since(0, 3), (hashes(0..3), 3));
        assert_eq!(arrivals.since(3, 3), (hashes(3..5), 5));
        assert_eq!(arrivals.since(5, 3), (vec![], 5));
        hashes(5..ARRIVALS_MAX + 2).into_iter().for_each(|hash| arrivals.push(hash));
        assert_eq!(arrivals.since(0, 2), (hashes(2..4), 4));
        assert_eq!(arrivals.since(5, usize::MAX), (hashes(5..ARRIVALS_MAX + 2), ARRIVALS_MAX as u64 + 2));
    }
}
