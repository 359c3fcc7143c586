//! The callers that wait for the receipt of a transaction.

use std::{collections::HashMap, sync::Arc, time::Duration};

use alloy_primitives::B256;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::Feed;

/// How many wait for each transaction, and how they are told. Those who may wait bound it: see `JsonRpc`.
#[derive(Default)]
pub(super) struct Waiting(Mutex<HashMap<B256, (usize, CancellationToken)>>);

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// A batch has these transactions.
    pub(super) fn tell(&self, hashes: &[B256]) {
        let waiting = self.0.lock();
        if !waiting.is_empty() {
            hashes.iter().filter_map(|hash| waiting.get(hash)).for_each(|(_, included)| included.cancel());
        }
    }
}

/// Somebody waits for the receipt of a transaction, until this is dropped.
pub(crate) struct Awaited {
    feed: Arc<Feed>,
    pub(in crate::rpc) hash: B256,
    /// The longest time to wait.
    pub(in crate::rpc) time: Duration,
    included: CancellationToken,
}

impl Feed {
    /// Begins to wait: before the transaction is sent, or its batch might be missed.
    pub(in crate::rpc) fn await_receipt(self: &Arc<Self>, hash: B256, time: Duration) -> Awaited {
        let mut waiting = self.waiting.0.lock();
        let (count, included) = waiting.entry(hash).or_default();
        *count += 1;
        Awaited { feed: self.clone(), hash, time, included: included.clone() }
    }
}

impl Awaited {
    /// Returns when a batch has the transaction, when the time is over, or when the node stops.
    pub(in crate::rpc) async fn over(&self) {
        tokio::select! {
            () = self.included.cancelled() => {}
            () = tokio::time::sleep(self.time) => {}
            () = self.feed.stopping.cancelled() => {}
        }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let mut waiting = self.feed.waiting.0.lock();
        if let Some((count, _)) = waiting.get_mut(&self.hash) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&self.hash);
            }
        }
    }
}
