//! A node's answers as JSON. docs/formats.md specifies them.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, Visitor},
    ser::Error as _,
};
use slipstream_types::{
    AccountValue, Address, B256, BatchHeader, Certificate, Digest, LedgerInfo, U256,
    accumulator::AccumulatorRangeProof, bounded::BoundedVec, codec, tree::StateRangeProof,
};

use crate::{
    error::LightError,
    limits::{ANSWER_BYTES_MAX, EPOCH_CHANGES_MAX, SLOTS_MAX},
};

/// A value that an answer contains as its BCS in hexadecimal.
pub trait Part: Serialize + DeserializeOwned {
    /// Name of the type in error messages.
    const NAME: &'static str;
    /// Maximum bytes of its BCS: longer text is refused before it is decoded.
    const BYTES_MAX: usize;
}

impl Part for Certificate {
    const NAME: &'static str = "certificate";
    // Enough for 128 signatures, and 128 validators of the next epoch.
    const BYTES_MAX: usize = 16 << 10;
}

impl Part for LedgerInfo {
    const NAME: &'static str = "ledger info";
    const BYTES_MAX: usize = 8 << 10;
}

impl Part for BatchHeader {
    const NAME: &'static str = "header";
    const BYTES_MAX: usize = BatchHeader::BYTES;
}

impl Part for AccumulatorRangeProof {
    const NAME: &'static str = "accumulator range proof";
    const BYTES_MAX: usize = 2 + 128 * 32;
}

impl Part for StateRangeProof {
    const NAME: &'static str = "state range proof";
    // A proof of one path; a sibling that is a leaf is the longest.
    const BYTES_MAX: usize = 2 * 2 + 256 * (1 + 1 + 64);
}

/// A [`Part`] in an answer. In JSON `0x` and its BCS in hexadecimal; in binary formats the value itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Encoded<T>(pub T);

impl<T: Part> Serialize for Encoded<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return self.0.serialize(serializer);
        }
        let bytes = codec::encode(T::NAME, &self.0).map_err(S::Error::custom)?;
        serializer.serialize_str(&format!("0x{}", hex::encode(bytes)))
    }
}

impl<'de, T: Part> Deserialize<'de> for Encoded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text<T>(PhantomData<T>);

        impl<T: Part> Visitor<'_> for Text<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a {} as 0x and at most {} hexadecimal digits", T::NAME, 2 * T::BYTES_MAX)
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
                let digits = text.strip_prefix("0x").filter(|digits| digits.len() <= 2 * T::BYTES_MAX);
                let bytes = digits.and_then(|digits| hex::decode(digits).ok());
                let bytes = bytes.ok_or_else(|| {
                    E::custom(format_args!(
                        "expected a {} as 0x and at most {} hexadecimal digits",
                        T::NAME,
                        2 * T::BYTES_MAX
                    ))
                })?;
                codec::decode(T::NAME, &bytes, T::BYTES_MAX).map_err(E::custom)
            }
        }

        if deserializer.is_human_readable() {
            deserializer.deserialize_str(Text(PhantomData)).map(Encoded)
        } else {
            T::deserialize(deserializer).map(Encoded)
        }
    }
}

/// The answer of `slipstream_getProof`: an account and slots, and everything needed to check them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AccountProof {
    /// A quorum's signatures on a ledger that holds the header.
    pub certificate: Encoded<Certificate>,
    /// Proves that the ledger begins with the genesis.
    pub genesis_proof: Encoded<AccumulatorRangeProof>,
    /// The header of the batch whose state this is: the certified one, or an earlier one.
    pub header: Encoded<BatchHeader>,
    /// Proves that the ledger holds the header.
    pub header_proof: Encoded<AccumulatorRangeProof>,
    /// Address of the proved account.
    pub address: Address,
    /// The account's row in the state, or `None` if it has no row.
    pub account: Option<Account>,
    /// Proves that the state has exactly this row.
    pub account_proof: Encoded<StateRangeProof>,
    /// The requested slots, in the order of the question.
    pub storage: BoundedVec<SlotProof, SLOTS_MAX>,
}

