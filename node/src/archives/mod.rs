//! Archives as peers: sync requests snapshots from the archives of `sync.archives` as from peers, and judges them
//! alike.
//!
//! ```text
//!   Follower ── requests ─▶ Archives ─┬─▶ the network, for keys of peers
//!                                     └─▶ Supplier ─▶ objects, for ids of archives
//!   in the background: list ─▶ manifest of a newer snapshot ─▶ checked ─▶ offered
//! ```
//!
//! A peer's id is its key, and an archive has no key. An archive's id is derived from its URL, and is never the
//! encoding of a point of the curve ([`archive_id`]). So nobody can prove ownership of such an id, and a peer cannot
//! pose as an archive.
//!
//! An archive becomes a peer once its manifest is loaded and checked, in the background, so that a slow archive delays
//! nobody. An archive keeps no batches, so it is a peer only while its snapshot is ahead of the head. Sync checks its
//! answers like every peer's. A wrong object is passed on unchanged, so that sync bans the archive and gives the object
//! as the reason. The ban is stored in the network's book under the archive's id, next to those of peers. It survives a
//! restart, and is shown and lifted like the ban of a peer.

mod answer;
mod supplier;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use slipstream_archive::{Location, Settings};
use slipstream_network::{
    Ban, BoxFuture, Bytes, Contacts, ExchangeStatus, NetworkError, PeerChanges, PeerId, PeerRejection,
    PeerStats, Priority, Protocol, RequestLimits, Transport,
};
use slipstream_status::archive_id;
use slipstream_storage::Store;
use slipstream_types::Genesis;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::supplier::Supplier;

/// The network of a node together with its archives.
pub(crate) struct Archives {
    network: Arc<dyn Transport>,
    suppliers: BTreeMap<PeerId, Supplier>,
}

impl Archives {
    /// The archives of a node whose store has its genesis. No request is sent before [`Archives::run`].
    pub(crate) fn new(
        locations: &[Location],
        store: &Store,
        genesis: &Genesis,
        network: Arc<dyn Transport>,
    ) -> Arc<Archives> {
        let settings = Settings::from_env();
        let changes = network.peer_changes();
        let supplier = |location: &Location| {
            let id = archive_id(location);
            (id, Supplier::new(id, location, &settings, store, genesis, changes.clone()))
        };
        Arc::new(Archives { network, suppliers: locations.iter().map(supplier).collect() })
    }

    /// Looks for newer snapshots until `shutdown`.
    pub(crate) async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        if self.suppliers.is_empty() {
            return shutdown.cancelled().await;
        }
        let looking = self.suppliers.values().map(|supplier| supplier.look(&shutdown));
        tokio::join!(futures::future::join_all(looking), self.report_ended_bans(&shutdown));
    }

    /// Reports, until `shutdown`, when each archive's ban ends: then the archive is a peer again.
    async fn report_ended_bans(&self, shutdown: &CancellationToken) {
        let changes = self.network.peer_changes();
        let mut watch = changes.watch();
        loop {
            let bans = self.network.bans().into_iter().filter(|ban| self.suppliers.contains_key(&ban.peer));
            let first_end = bans.filter_map(|ban| ban.until.instant()).min();
            let ended = async {
                match first_end {
                    Some(end) => sleep_until(end).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = watch.changed() => {}
                () = ended => changes.report(),
            }
        }
    }
}

impl Transport for Archives {
    fn local(&self) -> PeerId {
        self.network.local()
    }

    fn peers(&self) -> Vec<PeerId> {
        let mut peers = self.network.peers();
        let is_here =
            |(id, supplier): &(&PeerId, &Supplier)| supplier.is_here() && !self.network.is_banned(id);
        peers.extend(self.suppliers.iter().filter(is_here).map(|(id, _)| *id));
        peers.sort_unstable();
        peers
    }

    fn peer_changes(&self) -> PeerChanges {
        self.network.peer_changes()
    }

    fn connected_since(&self, peer: &PeerId) -> Option<Instant> {
        self.network.connected_since(peer)
    }

    fn request<'a>(
        &'a self,
        peer: PeerId,
        protocol: Protocol,
        payload: Vec<u8>,
        limits: RequestLimits,
    ) -> BoxFuture<'a, Result<Vec<u8>, NetworkError>> {
        match self.suppliers.get(&peer) {
            Some(supplier) => Box::pin(supplier.request(protocol, payload, limits)),
            None => self.network.request(peer, protocol, payload, limits),
        }
    }

    fn send(&self, peer: PeerId, message: Bytes, priority: Priority) {
        if !self.suppliers.contains_key(&peer) {
            self.network.send(peer, message, priority);
        }
    }

    fn ban(&self, peer: PeerId, reason: &str, duration: Duration) {
        if let Some(supplier) = self.suppliers.get(&peer) {
            supplier.tell_ban(reason);
        }
        self.network.ban(peer, reason, duration);
    }

    fn credit(&self, peer: PeerId, bytes: usize) {
        if !self.suppliers.contains_key(&peer) {
            self.network.credit(peer, bytes);
        }
    }

    fn peer_stats(&self) -> Vec<PeerStats> {
        self.network.peer_stats()
    }

    fn contacts(&self) -> Contacts {
        self.network.contacts()
    }

    fn bans(&self) -> Vec<Ban> {
        self.network.bans()
    }

    fn is_banned(&self, peer: &PeerId) -> bool {
        self.network.is_banned(peer)
    }

    fn exchange(&self) -> Option<ExchangeStatus> {
        self.network.exchange()
    }

    fn rejections(&self) -> Vec<(PeerRejection, u64)> {
        self.network.rejections()
    }
}

#[cfg(test)]
mod tests {
    use slipstream_network::{BannedBy, MemoryHub};
    use slipstream_rpc::{
        RpcContext,
        fixture::{Nobody, context},
    };

    use super::*;

    /// Goal: an archive's ban is stored among the network's own bans, where it is kept and lifted, and it ends as they
    /// do.
    #[tokio::test(start_paused = true)]
    async fn a_ban_of_an_archive_is_one_of_the_network() {
        let RpcContext { store, .. } = context();
        let hub = MemoryHub::new();
        let transport: Arc<dyn Transport> = hub.join(slipstream_testkit::key(1).public(), Arc::new(Nobody));
        let location: Location = "s3://bucket/liar".parse().unwrap();
        let genesis = store.genesis().unwrap();
        let archives = Archives::new(std::slice::from_ref(&location), &store, &genesis, transport.clone());
        let id = archive_id(&location);
        assert!(!archives.is_banned(&id));
        archives.ban(id, "a state chunk that cannot be", Duration::from_secs(60));
        let bans = transport.bans();
        assert_eq!((bans.len(), bans[0].peer, bans[0].by), (1, id, BannedBy::Node));
        assert_eq!(bans[0].reason, "a state chunk that cannot be");
        assert!(archives.is_banned(&id) && archives.bans() == bans);
        tokio::time::advance(Duration::from_secs(61)).await;
        assert!(!archives.is_banned(&id) && archives.bans().is_empty());
    }
}
