//! [`encode`]: from a working set to bytes.

use alloy_primitives::{
    Address, B256,
    map::{B256Map, FbBuildHasher},
};
use indexmap::IndexSet;

use super::{
    AccountHints, HINTS_VERSION, Hints, Preimage, SECTION_CONFLICTS, SECTION_KEYS, SECTION_VALUES,
    bytes::{Ascending, put},
    context::{Addresses, HintContext, as_address},
    derive::{Mapping, Origins, as_number, field},
    edges,
    values::{self, RowBefore},
};
use crate::conflicts::Conflicts;

/// Kinds of groups of slots, in the order in which an account's groups are written.
pub(super) const NUMBERS: u8 = 0;
pub(super) const WORDS: u8 = 1;
pub(super) const BY_ADDRESS: u8 = 2;
pub(super) const BY_NUMBER: u8 = 3;
pub(super) const BY_WORD: u8 = 4;
/// Flag, added to the kind: a mask of fields follows each key, because not all are the first field.
pub(super) const WITH_FIELDS: u8 = 8;
/// Approximate bytes of an account with its slots.
const ACCOUNT_BYTES: usize = 16;

/// Writes hints, and conflicts if any, for a reader that has the batch's transactions. A slot that `preimages` do not
/// explain is written in full, so `preimages` may be incomplete.
///
/// The same input gives the same bytes; repeated keys may be written twice. The bytes are not bounded here:
/// [`crate::Blob::compress`] refuses too many.
pub fn encode(
    hints: &Hints,
    preimages: &[Preimage],
    conflicts: Option<&Conflicts>,
    context: &HintContext,
) -> Vec<u8> {
    let keys = Encoder::new(context, preimages).keys(hints, |_, _, _| {});
    sections(&keys, conflicts, context)
}

/// As [`encode`], with the rows before the batch for the keys in `before`.
pub fn encode_with_values(
    hints: &Hints,
    preimages: &[Preimage],
    conflicts: Option<&Conflicts>,
    before: &[RowBefore],
    context: &HintContext,
) -> Vec<u8> {
    // The hints as the decoder will return them.
    let mut accounts: Vec<AccountHints> = context.implied_accounts().collect();
    let keys = Encoder::new(context, preimages).keys(hints, |number, address, slots| {
        if number >= context.implied() {
            accounts.push(AccountHints { address, code: false, slots: Vec::new() });
        }
        // Accounts that are not implied come last, by their numbers.
        let at = number.min(accounts.len() - 1);
        accounts[at].slots.extend(slots);
    });
    let mut out = sections(&keys, conflicts, context);
    put_section(&mut out, SECTION_VALUES, &values::encode(&Hints { accounts }, before));
    out
}

fn sections(keys: &[u8], conflicts: Option<&Conflicts>, context: &HintContext) -> Vec<u8> {
    let mut out = vec![HINTS_VERSION];
    put_section(&mut out, SECTION_KEYS, keys);
    if let Some(conflicts) = conflicts.filter(|conflicts| conflicts.fits(context.transactions())) {
        put_section(&mut out, SECTION_CONFLICTS, &edges::encode(conflicts));
    }
    out
}

fn put_section(out: &mut Vec<u8>, section: u8, content: &[u8]) {
    out.push(section);
    put(out, content.len() as u64);
    out.extend_from_slice(content);
}

/// A key of a mapping around the innermost one.
#[derive(Clone, Copy, Debug)]
enum Key {
    /// An address, by its number.
    Address(u32),
    /// A number of at most 64 bits.
    Number(u64),
    /// Any other word, in full.
    Word(B256),
}

/// A slot in its written form. Ordered by group, then within the group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Slot {
    /// The mapping that contains it, by its index among the batch's mappings.
    mapping: Option<u32>,
    /// The kind of its group.
    kind: u8,
    /// The number of the key, of the key's address, or of a slot outside of mappings. If a word is written instead:
    /// `place`.
    key: u64,
    field: u8,
    /// The index of its entry's preimage; for a slot outside of mappings, its index among the account's plain slots.
    place: u32,
}

struct Encoder<'a> {
    context: &'a HintContext,
    origins: Origins<'a>,
    /// Addresses that the context lacks; they are numbered after the context's.
    further: Addresses,
    /// Mappings, and their indices by the slot of the innermost one: one map for slots hashed last, one for slots
    /// hashed first.
    mappings: Vec<Mapping<Key>>,
    places: B256Map<[Option<u32>; 2]>,
    /// Slots of the account outside of mappings, each once.
    plain: IndexSet<B256, FbBuildHasher<32>>,
}

impl<'a> Encoder<'a> {
    fn new(context: &'a HintContext, preimages: &'a [Preimage]) -> Self {
        Self {
            context,
            origins: Origins::new(preimages),
            further: Addresses::default(),
            mappings: Vec::new(),
            places: B256Map::default(),
            plain: IndexSet::default(),
        }
    }

