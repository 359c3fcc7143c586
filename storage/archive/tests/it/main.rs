//! An archive on a real S3 server, on a directory, and read by HTTP.
#![allow(clippy::unwrap_used)] // a panic is how a test fails

mod damage;
mod endless;
mod examples;
mod ledger;
mod lineage;
mod prune;
mod server;

use std::{num::NonZeroUsize, sync::atomic::Ordering, time::Duration};

use slipstream_archive::{
    Archive, ArchiveError, ArchiveSummary, DamagePolicy, ExportReport, Location, Patience, Settings,
};
use slipstream_storage::{StorageConfig, Store, Trust};
use slipstream_types::{BatchNumber, Digest, Waypoint, keccak256};

use ledger::{Ledger, genesis};
use server::Server;

const STAMP: u64 = 1_000;

/// Short timeouts, so that a test gives up on a server that does not answer.
fn settings(variables: Vec<(String, String)>) -> Settings {
    let milliseconds = Duration::from_millis;
    let patience = Patience {
        connect: milliseconds(10_000),
        read: milliseconds(15_000),
        request: milliseconds(60_000),
        retry: milliseconds(6_000),
    };
    Settings { patience, variables }
}

/// A server, its empty archive, and a ledger to export.
async fn stage() -> (Server, Archive, Ledger) {
    let server = Server::start().await;
    let location: Location = "s3://bucket/net/main".parse().unwrap();
    let archive = Archive::open(&location, &settings(server.variables())).unwrap();
    (server, archive, Ledger::new(STAMP))
}

/// Exports the ledger's newest snapshot.
async fn export(archive: &Archive, ledger: &Ledger) -> ExportReport {
    archive.export(&ledger.store, ledger.number()).await.unwrap()
}

fn by_genesis() -> Trust {
    Trust { waypoint: None, genesis: Some(genesis(STAMP)) }
}

fn by_waypoint(waypoint: Waypoint) -> Trust {
    Trust { waypoint: Some(waypoint), genesis: None }
}

async fn verified(archive: &Archive, number: Option<BatchNumber>) -> Result<ArchiveSummary, ArchiveError> {
    std::sync::Arc::new(archive.snapshot(number, &by_genesis()).await?).verify().await
}

/// An empty store, in a directory that is removed with it.
fn empty() -> (Store, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&StorageConfig { fsync: false, ..ledger::config() }, dir.path()).unwrap();
    (store, dir)
}

async fn imported(archive: &Archive, store: &Store, trust: &Trust) -> Result<ArchiveSummary, ArchiveError> {
    std::sync::Arc::new(archive.snapshot(None, trust).await?).import(store).await
}

/// Checks the content of a store that took the ledger's snapshot.
fn check_store(store: &Store, ledger: &Ledger, number: BatchNumber) {
    let header = ledger.store.header(number).unwrap().unwrap();
    assert_eq!(store.head().unwrap().header, header);
    let code = vec![0; 20_000];
    assert_eq!(store.view().unwrap().code(&Digest::from(keccak256(&code))).unwrap().unwrap()[..], code);
    let made = store.create_snapshot().unwrap();
    assert_eq!(made.state_root, header.state_root);
}

/// Goal: a snapshot goes through the bucket unchanged, for a reader that trusts the genesis or its waypoint. A second
/// snapshot of nearly the same state sends only the difference.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_export_sends_what_changed() {
    let (server, archive, mut ledger) = stage().await;
    let first = export(&archive, &ledger).await;
    assert_eq!(first.uploaded, first.summary.pieces + 1, "one pack of codes");
    assert!(first.summary.pieces >= 64 && first.summary.codes == 5, "{first:?}");
    assert_eq!(verified(&archive, None).await.unwrap(), first.summary);

    let again = export(&archive, &ledger).await;
    assert_eq!((again.uploaded, again.summary), (0, first.summary));

    ledger.touch([5, 6, 7]);
    let before = server.faults.written.load(Ordering::SeqCst);
    let second = export(&archive, &ledger).await;
    assert!((1..=3).contains(&second.uploaded), "{second:?}");
    assert_eq!(server.faults.written.load(Ordering::SeqCst) - before, second.uploaded);
    assert!(second.uploaded_bytes < first.uploaded_bytes / 8, "{second:?} after {first:?}");

    let listed: Vec<Waypoint> =
        archive.snapshots().await.unwrap().iter().map(|entry| entry.waypoint()).collect();
    assert_eq!(listed, [2, 1].map(|number| ledger.waypoint(BatchNumber::new(number))));
    for (number, expected) in [(1, first.summary), (2, second.summary)] {
        let number = BatchNumber::new(number);
        assert_eq!(verified(&archive, Some(number)).await.unwrap(), expected);
        let trust = by_waypoint(ledger.waypoint(number));
        let (store, _dir) = empty();
        let snapshot = archive.snapshot(Some(number), &trust).await.unwrap();
        assert_eq!(std::sync::Arc::new(snapshot).import(&store).await.unwrap(), expected);
        check_store(&store, &ledger, number);
        let refused = imported(&archive, &store, &by_genesis()).await.unwrap_err();
        assert!(matches!(refused, ArchiveError::NotFresh { .. }), "{refused}");
    }
}

