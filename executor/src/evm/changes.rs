//! [`Changes`]: computes the net delta from revm's cache after the batch and the recorder's reads before it.

use alloy_primitives::{
    Address, B256, U256,
    map::{AddressMap, HashSet},
};
use revm::{
    database::{CacheState, states::CacheAccount},
    primitives::hardfork::SpecId,
    state::{Account, EvmState},
};
use slipstream_types::{AccountValue, Delta, Digest, StateKey, StateValue, delta::DeltaEntry, limits};

use super::{
    adapter::account_value,
    observe::COMMUTING_BITS_MAX,
    working_set::{AccountReads, WorkingSet},
};
use crate::error::ExecuteError;

/// The rows and codes that a batch, or a part of it, changed.
#[derive(Default)]
pub(crate) struct Changes {
    accounts: Vec<AccountChange>,
    /// Slots whose value differs.
    slots: Vec<DeltaEntry>,
    /// Code that accounts have afterwards and did not have before.
    codes: Vec<Vec<u8>>,
    /// Whether a contract that existed before the batch, or its slots, may be gone.
    has_destroyed: bool,
}

/// An account's row before and after, which may be equal.
struct AccountChange {
    address: Address,
    before: Option<AccountValue>,
    after: Option<AccountValue>,
}

/// Returns every row that the batch changed, and the code that accounts have after it but not before it. The result is
/// deterministic: it depends only on the states before and after. Neither the path between them nor the code in the
/// store matters.
///
/// From Cancun on, SELFDESTRUCT removes only contracts of the same transaction, which have no rows. Under older rules
/// (mainnet blocks in tests) a destroyed contract loses the slots that the batch had read. Its unread slots are unknown
/// here, so the delta lacks them.
pub(super) fn changes(
    cache: &CacheState,
    before: &WorkingSet,
    spec: SpecId,
) -> Result<Changes, ExecuteError> {
    let unread = AccountReads::default();
    let mut changes = Changes::default();
    for (address, account) in cache.accounts.iter().filter(|(_, account)| !account.status.is_not_modified()) {
        let before = before.account(address).unwrap_or(&unread);
        let value_before = before.value.filter(|value| *value != AccountValue::default());
        if account.status.was_destroyed() {
            changes.has_destroyed = true;
            if spec.is_enabled_in(SpecId::CANCUN) {
                check_wiped(address, value_before)?;
            }
        }
        let info = account.account.as_ref().map(|account| &account.info);
        let after = info.and_then(account_value);
        changes.accounts.push(AccountChange { address: *address, before: value_before, after });
        let code_hash = after.and_then(|value| value.code_hash);
        if let Some(hash) = code_hash
            && value_before.and_then(|value| value.code_hash) != code_hash
        {
            let code = info.and_then(|info| info.code.as_ref());
            let code = code.or_else(|| cache.contracts.get(&B256::from(hash)));
            let code = code.ok_or(ExecuteError::MissingCode { hash })?;
            changes.codes.push(code.original_byte_slice().to_vec());
        }
        slot_entries(address, account, before, &mut changes.slots);
    }
    Ok(changes)
}

impl Changes {
    /// Hashes of code that accounts have afterwards and did not have before.
    pub(crate) fn new_codes(&self) -> impl Iterator<Item = Digest> {
        let code_hash = |value: Option<AccountValue>| value.and_then(|value| value.code_hash);
        let new = move |account: &AccountChange| {
            code_hash(account.after).filter(|hash| Some(*hash) != code_hash(account.before))
        };
        self.accounts.iter().filter_map(new)
    }

    /// Builds the net delta.
    pub(crate) fn into_delta(self) -> Result<Delta, ExecuteError> {
        let mut entries = self.slots;
        let changed = self.accounts.into_iter().filter(|account| account.before != account.after);
        entries.extend(changed.map(|account| DeltaEntry {
            key: StateKey::Account(account.address),
            value: account.after.map(StateValue::Account),
        }));
        Ok(Delta::new(entries, self.codes)?)
    }

