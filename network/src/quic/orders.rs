//! An operator's orders to a running network: whom to dial beside the configured peers, whom no more, and whom to bar. [`Orders`] is what of
//! them lasts: the node keeps it over a restart.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    Network, dial,
    driver::Driver,
    link::{Goodbye, Link, close},
};
use crate::{
    Ban, BanEnd, BannedBy, NetworkConfig, PeerHost, PeerId, PeerTarget, bans::ORDERED_BANS_MAX, peers::Peers,
};

/// Peers that are added at once: each is dialled for good, and has a place kept for it.
const ADDED_MAX: usize = 64;
/// How long a ban lasts for which the operator names no time.
const BAN_DEFAULT: Duration = Duration::from_secs(3_600);

/// Why an order was not carried out. The text says what to do instead.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OrderError {
    /// The node's own key.
    #[error("{0} is this node's own key")]
    Own(PeerId),
    /// The configuration names the peer, and its address.
    #[error(
        "{0} stands in network.peers, which says where it is dialled: change it there and start the node again; one that was removed \
         comes back with the address that stands there"
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
    /// As many peers are banned by order as can be.
    #[error(
        "{ORDERED_BANS_MAX} bans of the operator stand, and more cannot be: lift one with `slipstream peers unban`"
    )]
    TooManyBans,
    /// All places are kept for somebody.
    #[error("there is no place to keep for another peer: raise network.peers_max and start the node again")]
    NoPlace,
    /// The peer is not one that this node is told to dial.
    #[error(
        "{0} was not added, and network.peers does not name it, or it is removed already: `slipstream peers list` shows whom this \
         node dials"
    )]
    NotAdded(PeerId),
    /// It is not banned.
    #[error("{0} is not banned: `slipstream peers list` shows who is")]
    NotBanned(PeerId),
    /// The network is shutting down.
    #[error("the node is shutting down")]
    ShutDown,
}

/// What an operator has ordered and lasts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Orders {
    /// Peers that are dialled beside those of `network.peers`.
    pub added: Vec<PeerTarget>,
    /// Peers of `network.peers` that are not dialled.
    pub removed: BTreeSet<PeerId>,
    /// The operator's bans that stand.
    pub bans: Vec<Ban>,
}

/// A peer that is dialled, and what ends its task.
pub(super) struct Dialled {
    peer: PeerTarget,
    stop: CancellationToken,
}

impl Dialled {
    /// Dials a peer, and dials it again whenever the connection is lost.
    pub(super) fn begin(driver: &Arc<Driver>, peer: PeerTarget) -> Dialled {
        let stop = CancellationToken::new();
        let (stopped, dialling) = (stop.clone(), dial::keep_connected(Arc::clone(driver), peer.clone()));
        driver.spawn(async move {
            stopped.run_until_cancelled(dialling).await;
        });
        Dialled { peer, stop }
    }
}

/// Bars whom the orders bar, and gives those that are to be dialled: the configured ones, then the added ones for which there is a place.
pub(super) fn obey(
    peers: &mut Peers<Arc<Link>>,
    orders: &Orders,
    config: &NetworkConfig,
    local: PeerId,
    now: Instant,
) -> Vec<PeerTarget> {
    // More would leave no room for the node's own bans.
    for Ban { peer, reason, until, .. } in
        orders.bans.iter().filter(|ban| ban.peer != local).take(ORDERED_BANS_MAX)
    {
        peers.bans.add(*peer, BannedBy::Operator, reason, *until, now);
    }
    let forgotten = orders.bans.len().saturating_sub(ORDERED_BANS_MAX);
    if forgotten > 0 {
        warn!(forgotten, "the operator's bans are more than can stand; the last ones are forgotten");
    }
    let configured = config.others(local).filter(|peer| !orders.removed.contains(&peer.id));
    let mut dialled: Vec<PeerTarget> = configured.cloned().collect();
    // The configuration may name by now what was added before.
    let mut taken: BTreeSet<PeerId> = config.peers.iter().map(|peer| peer.id).chain([local]).collect();
    let is_new = |peer: &&PeerTarget| can_be_dialled(peer) && taken.insert(peer.id);
    for peer in orders.added.iter().filter(is_new).take(ADDED_MAX) {
        // Nobody is connected yet, so nobody leaves.
        if peers.reserve(peer.id, now).is_ok() {
            dialled.push(peer.clone());
        } else {
            warn!(%peer, "no place is left for a peer that the operator added; raise network.peers_max");
        }
    }
    dialled
}

/// Whether a peer can listen there: not on every address of its machine, nor on no port.
fn can_be_dialled(peer: &PeerTarget) -> bool {
    match &peer.at {
        PeerHost::Address(address) => !address.ip().is_unspecified() && address.port() != 0,
        PeerHost::Name { .. } => true,
    }
}

