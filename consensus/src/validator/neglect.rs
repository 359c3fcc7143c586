//! [`Neglect`]: whether the primary omits transactions that it should order.
//!
//! An honest primary ends a batch only when it has no room or no executable transaction left. Every half second, this
//! validator's forwarder offers the primary transactions of its own pool. So a primary neglects a transaction under two
//! conditions. The transaction was executable long before a batch with room was ordered, and is still executable after
//! that batch. One validator's complaint ends no view: that takes `max(u, r) + 1` validators, one of which is honest.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    time::Duration,
};

use slipstream_executor::RemainingCapacity;
use slipstream_types::{B256, BatchHeader, BatchNumber, ValidatorSet, limits};
use tokio::time::Instant;

use super::driver::{Driver, core_now};
use crate::error::ConsensusError;

/// The time that a transaction gets to reach the primary before its omission counts: three offers, and the time to
/// build a batch.
const GRACE: Duration = Duration::from_millis(1_500);
/// Moments for which the pool's candidates are kept, two a second: they reach back longer than [`GRACE`].
const MOMENTS_MAX: usize = 8;
/// Orders and execution times that are kept, by number: fewer batches are above the head.
const BATCHES_MAX: usize = 16;
/// Maximum number of transactions whose neglect is remembered. Beyond that, all are forgotten.
const BLAMED_MAX: usize = 1_024;

/// See the module.
pub(super) struct Neglect {
    /// Validators of which at least one is honest: `max(u, r) + 1`.
    matching: usize,
    /// Executors that make a quorum.
    quorum: usize,
    /// Executors that may lie about their times. That number of the longest times is ignored.
    liars: usize,
    /// The pool's executable transactions at some moments, the oldest first.
    candidates: VecDeque<(Instant, HashSet<B256>)>,
    /// When the orders arrived, by number and view.
    orders: VecDeque<(BatchNumber, u64, Instant)>,
    /// How long the other validators took for batches that are not committed yet.
    times: BTreeMap<BatchNumber, BTreeMap<u16, Duration>>,
    /// The number of views that each transaction ended. If `matching` primaries have omitted the same transaction, one
    /// of them was honest, and had a reason that this node's pool does not know. The transaction then ends no more
    /// views.
    blamed: HashMap<B256, usize>,
    /// The view that this validator complains about.
    view: Option<u64>,
}

impl Neglect {
    pub(super) fn new(set: &ValidatorSet) -> Neglect {
        Neglect {
            matching: set.matching(),
            quorum: set.quorum(),
            liars: set.failures.commission.into(),
            candidates: VecDeque::new(),
            orders: VecDeque::new(),
            times: BTreeMap::new(),
            blamed: HashMap::new(),
            view: None,
        }
    }

    /// Notes which transactions a primary could take at this moment.
    pub(super) fn note_candidates(&mut self, now: Instant, best: Vec<B256>) {
        self.candidates.push_back((now, best.into_iter().collect()));
        if self.candidates.len() > MOMENTS_MAX {
            self.candidates.pop_front();
        }
    }

    /// Notes that an order arrived. The primary of another view has its own time to learn of transactions.
    pub(super) fn note_order(&mut self, now: Instant, number: BatchNumber, view: u64) {
        if self.orders.back().is_some_and(|(_, of, _)| *of != view) {
            self.candidates.clear();
        }
        self.orders.push_back((number, view, now));
        if self.orders.len() > BATCHES_MAX {
            self.orders.pop_front();
        }
    }

    /// Notes how long another validator took for a batch above the head.
    pub(super) fn note_time(&mut self, seat: u16, head: BatchNumber, number: BatchNumber, took: Duration) {
        if number > head && number.get() - head.get() <= BATCHES_MAX as u64 {
            self.times.entry(number).or_default().insert(seat, took);
        }
    }

    /// How long the slowest of a quorum took for that batch, without the `liars` longest times; `None` if fewer than a
    /// quorum reported. Forgets the reports up to that batch.
    pub(super) fn take_times(&mut self, number: BatchNumber, own: Duration) -> Option<Duration> {
        let told = self.times.remove(&number).unwrap_or_default();
        self.times = self.times.split_off(&number);
        let mut times: Vec<_> = told.into_values().chain([own]).collect();
        times.sort_unstable_by(|a, b| b.cmp(a));
        times.get(self.liars).copied().filter(|_| times.len() >= self.quorum)
    }

    /// The transactions that the primary should have known when it made that batch. `None` if the batch's order did not
    /// come, or no candidates were noted long enough before the order.
    pub(super) fn candidates(&self, number: BatchNumber, view: u64) -> Option<&HashSet<B256>> {
        let (.., came) = self.orders.iter().rev().find(|(it, of, _)| (*it, *of) == (number, view))?;
        let known = self.candidates.iter().rev().find(|(at, _)| *at + GRACE <= *came);
        known.map(|(_, candidates)| candidates).filter(|candidates| !candidates.is_empty())
    }

    /// Whether to complain about the view because of that transaction.
    pub(super) fn blames(&mut self, view: u64, left_out: B256) -> bool {
        if self.complains_of(view) {
            return true;
        }
        if self.blamed.len() >= BLAMED_MAX && !self.blamed.contains_key(&left_out) {
            self.blamed.clear();
        }
        let views = self.blamed.entry(left_out).or_default();
        let is_new = *views < self.matching;
        if is_new {
            *views += 1;
            self.view = Some(view);
        }
        is_new
    }

