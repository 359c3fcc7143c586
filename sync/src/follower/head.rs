//! At the head: batches that arrive by broadcast are verified, relayed and executed.

use std::collections::BTreeMap;

use slipstream_network::{MESSAGE_BYTES_MAX, PeerId};
use slipstream_types::{BatchNumber, codec};
use tokio_util::sync::CancellationToken;

use super::{ANNOUNCED_MAX, Follower};
use crate::{SyncError, error::Fault, plan::RangeMode, protocol::Announcement, verify};

/// An announcement whose certificate was checked, and that the header is its; body and place in the ledger were not.
pub(super) struct Announced {
    from: PeerId,
    announcement: Announcement,
    payload: Vec<u8>,
}

/// Announcements that wait for the batch before them.
#[derive(Default)]
pub(super) struct Pending {
    announced: BTreeMap<BatchNumber, Announced>,
    /// The last batch that was relayed: a node that applies deltas hears of a batch from all its peers before it commits it.
    relayed: BatchNumber,
}

impl Pending {
    /// Keeps the lowest few: they are needed first.
    pub(super) fn add(&mut self, announced: Announced) {
        self.announced.entry(announced.announcement.header.number).or_insert(announced);
        while self.announced.len() > ANNOUNCED_MAX {
            self.announced.pop_last();
        }
    }

    fn take(&mut self, number: BatchNumber) -> Option<Announced> {
        self.announced = self.announced.split_off(&number);
        self.announced.remove(&number)
    }

    /// Whether this is the first time that the batch is relayed.
    fn relay(&mut self, number: BatchNumber) -> bool {
        let first = number > self.relayed;
        self.relayed = self.relayed.max(number);
        first
    }
}

impl Follower {
    /// Takes a broadcast. Its certificate is checked at once; the rest waits for the follower's loop.
    pub async fn on_broadcast(&self, peer: PeerId, payload: Vec<u8>) {
        let decoded = codec::decode::<Announcement>("announcement", &payload, MESSAGE_BYTES_MAX);
        let head = self.store.head().map_or(BatchNumber(0), |head| head.header.number);
        let checked = decoded.map_err(Fault::from).and_then(|announcement| {
            // The cheap check first: most announcements are copies of what is here already.
            if announcement.header.number > head {
                verify::announcement(&announcement, &self.set)?;
            }
            Ok(announcement)
        });
        let announcement = match checked {
            Ok(announcement) => announcement,
            Err(fault) => return self.punish(peer, "announcement", &fault),
        };
        if announcement.header.number <= head {
            return;
        }
        // A peer relays before it commits: its own head is what its next summary says.
        self.state.lock().book.expire(&peer);
        self.heard.notify_one();
        let announced = Announced { from: peer, announcement, payload };
        if self.announced.try_send(announced).is_err() {
            self.wake.notify_one();
        }
    }

    /// Gives this process's consensus, if there is one, the time to commit a certified batch that it has executed already.
    async fn leave_to_consensus(&self, number: BatchNumber) {
        let mut head = self.store.watch_head();
        // Too late is no error: `apply` then commits the batch.
        let _ = tokio::time::timeout(self.patience / 10, head.wait_for(|head| *head >= number)).await;
    }

    /// Works through pending announcements that continue the head.
    pub(super) async fn take_pending(
        &self,
        pending: &mut Pending,
        shutdown: &CancellationToken,
    ) -> Result<(), SyncError> {
        while !shutdown.is_cancelled() {
            let head = self.store.head()?;
            let Some(Announced { from, announcement, payload }) = pending.take(head.header.number.next())
            else {
                return Ok(());
            };
            let set = self.set.clone();
            let checked =
                tokio::task::spawn_blocking(move || verify::announced(announcement, &head, &set)).await;
            match checked.map_err(|error| SyncError::Worker(error.to_string()))? {
                Ok(range) => {
                    self.state.lock().counters.bytes_received += range.certified_bytes() as u64;
                    if pending.relay(range.certificate().info.number) {
                        self.transport.broadcast(payload, Some(from));
                    }
                    if !self.replays_head() {
                        return Ok(());
                    }
                    self.leave_to_consensus(range.certificate().info.number).await;
                    self.apply(from, range, RangeMode::Replay, shutdown).await?;
                }
                Err(violation) => self.punish(from, "announcement", &violation.into()),
            }
        }
        Ok(())
    }
}
