//! Tests peers that are configured by a name.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    Network,
    tests::{connected, start},
};
use crate::{
    BoxFuture, ContactState, NetworkConfig, PeerHost, PeerId, PeerTarget, Resolver, SystemResolver,
    Transport,
    tests::{Probe, eventually, key, loopback},
};

/// The current addresses of a name, and the number of lookups.
struct Records {
    /// `None` makes lookups wait.
    addresses: Mutex<Option<io::Result<Vec<SocketAddr>>>>,
    asked: AtomicUsize,
}

impl Records {
    fn new(addresses: Option<io::Result<Vec<SocketAddr>>>) -> Arc<Records> {
        Arc::new(Records { addresses: Mutex::new(addresses), asked: AtomicUsize::new(0) })
    }

    fn set(&self, addresses: Vec<SocketAddr>) {
        *self.addresses.lock() = Some(Ok(addresses));
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Resolver for Records {
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        assert_eq!((host, port), ("peer.example", 7400));
        self.asked.fetch_add(1, Ordering::SeqCst);
        let answer = self.addresses.lock().as_ref().map(|answer| match answer {
            Ok(addresses) => Ok(addresses.clone()),
            Err(error) => Err(io::Error::other(error.to_string())),
        });
        Box::pin(async move {
            match answer {
                Some(answer) => answer,
                None => std::future::pending().await,
            }
        })
    }
}

fn named(id: PeerId) -> NetworkConfig {
    let at = PeerHost::Name { host: "peer.example".into(), port: 7400 };
    NetworkConfig { peers: vec![PeerTarget { id, at }], handshake_timeout_ms: 1_500, ..loopback() }
}

async fn follower(n: u8, peer: PeerId, records: &Arc<Records>) -> Arc<Network> {
    Network::start_with(&named(peer), &key(n), Probe::new(), records.clone()).await.unwrap()
}

fn trouble(network: &Network) -> String {
    network.contacts().configured[0].trouble().unwrap_or_default()
}

/// Goal: a name is resolved at each attempt. A record that is first missing and then wrong leads to the peer once it is
/// right, and again after the peer has moved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_changes_is_followed() {
    let (a, _) = start(1, &loopback()).await;
    let records = Records::new(Some(Err(io::Error::other("no such name"))));
    let b = follower(2, a.local(), &records).await;
    eventually("the name is missed", || {
        trouble(&b) == "cannot resolve peer.example: no such name; check the name in network.peers, and this machine's DNS"
    })
    .await;
    assert_eq!(b.contacts().configured[0].state.kind().name(), "unreachable");
    records.set(vec![]);
    eventually("it has no address", || trouble(&b).contains("it has no address that this node can dial"))
        .await;
    records.set(vec!["0.0.0.0:7400".parse().unwrap(), "[::1]:7400".parse().unwrap()]);
    let before = records.asked();
    eventually("nor one that can be dialled", || {
        records.asked() > before + 1 && trouble(&b).contains("that this node can dial")
    })
    .await;

    // If a name has several addresses, the first one that leads to the peer is used, within one attempt.
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap();
    records.set(vec![nobody.local_addr().unwrap(), a.local_address()]);
    connected(&a, &b).await;

    let asked = records.asked();
    a.shutdown().await;
    let (moved, _) = start(1, &loopback()).await;
    records.set(vec![moved.local_address()]);
    connected(&moved, &b).await;
    assert!(records.asked() > asked);
}

/// Goal: a resolver that is wrong or lies leads to no other peer. One that hangs delays only its own lookup.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_record_and_one_that_hangs_harm_nobody() {
    let ((a, _), (other, _)) = (start(1, &loopback()).await, start(3, &loopback()).await);
    let records = Records::new(None);
    let b = follower(2, a.local(), &records).await;
    eventually("it is asked", || records.asked() == 1).await;
    assert_eq!(b.contacts().configured[0].state, ContactState::Connecting);
    // The node accepts connections meanwhile.
    let config = NetworkConfig {
        peers: vec![crate::PeerAddress { id: b.local(), address: b.local_address() }.into()],
        ..loopback()
    };
    let (stranger, _) = start(4, &config).await;
    connected(&stranger, &b).await;
    b.shutdown().await;

    let records = Records::new(Some(Ok(vec![other.local_address()])));
    let b = follower(5, a.local(), &records).await;
    let expected = format!("the node at peer.example:7400 does not have the key {}", a.local());
    eventually("the wrong key is named", || trouble(&b).starts_with(&expected)).await;
    assert!(!b.peers().contains(&other.local()));
}

/// Goal: the system's resolver knows the names that every system knows. A name that cannot exist is an error in bounded
/// time.
#[tokio::test]
async fn the_system_resolves() {
    let resolver = SystemResolver::default();
    let found = resolver.resolve("localhost", 7400).await.unwrap();
    assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 7400), "{found:?}");
    assert!(!found.is_empty());
    // The wait covers a system that asks several unresponsive servers, each for every search domain.
    let missing =
        tokio::time::timeout(Duration::from_secs(300), resolver.resolve("name.invalid", 7400)).await;
    assert!(missing.unwrap().is_err());
}
