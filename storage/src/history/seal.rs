//! [`Sealer`]: moves the log into the history, in bulk and beside the commits.
//!
//! ```text
//!  log: values of batches (sealed, t] ─▶ merged by path ─▶ sorted file ─▶ linked into history ─▶ record: sealed = t ─▶ log files dropped
//! ```
//! A kill at any moment only wastes work: rows linked in but unrecorded are linked in again, with the same content.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{SyncSender, sync_channel},
    },
    thread::JoinHandle,
};

use parking_lot::Mutex;
use slipstream_types::{BatchNumber, Path};

use super::past_rows::PastRows;
use crate::{
    backend::{Backend, Column, WriteBatch},
    disk::DiskGuard,
    error::StorageError,
    history_log::{LogEntry, LogValue},
    schema::{self, SEALED_KEY},
    tuning::Tuning,
};

/// A piece of sealing work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SealJob {
    /// The first batch after which the state is known.
    pub(crate) first: BatchNumber,
    /// The log is sealed up to this batch, which is the last one of some log value. `None`: only files are dropped.
    pub(crate) to: Option<BatchNumber>,
}

/// The thread that seals. A store in memory seals during the commit instead, so that a simulation is the same each
/// time.
pub(crate) struct Sealer {
    seal: Arc<SealWorker>,
    has_thread: bool,
    /// Started by the first job.
    thread: Mutex<Option<(SyncSender<SealJob>, JoinHandle<()>)>>,
}

/// The part that the sealing thread works on.
struct SealWorker {
    past_rows: Arc<PastRows>,
    backend: Arc<dyn Backend>,
    disk: Option<Arc<DiskGuard>>,
    /// Whether the store refuses work after a failed write; shared with the store.
    poisoned: Arc<AtomicBool>,
    is_busy: AtomicBool,
    is_ending: AtomicBool,
    /// Batches of the log up to this one were dropped, except those that share a file with later ones.
    dropped: AtomicU64,
    /// After a failure, nothing is sealed until the head reaches this batch.
    resting: AtomicU64,
    tuning: Tuning,
}

impl Sealer {
    /// Creates the sealer of a store. It has a thread if the store is on a disk.
    pub(crate) fn new(
        past_rows: Arc<PastRows>,
        backend: Arc<dyn Backend>,
        disk: Option<Arc<DiskGuard>>,
        poisoned: Arc<AtomicBool>,
        tuning: Tuning,
    ) -> Sealer {
        let has_thread = disk.is_some();
        let (is_busy, is_ending) = (AtomicBool::new(false), AtomicBool::new(false));
        let (dropped, resting) = (AtomicU64::new(0), AtomicU64::new(0));
        let seal =
            SealWorker { past_rows, backend, disk, poisoned, is_busy, is_ending, dropped, resting, tuning };
        Sealer { seal: Arc::new(seal), has_thread, thread: Mutex::default() }
    }

    /// Starts a job, unless one is running or there is too little to do. The head serves as a clock.
    pub(crate) fn ask(&self, mut job: SealJob, head: BatchNumber) {
        let seal = &*self.seal;
        let Tuning { log_slack_batches, seal_pause_batches, .. } = seal.tuning;
        job.to = job.to.filter(|_| head.get() >= seal.resting.load(Ordering::Relaxed));
        let droppable = job.first.get().saturating_sub(log_slack_batches);
        let is_due = droppable >= seal.dropped.load(Ordering::Relaxed).saturating_add(seal_pause_batches);
        if job.to.is_none() && !is_due || seal.is_busy.swap(true, Ordering::AcqRel) {
            return;
        }
        seal.resting.store(head.get() + seal_pause_batches, Ordering::Relaxed);
        match self.has_thread {
            true => self.send(job),
            false => seal.work(job),
        }
    }

    /// Waits until the requested work is done.
    pub(crate) fn finish(&self) {
        let taken = self.thread.lock().take();
        if let Some((sender, thread)) = taken {
            drop(sender);
            let _ = thread.join();
        }
    }

    fn send(&self, job: SealJob) {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let (sender, jobs) = sync_channel::<SealJob>(1);
            let seal = Arc::clone(&self.seal);
            let work = move || jobs.into_iter().for_each(|job| seal.work(job));
            let spawned = std::thread::Builder::new().name("history".to_owned()).spawn(work);
            *thread = spawned.ok().map(|spawned| (sender, spawned));
        }
        // The channel has room, because there is one job at a time. Without a thread the log stays as it is.
        if thread.as_ref().is_none_or(|(sender, _)| sender.try_send(job).is_err()) {
            *thread = None;
            self.seal.is_busy.store(false, Ordering::Release);
        }
    }
}

impl Drop for Sealer {
    fn drop(&mut self) {
        self.seal.is_ending.store(true, Ordering::Release);
        self.finish();
    }
}

