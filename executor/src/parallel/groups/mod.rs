//! [`Groups`]: independent parts of a batch, each on a thread of its own.
//!
//! Handing over every transaction costs about as much as running a light one. Where conflicts split a batch into many
//! small components, threads take whole groups of components instead. Each thread runs its group on a machine of its
//! own, on the state before the batch. At the end the groups' changes and reads are joined once.
//!
//! The result equals that of sequential order under two conditions. No transaction read a key that an earlier
//! transaction of another group wrote. Each sender could still pay after all groups' payments. Both are checked against
//! the transactions' real accesses. If a condition fails, or anything else goes wrong, the result is discarded, and one
//! thread executes the batch.
//!
//! Source: the parallel batches of Eve (OSDI 2012), here with whole components and verified access sets.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use alloy_consensus::Transaction as _;
use alloy_primitives::{
    Address,
    map::{AddressMap, AddressSet, HashMap},
};
use slipstream_types::{Digest, StateKey};

use super::{ParallelStats, Workers, plan::Plan};
use crate::{
    error::ExecuteError,
    evm::{BatchEnv, Changes, ExecutionState, FinishedBatch, Machine, SpecId, Spends, WorkingSet},
    outcome::{BatchTotals, Outcome, TransactionRecord, TransactionResult},
    transaction::Transaction,
};

/// Least speed-up that the groups must promise, in percent for two threads. Below it, running ahead is better.
const SPEEDUP_MIN_PERCENT: u64 = 150;

/// Number of keys that a transaction usually writes, apart from its sender's.
const WRITES: usize = 2;

/// The components of a batch. Each thread goes through the batch in order. The thread that comes first to a component's
/// first transaction takes the component. So a thread that is late, or slow, gets less work.
pub(super) struct Groups {
    /// For each transaction, the first transaction of its component.
    roots: Vec<usize>,
    threads: usize,
    /// Estimated cost of all transactions, and of the largest share if the transactions are dealt out well.
    total: u64,
    largest: u64,
}

impl Groups {
    /// Finds the components of the plan; transactions of one sender are in the same component. Returns `None` for a
    /// single component, or if the batch has conflicts that access sets do not show.
    pub(super) fn new(
        plan: &Plan,
        transactions: &[Transaction],
        env: &BatchEnv,
        threads: usize,
    ) -> Option<Groups> {
        let is_simple = |transaction: &Transaction| {
            let envelope = &transaction.envelope;
            envelope.authorization_list().is_none() && envelope.blob_versioned_hashes().is_none()
        };
        // Before EIP-161 the existence of an empty account mattered.
        if !env.spec.is_enabled_in(SpecId::SPURIOUS_DRAGON) || !transactions.iter().all(is_simple) {
            return None;
        }
        let roots = roots(plan, transactions);
        let mut costs = vec![0u64; transactions.len()];
        for (planned, root) in plan.transactions.iter().zip(&roots) {
            costs[*root] = planned.cost.saturating_add(costs[*root]);
        }
        costs.retain(|cost| *cost > 0);
        costs.sort_unstable_by_key(|cost| std::cmp::Reverse(*cost));
        let mut shares = vec![0u64; threads.min(costs.len())];
        for cost in costs {
            let least = shares.iter_mut().min()?;
            *least = cost.saturating_add(*least);
        }
        let total = shares.iter().fold(0, |total: u64, share| total.saturating_add(*share));
        let (threads, largest) = (shares.len(), shares.into_iter().max()?);
        (threads > 1).then_some(Groups { roots, threads, total, largest })
    }

    /// Whether the groups can be expected to be faster than the alternatives.
    pub(super) fn is_worthwhile(&self) -> bool {
        let speedup_percent = self.total / self.largest.div_ceil(100).max(1);
        speedup_percent * 2 >= SPEEDUP_MIN_PERCENT * self.threads as u64
    }

    /// Executes the groups. Returns `None` unless the result is known to equal one thread's.
    ///
    /// # Errors
    /// If the batch has no outcome.
    pub(super) fn execute(
        &self,
        state: &dyn ExecutionState,
        env: &BatchEnv,
        transactions: &[Transaction],
        workers: &Workers,
    ) -> Result<Option<(Outcome, ParallelStats)>, ExecuteError> {
        self.execute_by(&Owners::new(&self.roots), state, env, transactions, workers)
    }