/// Goal: an export that ends because its server died leaves no snapshot, and the next export uses what was sent.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_export_goes_on() {
    let (server, archive, ledger) = stage().await;
    server.faults.pieces_left.store(20, Ordering::SeqCst);
    let failed = archive.export(&ledger.store, ledger.number()).await.unwrap_err();
    assert!(matches!(failed, ArchiveError::Store { .. }), "{failed}");
    let text = format!("{failed} {failed:?}");
    assert!(text.contains("s3://bucket/net/main") && !text.contains(server::SECRET), "{text}");
    server.faults.revive();
    let none = archive.snapshot(None, &by_genesis()).await.unwrap_err();
    assert!(matches!(none, ArchiveError::NoSnapshot { .. }), "{none}");

    let sent = server.faults.written.load(Ordering::SeqCst);
    assert!((1..=20).contains(&sent), "{sent}");
    let second = export(&archive, &ledger).await;
    assert_eq!(second.uploaded + sent, second.summary.pieces + 1);
    assert_eq!(verified(&archive, None).await.unwrap(), second.summary);
}

/// Goal: an import that ended because its server died continues where it stopped.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_import_goes_on() {
    let (server, archive, ledger) = stage().await;
    export(&archive, &ledger).await;
    let (store, _dir) = empty();
    let snapshot = std::sync::Arc::new(archive.snapshot(None, &by_genesis()).await.unwrap());
    server.faults.objects_left.store(24, Ordering::SeqCst);
    let failed = std::sync::Arc::clone(&snapshot).import(&store).await.unwrap_err();
    assert!(matches!(failed, ArchiveError::Store { .. }), "{failed}");
    assert_eq!(store.head().unwrap().header.number, BatchNumber::GENESIS);

    server.faults.revive();
    let before = server.faults.read.load(Ordering::SeqCst);
    let summary = snapshot.import(&store).await.unwrap();
    let read = server.faults.read.load(Ordering::SeqCst) - before;
    assert!(read < summary.pieces + 1, "{read} objects are read of {}", summary.pieces);
    check_store(&store, &ledger, ledger.number());
}

/// Goal: a slow server costs only time, and a silent one is given up, by name and without its secrets. This test
/// waits longest, and its name makes it begin first.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_answer_is_waited_for_and_silence_is_not() {
    let (server, archive, ledger) = stage().await;
    server.faults.delay_ms.store(100, Ordering::SeqCst);
    let exported = export(&archive, &ledger).await;
    assert_eq!(verified(&archive, None).await.unwrap(), exported.summary);
    server.faults.is_silent.store(true, Ordering::SeqCst);
    // Nothing will come, so there is no reason to wait long.
    let mut settings = settings(server.variables());
    settings.patience.read = Duration::from_secs(3);
    settings.patience.retry = Duration::from_secs(1);
    let archive = Archive::open(&"s3://bucket/net/main".parse().unwrap(), &settings).unwrap();
    let began = tokio::time::Instant::now();
    let failed = archive.snapshots().await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(120), "{failed}");
    let text = format!("{failed} {failed:?}");
    assert!(text.contains("cannot list snapshots in s3://bucket/net/main"), "{text}");
    assert!(!text.contains(server::SECRET), "{text}");
}

/// Goal: wrong credentials are refused at once, and the error hides the key.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_are_refused() {
    let server = Server::start().await;
    let mut settings = settings(server.variables());
    for (name, value) in &mut settings.variables {
        if name == "AWS_SECRET_ACCESS_KEY" {
            *value = "another-secret".into();
        }
    }
    let archive = Archive::open(&"s3://bucket/net".parse().unwrap(), &settings).unwrap();
    let refused = archive.snapshots().await.unwrap_err();
    let text = format!("{refused} {refused:?}");
    assert!(matches!(refused, ArchiveError::Store { .. }), "{text}");
    assert!(!text.contains("another-secret"), "{text}");
}

