//! [`Session`]: one dialling address of a relay, with its socket towards the target and its two lanes.

use std::{
    future::pending,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Instant,
};

use parking_lot::Mutex;
use tokio::{net::UdpSocket, sync::Notify, task::AbortHandle};

use super::{
    DATAGRAM_BYTES_MAX, Shape, Shared, bind,
    lane::{Lane, Verdict},
};

struct Lanes {
    out: Lane,
    back: Lane,
    last_used: Instant,
}

impl Lanes {
    fn next_due(&self) -> Option<Instant> {
        [self.out.next_due(), self.back.next_due()].into_iter().flatten().min()
    }
}

pub(super) struct Session {
    client: SocketAddr,
    target: SocketAddr,
    upstream: UdpSocket,
    lanes: Mutex<Lanes>,
    /// Signals a datagram that is due earlier than the task's sleep ends.
    earlier: Notify,
    task: Mutex<Option<AbortHandle>>,
}

impl Session {
    pub(super) fn start(
        client: SocketAddr,
        target: SocketAddr,
        shape: Shape,
        is_cut: bool,
        seed: u64,
        shared: &Arc<Shared>,
    ) -> io::Result<Arc<Session>> {
        let lane = |direction: u64| {
            let mut lane = Lane::new(shape, seed.wrapping_mul(2).wrapping_add(direction));
            lane.cut(is_cut);
            lane
        };
        let lanes = Lanes { out: lane(0), back: lane(1), last_used: Instant::now() };
        let session = Arc::new(Session {
            client,
            target,
            upstream: bind(source_for(target))?,
            lanes: Mutex::new(lanes),
            earlier: Notify::new(),
            task: Mutex::new(None),
        });
        let task = tokio::spawn(carry(session.clone(), shared.clone()));
        *session.task.lock() = Some(task.abort_handle());
        Ok(session)
    }

    pub(super) fn end(&self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }

    /// Returns the port of its socket towards the target.
    pub(super) fn port(&self) -> Option<u16> {
        self.upstream.local_addr().ok().map(|address| address.port())
    }

    pub(super) fn last_used(&self) -> Instant {
        self.lanes.lock().last_used
    }

    pub(super) fn reshape(&self, shape: Shape) {
        let mut lanes = self.lanes.lock();
        lanes.out.reshape(shape);
        lanes.back.reshape(shape);
    }

    /// Cuts or heals both directions; see [`Lane::cut`].
    pub(super) fn cut(&self, is_cut: bool) -> usize {
        let mut lanes = self.lanes.lock();
        lanes.out.cut(is_cut) + lanes.back.cut(is_cut)
    }

    /// Handles a datagram from the dialling node.
    pub(super) async fn out(&self, now: Instant, bytes: &[u8], shared: &Shared) {
        // Tokio learns of a new socket's readiness only after it was asked once.
        let _ = self.upstream.writable().await;
        let (verdict, is_first) = {
            let mut lanes = self.lanes.lock();
            lanes.last_used = now;
            let before = lanes.next_due();
            let verdict = lanes.out.offer(now, bytes);
            (verdict, lanes.next_due() != before)
        };
        self.offered(verdict, bytes.len(), shared);
        // The task sleeps until the first due time, so only an earlier due time concerns it.
        if is_first && self.next_due().is_some() {
            self.earlier.notify_one();
        }
    }

    /// Handles a datagram from the target. The task itself reads it, and checks for due datagrams afterwards.
    fn back(&self, now: Instant, bytes: &[u8], shared: &Shared) {
        let verdict = self.lanes.lock().back.offer(now, bytes);
        self.offered(verdict, bytes.len(), shared);
    }

    fn offered(&self, verdict: Verdict, bytes: usize, shared: &Shared) {
        shared.meter.lock().offered(verdict, bytes);
        // A datagram that is due at once is sent right here, without waking a task.
        self.send_due(shared);
    }

    fn next_due(&self) -> Option<Instant> {
        self.lanes.lock().next_due()
    }

    /// Sends all due datagrams. The lock is held meanwhile, so that two callers keep the order.
    fn send_due(&self, shared: &Shared) {
        let mut lanes = self.lanes.lock();
        while let Some(waiting) = lanes.out.take_due(Instant::now()) {
            let sent = self.upstream.try_send_to(&waiting.bytes, self.target);
            shared.meter.lock().sent(sent.is_ok(), Instant::now() - waiting.due);
        }
        while let Some(waiting) = lanes.back.take_due(Instant::now()) {
            let sent = shared.socket.try_send_to(&waiting.bytes, self.client);
            shared.meter.lock().sent(sent.is_ok(), Instant::now() - waiting.due);
        }
    }
}

/// Reads the target's datagrams and sends due ones, until it is aborted.
async fn carry(session: Arc<Session>, shared: Arc<Shared>) {
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    // As in `Session::out`, for the dialling node's socket.
    let _ = shared.socket.writable().await;
    loop {
        let due = session.next_due();
        let sleep = async {
            match due {
                Some(due) => tokio::time::sleep_until(due.into()).await,
                None => pending().await,
            }
        };
        tokio::select! {
            came = session.upstream.recv_from(&mut buffer) => match came {
                // Only the target may answer: other senders would be taken for it.
                Ok((length, from)) if from == session.target => {
                    session.back(Instant::now(), &buffer[..length], &shared);
                }
                _ => tokio::task::yield_now().await,
            },
            () = session.earlier.notified() => {}
            () = sleep => session.send_due(&shared),
        }
    }
}

/// Returns loopback for a target on loopback, otherwise the unspecified address.
fn source_for(target: SocketAddr) -> SocketAddr {
    match target {
        SocketAddr::V4(target) if target.ip().is_loopback() => (Ipv4Addr::LOCALHOST, 0).into(),
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(target) if target.ip().is_loopback() => (Ipv6Addr::LOCALHOST, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}
