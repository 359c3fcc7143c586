//! An operator's orders to a running network: peers to dial beside the configured ones, and peers to bar. All of them hold until the
//! node restarts.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{
    Network, dial,
    link::{Goodbye, close},
};
use crate::{Ban, BannedBy, PeerHost, PeerId, PeerTarget};

/// Peers that are added at once: each is dialled for good, and has a place kept for it.
const ADDED_MAX: usize = 64;

/// Why an order was not carried out. The text says what to do instead.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OrderError {
    /// The node's own key.
    #[error("{0} is this node's own key")]
    Own(PeerId),
    /// The configuration names the peer, and has the last word.
    #[error(
        "{0} stands in network.peers, and what the configuration names is neither added, removed nor banned while the node runs: \
         change network.peers and start the node again"
    )]
    Configured(PeerId),
    /// Nobody can be dialled there.
    #[error(
        "nobody can be dialled at {0}: that is where a peer listens, on any address of its machine; write the address, or the name, and the UDP port at \
         which it is reached from here, as KEY@HOST:PORT"
    )]
    NoAddress(PeerTarget),
    /// As many peers were added as can be.
    #[error(
        "{ADDED_MAX} peers have been added, and more cannot be: remove one, or list them in network.peers"
    )]
    TooMany,
    /// All places are kept for somebody.
    #[error("there is no place to keep for another peer: raise network.peers_max and start the node again")]
    NoPlace,
    /// The peer is configured or unknown: no order added it.
    #[error("{0} was not added: `slipstream peers list` shows those that were")]
    NotAdded(PeerId),
    /// It is not banned.
    #[error("{0} is not banned: `slipstream peers list` shows who is")]
    NotBanned(PeerId),
    /// The network is shutting down.
    #[error("the node is shutting down")]
    ShutDown,
}

/// A peer that was added, and what ends its task.
pub(super) struct Added {
    pub(super) peer: PeerTarget,
    stop: CancellationToken,
}

impl Network {
    /// Dials a peer, and dials it again whenever the connection is lost, until the node stops or [`Network::remove_peer`]. Its place is kept
    /// like that of a configured one. Another address for a peer that was added takes the place of the first.
    ///
    /// # Errors
    /// See [`OrderError`].
    pub fn add_peer(&self, peer: PeerTarget) -> Result<(), OrderError> {
        self.check_order(peer.id)?;
        if let PeerHost::Address(address) = peer.at
            && (address.ip().is_unspecified() || address.port() == 0)
        {
            return Err(OrderError::NoAddress(peer));
        }
        let driver =
            self.driver.upgrade().filter(|_| !self.stop.is_cancelled()).ok_or(OrderError::ShutDown)?;
        let mut added = self.added.lock();
        if added.get(&peer.id).is_some_and(|it| it.peer == peer) {
            return Ok(());
        }
        if added.len() >= ADDED_MAX && !added.contains_key(&peer.id) {
            return Err(OrderError::TooMany);
        }
        let leaving = self.peers.lock().reserve(peer.id, Instant::now()).map_err(|_| OrderError::NoPlace)?;
        if let Some(link) = leaving {
            close(&link.connection, Goodbye::Full, "the place goes to a peer that the operator added");
        }
        info!(%peer, "the operator added a peer");
        let stop = CancellationToken::new();
        let (stopped, target) = (stop.clone(), peer.clone());
        driver.spawn({
            let driver = Arc::clone(&driver);
            async move {
                stopped.run_until_cancelled(dial::keep_connected(driver, target)).await;
            }
        });
        if let Some(before) = added.insert(peer.id, Added { peer, stop }) {
            before.stop.cancel();
        }
        Ok(())
    }

