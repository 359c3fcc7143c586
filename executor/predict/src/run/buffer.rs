//! [`Buffer`]: memory, call data and return data with some unknown bytes.

use alloy_primitives::{U256, keccak256};

/// A word, if it is known.
pub(super) type Value = Option<U256>;

/// Bytes, some of them unknown; all bytes past the end are zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    /// One flag per byte; empty while all bytes are known, which is the usual case.
    unknown: Vec<bool>,
    is_opaque: bool,
}

impl Buffer {
    /// A buffer of known bytes.
    pub(super) fn known(bytes: Vec<u8>) -> Self {
        Self { bytes, ..Self::default() }
    }

    /// A buffer of unknown content and length.
    pub(super) fn opaque() -> Self {
        Self { is_opaque: true, ..Self::default() }
    }

    /// Length in bytes, or `None` if it is unknown.
    pub(super) fn len(&self) -> Option<usize> {
        (!self.is_opaque).then_some(self.bytes.len())
    }

    /// Number of bytes in the buffer. Marks of unknown bytes may double its memory.
    pub(super) fn held(&self) -> usize {
        self.bytes.len()
    }

    /// The 32 bytes starting at `at`.
    pub(super) fn word(&self, at: usize) -> Value {
        let mut word = [0; 32];
        self.read(at, &mut word).then(|| U256::from_be_bytes(word))
    }

    /// Copies `[at..at + into.len()]`. Returns false if a byte is unknown.
    pub(super) fn read(&self, at: usize, into: &mut [u8]) -> bool {
        let end = at.saturating_add(into.len()).min(self.bytes.len());
        if let Some(bytes) = self.bytes.get(at..end) {
            into[..bytes.len()].copy_from_slice(bytes);
        }
        self.is_known(at, end)
    }

    /// The Keccak-256 of `[at..at + length]`, which must lie inside.
    pub(super) fn hash(&self, at: usize, length: usize) -> Value {
        let bytes = self.bytes.get(at..at.checked_add(length)?)?;
        self.is_known(at, at + length).then(|| U256::from_be_bytes(keccak256(bytes).0))
    }

    /// `[at..at + length]` as known bytes, with zeros past the end; `None` if a byte is unknown.
    pub(super) fn known_bytes(&self, at: usize, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.read(at, &mut bytes).then_some(bytes)
    }

    /// A copy of `[at..at + length]`, with zeros past the end.
    pub(super) fn part(&self, at: usize, length: usize) -> Buffer {
        let mut part = Buffer::default();
        part.grow(length);
        part.copy(0, self, at, length);
        part
    }

    /// Grows the buffer to at least `length` bytes.
    pub(super) fn grow(&mut self, length: usize) {
        if self.bytes.len() < length {
            self.bytes.resize(length, 0);
            if !self.unknown.is_empty() {
                self.unknown.resize(length, false);
            }
        }
    }

    /// Sets the 32 bytes starting at `at`, which must lie inside.
    pub(super) fn set_word(&mut self, at: usize, value: Value) {
        self.set(at, &value.unwrap_or_default().to_be_bytes::<32>(), value.is_some());
    }

    /// Sets bytes, which must lie inside. Unless `is_known`, they are marked unknown.
    pub(super) fn set(&mut self, at: usize, bytes: &[u8], is_known: bool) {
        if let Some(slot) = self.bytes.get_mut(at..at.saturating_add(bytes.len())) {
            slot.copy_from_slice(bytes);
            self.mark(at, bytes.len(), !is_known);
        }
    }

    /// Marks bytes, which must lie inside, as unknown.
    pub(super) fn forget(&mut self, at: usize, length: usize) {
        self.mark(at, length, true);
    }

    /// Sets `[at..at + length]`, which must lie inside, to `from[start..start + length]`.
    pub(super) fn copy(&mut self, at: usize, from: &Buffer, start: usize, length: usize) {
        if from.is_opaque {
            return self.forget(at, length);
        }
        let Some(into) = self.bytes.get_mut(at..at.saturating_add(length)) else { return };
        let start = start.min(from.bytes.len());
        let count = length.min(from.bytes.len() - start);
        into[..count].copy_from_slice(&from.bytes[start..start + count]);
        into[count..].fill(0);
        self.mark(at, length, false);
        if let Some(unknown) = from.unknown.get(start..start + count)
            && unknown.contains(&true)
        {
            self.mark(at, 0, true);
            self.unknown[at..at + count].copy_from_slice(unknown);
        }
    }

    /// Moves bytes within the buffer; both ranges must lie inside.
    pub(super) fn copy_within(&mut self, at: usize, start: usize, length: usize) {
        let part = self.part(start, length);
        self.copy(at, &part, 0, length);
    }

    fn is_known(&self, at: usize, end: usize) -> bool {
        !self.is_opaque && self.unknown.get(at..end).is_none_or(|unknown| !unknown.contains(&true))
    }

    fn mark(&mut self, at: usize, length: usize, is_unknown: bool) {
        if is_unknown && self.unknown.is_empty() {
            self.unknown.resize(self.bytes.len(), false);
        }
        if let Some(unknown) = self.unknown.get_mut(at..at.saturating_add(length)) {
            unknown.fill(is_unknown);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: unknown bytes make exactly the words that contain them unknown, through copies too. Known writes make them
    /// known again.
    #[test]
    fn unknown_bytes_spoil_what_they_are_in() {
        let mut memory = Buffer::default();
        memory.grow(96);
        memory.set_word(0, Some(U256::from(7)));
        memory.set_word(32, None);
        assert_eq!(memory.word(0), Some(U256::from(7)));
        assert_eq!((memory.word(1), memory.word(32), memory.word(63)), (None, None, None));
        assert_eq!(memory.word(64), Some(U256::ZERO));
        assert_eq!(memory.hash(0, 33), None);
        let part = memory.part(16, 32);
        assert_eq!(part.word(0), None);
        assert_eq!(part.known_bytes(0, 16).unwrap()[15], 7);
        memory.copy_within(0, 32, 32);
        assert_eq!(memory.word(0), None);
        memory.set(32, &[1; 32], true);
        assert_eq!(memory.word(32), Some(U256::from_be_bytes([1; 32])));
    }

    /// Goal: reads past the end are zero and never panic. Bytes of an opaque buffer stay unknown.
    #[test]
    fn ends_are_zero_and_opaque_is_unknown() {
        let data = Buffer::known(vec![0xff; 4]);
        assert_eq!(data.word(0), Some(U256::from(0xffff_ffff_u64) << 224));
        assert_eq!(data.word(usize::MAX), Some(U256::ZERO));
        assert_eq!(data.part(2, 4), Buffer::known(vec![0xff, 0xff, 0, 0]));
        assert_eq!(data.hash(0, 5), None, "memory is grown before it is hashed");
        assert_eq!((Buffer::opaque().word(0), Buffer::opaque().len()), (None, None));
        let mut memory = Buffer::known(vec![0; 64]);
        memory.copy(0, &Buffer::opaque(), 0, 32);
        assert_eq!((memory.word(0), memory.word(32)), (None, Some(U256::ZERO)));
        memory.copy(60, &data, 0, 32);
        memory.set_word(40, None);
        assert_eq!(memory.word(32), Some(U256::ZERO), "what does not lie inside is not written");
    }
}