impl SealWorker {
    fn work(&self, job: SealJob) {
        let done = match job.to {
            Some(to) => self.seal(job.first, to),
            None => self.drop_log(job.first),
        };
        match done {
            // The next job may start as soon as there is enough to do.
            Ok(()) => self.resting.store(0, Ordering::Relaxed),
            Err(error) => tracing::warn!(
                %error, sealed = %self.past_rows.sealed(), to = ?job.to.map(|to| to.get()),
                "cannot seal the history: its log grows, and reads of past states are slow"
            ),
        }
        self.is_busy.store(false, Ordering::Release);
    }

    fn seal(&self, first: BatchNumber, to: BatchNumber) -> Result<(), StorageError> {
        self.past_rows.skip_to(first);
        let mut sealed = first.max(self.past_rows.sealed());
        while sealed < to && !self.is_ending.load(Ordering::Acquire) {
            let values = self.read(sealed, to)?;
            let Some((last, _)) = values.last() else {
                return match self.past_rows.gap(sealed)? {
                    // The window was restarted.
                    StorageError::StateNotKept { .. } => Ok(()),
                    error => Err(error),
                };
            };
            sealed = schema::decode_number(last)?;
            self.link(&values)?;
            // Synced even without `fsync`: the record must outlive a power cut, because it says that rows gone from the
            // log are in the history.
            self.past_rows.seal(sealed, |sealed| {
                let mut record = WriteBatch::default();
                record.put(
                    Column::Meta,
                    SEALED_KEY,
                    schema::encode(&sealed.unwrap_or(self.past_rows.sealed())),
                );
                self.guard(|backend| backend.write(record, true))
            })?;
            self.drop_log(first)?;
        }
        Ok(())
    }

    /// Reads the log's next values up to a batch; returns an empty list if the log has a gap there.
    fn read(&self, sealed: BatchNumber, to: BatchNumber) -> Result<Vec<Value>, StorageError> {
        let (mut values, mut bytes, mut known): (Vec<Value>, _, _) = (Vec::new(), 0, sealed);
        self.past_rows.log(sealed, |key, value| {
            let LogValue { first, last, .. } = LogValue::parse(key, value)?;
            bytes += value.len();
            if first > known.next()
                || last > to
                || !values.is_empty() && bytes > self.tuning.seal_bytes_at_once
            {
                return Ok(ControlFlow::Break(()));
            }
            known = last;
            values.push((key.to_vec(), value.to_vec()));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(values)
    }

    /// Writes values to a sorted file, and links it into the history.
    fn link(&self, values: &[Value]) -> Result<(), StorageError> {
        let bytes: usize = values.iter().map(|(_, value)| value.len()).sum();
        self.disk.as_ref().map_or(Ok(()), |disk| disk.check_bytes(bytes as u64))?;
        let mut entries = Vec::new();
        for (key, value) in values {
            for entry in LogValue::parse(key, value)?.iter() {
                entries.push(entry?);
            }
        }
        // The stable sort merges runs that are sorted already.
        entries.sort_by_key(|LogEntry { path, batch, .. }| (*path, *batch));
        self.guard(|backend| link(backend, entries.iter().copied()))
    }

    /// Drops the log's files whose batches are all sealed, or from before the window.
    fn drop_log(&self, first: BatchNumber) -> Result<(), StorageError> {
        let before = first.get().saturating_sub(self.tuning.log_slack_batches);
        let droppable = BatchNumber::new(before.max(self.past_rows.sealed().get()));
        self.dropped.store(before, Ordering::Relaxed);
        self.guard(|backend| {
            // The record of the seal must be durable first.
            backend.write(WriteBatch::default(), true)?;
            backend.drop_between(Column::HistoryLog, &[], &schema::number_key(droppable.next()))
        })?;
        Ok(())
    }

    /// Runs `work`, which writes. A failure poisons the store, like that of any write.
    fn guard<T>(
        &self,
        work: impl FnOnce(&dyn Backend) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        if self.poisoned.load(Ordering::Acquire) {
            return Err(StorageError::Poisoned);
        }
        work(&*self.backend).inspect_err(|error| {
            self.poisoned.store(true, Ordering::Release);
            tracing::error!(%error, "a write to the store's history failed: the store refuses further work");
        })
    }
}

/// Writes entries, sorted by path and batch, to a sorted file, and links it into the history.
pub(crate) fn link<'a>(
    backend: &dyn Backend,
    entries: impl Iterator<Item = LogEntry<'a>>,
) -> Result<(), StorageError> {
    let mut file = backend.sorted_file(Column::History)?;
    for LogEntry { path, batch, row } in entries {
        file.put(&schema::history_key(&Path(*path), batch), row)?;
    }
    file.seal()?;
    // Syncs first: without `fsync`, a power cut could undo rows that the history states as facts.
    backend.write(WriteBatch::default(), true)?;
    file.ingest()
}

/// A value of the log, with its key.
type Value = (Vec<u8>, Vec<u8>);
