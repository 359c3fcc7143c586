//! [`Prefetcher`]: the threads that read ahead, and the order of their batches.

use std::{
    fmt,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Instant,
};

use parking_lot::{Condvar, Mutex};
use slipstream_storage::{StateReader, StorageError};
use slipstream_types::BatchNumber;

use super::{
    Pace, PrefetchBackend, PrefetchLimits, PrefetchRequest, WarmState,
    load::{Load, SORTED_KEYS},
    probe::Probe,
};

/// Keys that a thread takes at a time for point reads; also the minimum for a multi-get.
const POINT_KEYS: usize = 16;
/// Number of keys that all threads together multi-get at once. While some threads decode rows, the disk serves the
/// reads of the others.
const MULTI_GET_KEYS: usize = 512;

/// Reads ahead for batches on its own threads. The threads end when the prefetcher is dropped.
pub struct Prefetcher {
    pool: Arc<Pool>,
    threads: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Prefetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prefetcher of {} threads", self.threads.len())
    }
}

impl Prefetcher {
    /// Starts the threads.
    ///
    /// # Errors
    /// If the system cannot start more threads.
    pub fn new(limits: PrefetchLimits) -> std::io::Result<Prefetcher> {
        let queue =
            Queue { batches: Vec::new(), probe: Probe::new(limits.backend), is_closed: false, last: 0 };
        let pace = Pace::new(thread::available_parallelism().map_or(1, usize::from));
        let pool = Arc::new(Pool { queue: Mutex::new(queue), change: Condvar::new(), limits, pace });
        let mut prefetcher = Prefetcher { pool, threads: Vec::new() };
        for index in 0..limits.threads.max(1) {
            let pool = Arc::clone(&prefetcher.pool);
            let name = format!("prefetch-{index}");
            prefetcher.threads.push(thread::Builder::new().name(name).spawn(move || pool.work())?);
        }
        Ok(prefetcher)
    }

    /// Begins to read a batch's wanted keys from a state, and returns at once. The threads read until the returned
    /// handle is dropped. Batches with lower numbers come first.
    pub fn read_ahead<R: StateReader + 'static>(
        &self,
        number: BatchNumber,
        reader: R,
        wanted: PrefetchRequest,
    ) -> WarmState<R> {
        let load = Arc::new(Load::new(reader, wanted));
        let id = self.pool.push(number, Arc::clone(&load) as Arc<dyn Job>);
        WarmState::new(load, Some(Ticket { pool: Arc::clone(&self.pool), id }))
    }

    /// The judgement whether reading ahead is worth its cost. If not, callers may skip reading ahead.
    pub(crate) fn pace(&self) -> &Pace {
        &self.pool.pace
    }

    /// The back end that the probe has chosen, or is trying now.
    pub fn backend(&self) -> PrefetchBackend {
        self.pool.queue.lock().probe.backend()
    }
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        self.pool.queue.lock().is_closed = true;
        self.pool.change.notify_all();
        for thread in self.threads.drain(..) {
            // Only a reader can have panicked. Its key is queued again, and the thread that needs the key gets the same
            // panic.
            let _ = thread.join();
        }
    }
}

/// A [`Load`] of any reader.
trait Job: Send + Sync {
    /// See [`Load::read_some`].
    fn read_some(
        &self,
        backend: PrefetchBackend,
        keys_max: usize,
        pace: &Pace,
    ) -> Result<Option<usize>, StorageError>;
    /// Bytes of the rows and code read so far.
    fn bytes(&self) -> usize;
    /// Number of keys and codes whose read no thread has begun.
    fn left(&self) -> usize;
}

impl<R: StateReader> Job for Load<R> {
    fn read_some(
        &self,
        backend: PrefetchBackend,
        keys_max: usize,
        pace: &Pace,
    ) -> Result<Option<usize>, StorageError> {
        Load::read_some(self, backend, keys_max, Some(pace))
    }

    fn bytes(&self) -> usize {
        self.bytes.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn left(&self) -> usize {
        Load::left(self)
    }
}

struct Batch {
    id: u64,
    number: BatchNumber,
    job: Arc<dyn Job>,
    /// Whether every read of the batch has begun.
    is_handed_out: bool,
}

struct Queue {
    /// Batches by number: those that are being read, or were read but not executed.
    batches: Vec<Batch>,
    probe: Probe,
    is_closed: bool,
    /// Id of the newest batch.
    last: u64,
}

pub(super) struct Pool {
    queue: Mutex<Queue>,
    /// Wakes the threads.
    change: Condvar,
    limits: PrefetchLimits,
    pace: Pace,
}

/// Removes a batch from the queue when the ticket is dropped.
pub(super) struct Ticket {
    pool: Arc<Pool>,
    id: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut queue = self.pool.queue.lock();
        queue.batches.retain(|batch| batch.id != self.id);
        self.pool.wake(&queue);
    }
}

