//! Orders of the operator to ban a peer or to lift a ban, and the node's own bans, which are stored as well.

use std::time::Duration;

use tokio::time::Instant;
use tracing::info;

use super::OrderError;
use crate::{
    Ban, BanEnd, BannedBy, PeerId,
    quic::{
        Network,
        link::{Goodbye, close},
    },
};

/// Duration of a ban if the operator names none.
const BAN_DEFAULT: Duration = Duration::from_secs(3_600);

impl Network {
    /// Bans a peer in the operator's name, and ends its connection. Without a duration, a configured peer's ban lasts
    /// until [`Network::unban_peer`], and another peer's ban lasts an hour.
    ///
    /// # Errors
    /// See [`OrderError`].
    pub fn ban_peer(
        &self,
        peer: PeerId,
        reason: &str,
        duration: Option<Duration>,
    ) -> Result<Ban, OrderError> {
        self.check_own(peer)?;
        let now = Instant::now();
        let until = match duration {
            None if self.is_configured(&peer) => BanEnd::Never,
            duration => BanEnd::after(duration.unwrap_or(BAN_DEFAULT), now),
        };
        let mut peers = self.peers.lock();
        if !peers.bans.has_room_for_order(peer, now) {
            return Err(OrderError::TooManyBans);
        }
        info!(%peer, reason, ?duration, "the operator banned a peer");
        peers.bans.add(peer, BannedBy::Operator, reason, until, now);
        peers.changes.report();
        if let Some(link) = peers.disconnect(peer, now) {
            // The reason stays private to the operator.
            close(&link.connection, Goodbye::Banned, "banned by the node's operator");
        }
        // `None` only for a ban of zero length.
        peers.bans.of(peer, now).ok_or(OrderError::NotBanned(peer))
    }

    /// The node's own current bans, and the operator's that it prolonged, to be stored for
    /// [`Network::start_with_orders`]. At most 1,024; of more, those that end last.
    pub fn own_bans(&self) -> Vec<Ban> {
        self.peers.lock().bans.own(Instant::now())
    }

    /// Resolves once the node's own bans have changed since it last resolved. For a single waiter.
    pub async fn own_bans_changed(&self) {
        let changed = self.peers.lock().bans.changed();
        changed.notified().await;
    }

    /// Ends a ban, the operator's or the node's own.
    ///
    /// # Errors
    /// If the peer is not banned.
    pub fn unban_peer(&self, peer: PeerId) -> Result<(), OrderError> {
        let mut peers = self.peers.lock();
        if !peers.bans.lift(peer, Instant::now()) {
            return Err(OrderError::NotBanned(peer));
        }
        peers.changes.report();
        drop(peers);
        info!(%peer, "the operator lifted a ban");
        if let Some(driver) = self.driver.upgrade() {
            driver.unbanned.notify_waiters();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        NetworkConfig, Transport,
        quic::{
            orders::tests::{LONG, at},
            tests::{address_of, connected, start},
        },
        tests::{eventually, key, loopback},
    };

    /// Goal: a ban ends the connection and is listed. An added peer returns once its ban is lifted, and places do not
    /// run out.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn bans_end_connections_and_can_be_lifted() {
        let (b, _) = start(2, &loopback()).await;
        let (a, _) = start(1, &NetworkConfig { peers_max: 3, outbound: 0, ..loopback() }).await;
        let id = b.local();
        a.add_peer(address_of(&b).into()).unwrap();
        connected(&a, &b).await;
        let ban = a.ban_peer(id, "too\nloud", Some(LONG)).unwrap();
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
