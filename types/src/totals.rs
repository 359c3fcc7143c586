//! [`Totals`]: the work in a ledger up to a batch.

use serde::{Deserialize, Serialize};

/// Sums over all batches of a ledger up to and including one. The difference of two headers' totals is the work between
/// their batches, without any further data. Bytes are those of contents, before compression.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Transactions.
    pub transactions: u64,
    /// Gas used.
    pub gas: u64,
    /// Bytes of bodies; batch 0's body is the genesis.
    pub body_bytes: u64,
    /// Bytes of receipts.
    pub receipts_bytes: u64,
    /// Bytes of deltas.
    pub delta_bytes: u64,
}

impl Totals {
    /// The totals after more work. A sum that is too large stays at `u64::MAX`, which no chain reaches.
    pub const fn plus(self, more: Totals) -> Totals {
        Totals {
            transactions: self.transactions.saturating_add(more.transactions),
            gas: self.gas.saturating_add(more.gas),
            body_bytes: self.body_bytes.saturating_add(more.body_bytes),
            receipts_bytes: self.receipts_bytes.saturating_add(more.receipts_bytes),
            delta_bytes: self.delta_bytes.saturating_add(more.delta_bytes),
        }
    }

    /// The work since an earlier batch; zero if that batch is not earlier.
    pub const fn since(self, earlier: Totals) -> Totals {
        Totals {
            transactions: self.transactions.saturating_sub(earlier.transactions),
            gas: self.gas.saturating_sub(earlier.gas),
            body_bytes: self.body_bytes.saturating_sub(earlier.body_bytes),
            receipts_bytes: self.receipts_bytes.saturating_sub(earlier.receipts_bytes),
            delta_bytes: self.delta_bytes.saturating_sub(earlier.delta_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the work between two batches is the work added between them, field by field, and sums saturate.
    #[test]
    fn work_between_batches_is_what_was_added() {
        let more = Totals { transactions: 1, gas: 2, body_bytes: 3, receipts_bytes: 4, delta_bytes: 5 };
        let base = Totals { transactions: 10, gas: 20, body_bytes: 30, receipts_bytes: 40, delta_bytes: 50 };
        let sum = base.plus(more);
        assert_eq!(
            sum,
            Totals { transactions: 11, gas: 22, body_bytes: 33, receipts_bytes: 44, delta_bytes: 55 }
        );
        assert_eq!((sum.since(base), base.since(sum)), (more, Totals::default()));
        let most = Totals {
            transactions: u64::MAX,
            gas: u64::MAX,
            body_bytes: u64::MAX,
            receipts_bytes: u64::MAX,
            delta_bytes: u64::MAX,
        };
        assert_eq!(most.plus(more), most);
    }
}