impl Pool {
    fn push(&self, number: BatchNumber, job: Arc<dyn Job>) -> u64 {
        let mut queue = self.queue.lock();
        queue.last += 1;
        let id = queue.last;
        let place = queue.batches.partition_point(|batch| batch.number <= number);
        let batch = Batch { id, number, job, is_handed_out: false };
        queue.batches.insert(place, batch);
        self.wake(&queue);
        id
    }

    /// Wakes as many threads as have work.
    fn wake(&self, queue: &Queue) {
        for _ in 0..queue.threads_wanted(&self.limits) {
            self.change.notify_one();
        }
    }

    /// The loop of one thread.
    fn work(&self) {
        let mut queue = self.queue.lock();
        while !queue.is_closed {
            let Some((id, job)) = queue.next(&self.limits) else {
                self.change.wait(&mut queue);
                continue;
            };
            let begun = queue.probe.begin(Instant::now());
            let keys_max = keys_at_once(begun.backend, self.limits.threads);
            let read = parking_lot::MutexGuard::unlocked(&mut queue, || {
                job.read_some(begun.backend, keys_max, &self.pace)
            });
            // After an error, nothing more of this batch is read ahead: execution will read the same key and report the
            // error.
            let read = read.unwrap_or(None);
            queue.probe.end(begun, read.unwrap_or(0), Instant::now());
            if read.is_none() {
                queue.hand_out(id);
            }
        }
    }
}

/// Number of keys that each of `threads` threads takes at a time.
fn keys_at_once(backend: PrefetchBackend, threads: usize) -> usize {
    match backend {
        PrefetchBackend::Threads => POINT_KEYS,
        PrefetchBackend::MultiGet => (MULTI_GET_KEYS / threads.max(1)).clamp(POINT_KEYS, SORTED_KEYS),
    }
}

impl Queue {
    /// The thread's next job.
    fn next(&self, limits: &PrefetchLimits) -> Option<(u64, Arc<dyn Job>)> {
        let held: usize = self.batches.iter().map(|batch| batch.job.bytes()).sum();
        let is_full = held >= limits.readahead_bytes;
        let readable = if is_full { 1 } else { 1 + limits.readahead_batches };
        let batch = self.batches.iter().take(readable).find(|batch| !batch.is_handed_out)?;
        Some((batch.id, Arc::clone(&batch.job)))
    }

    /// Number of threads with work now. Each thread takes at least [`POINT_KEYS`] keys, except the last.
    fn threads_wanted(&self, limits: &PrefetchLimits) -> usize {
        let readable = self.batches.iter().take(1 + limits.readahead_batches);
        let open = readable.filter(|batch| !batch.is_handed_out);
        // At least one thread must run to find that nothing is left.
        let keys: usize = open.map(|batch| batch.job.left().max(1)).sum();
        keys.div_ceil(POINT_KEYS).min(limits.threads.max(1))
    }

    /// Records that every read of a batch has begun.
    fn hand_out(&mut self, id: u64) {
        if let Some(batch) = self.batches.iter_mut().find(|batch| batch.id == id) {
            batch.is_handed_out = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch with this number of unread keys.
    struct Left(usize);

    impl Job for Left {
        fn read_some(&self, _: PrefetchBackend, _: usize, _: &Pace) -> Result<Option<usize>, StorageError> {
            Ok(None)
        }

        fn bytes(&self) -> usize {
            0
        }

        fn left(&self) -> usize {
            self.0
        }
    }

    /// Goal: a batch wakes no thread that would find nothing to read, whatever the number of threads.
    #[test]
    fn as_many_threads_are_wanted_as_there_is_work_for() {
        let limits = PrefetchLimits { threads: 16, readahead_batches: 2, ..PrefetchLimits::default() };
        let wanted = |lefts: &[usize], handed_out: usize| {
            let batch = |(index, left): (usize, &usize)| Batch {
                id: index as u64,
                number: BatchNumber::new(index as u64),
                job: Arc::new(Left(*left)),
                is_handed_out: index < handed_out,
            };
            let batches = lefts.iter().enumerate().map(batch).collect();
            let queue = Queue { batches, probe: Probe::new(None), is_closed: false, last: 0 };
            queue.threads_wanted(&limits)
        };
        assert_eq!(wanted(&[], 0), 0);
        assert_eq!(wanted(&[4], 0), 1, "a small batch");
        assert_eq!(wanted(&[0], 0), 1, "one thread finds that nothing is left");
        assert_eq!(wanted(&[POINT_KEYS + 1], 0), 2);
        assert_eq!(wanted(&[100_000], 0), 16);
        assert_eq!(wanted(&[4, 4, POINT_KEYS, 100_000], 0), 2, "the last is too far ahead");
        assert_eq!(wanted(&[4, 4, 4], 3), 0);
    }
}
