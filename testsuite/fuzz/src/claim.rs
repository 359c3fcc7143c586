//! Honest claims with altered bytes.

use serde::{Serialize, de::DeserializeOwned};

/// Reads a claim from the input. If the first byte is even, all of it is the claim. Otherwise the claim is the encoding
/// of `honest` with single bytes altered, given as (position u16, xor u8). So most claims are nearly true.
pub(crate) fn claim<T: Serialize + DeserializeOwned>(
    bytes: &[u8],
    honest: impl FnOnce(u8, u8) -> T,
) -> Option<T> {
    let (mode, rest) = bytes.split_first()?;
    if mode % 2 == 0 {
        return bcs::from_bytes(rest).ok();
    }
    let ([a, b], edits) = rest.split_first_chunk::<2>()?;
    let mut encoded = bcs::to_bytes(&honest(*a, *b)).ok()?;
    edit(&mut encoded, edits);
    bcs::from_bytes(&encoded).ok()
}

/// Alters bytes, given as (position u16, xor u8).
pub(crate) fn edit(bytes: &mut [u8], edits: &[u8]) {
    for edit in edits.as_chunks::<3>().0 {
        let len = bytes.len();
        if let Some(byte) = bytes.get_mut(usize::from(u16::from_le_bytes([edit[0], edit[1]])) % len.max(1)) {
            *byte ^= edit[2];
        }
    }
}

/// Returns wholly honest claims, and one with a byte altered.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let honest = (0..8).map(|i: u8| vec![1, i.wrapping_mul(37), i.wrapping_mul(91)]);
    honest.chain([vec![1, 7, 9, 20, 0, 1]]).collect()
}
