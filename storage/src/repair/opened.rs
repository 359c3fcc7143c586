//! [`OpenedSubtree`]: a subtree opened some levels down, so that anyone who knows its hash can verify it.
//!
//! Each part is a known hash or shows its preimage: for a fork the hashes of its two sides, for a leaf its row. So an
//! answer can show only the true content, whoever sent it.

use std::slice::Iter;

use serde::{Deserialize, Serialize};
use slipstream_types::{
    Digest, Path, StateKey, StateValue,
    bounded::BoundedVec,
    tree::{Leaf, Subtree},
};

use crate::{error::RepairError, place::PathPrefix};

/// Maximum number of levels that one subtree is opened at once: 64 hashes of 32 bytes.
pub const LEVELS_MAX: u8 = 6;
/// Maximum number of parts of a subtree that is opened this deep: one fork for every two parts below.
const PARTS_MAX: usize = (2 << LEVELS_MAX) - 1;

/// One part of an opened subtree.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SubtreePart {
    /// A subtree that is not opened.
    Hash(Digest),
    /// A leaf that is alone in its place.
    Row(StateKey, StateValue),
    /// Leaves diverge at the next bit. Both sides follow, the side of bit 0 first.
    Fork,
    /// All leaves share the bits of a path before a later bit, and diverge there. Both sides follow.
    Run {
        /// Its bits from `bit` on are 0.
        path: Path,
        /// The bit at which the leaves diverge.
        bit: u8,
    },
}

/// A subtree opened some levels down, each part before those below it. Empty for a place without leaves.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OpenedSubtree(pub(super) BoundedVec<SubtreePart, PARTS_MAX>);

/// The facts that an opened subtree proves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ProvenPart {
    /// The subtree at a place has this hash. `is_early` means that it could have been opened further: it is a leaf,
    /// or the answer opened too little.
    Subtree { place: PathPrefix, hash: Digest, is_early: bool },
    /// A place holds one leaf.
    Row(PathPrefix, Leaf, StateKey, StateValue),
    /// All leaves of the first place are in the second.
    Run(PathPrefix, PathPrefix),
}

impl OpenedSubtree {
    /// Takes the parts in the order in which they are sent.
    ///
    /// # Errors
    /// [`RepairError::Malformed`] if they are too many.
    pub fn new(parts: Vec<SubtreePart>) -> Result<OpenedSubtree, RepairError> {
        let malformed =
            |_| RepairError::Malformed { place: PathPrefix::ROOT, reason: "it has too many parts" };
        Ok(OpenedSubtree(BoundedVec::new(parts).map_err(malformed)?))
    }

    /// Returns the parts in their order.
    pub fn parts(&self) -> &[SubtreePart] {
        &self.0
    }

    /// Proves the content of a place from the hash of its subtree, opened down to `levels` levels.
    pub(super) fn prove(
        &self,
        place: PathPrefix,
        expected: Digest,
        levels: u8,
    ) -> Result<Vec<ProvenPart>, RepairError> {
        let malformed = |reason| RepairError::Malformed { place, reason };
        if matches!(self.0.first(), None | Some(SubtreePart::Hash(_))) {
            return Err(malformed("it opens nothing"));
        }
        let mut reading = PartReader { parts: self.0.iter(), proved: Vec::new() };
        let found = reading.part(place, levels.min(LEVELS_MAX)).map_err(malformed)?;
        if reading.parts.next().is_some() {
            return Err(malformed("it has surplus parts"));
        }
        if found != expected {
            return Err(RepairError::WrongHash { place, expected, found });
        }
        Ok(reading.proved)
    }
}

struct PartReader<'a> {
    parts: Iter<'a, SubtreePart>,
    proved: Vec<ProvenPart>,
}

impl PartReader<'_> {
    /// Reads the parts of the subtree at a place, and returns its hash.
    fn part(&mut self, place: PathPrefix, levels: u8) -> Result<Digest, &'static str> {
        match self.parts.next().ok_or("it ends early")? {
            SubtreePart::Hash(Digest::ZERO) => Err("an empty side must be left out"),
            SubtreePart::Hash(hash) => {
                self.proved.push(ProvenPart::Subtree { place, hash: *hash, is_early: levels > 0 });
                Ok(*hash)
            }
            SubtreePart::Row(key, value) => {
                let leaf = Leaf { path: key.path(), value_hash: value.hash(key) };
                if !place.contains(&leaf.path) || !value.fits(key) {
                    return Err("a row lies outside its place, or has an invalid value");
                }
                self.proved.push(ProvenPart::Row(place, leaf, *key, *value));
                Ok(leaf.hash())
            }
            SubtreePart::Fork => self.fork(place, levels),
            SubtreePart::Run { path, bit } => {
                let below = PathPrefix::new(path, usize::from(*bit));
                if below.bits() <= place.bits() || !place.contains(path) || below.path() != path {
                    return Err("a run leads outside its place");
                }
                self.proved.push(ProvenPart::Run(place, below));
                let hash = self.fork(below, levels)?;
                let lift = |subtree, bit| match path.bit(bit) {
                    false => Subtree::parent(subtree, Subtree::Empty),
                    true => Subtree::parent(Subtree::Empty, subtree),
                };
                Ok((place.bits()..below.bits()).rev().fold(Subtree::Inner(hash), lift).hash())
            }
        }
    }

    fn fork(&mut self, place: PathPrefix, levels: u8) -> Result<Digest, &'static str> {
        let below = levels.checked_sub(1).ok_or("it goes deeper than requested")?;
        if place.bits() == 256 {
            return Err("a fork lies beyond the last bit of its leaves");
        }
        let left = self.part(place.child(false), below)?;
        let right = self.part(place.child(true), below)?;
        Ok(Subtree::parent(Subtree::Inner(left), Subtree::Inner(right)).hash())
    }
}

#[cfg(test)]
mod tests {
    use slipstream_types::{Address, B256, U256, codec};

    use super::*;

    /// Goal: the bytes of answers between peers stay as docs/formats.md draws them.
    #[test]
    fn the_bytes_of_an_opened_subtree_are_pinned() {
        let (key, value) =
            (StateKey::Slot(Address::repeat_byte(2), B256::repeat_byte(3)), StateValue::Slot(U256::from(4)));
        let run = SubtreePart::Run { path: *PathPrefix::new(&Path([0xff; 32]), 9).path(), bit: 9 };
        let parts =
            vec![run, SubtreePart::Hash(Digest([1; 32])), SubtreePart::Fork, SubtreePart::Row(key, value)];
        let bytes = codec::encode("opened", &OpenedSubtree::new(parts).unwrap()).unwrap();
        let mut row = Vec::new();
        value.append_row(&key, &mut row);
        let path = [&[0xff, 0x80][..], &[0; 30]].concat();
        let expected = [&[4, 3][..], &path, &[9, 0], &[1; 32], &[2, 1], &row].concat();
        assert_eq!(bytes, expected);
        let place = codec::encode("place", &PathPrefix::new(&Path([0xff; 32]), 9)).unwrap();
        assert_eq!(place, [9, 0, 2, 0xff, 0x80]);
    }
}
