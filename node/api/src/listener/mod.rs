//! The TCP side of the API. The listener is bound before the node touches anything else, and holds at most a fixed
//! number of connections. An idle connection may lose its seat.
//!
//! Places for requests are scarce; connections are not. Each new connection gets a seat. When all seats are taken, the
//! connection that has been idle longest is dismissed. Calls are counted separately, once they are read completely:
//! some seats always remain for `/health` and `/metrics`, whatever callers do. Some call places always remain for short
//! calls. Each address has its own limit. Some seats are reserved for this machine and for the hosts that the operator
//! named.

mod connection;
mod seats;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{extract::connect_info::Connected, serve::IncomingStream};
use prometheus::IntCounter;
use slipstream_base::NodeError;
use slipstream_fair::{Origin, Vouched};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

pub(crate) use self::seats::Limits;
pub(super) use self::seats::{ANSWER_GRACE, NoPlace, Seat, Weight, at_answer_rate};
use self::{connection::Connection, seats::Seats};

/// The send buffer requested from the kernel for each connection. By default the kernel takes up to 4 MiB, and reports
/// reads so seldom that a slow reader looks like a stopped one.
const SEND_BUFFER_BYTES: u32 = 256 << 10;
/// Maximum number of connections in the kernel's queue, as in the standard library.
const BACKLOG: u32 = 1_024;
/// Maximum number of accepted connections that wait for a seat, in total and of one address, and how long they wait.
/// They wait here instead of in the kernel's queue, so that strangers do not block the operator.
const WAITING_MAX: usize = 64;
const WAITING_PER_ADDRESS_MAX: usize = 4;
const WAIT_MAX: Duration = Duration::from_secs(5);
/// How long accepting pauses after the system failed to accept a connection, mostly for lack of file descriptors.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// Binds the API's address.
pub fn bind(address: SocketAddr) -> Result<TcpListener, NodeError> {
    listen(address).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => NodeError::ApiInUse { address },
        _ => NodeError::ApiBind { address, source },
    })
}

/// Binds as `TcpListener::bind` does, with a send buffer that accepted connections inherit.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A listener that gives each connection a seat, and takes one from another connection when none is free.
pub(crate) struct SeatedListener {
    listener: TcpListener,
    seats: Arc<Seats>,
    vouched: Vouched,
    waiting: Waiting<TcpStream>,
    /// When accepting resumes.
    resumes: Instant,
    /// Counts the connections closed without a seat; `None` for the listener of a starting node.
    refused: Option<IntCounter>,
    /// Ends all connections when the API stops.
    end: CancellationToken,
}

impl SeatedListener {
    /// Creates a listener for the operator's own hosts and, within the limits, for strangers, until `end`.
    pub(crate) fn new(
        listener: TcpListener,
        limits: Limits,
        vouched: Vouched,
        refused: Option<IntCounter>,
        end: CancellationToken,
    ) -> SeatedListener {
        SeatedListener {
            listener,
            seats: Seats::new(limits),
            vouched,
            // Waiting connections use file descriptors that were counted with the seats.
            waiting: Waiting {
                max: WAITING_MAX.min((limits.calls + limits.spare) / 2),
                ..Waiting::default()
            },
            resumes: Instant::now(),
            refused,
            end,
        }
    }

    fn arrived(&mut self, stream: TcpStream, address: SocketAddr) {
        // Answers are small and clients wait for them; a failure to set this costs only latency.
        let _ = stream.set_nodelay(true);
        let closed = self.waiting.push(stream, address, self.vouched.origin(address.ip()));
        self.count_refused(closed.into());
    }

    /// Ignores connections that ended before they were accepted, and pauses after every other error.
    fn failed(&mut self, error: &io::Error) {
        use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
        if matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
            return;
        }
        tracing::error!(%error, "the API cannot accept a connection");
        self.resumes = Instant::now() + REFUSED_PAUSE;
    }

    fn count_refused(&self, connections: usize) {
        if let Some(refused) = &self.refused {
            refused.inc_by(connections as u64);
        }
    }
}

