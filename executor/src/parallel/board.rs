//! [`Board`]: shares a batch's transactions and results among its threads.

use std::{
    collections::BinaryHeap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering},
    },
};

use super::plan::{Plan, Planned};
use crate::{evm::SpeculativeReads, outcome::TransactionResult};

/// The result of running ahead, or `None` if the transaction failed when it ran ahead.
pub(super) type Result = Option<(TransactionResult, SpeculativeReads)>;

/// No thread has begun the transaction.
const OPEN: u8 = 0;
/// A thread runs the transaction.
const TAKEN: u8 = 1;
/// The transaction's result is ready.
const DONE: u8 = 2;

/// The state of a transaction when its turn comes.
pub(super) enum Turn {
    /// The leader has claimed the transaction.
    Own,
    /// A helper runs the transaction.
    Running,
    /// A helper ran the transaction ahead of its turn.
    Ready(Box<Result>),
}

/// A transaction that a thread has claimed. Dropping it publishes the result, even if the thread panics.
pub(super) struct Taken<'a> {
    board: &'a Board,
    index: usize,
    result: Result,
}

impl Taken<'_> {
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// Hands in the transaction's result. Without this call, the transaction counts as failed.
    pub(super) fn finish(&mut self, done: TransactionResult, reads: SpeculativeReads) {
        self.result = Some((done, reads));
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.board.put(self.index, self.result.take());
    }
}

/// The plan, and its progress.
pub(super) struct Board {
    planned: Vec<Planned>,
    slots: Vec<Slot>,
    /// Transactions that wait for no other, by rank and then by their position in the batch.
    ready: Mutex<BinaryHeap<(u64, std::cmp::Reverse<u32>)>>,
    /// Length of `ready`, so that an idle thread need not lock `ready` to see that it is empty.
    ready_len: AtomicUsize,
    closed: AtomicBool,
}

#[derive(Default)]
struct Slot {
    state: AtomicU8,
    /// Number of predecessors that have not run yet.
    waiting: AtomicU32,
    result: Mutex<Result>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    pub(super) fn new(plan: Plan) -> Board {
        let planned = plan.transactions;
        let slot = |planned: &Planned| Slot { waiting: planned.predecessors.into(), ..Slot::default() };
        let slots = planned.iter().map(slot).collect();
        let free = planned.iter().enumerate().filter(|(_, planned)| planned.predecessors == 0);
        let ready: BinaryHeap<_> = free
            .filter(|(_, planned)| planned.may_run_ahead)
            .map(|(index, planned)| key(planned, index))
            .collect();
        let ready_len = AtomicUsize::new(ready.len());
        Board { planned, slots, ready: Mutex::new(ready), ready_len, closed: AtomicBool::new(false) }
    }

    /// Claims the best transaction to run ahead now.
    pub(super) fn take(&self) -> Option<Taken<'_>> {
        if self.ready_len.load(Ordering::Relaxed) == 0 || self.is_closed() {
            return None;
        }
        let mut ready = lock(&self.ready);
        let taken = std::iter::from_fn(|| ready.pop()).find(|(_, index)| self.claim(index.0 as usize));
        self.ready_len.store(ready.len(), Ordering::Relaxed);
        taken.map(|(_, index)| Taken { board: self, index: index.0 as usize, result: None })
    }

    fn put(&self, index: usize, result: Result) {
        *lock(&self.slots[index].result) = result;
        self.slots[index].state.store(DONE, Ordering::Release);
        self.release(index);
    }

    /// Releases the transactions that waited for this one.
    pub(super) fn release(&self, index: usize) {
        for &successor in &self.planned[index].successors {
            let successor = successor as usize;
            if self.slots[successor].waiting.fetch_sub(1, Ordering::AcqRel) == 1
                && self.planned[successor].may_run_ahead
                && self.slots[successor].state.load(Ordering::Relaxed) == OPEN
            {
                let mut ready = lock(&self.ready);
                ready.push(key(&self.planned[successor], successor));
                self.ready_len.store(ready.len(), Ordering::Relaxed);
            }
        }
    }

    /// Called by the leader when a transaction's turn has come. The leader may take the transaction regardless of the
    /// plan: all earlier transactions are already part of the batch.
    pub(super) fn turn(&self, index: usize) -> Turn {
        let slot = &self.slots[index];
        if slot.state.load(Ordering::Acquire) == DONE {
            return Turn::Ready(Box::new(lock(&slot.result).take()));
        }
        if self.claim(index) { Turn::Own } else { Turn::Running }
    }

    /// Stops [`Board::take`] from handing out transactions.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    fn claim(&self, index: usize) -> bool {
        let (old, new) = (OPEN, TAKEN);
        self.slots[index].state.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

fn key(planned: &Planned, index: usize) -> (u64, std::cmp::Reverse<u32>) {
    (planned.rank, std::cmp::Reverse(index as u32))
}
