//! [`encode`]: from a working set to bytes.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, map::AddressMap};

use super::{
    AccountHints, HINTS_VERSION, Hints, Preimage, SECTION_CONFLICTS, SECTION_KEYS, SECTION_VALUES,
    bytes::{Ascending, put},
    context::{HintContext, as_address},
    derive::{Mapping, Origins, as_number, from_number},
    edges,
    values::{self, RowBefore},
};
use crate::conflicts::Conflicts;

/// Kinds of groups of slots, in the order in which an account's are written.
pub(super) const NUMBERS: u8 = 0;
pub(super) const WORDS: u8 = 1;
pub(super) const BY_ADDRESS: u8 = 2;
pub(super) const BY_NUMBER: u8 = 3;
pub(super) const BY_WORD: u8 = 4;
/// Set beside the kind if fields other than the first follow each key.
pub(super) const WITH_FIELDS: u8 = 8;

/// A key of a mapping. The variants' order is that of the kinds of groups.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Key {
    /// An address, by its number.
    Address(u32),
    /// At most 64 bits.
    Number(u64),
    /// Anything else.
    Word(B256),
}

impl Key {
    pub(super) fn kind(&self) -> u8 {
        match self {
            Key::Address(_) => BY_ADDRESS,
            Key::Number(_) => BY_NUMBER,
            Key::Word(_) => BY_WORD,
        }
    }
}

/// Writes hints, and conflicts if there are any, for whoever has the batch's transactions. What `preimages` do not explain is
/// written in full, so that they may be incomplete.
///
/// The same input gives the same bytes. They are not bounded here: [`crate::Blob::compress`] refuses too many.
pub fn encode(
    hints: &Hints,
    preimages: &[Preimage],
    conflicts: Option<&Conflicts>,
    context: &HintContext,
) -> Vec<u8> {
    encode_keys(hints, preimages, conflicts, context).0
}

/// As [`encode`], with the rows before the batch: of the keys that are in `before`.
pub fn encode_with_values(
    hints: &Hints,
    preimages: &[Preimage],
    conflicts: Option<&Conflicts>,
    before: &[RowBefore],
    context: &HintContext,
) -> Vec<u8> {
    let (mut out, written) = encode_keys(hints, preimages, conflicts, context);
    put_section(&mut out, SECTION_VALUES, &values::encode(&written, before));
    out
}

/// The bytes, and the hints as whoever decodes them gets them.
fn encode_keys(
    hints: &Hints,
    preimages: &[Preimage],
    conflicts: Option<&Conflicts>,
    context: &HintContext,
) -> (Vec<u8>, Hints) {
    let mut out = vec![HINTS_VERSION];
    let (keys, written) = Encoder::new(context, preimages).keys(hints);
    put_section(&mut out, SECTION_KEYS, &keys);
    if let Some(conflicts) = conflicts.filter(|conflicts| conflicts.fits(context.transactions())) {
        put_section(&mut out, SECTION_CONFLICTS, &edges::encode(conflicts));
    }
    (out, written)
}

fn put_section(out: &mut Vec<u8>, section: u8, content: &[u8]) {
    out.push(section);
    put(out, content.len() as u64);
    out.extend_from_slice(content);
}

/// What is written of one account.
#[derive(Default)]
struct Record {
    code: bool,
    numbers: Vec<u64>,
    words: Vec<B256>,
    entries: Vec<Entry>,
}

/// The field of a mapping's entry, and the slot that it is.
type Entry = (Mapping<Key>, Key, usize, B256);

struct Encoder<'a> {
    context: &'a HintContext,
    origins: Origins,
    /// Addresses that the context lacks; they are numbered after its own.
    further: Vec<Address>,
    numbers: AddressMap<u32>,
}

impl<'a> Encoder<'a> {
    fn new(context: &'a HintContext, preimages: &[Preimage]) -> Self {
        let origins = Origins::new(preimages);
        Self { context, origins, further: Vec::new(), numbers: AddressMap::default() }
    }

    /// The section, and the hints in the order in which the decoder has them.
    fn keys(mut self, hints: &Hints) -> (Vec<u8>, Hints) {
        let mut records: BTreeMap<u32, Record> = BTreeMap::new();
        for account in &hints.accounts {
            let number = self.number(account.address);
            let implied = self.context.implied_slots(&account.address);
            let record = records.entry(number).or_default();
            record.code |= account.code;
            for slot in account.slots.iter().filter(|slot| implied.binary_search(slot).is_err()) {
                self.sort_in(*slot, record);
            }
        }
        let implied = self.context.implied() as u32;
        records.retain(|number, record| *number >= implied || !record.is_empty());
        let mut out = Vec::new();
        put(&mut out, self.further.len() as u64);
        self.further.iter().for_each(|address| out.extend_from_slice(&address[..]));
        put(&mut out, records.len() as u64);
        let mut numbers = Ascending::default();
        let mut accounts = self.implied();
        for (number, record) in records {
            numbers.put(&mut out, u64::from(number));
            if number >= implied {
                let slots = Vec::new();
                accounts.push(AccountHints { address: self.address(number), code: false, slots });
            }
            // Those that are not implied come last, by their numbers.
            let at = (number as usize).min(accounts.len() - 1);
            accounts[at].code |= record.code;
            record.put(&mut out, &mut accounts[at].slots);
        }
        (out, Hints { accounts })
    }

