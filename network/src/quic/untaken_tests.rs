//! Tests broadcasts to peers that do not receive them: the memory that they hold, and for how long.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use quinn::{TransportConfig, VarInt};
use tokio::time::sleep;

use super::{
    Network,
    tests::{Raw, address_of, connected, dialling, free_address, start},
};
use crate::{
    Bytes, NetworkConfig, PeerAddress, PeerId, PeerRejection, Priority, Transport,
    tests::{eventually, key, loopback},
};

const MIB: usize = 1 << 20;

/// A message that is counted while any part of the program holds it.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(self.0.len(), Ordering::SeqCst);
    }
}

fn message(bytes: usize, live: &Arc<AtomicUsize>) -> Bytes {
    live.fetch_add(bytes, Ordering::SeqCst);
    Bytes::from_owner(Counted(vec![7; bytes], live.clone()))
}

/// A client that accepts this number of streams, and reads next to nothing from them.
async fn unreading(host: &str, n: u8, streams: u8, target: PeerAddress) -> Raw {
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(VarInt::from_u32(1_000)).receive_window(VarInt::from_u32(64_000));
    transport.max_concurrent_uni_streams(streams.into());
    transport.keep_alive_interval(Some(Duration::from_millis(200)));
    Raw::connect_from(SocketAddr::new(host.parse().unwrap(), 0), n, target, transport).await
}

fn count(network: &Network, reason: PeerRejection) -> u64 {
    network.rejections().into_iter().find(|(it, _)| *it == reason).map_or(0, |(_, count)| count)
}

// Goal: broadcasts that peers leave unread, on streams or before one opens, have one bound over all connections.
// Configured peers get theirs meanwhile. The stalled connections end, and their broadcasts are freed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broadcasts_that_nobody_takes_are_bounded_and_end_their_connections() {
    let friend = PeerAddress { id: key(2).public(), address: free_address() };
    let config = NetworkConfig {
        bytes_in_flight_total_max: 256 * MIB,
        transfer_timeout_ms: 12_000,
        ..dialling(vec![friend])
    };
    let (a, _) = start(1, &config).await;
    let mut greedy = Vec::new();
    for n in 0..6 {
        greedy.push(
            unreading(&format!("127.9.{n}.1"), 10 + n, if n < 3 { 100 } else { 0 }, address_of(&a)).await,
        );
    }
    let config = NetworkConfig { listen: friend.address, ..dialling(vec![address_of(&a)]) };
    let (friend, probe) = start(2, &config).await;
    connected(&a, &friend).await;
    eventually("all are in", || a.peers().len() == 7).await;
    let live = Arc::new(AtomicUsize::new(0));
    let strangers: Vec<PeerId> = (10..16).map(|n| key(n).public()).collect();
    let mut most = 0;
    for _ in 0..40 {
        for stranger in &strangers {
            a.send(*stranger, message(MIB, &live), Priority::Second);
        }
        most = most.max(live.load(Ordering::SeqCst));
        sleep(Duration::from_millis(5)).await;
    }
    // Half of the total, of which strangers leave a quarter; and the broadcast that is being pushed.
    assert!((64 * MIB..=97 * MIB).contains(&most), "{} MiB were held", most / MIB);
    assert!(count(&a, PeerRejection::BroadcastUnsent) > 0);
    a.send(friend.local(), vec![9; 8 * MIB].into(), Priority::Third);
    eventually("the configured peer has its own", || probe.broadcasts.lock().len() == 1).await;
    for raw in &greedy {
        let end = raw.connection.closed().await.to_string();
        assert!(end.contains("did not take broadcasts"), "{end}");
    }
    eventually("nothing of it is held", || live.load(Ordering::SeqCst) == 0).await;
    assert!(count(&a, PeerRejection::BroadcastUntaken) >= 6);
    eventually("they are gone", || a.peers() == [friend.local()]).await;

    // Under another key the same address gets no long broadcasts for a while; another address does.
    let fresh = [
        unreading("127.9.0.1", 20, 100, address_of(&a)).await,
        unreading("127.9.9.1", 21, 100, address_of(&a)).await,
    ];
    eventually("they are in", || a.peers().len() == 3).await;
    let held = [20, 21].map(|n| {
        a.send(key(n).public(), message(MIB, &live), Priority::Second);
        live.load(Ordering::SeqCst)
    });
    assert_eq!(held, [0, MIB]);
    drop(fresh);
}

// Goal: a stranger that receives its broadcasts, sometimes slowly, is not taken for one that does not. The broadcasts
// are freed once it has them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broadcasts_that_are_taken_are_let_go() {
    let (a, _) = start(1, &NetworkConfig { transfer_timeout_ms: 12_000, ..loopback() }).await;
    let (b, probe) = start(2, &dialling(vec![address_of(&a)])).await;
    connected(&a, &b).await;
    let live = Arc::new(AtomicUsize::new(0));
    for n in 1..=3 {
        for _ in 0..20 {
            a.send(b.local(), message(MIB, &live), Priority::Second);
        }
        eventually("it has them", || probe.broadcasts.lock().len() == 20 * n).await;
        eventually("they are let go", || live.load(Ordering::SeqCst) == 0).await;
    }
    sleep(Duration::from_secs(4)).await;
    assert_eq!(a.peers(), [b.local()]);
    assert_eq!(count(&a, PeerRejection::BroadcastUntaken) + count(&a, PeerRejection::BroadcastUnsent), 0);
}
