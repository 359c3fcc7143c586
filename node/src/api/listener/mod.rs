//! The TCP side of the API: bound before anything else is touched, never more than a fixed number of connections, and none
//! that keeps its place without using it.
//!
//! What is scarce is not connections but requests. Whoever connects gets a seat; when all are taken, the one that has asked
//! for nothing for longest is dismissed. Calls are counted apart, when they are read whole: some seats are always left for
//! `/health` and `/metrics`, whatever callers do. One address has a bound of its own, and strangers leave some seats to this
//! machine and to the hosts that the operator named.

mod connection;
mod seats;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{extract::connect_info::Connected, serve::IncomingStream};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    time::{Instant, sleep_until},
};

pub(crate) use self::seats::Limits;
pub(super) use self::seats::Seat;
use self::{connection::Connection, seats::Seats};
use crate::{
    NodeError,
    origin::{Origin, Vouched},
};

/// What is asked of the kernel for each connection's answers. By itself it takes up to 4 MiB, and says so seldom that something
/// was read that a slow reader looks like one that has stopped.
const SEND_BUFFER_BYTES: u32 = 256 << 10;
/// Connections that wait in the kernel's queue, as in the standard library.
const BACKLOG: u32 = 1_024;
/// Connections that are accepted and wait for a seat, all together and of one address, and for how long. Waiting here and not in the
/// kernel's queue, strangers do not stand before the operator.
const WAITING_MAX: usize = 64;
const WAITING_PER_ADDRESS_MAX: usize = 4;
const WAIT_MAX: Duration = Duration::from_secs(5);

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
    vouched: Vouched,
    waiting: Waiting<TcpStream>,
}

impl Limited {
    /// For the operator's own hosts and, within the limits, for others.
    pub(crate) fn new(listener: TcpListener, limits: Limits, vouched: Vouched) -> Limited {
        Limited { listener, seats: Seats::new(limits), vouched, waiting: Waiting::default() }
    }
}

impl axum::serve::Listener for Limited {
    type Io = Connection<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection<TcpStream>, SocketAddr) {
        loop {
            if let Some((seat, stream, address)) = self.waiting.seat_one(&self.seats) {
                return (Connection::new(stream, seat), address);
            }
            let patience = self.waiting.patience();
            tokio::select! {
                // The implementation for TcpListener logs and retries errors.
                (stream, address) = axum::serve::Listener::accept(&mut self.listener) => {
                    // Answers are small and waited for; a failure to set this costs latency, nothing else.
                    let _ = stream.set_nodelay(true);
                    self.waiting.push(stream, address, self.vouched.origin(address.ip()));
                }
                () = self.seats.changed() => {}
                () = sleep_until(patience.unwrap_or_else(Instant::now)), if patience.is_some() => self.waiting.expire(),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Connections that have no seat yet, in the order in which they came. Those that are dropped are closed.
struct Waiting<S>(Vec<Newcomer<S>>);

struct Newcomer<S> {
    stream: S,
    address: SocketAddr,
    origin: Origin,
    until: Instant,
}

impl<S> Default for Waiting<S> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<S> Waiting<S> {
    /// Lets a newcomer wait, unless too many do. The operator's hosts take the place of the last stranger.
    fn push(&mut self, stream: S, address: SocketAddr, origin: Origin) {
        let count = |may: &dyn Fn(Origin) -> bool| self.0.iter().filter(|one| may(one.origin)).count();
        if origin.is_stranger() && count(&|one| one == origin) >= WAITING_PER_ADDRESS_MAX {
            return;
        }
        if self.0.len() >= WAITING_MAX {
            let last = self.0.iter().rposition(|one| one.origin.is_stranger());
            match last.filter(|_| !origin.is_stranger()) {
                Some(index) => drop(self.0.remove(index)),
                None => return,
            }
        }
        self.0.push(Newcomer { stream, address, origin, until: Instant::now() + WAIT_MAX });
    }

    /// The first that gets a seat: the operator's hosts before others.
    fn seat_one(&mut self, seats: &Arc<Seats>) -> Option<(Seat, S, SocketAddr)> {
        for strangers in [false, true] {
            let mut refused = Vec::new();
            for index in 0..self.0.len() {
                let origin = self.0[index].origin;
                if origin.is_stranger() != strangers || refused.contains(&origin) {
                    continue;
                }
                match seats.take(origin) {
                    Ok(seat) => {
                        let Newcomer { stream, address, .. } = self.0.remove(index);
                        return Some((seat, stream, address));
                    }
                    Err(seats::Full) => refused.push(origin),
                }
            }
        }
        None
    }

    /// When the first has waited long enough.
    fn patience(&self) -> Option<Instant> {
        self.0.first().map(|one| one.until)
    }

    fn expire(&mut self) {
        let now = Instant::now();
        self.0.retain(|one| one.until > now);
    }
}

/// A request knows the seat of its connection.
impl Connected<IncomingStream<'_, Limited>> for Seat {
    fn connect_info(stream: IncomingStream<'_, Limited>) -> Self {
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

    /// Goal: strangers without a seat neither stand before the operator nor wait for ever, and are few.
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
        assert_eq!(waiting.0.len(), WAITING_MAX);
        assert_eq!(waiting.0.iter().filter(|one| one.origin == host(3)).count(), WAITING_PER_ADDRESS_MAX);
        assert!(waiting.seat_one(&seats).is_none());
        waiting.push(0, address, Origin::Trusted);
        assert_eq!(waiting.0.len(), WAITING_MAX, "in the place of a stranger");
        let (own, number, _) = waiting.seat_one(&seats).unwrap();
        assert_eq!((number, own.origin()), (0, Origin::Trusted));
        busy[0].leave();
        let (_first, number, _) = waiting.seat_one(&seats).unwrap();
        assert_eq!(number, 3);
        assert!(waiting.patience().is_some());
        tokio::time::advance(WAIT_MAX).await;
        waiting.expire();
        assert!(waiting.0.is_empty() && waiting.patience().is_none());
    }
}
