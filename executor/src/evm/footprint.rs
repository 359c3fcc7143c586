//! Computes a transaction's [`AccessSet`] from what revm loaded and changed.

use alloy_primitives::{Address, B256, U256, map::AddressMap};
use revm::state::Account;
use slipstream_types::StateKey;

use super::{machine::ExecutedTransaction, observe::Observations};
use crate::{access::AccessSet, transaction::Transaction};

impl ExecutedTransaction {
    /// Returns the accesses that other transactions could disturb, or that could disturb others. Leaves out accesses
    /// that commute: unobserved balances, the fee recipient's balance, and the sender's nonce, which the transaction
    /// itself names. Leaves out the fee recipient's existence too, because every fee may create the account
    /// ([`ExecutedTransaction::looks_at`]).
    pub(crate) fn access(&self, sender: Address, beneficiary: Address) -> AccessSet {
        let mut set = AccessSet::default();
        for (address, account) in &self.state {
            let role = Role { is_sender: *address == sender, is_beneficiary: *address == beneficiary };
            let is_changed = changes_account(account, role);
            self.balance(*address, account, role.is_beneficiary, &mut set);
            if !is_changed && role.only_pays(account) {
                continue;
            }
            set.reads.push(StateKey::Account(*address));
            if is_changed {
                set.writes.push(StateKey::Account(*address));
            }
            // A contract that this transaction creates has no storage to read.
            if !account.is_created() {
                let slots = account.storage.keys();
                set.reads.extend(slots.map(|slot| StateKey::Slot(*address, B256::from(*slot))));
            }
            let changed = account.changed_storage_slots();
            set.writes.extend(changed.map(|(slot, _)| StateKey::Slot(*address, B256::from(*slot))));
        }
        set
    }

    /// Whether the result depends on the account's balance or existence, or on more than could be recorded.
    pub(crate) fn looks_at(&self, address: &Address) -> bool {
        let Observations { balances, existences, everything, .. } = &self.observed;
        *everything || balances.contains(address) || existences.contains(address)
    }

    /// Contracts whose nonce the result depends on, because it determined a new contract's address. A sender's nonce is
    /// not among the recorded writes. So a sender that delegates to a contract (EIP-7702) disturbs transactions that
    /// read its nonce.
    pub(crate) fn nonces_read(&self) -> &[Address] {
        &self.observed.nonces
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

/// The least balance and the total payments of each account that paid in a part of a batch. Balances commute only if
/// every payer could also pay after the payments of the other parts.
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

    pub(crate) fn add(&mut self, executed: &ExecutedTransaction, transaction: &Transaction) {
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

    /// Whether every account could still pay if the payments of `others` had come first.
    pub(crate) fn allow(&self, others: &[&Spends]) -> bool {
        let could_pay = |(address, spent): (&Address, &Spent)| {
            let theirs = others.iter().filter_map(|other| other.0.get(address));
            theirs.fold(U256::ZERO, |sum, other| sum.saturating_add(other.total)) <= spent.left_min
        };
        self.0.iter().all(could_pay)
    }
}

/// The role that an account plays in a transaction.
#[derive(Clone, Copy)]
struct Role {
    is_sender: bool,
    is_beneficiary: bool,
}

impl Role {
    /// Whether the account was loaded for fees and for nothing else that others could disturb.
    fn only_pays(self, account: &Account) -> bool {
        (self.is_sender || self.is_beneficiary) && account.storage.is_empty()
    }
}

/// Whether the transaction changed the account's code, nonce or existence. If no payment is needed, an empty sender
/// exists afterwards because of its nonce alone.
fn changes_account(account: &Account, role: Role) -> bool {
    if !account.is_touched() {
        return false;
    }
    let before = account.original_info();
    let after = &account.info;
    account.is_selfdestructed()
        || account.is_created()
        || after.code_hash != before.code_hash
        || (!role.is_beneficiary && after.is_empty() != before.is_empty())
        || (!role.is_sender && after.nonce != before.nonce)
}
