//! [`Following`]: a follower with a store of its own, and honest peers for it.

use std::{sync::Arc, time::Duration};

use slipstream_executor::{ExecutorConfig, Session};
use slipstream_network::{
    BoxFuture, Handler, MESSAGE_BYTES_MAX, MemoryHub, Payload, PeerId, Priority, Protocol, Refusal, Transport,
};
use slipstream_storage::{StorageConfig, Store};
use slipstream_sync::{Follower, Mode, SyncConfig, SyncServer, SyncStatus, protocol::Announcement};
use slipstream_types::{BatchNumber, ChainConfig, Genesis, PublicKey, Waypoint, codec};
use tokio_util::sync::CancellationToken;

/// The session with which a node on this store executes.
pub(crate) fn session(executor: &ExecutorConfig, store: &Store) -> Arc<Session> {
    Arc::new(Session::new(executor, ChainConfig::clone(&store.chain().unwrap())).unwrap())
}

/// An honest peer.
pub(crate) struct Honest(pub(crate) Arc<SyncServer>);

impl Handler for Honest {
    fn request<'a>(
        &'a self,
        peer: PeerId,
        _protocol: Protocol,
        payload: Vec<u8>,
    ) -> BoxFuture<'a, Result<Payload, Refusal>> {
        Box::pin(self.0.handle(peer, payload))
    }

    fn message<'a>(&'a self, _peer: PeerId, _payload: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

/// The handler of a following node.
struct Node {
    server: SyncServer,
    follower: std::sync::OnceLock<Arc<Follower>>,
}

impl Handler for Node {
    fn request<'a>(
        &'a self,
        peer: PeerId,
        _protocol: Protocol,
        payload: Vec<u8>,
    ) -> BoxFuture<'a, Result<Payload, Refusal>> {
        Box::pin(self.server.handle(peer, payload))
    }

    fn message<'a>(&'a self, peer: PeerId, payload: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Some(follower) = self.follower.get() {
                let Announcement { header, certificate, body, hints } =
                    codec::decode("announcement", &payload, MESSAGE_BYTES_MAX).unwrap();
                follower.announce(peer, header, certificate, body, hints);
            }
        })
    }
}

/// Sends a message to all peers of a node.
pub(crate) fn tell_all(node: &dyn Transport, message: Vec<u8>) {
    node.peers().into_iter().for_each(|peer| node.send(peer, message.clone().into(), Priority::First));
}

pub(crate) fn peer(id: u8) -> PeerId {
    PublicKey([id; 32])
}

/// The setup of a follower.
#[derive(Default)]
struct Setting {
    sync: SyncConfig,
    executor: ExecutorConfig,
    waypoint: Option<Waypoint>,
}

/// A running follower with a store of its own.
pub(crate) struct Following {
    pub(crate) store: Store,
    pub(crate) follower: Arc<Follower>,
    pub(crate) task: tokio::task::JoinHandle<Result<(), slipstream_sync::SyncError>>,
    pub(crate) stop: CancellationToken,
}

impl Following {
    pub(crate) async fn start(
        hub: &MemoryHub,
        id: PeerId,
        genesis: &Genesis,
        mode: Mode,
        peers: &[PeerId],
    ) -> Following {
        let config =
            SyncConfig { mode, request_deadline_ms: 5_000.try_into().unwrap(), ..Default::default() };
        let store = Store::memory(&StorageConfig { snapshot_interval_batches: 0, ..Default::default() });
        store.initialize(genesis).unwrap();
        Self::start_with(hub, id, store, config, None, peers).await
    }

    pub(crate) async fn start_with(
        hub: &MemoryHub,
        id: PeerId,
        store: Store,
        config: SyncConfig,
        waypoint: Option<Waypoint>,
        peers: &[PeerId],
    ) -> Following {
        let setting = Setting { sync: config, waypoint, ..Setting::default() };
        Self::launch(hub, id, store, setting, peers).await
    }

    /// Starts a node that replays with this tuning of execution.
    pub(crate) async fn start_replaying(
        hub: &MemoryHub,
        id: PeerId,
        genesis: &Genesis,
        executor: ExecutorConfig,
        peers: &[PeerId],
    ) -> Following {
        let store = Store::memory(&StorageConfig { snapshot_interval_batches: 0, ..Default::default() });
        store.initialize(genesis).unwrap();
        Self::go_on_replaying(hub, id, store, executor, peers).await
    }

    /// As [`Following::start_replaying`], on an existing store.
    pub(crate) async fn go_on_replaying(
        hub: &MemoryHub,
        id: PeerId,
        store: Store,
        executor: ExecutorConfig,
        peers: &[PeerId],
    ) -> Following {
        let sync = SyncConfig { mode: Mode::Replay, ..Default::default() };
        Self::launch(hub, id, store, Setting { sync, executor, ..Setting::default() }, peers).await
    }

    async fn launch(
        hub: &MemoryHub,
        id: PeerId,
        store: Store,
        setting: Setting,
        peers: &[PeerId],
    ) -> Following {
        let Setting { sync, executor, waypoint } = setting;
        let node = Arc::new(Node { server: SyncServer::new(store.clone()), follower: Default::default() });
        let transport = hub.join(id, node.clone());
        for peer in peers {
            assert!(hub.connect(id, *peer));
        }
        let session = session(&executor, &store);
        let follower =
            Follower::new(sync, store.clone(), transport, session, waypoint, Duration::ZERO).unwrap();
        node.follower.set(follower.clone()).ok().unwrap();
        let stop = CancellationToken::new();
        let task = tokio::spawn(follower.clone().run(stop.clone()));
        Following { store, follower, task, stop }
    }

    /// Waits until the head is there; fails with the status after three minutes.
    pub(crate) async fn reach(&self, number: BatchNumber) -> SyncStatus {
        let mut head = self.store.watch_head();
        let reached =
            tokio::time::timeout(Duration::from_secs(180), head.wait_for(|head| *head >= number)).await;
        assert!(reached.is_ok(), "stuck: {:#?}", self.follower.status());
        self.follower.status()
    }

    /// Stops the node. The returned status counts all that was committed and judged; a status taken at the head may not
    /// yet.
    pub(crate) async fn stop(self) -> Result<SyncStatus, slipstream_sync::SyncError> {
        self.stop.cancel();
        self.task.await.unwrap()?;
        Ok(self.follower.status())
    }
}
