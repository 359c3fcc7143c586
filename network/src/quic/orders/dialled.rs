//! Peers that the operator adds to the configured ones, or removes.

use std::{collections::BTreeMap, sync::Arc};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::OrderError;
use crate::{
    PeerHost, PeerId, PeerTarget,
    quic::{
        Network, dial,
        driver::Driver,
        link::{Goodbye, close},
    },
};

/// Maximum number of added peers at once: each is dialled permanently, and has a place reserved for it.
pub(super) const ADDED_MAX: usize = 64;

/// A peer that is dialled, and the token that ends its task.
pub(in crate::quic) struct DialTask {
    peer: PeerTarget,
    stop: CancellationToken,
}

impl DialTask {
    /// Dials a peer, and redials it whenever the connection is lost.
    pub(in crate::quic) fn begin(driver: &Arc<Driver>, peer: PeerTarget) -> DialTask {
        let stop = CancellationToken::new();
        let (stopped, dialling) = (stop.clone(), dial::keep_connected(Arc::clone(driver), peer.clone()));
        driver.spawn(async move {
            stopped.run_until_cancelled(dialling).await;
        });
        DialTask { peer, stop }
    }
}

/// Whether a peer can listen there: an unspecified address or port 0 cannot be dialled.
pub(super) fn can_be_dialled(peer: &PeerTarget) -> bool {
    match &peer.at {
        PeerHost::Address(address) => !address.ip().is_unspecified() && address.port() != 0,
        PeerHost::Name { .. } => true,
    }
}

impl Network {
    /// Dials a peer, and redials it whenever the connection is lost, until [`Network::remove_peer`]. A place is
    /// reserved for it, as for a configured peer. For a peer that was added before, the new address replaces the old
    /// one. A configured peer that was removed returns.
    ///
    /// # Errors
    /// See [`OrderError`].
    pub fn add_peer(&self, peer: PeerTarget) -> Result<(), OrderError> {
        self.check_own(peer.id)?;
        if !can_be_dialled(&peer) {
            return Err(OrderError::NoAddress(peer));
        }
        let driver =
            self.driver.upgrade().filter(|_| !self.stop.is_cancelled()).ok_or(OrderError::ShutDown)?;
        let mut dialled = self.dialled.lock();
        if dialled.get(&peer.id).is_some_and(|it| it.peer == peer) {
            return Ok(());
        }
        if self.is_configured(&peer.id) {
            if dialled.contains_key(&peer.id) || !self.configured.contains(&peer) {
                return Err(OrderError::Configured(peer.id));
            }
        } else if !dialled.contains_key(&peer.id) && self.added(&dialled).count() >= ADDED_MAX {
            return Err(OrderError::TooMany);
        }
        let leaving = self.peers.lock().reserve(peer.id, Instant::now()).map_err(|_| OrderError::NoPlace)?;
        if let Some(link) = leaving {
            close(&link.connection, Goodbye::Full, "the place goes to a peer that the operator added");
        }
        info!(%peer, "the operator added a peer");
        if let Some(before) = dialled.insert(peer.id, DialTask::begin(&driver, peer)) {
            before.stop.cancel();
        }
        Ok(())
    }

    /// Stops dialling a peer, frees its place, and ends the connection. A configured one stays removed until
    /// [`Network::add_peer`].
    ///
    /// # Errors
    /// See [`OrderError`].
    pub fn remove_peer(&self, peer: PeerId) -> Result<(), OrderError> {
        self.check_own(peer)?;
        let dialled = self.dialled.lock().remove(&peer).ok_or(OrderError::NotAdded(peer))?;
        dialled.stop.cancel();
        info!(%peer, "the operator removed a peer");
        let mut peers = self.peers.lock();
        peers.release(&peer);
        if let Some(link) = peers.disconnect(peer, Instant::now()) {
            close(&link.connection, Goodbye::Shutdown, "the node's operator removed this peer");
        }
        drop(peers);
        self.ledger.lock().attempts.lasted(&peer);
        if let Some(driver) = self.driver.upgrade() {
            driver.door.forget(&peer);
        }
        Ok(())
    }

