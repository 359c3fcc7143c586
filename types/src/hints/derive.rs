//! Where a slot comes from: the entry of a mapping, as Solidity and Vyper place it.
//!
//! An entry of `mapping(key => value)` at slot `p` starts at Keccak-256(key, p) in Solidity ("Layout of State Variables in
//! Storage"), at Keccak-256(p, key) in Vyper. The entry's fields follow it. In a nested mapping `p` is itself such a hash.

use alloy_primitives::{B256, U256, keccak256, map::HashMap};

use super::Preimage;

/// How many fields from an entry's start on are tried.
pub(super) const FIELDS_MAX: usize = 16;
/// Number of mappings around the innermost one that are resolved; real contracts nest two or three deep.
pub(super) const OUTER_MAX: usize = 2;
/// A word above this is first taken for a key, and only then for the slot of a mapping.
const ROOT_MAX: u64 = 0xffff;

/// An entry of a mapping. `K` is a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping<K> {
    /// Whether the mapping's slot is hashed before the key.
    pub(super) slot_first: bool,
    /// The slot of the outermost mapping.
    pub(super) root: B256,
    /// Keys in the mappings around the innermost one, outermost first.
    pub(super) outer: [Option<K>; OUTER_MAX],
}

impl Mapping<B256> {
    /// The slot of the innermost mapping itself.
    pub(super) fn base(&self) -> B256 {
        self.outer.iter().flatten().fold(self.root, |base, key| entry(self.slot_first, base, *key))
    }
}

/// The slot of a mapping's entry.
pub(super) fn entry(slot_first: bool, base: B256, key: B256) -> B256 {
    let (first, second) = if slot_first { (base, key) } else { (key, base) };
    let mut input = [0; 64];
    input[..32].copy_from_slice(&first[..]);
    input[32..].copy_from_slice(&second[..]);
    keccak256(input)
}

/// The slot of an entry's field.
pub(super) fn field(entry: B256, field: usize) -> B256 {
    U256::from_be_bytes(entry.0).wrapping_add(U256::from(field)).into()
}

/// The preimages that execution hashed, searchable by their hash.
pub(super) struct Origins<'a> {
    preimages: &'a [Preimage],
    /// Index of each preimage by the front of its hash. If two have the same front, one of them is not found, which
    /// only costs bytes.
    places: HashMap<u64, u32>,
}

/// Where a slot comes from.
pub(super) struct Origin {
    /// The slot of the mapping that contains the entry.
    pub(super) base: B256,
    /// Whether the mapping's slot is hashed before the key.
    pub(super) slot_first: bool,
    /// The entry's key in the mapping.
    pub(super) key: B256,
    /// Offset of the field in the entry, below [`FIELDS_MAX`].
    pub(super) field: u8,
    /// Index of the entry's preimage. Equal entries have the same index.
    pub(super) place: u32,
}

impl<'a> Origins<'a> {
    pub(super) fn new(preimages: &'a [Preimage]) -> Self {
        let places = preimages.iter().map(|preimage| front(&preimage.hash)).zip(0..).collect();
        Self { preimages, places }
    }

    /// Returns the mapping, key and field of a slot, if the slot belongs to a mapping's entry.
    pub(super) fn of(&self, slot: &B256) -> Option<Origin> {
        let place = self.near(slot)?;
        let preimage = &self.preimages[place as usize];
        let field = behind(slot, &preimage.hash)?;
        let (slot_first, key, base) = self.split(preimage);
        Some(Origin { base, slot_first, key, field, place })
    }

    /// Returns the entry at an index.
    pub(super) fn hash(&self, place: u32) -> B256 {
        self.preimages[place as usize].hash
    }

    /// Returns the key of the entry at an index.
    pub(super) fn key(&self, place: u32) -> B256 {
        let (_, key, _) = self.split(&self.preimages[place as usize]);
        key
    }

    /// The mapping at a slot, and those around it that are hashed in the same order.
    pub(super) fn mapping(&self, base: B256, slot_first: bool) -> Mapping<B256> {
        let mut root = base;
        let mut keys = Vec::with_capacity(OUTER_MAX);
        while keys.len() < OUTER_MAX
            && let Some((first, key, base)) = self.hashed(&root).map(|preimage| self.split(preimage))
            && first == slot_first
        {
            keys.push(key);
            root = base;
        }
        let mut outer = [None; OUTER_MAX];
        outer.iter_mut().zip(keys.into_iter().rev()).for_each(|(place, key)| *place = Some(key));
        Mapping { slot_first, root, outer }
    }

    /// Splits a hash's input into the key and the mapping's slot: (slot first, key, slot).
    fn split(&self, preimage: &Preimage) -> (bool, B256, B256) {
        let Preimage { first, second, .. } = *preimage;
        let is_slot =
            |word: &B256| as_number(word).is_some_and(|it| it <= ROOT_MAX) || self.hashed(word).is_some();
        let slot_first = !is_slot(&second) && is_slot(&first);
        if slot_first { (true, second, first) } else { (false, first, second) }
    }

    /// Returns the preimage whose hash is the word, if execution hashed it.
    fn hashed(&self, word: &B256) -> Option<&'a Preimage> {
        let preimage = &self.preimages[self.near(word)? as usize];
        (preimage.hash == *word).then_some(preimage)
    }

    /// Returns the index of the preimage whose hash begins like a word.
    fn near(&self, word: &B256) -> Option<u32> {
        self.places.get(&front(word)).copied()
    }
}

/// Returns the front of a hash. The slots of the entry's fields share it, except with a probability of 2^-60.
fn front(word: &B256) -> u64 {
    let (front, _) = word.split_first_chunk().expect("a word is longer");
    u64::from_be_bytes(*front)
}

/// Returns the offset of a field from its entry.
fn behind(slot: &B256, entry: &B256) -> Option<u8> {
    let distance = U256::from_be_bytes(slot.0).checked_sub(U256::from_be_bytes(entry.0))?;
    u8::try_from(distance).ok().filter(|field| usize::from(*field) < FIELDS_MAX)
}

/// Returns a word as a number, if it has at most 64 bits.
pub(super) fn as_number(word: &B256) -> Option<u64> {
    let (high, low) = word.split_at(24);
    let low = <[u8; 8]>::try_from(low).ok()?;
    high.iter().all(|byte| *byte == 0).then(|| u64::from_be_bytes(low))
}

/// The word of a number.
pub(super) fn from_number(number: u64) -> B256 {
    B256::from(U256::from(number))
}
