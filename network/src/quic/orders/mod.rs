//! An operator's orders to a running network: extra peers to dial, peers to remove, and peers to ban. [`Orders`] is the
//! part that lasts: the node stores it across restarts.
//!
//! ```text
//!   earlier orders and own bans ─▶ obey ─▶ Peers, and peers to dial      dialled: add_peer, remove_peer      bans: ban_peer, unban_peer
//! ```

mod bans;
mod dialled;

use std::{collections::BTreeSet, sync::Arc};

use tokio::time::Instant;
use tracing::warn;

pub(super) use self::dialled::DialTask;
use self::dialled::{ADDED_MAX, can_be_dialled};
use super::{Network, link::Link};
use crate::{
    Ban, BannedBy, NetworkConfig, PeerId, PeerTarget,
    bans::{ORDERED_BANS_MAX, OWN_BANS_KEPT_MAX},
    peers::Peers,
};

/// Why an order was not carried out. The text says what to do instead.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OrderError {
    /// The order names the node's own key.
    #[error("{0} is this node's own key")]
    Own(PeerId),
    /// The configuration names the peer, with its address.
    #[error(
        "{0} is in network.peers, which sets its address: change it there and start the node again; a removed peer comes back with that address"
    )]
    Configured(PeerId),
    /// No peer can be dialled at this address.
    #[error(
        "this node cannot dial {0}: it says only that the peer listens on every address of its machine; write \
        the address or name and the UDP port at which the peer is reachable from here, as KEY@HOST:PORT"
    )]
    NoAddress(PeerTarget),
    /// The limit of added peers is reached.
    #[error("the limit of {ADDED_MAX} added peers is reached: remove one, or list peers in network.peers")]
    TooMany,
    /// The limit of the operator's bans is reached.
    #[error(
        "the limit of {ORDERED_BANS_MAX} operator's bans is reached: lift one with `slipstream peers unban`"
    )]
    TooManyBans,
    /// All places are reserved.
    #[error("no place is free for another peer: raise network.peers_max and start the node again")]
    NoPlace,
    /// This node is neither ordered nor configured to dial the peer.
    #[error(
        "this node does not dial {0}: it was never added, or is already removed; `slipstream peers list` shows the dialled peers"
    )]
    NotAdded(PeerId),
    /// The peer is not banned.
    #[error("{0} is not banned: `slipstream peers list` shows the banned peers")]
    NotBanned(PeerId),
    /// The network is shutting down.
    #[error("the node is shutting down")]
    ShutDown,
}

/// The lasting orders of an operator.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Orders {
    /// Peers that are dialled beside those of `network.peers`.
    pub added: Vec<PeerTarget>,
    /// Peers of `network.peers` that are not dialled.
    pub removed: BTreeSet<PeerId>,
    /// The operator's current bans.
    pub bans: Vec<Ban>,
}

/// Applies the bans of the orders and the node's own. Returns the peers to dial: the configured ones, then the added
/// ones that have a place.
pub(super) fn obey(
    peers: &mut Peers<Arc<Link>>,
    orders: &Orders,
    own_bans: &[Ban],
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
    for Ban { peer, reason, until, .. } in
        own_bans.iter().filter(|ban| ban.peer != local).take(OWN_BANS_KEPT_MAX)
    {
        peers.bans.add(*peer, BannedBy::Node, reason, *until, now);
    }
    let forgotten = orders.bans.len().saturating_sub(ORDERED_BANS_MAX);
    if forgotten > 0 {
        warn!(forgotten, "the operator's bans exceed the limit; dropping the last ones");
    }
    let configured = config.others(local).filter(|peer| !orders.removed.contains(&peer.id));
    let mut dialled: Vec<PeerTarget> = configured.cloned().collect();
    // The configuration may meanwhile name peers that were added before.
    let mut taken: BTreeSet<PeerId> = config.peers.iter().map(|peer| peer.id).chain([local]).collect();
    let is_new = |peer: &&PeerTarget| can_be_dialled(peer) && taken.insert(peer.id);
    for peer in orders.added.iter().filter(is_new).take(ADDED_MAX) {
        // No peer is connected yet, so none is evicted.
        if peers.reserve(peer.id, now).is_ok() {
            dialled.push(peer.clone());
        } else {
            warn!(%peer, "no place is free for a peer that the operator added; raise network.peers_max");
        }
    }
    dialled
}