    fn execute_by(
        &self,
        owners: &Owners<'_>,
        state: &dyn ExecutionState,
        env: &BatchEnv,
        transactions: &[Transaction],
        workers: &Workers,
    ) -> Result<Option<(Outcome, ParallelStats)>, ExecuteError> {
        let run = |thread: usize| Trace::of(state, env, transactions, owners, thread);
        let Some(ran) = workers.map(self.threads, run).into_iter().collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let (changes, traces): (Vec<_>, Vec<Trace>) = ran.into_iter().unzip();
        let accepted = traces[1..].iter().map(|trace| trace.entries.len()).sum();
        let stats = ParallelStats { accepted, groups: self.threads, is_parallel: true, repeated: 0 };
        let delta = || {
            let mut changes = changes.into_iter();
            let first = changes.next().unwrap_or_default();
            changes.try_fold(first, Changes::join).map(Changes::into_delta).transpose()
        };
        let (delta, rest) = workers.join(delta, || joined(traces, env, transactions));
        // Groups that conflict may fail to form a delta, which is no error here.
        let Some((finished, tally)) = rest else { return Ok(None) };
        let Some(delta) = delta? else { return Ok(None) };
        Ok(Some((tally.finish(FinishedBatch { delta, ..finished })?, stats)))
    }
}

/// For each transaction, the first transaction of its component.
fn roots(plan: &Plan, transactions: &[Transaction]) -> Vec<usize> {
    fn root(parents: &mut [usize], mut index: usize) -> usize {
        while parents[index] != index {
            parents[index] = parents[parents[index]];
            index = parents[index];
        }
        index
    }
    let mut parents: Vec<usize> = (0..transactions.len()).collect();
    let mut senders = AddressMap::default();
    for (index, transaction) in transactions.iter().enumerate() {
        let same_sender = senders.insert(transaction.sender, index).unwrap_or(index);
        let successors = plan.transactions[index].successors.iter().map(|next| *next as usize);
        for other in successors.chain([same_sender]) {
            let (a, b) = (root(&mut parents, index), root(&mut parents, other));
            parents[a.max(b)] = a.min(b);
        }
    }
    (0..transactions.len()).map(|index| root(&mut parents, index)).collect()
}

/// Records which thread has which component.
struct Owners<'a> {
    roots: &'a [usize],
    /// Threads, indexed by the first transaction of a component; [`NOBODY`] at first.
    threads: Vec<AtomicUsize>,
}

const NOBODY: usize = usize::MAX;