    /// Ends what [`Network::add_peer`] began, and the connection.
    ///
    /// # Errors
    /// See [`OrderError`].
    pub fn remove_peer(&self, peer: PeerId) -> Result<(), OrderError> {
        self.check_order(peer)?;
        let added = self.added.lock().remove(&peer).ok_or(OrderError::NotAdded(peer))?;
        added.stop.cancel();
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

    /// Bans a peer in the operator's name, and ends its connection.
    ///
    /// # Errors
    /// See [`OrderError`].
    pub fn ban_peer(&self, peer: PeerId, reason: &str, duration: Duration) -> Result<Ban, OrderError> {
        self.check_order(peer)?;
        info!(%peer, reason, ?duration, "the operator banned a peer");
        let now = Instant::now();
        let mut peers = self.peers.lock();
        if let Some(link) = peers.ban(peer, BannedBy::Operator, reason, duration, now) {
            // The reason is the operator's own business.
            close(&link.connection, Goodbye::Banned, "banned by the node's operator");
        }
        // `None` only for a ban of zero length.
        peers.bans.of(peer, now).ok_or(OrderError::NotBanned(peer))
    }

    /// Ends a ban, the operator's or the node's own.
    ///
    /// # Errors
    /// If there is none.
    pub fn unban_peer(&self, peer: PeerId) -> Result<(), OrderError> {
        if !self.peers.lock().bans.lift(peer, Instant::now()) {
            return Err(OrderError::NotBanned(peer));
        }
        info!(%peer, "the operator lifted a ban");
        if let Some(driver) = self.driver.upgrade() {
            driver.unbanned.notify_waiters();
        }
        Ok(())
    }

    fn check_order(&self, peer: PeerId) -> Result<(), OrderError> {
        if peer == self.local {
            return Err(OrderError::Own(peer));
        }
        if self.configured.iter().any(|it| it.id == peer) {
            return Err(OrderError::Configured(peer));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ContactKind, NetworkConfig, PeerAddress, Transport,
        quic::tests::{address_of, connected, dialling, free_address, start},
        tests::{eventually, key, loopback},
    };

    const LONG: Duration = Duration::from_secs(3_600);

    /// A peer where nobody listens.
    fn at(n: u8) -> PeerTarget {
        PeerAddress { id: key(n).public(), address: free_address() }.into()
    }

    /// Goal: a peer that is added is dialled, shown and kept like a configured one, and gone when it is removed.
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

    /// Goal: the configuration has the last word on its own peers.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn configured_peers_are_protected() {
        let (b, _) = start(2, &loopback()).await;
        let (a, _) = start(1, &dialling(vec![address_of(&b)])).await;
        connected(&a, &b).await;
        let id = b.local();
        let refused = OrderError::Configured(id);
        assert_eq!(a.add_peer(address_of(&b).into()), Err(refused.clone()));
        assert_eq!(a.remove_peer(id), Err(refused.clone()));
        assert_eq!(a.ban_peer(id, "", LONG), Err(refused));
        assert_eq!(a.ban_peer(a.local(), "", LONG), Err(OrderError::Own(a.local())));
        assert!(a.bans().is_empty() && a.peers() == [id]);
    }

    /// Goal: a ban ends the connection and is shown. An added peer comes back once its ban is lifted, and places do not run out.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn bans_end_connections_and_can_be_lifted() {
        let (b, _) = start(2, &loopback()).await;
        let (a, _) = start(1, &NetworkConfig { peers_max: 3, outbound: 0, ..loopback() }).await;
        let id = b.local();
        a.add_peer(address_of(&b).into()).unwrap();
        connected(&a, &b).await;
        let ban = a.ban_peer(id, "too\nloud", LONG).unwrap();
        assert_eq!((ban.by, ban.reason.as_str()), (BannedBy::Operator, "too loud"));
        eventually("disconnected", || a.peers().is_empty() && b.peers().is_empty()).await;
        a.ban(key(5).public(), "a proven lie", LONG);
        let listed = a.bans();
        assert_eq!(listed.iter().map(|ban| ban.by).collect::<Vec<_>>(), [BannedBy::Operator, BannedBy::Node]);
        let trouble = a.contacts().configured[0].trouble().unwrap();
        assert_eq!(trouble, "banned by this node's operator: too loud");
        a.unban_peer(id).unwrap();
        assert_eq!(a.unban_peer(id), Err(OrderError::NotBanned(id)));
        connected(&a, &b).await;
        a.add_peer(at(6)).unwrap();
        assert_eq!(a.add_peer(at(7)), Err(OrderError::NoPlace));
    }
}
