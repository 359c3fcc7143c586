//! Past states from before the node's first one, from peers' reverse deltas: checked and stored in one step.

use slipstream_storage::{RangeDeltaError, StateBacklog, StorageError};
use slipstream_types::{BatchNumber, Blob, Delta};

use super::Worker;
use crate::{
    SyncError,
    error::{Fault, Violation},
};

/// Maximum memory of the tree that proves reverse deltas. The tree holds what changed since the state that they lead
/// to.
const TREE_BYTES_MAX: u64 = 256 << 20;

/// The result of adding a reverse delta.
#[derive(Debug)]
pub struct PastStatesResult {
    /// What is missing afterwards.
    pub backlog: StateBacklog,
    /// The check's result. `None` if the worker did not judge the answer.
    pub checked: Option<Result<(), Fault>>,
    /// Whether no older state can be added below the first known one.
    pub is_over: bool,
}

/// A peer's reverse delta, as it came.
#[derive(Debug)]
pub struct ReverseAnswer {
    /// The answer's bytes.
    pub answer: Vec<u8>,
    /// The first known state when the peer was asked.
    pub from: BatchNumber,
    /// The batch that it leads to.
    pub to: BatchNumber,
}

impl Worker {
    /// Adds past states from a peer's reverse delta. Without one, frees the memory for them.
    pub(super) fn past_states(&self, answer: Option<ReverseAnswer>) -> Result<PastStatesResult, SyncError> {
        let Some(ReverseAnswer { answer, from, to }) = answer else {
            *self.past_states.lock() = None;
            return self.states_added(None, false);
        };
        if self.store.state_backlog()?.lowest != from {
            // The window moved, or the head leapt: the answer starts from a state that is not the first one any more.
            return self.states_added(None, false);
        }
        let opened = Blob::from_bytes(answer).and_then(|blob| Delta::open(&blob));
        let reverse = match opened {
            Ok(reverse) => reverse,
            Err(error) => return self.states_added(Some(Err(Violation::from(error).into())), false),
        };
        if let Err(error) = self.begin_states(from) {
            return self.states_end(error, from, to);
        }
        let extended = self.past_states.lock().as_mut().map_or(Ok(()), |states| states.extend(to, &reverse));
        let violation = match extended {
            Ok(()) => return self.states_added(Some(Ok(())), false),
            Err(StorageError::StateRootMismatch { .. }) => {
                "the state that the reverse delta leads to has another root"
            }
            Err(StorageError::RangeDelta(RangeDeltaError::CodeMissing { .. })) => {
                "the reverse delta lacks code that its rows name"
            }
            Err(StorageError::RangeDelta(RangeDeltaError::Padded { .. })) => {
                "the reverse delta has rows that did not change"
            }
            Err(error) => return self.states_end(error, from, to),
        };
        self.states_added(Some(Err(Violation::Unrelated(violation).into())), false)
    }

    /// Makes the tree of the first known state if it is not here. The node's own rows lead to that state.
    fn begin_states(&self, lowest: BatchNumber) -> Result<(), StorageError> {
        let mut held = self.past_states.lock();
        if held.as_ref().is_none_or(|states| states.lowest() != lowest) {
            *held = None;
            *held = Some(self.store.past_states(TREE_BYTES_MAX)?);
        }
        Ok(())
    }

    /// Handles an error that is no peer's fault: the tree is too large, the node's own rows do not lead there, or the
    /// store was pruned or leapt meanwhile. The error would happen again, unless the first known state has changed
    /// meanwhile or the state to add is no longer wanted.
    fn states_end(
        &self,
        error: StorageError,
        from: BatchNumber,
        to: BatchNumber,
    ) -> Result<PastStatesResult, SyncError> {
        let is_over = matches!(
            error,
            StorageError::RangeDelta(_)
                | StorageError::StateNotKept { .. }
                | StorageError::StateRootMismatch { .. }
        );
        if !is_over {
            return Err(error.into());
        }
        tracing::info!(%error, lowest = from.get(), "cannot fetch older states");
        let backlog = self.store.state_backlog()?;
        let is_same = backlog.lowest == from && backlog.next.is_none_or(|next| next <= to);
        *self.past_states.lock() = None;
        self.states_added(None, is_same)
    }

    fn states_added(
        &self,
        checked: Option<Result<(), Fault>>,
        is_over: bool,
    ) -> Result<PastStatesResult, SyncError> {
        let backlog = self.store.state_backlog()?;
        if backlog.next.is_none() {
            *self.past_states.lock() = None;
        }
        Ok(PastStatesResult { backlog, checked, is_over })
    }
}
