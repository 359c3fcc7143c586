//! Dedicated threads for callers' work that may block: a fixed number, shared fairly by the calling addresses.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{
    Permit, Permits,
    leash::Leash,
    origin::Origin,
    probation::Probation,
    turns::Turns,
    workers::{Rank, WorkError, Workers},
};

/// How long work on probation waits for its turn among its kind.
const PROBATION_WAIT_MAX: Duration = Duration::from_secs(1);

/// A fixed number of places for blocking work. If all are taken, callers wait without a thread.
#[derive(Clone)]
pub struct Blocking {
    places: Permits,
    workers: Arc<Workers>,
    turns: Turns,
}

impl Blocking {
    /// Creates `places` places, on threads called `name`, for work that is always short.
    pub fn new(name: &'static str, places: usize, rank: Rank) -> Blocking {
        Blocking::with_long(name, (places, 0), rank, Turns::new(places))
    }

    /// Creates `places` places, and `long` extra places for long work that takes turns.
    pub fn with_long(
        name: &'static str,
        (places, long): (usize, usize),
        rank: Rank,
        turns: Turns,
    ) -> Blocking {
        let workers = Arc::new(Workers::new(name, places + long, rank));
        Blocking { places: Permits::metered(places, long), workers, turns }
    }

    /// Runs `work` on a thread that may block. Work that has started cannot be stopped: if its caller goes away, the
    /// work continues and keeps its place until it ends.
    pub async fn run<T: Send + 'static>(
        &self,
        origin: Origin,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WorkError> {
        self.begin(origin, None, CancellationToken::new(), |_| work()).await
    }

