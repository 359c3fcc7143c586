//! The objects that override state and block for one call. They use geth's names and are bounded in number and size.

use std::{collections::BTreeMap, fmt};

use alloy_primitives::{Address, B256, Bytes, U256};
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor},
};
use slipstream_executor::{AccountOverride, BlockOverrides, StorageOverride};

use crate::{errors::RpcError, params::Strict};

/// Limits of one call: accounts, slots and bytes of code, and block hashes. They are generous for simulations by hand
/// or by bundlers. The limit on code keeps its analysis cheaper than the call itself.
const ACCOUNTS_MAX: usize = 1_000;
const SLOTS_MAX: usize = 10_000;
const CODE_BYTES_MAX: usize = 1 << 20;
const HASHES_MAX: usize = 256;

/// `{address: {balance, …}}`, as clients write it.
#[derive(Deserialize, Default)]
#[serde(transparent)]
pub(crate) struct AccountsObject(BTreeMap<Strict<Address>, AccountObject>);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AccountObject {
    balance: Option<Strict<U256>>,
    nonce: Option<Strict<u64>>,
    code: Option<Strict<Bytes>>,
    state: Option<Slots>,
    state_diff: Option<Slots>,
    move_precompile_to_address: Option<Strict<Address>>,
}

/// Slots and their new values, both as 32 bytes.
type Slots = BTreeMap<Strict<B256>, Strict<B256>>;

/// The totals of the overrides read so far in a request.
#[derive(Default)]
pub(crate) struct OverrideTotals {
    accounts: usize,
    slots: usize,
    code_bytes: usize,
}

impl AccountsObject {
    /// # Errors
    /// If there are too many accounts or slots or too much code, or if an override cannot be applied.
    pub(crate) fn into_overrides(self) -> Result<BTreeMap<Address, AccountOverride>, RpcError> {
        self.into_overrides_beside(&mut OverrideTotals::default())
    }

    /// Like [`AccountsObject::into_overrides`], for one of several objects in a request that share the limits.
    ///
    /// # Errors
    /// As [`AccountsObject::into_overrides`].
    pub(crate) fn into_overrides_beside(
        self,
        before: &mut OverrideTotals,
    ) -> Result<BTreeMap<Address, AccountOverride>, RpcError> {
        let slots = |account: &AccountObject| {
            [&account.state, &account.state_diff].into_iter().flatten().map(BTreeMap::len).sum::<usize>()
        };
        let code = |account: &AccountObject| account.code.as_ref().map_or(0, |code| code.0.len());
        before.accounts += self.0.len();
        before.slots += self.0.values().map(slots).sum::<usize>();
        before.code_bytes += self.0.values().map(code).sum::<usize>();
        within("accounts", before.accounts, ACCOUNTS_MAX)?;
        within("slots", before.slots, SLOTS_MAX)?;
        within("bytes of code", before.code_bytes, CODE_BYTES_MAX)?;
        self.0
            .into_iter()
            .map(|(Strict(address), account)| Ok((address, account.into_override(address)?)))
            .collect()
    }
}

impl AccountObject {
    fn into_override(self, address: Address) -> Result<AccountOverride, RpcError> {
        let storage = match (self.state, self.state_diff) {
            (Some(_), Some(_)) => {
                let text = format!("account {address} has both 'state' and 'stateDiff'");
                return Err(RpcError::InvalidParams(text));
            }
            (Some(all), None) => StorageOverride::All(words(all)),
            (None, some) => StorageOverride::Some(words(some.unwrap_or_default())),
        };
        Ok(AccountOverride {
            balance: self.balance.map(|balance| balance.0),
            nonce: self.nonce.map(|nonce| nonce.0),
            code: self.code.map(|code| code.0),
            precompile_to: self.move_precompile_to_address.map(|to| to.0),
            storage,
        })
    }
}

fn words(slots: Slots) -> BTreeMap<B256, U256> {
    slots.into_iter().map(|(Strict(slot), Strict(value))| (slot, value.into())).collect()
}

fn within(what: &str, found: usize, max: usize) -> Result<(), RpcError> {
    if found <= max {
        return Ok(());
    }
    Err(RpcError::InvalidParams(format!(
        "{found} {what} are overridden, but one request may override at most {max}"
    )))
}

