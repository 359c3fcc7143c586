//! [`Held`]: past states that this process can still read directly, because it was running when they were the head's.

use std::collections::VecDeque;

use slipstream_types::BatchNumber;

/// Batches before the head whose states are held. Each held state keeps the rows replaced since on disk, and keeps
/// compactions from dropping them. A larger number would serve more states at the head's speed, and cost more disk
/// and compaction.
pub(crate) const HELD_BATCHES: u64 = if cfg!(test) { 8 } else { 256 };
/// Maximum number of states held in any case: bounds their number even if the history cannot be sealed.
const HELD_MAX: usize = 2 * HELD_BATCHES as usize;
/// Batches older than the held ones after which the log is sealed. A smaller number makes more files. A larger one
/// makes a longer log, which is all that a restart finds: reads of the past wait until it is sealed.
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

/// The states that followed each other in one column, oldest first; the last is the head's.
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
    /// Adds the head's state.
    pub(crate) fn push(&mut self, number: BatchNumber, state: T) {
        let log_bytes = std::mem::take(&mut self.log_bytes);
        self.states.push_back(State { number, log_bytes, state });
    }

    /// Releases the states before the first known one, and old ones. It keeps unsealed states, and the state that
    /// everything is sealed up to, because that one serves reads of older states.
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

    /// Returns the first held state from a batch on.
    pub(crate) fn from(&self, number: BatchNumber) -> Option<(BatchNumber, &T)> {
        let at = self.states.partition_point(|state| state.number < number);
        self.states.get(at).map(|state| (state.number, &state.state))
    }

    pub(crate) fn len(&self) -> usize {
        self.states.len()
    }

    /// Returns the batch up to which the log should be sealed next, if any, given that it is sealed up to `sealed`.
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
