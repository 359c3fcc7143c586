//! The API's answers while the node starts: 503, and the current step. Opening a large store takes minutes, and a port
//! that accepts but never answers looks like a node that hangs.

use std::{io, net::SocketAddr, os::fd::AsFd, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{
        HeaderValue, StatusCode,
        header::{CONNECTION, RETRY_AFTER},
    },
    middleware::map_response,
    response::{IntoResponse, Response},
    routing::get,
    serve::Listener,
};
use parking_lot::Mutex;
use slipstream_fair::Vouched;
use tokio::{net::TcpListener, sync::oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    listener::{Limits, SeatedListener},
    page,
};

/// A starting node has few callers, and answers none of them slowly.
const LIMITS: Limits = Limits { calls: 64, spare: 16, reserved: 8, per_address: 16 };

/// The current step of the start.
type Stage = Arc<Mutex<&'static str>>;

/// Answers on a listener until it is ended or dropped.
pub struct Starting {
    stage: Stage,
    stop: DropGuard,
    /// Completes when no more connections are accepted.
    accepting: oneshot::Receiver<()>,
}

impl Starting {
    /// Starts to answer on a second handle to the listener.
    pub fn serve(listener: &TcpListener, vouched: Vouched) -> io::Result<Starting> {
        let copy = std::net::TcpListener::from(listener.as_fd().try_clone_to_owned()?);
        let (accepts, accepting) = oneshot::channel();
        let listener = Ending {
            // A client that is still reading there holds nothing of the node.
            listener: SeatedListener::new(
                TcpListener::from_std(copy)?,
                LIMITS,
                vouched,
                None,
                CancellationToken::new(),
            ),
            _accepts: accepts,
        };
        let stage = Stage::new(Mutex::new("opening the ports"));
        // A start may take minutes. A supervisor that restarts dead nodes must let it finish.
        let live = get(|| async { "ok\n" });
        // The page shows the progress of the start, and then the node, without a reload.
        let page = page::files().route("/", get(page::index).fallback(not_yet));
        let router = Router::new().route("/health/live", live).merge(page).fallback(not_yet);
        let router = router.layer(map_response(closing)).with_state(stage.clone());
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        tokio::spawn(async move { axum::serve(listener, router).with_graceful_shutdown(stopped).await });
        Ok(Starting { stage, stop: stop.drop_guard(), accepting })
    }

    /// Sets the current step.
    pub fn stage(&self, stage: &'static str) {
        *self.stage.lock() = stage;
    }

    /// Leaves all later connections to the node.
    pub async fn end(self) {
        drop(self.stop);
        // Nothing is ever sent; the wait ends when the sender is dropped.
        let _ = self.accepting.await;
    }
}

async fn not_yet(State(stage): State<Stage>) -> impl IntoResponse {
    let text = format!("starting: {}\n", *stage.lock());
    (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")], text)
}

/// Closes the connection, so that the client's next request reaches the node.
async fn closing(mut response: Response) -> Response {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// A listener whose end can be awaited.
struct Ending {
    listener: SeatedListener,
    _accepts: oneshot::Sender<()>,
}

impl Listener for Ending {
    type Io = <SeatedListener as Listener>::Io;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        self.listener.accept().await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };

    use super::*;

    async fn asked(address: SocketAddr, what: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("{what} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    /// Goal: every caller learns the current step of the start, and every connection after its end reaches the node.
    #[tokio::test]
    async fn says_what_it_is_at_until_the_node_answers() {
        let listener = super::super::listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let starting = Starting::serve(&listener, Vouched::default()).unwrap();
        starting.stage("opening the store");
        for what in ["GET /v1/status", "POST /"] {
            let answer = asked(address, what).await;
            assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
            assert!(answer.ends_with("\r\n\r\nstarting: opening the store\n"), "{answer}");
        }
        let page = asked(address, "GET /").await;
        assert!(page.starts_with("HTTP/1.1 200 ") && page.ends_with("</html>\n"), "{page}");
        starting.end().await;
        let client = TcpStream::connect(address).await.unwrap();
        let (_, from) = listener.accept().await.unwrap();
        assert_eq!(from, client.local_addr().unwrap());
    }
}
