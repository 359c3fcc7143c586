//! Goal: a server that sends for ever, or announces more than there is room for, costs a bounded amount, whatever is
//! requested of it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Router,
    body::{Body, Bytes},
    http::{StatusCode, header::CONTENT_LENGTH},
    response::IntoResponse as _,
};
use futures::stream;
use slipstream_archive::{Archive, Location};
use tokio::net::TcpListener;

use super::{server, settings};

/// Bytes that a server may send, beside those that were read, before it notices that the client stopped reading.
const ON_THE_WAY: usize = 16 << 20;
/// More than any address space has.
const ANNOUNCED: u64 = 1 << 56;

#[tokio::test(flavor = "multi_thread")]
async fn endless_answers_end() {
    for status in [StatusCode::OK, StatusCode::FORBIDDEN] {
        let sent = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&sent);
        let router = Router::new().fallback(move || {
            let counted = Arc::clone(&counted);
            let lines = stream::repeat_with(move || {
                counted.fetch_add(1 << 16, Ordering::SeqCst);
                Ok::<_, std::io::Error>(Bytes::from(vec![b'\n'; 1 << 16]))
            });
            async move {
                (status, [(CONTENT_LENGTH, ANNOUNCED.to_string())], Body::from_stream(lines)).into_response()
            }
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move { axum::serve(listener, router).await });
        for url in ["s3://bucket/net".to_owned(), format!("http://{address}/net")] {
            let location: Location = url.parse().unwrap();
            let archive = Archive::open(&location, &settings(server::variables(address))).unwrap();
            let refused = archive.snapshots().await.unwrap_err().to_string();
            assert!(refused.len() < 4_096 && !refused.contains('\n'), "{status} {url}: {refused:?}");
        }
        let sent = sent.load(Ordering::SeqCst);
        assert!(sent < 2 * ON_THE_WAY, "{status}: {sent} bytes");
        serving.abort();
    }
}
