//! [`ExecutionState`]: a state that transactions run on.

use std::sync::Arc;

use slipstream_predict::JumpWatch;
use slipstream_storage::{MemoryState, StateReader, View};
use slipstream_types::Digest;

use super::code::AnalysedCode;
use crate::interrupt::Interrupt;

/// A state that transactions run on. In addition to rows, a state may have code that is ready to run, and it may
/// observe or end the execution.
pub trait ExecutionState: StateReader {
    /// Code ready to run, if the state has it; otherwise the EVM uses [`StateReader::code`].
    fn analysed(&self, _hash: &Digest) -> Option<AnalysedCode> {
        None
    }
    /// The recorder of jumps, if execution on this state should record them for predictors that learn.
    fn watch(&self) -> Option<&Arc<JumpWatch>> {
        None
    }
    /// The interrupt that may end the execution of a batch's transactions on this state early.
    fn interrupt(&self) -> Interrupt {
        Interrupt::never()
    }
}

impl ExecutionState for View {}

impl ExecutionState for MemoryState {}
