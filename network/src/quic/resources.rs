//! [`Resources`]: the limits that all connections of a node share.

use std::{net::IpAddr, sync::Arc};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    NetworkConfig, PeerId,
    budget::{Budget, Share},
    inbox::{Inbox, InboxLimits, Inboxes},
    meter::{Meter, Rate},
    origin::Origin,
    registry::Registry,
    rejection::PeerRejectionCounts,
};

/// The budgets of bytes, the handler's turns, and the counts of rejected work.
pub(super) struct Resources {
    /// Incoming requests and broadcasts, from their heads until they are handled.
    requests: Budget,
    /// Answers, from before they are made until their requesters have them.
    answers: Budget,
    /// Broadcasts to peers, from when they are pushed until their peers have them.
    outgoing: Budget,
    /// Rates of broadcasts per party, which may have many keys.
    rates: Registry<Rate>,
    /// Broadcasts that wait for the handler.
    inboxes: Arc<Inboxes>,
    pub(super) rejections: Arc<PeerRejectionCounts>,
}

/// The shares of one connection.
pub(super) struct Shares {
    pub(super) requests: Share,
    pub(super) answers: Share,
    pub(super) meter: Mutex<Meter>,
    pub(super) inbox: Inbox,
    pub(super) rejections: Arc<PeerRejectionCounts>,
    pub(super) is_configured: bool,
}

impl Resources {
    pub(super) fn new(config: &NetworkConfig, local: PeerId) -> Resources {
        let has_configured = config.others(local).next().is_some();
        let total = config.bytes_in_flight_total_max;
        let budget = |peer_bytes_max| Budget::new(peer_bytes_max, total, has_configured);
        let bytes_max = config.broadcast_queue_bytes_max;
        let broadcasts = bytes_max.max(total / 2);
        let limits = InboxLimits {
            items_max: config.broadcast_queue_items_max,
            bytes_max,
            total_bytes_max: broadcasts,
        };
        Resources {
            requests: budget(config.request_bytes_in_flight_max),
            answers: budget(config.answer_bytes_in_flight_max),
            outgoing: Budget::new(bytes_max, broadcasts, has_configured),
            rates: Registry::default(),
            inboxes: Inboxes::new(limits),
            rejections: Arc::default(),
        }
    }

    /// A new connection's share of the room for broadcasts to peers.
    pub(super) fn outgoing(&self, address: IpAddr, is_configured: bool) -> Share {
        self.outgoing.share(Origin::of_remote(address), is_configured)
    }

    /// The other shares of a new connection.
    pub(super) fn shares(&self, address: IpAddr, is_configured: bool) -> Shares {
        let origin = Origin::of_remote(address);
        let now = Instant::now();
        let party = origin.filter(|_| !is_configured).map(|origin| origin.party());
        let together =
            party.map(|party| self.rates.of(party, || Rate::of_party(now), |rate| !rate.is_full(now)));
        Shares {
            requests: self.requests.share(origin, is_configured),
            answers: self.answers.share(origin, is_configured),
            meter: Mutex::new(Meter::new(together, now)),
            inbox: self.inboxes.open(),
            rejections: self.rejections.clone(),
            is_configured,
        }
    }
}
