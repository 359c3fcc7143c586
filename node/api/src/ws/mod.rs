//! JSON-RPC over WebSocket: the same methods and limits as over HTTP, and subscriptions.
//!
//! ```text
//!  GET / or /ws ─▶ host, origin ─▶ a place among the sockets ─▶ session: messages ─▶ JsonRpc ─▶ outbox ─▶ the socket
//!                                                                 └──── subscriptions: step, or work in a lane ────▲
//! ```
//!
//! A socket occupies the seat of its connection and one of a fixed number of places for sockets, shared by address. Its
//! requests queue with those over HTTP, and only one costly request runs at a time. A thread with lower priority than
//! HTTP's assembles and writes its answers and news. They wait in its queue, which is bounded in bytes: while the queue
//! is full, nothing more is produced for the socket.

mod end;
mod handshake;
mod outbox;
mod pages;
mod places;
mod session;
mod thread;

use std::sync::Arc;

use axum::{
    extract::{ConnectInfo, Request, State},
    http::{
        StatusCode,
        header::{ALLOW, UPGRADE},
    },
    response::{IntoResponse, Response},
};

pub(super) use self::places::Sockets;
use self::{handshake::Handshake, session::Session};
use super::{Api, listener::Seat};

/// `GET /ws`, and `GET /` if the client requests it: turns the connection into a WebSocket.
pub(super) async fn upgrade(
    State(api): State<Arc<Api>>,
    ConnectInfo(seat): ConnectInfo<Seat>,
    request: Request,
) -> Response {
    if !request.headers().contains_key(UPGRADE) {
        let text = "send JSON-RPC requests by POST, or over WebSocket\n";
        return (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "POST")], text).into_response();
    }
    if let Err(stranger) = pages::check(request.headers(), api.sockets.are_pages_welcome()) {
        return (StatusCode::FORBIDDEN, format!("{stranger}\n")).into_response();
    }
    let handshake = match Handshake::read(request) {
        Ok(handshake) => handshake,
        Err(refused) => return refused.into_response(),
    };
    let Some(place) = api.sockets.take(seat.origin()) else {
        return api.busy("socket", "too many WebSockets (half of `api.max_connections`)");
    };
    let bytes_max = api.incoming.body_bytes_max();
    let sockets = api.sockets.clone();
    handshake.complete(bytes_max, move |socket| {
        sockets.serve(Session::new(api, seat, place).run(socket));
    })
}
