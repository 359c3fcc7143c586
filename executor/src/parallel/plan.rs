//! [`Plan`]: which transactions wait for which, and which should run first.

use alloy_consensus::Transaction as _;
use slipstream_types::Conflicts;

use crate::transaction::Transaction;

/// Gas of instructions whose execution takes about as long as waking the helpers.
const GAS_MIN: u64 = 1_000_000;
/// Gas of instructions that a transaction must have on average. With less, handing a transaction over and checking its
/// reads takes the time that two threads gain. Plain transfers have no instructions, and are faster on one thread.
const GAS_AVERAGE_MIN: u64 = 15_000;
/// A batch of fewer transactions gives too little choice.
const TRANSACTIONS_MIN: usize = 8;
/// Gas that every transaction pays before its first instruction.
const GAS_INTRINSIC: u64 = 21_000;
/// Cost of starting and ending a transaction, as gas of instructions.
const GAS_OVERHEAD: u64 = 15_000;
/// Least speed-up that the graph must promise, in percent: the checks consume anything less.
const SPEEDUP_MIN_PERCENT: u64 = 115;

/// The order in which transactions may and should run ahead.
pub(super) struct Plan {
    pub(super) transactions: Vec<Planned>,
    /// Estimated gas of the transactions' instructions, without the intrinsic gas.
    instructions: u64,
    /// Estimated cost of all transactions, and of the longest chain among them.
    total: u64,
    longest: u64,
}

/// A transaction's position in the graph.
pub(super) struct Planned {
    /// Transactions that wait for this one.
    pub(super) successors: Vec<u32>,
    /// Number of transactions that this one waits for.
    pub(super) predecessors: u32,
    /// The transaction's estimated cost, as gas of instructions.
    pub(super) cost: u64,
    /// Estimated cost of the longest chain that starts with this transaction. Transactions run by list scheduling along
    /// the critical path: the longest chain first.
    pub(super) rank: u64,
    /// Whether the transaction may run ahead at all. Delegations (EIP-7702) change other accounts' nonces and code,
    /// which `accept` does not track.
    pub(super) may_run_ahead: bool,
}

impl Plan {
    /// Accepts any graph: edges that do not point backwards are left out, and a graph of another length counts as
    /// empty.
    pub(super) fn new(transactions: &[Transaction], conflicts: &Conflicts) -> Plan {
        let fits = conflicts.fits(transactions.len());
        let mut planned: Vec<_> = transactions.iter().map(Planned::new).collect();
        let predecessors = if fits { &conflicts.predecessors[..] } else { &[] };
        for (index, predecessors) in predecessors.iter().enumerate() {
            for predecessor in predecessors.iter().filter(|earlier| (**earlier as usize) < index) {
                planned[*predecessor as usize].successors.push(index as u32);
                planned[index].predecessors += 1;
            }
        }
        let (mut instructions, mut total, mut longest) = (0u64, 0u64, 0);
        for index in (0..planned.len()).rev() {
            let gas = if fits { conflicts.gas[index] } else { transactions[index].gas_limit() };
            let own = gas.min(transactions[index].gas_limit()).saturating_sub(GAS_INTRINSIC);
            let cost = own.saturating_add(GAS_OVERHEAD);
            let after = planned[index].successors.iter().map(|next| planned[*next as usize].rank).max();
            planned[index].cost = cost;
            planned[index].rank = after.unwrap_or_default().saturating_add(cost);
            instructions = instructions.saturating_add(own);
            total = total.saturating_add(cost);
            longest = planned[index].rank.max(longest);
        }
        Plan { transactions: planned, instructions, total, longest }
    }

    /// Whether the batch, and its average transaction, have enough work for a second thread.
    pub(super) fn has_enough_to_do(&self) -> bool {
        let count = self.transactions.len();
        count >= TRANSACTIONS_MIN
            && self.instructions >= GAS_MIN
            && self.instructions / count as u64 >= GAS_AVERAGE_MIN
    }

    /// Whether several threads can be expected to be faster than one.
    pub(super) fn is_worthwhile(&self, threads: usize) -> bool {
        let shared = self.total / threads.max(1) as u64;
        let at_best = self.longest.max(shared).max(1);
        self.total / at_best.div_ceil(100) >= SPEEDUP_MIN_PERCENT
    }
}

impl Planned {
    fn new(transaction: &Transaction) -> Planned {
        let may_run_ahead = transaction.envelope.authorization_list().is_none();
        Planned { successors: Vec::new(), predecessors: 0, cost: 0, rank: 0, may_run_ahead }
    }
}
