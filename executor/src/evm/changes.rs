//! The net delta: what revm's cache holds after the batch against what the recorder read before it.

use alloy_primitives::{Address, B256, U256};
use revm::{
    database::{CacheState, states::CacheAccount},
    primitives::hardfork::SpecId,
    state::{Account, EvmState},
};
use slipstream_types::{AccountValue, Delta, StateKey, StateValue, delta::DeltaEntry, limits};

use super::{
    adapter::account_value,
    recorder::{AccountReads, Recorder},
};
use crate::error::ExecuteError;

/// Every row that differs, and the code that accounts have now and had not before. Deterministic: it depends on the two
/// states alone, not on the way between them, nor on which code the store happens to hold already.
///
/// From Cancun on SELFDESTRUCT removes only contracts of the same transaction, which have no rows. Under older
/// rules (mainnet blocks in tests) a destroyed contract loses the slots that the batch had read; slots that it never
/// read are unknown here and are not in the delta.
pub(super) fn net_delta(
    cache: &CacheState,
    before: &Recorder<'_>,
    spec: SpecId,
) -> Result<Delta, ExecuteError> {
    let unread = AccountReads::default();
    let mut entries = Vec::new();
    let mut codes = Vec::new();
    for (address, account) in cache.accounts.iter().filter(|(_, account)| !account.status.is_not_modified()) {
        let before = before.account(address).unwrap_or(&unread);
        let value_before = before.value.filter(|value| *value != AccountValue::default());
        if spec.is_enabled_in(SpecId::CANCUN) && account.status.was_destroyed() {
            check_wiped(address, value_before)?;
        }
        let info = account.account.as_ref().map(|account| &account.info);
        let value_after = info.and_then(account_value);
        if value_after != value_before {
            let value = value_after.map(StateValue::Account);
            entries.push(DeltaEntry { key: StateKey::Account(*address), value });
        }
        let code_hash = value_after.and_then(|value| value.code_hash);
        if let Some(hash) = code_hash
            && value_before.and_then(|value| value.code_hash) != code_hash
        {
            let code = info.and_then(|info| info.code.as_ref());
            let code = code.or_else(|| cache.contracts.get(&B256::from(hash)));
            codes.push(code.ok_or(ExecuteError::MissingCode { hash })?.original_byte_slice().to_vec());
        }
        slot_entries(address, account, before, &mut entries);
    }
    Ok(Delta::new(entries, codes)?)
}

/// Most bytes that a delta grows by if these changes are added to it. Changes of the same keys add up here and do not in
/// the delta, so the sum over a batch's transactions is never too low. New code weighs enough for its number to be
/// bounded too.
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
    // A destroyed account's cache is emptied: what was read of it before is gone unless it was written again.
    let gone =
        |slot: &B256| storage.is_none_or(|storage| !storage.contains_key(&U256::from_be_bytes(slot.0)));
    for (slot, old) in before.slots.iter().filter(|(slot, _)| gone(slot)) {
        push(*slot, *old, U256::ZERO);
    }
}

/// An account without nonce and code was never a contract and has no storage.
fn check_wiped(address: &Address, before: Option<AccountValue>) -> Result<(), ExecuteError> {
    match before {
        Some(value) if value.nonce != 0 || value.code_hash.is_some() => {
            Err(ExecuteError::StorageWiped { address: *address })
        }
        _ => Ok(()),
    }
}
