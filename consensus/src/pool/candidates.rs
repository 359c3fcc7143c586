//! [`Candidates`]: a proposer's draws from the pool for one batch, the best first.
//!
//! A batch fills by the gas that its transactions use, which is unknown before they are executed. So the proposer draws
//! one transaction at a time, by the room that the earlier ones left. A transaction that does not fit is passed over
//! for this batch alone, with its sender's later ones. In the next batch its tip ranks it again.

use std::collections::{BinaryHeap, HashMap};

use alloy_primitives::{Address, B256};
use slipstream_executor::{BuildLimits, Candidates as _, RemainingCapacity, Transaction};

use super::{Pool, account_queue::HeadKey};

/// Transactions that one batch may look at in vain: a pool full of misfits costs the proposer some ten milliseconds. To
/// hide the rest of the pool behind misfits, an attacker needs that number of senders, each with the money for its
/// whole gas limit.
const MISFITS_MAX: usize = 16_384;
/// The same for each draw once the batch is nearly full: its last bit of room is not worth a long search.
const LAST_MISFITS_MAX: usize = 64;
/// Divisor: a batch is nearly full when less than this share of its gas or of its bytes is left.
const LAST_SHARE: u64 = 64;

/// Maximum number of transactions that [`Pool::best`] looks at: the driver of a validator waits meanwhile.
const BEST_MAX: usize = 256;

/// For each sender in executed, uncommitted batches, the nonce after its last transaction there. The pool keeps these
/// transactions in case the batches are rolled back.
pub(crate) type Ahead = HashMap<Address, u64>;

/// Draws from a pool. It holds no lock between draws, so the pool goes on accepting transactions. New ones that rank
/// above the last draw wait for the next batch.
pub struct Candidates {
    pool: Pool,
    cursor: Cursor,
}

impl Pool {
    /// Returns the best executable transactions, best tip first, each sender's in nonce order. The cost depends on the
    /// number drawn, not on the pool's size.
    pub fn candidates(&self) -> Candidates {
        self.candidates_after(Ahead::new())
    }

    /// Does the same as [`Pool::candidates`], for a batch after others that are not committed yet.
    pub(crate) fn candidates_after(&self, ahead: Ahead) -> Candidates {
        let cursor = self.shared.state.lock().index.cursor(ahead);
        Candidates { pool: self.clone(), cursor }
    }
}

impl Pool {
    /// Returns the hashes of the best executable transactions that fit into the room, each alone, and are in no batch
    /// ahead; 256 at most.
    pub(crate) fn best(&self, ahead: Ahead, room: RemainingCapacity) -> Vec<B256> {
        let index = &self.shared.state.lock().index;
        let mut cursor = index.cursor(ahead);
        let best = (0..BEST_MAX).map_while(|_| index.draw(&mut cursor, room));
        best.map(|transaction| transaction.hash).collect()
    }
}

impl Candidates {
    /// Returns the probable content of a batch with these limits: the best transactions, while their gas limits and
    /// bytes fit.
    pub(crate) fn peek(mut self, limits: &BuildLimits) -> Vec<Transaction> {
        let mut room = RemainingCapacity { gas: limits.gas, bytes: limits.body_bytes };
        let mut likely = Vec::new();
        while likely.len() < limits.transactions
            && let Some(transaction) = self.draw(room)
        {
            room.gas = room.gas.saturating_sub(transaction.gas_limit());
            room.bytes = room.bytes.saturating_sub(transaction.raw.len());
            likely.push(transaction);
        }
        likely
    }
}

impl slipstream_executor::Candidates for Candidates {
    fn draw(&mut self, room: RemainingCapacity) -> Option<Transaction> {
        self.pool.shared.state.lock().index.draw(&mut self.cursor, room)
    }

    fn leave_out(&mut self) {
        self.cursor.leave_out();
    }
}

/// The progress of the draws for one batch.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    /// The draws' position in the ranking of the senders' next transactions; `None` before the first draw.
    pub(super) below: Option<HeadKey>,
    /// Transactions that became next because their sender's previous one was taken.
    pub(super) opened: BinaryHeap<(HeadKey, u64)>,
    /// Sender and nonce of the last draw, unless it was left out.
    pub(super) drawn: Option<(Address, u64)>,
    /// Transactions looked at in vain so far.
    pub(super) misfits: usize,
    /// Senders whose next transaction differs from the ranked one. The actual next one was opened at the beginning.
    pub(super) ahead: Ahead,
    /// The room of the first draw.
    pub(super) whole: Option<RemainingCapacity>,
}

impl Cursor {
    /// Leaves out the last drawn transaction, so its sender's later ones are not drawn.
    pub(super) fn leave_out(&mut self) {
        self.drawn = None;
    }

    /// How many transactions this draw may look at in vain.
    pub(super) fn patience(&mut self, room: RemainingCapacity) -> usize {
        let whole = *self.whole.get_or_insert(room);
        let is_last =
            room.gas < whole.gas / LAST_SHARE || (room.bytes as u64) < whole.bytes as u64 / LAST_SHARE;
        let left = MISFITS_MAX - self.misfits.min(MISFITS_MAX);
        if is_last { left.min(LAST_MISFITS_MAX) } else { left }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The search is long while much room is left, short at the end, and never longer than what one batch may cost.
    #[test]
    fn patience_follows_the_room() {
        let whole = RemainingCapacity { gas: 6_400, bytes: 640 };
        let mut cursor = Cursor::default();
        assert_eq!(cursor.patience(whole), MISFITS_MAX);
        assert_eq!(cursor.patience(RemainingCapacity { gas: 100, ..whole }), MISFITS_MAX);
        assert_eq!(cursor.patience(RemainingCapacity { gas: 99, ..whole }), LAST_MISFITS_MAX);
        assert_eq!(cursor.patience(RemainingCapacity { bytes: 9, ..whole }), LAST_MISFITS_MAX);
        cursor.misfits = MISFITS_MAX - 3;
        assert_eq!([cursor.patience(whole), cursor.patience(RemainingCapacity { gas: 0, bytes: 0 })], [3, 3]);
        cursor.misfits = MISFITS_MAX;
        assert_eq!(cursor.patience(whole), 0);
    }
}
