//! [`RecordSampler`]: the part of the book that others see. One block sees the same part for a while, so a peer cannot learn
//! the whole book by asking often or under many keys.

use std::{net::IpAddr, time::Duration};

use tokio::time::Instant;

use crate::{
    PeerId,
    exchange::{AddressBook, Moment, PeerRecord, draws::keyed, message::RECORDS_MAX},
    origin::block_of,
};

/// How long a block is shown the same records.
const SAME_MS: u64 = 600_000;
/// Maximum age of the order while it has more records than one answer holds. Peers that were met after it was made are
/// missing from it.
const ORDER_AGE_MAX: Duration = Duration::from_secs(5);

/// The records that may be shown, in an order derived from this node's secret.
#[derive(Default)]
pub(super) struct RecordSampler {
    order: Vec<PeerRecord>,
    made: Option<Instant>,
}

impl RecordSampler {
    /// The records that a requester sees: as many as fit in one answer. Their start in the order stays the same for the
    /// requester's block for a while.
    pub(super) fn to(
        &mut self,
        book: &AddressBook,
        asker: &PeerId,
        from: IpAddr,
        now: Moment,
    ) -> Vec<PeerRecord> {
        let is_old = |made: Instant| now.instant.saturating_duration_since(made) > ORDER_AGE_MAX;
        let period = (now.ms / SAME_MS).to_le_bytes();
        let place = |what: &[u8]| keyed(book.secret(), "slipstream/peer-shown/1", &[&period, what]);
        if self.order.len() <= RECORDS_MAX || self.made.is_none_or(is_old) {
            self.order = book.passed_on(now.ms).cloned().collect();
            self.order.sort_by_cached_key(|record| place(&record.id().0));
            self.made = Some(now.instant);
        }
        let block = block_of(from).to_string();
        let first = place(block.as_bytes()).checked_rem(self.order.len() as u64).unwrap_or(0) as usize;
        let (after, before) = (self.order.iter().skip(first), self.order.iter().take(first));
        let others = after.chain(before).filter(|record| record.id() != *asker);
        others.take(RECORDS_MAX).cloned().collect()
    }
}
