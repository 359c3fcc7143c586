//! The TCP side of the API: bound before anything else is touched, never more than a fixed number of connections, and none
//! that keeps its place without using it.
//!
//! What is scarce is not connections but requests. Whoever connects gets a seat; when all are taken, the one that has asked
//! for nothing for longest is dismissed. Calls are counted apart, when they are read whole: some seats are always left for
//! `/health` and `/metrics`, whatever callers do.

mod connection;
mod seats;

use std::{io, net::SocketAddr, num::NonZeroUsize, sync::Arc};

use axum::{extract::connect_info::Connected, serve::IncomingStream};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

pub(super) use self::seats::Seat;
use self::{connection::Connection, seats::Seats};
use crate::NodeError;

/// Connections beside those that may wait for a call: for operators, and for being told that there is no place for a call.
const SPARE_CONNECTIONS: usize = 16;
/// What is asked of the kernel for each connection's answers. By itself it takes up to 4 MiB, and says so seldom that something
/// was read that a slow reader looks like one that has stopped.
const SEND_BUFFER_BYTES: u32 = 256 << 10;
/// Connections that wait in the kernel's queue, as in the standard library.
const BACKLOG: u32 = 1_024;

/// Binds the API's address.
pub(crate) fn bind(address: SocketAddr) -> Result<TcpListener, NodeError> {
    listen(address).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => NodeError::ApiInUse { address },
        _ => NodeError::ApiBind { address, source },
    })
}

/// What `TcpListener::bind` does, with a send buffer that accepted connections inherit.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A listener that gives each connection a seat, and takes one from another when there is none.
pub(crate) struct Limited {
    listener: TcpListener,
    seats: Arc<Seats>,
}

impl Limited {
    /// For so many calls at a time, and some connections more.
    pub(crate) fn new(listener: TcpListener, calls_max: NonZeroUsize) -> Limited {
        Limited { listener, seats: Seats::new(calls_max.get(), SPARE_CONNECTIONS) }
    }
}

impl axum::serve::Listener for Limited {
    type Io = Connection<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection<TcpStream>, SocketAddr) {
        // The implementation for TcpListener logs and retries errors.
        let (stream, address) = axum::serve::Listener::accept(&mut self.listener).await;
        // Answers are small and waited for; a failure to set this costs latency, nothing else.
        let _ = stream.set_nodelay(true);
        (Connection::new(stream, self.seats.take().await), address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A request knows the seat of its connection.
impl Connected<IncomingStream<'_, Limited>> for Seat {
    fn connect_info(stream: IncomingStream<'_, Limited>) -> Self {
        stream.io().seat().clone()
    }
}
