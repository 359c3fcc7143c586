//! [`Relay`]: a link with latency. UDP datagrams that come in on one side go out on the other after a fixed time, in
//! order. A node that dials the relay's address reaches its target. Bandwidth is unlimited unless set.
//!
//! It has its own thread, so that a busy harness does not add to the delay. It moves trains of datagrams as the kernel
//! delivers them (GRO in, GSO out), so that it uses little of the CPU under measurement. It reports its own CPU time.

mod socket;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::socket::{Buffers, Received, Socket, Train};
use slipnet::cpu;

/// The most trains in flight, 512 MiB at most. More are dropped, as in a link's queue.
const TRAINS_MAX: usize = 8_192;
/// The longest queue of a link with limited bandwidth. Later datagrams are dropped, as by a router with a full buffer.
const QUEUE_MAX: Duration = Duration::from_millis(100);
/// The most dialling sockets that the relay distinguishes; further ones are not served.
const DIALLERS_MAX: usize = 256;
/// How often the thread records its CPU time.
const CPU_INTERVAL: Duration = Duration::from_millis(10);

/// A running relay; it ends when it is dropped.
pub(crate) struct Relay {
    address: SocketAddr,
    counters: Arc<Counters>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Counters {
    cpu_ns: AtomicU64,
    dropped: AtomicU64,
    bytes: AtomicU64,
    one_way_ns: AtomicU64,
    /// The limit of each direction; 0 is unlimited.
    bytes_per_s: AtomicU64,
}

impl Relay {
    /// Starts a relay to `target` that delays every datagram by `one_way`, in both directions.
    ///
    /// # Errors
    /// If a socket cannot be opened.
    pub(crate) fn start(target: SocketAddr, one_way: Duration) -> Result<Relay> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let front = {
            let _inside = runtime.enter();
            Arc::new(Socket::open().context("cannot open the relay's socket")?)
        };
        let address = front.local_address()?;
        let (counters, stop) = (Arc::new(Counters::default()), CancellationToken::new());
        counters.one_way_ns.store(one_way.as_nanos() as u64, Relaxed);
        let (counted, stopped) = (counters.clone(), stop.clone());
        let work = move || {
            runtime.block_on(async move {
                tokio::select! {
                    () = stopped.cancelled() => {}
                    () = run(front, target, &counted) => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name("relay".into()).spawn(work)?;
        Ok(Relay { address, counters, stop, thread: Some(thread) })
    }

    /// Returns the address to dial instead of the target.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the latency from now on. Datagrams in flight are not overtaken.
    pub(crate) fn set_one_way(&self, one_way: Duration) {
        self.counters.one_way_ns.store(one_way.as_nanos() as u64, Relaxed);
    }

    /// Sets the bytes per second in each direction from now on.
    pub(crate) fn set_bandwidth(&self, bytes_per_s: u64) {
        self.counters.bytes_per_s.store(bytes_per_s, Relaxed);
    }

    /// Returns the bytes of the datagrams so far, in both directions.
    pub(crate) fn bytes(&self) -> u64 {
        self.counters.bytes.load(Relaxed)
    }

    /// Returns the relay's CPU seconds so far.
    pub(crate) fn cpu_s(&self) -> f64 {
        self.counters.cpu_ns.load(Relaxed) as f64 / 1e9
    }

    /// Returns the number of trains that were dropped because of a full queue.
    pub(crate) fn dropped(&self) -> u64 {
        self.counters.dropped.load(Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic was printed by its own thread.
            let _ = thread.join();
        }
    }
}

async fn run(front: Arc<Socket>, target: SocketAddr, counters: &Arc<Counters>) {
    let line = || {
        let (line, trains) = mpsc::channel(TRAINS_MAX);
        (Line { trains: line, counters: counters.clone(), free_at: Arc::default() }, trains)
    };
    let ((there, trains_there), (back, trains_back)) = (line(), line());
    tokio::join!(
        accept(front, target, there, back),
        deliver(trains_there),
        deliver(trains_back),
        note_cpu(counters)
    );
}

async fn note_cpu(counters: &Counters) {
    loop {
        counters.cpu_ns.store((cpu::of_this_thread() * 1e9) as u64, Relaxed);
        tokio::time::sleep(CPU_INTERVAL).await;
    }
}

/// The queue of one direction.
#[derive(Clone)]
struct Line {
    trains: mpsc::Sender<Train>,
    counters: Arc<Counters>,
    /// When the last train has left the link, if bandwidth is limited.
    free_at: Arc<Mutex<Option<Instant>>>,
}

impl Line {
    fn enter(&self, received: Received<'_>, from: &Arc<Socket>, to: SocketAddr) {
        self.counters.bytes.fetch_add(received.bytes.len() as u64, Relaxed);
        let Some(through) = self.through(received.bytes.len()) else {
            self.counters.dropped.fetch_add(1, Relaxed);
            return;
        };
        let train = Train {
            bytes: received.bytes.to_vec(),
            stride: received.meta.stride,
            ecn: received.meta.ecn,
            due: through + Duration::from_nanos(self.counters.one_way_ns.load(Relaxed)),
            from: from.clone(),
            to,
        };
        if self.trains.try_send(train).is_err() {
            self.counters.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Returns when these bytes have left the link; `None` if the queue is too full for them.
    fn through(&self, bytes: usize) -> Option<Instant> {
        let (now, rate) = (Instant::now(), self.counters.bytes_per_s.load(Relaxed));
        if rate == 0 {
            return Some(now);
        }
        let mut free_at = self.free_at.lock();
        let begin = free_at.map_or(now, |free_at| free_at.max(now));
        if begin - now > QUEUE_MAX {
            return None;
        }
        let through = begin + Duration::from_secs_f64(bytes as f64 / rate as f64);
        *free_at = Some(through);
        Some(through)
    }
}

/// Delivers trains in order: all trains of a direction have the same delay, so one queue suffices.
async fn deliver(mut trains: mpsc::Receiver<Train>) {
    while let Some(train) = trains.recv().await {
        if train.due > Instant::now() {
            tokio::time::sleep_until(train.due.into()).await;
        }
        // A datagram that cannot be sent is lost.
        let _ = train.from.send(&train).await;
    }
}

/// Receives datagrams from dialling sockets. Each gets its own socket towards the target, so that answers find the way
/// back.
async fn accept(front: Arc<Socket>, target: SocketAddr, there: Line, back: Line) {
    let mut towards: HashMap<SocketAddr, Arc<Socket>> = HashMap::new();
    let mut buffers = Buffers::new();
    loop {
        let receive = |received: Received<'_>| {
            let dialler = received.meta.addr;
            if !towards.contains_key(&dialler) {
                let Some(socket) = (towards.len() < DIALLERS_MAX).then(|| Socket::open().ok()).flatten()
                else {
                    return;
                };
                let socket = Arc::new(socket);
                tokio::spawn(answer(socket.clone(), front.clone(), dialler, back.clone()));
                towards.insert(dialler, socket);
            }
            there.enter(received, &towards[&dialler], target);
        };
        if front.receive(&mut buffers, receive).await.is_err() {
            return;
        }
    }
}

async fn answer(socket: Arc<Socket>, front: Arc<Socket>, dialler: SocketAddr, line: Line) {
    let mut buffers = Buffers::new();
    while socket.receive(&mut buffers, |received| line.enter(received, &front, dialler)).await.is_ok() {}
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::net::UdpSocket;

    use super::*;

    /// Few enough for the default buffer of a socket.
    const DATAGRAMS: u32 = 50;

    async fn bound() -> UdpSocket {
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap()
    }

    async fn number(socket: &UdpSocket) -> (u32, SocketAddr) {
        let mut buffer = [0; 1_500];
        let (len, from) = tokio::time::timeout(Duration::from_secs(60), socket.recv_from(&mut buffer))
            .await
            .unwrap()
            .unwrap();
        assert!(len >= 4);
        (u32::from_le_bytes(buffer[..4].try_into().unwrap()), from)
    }

    /// Goal: both directions keep the order, nothing arrives early, and each dialling socket gets its own answers.
    #[tokio::test(flavor = "multi_thread")]
    async fn datagrams_come_in_order_and_not_before_their_time() {
        let one_way = Duration::from_millis(40);
        let target = bound().await;
        let relay = Relay::start(target.local_addr().unwrap(), one_way).unwrap();
        let (dialler, other) = (bound().await, bound().await);
        for socket in [&dialler, &other] {
            socket.connect(relay.address()).await.unwrap();
        }
        let begin = Instant::now();
        for index in 0..DATAGRAMS {
            // Different sizes, so that they do not form one train.
            let mut datagram = vec![7; 4 + (index as usize * 37) % 1_200];
            datagram[..4].copy_from_slice(&index.to_le_bytes());
            dialler.send(&datagram).await.unwrap();
        }
        let mut way_back = None;
        for index in 0..DATAGRAMS {
            let (found, from) = number(&target).await;
            assert_eq!(found, index);
            assert!(begin.elapsed() >= one_way, "{:?}", begin.elapsed());
            way_back = Some(from);
        }
        other.send(&1_000u32.to_le_bytes()).await.unwrap();
        let (found, from) = number(&target).await;
        assert_eq!(found, 1_000);
        assert_ne!(Some(from), way_back);

        let begin = Instant::now();
        for index in 0..DATAGRAMS {
            target.send_to(&index.to_le_bytes(), way_back.unwrap()).await.unwrap();
        }
        for index in 0..DATAGRAMS {
            assert_eq!(number(&dialler).await.0, index);
        }
        let took = begin.elapsed();
        assert!(took >= one_way && took < Duration::from_secs(60), "{took:?}");
        assert_eq!(relay.dropped(), 0);
        while relay.cpu_s() == 0.0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Goal: each direction carries its own bandwidth, and bytes beyond its queue are dropped.
    #[tokio::test(flavor = "multi_thread")]
    async fn bandwidth_is_what_was_set() {
        const BYTES: usize = 1_000;
        /// The silence after which nothing more comes, however busy the machine is.
        const SILENCE: Duration = Duration::from_secs(2);
        let target = bound().await;
        let relay = Relay::start(target.local_addr().unwrap(), Duration::ZERO).unwrap();
        relay.set_bandwidth(20 * BYTES as u64);
        let dialler = bound().await;
        let begin = Instant::now();
        // The queue holds a tenth of a second, which is two datagrams, plus the one in flight.
        for _ in 0..DATAGRAMS {
            dialler.send_to(&[7; BYTES], relay.address()).await.unwrap();
            // A pause, so that each is its own train.
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        let mut came = 0;
        let mut buffer = [0; BYTES];
        while let Ok(received) = tokio::time::timeout(SILENCE, target.recv_from(&mut buffer)).await {
            received.unwrap();
            came += 1;
        }
        let took = begin.elapsed() - SILENCE;
        assert!(relay.dropped() > 0 && came < DATAGRAMS, "{came}");
        assert!(took >= Duration::from_millis(50) * (came - 1), "{came} in {took:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn without_a_delay_a_relay_adds_next_to_nothing() {
        let target = bound().await;
        let relay = Relay::start(target.local_addr().unwrap(), Duration::ZERO).unwrap();
        let dialler = bound().await;
        let mut least = Duration::MAX;
        for index in 0..DATAGRAMS {
            let begin = Instant::now();
            dialler.send_to(&index.to_le_bytes(), relay.address()).await.unwrap();
            assert_eq!(number(&target).await.0, index);
            least = least.min(begin.elapsed());
        }
        // The fastest shows the relay's own delay; the others include the machine's.
        assert!(least < Duration::from_millis(20), "{least:?}");
    }
}
