//! [`Workers`]: a fixed pool of threads that help the calling thread.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

use super::InjectedFaults;

/// Number of batches that run without groups after grouping failed. This pause bounds the cost of a peer that names too
/// few conflicts: one wasted execution in this number of batches.
const GROUPS_PAUSE_BATCHES: u32 = 64;

/// The pool keeps its threads, because starting one costs as much as a small batch. The threads do nothing else: a
/// helper that was busy elsewhere would hold up the leader at the end.
#[derive(Debug)]
pub struct Workers {
    /// `None` if the only thread is the caller's.
    helpers: Option<ThreadPool>,
    eager: Option<ForcedMethod>,
    faults: Option<Arc<InjectedFaults>>,
    /// Batches still to execute without groups.
    groups_pause: AtomicU32,
}

/// Forces one method for every batch, even if it gains nothing: for tests and measurements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ForcedMethod {
    /// Transactions run ahead of their turn.
    Ahead,
    /// Groups run side by side, if the batch has more than one.
    Groups,
}

impl Workers {
    /// Starts a pool of `threads` threads, the calling one included; 0 counts as 1.
    ///
    /// # Errors
    /// If the system cannot start more threads.
    pub fn new(threads: usize) -> Result<Workers, ThreadPoolBuildError> {
        let build = |helpers| {
            let name = |index| format!("execute-{index}");
            ThreadPoolBuilder::new().num_threads(helpers).thread_name(name).build()
        };
        let helpers = threads.checked_sub(2).map(|more| build(more + 1)).transpose()?;
        Ok(Workers { helpers, eager: None, faults: None, groups_pause: AtomicU32::new(0) })
    }

    /// Uses the helpers for every batch, by this method.
    pub fn eager(self, eager: ForcedMethod) -> Workers {
        Workers { eager: Some(eager), ..self }
    }

    /// Injects faults into conflicting transactions that run ahead of their turn: measures which faults replicas mask.
    #[doc(hidden)]
    pub fn with_faults(self, faults: Arc<InjectedFaults>) -> Workers {
        Workers { faults: Some(faults), ..self }
    }

    pub(super) fn faults(&self) -> Option<&InjectedFaults> {
        self.faults.as_deref()
    }

    pub(super) fn eagerness(&self) -> Option<ForcedMethod> {
        self.eager.filter(|_| self.helpers.is_some())
    }

    /// Whether the next batch may be grouped.
    pub(super) fn may_group(&self) -> bool {
        self.groups_pause.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_err()
    }

    /// Records that a batch was grouped in vain.
    pub(super) fn pause_groups(&self) {
        self.groups_pause.store(GROUPS_PAUSE_BATCHES, Relaxed);
    }

    /// Number of threads: the calling thread and its helpers.
    pub fn threads(&self) -> usize {
        1 + self.helpers.as_ref().map_or(0, ThreadPool::current_num_threads)
    }

    /// Runs `leader` on the calling thread while each helper runs `helper`. Returns when all have finished.
    pub(super) fn lead<T>(&self, helper: impl Fn() + Sync, leader: impl FnOnce() -> T) -> T {
        let Some(helpers) = &self.helpers else { return leader() };
        helpers.in_place_scope(|scope| {
            for _ in 0..helpers.current_num_threads() {
                scope.spawn(|_| helper());
            }
            leader()
        })
    }

    /// Calls `work` with each number below `count`, in parallel. The calling thread gets number 0.
    pub(super) fn map<T: Send>(&self, count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
        let Some(helpers) = &self.helpers else { return (0..count).map(work).collect() };
        let mut done: Vec<Option<T>> = (0..count).map(|_| None).collect();
        let Some((first, others)) = done.split_first_mut() else { return Vec::new() };
        helpers.in_place_scope(|scope| {
            for (index, place) in others.iter_mut().enumerate() {
                let work = &work;
                scope.spawn(move |_| *place = Some(work(index + 1)));
            }
            *first = Some(work(0));
        });
        // The scope has waited for all the work.
        done.into_iter().flatten().collect()
    }

    /// Runs both closures in parallel, `a` on the calling thread.
    pub(super) fn join<A, B: Send>(&self, a: impl FnOnce() -> A, b: impl FnOnce() -> B + Send) -> (A, B) {
        let Some(helpers) = &self.helpers else { return (a(), b()) };
        let mut done = None;
        let first = helpers.in_place_scope(|scope| {
            scope.spawn(|_| done = Some(b()));
            a()
        });
        (first, done.expect("the scope has waited for it"))
    }
}
