//! [`HeldStates`]: past states that this process can still read directly, because it was running when they were the
//! head's.

use std::collections::VecDeque;

use slipstream_types::BatchNumber;

use crate::tuning::Tuning;

/// Sealing begins when the log of states older than the held ones has this number of bytes, or [`Tuning::seal_batches`]
/// batches.
const SEAL_BYTES: u64 = 64 << 20;

/// A state that is held.
struct State<T> {
    number: BatchNumber,
    /// Bytes that the write to this state added to the log.
    log_bytes: u64,
    state: T,
}

/// The states that followed each other in one column, oldest first; the last is the head's.
pub(crate) struct HeldStates<T> {
    states: VecDeque<State<T>>,
    /// Bytes that the next write adds to the log.
    pub(crate) log_bytes: u64,
    tuning: Tuning,
}

impl<T> HeldStates<T> {
    /// Creates an empty list.
    pub(crate) fn new(tuning: Tuning) -> HeldStates<T> {
        HeldStates { states: VecDeque::new(), log_bytes: 0, tuning }
    }

    /// Adds the head's state.
    pub(crate) fn push(&mut self, number: BatchNumber, state: T) {
        let log_bytes = std::mem::take(&mut self.log_bytes);
        self.states.push_back(State { number, log_bytes, state });
    }

    /// Releases the states before the first known one, and old ones. It keeps unsealed states and the last sealed one,
    /// because reads of older states use the latter.
    pub(crate) fn release(&mut self, first: BatchNumber, sealed: BatchNumber) {
        let Some(head) = self.states.back().map(|state| state.number) else { return };
        let held_batches = self.tuning.held_batches;
        // Bounds their number even if the history cannot be sealed.
        let held_max = 2 * held_batches as usize;
        let is_old = |number: BatchNumber| head.since(number) > held_batches;
        while let Some(state) = self.states.front() {
            let is_useless = state.number < first || is_old(state.number) && state.number < sealed;
            if state.number == head || !is_useless && self.states.len() <= held_max {
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
        let Tuning { held_batches, seal_batches, log_bytes_max, .. } = self.tuning;
        let unsealed = || self.states.iter().filter(|state| state.number > sealed);
        let old = || unsealed().take_while(|state| head.since(state.number) > held_batches);
        if let Some(last) = old().last()
            && (last.number.since(sealed) >= seal_batches || bytes(old()) >= SEAL_BYTES)
        {
            return Some(last.number);
        }
        let total = bytes(unsealed());
        if total < log_bytes_max {
            return None;
        }
        let mut left = total;
        let enough = unsealed().find(|state| {
            left -= state.log_bytes;
            left <= log_bytes_max / 2
        });
        enough.map(|state| state.number)
    }
}

fn bytes<'a, T: 'a>(states: impl Iterator<Item = &'a State<T>>) -> u64 {
    states.map(|state| state.log_bytes).sum()
}
