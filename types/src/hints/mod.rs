//! [`Hints`]: the working set of a batch, from its first executor.
//!
//! Source: "Ira" (arXiv 2601.21286), where the primary ships the keys that a batch reads. Ira writes a table byte and
//! the whole key for each. Here a follower has the transactions, so it *derives* most keys from them.
//!
//! ```text
//!  Hints, [Preimage] ───┐                               ┌─▶ Hints
//!  Conflicts ───────────┼─ encode ─▶ bytes ─ decode ────┼─▶ Conflicts
//!  [RowBefore], if any ─┤                      │        └─▶ [RowBefore]
//!  transactions ─ HintContext ─┴───────────────┘
//! ```
//! * [`HintContext`] numbers the addresses that a batch's transactions name, in an order that both sides know.
//! * The encoder omits the keys that every batch reads, and writes addresses as these numbers. For a slot in a
//!   mapping's entry it writes the mapping and the key, because execution records what it hashed ([`Preimage`]).
//! * [`decode()`] is total: any bytes give hints or an error, and never more keys than the caller allows ([`keys_max`]).
//!
//! Hints are uncertified advice: they affect a batch's duration, never its result. So, unlike with other formats,
//! decoders accept several encodings of the same hints. A validator signs its own ([`vouch`]) for nodes that keep hints
//! and cannot try them. `docs/formats.md` specifies the bytes.

mod bytes;
mod context;
mod decode;
mod derive;
mod edges;
mod encode;
mod values;
mod voucher;

use alloy_primitives::{Address, B256};

pub use context::{HintContext, TransactionParts};
pub use decode::{DecodedHints, decode, has_values};
pub use encode::{encode, encode_with_values};
pub use values::RowBefore;
pub use voucher::{VOUCHER_BYTES, vouch, vouched_by, without_voucher};

use crate::state::StateKey;

/// The format's version, its first byte.
pub const HINTS_VERSION: u8 = 1;
/// Tags of the format's sections, in the order in which they are written. A reader skips unknown sections.
const SECTION_KEYS: u8 = 1;
const SECTION_CONFLICTS: u8 = 2;
const SECTION_VALUES: u8 = 3;
/// The last section, if present.
const SECTION_VOUCHER: u8 = 4;

/// The keys that executing a batch reads.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hints {
    /// The accounts read, and the reads of each. From a recorder: in first-use order. From the decoder: in about that
    /// order, each once.
    pub accounts: Vec<AccountHints>,
}

/// The reads of one account: its row, its code, its slots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccountHints {
    /// The account; its own row is always read.
    pub address: Address,
    /// Whether its code is read. The row names the code.
    pub code: bool,
    /// Its slots that are read.
    pub slots: Vec<B256>,
}

impl Hints {
    /// Every account and slot, an account before its slots.
    pub fn keys(&self) -> impl Iterator<Item = StateKey> + '_ {
        self.accounts.iter().flat_map(|account| {
            let slots = account.slots.iter().map(|slot| StateKey::Slot(account.address, *slot));
            std::iter::once(StateKey::Account(account.address)).chain(slots)
        })
    }

    /// Accounts whose code is read.
    pub fn codes(&self) -> impl Iterator<Item = Address> + '_ {
        self.accounts.iter().filter(|account| account.code).map(|account| account.address)
    }
}

/// Two words that execution hashed together with Keccak-256 (an input of 64 bytes). Compilers place the entries of a
/// mapping this way: Solidity hashes the key and then the mapping's slot, Vyper the reverse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Preimage {
    /// The input's first half.
    pub first: B256,
    /// The second 32 bytes of the input.
    pub second: B256,
    /// Keccak-256 of both halves.
    pub hash: B256,
}

/// Maximum bytes of hints whose signature is checked: several times the size of the keys that the gas allows, with their
/// rows.
pub fn signed_bytes_max(gas_used: u64) -> usize {
    256 * keys_max(gas_used)
}

/// Maximum bytes of the hints that a node keeps for a batch, unless it made the same hints itself. The arguments are
/// the bytes of the batch's transactions and changes. In blocks since London, hints take 7 % of their transactions'
/// bytes, with rows 25 %; a small batch that reads much has some KiB.
pub fn kept_bytes_max(tx_bytes: u32, delta_bytes: u32) -> usize {
    4_096 + 2 * (tx_bytes as usize + delta_bytes as usize)
}

/// Maximum number of keys that hints of a batch may name. A transaction pays at least 1,900 gas for its first read of a key
/// (EIP-2930); its 21,000 pay for a few more. The bound is twice that, plus a little for an empty batch: the proposer
/// also read keys of transactions that it left out.
pub fn keys_max(gas_used: u64) -> usize {
    1_024 + (gas_used / 950) as usize
}
