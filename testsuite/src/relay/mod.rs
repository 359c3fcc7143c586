//! [`Relay`]: a UDP link between two nodes with chosen delay, jitter, bandwidth and loss, which can be cut.
//!
//! ```text
//!  dialling node ──▶ relay's address ──▶ lane out  ──▶ a socket for this node ──▶ target
//!                ◀──                 ◀── lane back ◀──
//! ```
//!
//! Invariants:
//! * Datagrams of one direction leave in the order in which they came, whatever the jitter.
//! * None leaves early. How late each one left is measured: that is the relay's own overhead.
//! * Memory is bounded: waiting bytes per direction, and dialling addresses per relay.

mod kernel;
mod lane;
mod links;
mod meter;
mod region;
mod session;
mod sidecar;

use std::{
    collections::{HashMap, HashSet},
    fmt, io,
    net::SocketAddr,
    num::NonZeroU64,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::{net::UdpSocket, task::JoinHandle};

pub use links::{Limits, Links, Terrain};
pub use meter::RelayStats;
pub use region::{Region, SOURCE as REGION_SOURCE, table as region_table};
pub use sidecar::{Link, RelayOptions};

use self::{meter::Meter, session::Session};

/// The longest delay of a shape: beyond it nodes have long given the connection up.
const DELAY_MAX: Duration = Duration::from_secs(60);
/// The lowest bandwidth: one full datagram of 1,452 bytes takes one and a half seconds.
const BANDWIDTH_MIN: u64 = 1_000;
/// The highest bandwidth of scenarios and devnets, in KiB per second: higher limits are never reached.
pub(crate) const KIB_PER_SECOND_MAX: u64 = 100 << 20;
/// The most dialling addresses of one relay. A node dials from one; beyond this, the least recently used is evicted.
const SESSIONS_MAX: usize = 64;
/// The longest UDP datagram.
const DATAGRAM_BYTES_MAX: usize = 65_535;

/// The properties of a link, in each of its two directions.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Shape {
    /// The one-way delay: half of a round trip. Together with `jitter` at most 60 s.
    pub delay: Duration,
    /// The maximum additional delay, uniformly distributed; datagrams never overtake each other.
    pub jitter: Duration,
    /// The bandwidth in bytes per second, at least 1,000; unlimited if `None`. A datagram that would wait longer than
    /// 200 ms is dropped.
    pub bandwidth_bytes_per_second: Option<NonZeroU64>,
    /// The share of lost datagrams, from 0 to 1.
    pub loss: f64,
}

impl Shape {
    /// Returns an otherwise perfect link with this round trip.
    pub fn round_trip(round_trip: Duration) -> Shape {
        Shape { delay: round_trip / 2, ..Shape::default() }
    }

    /// Checks that a relay can have this shape.
    ///
    /// # Errors
    /// Names the value that is out of range.
    pub fn check(&self) -> Result<()> {
        let longest = self.delay.saturating_add(self.jitter);
        ensure!(
            longest <= DELAY_MAX,
            "the delay and jitter of a link add up to {} s: at most {} s",
            longest.as_secs(),
            DELAY_MAX.as_secs()
        );
        ensure!((0.0..=1.0).contains(&self.loss), "the loss of a link is from 0 to 1, not {}", self.loss);
        if let Some(bandwidth) = self.bandwidth_bytes_per_second {
            ensure!(
                bandwidth.get() >= BANDWIDTH_MIN,
                "the bandwidth of a link is at least {BANDWIDTH_MIN} bytes per second, not {bandwidth}"
            );
        }
        Ok(())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "delay {:.1} ms", self.delay.as_secs_f64() * 1_000.0)?;
        if !self.jitter.is_zero() {
            write!(f, ", jitter {:.1} ms", self.jitter.as_secs_f64() * 1_000.0)?;
        }
        if let Some(bandwidth) = self.bandwidth_bytes_per_second {
            write!(f, ", {bandwidth} bytes/s")?;
        }
        if self.loss > 0.0 {
            write!(f, ", loss {:.2} %", self.loss * 100.0)?;
        }
        Ok(())
    }
}

/// The settings that a relay's owner changes and its sessions share.
struct Control {
    target: SocketAddr,
    shape: Shape,
    is_cut: bool,
    seed: u64,
    /// The number of sessions made: each has its own random seed.
    made: u64,
    sessions: HashMap<SocketAddr, Arc<Session>>,
}

