//! Checkpoints: snapshots that are held by number.

use std::sync::Arc;

use super::MemoryBackend;
use crate::{
    backend::{Checkpoints, NumberedReader, Reader, RowStore as _},
    error::StorageError,
};

impl Checkpoints for MemoryBackend {
    fn prepare_checkpoint(&self) -> Result<(), StorageError> {
        Ok(())
    }

    fn checkpoint(&self, number: u64) -> Result<Arc<dyn Reader>, StorageError> {
        let checkpoint = self.snapshot();
        self.checkpoints.lock().insert(number, Arc::clone(&checkpoint));
        Ok(checkpoint)
    }

    fn checkpoints(&self) -> Result<Vec<NumberedReader>, StorageError> {
        Ok(self.checkpoints.lock().iter().map(|(number, reader)| (*number, Arc::clone(reader))).collect())
    }

    fn remove_checkpoint(&self, number: u64) -> Result<(), StorageError> {
        self.checkpoints.lock().remove(&number);
        Ok(())
    }
}
