//! The measurements: the [`Waits`] of honest transfers, and the [`Gaps`] between batches.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use alloy_primitives::B256;

/// The waits of honest transfers.
#[derive(Default)]
pub(super) struct Waits {
    pub(super) open: HashMap<B256, Instant>,
    pub(super) took_s: Vec<f64>,
}

impl Waits {
    pub(super) fn committed(&mut self, hashes: &[B256], now: Instant) {
        let ended = hashes.iter().filter_map(|hash| self.open.remove(hash));
        self.took_s.extend(ended.map(|sent| (now - sent).as_secs_f64()));
    }
}

/// The longest times without a batch.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Gaps {
    pub(super) quiet: Duration,
    pub(super) attacked: Duration,
}

impl Gaps {
    /// Notes a time without a batch; one that reaches into the attack counts towards the attack.
    pub(super) fn note(&mut self, since: Instant, now: Instant, attack: Instant) {
        let longest = if now < attack { &mut self.quiet } else { &mut self.attacked };
        *longest = (now - since).max(*longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_count_to_the_attack_that_they_reach_into() {
        let (mut gaps, begin) = (Gaps::default(), Instant::now());
        let at = |ms| begin + Duration::from_millis(ms);
        for (since, now) in [(0, 700), (700, 900), (800, 1_300), (1_300, 1_400)] {
            gaps.note(at(since), at(now), at(1_000));
        }
        let expected = Gaps { quiet: Duration::from_millis(700), attacked: Duration::from_millis(500) };
        assert_eq!(gaps, expected);
    }

    #[test]
    fn waits_end_with_the_batch_that_has_them() {
        let (mut waits, begin) = (Waits::default(), Instant::now());
        let hashes = [1, 2, 3].map(B256::repeat_byte);
        for hash in &hashes[..2] {
            waits.open.insert(*hash, begin);
        }
        waits.committed(&hashes[1..], begin + Duration::from_secs(2));
        assert_eq!((waits.took_s, waits.open.len()), (vec![2.0], 1));
    }
}
