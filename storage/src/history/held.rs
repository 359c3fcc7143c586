//! [`Held`]: the states that this process still reads by itself, because it was there when they were the head's.

use std::collections::VecDeque;

use slipstream_types::BatchNumber;

/// Batches before the head whose states are held. Each held state keeps the rows replaced since on disk, and keeps compactions
/// from dropping them. More of them would serve more states at the head's speed, and cost more disk and compaction.
pub(crate) const HELD_BATCHES: u64 = if cfg!(test) { 8 } else { 256 };
/// Most states held in any case: if the history cannot be sealed, their number must still be bounded.
const HELD_MAX: usize = 2 * HELD_BATCHES as usize;
/// Batches before the held ones after which the log is sealed. Fewer make more files. More make a longer log, which is all that a
/// restart finds: reads of the past wait until it is sealed.
const SEAL_BATCHES: u64 = if cfg!(test) { 3 } else { 64 };
/// As [`SEAL_BATCHES`], in bytes of the log.
const SEAL_BYTES: u64 = 64 << 20;
/// Bytes of the log that trigger sealing even while states are held. This bounds what a restart has to seal.
const LOG_BYTES_MAX: u64 = if cfg!(test) { 64 << 10 } else { 512 << 20 };

/// A state that is held.
struct State<T> {
    number: BatchNumber,
    /// Bytes that the write to this state added to the log.
    log_bytes: u64,
    state: T,
}

/// States of one column after another, oldest first; the last is the head's.
pub(crate) struct Held<T> {
    states: VecDeque<State<T>>,
    /// Bytes that the next write adds to the log.
    pub(crate) log_bytes: u64,
}

impl<T> Default for Held<T> {
    fn default() -> Self {
        Held { states: VecDeque::new(), log_bytes: 0 }
    }
}

impl<T> Held<T> {
    /// Adds the head's.
    pub(crate) fn push(&mut self, number: BatchNumber, state: T) {
        let log_bytes = std::mem::take(&mut self.log_bytes);
        self.states.push_back(State { number, log_bytes, state });
    }

    /// Releases the states before the first known one, and those that became old. It keeps unsealed states, and the state that everything
    /// is sealed up to: that one serves reads of older states.
    pub(crate) fn release(&mut self, first: BatchNumber, sealed: BatchNumber) {
        let Some(head) = self.states.back().map(|state| state.number) else { return };
        let is_old = |number: BatchNumber| head.since(number) > HELD_BATCHES;
        while let Some(state) = self.states.front() {
            let is_useless = state.number < first || is_old(state.number) && state.number < sealed;
            if state.number == head || !is_useless && self.states.len() <= HELD_MAX {
                return;
            }
            self.states.pop_front();
        }
    }

    /// The first state from a batch on.
    pub(crate) fn from(&self, number: BatchNumber) -> Option<(BatchNumber, &T)> {
        let at = self.states.partition_point(|state| state.number < number);
        self.states.get(at).map(|state| (state.number, &state.state))
    }

    pub(crate) fn len(&self) -> usize {
        self.states.len()
    }

    /// Up to where the log should be sealed, which it is up to a batch.
    pub(crate) fn due(&self, sealed: BatchNumber) -> Option<BatchNumber> {
        let head = self.states.back()?.number;
        let unsealed = || self.states.iter().filter(|state| state.number > sealed);
        let old = || unsealed().take_while(|state| head.since(state.number) > HELD_BATCHES);
        if let Some(last) = old().last()
            && (last.number.since(sealed) >= SEAL_BATCHES || bytes(old()) >= SEAL_BYTES)
        {
            return Some(last.number);
        }
        let total = bytes(unsealed());
        if total < LOG_BYTES_MAX {
            return None;
        }
        let mut left = total;
        let enough = unsealed().find(|state| {
            left -= state.log_bytes;
            left <= LOG_BYTES_MAX / 2
        });
        enough.map(|state| state.number)
    }
}

fn bytes<'a, T: 'a>(states: impl Iterator<Item = &'a State<T>>) -> u64 {
    states.map(|state| state.log_bytes).sum()
}