impl axum::serve::Listener for SeatedListener {
    type Io = Connection<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection<TcpStream>, SocketAddr) {
        loop {
            let is_one_leaving = match self.waiting.seat_one(&self.seats) {
                Ok((seat, stream, address)) => {
                    return (Connection::new(stream, seat, self.end.clone()), address);
                }
                Err(is_one_leaving) => is_one_leaving,
            };
            let patience = self.waiting.patience();
            // While seats become free, connections stay in the kernel's queue until their turn. Otherwise the listener
            // accepts connections to find the operator's hosts among them.
            let may_accept = self.waiting.newcomers.len() < self.waiting.max || !is_one_leaving;
            tokio::select! {
                accepted = accept(&self.listener, self.resumes), if may_accept => match accepted {
                    Ok((stream, address)) => self.arrived(stream, address),
                    Err(error) => self.failed(&error),
                },
                () = self.seats.changed(), if !self.waiting.newcomers.is_empty() => {}
                () = sleep_until(patience.unwrap_or_else(Instant::now)), if patience.is_some() => {
                    let closed = self.waiting.expire();
                    self.count_refused(closed);
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

async fn accept(listener: &TcpListener, from: Instant) -> io::Result<(TcpStream, SocketAddr)> {
    sleep_until(from).await;
    listener.accept().await
}

/// Connections without a seat, in order of arrival. Dropping one closes it.
struct Waiting<S> {
    newcomers: Vec<Newcomer<S>>,
    max: usize,
}

struct Newcomer<S> {
    stream: S,
    address: SocketAddr,
    origin: Origin,
    until: Instant,
}

impl<S> Default for Waiting<S> {
    fn default() -> Self {
        Self { newcomers: Vec::new(), max: WAITING_MAX }
    }
}

impl<S> Waiting<S> {
    /// Queues a newcomer, unless too many wait. The operator's hosts displace the last stranger. Returns whether a
    /// connection was closed.
    fn push(&mut self, stream: S, address: SocketAddr, origin: Origin) -> bool {
        let count =
            |may: &dyn Fn(Origin) -> bool| self.newcomers.iter().filter(|one| may(one.origin)).count();
        if origin.is_stranger() && count(&|one| one == origin) >= WAITING_PER_ADDRESS_MAX {
            return true;
        }
        let is_full = self.newcomers.len() >= self.max;
        if is_full {
            let last = self.newcomers.iter().rposition(|one| one.origin.is_stranger());
            match last.filter(|_| !origin.is_stranger()) {
                Some(index) => drop(self.newcomers.remove(index)),
                None => return true,
            }
        }
        self.newcomers.push(Newcomer { stream, address, origin, until: Instant::now() + WAIT_MAX });
        is_full
    }

    /// Seats the first connection that gets a seat, the operator's hosts before others. Otherwise returns whether a
    /// connection was leaving when the seat was requested: if it has left since then, a seat is free.
    fn seat_one(&mut self, seats: &Arc<Seats>) -> Result<(Seat, S, SocketAddr), bool> {
        let mut is_one_leaving = false;
        for strangers in [false, true] {
            let mut refused = Vec::new();
            for index in 0..self.newcomers.len() {
                let origin = self.newcomers[index].origin;
                if origin.is_stranger() != strangers || refused.contains(&origin) {
                    continue;
                }
                let full = match seats.take(origin) {
                    Ok(seat) => {
                        let Newcomer { stream, address, .. } = self.newcomers.remove(index);
                        return Ok((seat, stream, address));
                    }
                    Err(full) => full,
                };
                is_one_leaving |= full.is_one_leaving;
                if !full.is_of_address {
                    // The other strangers would be refused as well, and each attempt takes time.
                    break;
                }
                refused.push(origin);
            }
        }
        Err(is_one_leaving)
    }

    /// When the first connection has waited long enough.
    fn patience(&self) -> Option<Instant> {
        self.newcomers.first().map(|one| one.until)
    }

    /// Closes the connections that have waited long enough, and returns their number.
    fn expire(&mut self) -> usize {
        let (now, before) = (Instant::now(), self.newcomers.len());
        self.newcomers.retain(|one| one.until > now);
        before - self.newcomers.len()
    }
}

/// Gives a request access to the seat of its connection.
impl Connected<IncomingStream<'_, SeatedListener>> for Seat {
    fn connect_info(stream: IncomingStream<'_, SeatedListener>) -> Self {
        stream.io().seat().clone()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn host(number: u8) -> Origin {
        Origin::V4(Ipv4Addr::new(192, 0, 2, number))
    }

    /// Goal: strangers without a seat wait behind the operator, for a bounded time and in bounded number.
    #[tokio::test(start_paused = true)]
    async fn newcomers_wait_for_a_moment_and_the_operator_goes_first() {
        let address = SocketAddr::from(([192, 0, 2, 1], 1));
        let seats = Seats::new(Limits { calls: 2, spare: 1, reserved: 1, per_address: 8 });
        let busy: Vec<_> = (1..=2).map(|number| seats.take(host(number)).unwrap()).collect();
        busy.iter().for_each(Seat::working);
        let mut waiting = Waiting::default();
        for number in 3..=100 {
            waiting.push(number, address, host(3));
            waiting.push(number, address, host(number));
        }
        assert_eq!(waiting.newcomers.len(), WAITING_MAX);
        assert_eq!(
            waiting.newcomers.iter().filter(|one| one.origin == host(3)).count(),
            WAITING_PER_ADDRESS_MAX
        );
        assert!(matches!(waiting.seat_one(&seats), Err(false)), "all work");
        waiting.push(0, address, Origin::Trusted);
        assert_eq!(waiting.newcomers.len(), WAITING_MAX, "in the place of a stranger");
        let (own, number, _) = waiting.seat_one(&seats).unwrap();
        assert_eq!((number, own.origin()), (0, Origin::Trusted));
        busy[0].leave();
        let (_first, number, _) = waiting.seat_one(&seats).unwrap();
        assert_eq!(number, 3);
        assert!(waiting.patience().is_some());
        tokio::time::advance(WAIT_MAX).await;
        assert_eq!(waiting.expire(), WAITING_MAX - 2);
        assert!(waiting.newcomers.is_empty() && waiting.patience().is_none());
    }

    /// Goal: waiting connections are admitted one after the other, and none is closed over a seat that becomes free at
    /// that moment.
    #[tokio::test(start_paused = true)]
    async fn a_seat_that_becomes_free_is_waited_for() {
        let address = SocketAddr::from(([192, 0, 2, 1], 1));
        let seats = Seats::new(Limits { calls: 2, spare: 1, reserved: 1, per_address: 8 });
        let silent: Vec<_> = (1..=2).map(|number| seats.take(host(number)).unwrap()).collect();
        let mut waiting = Waiting::default();
        waiting.push(3, address, host(3));
        let looked = waiting.seat_one(&seats);
        // The dismissed connection leaves before the listener waits for the next change.
        silent[0].leave();
        assert!(matches!(looked, Err(true)));
        tokio::time::timeout(WAIT_MAX, seats.changed()).await.unwrap();
        assert!(matches!(waiting.seat_one(&seats), Ok((_, 3, _))));
    }
}