    /// Joins the changes of two parts of a batch. The parts must be independent except for balances that both changed.
    /// Returns `None` if the rows conflict.
    pub(crate) fn join(mut self, other: Changes) -> Option<Changes> {
        if self.has_destroyed || other.has_destroyed {
            return None;
        }
        let places = self.accounts.iter().enumerate().map(|(place, account)| (account.address, place));
        let places: AddressMap<usize> = places.collect();
        for account in other.accounts {
            match places.get(&account.address) {
                Some(place) => self.accounts[*place].join(&account)?,
                None => self.accounts.push(account),
            }
        }
        // Every part makes the system calls before the batch.
        let mine: HashSet<StateKey> = self.slots.iter().map(|entry| entry.key).collect();
        self.slots.extend(other.slots.into_iter().filter(|entry| !mine.contains(&entry.key)));
        self.codes.extend(other.codes);
        Some(self)
    }
}

impl AccountChange {
    fn join(&mut self, other: &AccountChange) -> Option<()> {
        let [before, mine, theirs] =
            [self.before, self.after, other.after].map(|value| value.unwrap_or_default());
        let fits = |value: &AccountValue| value.balance.bit_len() <= COMMUTING_BITS_MAX;
        if ![before, mine, theirs].iter().all(fits) {
            return None;
        }
        let nonce = joined(before.nonce, mine.nonce, theirs.nonce)?;
        let code_hash = joined(before.code_hash, mine.code_hash, theirs.code_hash)?;
        let balance = mine.balance.wrapping_add(theirs.balance).wrapping_sub(before.balance);
        let after = AccountValue { nonce, balance, code_hash };
        self.after = Some(after).filter(|after| *after != AccountValue::default());
        Some(())
    }
}

/// Joins a value that at most one of two parts changed.
fn joined<T: PartialEq>(before: T, mine: T, theirs: T) -> Option<T> {
    match (mine == before, theirs == before) {
        (true, _) => Some(theirs),
        (_, true) => Some(mine),
        _ => None,
    }
}

/// Maximum bytes that these changes add to a delta. Changes of the same key add up here but merge in the delta, so the
/// sum over a batch's transactions is never too low. Each new code counts enough bytes to bound the number of codes
/// too.
pub(super) fn delta_bytes_max(changes: &EvmState) -> usize {
    const ACCOUNT_BYTES: usize = 100;
    const SLOT_BYTES: usize = 90;
    const CODE_BYTES_MIN: usize = limits::DELTA_BYTES_MAX / limits::DELTA_CODES_MAX;
    let bytes = |account: &Account| {
        let slots = account.changed_storage_slots().count();
        let is_new = account.info.code_hash != account.original_info().code_hash;
        let code = account.info.code.as_ref().filter(|_| is_new);
        let code_bytes = code.map_or(0, |code| code.original_byte_slice().len().max(CODE_BYTES_MIN));
        ACCOUNT_BYTES + slots * SLOT_BYTES + code_bytes
    };
    changes.values().filter(|account| account.is_touched()).map(bytes).sum()
}

fn slot_entries(
    address: &Address,
    account: &CacheAccount,
    before: &AccountReads,
    entries: &mut Vec<DeltaEntry>,
) {
    let mut push = |slot: B256, old: U256, new: U256| {
        if old != new {
            let value = (!new.is_zero()).then_some(StateValue::Slot(new));
            entries.push(DeltaEntry { key: StateKey::Slot(*address, slot), value });
        }
    };
    let storage = account.account.as_ref().map(|account| &account.storage);
    for (index, new) in storage.into_iter().flatten() {
        let slot = B256::from(*index);
        push(slot, before.slots.get(&slot).copied().unwrap_or_default(), *new);
    }
    // A destroyed account's cache is emptied: slots read before are gone unless they were written again.
    let gone =
        |slot: &B256| storage.is_none_or(|storage| !storage.contains_key(&U256::from_be_bytes(slot.0)));
    for (slot, old) in before.slots.iter().filter(|(slot, _)| gone(slot)) {
        push(*slot, *old, U256::ZERO);
    }
}

/// Refuses a destroyed account that may have had storage. An account with nonce 0 and empty code was never a contract,
/// so it has no storage.
fn check_wiped(address: &Address, before: Option<AccountValue>) -> Result<(), ExecuteError> {
    match before {
        Some(value) if value.nonce != 0 || value.code_hash.is_some() => {
            Err(ExecuteError::StorageWiped { address: *address })
        }
        _ => Ok(()),
    }
}
