//! [`Coming`]: batches that others in this process put together, so that they need not be fetched meanwhile.

use std::collections::BTreeMap;

use slipstream_types::BatchNumber;
use tokio::time::Instant;

/// Batches that are remembered: more than anybody puts together at once.
const BATCHES_MAX: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Coming(BTreeMap<BatchNumber, Instant>);

impl Coming {
    /// Somebody began with a batch, and says until when it is to be left to them.
    pub(super) fn add(&mut self, number: BatchNumber, until: Instant) {
        if self.0.len() < BATCHES_MAX || self.0.contains_key(&number) {
            self.0.insert(number, until);
        }
    }

    /// It came to nothing.
    pub(super) fn end(&mut self, number: BatchNumber) {
        self.0.remove(&number);
    }

    /// Forgets what is committed.
    pub(super) fn committed(&mut self, head: BatchNumber) {
        self.0 = self.0.split_off(&head.next());
    }

    /// Until when a batch is left alone, if it is coming.
    pub(super) fn until(&self, number: BatchNumber) -> Option<Instant> {
        self.0.get(&number).copied()
    }
}
