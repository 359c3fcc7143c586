use std::time::Duration;

use slipstream_storage::StorageConfig;
use slipstream_types::SecretKey;

use super::*;

// A peer that disconnects drops the request, not the work behind it: that goes on to count.
#[test]
fn a_dropped_request_holds_its_permit_until_its_work_ends() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let server = SyncServer::new(Store::memory(&StorageConfig::default()));
        let (open, gate) = std::sync::mpsc::channel::<()>();
        // The only thread for such work is taken, so that the request's own work cannot begin.
        let blocker = tokio::task::spawn_blocking(move || gate.recv());
        let payload = codec::encode("request", &Request::Summary).unwrap();
        let request = server.handle(SecretKey::from_seed([1; 32]).public(), payload);
        assert!(tokio::time::timeout(Duration::from_millis(20), request).await.is_err());
        assert_eq!(server.answers.available_permits(), ANSWERS_MAX - 1);
        open.send(()).unwrap();
        blocker.await.unwrap().unwrap();
        let done = server.answers.acquire_many(ANSWERS_MAX as u32);
        assert!(tokio::time::timeout(Duration::from_secs(30), done).await.unwrap().is_ok());
    });
}

/// Goal: who took more than its rate allows is told to come back, and nobody else is.
#[tokio::test]
async fn a_peer_in_debt_is_told_to_come_back() {
    let server = SyncServer::new(Store::memory(&StorageConfig::default()));
    let peer = |id| SecretKey::from_seed([id; 32]).public();
    let ask = async |id| {
        let payload = codec::encode("request", &Request::Summary).unwrap();
        server.handle(peer(id), payload).await.unwrap_err()
    };
    server.shared.meter.charge(peer(1), 8 << 30, Duration::ZERO, Instant::now());
    assert!(ask(1).await.retry_after().is_some());
    let refusal = ask(2).await;
    assert!(refusal.text().contains("no ledger") && refusal.retry_after().is_none(), "{refusal}");
    assert_eq!(server.status().refused_busy, 1);
}