struct Shared {
    /// The socket that the dialling node sends to and hears from.
    socket: UdpSocket,
    control: Mutex<Control>,
    meter: Mutex<Meter>,
}

/// A running relay. It ends when it is dropped.
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Relay {
    /// Listens on an address, where port 0 means a free one, and relays to the target. Call it within a tokio runtime.
    ///
    /// # Errors
    /// If the shape is impossible or the address is taken.
    pub fn start(listen: SocketAddr, target: SocketAddr, shape: Shape) -> Result<Relay> {
        Relay::start_seeded(listen, target, shape, 0)
    }

    /// As [`Relay::start`]; the seed determines which datagrams are lost, and the jitter of each.
    ///
    /// # Errors
    /// As [`Relay::start`].
    pub fn start_seeded(listen: SocketAddr, target: SocketAddr, shape: Shape, seed: u64) -> Result<Relay> {
        shape.check()?;
        let socket = bind(listen).with_context(|| format!("a relay cannot listen on {listen}"))?;
        let address = socket.local_addr().context("a relay's socket has no address")?;
        let control = Control { target, shape, is_cut: false, seed, made: 0, sessions: HashMap::new() };
        let shared =
            Arc::new(Shared { socket, control: Mutex::new(control), meter: Mutex::new(Meter::default()) });
        let task = tokio::spawn(listen_on(shared.clone()));
        Ok(Relay { address, shared, task })
    }

    /// Returns the address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the shape for future datagrams.
    ///
    /// # Errors
    /// If the shape is impossible.
    pub fn reshape(&self, shape: Shape) -> Result<()> {
        shape.check()?;
        let mut control = self.shared.control.lock();
        control.shape = shape;
        control.sessions.values().for_each(|session| session.reshape(shape));
        Ok(())
    }

    /// Cuts the link, which drops datagrams in flight, or heals it.
    pub fn cut(&self, is_cut: bool) {
        let mut control = self.shared.control.lock();
        control.is_cut = is_cut;
        let dropped: usize = control.sessions.values().map(|session| session.cut(is_cut)).sum();
        self.shared.meter.lock().dropped(dropped);
    }

    /// Relays to another address from now on: a restarted container has a new one.
    pub fn retarget(&self, target: SocketAddr) {
        let mut control = self.shared.control.lock();
        if control.target != target {
            control.target = target;
            for (_, session) in control.sessions.drain() {
                session.end();
            }
        }
    }

    /// Returns its statistics, including its overhead.
    pub fn stats(&self) -> RelayStats {
        RelayStats::of([self])
    }

    /// Adds its counters to a sum.
    fn add_to(&self, sum: &mut Meter) {
        sum.add(&self.shared.meter.lock());
    }

    /// Adds the ports of its sockets.
    fn add_ports(&self, ports: &mut HashSet<u16>) {
        ports.insert(self.address.port());
        ports.extend(self.shared.control.lock().sessions.values().filter_map(|session| session.port()));
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
        for (_, session) in self.shared.control.lock().sessions.drain() {
            session.end();
        }
    }
}

fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = std::net::UdpSocket::bind(address)?;
    kernel::make_room(&socket);
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

async fn listen_on(shared: Arc<Shared>) {
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        // An error here concerns an earlier datagram, or a shortage of memory: the next one may succeed.
        let Ok((length, from)) = shared.socket.recv_from(&mut buffer).await else {
            tokio::task::yield_now().await;
            continue;
        };
        let now = Instant::now();
        if let Some(session) = shared.session(from) {
            session.out(now, &buffer[..length], &shared).await;
        }
    }
}

impl Shared {
    /// Returns the session of a dialling address; `None` if no socket is available, which the dialling node sees as
    /// loss.
    fn session(self: &Arc<Shared>, from: SocketAddr) -> Option<Arc<Session>> {
        let mut control = self.control.lock();
        if let Some(session) = control.sessions.get(&from) {
            return Some(session.clone());
        }
        if control.sessions.len() >= SESSIONS_MAX
            && let Some((oldest, _)) = control.sessions.iter().min_by_key(|(_, session)| session.last_used())
        {
            let oldest = *oldest;
            control.sessions.remove(&oldest)?.end();
        }
        let seed = control.seed.wrapping_add(control.made);
        control.made += 1;
        let session = Session::start(from, control.target, control.shape, control.is_cut, seed, self).ok()?;
        control.sessions.insert(from, session.clone());
        Some(session)
    }
}

#[cfg(test)]
mod tests;
