//! Chooses the transactions for a file without room for all.

use std::collections::{BTreeMap, HashSet};

use alloy_primitives::{Address, Bytes};

use super::file::{MAGIC, entry_bytes};

/// Divisor: the share of a full file for transactions that wait for a nonce or for funds. Entries that are in no pool
/// yet have the same share.
const WAITING_SHARE: u64 = 8;

/// A transaction of this node's users that is in the pool.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    /// The signed envelope.
    pub(crate) raw: Bytes,
    /// The account that signed it.
    pub(crate) sender: Address,
    /// Whether it cannot execute yet.
    pub(crate) waits: bool,
}

/// The entries that go into the file.
pub(super) struct Fitting<'a> {
    pub(super) entries: Vec<&'a [u8]>,
    /// Number of entries that are left out of the file.
    pub(super) left_out: usize,
    /// Whether there was no room for all entries, so that waiting transactions had to give way.
    pub(super) is_tight: bool,
}

/// Takes all entries if they fit `bytes_max`. Otherwise waiting transactions get their share of a file of
/// `file_bytes_max`, the senders with the least first. Entries from before the start get the same share, once the pool
/// has seen them.
pub(super) fn fitting<'a>(
    kept: &'a [Vec<u8>],
    is_settled: bool,
    live: &'a [Live],
    bytes_max: u64,
    file_bytes_max: u64,
) -> Fitting<'a> {
    let raws = kept.iter().map(Vec::as_slice).chain(live.iter().map(|live| &live.raw[..]));
    let bytes: u64 = raws.clone().map(|raw| entry_bytes(raw.len())).sum();
    if MAGIC.len() as u64 + bytes <= bytes_max {
        return Fitting { entries: raws.collect(), left_out: 0, is_tight: false };
    }
    let share = file_bytes_max / WAITING_SHARE;
    let mut kept_left = if is_settled { share } else { u64::MAX };
    let from_before = kept.iter().map(Vec::as_slice).filter(|raw| takes(&mut kept_left, raw.len()));
    let mut entries: Vec<&[u8]> = from_before.collect();
    let waiting = least_first(live, share);
    let of_pool = live.iter().enumerate().filter(|(index, live)| !live.waits || waiting.contains(index));
    entries.extend(of_pool.map(|(_, live)| &live.raw[..]));
    let left_out = kept.len() + live.len() - entries.len();
    Fitting { entries, left_out, is_tight: true }
}

/// Returns the waiting transactions that fit into `bytes_max`, the senders with the least first.
fn least_first(live: &[Live], bytes_max: u64) -> HashSet<usize> {
    let mut senders: BTreeMap<Address, (u64, Vec<usize>)> = BTreeMap::new();
    for (index, live) in live.iter().enumerate().filter(|(_, live)| live.waits) {
        let (bytes, indices) = senders.entry(live.sender).or_default();
        *bytes += entry_bytes(live.raw.len());
        indices.push(index);
    }
    let mut senders: Vec<_> = senders.into_values().collect();
    senders.sort_unstable();
    let mut left = bytes_max;
    let indices = senders.into_iter().flat_map(|(_, indices)| indices);
    indices.take_while(|index| takes(&mut left, live[*index].raw.len())).collect()
}

fn takes(left: &mut u64, raw_len: usize) -> bool {
    let rest = left.checked_sub(entry_bytes(raw_len));
    *left = rest.unwrap_or(0);
    rest.is_some()
}
