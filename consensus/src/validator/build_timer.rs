//! [`BuildTimer`]: the clock of one build. It ends the build before the batch is more than other validators can bear.

use std::{slice, sync::Arc, time::Duration};

use alloy_primitives::B256;
use parking_lot::Mutex;
use slipstream_executor::{BuildClock, Interrupt, Transaction};
use tokio::time::Instant;

use super::{
    pace::{Pace, deadline},
    stop::Stop,
};
use crate::seams::{Seams, Work};

/// Divisor: a transaction is heavy if it is expected to take more than this share of the target.
const HEAVY_SHARE: u32 = 8;
/// Divisor: a transaction had a whole batch's time if it began within this share of the deadline.
const BEGINNING_SHARE: u32 = 8;
/// The step of the simulated clock, which puts a transaction past its deadline.
const CLOCK_STEP: Duration = Duration::from_micros(1);

/// The clock of one build, which begins with it.
pub(super) struct BuildTimer {
    pace: Arc<Mutex<Pace>>,
    stop: Stop,
    seams: Seams,
    begun: Instant,
    target: Duration,
    deadline: Duration,
    /// Whether this build may begin a transaction that exceeds the half of a batch that heavy ones share.
    allows_overlong: bool,
    had_overlong: bool,
    /// Time that heavy transactions took so far.
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
    /// Begins to count for a build that may take a share of `patience`.
    pub(super) fn new(pace: Arc<Mutex<Pace>>, stop: Stop, seams: Seams, patience: Duration) -> BuildTimer {
        let deadline = deadline(patience);
        let (target, allows_overlong) = {
            let pace = pace.lock();
            (pace.target.min(deadline), !pace.rests)
        };
        BuildTimer {
            pace,
            stop,
            seams,
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

    /// Returns the transactions that will never be in a batch, because they take too long.
    pub(super) fn finish(self) -> Vec<B256> {
        self.pace.lock().rests = self.had_overlong;
        self.too_slow
    }

    /// Starts the time of the build's transactions.
    pub(super) fn start(&mut self) {
        self.begun = Instant::now();
    }

    fn elapsed(&self) -> Duration {
        self.begun.elapsed() + self.stop.spent()
    }

    /// Lets a simulated machine execute the transaction until it ends or is interrupted.
    fn spend(&self, transaction: &Transaction) {
        let until_due = (self.deadline + CLOCK_STEP).saturating_sub(self.elapsed());
        self.stop.spend(self.seams.takes(Work::Build, slice::from_ref(transaction)).min(until_due));
    }

    /// Whether there is time for this candidate, which becomes the current one.
    fn has_time(&mut self, transaction: &Transaction) -> bool {
        let (at, expected) = (self.elapsed(), self.pace.lock().expected(transaction));
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
        Interrupt::when(move || stop.is_stopped() || begun.elapsed() + stop.spent() > deadline)
    }

    fn is_open(&self) -> bool {
        self.elapsed() < self.target
    }

    fn begin(&mut self, transaction: &Transaction) -> bool {
        let begins = self.has_time(transaction);
        if begins {
            self.spend(transaction);
        }
        begins
    }

    fn end(&mut self, transaction: &Transaction) -> bool {
        let now = self.elapsed();
        let took = now - self.current.at;
        self.pace.lock().learn(transaction, took);
        if self.current.is_heavy {
            self.heavy += took;
        }
        // A precompile runs to its end, however long it takes.
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
        let took = self.elapsed() - self.current.at;
        self.pace.lock().learn(transaction, took);
        self.failed_to_end(transaction);
        true
    }
}

#[cfg(test)]
mod tests {
    use slipstream_types::BatchNumber;
    use tokio::time::advance;

    use super::{
        super::pace::{PATIENCE_SHARE, STRIKES_MAX},
        *,
    };
    use crate::{
        seams::Machine,
        testing::{Account, genesis},
    };

    const PATIENCE: Duration = Duration::from_millis(2_000);
    const GAS: u64 = 10_000_000;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn pace() -> Arc<Mutex<Pace>> {
        Arc::new(Mutex::new(Pace::new(PATIENCE, &genesis(7).validator_set())))
    }

    fn timer(pace: &Arc<Mutex<Pace>>) -> BuildTimer {
        BuildTimer::new(Arc::clone(pace), Stop::default(), Seams::default(), PATIENCE)
    }

    fn transaction(nonce: u64, gas: u64) -> Transaction {
        Account::new(0).transfer_with_gas(nonce, 1, gas)
    }

    /// Goal: gas of unknown price may begin only with a whole batch's time. Once its price is known, heavy transactions
    /// leave half of the batch to light ones. No two batches in a row begin an overlong transaction.
    #[tokio::test(start_paused = true)]
    async fn heavy_transactions_leave_room() {
        let pace = pace();
        let mut first = timer(&pace);
        assert!(first.begin(&transaction(0, GAS)), "unknown, and the first");
        advance(ms(40)).await;
        assert!(first.end(&transaction(0, GAS)));
        assert!(first.begin(&transaction(1, 21_000)), "light ones always may");
        assert!(first.end(&transaction(1, 21_000)));
        assert!(first.begin(&transaction(2, GAS)), "its price is known: 40 ms");
        advance(ms(40)).await;
        assert!(first.end(&transaction(2, GAS)));
        assert!(first.begin(&transaction(3, GAS)));
        advance(ms(40)).await;
        assert!(first.end(&transaction(3, GAS)));
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
        assert!(third.end(&transaction(0, 5 * GAS)), "it had time until the deadline");
        assert!(!third.is_open());
    }

    /// Goal: a transaction that has a whole batch's time three times and does not end is reported once. A transaction
    /// that began late is not reported.
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

    /// Goal: work that is no longer wanted ends, and no transaction is blamed for it.
    #[tokio::test(start_paused = true)]
    async fn a_stop_blames_nobody() {
        let (pace, stop) = (pace(), Stop::default());
        for _ in 0..STRIKES_MAX {
            // Only every second batch may have an overlong transaction.
            timer(&pace).finish();
            let mut timer = BuildTimer::new(Arc::clone(&pace), stop.clone(), Seams::default(), PATIENCE);
            let interrupt = timer.interrupt();
            assert!(timer.begin(&transaction(0, GAS)));
            stop.stop();
            assert!(interrupt.is_due() && !timer.interrupted(&transaction(0, GAS)));
            assert_eq!(timer.finish(), [] as [B256; 0]);
        }
        assert!(pace.lock().strikes.is_empty());
    }

    /// A machine on which each transaction takes as many milliseconds as its nonce.
    struct Slow;

    impl Machine for Slow {
        fn pace(&self, _: &'static str) -> [Duration; 2] {
            [Duration::ZERO; 2]
        }

        fn takes(&self, _: Work, transactions: &[Transaction]) -> Duration {
            transactions.iter().map(|transaction| ms(transaction.nonce())).sum()
        }

        fn errs(&self, _: BatchNumber, _: bool) -> bool {
            false
        }
    }

    /// Goal: a build on a simulated machine ends by that machine's time, which costs its thread nothing. An interrupted
    /// transaction took no more than the time until then.
    #[tokio::test(start_paused = true)]
    async fn a_simulated_machine_takes_its_time() {
        let (pace, stop) = (pace(), Stop::default());
        let seams = Seams::new(Arc::new(Slow), Default::default());
        let mut timer = BuildTimer::new(Arc::clone(&pace), stop.clone(), seams, PATIENCE);
        let (short, endless) = (transaction(100, 21_000), transaction(60_000, 21_000));
        assert!(timer.begin(&short) && timer.end(&short) && timer.is_open());
        assert_eq!(stop.spent(), ms(100));
        assert!(timer.begin(&endless));
        assert!(timer.interrupt().is_due() && timer.interrupted(&endless) && !timer.is_open());
        assert_eq!(stop.spent(), PATIENCE / PATIENCE_SHARE + CLOCK_STEP);
    }
}
