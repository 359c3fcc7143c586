//! Where a slot comes from: the entry of a mapping, as Solidity and Vyper place it.
//!
//! `mapping(key => value)` at slot `p` has its entries at Keccak-256(key, p) (Solidity, "Layout of State Variables in Storage") or
//! at Keccak-256(p, key) (Vyper); the fields of an entry follow it, and in a nested mapping `p` is itself such a hash.

use alloy_primitives::{B256, U256, keccak256, map::B256Map};

use super::Preimage;

/// Fields of an entry that are looked for behind it.
pub(super) const FIELDS_MAX: usize = 16;
/// Mappings around the innermost one that are taken apart; real contracts nest two or three deep.
pub(super) const OUTER_MAX: usize = 2;
/// Above this a word counts as a key before it counts as the slot of a mapping.
const ROOT_MAX: u64 = 0xffff;

/// An entry of a mapping. `K` is a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Mapping<K> {
    /// Whether the mapping's slot is hashed before the key.
    pub(super) slot_first: bool,
    /// The slot of the outermost mapping.
    pub(super) root: B256,
    /// Keys in the mappings around it, outermost first.
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

/// What execution hashed, by the hash.
pub(super) struct Origins(B256Map<(B256, B256)>);

impl Origins {
    pub(super) fn new(preimages: &[Preimage]) -> Origins {
        Origins(preimages.iter().map(|preimage| (preimage.hash, (preimage.first, preimage.second))).collect())
    }

    /// The mapping, the key and the field that a slot is of, if it is one.
    pub(super) fn of(&self, slot: B256) -> Option<(Mapping<B256>, B256, usize)> {
        let word = U256::from_be_bytes(slot.0);
        let at = |field| B256::from(word.wrapping_sub(U256::from(field)));
        let field = (0..FIELDS_MAX).find(|field| self.0.contains_key(&at(*field)))?;
        let (slot_first, key, mut root) = self.split(at(field))?;
        let mut keys = Vec::with_capacity(OUTER_MAX);
        while keys.len() < OUTER_MAX
            && let Some((first, key, base)) = self.split(root)
            && first == slot_first
        {
            keys.push(key);
            root = base;
        }
        let mut outer = [None; OUTER_MAX];
        outer.iter_mut().zip(keys.into_iter().rev()).for_each(|(place, key)| *place = Some(key));
        Some((Mapping { slot_first, root, outer }, key, field))
    }

    /// Which half of a hash's input is the key and which the mapping's slot: (slot first, key, slot).
    fn split(&self, hash: B256) -> Option<(bool, B256, B256)> {
        let (first, second) = *self.0.get(&hash)?;
        let is_slot =
            |word: &B256| as_number(word).is_some_and(|it| it <= ROOT_MAX) || self.0.contains_key(word);
        let slot_first = !is_slot(&second) && is_slot(&first);
        Some(if slot_first { (true, second, first) } else { (false, first, second) })
    }
}

/// A word as a number, if it has at most 64 bits.
pub(super) fn as_number(word: &B256) -> Option<u64> {
    let (high, low) = word.split_at(24);
    let low = <[u8; 8]>::try_from(low).ok()?;
    high.iter().all(|byte| *byte == 0).then(|| u64::from_be_bytes(low))
}

/// The word of a number.
pub(super) fn from_number(number: u64) -> B256 {
    B256::from(U256::from(number))
}
