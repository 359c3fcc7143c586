//! A backend that passes the crash points of [`crate::crash`] around each change of the backend that it wraps.
//!
//! It recognises the steps by what they write, so production code knows nothing of faults.

use std::sync::Arc;

use slipstream_types::BatchNumber;

use super::{
    Backend, Checkpoints, Column, ColumnSize, Direction, FreedSpace, IoCounts, NumberedReader, Reader,
    RowStore, SortedFile, Upkeep, Visit, Write, WriteBatch,
};
use crate::{
    crash::{CrashPoint, Faults, WriteStep},
    error::StorageError,
    schema::{
        self, HEAD_KEY, HISTORY_KEY, HeadRecord, KEPT_KEY, PRUNED_HEADERS_KEY, PRUNED_KEY, RESTORE_KEY,
        SEALED_KEY,
    },
};

pub(crate) struct FaultyBackend {
    inner: Arc<dyn Backend>,
    faults: Faults,
}

impl FaultyBackend {
    /// Returns the backend itself if there are no faults to make.
    pub(crate) fn wrap(inner: Arc<dyn Backend>, faults: &Faults) -> Arc<dyn Backend> {
        if faults.is_none() { inner } else { Arc::new(FaultyBackend { inner, faults: faults.clone() }) }
    }

    fn around<T>(
        &self,
        step: WriteStep,
        work: impl FnOnce() -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        around(&self.faults, step, work)
    }
}

fn around<T>(
    faults: &Faults,
    step: WriteStep,
    work: impl FnOnce() -> Result<T, StorageError>,
) -> Result<T, StorageError> {
    faults.pass(CrashPoint::Before(step))?;
    let result = work()?;
    faults.pass(CrashPoint::After(step))?;
    Ok(result)
}

/// A file whose rows become durable in one step and visible in another. Before the second step, it leaves nothing
/// that outlives the next start.
struct FaultyFile {
    inner: Box<dyn SortedFile>,
    faults: Faults,
    seal: WriteStep,
    ingest: WriteStep,
}

impl SortedFile for FaultyFile {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), StorageError> {
        self.inner.put(key, value)
    }

    fn seal(&mut self) -> Result<(), StorageError> {
        around(&self.faults, self.seal, || self.inner.seal())
    }

    fn ingest(self: Box<Self>) -> Result<(), StorageError> {
        let FaultyFile { inner, faults, ingest, .. } = *self;
        around(&faults, ingest, || inner.ingest())
    }
}

/// Returns the step that a write makes; `None` for an empty write.
///
/// # Panics
/// If a write has no known step. Each new kind of write needs a step of its own, so that tests crash around it.
fn step_of(batch: &WriteBatch) -> Option<WriteStep> {
    let any = |test: &dyn Fn(&Write) -> bool| batch.0.iter().any(test);
    let puts = |column: Column| any(&|write| matches!(write, Write::Put(at, ..) if *at == column));
    let head = batch.0.iter().find_map(|write| match write {
        Write::Put(Column::Meta, key, value) if key == HEAD_KEY => Some(value),
        _ => None,
    });
    let sets = |name: &[u8]| any(&|write| matches!(write, Write::Put(Column::Meta, key, _) if key == name));
    let progress = sets(RESTORE_KEY);
    let ends = any(&|write| matches!(write, Write::Delete(Column::Meta, key) if key == RESTORE_KEY));
    // A leap restarts the history of states; a backfill leaves it as it is.
    let leaps = any(&|write| matches!(write, Write::Delete(Column::Meta, key) if key == HISTORY_KEY));
    let clears = any(&|write| matches!(write, Write::Clear(_)));
    let drops_headers = any(&|write| matches!(write, Write::ClearRange(Column::Headers, ..)));
    let removes_records = any(&|write| matches!(write, Write::Delete(Column::Records, _)));
    Some(match head {
        Some(_) if ends => WriteStep::RestoreFinish,
        Some(_) if drops_headers => WriteStep::Rollback,
        Some(_) if sets(KEPT_KEY) && !leaps => WriteStep::Backfill,
        Some(record) => match schema::decode::<HeadRecord>("head record", record) {
            Ok(record) if record.number > BatchNumber::GENESIS => WriteStep::Commit,
            _ => WriteStep::Initialize,
        },
        None if progress && clears => WriteStep::RestoreStart,
        None if progress => WriteStep::RestoreChunk,
        None if ends => WriteStep::RestoreDiscard,
        None if any(&|write| matches!(write, Write::Rows(..))) => WriteStep::Repair,
        None if sets(PRUNED_KEY) || sets(PRUNED_HEADERS_KEY) => WriteStep::PruneRecord,
        None if puts(Column::Records) || removes_records => WriteStep::PutRecord,
        None if puts(Column::Certificates) || puts(Column::EpochEnds) => WriteStep::PutCertificate,
        None if sets(SEALED_KEY) || sets(HISTORY_KEY) => WriteStep::HistoryRecord,
        None if puts(Column::Codes) => WriteStep::RestoreCode,
        None if batch.0.is_empty() => return None,
        None => panic!("this write makes no step of crash::Step, give it one: {:?}", batch.0),
    })
}

