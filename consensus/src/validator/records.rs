//! [`Records`]: what this validator must find again after a crash, under typed names in the store.
//!
//! A record is durable before the signature that it covers. What is kept in memory is what is known to be durable: a record that
//! could not be written changes nothing here, and nothing was signed on it.

use std::{marker::PhantomData, sync::Arc};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use slipstream_storage::Store;
use slipstream_types::{BatchHeader, BatchNumber, Blob, Digest, blob::BLOB_BYTES_MAX, codec};

use crate::{error::RecordError, protocol::record::Vote};

/// The place of one record: its name in the store and what is kept there.
struct Slot<T> {
    name: &'static str,
    what: &'static str,
    bytes_max: usize,
    keeps: PhantomData<fn() -> T>,
}

/// The last vote: a header and a body at most.
const VOTE: Slot<VoteRecord> =
    Slot { name: "consensus/vote", what: "vote record", bytes_max: BLOB_BYTES_MAX, keeps: PhantomData };

impl<T: Serialize + DeserializeOwned> Slot<T> {
    fn load(&self, store: &Store) -> Result<Option<T>, RecordError> {
        let Some(bytes) = store.record(self.name)? else { return Ok(None) };
        codec::decode(self.what, &bytes, self.bytes_max).map(Some).map_err(RecordError::Unreadable)
    }

    /// Replaces what is there; durable when it returns.
    fn save(&self, store: &Store, record: &T) -> Result<(), RecordError> {
        let bytes = codec::encode(self.what, record).map_err(RecordError::Unreadable)?;
        Ok(store.put_record(self.name, &bytes)?)
    }
}

/// The last vote of this validator.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct VoteRecord {
    number: BatchNumber,
    /// Of the ledger info that was signed.
    info: Digest,
    /// What the proposer must propose again after a restart, because its signature on it may be known already.
    proposal: Option<(BatchHeader, Blob)>,
}

impl VoteRecord {
    pub(super) fn new(vote: Vote, proposal: Option<(BatchHeader, Blob)>) -> VoteRecord {
        VoteRecord { number: vote.number, info: vote.info, proposal }
    }

    /// What was signed.
    pub(super) fn vote(&self) -> Vote {
        Vote { number: self.number, info: self.info }
    }

    /// The batch, if this validator proposed it, and its body.
    pub(super) fn proposal(&self) -> Option<&(BatchHeader, Blob)> {
        self.proposal.as_ref()
    }
}

/// The keeper of the records.
pub(super) struct Records {
    store: Store,
    last: Option<Arc<VoteRecord>>,
}

impl Records {
    /// Reads what was recorded before.
    ///
    /// # Errors
    /// If it cannot be read: voting on without it would risk a second vote.
    pub(super) fn open(store: Store) -> Result<Records, RecordError> {
        let last = VOTE.load(&store)?.map(Arc::new);
        Ok(Records { store, last })
    }

    /// The last vote on record.
    pub(super) fn last(&self) -> Option<&Arc<VoteRecord>> {
        self.last.as_ref()
    }

    /// Work that blocks until the vote is durable. Its result goes to [`Records::written`].
    pub(super) fn write(
        &self,
        record: VoteRecord,
    ) -> impl FnOnce() -> Result<VoteRecord, RecordError> + Send + 'static {
        let store = self.store.clone();
        move || VOTE.save(&store, &record).map(|()| record)
    }

    /// That record is durable.
    pub(super) fn written(&mut self, record: VoteRecord) {
        self.last = Some(Arc::new(record));
    }
}

#[cfg(test)]
mod tests {
    use slipstream_storage::StorageConfig;

    use super::*;
    use crate::testing::{genesis, store};

    fn vote(number: u64) -> Vote {
        Vote { number: BatchNumber(number), info: Digest::tagged("info", b"") }
    }

    /// Goal: what is on record is what was written last, also for whoever opens the store again, and nothing before it is written.
    #[test]
    fn a_record_is_found_again() {
        let genesis = genesis(1);
        let dir = tempfile::tempdir().unwrap();
        let open = || Store::open(&StorageConfig::default(), dir.path()).unwrap();
        let store = open();
        store.initialize(&genesis).unwrap();
        let mut records = Records::open(store.clone()).unwrap();
        assert!(records.last().is_none());
        let header = genesis.header().unwrap();
        let body = Blob::compress(slipstream_types::BlobKind::Body, b"body").unwrap();
        let write = records.write(VoteRecord::new(vote(1), Some((header.clone(), body.clone()))));
        assert!(Records::open(store.clone()).unwrap().last().is_none());
        records.written(write().unwrap());
        assert_eq!(records.last().unwrap().vote(), vote(1));
        let record = records.last().unwrap().clone();
        drop((records, store));
        let again = Records::open(open()).unwrap();
        assert_eq!(again.last(), Some(&record));
        assert_eq!(record.proposal(), Some(&(header, body)));
    }

    /// Goal: a validator whose record is unreadable does not start, and says what to do.
    #[test]
    fn an_unreadable_record_is_an_error() {
        let store = store(&genesis(1));
        store.put_record(VOTE.name, &[1, 2, 3]).unwrap();
        let error = Records::open(store).err().unwrap();
        assert!(matches!(error, RecordError::Unreadable(_)), "{error}");
    }
}
