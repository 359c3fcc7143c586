//! [`Handshake`]: how a connection becomes a WebSocket (RFC 6455, 4.2). A node offers neither extensions nor
//! subprotocols.
//!
//! The handshake is implemented here and not by `axum`, whose sockets send each message as one frame: see
//! [`Outbox`](super::outbox::Outbox).

use axum::{
    extract::Request,
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode,
        header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE},
    },
    response::{IntoResponse, Response},
};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{handshake::derive_accept_key, protocol::Role, protocol::WebSocketConfig},
};

/// Bytes that are read at once from a socket, in a buffer that it keeps while it is open.
const READ_BYTES: usize = 8 << 10;
/// The only version of the protocol.
const VERSION: &str = "13";

/// A WebSocket on a connection that was HTTP.
pub(super) type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Why a request does not become a socket.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("no WebSocket: the request needs `Connection: Upgrade` and `Upgrade: websocket`")]
    NotAsked,
    #[error("no WebSocket: this node speaks version 13 of the protocol, set `Sec-WebSocket-Version: 13`")]
    Version,
    #[error("no WebSocket: the request has no `Sec-WebSocket-Key`")]
    NoKey,
    #[error("no WebSocket: this connection cannot become one")]
    Fixed,
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let text = format!("{self}\n");
        match self {
            Refused::Version => {
                (StatusCode::UPGRADE_REQUIRED, [(SEC_WEBSOCKET_VERSION, VERSION)], text).into_response()
            }
            _ => (StatusCode::BAD_REQUEST, text).into_response(),
        }
    }
}

/// A request that may become a socket.
pub(super) struct Handshake {
    upgrade: OnUpgrade,
    accept: String,
}

impl Handshake {
    /// # Errors
    /// If the request does not ask for a WebSocket as the RFC requires.
    pub(super) fn read(mut request: Request) -> Result<Handshake, Refused> {
        let accept = accept(request.headers())?;
        let upgrade = request.extensions_mut().remove::<OnUpgrade>().ok_or(Refused::Fixed)?;
        Ok(Handshake { upgrade, accept })
    }

    /// Answers the request, and serves the socket once the answer is sent. Messages and frames have at most
    /// `message_bytes_max` bytes.
    pub(super) fn complete(
        self,
        message_bytes_max: usize,
        serve: impl FnOnce(Socket) + Send + 'static,
    ) -> Response {
        let upgrade = self.upgrade;
        drop(tokio::spawn(async move {
            // Fails if the connection ends before.
            if let Ok(connection) = upgrade.await {
                let config = WebSocketConfig::default()
                    .read_buffer_size(READ_BYTES)
                    .write_buffer_size(super::outbox::WRITE_BYTES)
                    .max_message_size(Some(message_bytes_max))
                    .max_frame_size(Some(message_bytes_max));
                let connection = TokioIo::new(connection);
                serve(WebSocketStream::from_raw_socket(connection, Role::Server, Some(config)).await);
            }
        }));
        let headers = [
            (CONNECTION, "upgrade".to_owned()),
            (UPGRADE, "websocket".to_owned()),
            (SEC_WEBSOCKET_ACCEPT, self.accept),
        ];
        (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
    }
}

/// Computes the answer to a request's key.
fn accept(headers: &HeaderMap) -> Result<String, Refused> {
    let asks = has(headers, &CONNECTION, "upgrade") && has(headers, &UPGRADE, "websocket");
    if !asks {
        return Err(Refused::NotAsked);
    }
    if !has(headers, &SEC_WEBSOCKET_VERSION, VERSION) {
        return Err(Refused::Version);
    }
    let key = headers.get(SEC_WEBSOCKET_KEY).ok_or(Refused::NoKey)?;
    Ok(derive_accept_key(key.as_bytes()))
}

/// Whether a header's list contains this word.
fn has(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    let lists = headers.get_all(name).iter().filter_map(|list: &HeaderValue| list.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|one| one.trim().eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(headers: &[(HeaderName, &'static str)]) -> Result<String, Refused> {
        accept(&headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect())
    }

    /// Goal: the RFC's example gets its answer, lists and letters of any case are accepted, and each missing header is
    /// named.
    #[test]
    fn requests_that_ask_as_the_rfc_says() {
        let asked = [
            (CONNECTION, "keep-alive, Upgrade"),
            (UPGRADE, "WebSocket"),
            (SEC_WEBSOCKET_VERSION, "13"),
            (SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        assert_eq!(accepted(&asked).unwrap(), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        let without = [Refused::NotAsked, Refused::NotAsked, Refused::Version, Refused::NoKey];
        for (index, refused) in without.into_iter().enumerate() {
            let mut rest = asked.to_vec();
            rest.remove(index);
            assert_eq!(accepted(&rest), Err(refused));
        }
        let [connection, upgrade, _, key] = asked;
        let other = [connection, upgrade, (SEC_WEBSOCKET_VERSION, "8"), key];
        let response = accepted(&other).unwrap_err().into_response();
        assert_eq!(
            (response.status(), &response.headers()[SEC_WEBSOCKET_VERSION]),
            (StatusCode::UPGRADE_REQUIRED, &HeaderValue::from_static("13"))
        );
    }
}
