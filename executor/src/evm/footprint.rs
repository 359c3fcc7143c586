//! A transaction's [`AccessSet`], from what revm loaded and changed.

use alloy_primitives::{Address, B256};
use revm::state::Account;

use super::machine::Executed;
use crate::access::{AccessKey, AccessSet};

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
            set.reads.push(AccessKey::Account(*address));
            if changes_account(account, *address == sender) {
                set.writes.push(AccessKey::Account(*address));
            }
            self.balance(*address, account, *address == beneficiary, &mut set);
            // A contract that this transaction makes has no storage to read.
            if !account.is_created() {
                let slots = account.storage.keys();
                set.reads.extend(slots.map(|slot| AccessKey::Slot(*address, B256::from(*slot))));
            }
            let changed = account.changed_storage_slots();
            set.writes.extend(changed.map(|(slot, _)| AccessKey::Slot(*address, B256::from(*slot))));
        }
        set
    }

    fn balance(&self, address: Address, account: &Account, is_beneficiary: bool, set: &mut AccessSet) {
        if self.observed.everything || self.observed.balances.contains(&address) {
            set.reads.push(AccessKey::Balance(address));
        }
        if !is_beneficiary && account.info.balance != account.original_info().balance {
            set.writes.push(AccessKey::Balance(address));
        }
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