/// Goal: no error quotes the parts of a request that a server repeats: session token, id of the key, and signed text.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_repeats_credentials_is_not_quoted() {
    const CANARY: &str = "QZXcanary";
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message>\
         <Token-0>{token}</Token-0><AWSAccessKeyId>{CANARY}</AWSAccessKeyId><StringToSign>AWS4-HMAC-SHA256 {CANARY}</StringToSign></Error>",
        token = CANARY.repeat(40)
    );
    let router = axum::Router::new().fallback(move || {
        let body = body.clone();
        async move { (axum::http::StatusCode::BAD_REQUEST, body) }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move { axum::serve(listener, router).await });
    for url in ["s3://bucket/net".to_owned(), format!("http://{address}/net")] {
        let archive = Archive::open(&url.parse().unwrap(), &settings(server::variables(address))).unwrap();
        let refused = archive.snapshots().await.unwrap_err();
        let text = format!("{refused} {refused:?}");
        assert!(!text.contains(CANARY), "{text}");
        assert!(text.contains("400 Bad Request: ExpiredToken: The provided token has expired."), "{text}");
    }
    serving.abort();
}

/// Goal: two ledgers cannot share a prefix, so readers cannot confuse them.
#[tokio::test(flavor = "multi_thread")]
async fn ledgers_are_kept_apart() {
    let (_server, archive, mut ledger) = stage().await;
    export(&archive, &ledger).await;
    let other = Ledger::new(STAMP + 1);
    let refused = archive.export(&other.store, other.number()).await.unwrap_err();
    assert!(matches!(refused, ArchiveError::OtherLedger { .. }), "{refused}");

    let stranger = Trust { waypoint: None, genesis: Some(genesis(STAMP + 1)) };
    let refused = archive.snapshot(None, &stranger).await.unwrap_err();
    assert!(matches!(refused, ArchiveError::Untrusted { .. }), "{refused}");
    let nobody = archive.snapshot(None, &Trust::default()).await.unwrap_err();
    assert!(matches!(nobody, ArchiveError::Untrusted { .. }), "{nobody}");
    // The waypoint of a batch says nothing of a later one.
    ledger.touch([1]);
    export(&archive, &ledger).await;
    let earlier = by_waypoint(ledger.waypoint(BatchNumber::new(1)));
    let refused = archive.snapshot(None, &earlier).await.unwrap_err();
    assert!(matches!(refused, ArchiveError::Untrusted { .. }), "{refused}");
    archive.snapshot(Some(BatchNumber::new(1)), &earlier).await.unwrap();
    // A name that claims the waypoint's batch with another hash is not even read.
    let hash = Digest([1; 32]);
    let wrong = by_waypoint(Waypoint { number: ledger.number(), hash });
    let none = archive.snapshot(Some(ledger.number()), &wrong).await.unwrap_err();
    assert!(matches!(none, ArchiveError::NoSnapshot { .. }), "{none}");
    let missing = archive.export(&ledger.store, BatchNumber::new(99)).await.unwrap_err();
    assert!(matches!(missing, ArchiveError::NotInStore { .. }), "{missing}");
}

/// Goal: a directory is an archive too, and one that is served by HTTP can be read, but not written.
#[tokio::test(flavor = "multi_thread")]
async fn directories_are_archives_and_http_reads_them() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::new(STAMP);
    let none = Settings { patience: Patience::default(), variables: Vec::new() };
    let location: Location = format!("file://{}/new", dir.path().display()).parse().unwrap();
    assert!(matches!(Archive::open(&location, &none), Err(ArchiveError::Open { .. })));
    let archive = Archive::create(&location, &none).unwrap();
    let exported = export(&archive, &ledger).await;
    assert_eq!(verified(&archive, None).await.unwrap(), exported.summary);

    let root = dir.path().join("new");
    let files = axum::Router::new().fallback(move |uri: axum::http::Uri| {
        let path = root.join(uri.path().trim_start_matches('/'));
        async move { std::fs::read(path).map_err(|_| axum::http::StatusCode::NOT_FOUND) }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move { axum::serve(listener, files).await });
    let by_http = Archive::open(&url.parse().unwrap(), &none).unwrap();
    let (store, _dir) = empty();
    assert_eq!(imported(&by_http, &store, &by_genesis()).await.unwrap(), exported.summary);
    check_store(&store, &ledger, ledger.number());
    let refused = by_http.export(&ledger.store, ledger.number()).await.unwrap_err();
    assert!(matches!(refused, ArchiveError::ReadOnly { .. }), "{refused}");
    let refused = by_http.prune(NonZeroUsize::MIN, DamagePolicy::Hold).await.unwrap_err();
    assert!(matches!(refused, ArchiveError::ReadOnly { .. }), "{refused}");
    serving.abort();
}
