//! [`View`]: the state at one head.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

use slipstream_types::{
    AccountValue, Address, B256, BatchHeader, BatchNumber, Bytes, Digest, Path, StateKey, StateValue, U256,
    accumulator::NodePosition,
};

use crate::{
    backend::{Column, IoCounts, Reader},
    error::StorageError,
    history::past_state::PastState,
    nodes::read_node,
    schema,
    shared::HeadState,
    store::Store,
};

/// Consistent reads of the state at one head, from any thread, for as long as the view is kept. It keeps old rows
/// from being freed: drop it when the head has moved on.
#[derive(Clone)]
pub struct View {
    current: Arc<HeadState>,
    /// The past state that it shows instead of the head's.
    past: Option<Arc<PastState>>,
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View of batch {}", self.head().number)
    }
}

impl Store {
    /// Returns the state at the head. It does not change when the head moves on.
    ///
    /// # Errors
    /// [`StorageError::NotInitialized`].
    pub fn view(&self) -> Result<View, StorageError> {
        Ok(View::new(self.current()?))
    }

    /// Returns the disk work since the store was opened; zero for a store in memory.
    pub fn io_counts(&self) -> IoCounts {
        self.0.backend.io_counts()
    }

    /// Empties the block cache except for index and filter blocks, as if the store had just been opened: for
    /// measurements.
    pub fn drop_cached(&self) {
        self.0.backend.drop_cached();
    }
}

impl View {
    pub(crate) fn new(current: Arc<HeadState>) -> View {
        View { current, past: None }
    }

    pub(crate) fn of_past(current: Arc<HeadState>, past: PastState) -> View {
        View { current, past: Some(Arc::new(past)) }
    }

    /// Returns the header of the batch whose state it shows.
    pub fn head(&self) -> &BatchHeader {
        self.past.as_ref().map_or(&self.current.head.header, |past| &past.header)
    }

    /// Returns an account; `None` if it is empty.
    pub fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        match self.row(&StateKey::Account(*address))? {
            None => Ok(None),
            Some(StateValue::Account(account)) => Ok(Some(account)),
            Some(StateValue::Slot(_)) => {
                Err(StorageError::corrupt(format!("the row of account {address} holds a slot")))
            }
        }
    }

    /// Returns a storage slot; zero if it was never set.
    pub fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        match self.row(&StateKey::Slot(*address, *slot))? {
            None => Ok(U256::ZERO),
            Some(StateValue::Slot(value)) => Ok(value),
            Some(StateValue::Account(_)) => {
                Err(StorageError::corrupt(format!("the row of slot {slot} of {address} holds an account")))
            }
        }
    }

    /// Returns many rows at once, in the order of their keys: far cheaper than one by one when they come from disk.
    pub fn rows(&self, keys: &[StateKey]) -> Result<Vec<Option<StateValue>>, StorageError> {
        let mut paths: Vec<(Path, usize)> = keys.iter().enumerate().map(|(i, key)| (key.path(), i)).collect();
        paths.sort_unstable();
        let mut values = vec![None; keys.len()];
        if let Some(past) = &self.past {
            let sorted: Vec<Path> = paths.iter().map(|(path, _)| *path).collect();
            let mut changed = past.rows(&sorted)?.into_iter();
            paths.retain(|(_, index)| match changed.next().flatten() {
                Some(value) => {
                    values[*index] = value;
                    false
                }
                None => true,
            });
        }
        let sorted: Vec<&[u8]> = paths.iter().map(|(path, _)| &path.0[..]).collect();
        let found = self.current.reader.multi_get(self.current.record.active.column(), &sorted)?;
        for ((_, index), row) in paths.iter().zip(found) {
            values[*index] = row.map(|row| schema::decode_row(&row)).transpose()?.map(|(_, value)| value);
        }
        Ok(values)
    }

    /// Returns contract code by its Keccak-256.
    pub fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        Ok(self.lasting().get(Column::Codes, &hash.0)?.map(Bytes::from))
    }

    /// Returns the code of many contracts, in the order of their hashes.
    pub fn codes(&self, hashes: &[Digest]) -> Result<Vec<Option<Bytes>>, StorageError> {
        let mut sorted: Vec<(&[u8], usize)> =
            hashes.iter().enumerate().map(|(index, hash)| (&hash.0[..], index)).collect();
        sorted.sort_unstable();
        let keys: Vec<&[u8]> = sorted.iter().map(|(key, _)| *key).collect();
        let mut codes = vec![None; hashes.len()];
        for ((_, index), code) in sorted.iter().zip(self.lasting().multi_get(Column::Codes, &keys)?) {
            codes[*index] = code.map(Bytes::from);
        }
        Ok(codes)
    }

    /// Returns the digest of a header up to the head, for BLOCKHASH; `None` in the gap that a restore leaves.
    ///
    /// # Errors
    /// [`StorageError::StateNotKept`] if it was pruned since the view was made, or errors of the disk.
    pub fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        let found = read_node(self.lasting(), NodePosition { level: 0, index: number.get() })?;
        // Checked afterwards: pruned headers go from old views too.
        let floor = self.current.headers_floor.load(Ordering::Acquire);
        match found.is_none() && schema::is_header_pruned(number, floor) {
            true => Err(StorageError::StateNotKept { number: self.head().number }),
            false => Ok(found),
        }
    }

    /// Returns a reader for data that never changes. A past state may need such data from after the state that the view
    /// reads.
    fn lasting(&self) -> &dyn Reader {
        self.past.as_ref().map_or(&*self.current.reader, |past| past.lasting())
    }

    fn row(&self, key: &StateKey) -> Result<Option<StateValue>, StorageError> {
        let path = key.path();
        if let Some(past) = &self.past
            && let Some(row) = past.rows(&[path])?.pop().flatten()
        {
            return Ok(row);
        }
        let row = self.current.reader.get(self.current.record.active.column(), &path.0)?;
        Ok(row.map(|row| schema::decode_row(&row)).transpose()?.map(|(_, value)| value))
    }
}
