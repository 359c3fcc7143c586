//! Threads for callers' work that may block: never more than a fixed number of tokio's, which consensus and sync need too.

use std::sync::Arc;

use tokio::{
    sync::Semaphore,
    task::{JoinError, spawn_blocking},
};

/// A fixed number of places for work that blocks. Whoever comes when all are taken waits, without a thread.
#[derive(Clone)]
pub(crate) struct Blocking {
    places: Arc<Semaphore>,
}

impl Blocking {
    pub(crate) fn new(places: usize) -> Blocking {
        Blocking { places: Arc::new(Semaphore::new(places)) }
    }

    /// Runs `work` on a thread that may block. Work that has begun cannot be stopped: when the caller goes away it runs on, and
    /// keeps its place until it ends.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let place = self.places.clone().acquire_owned().await.expect("the semaphore is never closed");
        spawn_blocking(move || {
            let _place = place;
            work()
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Goal: asking and going away does not get a caller more threads than there are places.
    #[tokio::test(flavor = "multi_thread")]
    async fn abandoned_work_keeps_its_place() {
        let blocking = Blocking::new(1);
        let (started, begun) = tokio::sync::oneshot::channel();
        let (release, wait) = mpsc::channel::<()>();
        let caller = tokio::spawn({
            let blocking = blocking.clone();
            async move {
                let work = move || {
                    started.send(()).unwrap();
                    let _ = wait.recv();
                };
                blocking.run(work).await
            }
        });
        begun.await.unwrap();
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled());
        assert_eq!(blocking.places.available_permits(), 0);
        release.send(()).unwrap();
        assert_eq!(blocking.run(|| 7).await.unwrap(), 7);
    }
}
