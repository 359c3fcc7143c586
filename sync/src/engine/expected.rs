//! [`ExpectedBatches`]: batches that others in this process assemble, so that the engine does not fetch them meanwhile.

use std::collections::BTreeMap;

use slipstream_types::BatchNumber;
use tokio::time::Instant;

/// Maximum number of batches remembered: more than anyone assembles at once.
const BATCHES_MAX: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct ExpectedBatches(BTreeMap<BatchNumber, Instant>);

impl ExpectedBatches {
    /// Records a batch that others began to assemble, and until when the engine leaves it to them.
    pub(super) fn add(&mut self, number: BatchNumber, until: Instant) {
        if self.0.len() < BATCHES_MAX || self.0.contains_key(&number) {
            self.0.insert(number, until);
        }
    }

    /// Records that the others gave a batch up.
    pub(super) fn end(&mut self, number: BatchNumber) {
        self.0.remove(&number);
    }

    /// Forgets committed batches.
    pub(super) fn committed(&mut self, head: BatchNumber) {
        self.0 = self.0.split_off(&head.next());
    }

    /// Until when a batch is left to others; `None` if it is not coming.
    pub(super) fn until(&self, number: BatchNumber) -> Option<Instant> {
        self.0.get(&number).copied()
    }
}
