//! [`Pace`]: how much of a batch fits into the time that a view allows.
//!
//! Gas says little about time: the same gas is 10 ms of additions or 1.5 s of modular exponentiation. A primary that orders more than the
//! validators can execute in time loses its view, and the next one would order the same. So a build is bound by the clock, the
//! [`BuildTimer`](super::build_timer::BuildTimer):
//!
//! * *The target* is the time that a batch's transactions may take. It falls at once when a quorum was slow, or when patience ran out,
//!   and grows by a quarter with each batch that fills it.
//! * *Prices* are the time that each called contract took here, for the gas that it might use. By their price, heavy
//!   transactions leave half of each batch to light ones.
//! * *The deadline* interrupts a transaction. One that had the time of a whole batch three times, and did not end, leaves the pool.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use alloy_primitives::{Address, B256};
use slipstream_executor::Transaction;
use slipstream_types::{BatchNumber, ValidatorSet};

/// Divisor: the share of the present patience that a build may take, as well as the execution at a quorum. In a view's
/// first batch, order, execution and three rounds of messages follow one another.
pub(super) const PATIENCE_SHARE: u32 = 4;
/// Least target: below it a batch's own costs outweigh its transactions.
const TARGET_MIN: Duration = Duration::from_millis(30);
/// Price of gas of an unknown contract: MODEXP at the prices before EIP-7883, which is the slowest known, takes 90 ns.
const UNKNOWN_NS_PER_GAS: f64 = 100.0;
/// Gas limit up to which a transaction gets no price of its own: 5 ms at worst.
pub(super) const LIGHT_GAS_MAX: u64 = 50_000;
/// Interruptions after which a transaction that had a whole batch's time counts as too slow: the machine may have been
/// busy.
pub(super) const STRIKES_MAX: u8 = 3;
/// Maximum number of prices, and most strikes, that are remembered. Filling either costs its sender fees, and only makes this
/// validator forget.
const REMEMBERED_MAX: usize = 4_096;
/// Maximum number of own batches whose executors are awaited.
const AWAITED_MAX: usize = 16;

/// What a validator has learned of the time that batches take.
#[derive(Debug)]
pub(super) struct Pace {
    /// Executors that make a quorum.
    quorum: usize,
    /// Executors that may lie. That number of the longest times is ignored.
    liars: usize,
    pub(super) target: Duration,
    prices: HashMap<Address, f64>,
    pub(super) strikes: HashMap<B256, u8>,
    /// Whether the last batch had an overlong transaction: the next one has none, so that others get in.
    pub(super) rests: bool,
    /// How long the last batches took here, from the beginning of their execution to their outcome.
    took: BTreeMap<BatchNumber, Duration>,
    /// Own batches: how long each took here, and at each other executor that reported its time.
    awaited: BTreeMap<BatchNumber, (Duration, BTreeMap<u16, Duration>)>,
}

impl Pace {
    pub(super) fn new(view_timeout: Duration, set: &ValidatorSet) -> Pace {
        Pace {
            quorum: set.quorum(),
            liars: set.failures.commission.into(),
            target: (view_timeout / PATIENCE_SHARE / 2).max(TARGET_MIN),
            prices: HashMap::new(),
            strikes: HashMap::new(),
            rests: false,
            took: BTreeMap::new(),
            awaited: BTreeMap::new(),
        }
    }

    /// Notes how long a batch took here; `is_own` if this validator built it.
    pub(super) fn executed(&mut self, number: BatchNumber, took: Duration, is_own: bool) {
        self.took.insert(number, took);
        if self.took.len() > AWAITED_MAX {
            self.took.pop_first();
        }
        if is_own {
            self.awaited.insert(number, (took, BTreeMap::new()));
            if self.awaited.len() > AWAITED_MAX {
                self.awaited.pop_first();
            }
        }
    }

    /// How long the batch took here, in milliseconds; 0 if that is not known.
    pub(super) fn took_ms(&self, number: BatchNumber) -> u32 {
        self.took.get(&number).map_or(0, |took| u32::try_from(took.as_millis()).unwrap_or(u32::MAX))
    }

    /// Notes how long another validator took for a batch. Once a quorum has reported, the slowest without the `liars`
    /// longest sets the pace.
    pub(super) fn heard(&mut self, seat: u16, number: BatchNumber, took: Duration, patience: Duration) {
        let Some((own, told)) = self.awaited.get_mut(&number) else { return };
        told.insert(seat, took);
        if told.len() + 1 < self.quorum {
            return;
        }
        let own = *own;
        let mut times: Vec<_> = told.values().copied().chain([own]).collect();
        times.sort_unstable();
        let slowest = times[(self.quorum - 1).saturating_sub(self.liars)];
        self.awaited.remove(&number);
        let most = deadline(patience);
        if slowest > most {
            let bearable = own.mul_f64(most.as_secs_f64() / slowest.as_secs_f64());
            self.target = self.target.min(bearable).max(TARGET_MIN);
        } else if own >= self.target / 2 {
            self.target = (self.target * 5 / 4).min(most);
        }
    }

