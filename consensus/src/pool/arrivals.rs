//! Keeps the pool's latest arrivals for pollers: their hashes, and the newest transactions whole.

use std::collections::VecDeque;

use alloy_primitives::B256;

/// Hashes that are kept, 2 MiB: some seconds of the heaviest load, minutes of an ordinary one.
const ARRIVALS_MAX: usize = 65_536;
/// Approximate bound of the memory of whole transactions, in bytes. They may have left the pool when somebody asks for
/// them.
const WHOLE_BYTES_MAX: usize = 8 << 20;
/// Memory of one transaction in addition to its envelope, which is held once raw and once decoded.
const WHOLE_BYTES_BESIDE: usize = 1 << 10;

/// The last arrivals, in order, under consecutive numbers.
#[derive(Debug)]
pub(super) struct Arrivals<T> {
    kept: VecDeque<B256>,
    /// The last arrivals whole, each with its weight.
    whole: VecDeque<(T, usize)>,
    whole_bytes: usize,
    /// All arrivals since the start.
    count: u64,
}

impl<T> Default for Arrivals<T> {
    fn default() -> Self {
        Self { kept: VecDeque::new(), whole: VecDeque::new(), whole_bytes: 0, count: 0 }
    }
}

impl<T: Clone> Arrivals<T> {
    /// Adds an arrival whose envelope has `envelope_bytes` bytes.
    pub(super) fn push(&mut self, hash: B256, envelope_bytes: usize, transaction: T) {
        if self.kept.len() == ARRIVALS_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(hash);
        self.count += 1;
        let weight = WHOLE_BYTES_BESIDE + 2 * envelope_bytes;
        self.whole.push_back((transaction, weight));
        self.whole_bytes += weight;
        while self.whole_bytes > WHOLE_BYTES_MAX
            && let Some((_, weight)) = self.whole.pop_front()
        {
            self.whole_bytes -= weight;
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Returns at most `max` hashes from a number on, and the number after the last. Skips forgotten hashes.
    pub(super) fn since(&self, number: u64, max: usize) -> (Vec<B256>, u64) {
        let first_kept = self.count - self.kept.len() as u64;
        let from = number.clamp(first_kept, self.count);
        let hashes: Vec<B256> = self.kept.range((from - first_kept) as usize..).take(max).copied().collect();
        let after = from + hashes.len() as u64;
        (hashes, after)
    }

    /// Returns at most `max` transactions from a number on, or `None` if one of them is forgotten.
    pub(super) fn whole_since(&self, number: u64, max: usize) -> Option<Vec<T>> {
        let first_kept = self.count - self.whole.len() as u64;
        let skipped = number.min(self.count).checked_sub(first_kept)?;
        let kept = self.whole.range(skipped as usize..).take(max);
        Some(kept.map(|(transaction, _)| transaction.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::U256;

    use super::*;

    fn hashes(range: std::ops::Range<usize>) -> Vec<B256> {
        range.map(|number| B256::from(U256::from(number))).collect()
    }

    /// Goal: every arrival is reported once and in order, in parts. A late caller gets the part that is kept.
    #[test]
    fn arrivals_are_told_once_and_in_order() {
        let mut arrivals = Arrivals::default();
        assert_eq!(arrivals.since(0, 10), (vec![], 0));
        hashes(0..5).into_iter().for_each(|hash| arrivals.push(hash, 100, ()));
        assert_eq!(arrivals.since(0, 3), (hashes(0..3), 3));
        assert_eq!(arrivals.since(3, 3), (hashes(3..5), 5));
        assert_eq!(arrivals.since(5, 3), (vec![], 5));
        hashes(5..ARRIVALS_MAX + 2).into_iter().for_each(|hash| arrivals.push(hash, 100, ()));
        assert_eq!(arrivals.since(0, 2), (hashes(2..4), 4));
        assert_eq!(arrivals.since(5, usize::MAX), (hashes(5..ARRIVALS_MAX + 2), ARRIVALS_MAX as u64 + 2));
    }

    /// Goal: whole transactions are kept in order, within their bytes. A late caller learns that it is late, and gets
    /// none of them.
    #[test]
    fn whole_transactions_are_bounded_in_bytes() {
        let mut arrivals = Arrivals::default();
        assert_eq!(arrivals.whole_since(0, 10), Some(vec![]));
        let envelope_bytes = (WHOLE_BYTES_MAX / 4 - WHOLE_BYTES_BESIDE) / 2;
        (0..3).for_each(|number| arrivals.push(B256::ZERO, envelope_bytes, number));
        assert_eq!(arrivals.whole_since(0, 2), Some(vec![0, 1]));
        assert_eq!(arrivals.whole_since(2, 2), Some(vec![2]));
        (3..6).for_each(|number| arrivals.push(B256::ZERO, envelope_bytes, number));
        assert_eq!(arrivals.whole_since(1, 9), None, "2 to 5 are four quarters");
        assert_eq!(arrivals.whole_since(2, 9), Some(vec![2, 3, 4, 5]));
        assert_eq!(arrivals.whole_since(6, 9), Some(vec![]));
        arrivals.push(B256::ZERO, WHOLE_BYTES_MAX, 6);
        assert_eq!((arrivals.whole_since(6, 9), arrivals.whole_bytes), (None, 0), "longer than all room");
        assert_eq!(arrivals.whole_since(7, 9), Some(vec![]));
    }
}
