//! [`Slot`]: the data that this validator must recover after a crash, under typed names in the store.

use std::marker::PhantomData;

use serde::{Serialize, de::DeserializeOwned};
use slipstream_eve::{Evidence, Record};
use slipstream_storage::Store;
use slipstream_types::{BatchNumber, bounded::BoundedVec, codec};

use crate::error::RecordError;

/// The name of the store's record that binds a validator's next vote.
pub const VOTE_RECORD: &str = "consensus/eve";

/// The highest batch that such a record has a vote or decision for, in any epoch; the genesis if it has neither.
///
/// # Errors
/// If the record is unreadable: the number is then unknown.
pub fn voted_up_to(record: &[u8]) -> Result<BatchNumber, RecordError> {
    let record: Record =
        codec::decode(VOTES.what, record, VOTES.bytes_max).map_err(RecordError::Unreadable)?;
    Ok(record.voted_up_to())
}

/// Maximum number of proofs of misbehaviour that are kept; one is enough to expel its author.
const EVIDENCE_MAX: usize = 64;

/// The place of one record: its name in the store, and its type.
pub(super) struct Slot<T> {
    name: &'static str,
    what: &'static str,
    bytes_max: usize,
    keeps: PhantomData<fn() -> T>,
}

/// The record that binds the next vote. It has some numbers and up to eighteen certificates, each with at most the
/// allowed signatures and next validators (12.5 KiB each).
pub(super) const VOTES: Slot<Record> =
    Slot { name: VOTE_RECORD, what: "vote record", bytes_max: 1 << 20, keeps: PhantomData };

/// Proofs that validators gave two statements where they may give one.
pub(super) const EVIDENCE: Slot<Convictions> =
    Slot { name: "consensus/evidence", what: "evidence", bytes_max: 1 << 20, keeps: PhantomData };

/// The content of [`EVIDENCE`].
pub(super) type Convictions = BoundedVec<Evidence, EVIDENCE_MAX>;

impl<T: Serialize + DeserializeOwned> Slot<T> {
    /// Loads the last saved record.
    ///
    /// # Errors
    /// If it is unreadable: voting on without it would risk a second vote.
    pub(super) fn load(&self, store: &Store) -> Result<Option<T>, RecordError> {
        let Some(bytes) = store.record(self.name)? else { return Ok(None) };
        codec::decode(self.what, &bytes, self.bytes_max).map(Some).map_err(RecordError::Unreadable)
    }

    /// Replaces the record. It is durable on return.
    pub(super) fn save(&self, store: &Store, record: &T) -> Result<(), RecordError> {
        let bytes = codec::encode(self.what, record).map_err(RecordError::Unreadable)?;
        Ok(store.put_record(self.name, &bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use slipstream_eve::{Amnesia, Ballot};
    use slipstream_storage::StorageConfig;
    use slipstream_types::{Digest, Epoch};

    use super::*;
    use crate::testing::{genesis, store};

    /// Goal: a load returns the record that was saved last, even after the store is opened again.
    #[test]
    fn a_record_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Store::open(&StorageConfig::default(), dir.path()).unwrap();
        let record = |view| Record {
            epoch: Epoch(0),
            view,
            changing: true,
            prepare: None,
            prepared: None,
            adopted: None,
            amnesia: None,
            decided: BoundedVec::default(),
            voted: BatchNumber::GENESIS,
        };
        let store = open();
        store.initialize(&genesis(1)).unwrap();
        assert_eq!(VOTES.load(&store).unwrap(), None);
        let binding = |record: &Record| voted_up_to(&codec::encode("vote record", record).unwrap()).unwrap();
        assert_eq!(binding(&record(7)), BatchNumber::GENESIS);
        let (at, ballot) = (BatchNumber::new, |number| Ballot { view: 1, number, token: Digest::ZERO });
        assert_eq!(binding(&Record { prepare: Some(ballot(at(9))), ..record(7) }), at(9));
        // A new epoch's record has no vote of its own yet.
        assert_eq!(binding(&Record { epoch: Epoch(1), voted: at(9), ..record(0) }), at(9));
        let forgetful = Record {
            prepare: Some(ballot(at(9))),
            amnesia: Some(Amnesia { number: at(11), view: 2 }),
            ..record(7)
        };
        assert_eq!(binding(&forgetful), at(11));
        for view in [7, 8] {
            VOTES.save(&store, &record(view)).unwrap();
        }
        drop(store);
        assert_eq!(VOTES.load(&open()).unwrap(), Some(record(8)));
    }

    /// Goal: a validator whose record is unreadable does not start, and says what to do.
    #[test]
    fn an_unreadable_record_is_an_error() {
        let store = store(&genesis(1));
        store.put_record(VOTES.name, &[1, 2, 3]).unwrap();
        let error = VOTES.load(&store).unwrap_err();
        assert!(matches!(error, RecordError::Unreadable(_)), "{error}");
    }
}