impl<'a> Owners<'a> {
    fn new(roots: &'a [usize]) -> Owners<'a> {
        Owners { roots, threads: roots.iter().map(|_| AtomicUsize::new(NOBODY)).collect() }
    }

    /// Whether the transaction belongs to this thread. Claims its component if no thread has it.
    fn claims(&self, index: usize, thread: usize) -> bool {
        let owner = &self.threads[self.roots[index]];
        match owner.load(Relaxed) {
            NOBODY => owner.compare_exchange(NOBODY, thread, Relaxed, Relaxed).is_ok(),
            owner => owner == thread,
        }
    }
}

/// The results of a group apart from its changes.
struct Trace {
    entries: Vec<(u32, TransactionRecord)>,
    reads: WorkingSet,
    /// Written keys, each with the first transaction that wrote it.
    writes: HashMap<StateKey, u32>,
    /// Changed balances, each with the first transaction that changed it. Senders' balances are in `spends` instead.
    balances: AddressMap<u32>,
    spends: Spends,
    /// Contracts whose nonce determined a new address.
    nonces_read: AddressSet,
    /// Code of contracts that the group created.
    codes_made: Vec<Digest>,
}

impl Trace {
    /// Runs a thread's share. Returns `None` if a transaction is invalid at its position, or observed values that other
    /// groups change all the time. Also returns `None` if a transaction changed the fee recipient's code or nonce,
    /// which all others load.
    fn of(
        state: &dyn ExecutionState,
        env: &BatchEnv,
        transactions: &[Transaction],
        owners: &Owners<'_>,
        thread: usize,
    ) -> Option<(Changes, Trace)> {
        let mut machine = Machine::new(state, env).ok()?;
        let count = transactions.len() / 2;
        let (mut entries, mut spends) = (Vec::with_capacity(count), Spends::with_capacity(count));
        let mut writes = HashMap::with_capacity_and_hasher(WRITES * count, Default::default());
        let mut balances = AddressMap::with_capacity_and_hasher(count, Default::default());
        let mut nonces_read = AddressSet::default();
        let mut gas_used = 0;
        for (index, transaction) in transactions.iter().enumerate() {
            if !owners.claims(index, thread) {
                continue;
            }
            let index = index as u32;
            // A single thread would have stopped here.
            if gas_used > env.gas_limit {
                return None;
            }
            machine.begin(index);
            let executed = machine.run(transaction).ok()?;
            if executed.looks_at(&env.beneficiary) {
                return None;
            }
            gas_used += executed.gas_used;
            nonces_read.extend(executed.nonces_read());
            spends.add(&executed, transaction);
            let TransactionResult { executed, entry } =
                TransactionResult::new(executed, transaction, env.beneficiary, true).ok()?;
            for key in &entry.access.writes {
                writes.entry(*key).or_insert(index);
            }
            let changed = entry.access.balances_changed.iter();
            for address in changed.filter(|address| **address != transaction.sender) {
                balances.entry(*address).or_insert(index);
            }
            machine.commit(executed);
            entries.push((index, entry));
        }
        if writes.contains_key(&StateKey::Account(env.beneficiary)) {
            return None;
        }
        let (changes, reads) = machine.finish_part().ok()?;
        let codes_made = changes.new_codes().collect();
        Some((changes, Trace { entries, reads, writes, balances, spends, nonces_read, codes_made }))
    }

    /// Whether this group is independent of the others. No other group may have written, earlier in the batch, a key
    /// that this group read, or created code that this group read. This group's payers must also be able to pay after
    /// the others' payments.
    fn is_separate(&self, all: &[Trace]) -> bool {
        let others: Vec<&Trace> = all.iter().filter(|other| !std::ptr::eq(*other, self)).collect();
        let is_written = |key: &StateKey, index: u32| {
            others.iter().any(|other| other.writes.get(key).is_some_and(|first| *first < index))
        };
        let is_changed = |address: &Address, index: u32| {
            others.iter().any(|other| {
                other.spends.contains(address)
                    || other.balances.get(address).is_some_and(|first| *first < index)
            })
        };
        let reads_alone = |(index, entry): &(u32, TransactionRecord)| {
            !entry.access.reads.iter().any(|key| is_written(key, *index))
                && !entry.access.balances_read.iter().any(|address| is_changed(address, *index))
        };
        let spends: Vec<&Spends> = others.iter().map(|other| &other.spends).collect();
        // A later transaction may call a contract made earlier, and must not read the same code from the state.
        let mut codes_made = others.iter().flat_map(|other| &other.codes_made);
        let mut nonces_read = self.nonces_read.iter();
        self.entries.iter().all(reads_alone)
            && !nonces_read.any(|address| others.iter().any(|other| other.spends.contains(address)))
            && self.spends.allow(&spends)
            && !codes_made.any(|hash| self.reads.has_code(hash))
    }
}

/// Joins the groups' results except their changes, in the order of the batch. Returns `None` if the groups depend on
/// each other after all, or the batch exceeds a limit.
fn joined(
    traces: Vec<Trace>,
    env: &BatchEnv,
    transactions: &[Transaction],
) -> Option<(FinishedBatch, BatchTotals)> {
    if !traces.iter().all(|trace| trace.is_separate(&traces)) {
        return None;
    }
    let mut entries = Vec::with_capacity(transactions.len());
    let mut reads = WorkingSet::default();
    for trace in traces {
        entries.extend(trace.entries);
        reads = reads.join(trace.reads);
    }
    entries.sort_unstable_by_key(|(index, _)| *index);
    let mut tally = BatchTotals::new(env);
    for ((_, entry), transaction) in entries.into_iter().zip(transactions) {
        tally.check_gas(transaction.gas_limit()).and_then(|()| tally.add(entry)).ok()?;
    }
    Some((reads.finish(), tally))
}

#[cfg(test)]
mod tests;