impl Reader for FaultyBackend {
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.inner.get(column, key)
    }

    fn multi_get(&self, column: Column, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        self.inner.multi_get(column, keys)
    }

    fn scan(
        &self,
        column: Column,
        from: &[u8],
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), StorageError> {
        self.inner.scan(column, from, direction, visit)
    }

    fn scan_alike(
        &self,
        column: Column,
        from: &[u8],
        alike: usize,
        visit: &mut Visit<'_>,
    ) -> Result<(), StorageError> {
        self.inner.scan_alike(column, from, alike, visit)
    }
}

impl RowStore for FaultyBackend {
    fn write(&self, batch: WriteBatch, durable: bool) -> Result<(), StorageError> {
        match step_of(&batch) {
            Some(step) => self.around(step, || self.inner.write(batch, durable)),
            None => self.inner.write(batch, durable),
        }
    }

    /// Small states use files too, so that tests crash around them.
    fn file_bytes_min(&self, _usual: usize) -> usize {
        0
    }

    fn sorted_file(&self, column: Column) -> Result<Box<dyn SortedFile>, StorageError> {
        let inner = self.inner.sorted_file(column)?;
        let (seal, ingest) = match column {
            Column::History => (WriteStep::HistorySeal, WriteStep::HistoryRows),
            _ => (WriteStep::RestoreSeal, WriteStep::RestoreRows),
        };
        Ok(Box::new(FaultyFile { inner, faults: self.faults.clone(), seal, ingest }))
    }

    fn snapshot(&self) -> Arc<dyn Reader> {
        self.inner.snapshot()
    }

    fn has_readers_beyond(&self, known: usize) -> bool {
        self.inner.has_readers_beyond(known)
    }
}

impl Checkpoints for FaultyBackend {
    fn prepare_checkpoint(&self) -> Result<(), StorageError> {
        self.inner.prepare_checkpoint()
    }

    fn checkpoint(&self, number: u64) -> Result<Arc<dyn Reader>, StorageError> {
        self.around(WriteStep::MakeSnapshot, || self.inner.checkpoint(number))
    }

    fn checkpoints(&self) -> Result<Vec<NumberedReader>, StorageError> {
        self.inner.checkpoints()
    }

    fn remove_checkpoint(&self, number: u64) -> Result<(), StorageError> {
        self.around(WriteStep::DropSnapshot, || self.inner.remove_checkpoint(number))
    }
}

impl Upkeep for FaultyBackend {
    fn size(&self, column: Column) -> Result<ColumnSize, StorageError> {
        self.inner.size(column)
    }

    fn io_counts(&self) -> IoCounts {
        self.inner.io_counts()
    }

    fn drop_cached(&self) {
        self.inner.drop_cached();
    }

    fn droppable(&self, column: Column, from: &[u8], below: &[u8]) -> Result<FreedSpace, StorageError> {
        self.inner.droppable(column, from, below)
    }

    fn drop_between(&self, column: Column, from: &[u8], below: &[u8]) -> Result<FreedSpace, StorageError> {
        let step = if column == Column::HistoryLog { WriteStep::HistoryDrop } else { WriteStep::PruneDrop };
        self.around(step, || self.inner.drop_between(column, from, below))
    }

    fn key_within(&self, column: Column, bytes: u64) -> Result<Option<Vec<u8>>, StorageError> {
        self.inner.key_within(column, bytes)
    }

    fn reclaim(&self, column: Column, readers: usize) -> Result<(), StorageError> {
        self.around(WriteStep::Reclaim, || self.inner.reclaim(column, readers))
    }

    fn drop_files(&self, column: Column) -> Result<(), StorageError> {
        self.around(WriteStep::Reclaim, || self.inner.drop_files(column))
    }

    fn forget_transactions_below(&self, number: u64) {
        self.inner.forget_transactions_below(number);
    }

    fn forget_headers_below(&self, number: u64) {
        self.inner.forget_headers_below(number);
    }

    fn forget_history_up_to(&self, number: u64) {
        self.inner.forget_history_up_to(number);
    }
}
