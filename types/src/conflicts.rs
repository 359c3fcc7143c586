//! [`Conflicts`]: the dependencies between a batch's transactions, recorded by its first executor.
//!
//! Source: Eve (OSDI 2012), whose mixer groups requests that should not interfere. Here a graph replaces the groups, so
//! a chain of conflicts delays only its own transactions. Like all hints, conflicts are advice: they affect a batch's
//! duration, never its result.

/// A graph over a batch's transactions. It is untrusted: readers ignore edges that do not point backwards. They ignore the
/// whole graph if its length differs from the batch's.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Conflicts {
    /// For each transaction, the earlier ones that it should wait for, in ascending order. Transitively reduced where
    /// that is cheap: predecessors of predecessors are omitted.
    pub predecessors: Vec<Vec<u32>>,
    /// For each transaction, its approximate gas, to distinguish long chains from short ones.
    pub gas: Vec<u64>,
}

impl Conflicts {
    /// Whether the graph describes a batch of `transactions` transactions.
    pub fn fits(&self, transactions: usize) -> bool {
        self.predecessors.len() == transactions && self.gas.len() == transactions
    }
}
