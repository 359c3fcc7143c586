//! [`Neglect`]: whether the primary leaves out of its batches what it should order.
//!
//! A primary that is honest makes no empty batch while it has a transaction that it can execute. It has what this validator's forwarder
//! offers it every half second. So an empty batch whose order came long after an executable transaction shows a primary that leaves it out.
//! One validator's word ends no view: that takes `max(u, r) + 1` validators, one of which is honest.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use slipstream_types::{B256, BatchNumber};
use tokio::time::Instant;

/// How long the primary is presumed to know a transaction too late: three offers, and the time to build a batch.
const GRACE: Duration = Duration::from_millis(1_500);
/// Marks of the pool that are kept, two a second: they reach back longer than [`GRACE`].
const MARKS_MAX: usize = 8;
/// Orders whose arrival is kept: above the head there are fewer.
const ORDERS_MAX: usize = 16;
/// Transactions whose neglect is remembered. When there are more, all are forgotten.
const BLAMED_MAX: usize = 1_024;

/// See the module.
pub(super) struct Neglect {
    /// So many validators that one of them is honest.
    enough: usize,
    /// The pool's mark at some moments, the oldest first.
    marks: VecDeque<(Instant, u64)>,
    /// When the orders came, by number and view.
    orders: VecDeque<(BatchNumber, u64, Instant)>,
    /// Views that ended for a transaction. One that primaries leave out of which one is honest has a reason that its pool here does not
    /// know, and ends no more.
    blamed: HashMap<B256, usize>,
    /// The view that is complained of.
    view: Option<u64>,
}

impl Neglect {
    pub(super) fn new(enough: usize) -> Neglect {
        let (marks, orders) = (VecDeque::new(), VecDeque::new());
        Neglect { enough, marks, orders, blamed: HashMap::new(), view: None }
    }

    /// Notes the pool's mark now and then.
    pub(super) fn note_mark(&mut self, now: Instant, mark: u64) {
        self.marks.push_back((now, mark));
        if self.marks.len() > MARKS_MAX {
            self.marks.pop_front();
        }
    }

    /// Notes that an order came.
    pub(super) fn note_order(&mut self, now: Instant, number: BatchNumber, view: u64) {
        self.orders.push_back((number, view, now));
        if self.orders.len() > ORDERS_MAX {
            self.orders.pop_front();
        }
    }

    /// The mark before which a transaction must have come to be left out of that batch; `None` for a batch whose order did not come.
    pub(super) fn mark_of(&self, number: BatchNumber, view: u64) -> Option<u64> {
        let (.., came) = self.orders.iter().rev().find(|(it, of, _)| (*it, *of) == (number, view))?;
        let known = self.marks.iter().rev().find(|(at, _)| *at + GRACE <= *came);
        known.map(|(_, mark)| *mark)
    }

    /// Whether the view is to be complained of for that transaction.
    pub(super) fn blames(&mut self, view: u64, left_out: B256) -> bool {
        if self.complains_of(view) {
            return true;
        }
        if self.blamed.len() >= BLAMED_MAX && !self.blamed.contains_key(&left_out) {
            self.blamed.clear();
        }
        let views = self.blamed.entry(left_out).or_default();
        let is_new = *views < self.enough;
        if is_new {
            *views += 1;
            self.view = Some(view);
        }
        is_new
    }

    /// Whether the view is complained of already.
    pub(super) fn complains_of(&self, view: u64) -> bool {
        self.view == Some(view)
    }

    /// The primary orders what it should.
    pub(super) fn is_over(&mut self) {
        self.view = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only what came long before the order counts, and only in the order's own view.
    #[test]
    fn a_transaction_counts_once_its_primary_must_know_it() {
        let (mut neglect, begun) = (Neglect::new(2), Instant::now());
        let (at, number) = (|ms| begun + Duration::from_millis(ms), BatchNumber::new(7));
        for tick in 0..20 {
            neglect.note_mark(at(500 * tick), tick);
        }
        assert_eq!(neglect.mark_of(number, 3), None);
        neglect.note_order(at(9_600), number, 3);
        assert_eq!((neglect.mark_of(number, 3), neglect.mark_of(number, 4)), (Some(16), None));
        neglect.note_order(at(1_000), BatchNumber::new(8), 3);
        assert_eq!(neglect.mark_of(BatchNumber::new(8), 3), None, "no mark reaches so far back");
    }

    /// Goal: once `max(u, r) + 1` primaries have left a transaction out, one of them was honest, and it ends no further view.
    #[test]
    fn one_transaction_ends_few_views() {
        let mut neglect = Neglect::new(2);
        let [odd, other] = [1, 2].map(B256::repeat_byte);
        assert!(neglect.blames(1, odd) && neglect.blames(1, odd) && neglect.blames(2, odd));
        assert!(neglect.blames(2, odd), "it is complained of already");
        assert!(!neglect.blames(3, odd) && neglect.blames(3, other));
        neglect.is_over();
        assert!(!neglect.blames(4, odd));
    }
}