    /// Halves the target: no batch was decided within this validator's patience.
    pub(super) fn ran_out(&mut self) {
        self.target = (self.target / 2).max(TARGET_MIN);
    }

    pub(super) fn expected(&self, transaction: &Transaction) -> Duration {
        let gas = transaction.gas_limit();
        let price = match gas {
            ..=LIGHT_GAS_MAX => UNKNOWN_NS_PER_GAS,
            _ => *self.prices.get(&callee(transaction)).unwrap_or(&UNKNOWN_NS_PER_GAS),
        };
        Duration::from_nanos((gas as f64 * price) as u64)
    }

    /// Learns a contract's price from the time that a transaction took. The price is per gas of the limit, because
    /// wallets set limits of many times what is used. By the gas that was used, such a transaction would be expected to
    /// take many times what it takes. A higher price counts at once, a lower one bit by bit.
    pub(super) fn learn(&mut self, transaction: &Transaction, took: Duration) {
        let gas = transaction.gas_limit();
        if gas <= LIGHT_GAS_MAX {
            return;
        }
        if self.prices.len() >= REMEMBERED_MAX {
            self.prices.clear();
        }
        let found = took.as_nanos() as f64 / gas as f64;
        let price = self.prices.entry(callee(transaction)).or_insert(found);
        *price = if found > *price { found } else { *price - (*price - found) / 8.0 };
    }

    /// Counts a transaction that did not end within a whole batch's time. Returns whether it is too slow.
    pub(super) fn strike(&mut self, hash: B256) -> bool {
        if self.strikes.len() >= REMEMBERED_MAX {
            self.strikes.clear();
        }
        let strikes = self.strikes.entry(hash).or_default();
        *strikes += 1;
        let is_out = *strikes >= STRIKES_MAX;
        if is_out {
            self.strikes.remove(&hash);
        }
        is_out
    }
}

/// When a transaction is interrupted, counted from the beginning of its batch.
pub(super) fn deadline(patience: Duration) -> Duration {
    (patience / PATIENCE_SHARE).max(TARGET_MIN)
}

/// The contract that prices a transaction's gas. All contract creations share one price.
fn callee(transaction: &Transaction) -> Address {
    transaction.to().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::genesis;

    const PATIENCE: Duration = Duration::from_millis(2_000);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Goal: the target falls at once to what the slowest of a quorum bears, whatever its liars say, and grows slowly.
    /// Of seven validators two may fail, and lie: five are a quorum, and its two slowest do not count.
    #[test]
    fn the_target_follows_the_slowest_of_a_quorum() {
        let mut pace = Pace::new(PATIENCE, &genesis(7).validator_set());
        assert_eq!(pace.target, ms(250));
        let mut round = |number: u64, own: u64, others: [u64; 4]| {
            let number = BatchNumber::new(number);
            pace.executed(number, ms(own), true);
            // Repeated reports of one validator make no quorum.
            (0..9).for_each(|_| pace.heard(0, number, ms(others[0]), PATIENCE));
            let others = (0..).zip(others);
            others.for_each(|(seat, other)| pace.heard(seat, number, ms(other), PATIENCE));
            pace.target
        };
        assert_eq!(
            round(1, 100, [100, 100, 100, 100]),
            ms(250),
            "a batch that fills little of it says nothing"
        );
        assert_eq!(round(2, 200, [60_000, 60_000, 1_000, 900]), ms(100), "a quorum took five times as long");
        assert_eq!(round(3, 100, [60_000, 60_000, 500, 400]), ms(125));
        assert_eq!(round(4, 125, [60_000, 60_000, 2, 3]).as_micros(), 156_250);
        for number in 5..40 {
            round(number, 500, [1, 1, 1, 1]);
        }
        assert_eq!(round(40, 500, [1, 1, 1, 1]), ms(500), "a share of the patience is the most");
        pace.ran_out();
        assert_eq!(pace.target, ms(250));
        (0..20).for_each(|_| pace.ran_out());
        assert_eq!(pace.target, TARGET_MIN);
        assert_eq!(pace.took_ms(BatchNumber::new(40)), 500);
        assert_eq!(pace.took_ms(BatchNumber::new(7)), 0, "long ago");
    }

    /// Goal: times of batches that this validator did not build, or reported before, change nothing.
    #[test]
    fn strange_times_count_for_nothing() {
        let mut pace = Pace::new(PATIENCE, &genesis(7).validator_set());
        pace.executed(BatchNumber::new(1), ms(100), false);
        for seat in 0..5 {
            pace.heard(seat, BatchNumber::new(1), ms(60_000), PATIENCE);
            pace.heard(seat, BatchNumber::new(2), ms(60_000), PATIENCE);
        }
        assert_eq!(pace.target, ms(250));
    }
}
