//! [`Censor`]: a primary that orders only empty batches. It executes no batch: the others are a quorum without it.

use std::collections::BTreeMap;

use slipstream_consensus::simulated::Ordered;
use slipstream_eve::{NewView, Order, SignedOrder, ViewChange};
use slipstream_types::{
    BatchNumber, Blob, BlobKind, Body, CodecError, Digest, Epoch, SecretKey, batch::content_digest,
    bounded::BoundedVec, codec,
};

/// The state of a censoring validator.
#[derive(Default)]
pub(super) struct Censor {
    /// The other validators' view changes to the censor's newest view, by seat.
    changes: BTreeMap<u16, ViewChange>,
    /// The view that the censor leads, if any.
    leads: Option<LedView>,
}

/// A view that the censor leads.
struct LedView {
    view: u64,
    /// The batch to order next.
    next: BatchNumber,
    /// Digest of the previous order; [`Digest::ZERO`] at the beginning.
    parent: Digest,
}

impl Censor {
    /// Takes a validator's view change to a view of this primary. A quorum of view changes begins the view.
    pub(super) fn hear(
        &mut self,
        change: &ViewChange,
        quorum: usize,
        domain: &Digest,
        key: &SecretKey,
    ) -> Option<NewView> {
        self.see(change.view);
        if self.leads.as_ref().is_some_and(|led| led.view >= change.view) {
            return None;
        }
        self.changes.retain(|_, known| known.view >= change.view);
        self.changes.insert(change.seat, change.clone());
        let here = self.changes.values().filter(|known| known.view == change.view);
        let changes: Vec<_> = here.cloned().collect();
        if changes.len() < quorum {
            return None;
        }
        let new = NewView::new(change.view, changes, domain, key);
        let decided = new.decided().map_or(BatchNumber::GENESIS, |certificate| certificate.info.number);
        let settled = new.prepared().map_or(decided, |prepared| prepared.info.number);
        self.leads = Some(LedView { view: new.view, next: settled.next(), parent: Digest::ZERO });
        Some(new)
    }

    /// Notes a newer view: an older one is over.
    pub(super) fn see(&mut self, view: u64) {
        self.leads = self.leads.take().filter(|led| led.view >= view);
    }

    /// Orders the next empty batch, if the censor leads a view.
    pub(super) fn order(
        &mut self,
        epoch: Epoch,
        now_ms: u64,
        domain: &Digest,
        key: &SecretKey,
    ) -> Result<Option<Ordered>, CodecError> {
        let Some(led) = &mut self.leads else { return Ok(None) };
        let content = codec::encode("body", &Body { transactions: BoundedVec::default() })?;
        let order = Order {
            epoch,
            view: led.view,
            number: led.next,
            parent: led.parent,
            timestamp_ms: now_ms,
            transactions: content_digest(BlobKind::Body, &content),
        };
        (led.next, led.parent) = (led.next.next(), order.digest(domain));
        let body = Blob::compress(BlobKind::Body, &content)?;
        Ok(Some(Ordered { order: SignedOrder::new(order, domain, key), body, hints: None }))
    }
}
