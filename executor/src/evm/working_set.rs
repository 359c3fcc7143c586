//! [`WorkingSet`]: the reads that a batch, or a part of it, made from the state before the batch.

use std::hash::Hash;

use alloy_primitives::{
    Address, B256, U256,
    map::{AddressMap, B256Map, B256Set, HashSet},
};
use slipstream_types::{
    AccountValue, Digest, Hints, StateKey, StateValue,
    hints::{AccountHints, Preimage},
};

use super::{code::AnalysedCode, machine::FinishedBatch, preimages::PREIMAGES_MAX};

/// The reads of one account, before the batch changed it.
#[derive(Default)]
pub(super) struct AccountReads {
    pub(super) value: Option<AccountValue>,
    pub(super) slots: B256Map<U256>,
    slot_order: Order<B256>,
}

/// Keys, each with the turn of its first read. A turn is a transaction's position in the batch, counted from 1; turn 0
/// is the system calls before the batch's transactions.
type Order<K> = Vec<(u32, K)>;

/// The rows that executing a batch read, with their values before the batch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReadSet {
    /// Rows in first-use order; `None` where the state has no row.
    pub rows: Vec<(StateKey, Option<StateValue>)>,
    /// Code by its hash, in the order of the hashes.
    pub codes: Vec<(B256, AnalysedCode)>,
}

/// The first reads of rows and code; see the module.
#[derive(Default)]
pub(crate) struct WorkingSet {
    accounts: AddressMap<AccountReads>,
    account_order: Order<Address>,
    pub(super) codes: B256Map<AnalysedCode>,
    /// The inputs that each turn hashed; [`PREIMAGES_MAX`] in all.
    preimages: Vec<(u32, Vec<Preimage>)>,
    preimages_len: usize,
}

impl WorkingSet {
    /// The reads of an account, or `None` if there were none.
    pub(super) fn account(&self, address: &Address) -> Option<&AccountReads> {
        self.accounts.get(address)
    }

    pub(super) fn read_account(&mut self, turn: u32, address: Address, value: Option<AccountValue>) {
        self.reads(turn, address).value = value;
    }

    pub(super) fn read_slot(&mut self, turn: u32, address: Address, slot: B256, value: U256) {
        let reads = self.reads(turn, address);
        if reads.slots.insert(slot, value).is_none() {
            reads.slot_order.push((turn, slot));
        }
    }

    /// Keeps the inputs that a transaction hashed, up to [`PREIMAGES_MAX`] in all.
    pub(super) fn remember(&mut self, turn: u32, mut preimages: Vec<Preimage>) {
        preimages.truncate(PREIMAGES_MAX - self.preimages_len);
        if !preimages.is_empty() {
            self.preimages_len += preimages.len();
            self.preimages.push((turn, preimages));
        }
    }

    fn reads(&mut self, turn: u32, address: Address) -> &mut AccountReads {
        let order = &mut self.account_order;
        self.accounts.entry(address).or_insert_with(|| {
            order.push((turn, address));
            AccountReads::default()
        })
    }

    /// Whether this code was read.
    pub(crate) fn has_code(&self, hash: &Digest) -> bool {
        self.codes.contains_key(&B256::from(*hash))
    }

    /// Turns the reads into the batch's results, with an empty delta.
    pub(crate) fn finish(self) -> FinishedBatch {
        let (hints, touched) = (self.hints(), self.touched());
        FinishedBatch { hints, touched, preimages: self.into_preimages(), ..FinishedBatch::default() }
    }

    /// The keys, in first-use order.
    fn hints(&self) -> Hints {
        let mut codes: B256Set = self.codes.keys().copied().collect();
        let account = |(_, address): &(u32, Address)| {
            let reads = self.accounts.get(address);
            let code_hash = reads.and_then(|reads| reads.value).and_then(|value| value.code_hash);
            // If several accounts have the same code, only the first one's hint asks for it.
            let code = code_hash.is_some_and(|hash| codes.remove(&B256::from(hash)));
            let slots = reads.into_iter().flat_map(|reads| &reads.slot_order).map(|(_, slot)| *slot);
            AccountHints { address: *address, code, slots: slots.collect() }
        };
        Hints { accounts: self.account_order.iter().map(account).collect() }
    }

    /// The keys of the hints, with the values before the batch.
    fn touched(&self) -> ReadSet {
        let mut rows = Vec::new();
        let accounts = self.account_order.iter().filter_map(|(_, it)| Some((it, self.accounts.get(it)?)));
        for (address, reads) in accounts {
            rows.push((StateKey::Account(*address), reads.value.map(StateValue::Account)));
            let value = |slot: &B256| reads.slots.get(slot).filter(|value| !value.is_zero());
            let slot = |(_, slot): &(u32, B256)| {
                (StateKey::Slot(*address, *slot), value(slot).copied().map(StateValue::Slot))
            };
            rows.extend(reads.slot_order.iter().map(slot));
        }
        let mut codes: Vec<_> = self.codes.iter().map(|(hash, code)| (*hash, code.clone())).collect();
        codes.sort_unstable_by_key(|(hash, _)| *hash);
        ReadSet { rows, codes }
    }

    /// The hashed inputs, in the order of hashing.
    fn into_preimages(self) -> Vec<Preimage> {
        let preimages = self.preimages.into_iter().flat_map(|(_, preimages)| preimages);
        preimages.take(PREIMAGES_MAX).collect()
    }

    /// Joins the reads of this part with those of another part of the batch, turn by turn, as if one machine had made
    /// them all.
    pub(crate) fn join(mut self, other: WorkingSet) -> WorkingSet {
        let is_in_both =
            |address: &Address| self.accounts.contains_key(address) && other.accounts.contains_key(address);
        self.account_order = join_orders(&self.account_order, &other.account_order, is_in_both);
        for (address, reads) in other.accounts {
            match self.accounts.remove(&address) {
                Some(mine) => self.accounts.insert(address, mine.join(reads)),
                None => self.accounts.insert(address, reads),
            };
        }
        self.codes.extend(other.codes);
        self.preimages_len += other.preimages_len;
        self.preimages.extend(other.preimages);
        self.preimages.sort_by_key(|(turn, _)| *turn);
        self
    }
}

impl AccountReads {
    fn join(mut self, other: AccountReads) -> AccountReads {
        let is_in_both = |slot: &B256| self.slots.contains_key(slot) && other.slots.contains_key(slot);
        self.slot_order = join_orders(&self.slot_order, &other.slot_order, is_in_both);
        // A part may have read the contract's slots without its account.
        self.value = self.value.or(other.value);
        self.slots.extend(other.slots);
        self
    }
}

/// Merges two orders by turn; if a key is in both, only its earlier read stays. Only turn 0 occurs in both orders, with
/// the same keys.
fn join_orders<K: Copy + Eq + Hash>(a: &Order<K>, b: &Order<K>, is_in_both: impl Fn(&K) -> bool) -> Order<K> {
    let mut joined = Vec::with_capacity(a.len() + b.len());
    let mut seen: HashSet<K> = HashSet::default();
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    loop {
        let next = match (a.peek(), b.peek()) {
            (Some((turn, _)), Some((other, _))) if other < turn => b.next(),
            (Some(_), _) => a.next(),
            (None, _) => b.next(),
        };
        let Some((turn, key)) = next else { return joined };
        if !is_in_both(key) || seen.insert(*key) {
            joined.push((*turn, *key));
        }
    }
}
