//! [`Workers`]: threads for what callers ask, apart from those of the node's own work, for which they can stand back.
//!
//! What callers compute takes all cores if they ask for enough. The system gives such threads less of a core than those that commit,
//! execute and verify; while a core is free they are as fast as any.

use std::{
    collections::VecDeque,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

/// Whether threads stand back when cores are scarce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rank {
    /// Like the node's own.
    Own,
    /// Behind them: beside a thread of the node's own one gets a quarter of a core.
    Behind,
}

impl Rank {
    /// As the system has it, of 19.
    fn niceness(self) -> i32 {
        match self {
            Rank::Own => 0,
            Rank::Behind => 5,
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Why work has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkError {
    /// It panicked.
    #[error("the work panicked: {0}")]
    Panicked(String),
    /// The system gives no thread.
    #[error("no thread to work on: {0}")]
    NoThread(#[from] io::Error),
}

/// Threads that are started when they are needed and end with this.
pub(crate) struct Workers(Arc<Shared>);

struct Shared {
    name: &'static str,
    threads_max: usize,
    rank: Rank,
    state: Mutex<State>,
    /// There is a job, or there will be none any more.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    is_closed: bool,
}

impl Workers {
    /// At most so many threads of a name. Whoever gives them work bounds how much of it waits.
    pub(crate) fn new(name: &'static str, threads_max: usize, rank: Rank) -> Workers {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Workers(Arc::new(Shared { name, threads_max: threads_max.max(1), rank, state, changed }))
    }

    /// Runs something on one of the threads. What has begun runs to its end, also when nobody waits for it.
    ///
    /// # Errors
    /// If it panics, or there is no thread for it.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WorkError> {
        let (tell, told) = oneshot::channel();
        let job = move || {
            let done = catch_unwind(AssertUnwindSafe(work));
            // Whoever has stopped to wait does not want to know.
            let _ = tell.send(done.map_err(|panic| WorkError::Panicked(text_of(&*panic))));
        };
        self.push(Box::new(job))?;
        told.await.unwrap_or_else(|_| Err(WorkError::Panicked("it ended without a result".into())))
    }

    fn push(&self, job: Job) -> io::Result<()> {
        let mut state = self.0.state.lock();
        if state.idle <= state.jobs.len() && state.threads < self.0.threads_max {
            let shared = self.0.clone();
            let started = std::thread::Builder::new().name(self.0.name.into()).spawn(move || shared.work());
            match started {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads == 0 => return Err(error),
                // The others come to it.
                Err(_) => {}
            }
        }
        state.jobs.push_back(job);
        self.0.changed.notify_one();
        Ok(())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.0.state.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        if self.rank == Rank::Behind {
            // Where the system does not know this, the threads are like any other.
            let _ = rustix::process::setpriority_process(None, self.rank.niceness());
        }
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                parking_lot::MutexGuard::unlocked(&mut state, job);
            } else if state.is_closed {
                return;
            } else {
                state.idle += 1;
                self.changed.wait(&mut state);
                state.idle -= 1;
            }
        }
    }
}

/// What a panic said.
fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a text".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: threads are few, are used again, survive a panic of what they do, and stand back for others.
    #[tokio::test]
    async fn threads_are_few_and_stand_back() {
        let workers = Workers::new("test", 2, Rank::Behind);
        for _ in 0..8 {
            let (name, niceness) = workers
                .run(|| {
                    let name = std::thread::current().name().map(str::to_owned);
                    (name, rustix::process::getpriority_process(None).unwrap())
                })
                .await
                .unwrap();
            assert_eq!(name.as_deref(), Some("test"));
            assert!(niceness >= Rank::Behind.niceness(), "{niceness}");
        }
        let panicked = workers.run(|| panic!("no good")).await.map(|(): ()| ()).unwrap_err();
        assert_eq!(panicked.to_string(), "the work panicked: no good");
        let both = tokio::join!(workers.run(|| 1), workers.run(|| 2));
        assert_eq!((both.0.unwrap(), both.1.unwrap()), (1, 2));
        assert!(workers.0.state.lock().threads <= 2);
    }

    /// Goal: the threads end with their owner, after what they were given.
    #[tokio::test]
    async fn threads_end_with_their_owner() {
        let workers = Workers::new("test", 1, Rank::Own);
        workers.run(|| ()).await.unwrap();
        let shared = Arc::downgrade(&workers.0);
        drop(workers);
        while shared.strong_count() > 0 {
            std::thread::yield_now();
        }
    }
}
