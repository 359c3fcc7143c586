//! A transaction's [`AccessSet`], from what revm loaded and changed.

use alloy_primitives::{Address, B256, U256, map::AddressMap};
use revm::state::Account;
use slipstream_types::StateKey;

use super::{machine::Executed, observe::Observed};
use crate::{access::AccessSet, transaction::Transaction};

impl Executed {
    /// What others could disturb, and what could disturb others. Left out is what commutes: balances that nobody asked for,
    /// the fee recipient's, and the sender's nonce, which the transaction itself names.
    pub(crate) fn access(&self, sender: Address, beneficiary: Address) -> AccessSet {
        let mut set = AccessSet::default();
        for (address, account) in &self.state {
            if account.storage.is_empty() && (*address == sender || *address == beneficiary) {
                // Almost always nothing but fees.
                if !account.is_selfdestructed() {
                    self.balance(*address, account, *address == beneficiary, &mut set);
                    continue;
                }
            }
            set.reads.push(StateKey::Account(*address));
            if changes_account(account, *address == sender) {
                set.writes.push(StateKey::Account(*address));
            }
            self.balance(*address, account, *address == beneficiary, &mut set);
            // A contract that this transaction makes has no storage to read.
            if !account.is_created() {
                let slots = account.storage.keys();
                set.reads.extend(slots.map(|slot| StateKey::Slot(*address, B256::from(*slot))));
            }
            let changed = account.changed_storage_slots();
            set.writes.extend(changed.map(|(slot, _)| StateKey::Slot(*address, B256::from(*slot))));
        }
        set
    }

    /// Whether it depends on what the account has or on whether it exists, or on more than can be told.
    pub(crate) fn looks_at(&self, address: &Address) -> bool {
        let Observed { balances, existences, everything, .. } = &self.observed;
        *everything || balances.contains(address) || existences.contains(address)
    }

    fn balance(&self, address: Address, account: &Account, is_beneficiary: bool, set: &mut AccessSet) {
        if self.observed.everything || self.observed.balances.contains(&address) {
            set.balances_read.push(address);
        }
        if !is_beneficiary && account.info.balance != account.original_info().balance {
            set.balances_changed.push(address);
        }
    }
}

/// Of each account that paid in a part of a batch, what was left at the least and what it paid in all. Balances commute only as
/// long as everybody who pays could also pay if the other parts' payments had come first.
#[derive(Default)]
pub(crate) struct Spends(AddressMap<Spent>);

struct Spent {
    left_min: U256,
    /// Saturates.
    total: U256,
}

impl Default for Spent {
    fn default() -> Self {
        Spent { left_min: U256::MAX, total: U256::ZERO }
    }
}

impl Spends {
    pub(crate) fn with_capacity(accounts: usize) -> Spends {
        Spends(AddressMap::with_capacity_and_hasher(accounts, Default::default()))
    }

    /// Whether the account sent a transaction or paid.
    pub(crate) fn contains(&self, address: &Address) -> bool {
        self.0.contains_key(address)
    }

    pub(crate) fn add(&mut self, executed: &Executed, transaction: &Transaction) {
        for (address, account) in &executed.state {
            let (before, after) = (account.original_info().balance, account.info.balance);
            let is_sender = *address == transaction.sender;
            if is_sender || after < before {
                let spent = self.0.entry(*address).or_default();
                spent.total = spent.total.saturating_add(before.saturating_sub(after));
                if is_sender {
                    spent.left_min = spent.left_min.min(before.saturating_sub(transaction.cost_max()));
                }
            }
        }
        for (address, left) in &executed.observed.spent {
            let spent = self.0.entry(*address).or_default();
            spent.left_min = spent.left_min.min(*left);
        }
    }

    /// Whether all could still pay if whatever `others` paid had been paid before.
    pub(crate) fn allow(&self, others: &[&Spends]) -> bool {
        let could_pay = |(address, spent): (&Address, &Spent)| {
            let theirs = others.iter().filter_map(|other| other.0.get(address));
            theirs.fold(U256::ZERO, |sum, other| sum.saturating_add(other.total)) <= spent.left_min
        };
        self.0.iter().all(could_pay)
    }
}

/// Whether code, nonce or existence are others after it.
fn changes_account(account: &Account, is_sender: bool) -> bool {
    if !account.is_touched() {
        return false;
    }
    let before = account.original_info();
    let after = &account.info;
    account.is_selfdestructed()
        || account.is_created()
        || after.code_hash != before.code_hash
        || after.is_empty() != before.is_empty()
        || (!is_sender && after.nonce != before.nonce)
}
