//! A Bloom filter of a batch's logs, sized to the batch: two bytes for each address and topic that it holds.
//!
//! Ethereum's 256 bytes are made for a block of some hundred logs and would let nearly everything of a large batch
//! through. With 16 bits per entry and ten probes, one absent entry in 2,000 seems present.

use std::collections::HashSet;

use alloy_primitives::Address;
use slipstream_types::{Digest, Receipts};

/// Bits that one entry sets.
const PROBES: u32 = 10;
/// Bytes per distinct entry.
const ENTRY_BYTES: usize = 2;
/// The fewest and the most bytes of a filter. The maximum suits 32,768 entries. A batch with more entries is opened in
/// vain more often, and a batch at the ledger's limits nearly always.
const BYTES_MIN: usize = 8;
pub(super) const BYTES_MAX: usize = 2 * 32_768;

/// An address, or a topic with its position, as the filter looks it up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Entry {
    first: u64,
    step: u64,
}

impl Entry {
    pub(super) fn address(address: &Address) -> Entry {
        Entry::of(0, address.as_slice())
    }

    /// The topic at position `index`: a search for a sender must not find the receiver of a transfer.
    pub(super) fn topic(index: usize, topic: &[u8; 32]) -> Entry {
        Entry::of(1 + index as u8, topic)
    }

    fn of(kind: u8, bytes: &[u8]) -> Entry {
        let mut keyed = [0; 33];
        keyed[0] = kind;
        keyed[1..=bytes.len()].copy_from_slice(bytes);
        let digest = Digest::tagged("slipstream/log", &keyed[..=bytes.len()]);
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| digest.0[at + byte]));
        Entry { first: word(0), step: word(8) | 1 }
    }

    fn bits(self, len: usize) -> impl Iterator<Item = (usize, u8)> {
        let bits = 8 * len as u64;
        (0..u64::from(PROBES)).map(move |probe| {
            let bit = self.first.wrapping_add(probe.wrapping_mul(self.step)) % bits;
            ((bit / 8) as usize, 1 << (bit % 8))
        })
    }
}

/// Builds the filter of a batch; empty if the batch has no logs.
pub(crate) fn of(receipts: &Receipts) -> Vec<u8> {
    let logs = receipts.receipts.iter().flat_map(|receipt| &receipt.logs);
    let keys: HashSet<(usize, &[u8])> = logs
        .flat_map(|log| {
            let topics = log.topics.iter().enumerate().map(|(index, topic)| (1 + index, &topic.0[..]));
            topics.chain([(0, log.address.as_slice())])
        })
        .collect();
    if keys.is_empty() {
        return Vec::new();
    }
    let mut bloom = vec![0; (ENTRY_BYTES * keys.len()).clamp(BYTES_MIN, BYTES_MAX)];
    for (kind, bytes) in keys {
        for (byte, bit) in Entry::of(kind as u8, bytes).bits(bloom.len()) {
            bloom[byte] |= bit;
        }
    }
    bloom
}

/// Whether the batch may hold an entry; false is certain.
pub(super) fn may_hold(bloom: &[u8], entry: Entry) -> bool {
    !bloom.is_empty() && entry.bits(bloom.len()).all(|(byte, bit)| bloom[byte] & bit != 0)
}
