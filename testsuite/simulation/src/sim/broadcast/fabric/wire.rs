//! [`Wire`]: datagrams between nodes in virtual time, and the [`Plug`] that quinn takes for a socket.
//!
//! ```text
//!  try_send ─▶ up-link: one at a time, drops what would wait too long ─▶ latency ─▶ down-link ─▶ poll_recv
//! ```
//!
//! Everything follows from the order of calls, which a runtime of one thread under a paused clock repeats.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, IoSliceMut},
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;
use quinn::{
    AsyncUdpSocket, UdpPoller,
    udp::{RecvMeta, Transmit},
};
use tokio::{
    sync::Notify,
    time::{Duration, Instant, sleep_until},
};

use super::super::{scenario::Scenario, topology::Topology};

/// Bytes of the IPv4 and UDP headers of a datagram.
const HEADER_BYTES: usize = 28;
/// The longest wait in an up-link's queue: a little more than the longest round trip.
const QUEUE: Duration = Duration::from_millis(350);
const PORT: u16 = 9_000;

/// Returns the address of a node: each is in its own network, as in the real world.
pub(super) fn address(node: usize) -> SocketAddr {
    (Ipv4Addr::new(20 + node as u8, 7, 7, 7), PORT).into()
}

fn node_of(address: SocketAddr) -> Option<usize> {
    match address {
        SocketAddr::V4(address) => usize::from(address.ip().octets()[0]).checked_sub(20),
        SocketAddr::V6(_) => None,
    }
}

struct Datagram {
    from: usize,
    to: usize,
    content: Vec<u8>,
}

#[derive(Default)]
struct End {
    up_free: Option<Instant>,
    down_free: Option<Instant>,
    arrived: VecDeque<(usize, Vec<u8>)>,
    reader: Option<Waker>,
    bytes_sent: u64,
}

#[derive(Default)]
struct Inner {
    ends: Vec<End>,
    /// Datagrams in flight, by arrival time.
    ways: BinaryHeap<Reverse<(Instant, u64)>>,
    datagrams: std::collections::BTreeMap<u64, (Datagram, bool)>,
    count: u64,
    dropped: u64,
    trace: DefaultHasher,
}

/// The wires between all nodes.
pub(super) struct Wire {
    topology: Topology,
    uplink_bits_per_second: u64,
    began: Instant,
    inner: Mutex<Inner>,
    changed: Notify,
}

impl Wire {
    pub(super) fn new(scenario: &Scenario, topology: Topology) -> Arc<Wire> {
        let ends = (0..scenario.nodes).map(|_| End::default()).collect();
        Arc::new(Wire {
            topology,
            uplink_bits_per_second: scenario.uplink_bits_per_second,
            began: Instant::now(),
            inner: Mutex::new(Inner { ends, ..Inner::default() }),
            changed: Notify::new(),
        })
    }

    pub(super) fn plug(self: &Arc<Wire>, node: usize) -> Arc<Plug> {
        Arc::new(Plug { wire: self.clone(), node })
    }

    pub(super) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns the bytes that a node sent so far.
    pub(super) fn bytes_sent(&self, node: usize) -> u64 {
        self.inner.lock().ends[node].bytes_sent
    }

    /// Returns a digest of all traffic: equal for two runs that sent the same datagrams at the same times.
    pub(super) fn trace(&self) -> u64 {
        self.inner.lock().trace.finish()
    }

    /// Returns the number of sent datagrams, and how many of them an up-link dropped.
    pub(super) fn counts(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.count, inner.dropped)
    }

    /// Carries datagrams forever.
    pub(super) async fn carry(self: Arc<Wire>) {
        loop {
            let next = self.move_on(Instant::now());
            let idle = Instant::now() + Duration::from_secs(3_600);
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                () = sleep_until(next.unwrap_or(idle)) => {}
            }
        }
    }

    fn takes(&self, bytes: usize, times: u64) -> Duration {
        let bits = (bytes + HEADER_BYTES) as u64 * 8;
        Duration::from_nanos(bits * 1_000_000_000 / (self.uplink_bits_per_second * times))
    }

    fn send(&self, datagram: Datagram) {
        let now = Instant::now();
        let Datagram { from, to, content } = &datagram;
        let inner = &mut *self.inner.lock();
        let bytes = content.len() + HEADER_BYTES;
        ((now - self.began).as_nanos(), from, to, bytes).hash(&mut inner.trace);
        let end = &mut inner.ends[*from];
        end.bytes_sent += bytes as u64;
        let begins = end.up_free.map_or(now, |free| free.max(now));
        inner.count += 1;
        if begins - now > QUEUE {
            inner.dropped += 1;
            return;
        }
        let sent = begins + self.takes(content.len(), 1);
        end.up_free = Some(sent);
        let arrives = sent + self.topology.latency(*from, *to);
        inner.ways.push(Reverse((arrives, inner.count)));
        inner.datagrams.insert(inner.count, (datagram, false));
        self.changed.notify_one();
    }

    /// Does the work that is due; returns the time at which the next work is due.
    fn move_on(&self, now: Instant) -> Option<Instant> {
        let inner = &mut *self.inner.lock();
        while let Some(Reverse((at, number))) = inner.ways.peek().copied() {
            if at > now {
                return Some(at);
            }
            inner.ways.pop();
            let Some((datagram, is_through)) = inner.datagrams.remove(&number) else { continue };
            let end = &mut inner.ends[datagram.to];
            if is_through {
                end.arrived.push_back((datagram.from, datagram.content));
                if let Some(reader) = end.reader.take() {
                    reader.wake();
                }
                continue;
            }
            let begins = end.down_free.map_or(at, |free| free.max(at));
            let through = begins + self.takes(datagram.content.len(), 2);
            end.down_free = Some(through);
            inner.ways.push(Reverse((through, number)));
            inner.datagrams.insert(number, (datagram, true));
        }
        None
    }
}

/// A node's end of the wire.
pub(super) struct Plug {
    wire: Arc<Wire>,
    node: usize,
}

impl fmt::Debug for Plug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plug").field("node", &self.node).finish_non_exhaustive()
    }
}

impl AsyncUdpSocket for Plug {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        // A datagram to a missing node is silently lost, as on a real network.
        let there = node_of(transmit.destination).filter(|to| self.wire.inner.lock().ends.len() > *to);
        if let Some(to) = there {
            self.wire.send(Datagram { from: self.node, to, content: transmit.contents.to_vec() });
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let end = &mut self.wire.inner.lock().ends[self.node];
        let mut count = 0;
        for (buffer, meta) in bufs.iter_mut().zip(meta) {
            let Some((from, content)) = end.arrived.pop_front() else { break };
            buffer[..content.len()].copy_from_slice(&content);
            let (len, addr) = (content.len(), address(from));
            *meta = RecvMeta { addr, len, stride: len, ..RecvMeta::default() };
            count += 1;
        }
        if count == 0 {
            end.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(address(self.node))
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct AlwaysWritable;

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
