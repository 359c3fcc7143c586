//! [`TrackedRuntime`]: runs quinn's tasks under a tracker, so that shutdown knows when the socket is released.

use std::{future::Future, io, net::UdpSocket, pin::Pin, sync::Arc, time::Instant};

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio_util::task::TaskTracker;

/// Tokio for quinn, with every spawned task tracked.
#[derive(Debug)]
pub(crate) struct TrackedRuntime {
    pub(crate) tasks: TaskTracker,
}

impl Runtime for TrackedRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.tasks.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}
