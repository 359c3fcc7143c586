//! SHA-256 compression of several independent messages at once.
//!
//! One compression is a chain of dependent instructions: alone, it leaves the CPU's SHA unit idle for a third of the
//! time. Two interleaved chains keep the unit busy. The crate detects SHA extensions at run time. Other CPUs and
//! architectures compress one message after the other with the `sha2` crate, with the same results.
//!
//! Callers pad their messages and choose the initial state.
//!
//! ```
//! use slipstream_sha256::{INITIAL, compress_many};
//!
//! // The empty message: a bit, zeros, and its length of 0 bits.
//! let mut block = [0; 64];
//! block[0] = 0x80;
//! let mut states = [INITIAL; 3];
//! compress_many(&mut states, &[block; 3]);
//! assert!(states.iter().all(|state| state[0] == 0xe3b0_c442));
//! ```

#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod tests;

/// The eight 32-bit words of a hash in progress; each compression updates them.
pub type State = [u32; 8];

/// One 64-byte message block, the input of one compression.
pub type Block = [u8; 64];

/// The initial state of a SHA-256 digest (FIPS 180-4, section 5.3.3).
pub const INITIAL: State =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// Compresses the blocks of one message, one after the other.
#[inline]
pub fn compress(state: &mut State, blocks: &[Block]) {
    #[cfg(target_arch = "x86_64")]
    if x86::is_available() {
        // SAFETY: the CPU has the features that the function is compiled for.
        return unsafe { x86::compress(std::array::from_mut(state), [blocks]) };
    }
    one_by_one(std::array::from_mut(state), [blocks]);
}

/// Compresses one block into each of two states.
#[inline]
pub fn compress_pair(states: &mut [State; 2], blocks: [&Block; 2]) {
    compress_messages(states, blocks.map(std::slice::from_ref));
}

/// Compresses two messages with the same number of blocks.
///
/// # Panics
/// If one message has more blocks than the other.
#[inline]
pub fn compress_messages(states: &mut [State; 2], messages: [&[Block]; 2]) {
    assert_eq!(messages[0].len(), messages[1].len(), "both messages have the same number of blocks");
    #[cfg(target_arch = "x86_64")]
    if x86::is_available() {
        // SAFETY: the CPU has the features that the function is compiled for.
        return unsafe { x86::compress(states, messages) };
    }
    one_by_one(states, messages);
}

/// Compresses one message into each state, all with the same number of blocks. `blocks` holds the messages one after
/// another.
///
/// # Panics
/// If the number of blocks is not a multiple of the number of states.
pub fn compress_many(states: &mut [State], blocks: &[Block]) {
    let len = blocks.len().checked_div(states.len()).unwrap_or(0);
    assert_eq!(states.len() * len, blocks.len(), "each state has the same number of blocks");
    let (pairs, odd) = states.as_chunks_mut();
    let (pair_blocks, odd_blocks) = blocks.split_at(2 * len * pairs.len());
    if len > 0 {
        for (states, blocks) in pairs.iter_mut().zip(pair_blocks.chunks_exact(2 * len)) {
            let (first, second) = blocks.split_at(len);
            compress_messages(states, [first, second]);
        }
    }
    if let [state] = odd {
        compress(state, odd_blocks);
    }
}

/// Returns the digest of an already padded message: the state after its blocks, as bytes.
#[inline]
pub fn digest(initial: &State, blocks: &[Block]) -> [u8; 32] {
    let [digest] = digests(initial, [blocks]);
    digest
}

/// Returns the digests of two already padded messages with the same number of blocks.
///
/// # Panics
/// If one message has more blocks than the other.
#[inline]
pub fn digest_pair(initial: &State, messages: [&[Block]; 2]) -> [[u8; 32]; 2] {
    assert_eq!(messages[0].len(), messages[1].len(), "both messages have the same number of blocks");
    digests(initial, messages)
}

#[inline]
fn digests<const N: usize>(initial: &State, messages: [&[Block]; N]) -> [[u8; 32]; N] {
    #[cfg(target_arch = "x86_64")]
    if x86::is_available() {
        // SAFETY: the CPU has the features that the function is compiled for.
        return unsafe { x86::digests(initial, messages) };
    }
    digests_one_by_one(initial, messages)
}

/// Returns the digests of messages of one block each, given as two separate halves, as in a Merkle tree. Two messages
/// at once take the least time for each.
#[inline]
pub fn digest_halves<const N: usize>(initial: &State, messages: [[&[u8; 32]; 2]; N]) -> [[u8; 32]; N] {
    #[cfg(target_arch = "x86_64")]
    if x86::is_available() {
        // SAFETY: the CPU has the features that the function is compiled for.
        return unsafe { x86::digests_of_halves(initial, messages) };
    }
    let blocks = messages.map(|[front, back]| {
        let mut block = [0; 64];
        block[..32].copy_from_slice(front);
        block[32..].copy_from_slice(back);
        block
    });
    digests_one_by_one(initial, blocks.each_ref().map(std::slice::from_ref))
}

/// Compresses in software, on CPUs without SHA extensions.
fn one_by_one<const N: usize>(states: &mut [State; N], messages: [&[Block]; N]) {
    for (state, blocks) in states.iter_mut().zip(messages) {
        sha2::block_api::compress256(state, blocks);
    }
}

/// Computes [`digests`] in software, on CPUs without SHA extensions.
fn digests_one_by_one<const N: usize>(initial: &State, messages: [&[Block]; N]) -> [[u8; 32]; N] {
    let mut states = [*initial; N];
    one_by_one(&mut states, messages);
    states.map(|state| {
        let mut bytes = [0; 32];
        for (chunk, word) in bytes.as_chunks_mut().0.iter_mut().zip(state) {
            *chunk = word.to_be_bytes();
        }
        bytes
    })
}
