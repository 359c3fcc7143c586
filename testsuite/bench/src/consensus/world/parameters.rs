//! The parameters of a run, and its decisions.

use slipstream_types::{Digest, LedgerInfo};

/// Executes batches, and reports the duration of each execution.
pub(in crate::consensus) trait Machine {
    /// Returns the body of a validator's next batch on a state.
    fn body(&mut self, before: Digest) -> Digest;
    /// Executes a batch on a state.
    fn run(&mut self, job: &Job) -> Ran;
}

/// One execution of a batch.
#[derive(Clone, Copy, Debug)]
pub(in crate::consensus) struct Job {
    pub(in crate::consensus) seat: u16,
    /// The root of the state before the batch.
    pub(in crate::consensus) before: Digest,
    pub(in crate::consensus) body: Digest,
    /// Whether this execution is the primary's, which makes the batch.
    pub(in crate::consensus) is_build: bool,
    pub(in crate::consensus) sequential: bool,
}

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub(in crate::consensus) struct Ran {
    pub(in crate::consensus) state_root: Digest,
    pub(in crate::consensus) took_us: u64,
}

/// The times apart from execution, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(in crate::consensus) struct Pace {
    pub(in crate::consensus) one_way_us: u64,
    /// The time of a durable record, in microseconds.
    pub(in crate::consensus) record_us: u64,
    pub(in crate::consensus) commit_us: u64,
    /// The primary's time to take in the transactions of one batch.
    pub(in crate::consensus) intake_us: u64,
    /// The CPU cores of each validator.
    pub(in crate::consensus) cores: usize,
}

/// A decision, and when a validator first had it.
#[derive(Clone, Debug)]
pub(in crate::consensus) struct Decision {
    pub(in crate::consensus) info: LedgerInfo,
    pub(in crate::consensus) body: Digest,
    pub(in crate::consensus) view: u64,
    pub(in crate::consensus) at_us: u64,
}
