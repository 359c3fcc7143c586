//! The access lists of consecutive mainnet blocks (EIP-7928), replayed as keys without code or transactions. To replay
//! a batch is to read each of its keys, in order, and to compute for as long as the isolated blocks take per key.
//!
//! The first [`WARM_UP`] batches only fill the hot cache, which has a node's default size. Format:
//! `access-lists/NUMBER.rlp.gz` in the data directory has `[[address, [[slot, changes]...], [slot read...], ...]...]`.

use std::{
    collections::VecDeque,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use alloy_primitives::{Address, B256, map::HashSet};
use alloy_rlp::{Buf as _, Decodable as _, Header};
use anyhow::{Context, Result};
use slipstream_executor::{
    ExecutionState, HotCache, LayeredState, PrefetchRequest, Prefetcher, ReadSet, WarmState,
};
use slipstream_storage::StateReader;
use slipstream_types::{AccountValue, BatchNumber, Delta, Digest, StateKey, StateValue, U256};

use crate::mainnet::gunzip;

/// Batches that only warm up the cache.
const WARM_UP: usize = 32;
/// The hot cache of a node's default configuration.
const HOT_BYTES: usize = 64 << 20;
/// Batches passed to the prefetcher before they are replayed.
const READAHEAD: usize = 8;

/// Consecutive batches, as lists of keys.
#[derive(Clone)]
pub(super) struct Trace {
    batches: Vec<Vec<StateKey>>,
    /// The batches that are replayed.
    measured: std::ops::Range<usize>,
    /// The computing time per key.
    cpu: Duration,
}

impl Trace {
    /// Makes a trace of at most `batches_max` batches after the warm-up; `None` if no batch follows it.
    pub(super) fn new(batches: Vec<Vec<StateKey>>, batches_max: usize) -> Option<Trace> {
        let measured = WARM_UP..batches.len().min(WARM_UP + batches_max);
        (!measured.is_empty()).then_some(Trace { batches, measured, cpu: Duration::ZERO })
    }

    /// Sets the computing time per key.
    pub(super) fn with_cpu(self, cpu: Duration) -> Trace {
        Trace { cpu, ..self }
    }

    /// Returns every row that the trace reads.
    pub(super) fn rows(&self) -> Vec<(StateKey, StateValue)> {
        let mut keys: Vec<StateKey> = self.batches.iter().flatten().copied().collect();
        keys.sort_unstable();
        keys.dedup();
        keys.into_iter().map(|key| (key, row(&key))).collect()
    }

    /// Returns the number of keys in the replayed batches.
    pub(super) fn keys(&self) -> usize {
        self.batches[self.measured.clone()].iter().map(Vec::len).sum()
    }

    /// Returns each batch's keys that no earlier batch has, so that no cache can have them.
    pub(super) fn fresh(&self) -> Vec<Vec<StateKey>> {
        let mut seen: HashSet<StateKey> =
            self.batches[..self.measured.start].iter().flatten().copied().collect();
        let fresh = |keys: &Vec<StateKey>| keys.iter().copied().filter(|key| seen.insert(*key)).collect();
        self.batches[self.measured.clone()].iter().map(fresh).collect()
    }

    /// Replays without hints and cache.
    pub(super) fn replay_cold(&self, reader: &dyn StateReader) -> Result<()> {
        self.measured.clone().try_for_each(|index| self.replay(&self.batches[index], reader))
    }

    /// Replays with hints for the keys that the hot cache lacks when they arrive; without a cache, for all keys.
    pub(super) fn replay_ahead<R>(
        &self,
        prefetcher: &Prefetcher,
        reader: &R,
        mut hot: Option<HotCache>,
    ) -> Result<()>
    where
        R: ExecutionState + Clone + 'static,
    {
        let begin = |index: usize, hot: Option<&HotCache>| {
            let is_wanted = |key: &&StateKey| hot.is_none_or(|hot| !hot.contains(key));
            let keys = self.batches[index].iter().filter(is_wanted).copied().collect();
            let wanted = PrefetchRequest { keys, ..PrefetchRequest::default() };
            prefetcher.read_ahead(BatchNumber::new(index as u64), reader.clone(), wanted)
        };
        let mut ahead: VecDeque<WarmState<R>> = VecDeque::new();
        let mut coming = self.measured.clone();
        for index in self.measured.clone() {
            while ahead.len() <= READAHEAD
                && let Some(next) = coming.next()
            {
                ahead.push_back(begin(next, hot.as_ref()));
            }
            let warm = ahead.pop_front().context("a batch was not read ahead before its replay")?;
            match &mut hot {
                None => self.replay(&self.batches[index], &warm)?,
                Some(hot) => {
                    self.replay(&self.batches[index], &LayeredState::cached(hot, digest(index), &warm))?;
                    self.touch(hot, index);
                }
            }
        }
        Ok(())
    }

    /// Returns the hot cache before the replayed batches.
    pub(super) fn warmed_up(&self) -> HotCache {
        let mut hot = HotCache::new(HOT_BYTES);
        (0..self.measured.start).for_each(|index| self.touch(&mut hot, index));
        hot
    }

    fn touch(&self, hot: &mut HotCache, index: usize) {
        let rows = self.batches[index].iter().map(|key| (*key, Some(row(key)))).collect();
        let touched = ReadSet { rows, ..ReadSet::default() };
        hot.apply(digest(index), digest(index + 1), Some(&touched), &Delta::default());
    }

    fn replay(&self, keys: &[StateKey], reader: &dyn StateReader) -> Result<()> {
        for key in keys {
            reader.row(key)?;
            self.compute();
        }
        Ok(())
    }

    fn compute(&self) {
        let start = Instant::now();
        while start.elapsed() < self.cpu {
            std::hint::spin_loop();
        }
    }
}

/// Returns a stand-in for the digest of the header before a batch.
fn digest(index: usize) -> Digest {
    Digest::tagged("slipnet/bench-hints-batch", &index.to_le_bytes())
}

fn row(key: &StateKey) -> StateValue {
    match key {
        StateKey::Account(_) => StateValue::Account(AccountValue { nonce: 1, ..AccountValue::default() }),
        StateKey::Slot(..) => StateValue::Slot(U256::from(1)),
    }
}

/// Loads the longest run of consecutive blocks among the access lists: the keys that each block touches, in the order
/// of its list.
pub(crate) fn load(data: &Path) -> Result<Vec<Vec<StateKey>>> {
    let dir = data.join("access-lists");
    let mut numbers: Vec<u64> = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".rlp.gz")?.parse::<u64>().ok());
        numbers.extend(number);
    }
    numbers.sort_unstable();
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    let longest = runs.max_by_key(|run| run.len()).context("the data has no access lists")?;
    let keys = |number: &u64| {
        let path = dir.join(format!("{number}.rlp.gz"));
        read_access_list(&gunzip(&path)?).with_context(|| format!("cannot read {}", path.display()))
    };
    longest.iter().map(keys).collect()
}

