//! The common part of the targets: claims that are honest but for the bytes that the fuzzer alters.

use serde::{Serialize, de::DeserializeOwned};

/// Reads a claim from the fuzzer's bytes: wholly from them if the first is even. Otherwise it is the encoding of `honest` with
/// single bytes altered, as (position u16, xor u8). So the fuzzer begins at claims that verify.
pub fn claim<T: Serialize + DeserializeOwned>(bytes: &[u8], honest: impl FnOnce(u8, u8) -> T) -> Option<T> {
    let (mode, rest) = bytes.split_first()?;
    if mode % 2 == 0 {
        return bcs::from_bytes(rest).ok();
    }
    let ([a, b], edits) = rest.split_first_chunk::<2>()?;
    let mut encoded = bcs::to_bytes(&honest(*a, *b)).ok()?;
    for edit in edits.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % encoded.len();
        encoded[at] ^= edit[2];
    }
    bcs::from_bytes(&encoded).ok()
}
