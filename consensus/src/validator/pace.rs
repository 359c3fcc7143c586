//! [`Pace`]: how much of a batch fits the time that a view allows.
//!
//! Gas says little about time: the same gas is 10 ms of additions or 1.5 s of modular exponentiation. A primary that orders more than the
//! validators can execute in time loses its view, and the next one would order the same. So a build is bound by the clock:
//!
//! * *The target* is the time that a batch's transactions may take. It falls at once when a quorum was slow, or when patience ran out,
//!   and grows by a quarter with each batch that fills it.
//! * *Prices* are what the gas of each called contract took here. By them heavy transactions leave half of each batch to light ones.
//! * *The deadline* interrupts a transaction. One that had the time of a whole batch three times, and did not end, leaves the pool.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use alloy_primitives::{Address, B256};
use parking_lot::Mutex;
use slipstream_executor::{BuildClock, Interrupt, Transaction};
use slipstream_types::{BatchNumber, ValidatorSet};
use tokio::time::Instant;

/// The share of the present patience that a build may take, and the execution at a quorum, as a divisor: order, execution and three
/// rounds of messages come one after the other in a view's first batch.
const PATIENCE_SHARE: u32 = 4;
/// Least target: below it a batch's own costs outweigh its transactions.
const TARGET_MIN: Duration = Duration::from_millis(30);
/// Price of gas that was never seen: MODEXP at the prices before EIP-7883, which is the slowest known, takes 90 ns.
const UNKNOWN_NS_PER_GAS: f64 = 100.0;
/// Gas that is not worth a price of its own: 5 ms at worst.
pub(super) const LIGHT_GAS_MAX: u64 = 50_000;
/// A transaction is heavy that is expected to take more than this share of the target, as a divisor.
const HEAVY_SHARE: u32 = 8;
/// A transaction had a whole batch's time if it began within this share of the deadline, as a divisor.
const BEGINNING_SHARE: u32 = 8;
/// How often a transaction is interrupted that had a whole batch's time before it counts as too slow: the machine may have been busy.
const STRIKES_MAX: u8 = 3;
/// Prices and strikes that are remembered. Filling either costs its sender fees, and only makes this validator forget.
const REMEMBERED_MAX: usize = 4_096;
/// Own batches whose executors are awaited.
const AWAITED_MAX: usize = 16;

/// What a validator has learned of the time that batches take.
#[derive(Debug)]
pub(super) struct Pace {
    /// Executors that make a quorum.
    quorum: usize,
    /// Executors that may lie. That number of the longest times is ignored.
    liars: usize,
    target: Duration,
    prices: HashMap<Address, f64>,
    strikes: HashMap<B256, u8>,
    /// The last batch had an overlong transaction: the next one has none, so that others get in.
    rests: bool,
    /// How long the last batches took here, from the beginning of their execution to their outcome.
    took: BTreeMap<BatchNumber, Duration>,
    /// Own batches: how long they took here, and each other executor that told its time.
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

    /// A batch was executed here in that time; `is_own` if this validator made it.
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

    /// Another validator executed a batch in that time. Once a quorum has, its slowest that cannot all be liars sets the pace.
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

    /// No batch was decided for as long as this validator is patient.
    pub(super) fn ran_out(&mut self) {
        self.target = (self.target / 2).max(TARGET_MIN);
    }

    fn expected(&self, transaction: &Transaction) -> Duration {
        let gas = transaction.gas_limit();
        let price = match gas {
            ..=LIGHT_GAS_MAX => UNKNOWN_NS_PER_GAS,
            _ => *self.prices.get(&callee(transaction)).unwrap_or(&UNKNOWN_NS_PER_GAS),
        };
        Duration::from_nanos((gas as f64 * price) as u64)
    }

    /// Gas of that contract took so long. Dearer is believed at once, cheaper by and by.
    fn learn(&mut self, transaction: &Transaction, gas: u64, took: Duration) {
        if transaction.gas_limit() <= LIGHT_GAS_MAX {
            return;
        }
        if self.prices.len() >= REMEMBERED_MAX {
            self.prices.clear();
        }
        let found = took.as_nanos() as f64 / gas.max(1) as f64;
        let price = self.prices.entry(callee(transaction)).or_insert(found);
        *price = if found > *price { found } else { *price - (*price - found) / 8.0 };
    }