fn read_access_list(bytes: &[u8]) -> Result<Vec<StateKey>> {
    let mut keys = Vec::new();
    let mut accounts = Header::decode_bytes(&mut &bytes[..], true)?;
    while accounts.has_remaining() {
        let mut account = Header::decode_bytes(&mut accounts, true)?;
        let address = Address::decode(&mut account)?;
        keys.push(StateKey::Account(address));
        let mut written = Header::decode_bytes(&mut account, true)?;
        while written.has_remaining() {
            let mut change = Header::decode_bytes(&mut written, true)?;
            keys.push(StateKey::Slot(address, B256::decode(&mut change)?));
        }
        let mut read = Header::decode_bytes(&mut account, true)?;
        while read.has_remaining() {
            keys.push(StateKey::Slot(address, B256::decode(&mut read)?));
        }
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use alloy_primitives::hex;

    use super::*;

    #[test]
    fn an_access_list_names_accounts_and_their_slots() {
        // [[address, [[slot 1, []]], [slot 2], [], [], []]]
        let mut account = vec![0x94];
        account.extend([7; 20]);
        account.extend(hex!("e3e2a0"));
        account.extend([1; 32]);
        account.extend(hex!("c0e1a0"));
        account.extend([2; 32]);
        account.extend(hex!("c0c0c0"));
        let mut list = vec![0xf8, account.len() as u8 + 2, 0xf8, account.len() as u8];
        list.extend(&account);
        let address = Address::repeat_byte(7);
        let slot = |byte| StateKey::Slot(address, B256::repeat_byte(byte));
        assert_eq!(read_access_list(&list).unwrap(), [StateKey::Account(address), slot(1), slot(2)]);
        assert!(read_access_list(&list[..40]).is_err());
    }

    /// Goal: a key is fresh only in the first batch that touches it, and batches of the warm-up count.
    #[test]
    fn what_was_touched_before_is_not_fresh() {
        let key = |byte| StateKey::Account(Address::repeat_byte(byte));
        let mut batches = vec![vec![]; WARM_UP + 2];
        batches[0] = vec![key(1)];
        batches[WARM_UP] = vec![key(1), key(2)];
        batches[WARM_UP + 1] = vec![key(2), key(3)];
        let trace = Trace::new(batches.clone(), 9).unwrap();
        assert_eq!(trace.keys(), 4);
        assert_eq!(trace.fresh(), [[key(2)], [key(3)]]);
        assert!(trace.warmed_up().contains(&key(1)));
        batches.truncate(WARM_UP);
        assert!(Trace::new(batches, 9).is_none());
    }
}
