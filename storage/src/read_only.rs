//! [`ReadOnly`]: a store opened only to read it, even while a node runs on it.

use std::{io, path::Path, sync::Arc};

use slipstream_types::{
    AccountValue, Address, B256, BatchHeader, BatchNumber, Blob, BlobKind, Bytes, Certificate, Digest,
    StateKey, StateValue, U256,
};

use crate::{
    backend::{
        Column, Reader,
        rocks::{RocksCheckpoint, open_read_only},
    },
    config::StorageConfig,
    directory::{self, DATABASE_DIR, Mark, format},
    error::StorageError,
    floors::{read_headers_floor, read_record},
    history::{
        past_rows::{PastRows, recorded_from},
        past_state::PastState,
    },
    ledger::decode_blob,
    schema::{self, GENESIS_KEY, HEAD_KEY, HeadRecord, PrunedRecord, kind_index},
    transactions,
};

/// Maximum number of tries to open: a running node may change its files while they are read.
const ATTEMPTS: usize = 20;

/// The store as it was when it was opened.
pub struct ReadOnly {
    reader: Arc<dyn Reader>,
    head: HeadRecord,
    pruned: PrunedRecord,
    headers_floor: BatchNumber,
}

/// Opens the database so that its tables and its log are of one moment. RocksDB reads the tables first. If tables are
/// added before it reads the log, the log describes tables that the reader lacks.
fn open_whole(config: &StorageConfig, dir: &Path) -> Result<Arc<RocksCheckpoint>, StorageError> {
    let mut attempts = 1;
    loop {
        let before = directory::manifest(dir)?;
        let opened = open_read_only(config, &dir.join(DATABASE_DIR));
        let is_whole = directory::manifest(dir)? == before;
        match opened {
            Ok(reader) if is_whole => return Ok(reader),
            Err(error) if attempts == ATTEMPTS => return Err(error),
            Ok(_) if attempts == ATTEMPTS => {
                let error =
                    io::Error::other("its files change too fast for a reader to open them: try again");
                return Err(StorageError::io("open", dir, error));
            }
            _ => attempts += 1,
        }
    }
}

impl ReadOnly {
    /// Opens the store in a directory, and reads its log into memory. Writes nothing.
    ///
    /// # Errors
    /// [`StorageError::NotInitialized`] without a genesis; errors of [`crate::Store::open`] about formats; errors of
    /// the disk. If a running node changes files meanwhile, a second attempt may succeed.
    pub fn open(config: &StorageConfig, dir: &Path) -> Result<ReadOnly, StorageError> {
        Self::open_now(config, dir).or_else(|error| {
            // Reports missing files as an open for writing does.
            directory::expect(dir)?;
            Err(error)
        })
    }

    fn open_now(config: &StorageConfig, dir: &Path) -> Result<ReadOnly, StorageError> {
        format::check(dir)?;
        // A running node advances the mark.
        let mark = Mark::read(dir)?;
        let (manifest, manifest_bytes) = directory::manifest(dir)?;
        mark.check_manifest(dir, &manifest, manifest_bytes)?;
        let reader = open_whole(config, dir)?;
        reader.check_change(dir, &mark)?;
        let head = reader.get(Column::Meta, HEAD_KEY)?.ok_or(StorageError::NotInitialized)?;
        let head = schema::decode("head record", &head)?;
        let (pruned, headers_floor) = (read_record(&*reader)?, read_headers_floor(&*reader)?);
        Ok(ReadOnly { reader, head, pruned, headers_floor })
    }

    /// The last committed batch.
    pub fn head(&self) -> BatchNumber {
        self.head.number
    }

    /// Returns a batch's header; `None` beyond the head, if it was pruned, and in the gap that a restore leaves.
    ///
    /// # Errors
    /// Errors of the disk, or damage in the store.
    pub fn header(&self, number: BatchNumber) -> Result<Option<BatchHeader>, StorageError> {
        if self.is_header_pruned(number) {
            return Ok(None);
        }
        let bytes = self.reader.get(Column::Headers, &schema::number_key(number))?;
        bytes.map(|bytes| schema::decode("header", &bytes)).transpose()
    }

