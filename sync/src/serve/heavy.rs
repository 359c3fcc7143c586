//! [`HeavyWork`]: the threads for work that takes seconds, and the snapshot trees that are loaded on them.
//!
//! The threads are few and apart from those of the node's own work. So commits, execution and verification have their
//! threads, whatever peers ask for. Loads have a thread of their own: reading a whole state takes seconds to minutes,
//! and merges do not wait for that.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use rayon::{ThreadPool, ThreadPoolBuilder};
use slipstream_storage::{Snapshot, StorageError, Store};
use slipstream_types::BatchNumber;
use tokio::{sync::watch, time::Instant};

use super::error::ServeError;

/// Maximum number of threads for merges.
const MERGE_THREADS_MAX: usize = 2;
/// How long a request for a loading snapshot waits, without a place in a lane. Small states are loaded by then. The
/// answer's bytes are reserved meanwhile, so a longer wait would keep that memory from others.
pub(super) const LOAD_WAIT: Duration = Duration::from_secs(2);
/// After that wait, the peer is told to retry after this time.
pub(super) const LOAD_RETRY: Duration = Duration::from_secs(2);
/// Time before a failed load is tried again: askers must not make this node read a damaged snapshot for ever.
const FAILED_RETRY: Duration = Duration::from_secs(300);

/// See the module.
pub(super) struct HeavyWork {
    merging: Threads,
    loading: Threads,
    /// Snapshots whose tree is loading (`None`) or failed to load, and until when the failure counts.
    loads: Mutex<BTreeMap<BatchNumber, Option<Instant>>>,
    /// Notifies waiters that a load ended.
    ended: watch::Sender<()>,
}

impl Default for HeavyWork {
    fn default() -> Self {
        let (merging, loading, loads) = Default::default();
        HeavyWork { merging, loading, loads, ended: watch::Sender::new(()) }
    }
}

impl HeavyWork {
    /// Runs a merge on these threads. The caller waits.
    pub(super) fn merge<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, ServeError> {
        self.merging.run("serve-merge", self.merge_threads(), work)
    }

    /// Number of threads that a merge takes.
    pub(super) fn merge_threads(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        (cores / 2).clamp(1, MERGE_THREADS_MAX)
    }

    /// Returns `None` if the tree of a snapshot is in memory. Otherwise a background thread loads it, once for all
    /// askers, and the receiver reports when a load ends. The call returns at once, because loading reads the whole
    /// state.
    pub(super) fn ready(
        self: &Arc<Self>,
        store: &Store,
        number: BatchNumber,
    ) -> Result<Option<watch::Receiver<()>>, ServeError> {
        // Subscribes before the look, so that an end in between is not missed.
        let ended = self.ended.subscribe();
        let Some(snapshot) = store.snapshot(number)?.filter(|snapshot| !snapshot.is_ready()) else {
            return Ok(None);
        };
        let now = Instant::now();
        let mut loads = self.loads.lock();
        loads.retain(|_, until| until.is_none_or(|until| now < until));
        match loads.get(&number) {
            Some(Some(_)) => return Err(ServeError::Failed("this node cannot read the snapshot")),
            Some(None) => {}
            None => {
                loads.insert(number, None);
                let load = SnapshotLoad { heavy: Arc::clone(self), number, failed: true };
                tokio::task::spawn_blocking(move || load.run(&snapshot));
            }
        }
        Ok(Some(ended))
    }
}

/// Threads for one kind of work, started when they are first needed.
#[derive(Default)]
struct Threads {
    /// `None` if the threads cannot be started.
    pool: OnceLock<Option<ThreadPool>>,
}

impl Threads {
    fn run<T: Send>(
        &self,
        name: &str,
        count: usize,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, ServeError> {
        let pool = self.pool.get_or_init(|| {
            let names = name.to_string();
            let builder = ThreadPoolBuilder::new().num_threads(count);
            match builder.thread_name(move |index| format!("{names}-{index}")).build() {
                Ok(pool) => Some(pool),
                Err(error) => {
                    tracing::error!(%error, threads = name, "cannot start these threads: this node refuses their work to peers");
                    None
                }
            }
        });
        pool.as_ref()
            .map(|pool| pool.install(work))
            .ok_or(ServeError::Failed("this node has no threads for this work"))
    }
}

/// A tree that is being loaded.
struct SnapshotLoad {
    heavy: Arc<HeavyWork>,
    number: BatchNumber,
    failed: bool,
}

impl SnapshotLoad {
    fn run(mut self, snapshot: &Snapshot) {
        let began = Instant::now();
        let loaded: Result<Result<(), StorageError>, ServeError> =
            self.heavy.loading.run("serve-load", 1, || snapshot.load());
        match loaded {
            Ok(Ok(())) => {
                self.failed = false;
                let took_ms = began.elapsed().as_millis() as u64;
                tracing::info!(batch = %self.number, took_ms, "loaded a snapshot that peers ask for");
            }
            Ok(Err(error)) => {
                tracing::warn!(batch = %self.number, %error, "cannot serve a snapshot; peers must take another");
            }
            // This was logged when the threads could not be started.
            Err(_) => {}
        }
    }
}

impl Drop for SnapshotLoad {
    fn drop(&mut self) {
        let mut loads = self.heavy.loads.lock();
        match self.failed {
            true => loads.insert(self.number, Some(Instant::now() + FAILED_RETRY)),
            false => loads.remove(&self.number),
        };
        drop(loads);
        self.heavy.ended.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Goal: a merge runs while a whole state is being read.
    #[test]
    fn a_merge_does_not_wait_for_a_load() {
        let heavy = HeavyWork::default();
        let (merged, gate) = mpsc::channel();
        let (begun, loads) = mpsc::channel();
        let load = move || {
            begun.send(()).unwrap();
            gate.recv_timeout(Duration::from_secs(60))
        };
        std::thread::scope(|scope| {
            let loading = scope.spawn(|| heavy.loading.run("serve-load", 1, load).unwrap());
            loads.recv().unwrap();
            heavy.merge(move || merged.send(()).unwrap()).unwrap();
            assert_eq!(loading.join().unwrap(), Ok(()));
        });
    }
}