    /// What the decoder begins with.
    fn implied(&self) -> Vec<AccountHints> {
        let account = |address: &Address| {
            let slots = self.context.implied_slots(address).to_vec();
            AccountHints { address: *address, code: false, slots }
        };
        self.context.addresses()[..self.context.implied()].iter().map(account).collect()
    }

    /// The address of a number that was given.
    fn address(&self, number: u32) -> Address {
        let known = self.context.addresses();
        let number = number as usize;
        known.get(number).copied().unwrap_or_else(|| self.further[number - known.len()])
    }

    fn number(&mut self, address: Address) -> u32 {
        let next = (self.context.addresses().len() + self.further.len()) as u32;
        self.context.number(&address).unwrap_or_else(|| {
            *self.numbers.entry(address).or_insert_with(|| {
                self.further.push(address);
                next
            })
        })
    }

    fn sort_in(&mut self, slot: B256, record: &mut Record) {
        if let Some(number) = as_number(&slot) {
            record.numbers.push(number);
        } else if let Some((mapping, key, field)) = self.origins.of(slot) {
            let Mapping { slot_first, root, outer } = mapping;
            let mapping = Mapping { slot_first, root, outer: outer.map(|key| key.map(|key| self.key(key))) };
            record.entries.push((mapping, self.key(key), field, slot));
        } else {
            record.words.push(slot);
        }
    }

    fn key(&mut self, word: B256) -> Key {
        match (as_address(&word[..]), as_number(&word)) {
            (Some(address), _) => Key::Address(self.number(address)),
            (None, Some(number)) => Key::Number(number),
            (None, None) => Key::Word(word),
        }
    }
}

impl Record {
    fn is_empty(&self) -> bool {
        !self.code && self.numbers.is_empty() && self.words.is_empty() && self.entries.is_empty()
    }

    /// Writes it, and adds its slots in the order in which they are written.
    fn put(mut self, out: &mut Vec<u8>, slots: &mut Vec<B256>) {
        self.numbers.sort_unstable();
        self.numbers.dedup();
        self.words.sort_unstable();
        self.words.dedup();
        self.entries.sort_unstable();
        self.entries.dedup();
        let groups: Vec<_> = self.entries.chunk_by(|a, b| a.0 == b.0 && a.1.kind() == b.1.kind()).collect();
        let count =
            groups.len() + usize::from(!self.numbers.is_empty()) + usize::from(!self.words.is_empty());
        put(out, (count as u64) << 1 | u64::from(self.code));
        if !self.numbers.is_empty() {
            put_head(out, self.numbers.len(), NUMBERS);
            let mut ascending = Ascending::default();
            self.numbers.iter().for_each(|number| ascending.put(out, *number));
        }
        if !self.words.is_empty() {
            put_head(out, self.words.len(), WORDS);
            self.words.iter().for_each(|word| out.extend_from_slice(&word[..]));
        }
        for group in groups {
            put_group(out, group);
        }
        slots.extend(self.numbers.into_iter().map(from_number));
        slots.append(&mut self.words);
        slots.extend(self.entries.into_iter().map(|(.., slot)| slot));
    }
}

/// Writes sorted entries of one mapping whose keys are of one kind.
fn put_group(out: &mut Vec<u8>, entries: &[Entry]) {
    let Some((mapping, first, ..)) = entries.first() else { return };
    let keys = entries.chunk_by(|a, b| a.1 == b.1);
    let with_fields = entries.iter().any(|(_, _, field, _)| *field != 0);
    put_head(out, keys.clone().count(), first.kind() | if with_fields { WITH_FIELDS } else { 0 });
    put_mapping(out, mapping);
    let mut ascending = Ascending::default();
    for fields in keys {
        match fields[0].1 {
            Key::Address(number) => ascending.put(out, number.into()),
            Key::Number(number) => ascending.put(out, number),
            Key::Word(word) => out.extend_from_slice(&word[..]),
        }
        if with_fields {
            let mask = fields.iter().fold(0, |mask, (_, _, field, _)| mask | 1 << field);
            put(out, mask);
        }
    }
}

fn put_head(out: &mut Vec<u8>, count: usize, kind: u8) {
    put(out, (count as u64) << 4 | u64::from(kind));
}

fn put_mapping(out: &mut Vec<u8>, mapping: &Mapping<Key>) {
    let outer = mapping.outer.iter().flatten();
    let root = as_number(&mapping.root);
    out.push(
        (outer.clone().count() as u8) << 2 | u8::from(mapping.slot_first) << 1 | u8::from(root.is_none()),
    );
    match root {
        Some(root) => put(out, root),
        None => out.extend_from_slice(&mapping.root[..]),
    }
    for key in outer {
        out.push(key.kind());
        match key {
            Key::Address(number) => put(out, (*number).into()),
            Key::Number(number) => put(out, *number),
            Key::Word(word) => out.extend_from_slice(&word[..]),
        }
    }
}
