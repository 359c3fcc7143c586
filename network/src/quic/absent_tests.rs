//! Tests a peer that is silent for a while. Tests begin in the order of their names: this one waits longest, so its
//! name puts it first.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::{Instant, sleep};

use super::tests::{Relay, connected, start};
use crate::{
    NetworkConfig, NetworkError, PeerAddress, Transport,
    tests::{LIMITS, WAIT, eventually, loopback},
};

/// Waits for `time`. Returns whether this process itself was suspended for a second meanwhile, so that no keep-alive
/// was sent.
async fn stood_during(time: Duration) -> bool {
    let (began, mut looked, mut stood) = (Instant::now(), Instant::now(), false);
    while began.elapsed() < time {
        sleep(Duration::from_millis(20)).await;
        stood |= looked.elapsed() > Duration::from_secs(1);
        looked = Instant::now();
    }
    stood
}

// Goal: a peer that vanishes without a goodbye is noticed within the idle timeout, and reconnects by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_peer_is_noticed() {
    let times = NetworkConfig { idle_timeout_ms: 4_000, keep_alive_interval_ms: 100, ..loopback() };
    let (a, probe_a) = start(1, &times).await;
    let relay = Relay::start(a.local_address(), true).await;
    let peers = vec![PeerAddress { id: a.local(), address: relay.address }.into()];
    let (b, _) = start(2, &NetworkConfig { peers, ..times }).await;
    connected(&a, &b).await;
    for _ in 0..10 {
        if !stood_during(Duration::from_secs(5)).await {
            break;
        }
        connected(&a, &b).await;
    }
    assert!(!a.peers().is_empty() && !b.peers().is_empty(), "keep-alives keep a quiet connection");
    let asking = tokio::spawn({
        let (b, id) = (b.clone(), a.local());
        async move { b.request(id, WAIT, vec![], LIMITS).await }
    });
    eventually("in flight", || probe_a.started() == 1).await;
    relay.dropping.store(true, Ordering::SeqCst);
    let cut = Instant::now();
    eventually("both notice", || a.peers().is_empty() && b.peers().is_empty()).await;
    // Long before the request's own deadline.
    assert!(cut.elapsed() < Duration::from_secs(30), "{:?}", cut.elapsed());
    assert!(matches!(asking.await.unwrap(), Err(NetworkError::Closed { .. })));
    relay.dropping.store(false, Ordering::SeqCst);
    connected(&a, &b).await;
}
