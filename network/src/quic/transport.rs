//! [`Network`] as a [`Transport`]: how the crates above use the connections that its tasks keep.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;
use tracing::{debug, error, warn};

use super::{
    Network,
    link::{Goodbye, Link, close},
};
use crate::{
    Ban, BannedBy, BoxFuture, ConfiguredPeer, ContactState, Contacts, ExchangeStatus, MESSAGE_BYTES_MAX,
    NetworkError, PeerChanges, PeerId, PeerRejection, PeerStats, Priority, Protocol, RequestLimits,
    Transport,
};

impl Network {
    /// The connection to a peer.
    pub(super) fn link(&self, peer: PeerId) -> Result<Arc<Link>, NetworkError> {
        let peers = self.peers.lock();
        if peers.banned_until(peer, Instant::now()).is_some() {
            return Err(NetworkError::Banned { peer });
        }
        peers.get(peer).cloned().ok_or(NetworkError::UnknownPeer { peer })
    }
}

impl Transport for Network {
    fn local(&self) -> PeerId {
        self.local
    }

    fn peers(&self) -> Vec<PeerId> {
        self.peers.lock().iter().map(|(id, _, _)| id).collect()
    }

    fn peer_changes(&self) -> PeerChanges {
        self.peers.lock().changes.clone()
    }

    fn connected_since(&self, peer: &PeerId) -> Option<Instant> {
        self.peers.lock().since(*peer)
    }

    fn request<'a>(
        &'a self,
        peer: PeerId,
        protocol: Protocol,
        payload: Vec<u8>,
        limits: RequestLimits,
    ) -> BoxFuture<'a, Result<Vec<u8>, NetworkError>> {
        Box::pin(async move {
            if payload.len() > MESSAGE_BYTES_MAX {
                return Err(NetworkError::TooLong {
                    peer,
                    bytes: payload.len(),
                    bytes_max: MESSAGE_BYTES_MAX,
                });
            }
            self.link(peer)?.request(protocol, payload, limits).await
        })
    }

    fn send(&self, peer: PeerId, message: Bytes, priority: Priority) {
        if message.len() > MESSAGE_BYTES_MAX {
            error!(
                bytes = message.len(),
                "dropped a message that exceeds the limit of {MESSAGE_BYTES_MAX} bytes"
            );
            return;
        }
        let Ok(link) = self.link(peer) else { return };
        let dropped = link.push(message, priority);
        if dropped > 0 {
            self.rejections.add(PeerRejection::BroadcastUnsent, dropped);
            debug!(%peer, dropped, "dropped messages: the peer is too slow for them");
        }
    }

    fn ban(&self, peer: PeerId, reason: &str, duration: Duration) {
        let now = Instant::now();
        warn!(%peer, reason, ?duration, "banned a peer");
        if let Some(link) = self.peers.lock().ban(peer, BannedBy::Node, reason, duration, now) {
            close(&link.connection, Goodbye::Banned, &format!("banned: {reason}"));
        }
    }

    fn credit(&self, peer: PeerId, bytes: usize) {
        if let Ok(link) = self.link(peer) {
            link.credit(bytes);
        }
    }

    fn peer_stats(&self) -> Vec<PeerStats> {
        let links: Vec<_> = self.peers.lock().iter().map(|(_, since, link)| (since, link.clone())).collect();
        links.into_iter().map(|(since, link)| link.stats(since)).collect()
    }

    fn contacts(&self) -> Contacts {
        let now = Instant::now();
        let (named, removed) = self.named();
        let (peers, ledger) = (self.peers.lock(), self.ledger.lock());
        let state = |id| match (peers.since(id), peers.bans.of(id, now)) {
            (Some(since), _) => ContactState::Connected { since },
            (None, Some(Ban { until, by, reason, .. })) => ContactState::Banned { until, by, reason },
            (None, None) => ledger.attempts.state(&id),
        };
        let configured = named.into_iter().map(|(peer, is_added)| ConfiguredPeer {
            state: state(peer.id),
            peer,
            is_added,
        });
        Contacts { configured: configured.collect(), shared_keys: ledger.shared_keys.list(now), removed }
    }

    fn bans(&self) -> Vec<Ban> {
        self.peers.lock().bans.list(Instant::now())
    }

    fn is_banned(&self, peer: &PeerId) -> bool {
        self.peers.lock().banned_until(*peer, Instant::now()).is_some()
    }

    fn exchange(&self) -> Option<ExchangeStatus> {
        self.exchange.status()
    }

    fn rejections(&self) -> Vec<(PeerRejection, u64)> {
        self.rejections.list()
    }
}