/// `{number, time, …}`. Older clients use the alternative names.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct BlockObject {
    number: Option<Strict<U256>>,
    time: Option<Strict<u64>>,
    gas_limit: Option<Strict<u64>>,
    #[serde(alias = "coinbase")]
    fee_recipient: Option<Strict<Address>>,
    #[serde(alias = "random")]
    prev_randao: Option<Strict<B256>>,
    #[serde(alias = "baseFee")]
    base_fee_per_gas: Option<Strict<u64>>,
    difficulty: Option<Strict<U256>>,
    blob_base_fee: Option<Strict<u128>>,
    #[serde(default)]
    block_hash: Hashes,
}

impl BlockObject {
    /// # Errors
    /// If there are too many block hashes.
    pub(crate) fn into_overrides(self) -> Result<BlockOverrides, RpcError> {
        within("block hashes", self.block_hash.0.len(), HASHES_MAX)?;
        Ok(BlockOverrides {
            number: self.number.map(|number| number.0),
            timestamp_s: self.time.map(|time| time.0),
            gas_limit: self.gas_limit.map(|gas| gas.0),
            beneficiary: self.fee_recipient.map(|address| address.0),
            prev_randao: self.prev_randao.map(|random| random.0),
            base_fee_wei: self.base_fee_per_gas.map(|fee| fee.0),
            difficulty: self.difficulty.map(|difficulty| difficulty.0),
            blob_base_fee_wei: self.blob_base_fee.map(|fee| fee.0),
            hashes: self.block_hash.0,
        })
    }
}

/// Block hashes by number. The number is a quantity or, because it is an object key, decimal digits.
#[derive(Default)]
struct Hashes(BTreeMap<u64, B256>);

