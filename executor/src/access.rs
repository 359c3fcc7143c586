//! [`AccessSet`]: the keys that a transaction read and wrote, or probably will. [`conflicts`]: finds which transactions
//! must wait for which.
//!
//! Only accesses that do not commute count. Transactions that only add to a balance do not wait for each other. Fees
//! and the sender's nonce disturb no other transaction, as long as the account exists for other reasons too. A read
//! counts only if an earlier transaction writes the key. Parallel execution keeps the versions of a key apart, so two
//! writes, or a write after a read, do not conflict.

use alloy_primitives::{
    Address,
    map::{AddressMap, AddressSet, HashMap},
};
use slipstream_types::{Conflicts, StateKey};

use crate::transaction::Transaction;

/// The keys that one transaction reads and writes. An account's key stands for its code, its nonce and its existence.
/// Its balance has a key of its own, because few transactions read it. Equality ignores the order of the keys.
#[derive(Clone, Debug, Default)]
pub struct AccessSet {
    /// Keys whose value the transaction depends on.
    pub reads: Vec<StateKey>,
    /// Keys that the transaction changes.
    pub writes: Vec<StateKey>,
    /// Accounts whose balance the transaction depends on.
    pub balances_read: Vec<Address>,
    /// Accounts whose balance the transaction changes.
    pub balances_changed: Vec<Address>,
}

impl PartialEq for AccessSet {
    fn eq(&self, other: &Self) -> bool {
        fn same<T: Copy + Ord>(a: &[T], b: &[T]) -> bool {
            let [a, b] = [a, b].map(|keys| {
                let mut keys = keys.to_vec();
                keys.sort_unstable();
                keys
            });
            a == b
        }
        same(&self.reads, &other.reads)
            && same(&self.writes, &other.writes)
            && same(&self.balances_read, &other.balances_read)
            && same(&self.balances_changed, &other.balances_changed)
    }
}

impl Eq for AccessSet {}

/// Maximum number of predecessors that a transaction names. If a hundred transactions add to a balance before another
/// reads it, the reader has a hundred predecessors. When the latest predecessors have run, the others nearly always
/// have too.
const PREDECESSORS_MAX: usize = 16;

impl AccessSet {
    /// Returns the accesses that the transaction itself reveals: its access list's slots, its sender, and the contract
    /// that it calls. These accesses mostly give too many conflicts, and miss those of inner calls.
    pub fn announced(transaction: &Transaction) -> AccessSet {
        use alloy_consensus::Transaction as _;
        let listed = transaction.envelope.access_list().map(|list| list.0.as_slice()).unwrap_or_default();
        let slots = listed
            .iter()
            .flat_map(|item| item.storage_keys.iter().map(|slot| StateKey::Slot(item.address, *slot)));
        let called = transaction.to().filter(|_| !transaction.input().is_empty());
        let keys: Vec<_> =
            std::iter::once(transaction.sender).chain(called).map(StateKey::Account).chain(slots).collect();
        AccessSet { reads: keys.clone(), writes: keys, ..AccessSet::default() }
    }

    /// Returns the minimal set: the sender's account, which orders transactions of one sender.
    pub fn of_sender(transaction: &Transaction) -> AccessSet {
        let sender = vec![StateKey::Account(transaction.sender)];
        AccessSet { reads: sender.clone(), writes: sender, ..AccessSet::default() }
    }
}

/// Returns a batch's conflict graph from its transactions alone: from their [`AccessSet::announced`] and gas limits.
pub fn announced_conflicts(transactions: &[Transaction]) -> Conflicts {
    let sets: Vec<AccessSet> = transactions.iter().map(AccessSet::announced).collect();
    conflicts(&sets, transactions.iter().map(Transaction::gas_limit).collect())
}

