//! [`Bodies`]: ordered batches that wait for execution.

use std::{collections::HashMap, sync::Arc};

use slipstream_types::{BatchNumber, Digest};

use super::message::{Ordered, REQUEST_BYTES_MAX};

/// Maximum bytes that wait. A primary that orders more than this validator executes has to retry, so that orders do not
/// fill the memory.
const BYTES_MAX: usize = 2 * REQUEST_BYTES_MAX;

/// Bodies by the order's digest, within [`BYTES_MAX`].
#[derive(Default)]
pub(super) struct Bodies {
    orders: HashMap<Digest, Arc<Ordered>>,
    bytes: usize,
}

impl Bodies {
    /// Keeps an ordered batch. Returns whether there was room.
    pub(super) fn insert(&mut self, digest: Digest, ordered: Ordered) -> bool {
        if self.orders.contains_key(&digest) {
            return true;
        }
        if !self.has_room(ordered.bytes()) {
            return false;
        }
        self.bytes += ordered.bytes();
        self.orders.insert(digest, Arc::new(ordered));
        true
    }

    /// Whether a body of `bytes` fits beside the bodies that are kept.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.bytes + bytes <= BYTES_MAX
    }

    pub(super) fn get(&self, digest: &Digest) -> Option<&Arc<Ordered>> {
        self.orders.get(digest)
    }

    /// Removes a batch that has an outcome.
    pub(super) fn remove(&mut self, digest: &Digest) {
        if let Some(ordered) = self.orders.remove(digest) {
            self.bytes -= ordered.bytes();
        }
    }

    /// Drops bodies that will never be executed: of committed batches, and of undecided orders of earlier views.
    pub(super) fn settle(&mut self, committed: BatchNumber, decided: BatchNumber, view: u64) {
        let is_open = |it: &Ordered| {
            let order = &it.order.order;
            order.number > committed && (order.view >= view || order.number <= decided)
        };
        self.orders.retain(|_, it| is_open(it));
        self.bytes = self.orders.values().map(|it| it.bytes()).sum();
    }
}
