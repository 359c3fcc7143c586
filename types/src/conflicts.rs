//! [`Conflicts`]: which transactions of a batch wait for which, from whoever executed it first.
//!
//! Source: Eve (OSDI 2012), whose mixer groups requests that should not interfere; here the groups are a graph, so that a
//! chain of conflicts holds up nobody else. Advice like all hints: it changes how long a batch takes, never its result.

/// A graph over a batch's transactions. Nothing about it is trusted: whoever uses it ignores edges that do not point
/// backwards, and all of it if it is not of the batch's length.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Conflicts {
    /// For each transaction the earlier ones that it should wait for, in ascending order. Transitively reduced as far as
    /// that is cheap: what a predecessor waits for is left out.
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