/// Returns the conflict graph of a batch with these access sets, exact or predicted. `gas` is an estimate of each
/// transaction's gas.
///
/// A transaction waits for the last earlier transaction that writes a key that it reads. If it reads a balance, it
/// waits for all earlier transactions that change the balance. Predecessors of direct predecessors are left out, which
/// is most of a full transitive reduction.
pub fn conflicts(sets: &[AccessSet], gas: Vec<u64>) -> Conflicts {
    // Nearly all balances only change by payments and are never read.
    let asked: AddressSet = sets.iter().flat_map(|set| &set.balances_read).copied().collect();
    let mut changed: AddressMap<Vec<u32>> = AddressMap::default();
    let writes = sets.iter().map(|set| set.writes.len()).sum();
    let mut written: HashMap<&StateKey, u32> = HashMap::with_capacity_and_hasher(writes, Default::default());
    let mut predecessors: Vec<Vec<u32>> = Vec::with_capacity(sets.len());
    let mut found = Vec::new();
    for (index, set) in (0..).zip(sets) {
        found.extend(set.reads.iter().filter_map(|key| written.get(key)));
        for address in &set.balances_read {
            let changes = changed.get(address).map(Vec::as_slice).unwrap_or_default();
            found.extend(changes.iter().rev().take(PREDECESSORS_MAX));
        }
        written.extend(set.writes.iter().map(|key| (key, index)));
        if !asked.is_empty() {
            for address in set.balances_changed.iter().filter(|address| asked.contains(*address)) {
                changed.entry(*address).or_default().push(index);
            }
        }
        predecessors.push(reduced(&mut found, &predecessors));
        found.clear();
    }
    Conflicts { predecessors, gas }
}

fn reduced(found: &mut Vec<u32>, predecessors: &[Vec<u32>]) -> Vec<u32> {
    found.sort_unstable();
    found.dedup();
    let is_implied = |one: &u32| {
        found.iter().any(|other| other > one && predecessors[*other as usize].binary_search(one).is_ok())
    };
    let mut needed: Vec<u32> = found.iter().copied().filter(|one| !is_implied(one)).collect();
    needed.drain(..needed.len().saturating_sub(PREDECESSORS_MAX));
    needed
}

#[cfg(test)]
mod tests {
    use alloy_primitives::B256;

    use super::*;

    fn slot(index: u8) -> StateKey {
        StateKey::Slot(Address::ZERO, B256::with_last_byte(index))
    }

    fn set(reads: &[StateKey], writes: &[StateKey]) -> AccessSet {
        AccessSet { reads: reads.to_vec(), writes: writes.to_vec(), ..AccessSet::default() }
    }

    fn graph(sets: &[AccessSet]) -> Vec<Vec<u32>> {
        conflicts(sets, vec![0; sets.len()]).predecessors
    }

    #[test]
    fn only_a_read_of_what_was_written_before_waits() {
        let sets = [
            set(&[slot(1)], &[slot(2)]),
            set(&[], &[slot(1), slot(2)]),
            set(&[slot(1)], &[]),
            set(&[slot(3)], &[]),
        ];
        assert_eq!(graph(&sets), [vec![], vec![], vec![1], vec![]]);
    }

    #[test]
    fn a_predecessor_of_a_predecessor_is_left_out() {
        let step = |from, to| set(&[slot(from)], &[slot(to)]);
        let sets = [step(0, 1), step(1, 2), set(&[slot(1), slot(2)], &[])];
        assert_eq!(graph(&sets), [vec![], vec![0], vec![1]]);
    }

    #[test]
    fn who_asks_for_a_balance_waits_for_all_that_pay_it_and_they_for_nobody() {
        let pay = AccessSet { balances_changed: vec![Address::ZERO], ..AccessSet::default() };
        let mut sets = vec![pay; 3];
        sets.push(AccessSet { balances_read: vec![Address::ZERO], ..AccessSet::default() });
        assert_eq!(graph(&sets), [vec![], vec![], vec![], vec![0, 1, 2]]);
        sets.splice(0..0, vec![sets[0].clone(); 100]);
        assert_eq!(graph(&sets)[103].len(), PREDECESSORS_MAX);
    }
}
