//! Reads and writes the numbers in hints: seven bits a byte, lowest first.

use alloy_primitives::{Address, B256};

use crate::codec::CodecError;

/// Appends a number in 1 to 10 bytes.
pub(super) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Writes ascending numbers as the gaps between them.
#[derive(Default)]
pub(super) struct Ascending {
    /// The smallest value that the next number may have.
    least: u64,
}

impl Ascending {
    /// Appends a number that is above the previous ones.
    pub(super) fn put(&mut self, out: &mut Vec<u8>, number: u64) {
        put(out, number.wrapping_sub(self.least));
        self.least = number.wrapping_add(1);
    }

    /// Reads the next number, which wraps around instead of overflowing: a wrong key does no harm.
    pub(super) fn next(&mut self, reader: &mut Reader<'_>) -> Result<u64, CodecError> {
        let number = self.least.wrapping_add(reader.number()?);
        self.least = number.wrapping_add(1);
        Ok(number)
    }
}

/// Reads untrusted bytes from front to back.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn byte(&mut self) -> Result<u8, CodecError> {
        let (byte, rest) = self.0.split_first().ok_or(invalid("they end early"))?;
        self.0 = rest;
        Ok(*byte)
    }

    pub(super) fn number(&mut self) -> Result<u64, CodecError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                break;
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(invalid("a number has at most 64 bits"))
    }

    /// Reads the number of elements that follow. Each takes at least a byte, so a short message cannot announce many.
    pub(super) fn count(&mut self) -> Result<usize, CodecError> {
        let count = self.number()?;
        self.checked(count)
    }

    /// Checks a count that was part of another number in the same way.
    pub(super) fn checked(&self, count: u64) -> Result<usize, CodecError> {
        usize::try_from(count)
            .ok()
            .filter(|count| *count <= self.0.len())
            .ok_or(invalid("they announce more than their bytes hold"))
    }

    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8], CodecError> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(invalid("they end early"))?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn word(&mut self) -> Result<B256, CodecError> {
        self.bytes(32).map(B256::from_slice)
    }

    pub(super) fn address(&mut self) -> Result<Address, CodecError> {
        self.bytes(20).map(Address::from_slice)
    }
}

/// The error for hints that break a rule of the format.
pub(super) fn invalid(rule: &'static str) -> CodecError {
    CodecError::Invalid { what: "hints", rule }
}
