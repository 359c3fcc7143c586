//! [`Workers`]: threads for callers' work, separate from the threads of the node's own work, to which they yield.
//!
//! Callers' work takes all cores if there is enough of it. The operating system gives these threads less of a core than
//! those that commit, execute and verify. While a core is free they run at full speed. Work that turns out to be long
//! lowers its priority once more ([`step_back`]), below short work.

use std::{
    cell::RefCell,
    collections::VecDeque,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
};

use parking_lot::{Condvar, Mutex};
use rustix::process::setpriority_process;
use tokio::sync::oneshot;

/// The priority of threads when cores are scarce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rank {
    /// The priority of the node's own threads.
    Own,
    /// Lower priority: next to one of the node's own threads, such a thread gets a quarter of a core.
    Behind,
}

impl Rank {
    /// The thread's nice value, of at most 19.
    fn niceness(self) -> i32 {
        match self {
            Rank::Own => 0,
            Rank::Behind => 5,
        }
    }
}

/// The nice value of a thread with long work: next to one of the node's own threads, it gets a thirtieth of a core.
const LONG_NICENESS: i32 = 15;

thread_local! {
    /// The pool that this thread belongs to, if its rank is [`Rank::Behind`] and its priority was not lowered yet.
    static CREW: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
}

/// Lowers the priority of a thread of [`Rank::Behind`], because its work is long. The system allows no thread to raise
/// it again. So the thread ends with its work, and another thread may take its place at once.
pub fn step_back() {
    if let Some(crew) = CREW.take() {
        let mut state = crew.state.lock();
        state.threads -= 1;
        if !state.jobs.is_empty() {
            // The new thread starts before this thread's priority drops, because it inherits the priority. If no thread
            // can start, this thread gets to the jobs later.
            let _ = crew.start_one(&mut state);
        }
        drop(state);
        // Where the system does not support or allow this, the thread keeps its priority.
        let _ = setpriority_process(None, LONG_NICENESS);
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Why work has no result.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// The work panicked, with this message.
    #[error("the work panicked: {0}")]
    Panicked(String),
    /// The system refused a thread.
    #[error("no thread to work on: {0}")]
    NoThread(#[from] io::Error),
    /// The work was on probation and waited too long for its turn.
    #[error("there is no place for it")]
    NoPlace,
}

/// Threads that are started on demand and end with this value.
pub struct Workers(Arc<Shared>);

struct Shared {
    name: &'static str,
    threads_max: usize,
    rank: Rank,
    state: Mutex<State>,
    /// Signalled when a job arrives, or when no more will.
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
    /// A pool of at most `threads_max` threads called `name`. The caller bounds the waiting work.
    pub fn new(name: &'static str, threads_max: usize, rank: Rank) -> Workers {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Workers(Arc::new(Shared { name, threads_max: threads_max.max(1), rank, state, changed }))
    }

    /// One thread of the node's own rank, started at once: if a low-priority thread started it later, it would inherit
    /// that priority.
    pub fn begun(name: &'static str) -> Workers {
        let workers = Workers::new(name, 1, Rank::Own);
        // If this fails, the first job tries again.
        let _ = workers.0.start_one(&mut workers.0.state.lock());
        workers
    }

    /// Runs work on one of the threads while the calling thread waits. For low-priority threads that need a resource
    /// which they could not release soon.
    ///
    /// # Errors
    /// If the work panics, or no thread is available for it.
    pub fn wait_for<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WorkError> {
        let (tell, told) = mpsc::channel();
        self.push(Box::new(move || {
            let done = catch_unwind(AssertUnwindSafe(work));
            let _ = tell.send(done.map_err(|panic| WorkError::Panicked(text_of(&*panic))));
        }))?;
        told.recv().unwrap_or_else(|_| Err(WorkError::Panicked("it ended without a result".into())))
    }

    /// Runs work on one of the threads. Work that has started runs to its end, even if its caller has gone.
    ///
    /// # Errors
    /// If the work panics, or no thread is available for it.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WorkError> {
        let (tell, told) = oneshot::channel();
        let job = move || {
            let done = catch_unwind(AssertUnwindSafe(work));
            // A caller that has gone needs no result.
            let _ = tell.send(done.map_err(|panic| WorkError::Panicked(text_of(&*panic))));
        };
        self.push(Box::new(job))?;
        told.await.unwrap_or_else(|_| Err(WorkError::Panicked("it ended without a result".into())))
    }

    fn push(&self, job: Job) -> io::Result<()> {
        let mut state = self.0.state.lock();
        if state.idle <= state.jobs.len() && state.threads < self.0.threads_max {
            let started = self.0.start_one(&mut state);
            // If there are other threads, they will get to the job.
            started.or_else(|error| if state.threads == 0 { Err(error) } else { Ok(()) })?;
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
    fn start_one(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        let shared = self.clone();
        std::thread::Builder::new().name(self.name.into()).spawn(move || shared.work())?;
        state.threads += 1;
        Ok(())
    }

    fn work(self: Arc<Self>) {
        if self.rank == Rank::Behind {
            // Where the system does not support this, the threads have normal priority.
            let _ = setpriority_process(None, self.rank.niceness());
            CREW.set(Some(self.clone()));
        }
        let is_back = || self.rank == Rank::Behind && CREW.with_borrow(Option::is_none);
        let mut state = self.state.lock();
        loop {
            // Waiting work is left to the other threads, if any.
            if is_back() && (state.threads > 0 || state.jobs.is_empty()) {
                return;
            }
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

/// The message of a panic.
fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a text".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: threads are few, are reused, survive a panic of their work, and have lower priority.
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

    /// Goal: long work lowers its priority further, ends its thread, and leaves no queued work undone.
    #[tokio::test]
    async fn long_work_stands_back_further() {
        let niceness = || rustix::process::getpriority_process(None).unwrap();
        step_back();
        assert!(niceness() < LONG_NICENESS, "no worker, no effect");
        let workers = Workers::new("test", 1, Rank::Behind);
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let long = workers.run(move || {
            step_back();
            step_back();
            let _ = wait.recv();
            niceness()
        });
        let short = async {
            let short = workers.run(niceness).await.unwrap();
            go.send(()).unwrap();
            short
        };
        let (long, short) = tokio::join!(long, short);
        let long = long.unwrap();
        assert!(long >= LONG_NICENESS && short < long, "{short} {long}");
        assert_eq!(workers.0.state.lock().threads, 1, "the second");
    }

    /// Goal: a low-priority thread can have work done by a thread of normal priority.
    #[tokio::test]
    async fn who_stands_back_has_it_done() {
        let niceness = || rustix::process::getpriority_process(None).unwrap();
        let (own, behind) = (Workers::begun("own"), Workers::new("test", 1, Rank::Behind));
        let before = niceness();
        let asking = move || {
            let done = own.wait_for(niceness).unwrap();
            let panicked = own.wait_for(|| panic!("no good")).map(|(): ()| ()).unwrap_err();
            (niceness(), done, panicked.to_string())
        };
        let (asker, done, panicked) = behind.run(asking).await.unwrap();
        assert!(asker >= Rank::Behind.niceness() && done == before, "{before} {asker} {done}");
        assert_eq!(panicked, "the work panicked: no good");
    }

    /// Goal: the threads end with their owner, after their last work.
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