    /// Writes the section. Calls `written` for each account with its number, its address and its slots.
    fn keys(
        mut self,
        hints: &Hints,
        mut written: impl FnMut(usize, Address, &mut dyn Iterator<Item = B256>),
    ) -> Vec<u8> {
        // The transactions do not name about half of the accounts, and the number of mappings is about the same.
        self.further.reserve(hints.accounts.len() / 2);
        self.places.reserve(hints.accounts.len());
        let mut accounts: Vec<(u32, &AccountHints)> =
            hints.accounts.iter().map(|account| (self.number(account.address), account)).collect();
        accounts.sort_unstable_by_key(|(number, _)| *number);
        let (mut body, mut count) = (Vec::with_capacity(ACCOUNT_BYTES * accounts.len()), 0);
        let mut numbers = Ascending::default();
        let mut slots = Vec::new();
        // Each group has one account, unless the caller names one twice.
        for same in accounts.chunk_by(|a, b| a.0 == b.0) {
            let (number, AccountHints { address, .. }) = same[0];
            let code = same.iter().any(|(_, account)| account.code);
            let implied = self.context.implied_slots(address);
            slots.clear();
            self.plain.clear();
            for slot in same.iter().flat_map(|(_, account)| &account.slots) {
                if implied.binary_search(slot).is_err() {
                    slots.push(self.slot(*slot));
                }
            }
            if (number as usize) < self.context.implied() && !code && slots.is_empty() {
                continue;
            }
            slots.sort_unstable();
            slots.dedup_by_key(|slot| (slot.mapping, slot.kind, slot.key, slot.field));
            count += 1;
            numbers.put(&mut body, number.into());
            self.put_account(&mut body, code, &slots);
            written(number as usize, *address, &mut slots.iter().map(|slot| self.word(slot)));
        }
        let mut out = Vec::with_capacity(body.len() + 20 * self.further.len() + 8);
        put(&mut out, self.further.len() as u64);
        self.further.iter().for_each(|address| out.extend_from_slice(&address[..]));
        put(&mut out, count);
        out.append(&mut body);
        out
    }

    fn number(&mut self, address: Address) -> u32 {
        let known = self.context.addresses();
        let number = known.get_index_of(&address);
        number.unwrap_or_else(|| known.len() + self.further.insert_full(address).0) as u32
    }

    fn slot(&mut self, word: B256) -> Slot {
        let number = as_number(&word);
        if let Some(origin) = number.is_none().then(|| self.origins.of(&word)).flatten() {
            let mapping = Some(self.mapping(origin.base, origin.slot_first));
            let (field, place) = (origin.field, origin.place);
            let (kind, key) = match self.key(origin.key) {
                Key::Address(number) => (BY_ADDRESS, number.into()),
                Key::Number(number) => (BY_NUMBER, number),
                Key::Word(_) => (BY_WORD, place.into()),
            };
            return Slot { mapping, kind, key, field, place };
        }
        let place = self.plain.insert_full(word).0 as u32;
        let (kind, key) = number.map_or((WORDS, place.into()), |number| (NUMBERS, number));
        Slot { mapping: None, kind, key, field: 0, place }
    }

    /// The slot's full word.
    fn word(&self, slot: &Slot) -> B256 {
        match slot.mapping {
            Some(_) => field(self.origins.hash(slot.place), slot.field.into()),
            None => self.plain[slot.place as usize],
        }
    }

    fn mapping(&mut self, base: B256, slot_first: bool) -> u32 {
        let order = usize::from(slot_first);
        if let Some(place) = self.places.get(&base).and_then(|places| places[order]) {
            return place;
        }
        let Mapping { root, outer, .. } = self.origins.mapping(base, slot_first);
        let outer = outer.map(|key| key.map(|key| self.key(key)));
        let place = self.mappings.len() as u32;
        self.mappings.push(Mapping { slot_first, root, outer });
        self.places.entry(base).or_default()[order] = Some(place);
        place
    }

    fn key(&mut self, word: B256) -> Key {
        match (as_address(&word[..]), as_number(&word)) {
            (Some(address), _) => Key::Address(self.number(address)),
            (None, Some(number)) => Key::Number(number),
            (None, None) => Key::Word(word),
        }
    }

    /// Writes sorted slots of one account.
    fn put_account(&self, out: &mut Vec<u8>, code: bool, slots: &[Slot]) {
        let groups = slots.chunk_by(|a, b| (a.mapping, a.kind) == (b.mapping, b.kind));
        put(out, (groups.clone().count() as u64) << 1 | u64::from(code));
        groups.for_each(|group| self.put_group(out, group));
    }

    /// Writes sorted slots of one mapping whose keys are of one kind, or sorted slots outside of mappings.
    fn put_group(&self, out: &mut Vec<u8>, slots: &[Slot]) {
        let keys = slots.chunk_by(|a, b| a.key == b.key);
        let with_fields = slots.iter().any(|slot| slot.field != 0);
        let Slot { mapping, kind, .. } = slots[0];
        let flags = if with_fields { WITH_FIELDS } else { 0 };
        put(out, (keys.clone().count() as u64) << 4 | u64::from(kind | flags));
        if let Some(place) = mapping {
            put_mapping(out, &self.mappings[place as usize]);
        }
        let mut ascending = Ascending::default();
        for fields in keys {
            let Slot { key, place, .. } = fields[0];
            match kind {
                WORDS => out.extend_from_slice(&self.plain[place as usize][..]),
                BY_WORD => out.extend_from_slice(&self.origins.key(place)[..]),
                _ => ascending.put(out, key),
            }
            if with_fields {
                put(out, fields.iter().fold(0, |mask, slot| mask | 1 << slot.field));
            }
        }
    }
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
        match key {
            Key::Address(number) => {
                out.push(BY_ADDRESS);
                put(out, (*number).into());
            }
            Key::Number(number) => {
                out.push(BY_NUMBER);
                put(out, *number);
            }
            Key::Word(word) => {
                out.push(BY_WORD);
                out.extend_from_slice(&word[..]);
            }
        }
    }
}