impl Network {
    /// Dials a peer, and dials it again whenever the connection is lost, until [`Network::remove_peer`]. Its place is kept like that of a
    /// configured one. Another address for a peer that was added takes the place of the first. A configured peer that was removed comes back.
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
        if let Some(before) = dialled.insert(peer.id, Dialled::begin(&driver, peer)) {
            before.stop.cancel();
        }
        Ok(())
    }

    /// Dials a peer no more, keeps no place for it, and ends the connection. A configured one stays removed until [`Network::add_peer`].
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

    /// Bans a peer in the operator's name, and ends its connection. Without a duration the ban of a configured peer holds until
    /// [`Network::unban_peer`], that of another one for an hour.
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
        if let Some(link) = peers.disconnect(peer, now) {
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

    /// The orders that stand, to be kept for [`Network::start_with_orders`].
    pub fn orders(&self) -> Orders {
        let (named, removed) = self.named();
        let added = named.into_iter().filter_map(|(peer, is_added)| is_added.then_some(peer));
        let bans = self.peers.lock().bans.list(Instant::now());
        Orders {
            added: added.collect(),
            removed: removed.into_iter().map(|peer| peer.id).collect(),
            bans: bans.into_iter().filter(|ban| ban.by == BannedBy::Operator).collect(),
        }
    }

    /// The peers that are dialled, the configured ones first, each with whether it was added; and those that were removed.
    pub(super) fn named(&self) -> (Vec<(PeerTarget, bool)>, Vec<PeerTarget>) {
        let dialled = self.dialled.lock();
        let (kept, removed): (Vec<_>, Vec<_>) =
            self.configured.iter().cloned().partition(|peer| dialled.contains_key(&peer.id));
        let added = self.added(&dialled).map(|peer| (peer.clone(), true));
        (kept.into_iter().map(|peer| (peer, false)).chain(added).collect(), removed)
    }

    fn added<'a>(
        &'a self,
        dialled: &'a BTreeMap<PeerId, Dialled>,
    ) -> impl Iterator<Item = &'a PeerTarget> + 'a {
        dialled.values().map(|it| &it.peer).filter(|peer| !self.is_configured(&peer.id))
    }

    fn is_configured(&self, peer: &PeerId) -> bool {
        self.configured.iter().any(|it| it.id == *peer)
    }

    fn check_own(&self, peer: PeerId) -> Result<(), OrderError> {
        if peer == self.local { Err(OrderError::Own(peer)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use slipstream_types::PublicKey;
    use tokio::time::sleep;

    use super::*;
    use crate::{
        ContactKind, NetworkConfig, PeerAddress, Transport,
        quic::tests::{address_of, connected, dialling, free_address, start},
        tests::{Probe, eventually, key, loopback},
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

    /// Goal: an operator removes and bans a configured peer too, its address is the configuration's word, and it comes back by order.
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

    /// Goal: another network that begins with the orders of the first one obeys all of them, and the configuration wins where it names
    /// by now what was added.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn orders_hold_from_the_start() {
        let (b, _) = start(2, &loopback()).await;
        let (c, _) = start(3, &loopback()).await;
        let config = dialling(vec![address_of(&b)]);
        let (a, _) = start(1, &config).await;
        connected(&a, &b).await;
        let stranger = key(5).public();
        a.add_peer(address_of(&c).into()).unwrap();
        a.remove_peer(b.local()).unwrap();
        a.ban_peer(stranger, "mine", Some(LONG)).unwrap();
        a.ban(key(6).public(), "a lie", LONG);
        let orders = a.orders();
        assert_eq!((orders.added.len(), orders.removed.len(), orders.bans.len()), (1, 1, 1));
        a.shutdown().await;
        let again = |config: NetworkConfig, orders: Orders| async move {
            Network::start_with_orders(&config, &key(1), Probe::new(), &orders).await.unwrap()
        };
        let a = again(config.clone(), orders.clone()).await;
        connected(&a, &c).await;
        assert_eq!(a.orders(), orders);
        let [ban] = &a.bans()[..] else { panic!("{:?}", a.bans()) };
        assert_eq!((ban.peer, ban.by, ban.reason.as_str()), (stranger, BannedBy::Operator, "mine"));
        a.shutdown().await;
        let a = again(dialling(vec![address_of(&c)]), orders).await;
        connected(&a, &c).await;
        let contacts = a.contacts();
        assert_eq!((contacts.configured.len(), contacts.configured[0].is_added), (1, false));
        assert!(contacts.removed.is_empty() && a.orders().added.is_empty());
    }

    /// Goal: orders of a file that somebody wrote by hand stay within the bounds of orders: each peer is dialled once, and the node's own
    /// bans have room beside the operator's.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn orders_of_a_file_are_bounded() {
        let (b, _) = start(2, &loopback()).await;
        let nowhere = |seed| PeerAddress { id: key(seed).public(), address: "0.0.0.0:7400".parse().unwrap() };
        let own = PeerAddress { id: key(1).public(), address: free_address() };
        let bans = (0..2 * ORDERED_BANS_MAX as u32).map(|n| {
            let mut id = [7; 32];
            id[..4].copy_from_slice(&n.to_le_bytes());
            Ban { peer: PublicKey(id), by: BannedBy::Node, reason: "many".into(), until: BanEnd::Never }
        });
        let orders = Orders {
            added: [address_of(&b), address_of(&b), nowhere(7), own]
                .into_iter()
                .map(PeerTarget::from)
                .collect(),
            removed: BTreeSet::from([own.id]),
            bans: bans.collect(),
        };
        let started = Network::start_with_orders(&loopback(), &key(1), Probe::new(), &orders).await;
        let a = started.unwrap();
        connected(&a, &b).await;
        assert_eq!(a.orders().added, vec![PeerTarget::from(address_of(&b))]);
        assert_eq!(a.orders().bans.len(), ORDERED_BANS_MAX);
        a.ban(key(6).public(), "a lie", LONG);
        assert!(a.bans().iter().any(|ban| ban.peer == key(6).public() && ban.by == BannedBy::Node));
        a.remove_peer(b.local()).unwrap();
        eventually("disconnected", || a.peers().is_empty()).await;
        // A second task for the same peer would dial it again.
        sleep(Duration::from_secs(1)).await;
        assert!(a.peers().is_empty());
    }

    /// Goal: a ban ends the connection and is shown. An added peer comes back once its ban is lifted, and places do not run out.
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