impl<'de> Deserialize<'de> for Hashes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HashesVisitor;

        impl<'de> Visitor<'de> for HashesVisitor {
            type Value = Hashes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of block hashes by number")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Hashes, A::Error> {
                let mut hashes = BTreeMap::new();
                while let Some((key, Strict(hash))) = map.next_entry::<String, Strict<B256>>()? {
                    if key.is_empty() {
                        return Err(A::Error::custom("a block hash has an empty number"));
                    }
                    let decimal = key.parse::<u64>().ok();
                    let quantity =
                        || serde_json::from_value::<Strict<u64>>(key.as_str().into()).map(|number| number.0);
                    let number = decimal.map_or_else(quantity, Ok).map_err(A::Error::custom)?;
                    hashes.insert(number, hash);
                }
                Ok(Hashes(hashes))
            }
        }

        deserializer.deserialize_map(HashesVisitor)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn accounts(value: Value) -> Result<BTreeMap<Address, AccountOverride>, String> {
        let object = serde_json::from_value::<AccountsObject>(value).map_err(|error| error.to_string())?;
        object.into_overrides().map_err(|error| error.to_string())
    }

    fn block(value: Value) -> Result<BlockOverrides, String> {
        let object = serde_json::from_value::<BlockObject>(value).map_err(|error| error.to_string())?;
        object.into_overrides().map_err(|error| error.to_string())
    }

    #[test]
    fn accounts_are_read_or_refused_by_name() {
        let (address, slot) = (Address::repeat_byte(1), B256::with_last_byte(7));
        let read = accounts(json!({ (address.to_string()): {
            "balance": "0x5", "nonce": "0x6", "code": "0x6001", "stateDiff": { (slot.to_string()): slot },
            "movePrecompileToAddress": address
        } }));
        let expected = AccountOverride {
            balance: Some(U256::from(5)),
            nonce: Some(6),
            code: Some(Bytes::from_static(&[0x60, 1])),
            precompile_to: Some(address),
            storage: StorageOverride::Some(BTreeMap::from([(slot, U256::from(7))])),
        };
        assert_eq!(read, Ok(BTreeMap::from([(address, expected)])));
        let all = accounts(json!({ (address.to_string()): { "state": {} } })).unwrap();
        assert_eq!(all[&address].storage, StorageOverride::All(BTreeMap::new()));
        for (account, refusal) in [
            (json!({ "state": {}, "stateDiff": {} }), "has both 'state' and 'stateDiff'"),
            (json!({ "movePrecompileToAddress": "0x4" }), "hex string has length 1, want 40"),
            (json!({ "storage": {} }), "unknown field `storage`"),
            (json!({ "balance": 5 }), "expected a quantity"),
            (json!({ "state": { "0x1": slot } }), "hex string has length 1, want 64"),
        ] {
            let found = accounts(json!({ (address.to_string()): account })).unwrap_err();
            assert!(found.contains(refusal), "{found}");
        }
    }

    #[test]
    fn accounts_slots_and_code_are_bounded() {
        let key = |number: usize| B256::from(U256::from(number)).to_string();
        let many: serde_json::Map<_, _> =
            (0..=ACCOUNTS_MAX).map(|number| (format!("0x{number:040x}"), json!({}))).collect();
        assert!(accounts(many.into()).unwrap_err().starts_with("1001 accounts are overridden"));
        let slots = |from: usize, to: usize| {
            (from..to).map(|number| (key(number), json!(key(1)))).collect::<serde_json::Map<_, _>>()
        };
        let half = SLOTS_MAX / 2;
        let two = |slots_of_second| {
            json!({ (Address::repeat_byte(1).to_string()): { "state": slots(0, half) },
                    (Address::repeat_byte(2).to_string()): { "stateDiff": slots(0, slots_of_second) } })
        };
        assert!(accounts(two(half)).is_ok());
        assert!(accounts(two(half + 1)).unwrap_err().starts_with("10001 slots are overridden"));
        let code = |len: usize| json!({ (Address::ZERO.to_string()): { "code": Bytes::from(vec![0; len]) } });
        assert!(accounts(code(CODE_BYTES_MAX)).is_ok());
        assert!(accounts(code(CODE_BYTES_MAX + 1)).unwrap_err().contains("bytes of code are overridden"));
    }

    /// Goal: a call that uses all allowed overrides is not refused for the length of its request.
    #[test]
    fn all_that_may_be_overridden_fits_into_a_request() {
        let word = B256::repeat_byte(0xff);
        let slots: serde_json::Map<_, _> =
            (0..SLOTS_MAX).map(|number| (B256::from(U256::from(number)).to_string(), json!(word))).collect();
        let mut all: serde_json::Map<_, _> = (1..ACCOUNTS_MAX)
            .map(|number| {
                (format!("0x{number:040x}"), json!({ "balance": U256::MAX, "nonce": "0xffffffffffffffff" }))
            })
            .collect();
        let code = Bytes::from(vec![0; CODE_BYTES_MAX]);
        all.insert(Address::ZERO.to_string(), json!({ "code": code, "stateDiff": slots }));
        let all = Value::from(all);
        let len = all.to_string().len();
        assert!(accounts(all).is_ok());
        let room = slipstream_config::ApiConfig::default().max_body_bytes;
        assert!(len + (512 << 10) < room, "{len} bytes, beside the call and its data, of {room}");
    }

    #[test]
    fn blocks_take_the_names_of_old_and_new_clients() {
        let hash = B256::repeat_byte(3);
        let new = block(json!({
            "number": "0x1", "time": "0x2", "gasLimit": "0x3", "feeRecipient": Address::repeat_byte(4), "prevRandao": hash,
            "baseFeePerGas": "0x5", "difficulty": "0x6", "blobBaseFee": "0x7", "blockHash": { "0x8": hash, "9": hash }
        }))
        .unwrap();
        let expected = BlockOverrides {
            number: Some(U256::from(1)),
            timestamp_s: Some(2),
            gas_limit: Some(3),
            beneficiary: Some(Address::repeat_byte(4)),
            prev_randao: Some(hash),
            base_fee_wei: Some(5),
            difficulty: Some(U256::from(6)),
            blob_base_fee_wei: Some(7),
            hashes: BTreeMap::from([(8, hash), (9, hash)]),
        };
        assert_eq!(new, expected);
        let far = block(json!({ "number": U256::MAX })).unwrap();
        assert_eq!(far.number, Some(U256::MAX));
        let old = json!({ "coinbase": Address::repeat_byte(4), "random": hash, "baseFee": "0x5" });
        let old = block(old).unwrap();
        assert_eq!(
            (old.beneficiary, old.prev_randao, old.base_fee_wei),
            (new.beneficiary, Some(hash), Some(5))
        );
        for (wrong, refusal) in [
            (json!({ "timestamp": "0x1" }), "unknown field `timestamp`"),
            (json!({ "beaconRoot": hash }), "unknown field `beaconRoot`"),
            (json!({ "number": 5 }), "expected a quantity"),
            (json!({ "baseFeePerGas": "0x10000000000000000" }), "hex number > 64 bits"),
            (json!({ "random": hash, "prevRandao": hash }), "duplicate field"),
            (json!({ "blockHash": { "x": hash } }), "hex string without 0x prefix"),
            (json!({ "blockHash": { "": hash } }), "a block hash has an empty number"),
        ] {
            let found = block(wrong).unwrap_err();
            assert!(found.contains(refusal), "{found}");
        }
        let hashes: serde_json::Map<_, _> =
            (0..=HASHES_MAX).map(|number| (number.to_string(), json!(hash))).collect();
        assert!(block(json!({ "blockHash": hashes })).unwrap_err().starts_with("257 block hashes"));
    }
}