/// The row of an account.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Account {
    /// Transactions sent, or contracts created by a contract.
    #[serde(with = "quantity")]
    pub nonce: u64,
    /// Balance in wei.
    #[serde(with = "quantity")]
    pub balance: U256,
    /// Keccak-256 of the code, or `None` for an account without code.
    pub code_hash: Option<Digest>,
}

impl From<AccountValue> for Account {
    fn from(AccountValue { nonce, balance, code_hash }: AccountValue) -> Account {
        Account { nonce, balance, code_hash }
    }
}

impl From<Account> for AccountValue {
    fn from(Account { nonce, balance, code_hash }: Account) -> AccountValue {
        AccountValue { nonce, balance, code_hash }
    }
}

/// One storage slot of the account, with its proof.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotProof {
    /// Key of the slot, 32 bytes.
    pub key: B256,
    /// Its value; zero if the state has no row for it.
    #[serde(with = "quantity")]
    pub value: U256,
    /// Proves that the state has exactly this value.
    pub proof: Encoded<StateRangeProof>,
}

/// The answer of `slipstream_getWaypoint`: the ledger info that a waypoint hashes, and the chain's genesis in it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WaypointProof {
    /// The ledger info whose digest is the waypoint's.
    pub ledger_info: Encoded<LedgerInfo>,
    /// Digest of the header of batch 0.
    pub genesis: Digest,
    /// Proves that the ledger begins with the genesis.
    pub genesis_proof: Encoded<AccumulatorRangeProof>,
}

/// The answer of `slipstream_getEpochChanges`: the certificates that end consecutive epochs. Fewer than
/// [`EPOCH_CHANGES_MAX`] means that no more exist.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EpochChanges(pub BoundedVec<Encoded<Certificate>, EPOCH_CHANGES_MAX>);

impl EpochChanges {
    /// Returns the certificates, in the order of their epochs.
    pub fn certificates(&self) -> Vec<Certificate> {
        self.0.iter().map(|encoded| encoded.0.clone()).collect()
    }
}

macro_rules! from_json {
    ($($answer:ident)*) => {
        $(impl $answer {
            /// Reads the `result` of a node's answer.
            ///
            /// # Errors
            /// [`LightError::TooLong`] before anything is parsed, or [`LightError::Malformed`].
            pub fn from_json(text: &str) -> Result<$answer, LightError> {
                if text.len() > ANSWER_BYTES_MAX {
                    return Err(LightError::TooLong { len: text.len() });
                }
                Ok(serde_json::from_str(text)?)
            }
        })*
    };
}

from_json!(AccountProof WaypointProof EpochChanges);

/// A number that is written in JSON as a quantity (`0x…`).
trait Number: Copy {
    const BITS: usize;
    fn to_word(self) -> U256;
    fn from_word(word: U256) -> Option<Self>;
}

impl Number for u64 {
    const BITS: usize = 64;

    fn to_word(self) -> U256 {
        U256::from(self)
    }

    fn from_word(word: U256) -> Option<u64> {
        word.try_into().ok()
    }
}

impl Number for U256 {
    const BITS: usize = 256;

    fn to_word(self) -> U256 {
        self
    }

    fn from_word(word: U256) -> Option<U256> {
        Some(word)
    }
}

/// Numbers as Ethereum's JSON-RPC writes them: `0x` and hexadecimal digits without leading zeros.
mod quantity {
    use super::*;

    pub(super) fn serialize<T: Number, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#x}", value.to_word()))
    }

    pub(super) fn deserialize<'de, T: Number, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        struct Quantity<T>(PhantomData<T>);

        impl<T: Number> Visitor<'_> for Quantity<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a quantity of {} bits: 0x and hexadecimal digits without leading zeros", T::BITS)
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
                let is_canonical = |digits: &&str| {
                    (1..=T::BITS / 4).contains(&digits.len())
                        && (digits.len() == 1 || !digits.starts_with('0'))
                        && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
                };
                let digits = text.strip_prefix("0x").filter(is_canonical);
                let word = digits.and_then(|digits| U256::from_str_radix(digits, 16).ok());
                let number = word.and_then(T::from_word);
                number.ok_or_else(|| E::invalid_value(serde::de::Unexpected::Other("another string"), &self))
            }
        }

        deserializer.deserialize_str(Quantity(PhantomData))
    }
}
