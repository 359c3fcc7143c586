//! [`Conflicts`]: which transactions of a batch wait for which, from whoever executed it first.
//!
//! Source: Eve (OSDI 2012), whose mixer groups requests that should not interfere. Here the groups are a graph, so a chain of
//! conflicts delays its own transactions alone. Like all hints, conflicts are advice: they change how long a batch takes,
//! never its result.

/// A graph over a batch's transactions. It is untrusted: readers ignore edges that do not point backwards. They ignore the
/// whole graph if its length differs from the batch's.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Conflicts {
    /// For each transaction the earlier ones that it should wait for, in ascending order. Transitively reduced as far as that
    /// is cheap: it omits predecessors of predecessors.
    pub predecessors: Vec<Vec<u32>>,
    /// For each transaction about how much gas it uses, to tell long chains from short ones. A rough figure does.
    pub gas: Vec<u64>,
}

impl Conflicts {
    /// Whether it describes a batch of so many transactions.
    pub fn fits(&self, transactions: usize) -> bool {
        self.predecessors.len() == transactions && self.gas.len() == transactions
    }
}
