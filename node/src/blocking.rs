//! Threads for callers' work that may block: a fixed number of their own, shared fairly by the addresses that call.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::{
    fair::Places,
    origin::Origin,
    workers::{Rank, WorkError, Workers},
};

/// A fixed number of places for work that blocks. Whoever comes when there is none for it waits, without a thread.
#[derive(Clone)]
pub(crate) struct Blocking {
    places: Places,
    workers: Arc<Workers>,
}

impl Blocking {
    /// So many places, on threads of a name.
    pub(crate) fn new(name: &'static str, places: usize, rank: Rank) -> Blocking {
        Blocking { places: Places::metered(places), workers: Arc::new(Workers::new(name, places, rank)) }
    }

    /// Runs `work` on a thread that may block. Work that has begun cannot be stopped: when the caller goes away it runs on, and
    /// keeps its place until it ends.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        origin: Origin,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WorkError> {
        let place = self.places.take(origin).await;
        let work = move || {
            let _place = place;
            work()
        };
        self.workers.run(work).await
    }

    /// As [`Blocking::run`], for work that looks at the token now and then, and ends once it is cancelled: when the caller has
    /// gone, or has waited as long as it may.
    pub(crate) async fn run_while_awaited<T: Send + 'static>(
        &self,
        origin: Origin,
        work: impl FnOnce(&CancellationToken) -> T + Send + 'static,
    ) -> Result<T, WorkError> {
        let gone = CancellationToken::new();
        let _awaited = gone.clone().drop_guard();
        self.run(origin, move || work(&gone)).await
    }

    /// The places of the threads.
    #[cfg(test)]
    pub(crate) fn places(&self) -> &Places {
        &self.places
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Goal: asking and going away does not get a caller more threads than there are places.
    #[tokio::test(flavor = "multi_thread")]
    async fn abandoned_work_keeps_its_place() {
        let blocking = Blocking::new("test", 1, Rank::Own);
        let (started, begun) = tokio::sync::oneshot::channel();
        let (release, wait) = mpsc::channel::<()>();
        let caller = tokio::spawn({
            let blocking = blocking.clone();
            async move {
                let work = move || {
                    started.send(()).unwrap();
                    let _ = wait.recv();
                };
                blocking.run(Origin::Trusted, work).await
            }
        });
        begun.await.unwrap();
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled());
        assert_eq!(blocking.places.free(), 0);
        release.send(()).unwrap();
        assert_eq!(blocking.run(Origin::Trusted, || 7).await.unwrap(), 7);
    }

    /// Goal: work that can end early does so when its caller goes away, and gives its place back.
    #[tokio::test(flavor = "multi_thread")]
    async fn abandoned_work_is_told() {
        let blocking = Blocking::new("test", 1, Rank::Own);
        let (started, begun) = tokio::sync::oneshot::channel();
        let caller = tokio::spawn({
            let blocking = blocking.clone();
            async move {
                let work = move |gone: &CancellationToken| {
                    started.send(()).unwrap();
                    while !gone.is_cancelled() {
                        std::thread::yield_now();
                    }
                };
                blocking.run_while_awaited(Origin::Trusted, work).await
            }
        });
        begun.await.unwrap();
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled());
        assert_eq!(blocking.run(Origin::Trusted, || 7).await.unwrap(), 7);
    }
}
