//! [`Workers`]: a fixed pool of threads that help the one that calls.

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

/// Threads that stay, because starting one costs as much as a small batch. They do nothing else: a helper that comes late
/// because its thread was busy elsewhere would hold up the leader at the end.
#[derive(Debug)]
pub struct Workers {
    /// None for one thread, which is the caller's.
    helpers: Option<ThreadPool>,
    is_eager: bool,
}

impl Workers {
    /// So many threads, the calling one included; 0 counts as 1.
    ///
    /// # Errors
    /// If the system starts no more threads.
    pub fn new(threads: usize) -> Result<Workers, ThreadPoolBuildError> {
        let build = |helpers| {
            let name = |index| format!("execute-{index}");
            ThreadPoolBuilder::new().num_threads(helpers).thread_name(name).build()
        };
        let helpers = threads.checked_sub(2).map(|more| build(more + 1)).transpose()?;
        Ok(Workers { helpers, is_eager: false })
    }

    /// Uses the helpers for every batch, also where they cannot be expected to gain anything: for tests and measurements.
    pub fn eager(self) -> Workers {
        Workers { is_eager: true, ..self }
    }

    pub(super) fn is_eager(&self) -> bool {
        self.is_eager && self.helpers.is_some()
    }

    /// The calling thread and its helpers.
    pub fn threads(&self) -> usize {
        1 + self.helpers.as_ref().map_or(0, ThreadPool::current_num_threads)
    }

    /// Runs `leader` on the calling thread while each helper runs `helper`; returns when all have.
    pub(super) fn lead<T>(&self, helper: impl Fn() + Sync, leader: impl FnOnce() -> T) -> T {
        let Some(helpers) = &self.helpers else { return leader() };
        helpers.in_place_scope(|scope| {
            for _ in 0..helpers.current_num_threads() {
                scope.spawn(|_| helper());
            }
            leader()
        })
    }
}