    /// Returns the dialled peers, the configured ones first, each with whether it was added; and the removed peers.
    pub(in crate::quic) fn named(&self) -> (Vec<(PeerTarget, bool)>, Vec<PeerTarget>) {
        let dialled = self.dialled.lock();
        let (kept, removed): (Vec<_>, Vec<_>) =
            self.configured.iter().cloned().partition(|peer| dialled.contains_key(&peer.id));
        let added = self.added(&dialled).map(|peer| (peer.clone(), true));
        (kept.into_iter().map(|peer| (peer, false)).chain(added).collect(), removed)
    }

    fn added<'a>(
        &'a self,
        dialled: &'a BTreeMap<PeerId, DialTask>,
    ) -> impl Iterator<Item = &'a PeerTarget> + 'a {
        dialled.values().map(|it| &it.peer).filter(|peer| !self.is_configured(&peer.id))
    }

    pub(super) fn is_configured(&self, peer: &PeerId) -> bool {
        self.configured.iter().any(|it| it.id == *peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        BanEnd, ContactKind, NetworkConfig, Orders, PeerAddress, Transport,
        quic::{
            orders::tests::{LONG, at},
            tests::{address_of, connected, dialling, free_address, start},
        },
        tests::{eventually, loopback},
    };

    /// Goal: an added peer is dialled, listed and kept like a configured one, and gone when it is removed.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn peers_come_and_go_by_order() {
        let quick = NetworkConfig { handshake_timeout_ms: 300, ..loopback() };
        let ((a, _), (b, _)) = (start(1, &quick).await, start(2, &loopback()).await);
        let (id, silent) = (b.local(), at(3));
        a.add_peer(address_of(&b).into()).unwrap();
        a.add_peer(address_of(&b).into()).unwrap();
        connected(&a, &b).await;
        a.add_peer(silent.clone()).unwrap();
        let shown = || {
            let contacts = a.contacts().configured.into_iter();
            contacts.map(|it| (it.peer.id, it.state.kind(), it.is_added)).collect::<Vec<_>>()
        };
        eventually("both are shown", || {
            let (fine, down) = (ContactKind::Connected, ContactKind::Unreachable);
            let [one, other] = &shown()[..] else { return false };
            [one, other].contains(&&(id, fine, true)) && [one, other].contains(&&(silent.id, down, true))
        })
        .await;
        a.remove_peer(id).unwrap();
        eventually("disconnected", || a.peers().is_empty() && b.peers().is_empty()).await;
        a.remove_peer(silent.id).unwrap();
        assert_eq!((shown(), a.remove_peer(id)), (Vec::new(), Err(OrderError::NotAdded(id))));
        let nowhere: PeerTarget = format!("{id}@0.0.0.0:7400").parse().unwrap();
        assert_eq!(a.add_peer(nowhere.clone()), Err(OrderError::NoAddress(nowhere)));
        a.shutdown().await;
        assert_eq!(a.add_peer(address_of(&b).into()), Err(OrderError::ShutDown));
        b.shutdown().await;
    }

    /// Goal: an operator removes and bans a configured peer too, and an order brings it back. Only the configuration
    /// sets its address.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn configured_peers_are_removed_and_banned() {
        let (b, _) = start(2, &loopback()).await;
        let (a, _) = start(1, &dialling(vec![address_of(&b)])).await;
        connected(&a, &b).await;
        let id = b.local();
        let elsewhere: PeerTarget = PeerAddress { id, address: free_address() }.into();
        assert_eq!(a.add_peer(elsewhere.clone()), Err(OrderError::Configured(id)));
        let ban = a.ban_peer(id, "too loud", None).unwrap();
        assert_eq!(
            (ban.until, a.contacts().configured[0].state.kind()),
            (BanEnd::Never, ContactKind::Banned)
        );
        eventually("disconnected", || a.peers().is_empty()).await;
        a.unban_peer(id).unwrap();
        connected(&a, &b).await;
        a.remove_peer(id).unwrap();
        let contacts = a.contacts();
        assert_eq!((contacts.configured.len(), contacts.removed), (0, vec![address_of(&b).into()]));
        eventually("disconnected", || a.peers().is_empty()).await;
        assert_eq!(a.add_peer(elsewhere), Err(OrderError::Configured(id)));
        a.add_peer(address_of(&b).into()).unwrap();
        connected(&a, &b).await;
        assert!(a.contacts().removed.is_empty() && !a.contacts().configured[0].is_added);
        assert_eq!(a.ban_peer(a.local(), "", Some(LONG)), Err(OrderError::Own(a.local())));
        assert_eq!(a.orders(), Orders::default());
    }
}