    /// Like [`Blocking::run`], for work that checks its leash now and then, and ends once the leash is cut. The leash
    /// is cut when the caller is gone or its time is over. It is also cut when work on probation turns out to be long
    /// without permission.
    pub async fn run_while_awaited<T: Send + 'static>(
        &self,
        origin: Origin,
        probation: Option<Probation>,
        work: impl FnOnce(&Leash) -> T + Send + 'static,
    ) -> Result<T, WorkError> {
        let gone = CancellationToken::new();
        let _awaited = gone.clone().drop_guard();
        self.begin(origin, probation, gone, work).await
    }

    async fn begin<T: Send + 'static>(
        &self,
        origin: Origin,
        probation: Option<Probation>,
        gone: CancellationToken,
        work: impl FnOnce(&Leash) -> T + Send + 'static,
    ) -> Result<T, WorkError> {
        let (place, probation) = self.place(origin, probation).await.ok_or(WorkError::NoPlace)?;
        let turns = self.turns.clone();
        self.workers.run(move || work(&Leash::begin(Some(place), probation, turns, gone))).await
    }

    /// Returns a place for work. Work on probation also holds one of the few probation places while it waits. So after
    /// [`PROBATION_WAIT_MAX`] it needs a place for long calls, and then waits as long work does. Without such a place,
    /// the work is refused.
    async fn place(
        &self,
        origin: Origin,
        probation: Option<Probation>,
    ) -> Option<(Permit, Option<Probation>)> {
        let Some(probation) = probation else { return Some((self.places.take(origin).await, None)) };
        match timeout(PROBATION_WAIT_MAX, self.places.take_on_probation(origin)).await {
            Ok(place) => Some((place, Some(probation))),
            Err(_) if probation.lengthen(true) => Some((self.places.take(origin).await, None)),
            Err(_) => None,
        }
    }

    /// Whether this caller's recent work took long here.
    pub fn is_known_long(&self, origin: Origin) -> bool {
        self.places.is_known_long(origin)
    }

    /// The places of the threads.
    #[cfg(any(test, feature = "testing"))]
    pub fn places(&self) -> &Permits {
        &self.places
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::quota::Quota;

    /// Goal: a caller that repeatedly calls and disconnects never gets more threads than there are places.
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

    /// Goal: work that can end early does so when its caller goes away, and releases its place.
    #[tokio::test(flavor = "multi_thread")]
    async fn abandoned_work_is_told() {
        let blocking = Blocking::new("test", 1, Rank::Own);
        let (started, begun) = tokio::sync::oneshot::channel();
        let caller = tokio::spawn({
            let blocking = blocking.clone();
            async move {
                let work = move |leash: &Leash| {
                    started.send(()).unwrap();
                    while !leash.is_cut() {
                        std::thread::yield_now();
                    }
                };
                blocking.run_while_awaited(Origin::Trusted, None, work).await
            }
        });
        begun.await.unwrap();
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled());
        assert_eq!(blocking.run(Origin::Trusted, || 7).await.unwrap(), 7);
    }

    /// Goal: work on probation holds its probation place only briefly, even while it waits for a thread. After that, it
    /// waits as long work does, or is refused.
    #[tokio::test(start_paused = true)]
    async fn waiting_on_probation_has_an_end() {
        let blocking = Blocking::with_long("test", (1, 1), Rank::Own, Turns::new(1));
        let (few, long) = (Quota::new(1, 0), Quota::new(1, 0));
        let origin = Origin::V4([192, 0, 2, 1].into());
        let begin = || {
            let mut place = few.share(origin);
            assert!(place.grow_to(1));
            Probation::new(place, long.share(origin))
        };
        let held = blocking.places.take(Origin::Trusted).await;
        let mut taken = long.share(Origin::Trusted);
        assert!(taken.grow_to(1));
        let probation = begin();
        let refused = blocking.run_while_awaited(origin, Some(probation.clone()), |_| ()).await;
        assert!(matches!(refused, Err(WorkError::NoPlace)) && probation.is_refused());
        assert_eq!(few.free(), 1);
        drop(taken);
        let mut waits = Box::pin(blocking.run_while_awaited(origin, Some(begin()), |_| ()));
        assert!(timeout(2 * PROBATION_WAIT_MAX, waits.as_mut()).await.is_err());
        assert_eq!((few.free(), long.free()), (1, 0));
        drop(held);
        waits.await.unwrap();
    }

    /// Goal: however work on probation ends, it releases its places: refused, abandoned while it waits, finished, or
    /// panicked.
    #[tokio::test(flavor = "multi_thread")]
    async fn work_on_probation_leaves_its_places() {
        let blocking = Blocking::with_long("test", (1, 1), Rank::Own, Turns::new(1));
        let (few, none) = (Quota::new(4, 0), Quota::new(1, 0));
        let mut taken = none.share(Origin::Trusted);
        assert!(taken.grow_to(1));
        let origin = Origin::V4([192, 0, 2, 1].into());
        let begin = || {
            let mut place = few.share(origin);
            assert!(place.grow_to(1));
            Probation::new(place, none.share(origin))
        };
        let endless = |leash: &Leash| while !leash.is_cut() {};
        let refused = begin();
        blocking.run_while_awaited(origin, Some(refused.clone()), endless).await.unwrap();
        assert!(refused.is_refused() && few.free() == 4);
        blocking.run_while_awaited(origin, Some(begin()), |_| ()).await.unwrap();
        let panicked = blocking.run_while_awaited(origin, Some(begin()), |_| panic!("no good")).await;
        assert!(panicked.map(|(): ()| ()).is_err() && few.free() == 4);
        let held = blocking.places.take(Origin::Trusted).await;
        let waits = blocking.run_while_awaited(origin, Some(begin()), |_| ());
        let waited = tokio::time::timeout(std::time::Duration::from_millis(1), waits).await;
        assert!(waited.is_err(), "there is one place");
        drop(held);
        while blocking.places.free() < 1 || few.free() < 4 {
            tokio::task::yield_now().await;
        }
    }

    /// Goal: work that takes much CPU time releases its place before it ends; work that merely waits as long does not.
    #[tokio::test(flavor = "multi_thread")]
    async fn long_work_leaves_its_place() {
        let blocking = Blocking::with_long("test", (1, 1), Rank::Behind, Turns::new(1));
        let (started, begun) = tokio::sync::oneshot::channel();
        let (done, wait) = mpsc::channel::<()>();
        let burns = move |leash: &Leash| {
            started.send(()).unwrap();
            while wait.try_recv().is_err() && !leash.is_cut() {}
        };
        let burning = tokio::spawn({
            let blocking = blocking.clone();
            async move { blocking.run_while_awaited(Origin::Trusted, None, burns).await }
        });
        begun.await.unwrap();
        blocking.run(Origin::Trusted, || ()).await.unwrap();
        done.send(()).unwrap();
        burning.await.unwrap().unwrap();
        assert_eq!(blocking.places.free(), 1);
    }
}
