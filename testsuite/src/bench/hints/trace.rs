//! The access lists of consecutive mainnet blocks (EIP-7928), replayed as what they are: keys without code or transactions. A batch is
//! replayed by reading each of its keys, in their order, and by computing for as long as the isolated blocks take for a key.
//!
//! The hot cache stands here as the rule that it follows: what one of the last [`WINDOW`] batches touched is in memory. Format: in
//! `access-lists/NUMBER.rlp.gz` of the data directory, `[[address, [[slot, changes]...], [slot read...], ...]...]`.

use std::{
    collections::VecDeque,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use alloy_primitives::{Address, B256, map::HashMap};
use alloy_rlp::{Buf as _, Decodable as _, Header};
use anyhow::{Context, Result};
use slipstream_executor::{PrefetchLimits, Prefetcher, StateReader, Wanted, Warm};
use slipstream_types::{AccountValue, BatchNumber, StateKey, StateValue, U256};

use crate::bench::mainnet::gunzip;

/// Batches for which a hot cache keeps what they touched.
const WINDOW: usize = 32;
/// Batches handed to the prefetcher before they are replayed.
const READAHEAD: usize = 8;

/// Consecutive batches. The first [`WINDOW`] only fill the hot cache.
#[derive(Clone)]
pub(super) struct Trace {
    batches: Vec<Vec<StateKey>>,
    /// Of each batch the keys that the cache does not have.
    fresh: Vec<Vec<StateKey>>,
    /// The batches that are replayed.
    measured: std::ops::Range<usize>,
    /// Computing for a key.
    cpu: Duration,
}

impl Trace {
    /// Of at most so many batches behind the window; none if there are no more than the window's.
    pub(super) fn new(batches: Vec<Vec<StateKey>>, batches_max: usize) -> Option<Trace> {
        let mut seen: HashMap<StateKey, usize> = HashMap::default();
        let mut fresh = Vec::new();
        for (index, keys) in batches.iter().enumerate() {
            let is_fresh = |key: &&StateKey| seen.get(*key).is_none_or(|last| last + WINDOW < index);
            fresh.push(keys.iter().filter(is_fresh).copied().collect());
            seen.extend(keys.iter().map(|key| (*key, index)));
        }
        let measured = WINDOW..batches.len().min(WINDOW + batches_max);
        (!measured.is_empty()).then_some(Trace { batches, fresh, measured, cpu: Duration::ZERO })
    }

    /// Computes so long for each key.
    pub(super) fn with_cpu(self, cpu: Duration) -> Trace {
        Trace { cpu, ..self }
    }

    /// Every row that the trace reads.
    pub(super) fn rows(&self) -> Vec<(StateKey, StateValue)> {
        let mut keys: Vec<StateKey> = self.batches.iter().flatten().copied().collect();
        keys.sort_unstable();
        keys.dedup();
        keys.into_iter().map(|key| (key, row(&key))).collect()
    }

    /// Keys of the batches that are replayed.
    pub(super) fn keys(&self) -> usize {
        self.batches[self.measured.clone()].iter().map(Vec::len).sum()
    }

    /// The share of these that the cache has.
    pub(super) fn hot_share(&self) -> f64 {
        let fresh: usize = self.fresh[self.measured.clone()].iter().map(Vec::len).sum();
        1.0 - fresh as f64 / self.keys() as f64
    }

    /// Without hints and cache.
    pub(super) fn replay_cold(&self, reader: &dyn StateReader) -> Result<()> {
        self.measured.clone().try_for_each(|index| self.replay(&self.batches[index], reader))
    }

    /// With hints for what the cache does not have, or, without the cache, for everything.
    pub(super) fn replay_ahead<R>(&self, reader: &R, is_hot: bool) -> Result<()>
    where
        R: StateReader + Clone + 'static,
    {
        let prefetcher = Prefetcher::new(PrefetchLimits::default())?;
        let mut hot = HashMap::<StateKey, StateValue>::default();
        if is_hot {
            let before = self.batches[self.measured.start - WINDOW..self.measured.start].iter().flatten();
            hot.extend(before.map(|key| (*key, row(key))));
        }
        let begin = |index: usize| {
            let keys = if is_hot { &self.fresh[index] } else { &self.batches[index] };
            let wanted = Wanted { keys: keys.clone(), ..Wanted::default() };
            prefetcher.read_ahead(BatchNumber(index as u64), reader.clone(), wanted)
        };
        let mut ahead: VecDeque<Warm<R>> = VecDeque::new();
        let mut coming = self.measured.clone().map(begin);
        for index in self.measured.clone() {
            ahead.extend(coming.by_ref().take(READAHEAD + 1 - ahead.len()));
            let warm = ahead.pop_front().context("each batch is read for before it is replayed")?;
            for key in &self.batches[index] {
                if !hot.contains_key(key) {
                    warm.row(key)?;
                }
                self.compute();
            }
            if is_hot {
                hot.extend(self.fresh[index].iter().map(|key| (*key, row(key))));
            }
        }
        Ok(())
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

fn row(key: &StateKey) -> StateValue {
    match key {
        StateKey::Account(_) => StateValue::Account(AccountValue { nonce: 1, ..AccountValue::default() }),
        StateKey::Slot(..) => StateValue::Slot(U256::from(1)),
    }
}

/// The longest run of consecutive blocks among the access lists: of each block the keys that it touches, in the order of the
/// list.
pub(super) fn load(data: &Path) -> Result<Vec<Vec<StateKey>>> {
    let dir = data.join("access-lists");
    let mut numbers: Vec<u64> = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".rlp.gz")?.parse::<u64>().ok());
        numbers.extend(number);
    }
    numbers.sort_unstable();
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    let longest = runs.max_by_key(|run| run.len()).context("there are no access lists")?;
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

    /// Goal: a key is hot for as many batches as the window has, and no longer.
    #[test]
    fn what_the_window_touched_is_hot() {
        let key = |byte| StateKey::Account(Address::repeat_byte(byte));
        let mut batches = vec![vec![]; WINDOW + 2];
        batches[0] = vec![key(1)];
        batches[1] = vec![key(2)];
        batches[WINDOW] = vec![key(1)];
        batches[WINDOW + 1] = vec![key(2), key(3)];
        let trace = Trace::new(batches.clone(), 9).unwrap();
        assert_eq!(trace.keys(), 3);
        assert!((trace.hot_share() - 2.0 / 3.0).abs() < 1e-9);
        assert_eq!(trace.fresh[WINDOW + 1], [key(3)]);
        batches.insert(1, vec![]);
        assert_eq!(Trace::new(batches.clone(), 9).unwrap().fresh[WINDOW + 1], [key(1)]);
        batches.truncate(WINDOW);
        assert!(Trace::new(batches, 9).is_none());
    }
}
