//! [`Thread`]: serves the sockets, separately from HTTP.
//!
//! A client that reads from many sockets causes many writes, each small but costly together. On their own low-priority
//! thread, they delay only other clients with sockets.

use std::io;

use rustix::process::setpriority_process;
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The niceness of the thread, the same as for calls that compute.
const NICENESS: i32 = 5;

/// A thread with an event loop, stopped on drop.
pub(super) struct Thread {
    handle: Handle,
    _until: DropGuard,
}

impl Thread {
    /// # Errors
    /// If the system refuses a thread, or file descriptors for its events.
    pub(super) fn start() -> io::Result<Thread> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, until) = (runtime.handle().clone(), CancellationToken::new());
        let ended = until.clone();
        std::thread::Builder::new().name("sockets".into()).spawn(move || {
            // Where the system does not support this, the thread has normal priority.
            let _ = setpriority_process(None, NICENESS);
            runtime.block_on(ended.cancelled());
        })?;
        Ok(Thread { handle, _until: until.drop_guard() })
    }

    /// Runs a future on the thread until it ends or the thread does.
    pub(super) fn spawn(&self, served: impl Future<Output = ()> + Send + 'static) {
        drop(self.handle.spawn(served));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: work on this thread has low priority, and ends with the thread.
    #[tokio::test]
    async fn what_is_served_stands_back() {
        let thread = Thread::start().unwrap();
        let (tell, told) = tokio::sync::oneshot::channel();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        thread.spawn(async move {
            let niceness = rustix::process::getpriority_process(None).unwrap();
            tell.send((std::thread::current().name().map(str::to_owned), niceness)).unwrap();
            let _end = end;
            std::future::pending::<()>().await;
        });
        let (name, niceness) = told.await.unwrap();
        assert!(name.as_deref() == Some("sockets") && niceness >= NICENESS, "{name:?} {niceness}");
        drop(thread);
        assert!(ended.await.is_err());
    }
}