    /// Whether this validator complains about the view already.
    pub(super) fn complains_of(&self, view: u64) -> bool {
        self.view == Some(view)
    }

    /// Notes that the primary orders what it should.
    pub(super) fn is_over(&mut self) {
        self.view = None;
    }
}

impl Driver {
    /// Notes which transactions the primary should know from now on.
    pub(super) fn note_candidates(&mut self) {
        let whole = RemainingCapacity { gas: u64::MAX, bytes: limits::BODY_BYTES_MAX };
        let best = self.pool.best(self.held.ahead(), whole);
        self.neglect.note_candidates(Instant::now(), best);
    }

    /// Checks whether another primary omits transactions that it should order.
    pub(super) fn watch_primary(&mut self, header: &BatchHeader) -> Result<(), ConsensusError> {
        let (number, view) = (header.number, self.core.view());
        let own = Duration::from_millis(self.working.pace.lock().took_ms(number).into());
        let took = self.neglect.take_times(number, own);
        let is_other = !self.core.is_primary();
        let candidates = is_other.then(|| self.neglect.candidates(number, view)).flatten();
        let gas = self.ledger.chain.rules_at(number, header.timestamp_ms).gas_limit;
        let room = self.working.room_left(header, gas, took);
        let left_out = match (candidates, room) {
            (Some(candidates), Some(room)) => {
                self.pool.catch_up()?;
                let best = self.pool.best(self.held.ahead(), room);
                best.into_iter().find(|transaction| candidates.contains(transaction))
            }
            _ => None,
        };
        let was_told = self.neglect.complains_of(view);
        let neglected = left_out.filter(|transaction| self.neglect.blames(view, *transaction));
        match neglected {
            None => self.neglect.is_over(),
            Some(transaction) if !was_told => tracing::warn!(
                validator = self.core.primary(), view, %number, %transaction,
                "the primary left this executable transaction out of batches with room: voting for the next primary"
            ),
            Some(_) => {}
        }
        self.core.handle_neglect(neglected.is_some(), core_now());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::genesis;

    fn neglect() -> Neglect {
        Neglect::new(&genesis(4).validator_set())
    }

    /// Goal: only a transaction that could be executed long before the order counts, in the order's own view. A new
    /// primary has its own time.
    #[test]
    fn a_transaction_counts_once_its_primary_must_know_it() {
        let (mut neglect, begun) = (neglect(), Instant::now());
        let (at, number) = (|ms| begun + Duration::from_millis(ms), BatchNumber::new(7));
        let found = |neglect: &Neglect, number, view| {
            neglect.candidates(number, view).map(|them| them.iter().copied().collect::<Vec<_>>())
        };
        for tick in 0..20_u8 {
            neglect.note_candidates(at(500 * u64::from(tick)), vec![B256::repeat_byte(tick)]);
        }
        assert_eq!(found(&neglect, number, 3), None);
        neglect.note_order(at(9_600), number, 3);
        assert_eq!(found(&neglect, number, 3), Some(vec![B256::repeat_byte(16)]));
        assert_eq!(found(&neglect, number, 4), None);
        neglect.note_order(at(1_000), BatchNumber::new(8), 3);
        assert_eq!(found(&neglect, BatchNumber::new(8), 3), None, "no moment reaches so far back");
        neglect.note_order(at(9_700), BatchNumber::new(9), 4);
        assert_eq!(found(&neglect, BatchNumber::new(9), 4), None, "it is another primary");
    }

    /// Goal: once `max(u, r) + 1` primaries have omitted a transaction, one of them was honest, and it ends no further
    /// view.
    #[test]
    fn one_transaction_ends_few_views() {
        let mut neglect = neglect();
        let [odd, other] = [1, 2].map(B256::repeat_byte);
        assert!(neglect.blames(1, odd) && neglect.blames(1, odd) && neglect.blames(2, odd));
        assert!(neglect.blames(2, odd), "it is complained of already");
        assert!(!neglect.blames(3, odd) && neglect.blames(3, other));
        neglect.is_over();
        assert!(!neglect.blames(4, odd));
    }

    /// Goal: a single validator cannot make a batch count as slow, and the reports of a few do not count. Nothing is
    /// kept for batches far ahead.
    #[test]
    fn a_quorum_tells_how_long_a_batch_took() {
        let (mut neglect, [head, number, next]) = (neglect(), [6, 7, 8].map(BatchNumber::new));
        let ms = Duration::from_millis;
        neglect.note_time(1, head, number, ms(2));
        assert_eq!(neglect.take_times(number, ms(1)), None, "two are no quorum");
        for (seat, took) in [(1, 2), (2, 900)] {
            neglect.note_time(seat, head, number, ms(took));
            neglect.note_time(seat, head, next, ms(took));
            neglect.note_time(seat, head, BatchNumber::new(23), ms(took));
        }
        assert_eq!(neglect.take_times(number, ms(1)), Some(ms(2)));
        neglect.note_time(3, number, next, ms(800));
        assert_eq!(neglect.take_times(next, ms(1)), Some(ms(800)));
        assert!(neglect.times.is_empty());
    }
}
