//! [`HintContext`]: what maker and follower both know about a batch's keys.

use alloy_primitives::{
    Address, B256,
    map::{AddressMap, FbBuildHasher},
};
use indexmap::IndexSet;

use super::AccountHints;

/// Maximum number of addresses taken from call data. Real batches have fewer, and with this bound a batch full of addresses costs
/// its followers no more than any other.
const DATA_ADDRESSES_MAX: usize = 65_536;
/// Approximate number of addresses that a transaction names.
const ADDRESSES_EACH: usize = 4;
/// Bytes of a function's selector, which come before its arguments.
const SELECTOR_BYTES: usize = 4;

/// The parts of a transaction that hints are derived from.
#[derive(Clone, Copy, Debug)]
pub struct TransactionParts<'a> {
    /// The account that signed the transaction.
    pub sender: Address,
    /// The sender's count of transactions before it.
    pub nonce: u64,
    /// The called account; `None` if the transaction creates a contract.
    pub to: Option<Address>,
    /// Call data, or the init code of a deployment.
    pub input: &'a [u8],
    /// Its access list (EIP-2930).
    pub access_list: &'a [alloy_eips::eip2930::AccessListItem],
}

/// Addresses, each once, numbered by first appearance.
pub(super) type Addresses = IndexSet<Address, FbBuildHasher<20>>;

/// The addresses that a batch's transactions name, numbered by first appearance. First come those that every execution
/// reads: fee recipient, senders, recipients, created contracts, access lists. Words of call data that look like
/// addresses follow.
///
/// Both sides must build it from the same transactions; it is part of the format.
#[derive(Clone, Debug)]
pub struct HintContext {
    addresses: Addresses,
    implied: usize,
    implied_slots: AddressMap<Vec<B256>>,
    transactions: usize,
}

impl HintContext {
    /// Builds the context of a batch whose fees go to `fee_recipient`.
    pub fn new<'a>(
        fee_recipient: Address,
        transactions: impl Iterator<Item = TransactionParts<'a>> + Clone,
    ) -> HintContext {
        let (count, _) = transactions.size_hint();
        let mut context = HintContext {
            addresses: Addresses::with_capacity_and_hasher(ADDRESSES_EACH * count, Default::default()),
            implied: 0,
            implied_slots: AddressMap::default(),
            transactions: 0,
        };
        context.addresses.insert(fee_recipient);
        for transaction in transactions.clone() {
            context.add_implied(&transaction);
        }
        context.implied = context.addresses.len();
        for slots in context.implied_slots.values_mut() {
            slots.sort_unstable();
            slots.dedup();
        }
        for transaction in transactions {
            context.add_data(transaction.input);
        }
        context
    }

    fn add_implied(&mut self, transaction: &TransactionParts<'_>) {
        self.transactions += 1;
        self.addresses.insert(transaction.sender);
        self.addresses.insert(transaction.to.unwrap_or_else(|| transaction.sender.create(transaction.nonce)));
        for item in transaction.access_list {
            self.addresses.insert(item.address);
            let slots = self.implied_slots.entry(item.address).or_default();
            slots.extend(&item.storage_keys);
        }
    }

    fn add_data(&mut self, input: &[u8]) {
        let words = input.get(SELECTOR_BYTES..).unwrap_or_default().chunks_exact(32);
        for address in words.filter_map(as_address) {
            if self.addresses.len() - self.implied >= DATA_ADDRESSES_MAX {
                return;
            }
            self.addresses.insert(address);
        }
    }

    /// All addresses. Their numbers fit 32 bits: a batch has at most 65,536 transactions, and an access list's address costs 2,400 gas.
    pub(super) fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Number of addresses, from the first on, that are hinted without being written.
    pub(super) fn implied(&self) -> usize {
        self.implied
    }

    /// The slots of an address that are hinted without being written, in ascending order, each once.
    pub(super) fn implied_slots(&self, address: &Address) -> &[B256] {
        self.implied_slots.get(address).map_or(&[], Vec::as_slice)
    }

    /// The hints that need no bytes: the implied addresses with their implied slots.
    pub(super) fn implied_accounts(&self) -> impl Iterator<Item = AccountHints> + '_ {
        self.addresses.iter().take(self.implied).map(|address| {
            let slots = self.implied_slots(address).to_vec();
            AccountHints { address: *address, code: false, slots }
        })
    }

    /// Number of transactions in the batch.
    pub(super) fn transactions(&self) -> usize {
        self.transactions
    }
}

/// The address in a word, if twelve zero bytes precede it and it is not a mere number below 2^112.
pub(super) fn as_address(word: &[u8]) -> Option<Address> {
    let (zeros, address) = word.split_at_checked(12)?;
    let fits = address.len() == 20 && zeros.iter().all(|byte| *byte == 0);
    (fits && address[..6].iter().any(|byte| *byte != 0)).then(|| Address::from_slice(address))
}
