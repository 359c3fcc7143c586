//! Past states from before the node's first one, by reverse deltas of peers: checked and stored in one step.

use slipstream_storage::{RangeDeltaError, StateBacklog, StorageError};
use slipstream_types::{BatchNumber, Blob, Delta};

use super::Worker;
use crate::{SyncError, error::Fault, verify::Violation};

/// Memory of the tree that proves reverse deltas: it holds what changed since the state that they lead to.
const TREE_BYTES_MAX: u64 = 256 << 20;

/// The result of adding a reverse delta.
#[derive(Debug)]
pub struct StatesAdded {
    /// What is missing afterwards.
    pub backlog: StateBacklog,
    /// The answer's fault, if it has one.
    pub checked: Result<(), Fault>,
    /// Whether the tree takes as much memory as it may: no older states can be proved.
    pub is_full: bool,
}

impl Worker {
    /// Adds past states by a peer's reverse delta that leads to a batch. Without an answer, the memory for that is freed.
    pub(super) fn past_states(
        &self,
        answer: Option<(Vec<u8>, BatchNumber)>,
    ) -> Result<StatesAdded, SyncError> {
        let Some((answer, to)) = answer else {
            *self.past_states.lock() = None;
            return self.states_added(Ok(()), false);
        };
        let opened = Blob::from_bytes(answer).and_then(|blob| Delta::open(&blob));
        let reverse = match opened {
            Ok(reverse) => reverse,
            Err(error) => return self.states_added(Err(Violation::from(error).into()), false),
        };
        match self.extend_states(to, &reverse) {
            Ok(()) => self.states_added(Ok(()), false),
            Err(StorageError::StateRootMismatch { .. }) => {
                let violation =
                    Violation::Unrelated("the state that the reverse delta leads to has another root");
                self.states_added(Err(violation.into()), false)
            }
            Err(StorageError::RangeDelta(RangeDeltaError::CodeMissing { .. })) => {
                let violation = Violation::Unrelated("the reverse delta lacks code that its rows have");
                self.states_added(Err(violation.into()), false)
            }
            Err(StorageError::RangeDelta(
                RangeDeltaError::OverBudget { .. } | RangeDeltaError::TooLarge { .. },
            )) => self.states_added(Ok(()), true),
            // The store was pruned meanwhile, or leapt: what is missing now is told below.
            Err(StorageError::RangeDelta(_) | StorageError::StateNotKept { .. }) => {
                *self.past_states.lock() = None;
                self.states_added(Ok(()), false)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn extend_states(&self, to: BatchNumber, reverse: &Delta) -> Result<(), StorageError> {
        let mut held = self.past_states.lock();
        let lowest = self.store.state_backlog()?.lowest;
        let states = match held.take().filter(|states| states.lowest() == lowest) {
            Some(states) => states,
            None => self.store.past_states(TREE_BYTES_MAX)?,
        };
        held.insert(states).extend(to, reverse)
    }

    fn states_added(&self, checked: Result<(), Fault>, is_full: bool) -> Result<StatesAdded, SyncError> {
        let backlog = self.store.state_backlog()?;
        if backlog.next.is_none() || is_full {
            *self.past_states.lock() = None;
        }
        Ok(StatesAdded { backlog, checked, is_full })
    }
}