    /// Returns a part of a batch, as it was made.
    ///
    /// # Errors
    /// Errors of the disk, or damage in the store.
    pub fn blob(&self, kind: BlobKind, number: BatchNumber) -> Result<Option<Blob>, StorageError> {
        let Some(column) = schema::blob_column(kind) else { return Ok(None) };
        let is_pruned = kind_index(kind).is_some_and(|index| number < self.pruned.below[index]);
        let bytes = match column {
            Column::Bodies if number == BatchNumber::GENESIS => self.reader.get(Column::Meta, GENESIS_KEY)?,
            _ if is_pruned => None,
            _ => self.reader.get(column, &schema::number_key(number))?,
        };
        bytes.map(decode_blob).transpose()
    }

    /// Returns the certificate of exactly this batch.
    ///
    /// # Errors
    /// Errors of the disk, or damage in the store.
    pub fn certificate(&self, number: BatchNumber) -> Result<Option<Certificate>, StorageError> {
        if self.is_header_pruned(number) {
            return Ok(None);
        }
        let bytes = self.reader.get(Column::Certificates, &schema::number_key(number))?;
        bytes.map(|bytes| schema::decode("certificate", &bytes)).transpose()
    }

    /// Returns the possible places of the transaction with a hash: batch, and index there. Only the start of the hash
    /// was compared.
    ///
    /// # Errors
    /// Errors of the disk, or damage in the store.
    pub fn transaction_places(&self, hash: &B256) -> Result<Vec<(BatchNumber, u32)>, StorageError> {
        let mut places = Vec::new();
        let from = transactions::prefix(hash);
        self.reader.scan_alike(Column::Transactions, from, from.len(), &mut |key, _| {
            places.push(transactions::decode_place(key)?);
            Ok(std::ops::ControlFlow::Continue(()))
        })?;
        places.retain(|(number, _)| *number >= self.pruned.below[0]);
        Ok(places)
    }

    /// Returns contract code by its Keccak-256.
    ///
    /// # Errors
    /// Errors of the disk, or damage in the store.
    pub fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        Ok(self.reader.get(Column::Codes, &hash.0)?.map(Bytes::from))
    }

    /// Returns the first batch after which the state is known. All later states up to the head are known too.
    ///
    /// # Errors
    /// Errors of the disk, or damage in the store.
    pub fn states_from(&self) -> Result<BatchNumber, StorageError> {
        Ok(recorded_from(&*self.reader)?.unwrap_or(self.head.number))
    }

    /// Returns an account after a batch; `None` if it is empty.
    ///
    /// # Errors
    /// [`StorageError::StateNotKept`] if the state after that batch is not known, or errors of the disk.
    pub fn account(&self, address: &Address, at: BatchNumber) -> Result<Option<AccountValue>, StorageError> {
        match self.row(&StateKey::Account(*address), at)? {
            None => Ok(None),
            Some(StateValue::Account(account)) => Ok(Some(account)),
            Some(StateValue::Slot(_)) => {
                Err(StorageError::corrupt(format!("the row of account {address} holds a slot")))
            }
        }
    }

    /// Returns a storage slot after a batch; zero if it was never set.
    ///
    /// # Errors
    /// As [`ReadOnly::account`].
    pub fn slot(&self, address: &Address, slot: &B256, at: BatchNumber) -> Result<U256, StorageError> {
        match self.row(&StateKey::Slot(*address, *slot), at)? {
            None => Ok(U256::ZERO),
            Some(StateValue::Slot(value)) => Ok(value),
            Some(StateValue::Account(_)) => {
                Err(StorageError::corrupt(format!("the row of slot {slot} of {address} holds an account")))
            }
        }
    }

    fn row(&self, key: &StateKey, at: BatchNumber) -> Result<Option<StateValue>, StorageError> {
        let (path, head) = (key.path(), self.head.number);
        if at > head || at < self.states_from()? {
            return Err(StorageError::StateNotKept { number: at });
        }
        if at < head {
            let header = self.header(at)?.ok_or(StorageError::StateNotKept { number: at })?;
            let past_rows = PastRows::load(Arc::clone(&self.reader), head)?;
            if let Some(row) =
                PastState::new(header, head, Arc::new(past_rows)).rows(&[path])?.pop().flatten()
            {
                return Ok(row);
            }
        }
        let row = self.reader.get(self.head.active.column(), &path.0)?;
        Ok(row.map(|row| schema::decode_row(&row)).transpose()?.map(|(_, value)| value))
    }

    fn is_header_pruned(&self, number: BatchNumber) -> bool {
        schema::is_header_pruned(number, self.headers_floor.get())
    }
}
