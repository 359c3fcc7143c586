//! The encoded rows before the batch. A follower that has them executes before its disk answers, and compares later.
//!
//! The rows follow the order in which [`super::decode()`] names the keys, so the keys are not repeated. A repeated code
//! hash is written as a number. So is a slot that holds a hinted account's address: a pair of tokens, an owner, a
//! proxy's target.

use alloy_primitives::{
    Address, B256, U256,
    map::{AddressMap, B256Map, HashMap},
};

use super::{
    Hints,
    bytes::{Reader, invalid, put},
    context::as_address,
};
use crate::{
    codec::CodecError,
    digest::Digest,
    state::{AccountValue, StateKey, StateValue},
};

/// A key with its row before the batch, or `None` if it had no row.
pub type RowBefore = (StateKey, Option<StateValue>);

/// An account's first number: whether its row is known, whether a row exists, and which code the row names.
const NO_ROW: u64 = 0;
const UNKNOWN: u64 = 1;
const NO_CODE: u64 = 2;
const NEW_CODE: u64 = 3;
/// This number and those above it name the earlier code hashes, the first one first.
const EARLIER_CODE: u64 = 4;

/// A slot's first byte: the length of its value, where 0 means no row, or one of these.
const SLOT_UNKNOWN: u8 = 33;
const SLOT_ADDRESS: u8 = 34;

/// Writes the rows of the keys of `hints`, which have the decoder's order. Keys with unknown rows are marked.
pub(super) fn encode(hints: &Hints, before: &[RowBefore]) -> Vec<u8> {
    let before: HashMap<&StateKey, &Option<StateValue>> =
        before.iter().map(|(key, row)| (key, row)).collect();
    let mut codes = B256Map::default();
    let accounts = hints.accounts.iter().map(|account| account.address).zip(0u64..);
    let accounts: AddressMap<u64> = accounts.collect();
    let mut out = Vec::new();
    for key in hints.keys() {
        match (before.get(&key), key) {
            (Some(Some(StateValue::Account(account))), _) => put_account(&mut out, account, &mut codes),
            (Some(Some(StateValue::Slot(value))), _) => put_slot(&mut out, *value, &accounts),
            (Some(None), _) => put(&mut out, NO_ROW),
            (None, StateKey::Account(_)) => put(&mut out, UNKNOWN),
            (None, StateKey::Slot(..)) => out.push(SLOT_UNKNOWN),
        }
    }
    out
}

fn put_account(out: &mut Vec<u8>, account: &AccountValue, codes: &mut B256Map<u64>) {
    let next = EARLIER_CODE + codes.len() as u64;
    match account.code_hash {
        None => put(out, NO_CODE),
        Some(hash) => match codes.get(&B256::from(hash)) {
            Some(earlier) => put(out, *earlier),
            None => {
                codes.insert(hash.into(), next);
                put(out, NEW_CODE);
                out.extend_from_slice(&hash.0);
            }
        },
    }
    put(out, account.nonce);
    put_number(out, account.balance);
}

fn put_slot(out: &mut Vec<u8>, value: U256, accounts: &AddressMap<u64>) {
    let address = as_address(&value.to_be_bytes::<32>());
    match address.and_then(|address| accounts.get(&address)) {
        Some(number) => {
            out.push(SLOT_ADDRESS);
            put(out, *number);
        }
        None => put_number(out, value),
    }
}

/// Appends the number's length in bytes and its bytes, highest first.
fn put_number(out: &mut Vec<u8>, number: U256) {
    let bytes = number.to_be_bytes::<32>();
    let len = number.byte_len();
    out.push(len as u8);
    out.extend_from_slice(&bytes[32 - len..]);
}

/// Reads the rows of the keys of `hints`; unknown rows are omitted.
///
/// # Errors
/// If the rows are more or fewer than the keys, or one is malformed.
pub(super) fn decode(mut reader: Reader<'_>, hints: &Hints) -> Result<Vec<RowBefore>, CodecError> {
    let keys = hints.keys().count();
    // A row takes at least a byte.
    if reader.checked(keys as u64).is_err() {
        return Err(invalid("the values are for fewer keys"));
    }
    let mut rows = Vec::with_capacity(keys);
    let mut codes = Vec::new();
    for key in hints.keys() {
        let row = match key {
            StateKey::Account(_) => account(&mut reader, &mut codes)?,
            StateKey::Slot(..) => slot(&mut reader, hints)?,
        };
        rows.extend(row.map(|row| (key, row)));
    }
    if reader.is_empty() { Ok(rows) } else { Err(invalid("the values are for more keys")) }
}

/// Returns `None` for an unknown row, as [`slot`] does.
fn account(
    reader: &mut Reader<'_>,
    codes: &mut Vec<Digest>,
) -> Result<Option<Option<StateValue>>, CodecError> {
    let code_hash = match reader.number()? {
        NO_ROW => return Ok(Some(None)),
        UNKNOWN => return Ok(None),
        NO_CODE => None,
        NEW_CODE => {
            let hash = reader.word()?.into();
            codes.push(hash);
            Some(hash)
        }
        earlier => {
            let earlier = usize::try_from(earlier - EARLIER_CODE).ok();
            let hash = earlier.and_then(|earlier| codes.get(earlier));
            Some(*hash.ok_or(invalid("no earlier account has that code"))?)
        }
    };
    let nonce = reader.number()?;
    let len = reader.byte()?;
    let balance = number(reader, len)?;
    Ok(Some(Some(StateValue::Account(AccountValue { nonce, balance, code_hash }))))
}

fn slot(reader: &mut Reader<'_>, hints: &Hints) -> Result<Option<Option<StateValue>>, CodecError> {
    let value = match reader.byte()? {
        SLOT_UNKNOWN => return Ok(None),
        SLOT_ADDRESS => address(reader, hints)?.into_word().into(),
        len => number(reader, len)?,
    };
    Ok(Some((!value.is_zero()).then_some(StateValue::Slot(value))))
}

fn address(reader: &mut Reader<'_>, hints: &Hints) -> Result<Address, CodecError> {
    let account = usize::try_from(reader.number()?).ok().and_then(|number| hints.accounts.get(number));
    Ok(account.ok_or(invalid("a value names an account that the hints lack"))?.address)
}

fn number(reader: &mut Reader<'_>, len: u8) -> Result<U256, CodecError> {
    if len > 32 {
        return Err(invalid("a value has at most 256 bits"));
    }
    Ok(U256::from_be_slice(reader.bytes(len.into())?))
}