    /// Counts a transaction that did not end within a whole batch's time. Says whether it is too slow.
    fn strike(&mut self, hash: B256) -> bool {
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

/// When a transaction is interrupted, after its batch was begun.
fn deadline(patience: Duration) -> Duration {
    (patience / PATIENCE_SHARE).max(TARGET_MIN)
}

/// Whose price a transaction's gas has: all that make contracts share one.
fn callee(transaction: &Transaction) -> Address {
    transaction.to().unwrap_or_default()
}

/// Stops the work that nobody waits for any more.
#[derive(Clone, Default, Debug)]
pub(super) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(super) fn stop(&self) {
        self.0.store(true, Relaxed);
    }

    pub(super) fn interrupt(&self) -> Interrupt {
        let stop = self.clone();
        Interrupt::when(move || stop.is_stopped())
    }

    fn is_stopped(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// The clock of one build, which begins with it.
pub(super) struct BuildTimer {
    pace: Arc<Mutex<Pace>>,
    stop: Stop,
    begun: Instant,
    target: Duration,
    deadline: Duration,
    /// Whether a transaction may begin that takes more than the half of a batch that heavy ones share.
    allows_overlong: bool,
    had_overlong: bool,
    /// What heavy transactions took so far.
    heavy: Duration,
    current: Current,
    too_slow: Vec<B256>,
}

#[derive(Clone, Copy, Default)]
struct Current {
    at: Duration,
    is_heavy: bool,
}

impl BuildTimer {
    /// Begins to count for a build that has a share of that patience.
    pub(super) fn new(pace: Arc<Mutex<Pace>>, stop: Stop, patience: Duration) -> BuildTimer {
        let deadline = deadline(patience);
        let (target, allows_overlong) = {
            let pace = pace.lock();
            (pace.target.min(deadline), !pace.rests)
        };
        BuildTimer {
            pace,
            stop,
            begun: Instant::now(),
            target,
            deadline,
            allows_overlong,
            had_overlong: false,
            heavy: Duration::ZERO,
            current: Current::default(),
            too_slow: Vec::new(),
        }
    }

    /// The transactions that will never be in a batch, because they take too long.
    pub(super) fn finish(self) -> Vec<B256> {
        self.pace.lock().rests = self.had_overlong;
        self.too_slow
    }

    /// The build's transactions begin now.
    pub(super) fn start(&mut self) {
        self.begun = Instant::now();
    }

    fn failed_to_end(&mut self, transaction: &Transaction) {
        let had_all = self.current.at <= self.deadline / BEGINNING_SHARE;
        if had_all && self.pace.lock().strike(transaction.hash) {
            self.too_slow.push(transaction.hash);
        }
    }
}

impl BuildClock for BuildTimer {
    fn interrupt(&self) -> Interrupt {
        let (stop, begun, deadline) = (self.stop.clone(), self.begun, self.deadline);
        Interrupt::when(move || stop.is_stopped() || begun.elapsed() > deadline)
    }

    fn is_open(&self) -> bool {
        self.begun.elapsed() < self.target
    }

    fn begin(&mut self, transaction: &Transaction) -> bool {
        let (at, expected) = (self.begun.elapsed(), self.pace.lock().expected(transaction));
        let is_heavy = expected > self.target / HEAVY_SHARE;
        self.current = Current { at, is_heavy };
        let is_within = self.heavy + expected <= self.target / 2 && at + expected <= self.target;
        if !is_heavy || is_within {
            return true;
        }
        let is_time = at + expected <= self.deadline || at <= self.deadline / BEGINNING_SHARE;
        let is_its_turn = self.allows_overlong && !self.had_overlong && is_time;
        self.had_overlong |= is_its_turn;
        is_its_turn
    }

    fn end(&mut self, transaction: &Transaction, gas_used: u64) -> bool {
        let now = self.begun.elapsed();
        let took = now - self.current.at;
        self.pace.lock().learn(transaction, gas_used, took);
        if self.current.is_heavy {
            self.heavy += took;
        }
        // One precompile runs to its end, however long.
        let is_in_time = now <= self.deadline;
        if !is_in_time {
            self.failed_to_end(transaction);
        }
        is_in_time
    }

    fn interrupted(&mut self, transaction: &Transaction) -> bool {
        if self.stop.is_stopped() {
            return false;
        }
        let took = self.begun.elapsed() - self.current.at;
        self.pace.lock().learn(transaction, transaction.gas_limit(), took);
        self.failed_to_end(transaction);
        true
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::testing::{Account, genesis};

    const PATIENCE: Duration = Duration::from_millis(2_000);
    const GAS: u64 = 10_000_000;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn pace() -> Arc<Mutex<Pace>> {
        Arc::new(Mutex::new(Pace::new(PATIENCE, &genesis(7).validator_set())))
    }

    fn timer(pace: &Arc<Mutex<Pace>>) -> BuildTimer {
        BuildTimer::new(Arc::clone(pace), Stop::default(), PATIENCE)
    }

    fn transaction(nonce: u64, gas: u64) -> Transaction {
        Account::new(0).transfer_with_gas(nonce, 1, gas)
    }

    /// Goal: the target falls at once to what the slowest of a quorum bears, whatever liars in it say, and grows slowly. Of seven two may
    /// fail, and lie: five are a quorum, and its two slowest count for nothing.
    #[test]
    fn the_target_follows_the_slowest_of_a_quorum() {
        let mut pace = Pace::new(PATIENCE, &genesis(7).validator_set());
        assert_eq!(pace.target, ms(250));
        let mut round = |number: u64, own: u64, others: [u64; 4]| {
            let number = BatchNumber::new(number);
            pace.executed(number, ms(own), true);
            // Repeating itself makes nobody a quorum.
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

    /// Goal: what others tell of batches that this validator did not make, or told before, changes nothing.
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

    /// Goal: gas that nobody has seen may begin only where it has a whole batch's time. Once its price is known, as much of it begins as
    /// leaves half of the batch to light transactions, and more of it in no two batches one after the other.
    #[tokio::test(start_paused = true)]
    async fn heavy_transactions_leave_room() {
        let pace = pace();
        let mut first = timer(&pace);
        assert!(first.begin(&transaction(0, GAS)), "unknown, and the first");
        advance(ms(40)).await;
        assert!(first.end(&transaction(0, GAS), GAS));
        assert!(first.begin(&transaction(1, 21_000)), "light ones always may");
        assert!(first.end(&transaction(1, 21_000), 21_000));
        assert!(first.begin(&transaction(2, GAS)), "its price is known: 40 ms");
        advance(ms(40)).await;
        assert!(first.end(&transaction(2, GAS), GAS));
        assert!(first.begin(&transaction(3, GAS)));
        advance(ms(40)).await;
        assert!(first.end(&transaction(3, GAS), GAS));
        assert!(!first.begin(&transaction(4, GAS)), "beyond the half of heavy ones, and late");
        assert!(first.is_open());
        advance(ms(130)).await;
        assert!(!first.is_open());
        assert_eq!(first.finish(), [] as [B256; 0]);

        let mut second = timer(&pace);
        assert!(!second.begin(&transaction(0, 5 * GAS)), "the batch before had an overlong one");
        second.finish();
        let mut third = timer(&pace);
        assert!(third.begin(&transaction(0, 5 * GAS)));
        advance(ms(450)).await;
        assert!(third.end(&transaction(0, 5 * GAS), 5 * GAS), "it had time until the deadline");
        assert!(!third.is_open());
    }

    /// Goal: a transaction that three times has a whole batch's time and does not end is told of, once. One that began late is not.
    #[tokio::test(start_paused = true)]
    async fn what_never_fits_is_told_of() {
        let pace = pace();
        let endless = transaction(0, GAS);
        for round in 1..=3 {
            let mut late = timer(&pace);
            assert!(late.begin(&transaction(1, 21_000)));
            advance(ms(200)).await;
            assert!(!late.begin(&endless), "there is no time for it");
            late.finish();
            let mut timer = timer(&pace);
            let interrupt = timer.interrupt();
            assert!(timer.begin(&endless) && !interrupt.is_due());
            advance(ms(501)).await;
            assert!(interrupt.is_due() && timer.interrupted(&endless));
            let expected = if round == 3 { vec![endless.hash] } else { Vec::new() };
            assert_eq!(timer.finish(), expected, "{round}");
        }
        assert!(pace.lock().strikes.is_empty());
    }

    /// Goal: work that nobody waits for ends, and no transaction is blamed for it.
    #[tokio::test(start_paused = true)]
    async fn a_stop_blames_nobody() {
        let (pace, stop) = (pace(), Stop::default());
        for _ in 0..STRIKES_MAX {
            // An overlong transaction has every second batch.
            timer(&pace).finish();
            let mut timer = BuildTimer::new(Arc::clone(&pace), stop.clone(), PATIENCE);
            let interrupt = timer.interrupt();
            assert!(timer.begin(&transaction(0, GAS)));
            stop.stop();
            assert!(interrupt.is_due() && !timer.interrupted(&transaction(0, GAS)));
            assert_eq!(timer.finish(), [] as [B256; 0]);
        }
        assert!(pace.lock().strikes.is_empty());
    }
}
