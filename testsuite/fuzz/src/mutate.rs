//! [`mutate`]: new inputs from kept ones.

use rand::{Rng, rngs::StdRng, seq::IndexedRandom};

/// The most bytes of an input. Longer ones only slow a target down.
const BYTES_MAX: usize = 64 << 10;
/// The most changes of one input.
const CHANGES_MAX: usize = 6;
/// Lengths, counts and versions at the limits of their types.
const EDGES: [&[u8]; 8] = [
    &[0],
    &[0x7f],
    &[0x80, 0],
    &[0xff],
    &[0xff, 0xff],
    &[0xff, 0xff, 0xff, 0x7f],
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
    &[0xff; 8],
];
/// Tokens of text formats.
const WORDS: [&str; 24] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "null",
    "true",
    "-1",
    "0",
    "1e999",
    "18446744073709551616",
    "\"0x\"",
    "\"0x0\"",
    "0xffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "\\u0000",
    "\u{fffd}",
    "\"latest\"",
    "\n",
    "  ",
    "- ",
    "&a ",
    "*a",
];

/// Returns an input that shares most of its bytes with one of `kept`.
pub fn mutate(rng: &mut StdRng, kept: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = kept.choose(rng).cloned().unwrap_or_default();
    for _ in 0..rng.random_range(1..=CHANGES_MAX) {
        let at = rng.random_range(0..=bytes.len());
        match rng.random_range(0..8) {
            0 => flip(rng, &mut bytes, |rng| 1 << rng.random_range(0..8)),
            1 => flip(rng, &mut bytes, Rng::random),
            2 => put(&mut bytes, at, EDGES.choose(rng).copied().unwrap_or_default()),
            3 => put(&mut bytes, at, WORDS.choose(rng).copied().unwrap_or_default().as_bytes()),
            4 => write(&mut bytes, at, EDGES.choose(rng).copied().unwrap_or_default()),
            5 => drop(bytes.drain(part(rng, bytes.len()))),
            6 => {
                let copied = bytes[part(rng, bytes.len())].to_vec();
                put(&mut bytes, at, &copied);
            }
            _ => {
                let other = kept.choose(rng).map(Vec::as_slice).unwrap_or_default();
                put(&mut bytes, at, &other[part(rng, other.len())]);
            }
        }
    }
    bytes.truncate(BYTES_MAX);
    bytes
}

fn flip(rng: &mut StdRng, bytes: &mut [u8], by: impl FnOnce(&mut StdRng) -> u8) {
    if !bytes.is_empty() {
        bytes[rng.random_range(0..bytes.len())] ^= by(rng);
    }
}

fn put(bytes: &mut Vec<u8>, at: usize, added: &[u8]) {
    bytes.splice(at..at, added.iter().copied());
}

fn write(bytes: &mut [u8], at: usize, written: &[u8]) {
    bytes[at..].iter_mut().zip(written).for_each(|(byte, new)| *byte = *new);
}

/// Draws a range of bytes; most are short.
fn part(rng: &mut StdRng, len: usize) -> std::ops::Range<usize> {
    let first = rng.random_range(0..=len);
    let longest = if rng.random_bool(0.8) { 16 } else { len };
    first..first + rng.random_range(0..=longest.min(len - first))
}