impl Network {
    /// The current orders, to be stored for [`Network::start_with_orders`].
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

    fn check_own(&self, peer: PeerId) -> Result<(), OrderError> {
        if peer == self.local { Err(OrderError::Own(peer)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slipstream_types::PublicKey;
    use tokio::time::sleep;

    use super::*;
    use crate::{
        BanEnd, NetworkConfig, OWN_BAN_MAX, PeerAddress, Transport,
        quic::tests::{address_of, connected, dialling, free_address, start},
        tests::{Probe, eventually, key, loopback},
    };

    pub(super) const LONG: Duration = Duration::from_secs(3_600);

    /// A peer at an address where none listens.
    pub(super) fn at(n: u8) -> PeerTarget {
        PeerAddress { id: key(n).public(), address: free_address() }.into()
    }

    /// Goal: another network that begins with the orders of the first one obeys all of them. The configuration wins if
    /// it meanwhile names an added peer.
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
        let (orders, own) = (a.orders(), a.own_bans());
        assert_eq!((orders.added.len(), orders.removed.len(), orders.bans.len()), (1, 1, 1));
        a.shutdown().await;
        let again = |config: NetworkConfig, orders: Orders, own: Vec<Ban>| async move {
            Network::start_with_orders(&config, &key(1), Probe::new(), &orders, &own).await.unwrap()
        };
        let a = again(config.clone(), orders.clone(), own.clone()).await;
        connected(&a, &c).await;
        assert_eq!((a.orders(), a.own_bans()), (orders.clone(), own));
        let [ordered, spoken] = &a.bans()[..] else { panic!("{:?}", a.bans()) };
        assert_eq!(
            (ordered.peer, ordered.by, ordered.reason.as_str()),
            (stranger, BannedBy::Operator, "mine")
        );
        assert_eq!(
            (spoken.peer, spoken.by, spoken.reason.as_str()),
            (key(6).public(), BannedBy::Node, "a lie")
        );
        a.shutdown().await;
        let a = again(dialling(vec![address_of(&c)]), orders, Vec::new()).await;
        connected(&a, &c).await;
        let contacts = a.contacts();
        assert_eq!((contacts.configured.len(), contacts.configured[0].is_added), (1, false));
        assert!(contacts.removed.is_empty() && a.orders().added.is_empty());
    }

    /// Goal: orders in a hand-written file are bounded like all orders: each peer is dialled once, and the node's own
    /// bans have room too.
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
        let strangers = (0..2 * OWN_BANS_KEPT_MAX as u32).map(|n| {
            let mut id = [9; 32];
            id[..4].copy_from_slice(&n.to_le_bytes());
            Ban { peer: PublicKey(id), by: BannedBy::Operator, reason: "many".into(), until: BanEnd::Never }
        });
        // A file cannot make the node ban itself either.
        let itself = Ban { peer: own.id, by: BannedBy::Node, reason: "itself".into(), until: BanEnd::Never };
        let own_bans: Vec<Ban> = [itself].into_iter().chain(strangers).collect();
        let started =
            Network::start_with_orders(&loopback(), &key(1), Probe::new(), &orders, &own_bans).await;
        let a = started.unwrap();
        assert_eq!(a.own_bans().len(), OWN_BANS_KEPT_MAX);
        let hour = BanEnd::after(OWN_BAN_MAX, Instant::now());
        assert!(a.own_bans().iter().all(|ban| ban.peer != own.id && ban.until <= hour));
        connected(&a, &b).await;
        assert_eq!(a.orders().added, vec![PeerTarget::from(address_of(&b))]);
        assert_eq!(a.orders().bans.len(), ORDERED_BANS_MAX);
        a.ban(key(6).public(), "a lie", LONG);
        assert!(a.bans().iter().any(|ban| ban.peer == key(6).public() && ban.by == BannedBy::Node));
        a.remove_peer(b.local()).unwrap();
        eventually("disconnected", || a.peers().is_empty()).await;
        // A second task for the same peer would redial it.
        sleep(Duration::from_secs(1)).await;
        assert!(a.peers().is_empty());
    }
}
