//! [`RepairRecord`]: the store's memory of repairs, across restarts.

use serde::{Deserialize, Serialize};
use slipstream_storage::Store;
use slipstream_types::{BatchNumber, bounded::BoundedVec, codec};

use crate::SyncError;

/// The key of the record of the last repair, and of one that is due.
pub const REPAIR_RECORD: &str = "sync/repair";
/// Maximum bytes of that record: a few keys and numbers.
const RECORD_BYTES_MAX: usize = 16 << 10;
/// Maximum number of keys that a record names.
const KEYS_MAX: usize = slipstream_storage::KEYS_LISTED_MAX;

/// Why a state must be compared with peers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RepairCause {
    /// Execution of a certified batch gave something else, or the state before it could not be read.
    Incident {
        /// Number of the batch.
        number: BatchNumber,
        /// The damage that was found.
        what: String,
    },
    /// An operator requested it.
    Operator,
}

/// What a repair did.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RepairReport {
    /// The batch whose state was compared.
    pub number: BatchNumber,
    /// Rows that were missing or had another value.
    pub rows_put: u64,
    /// Rows that should not have been there.
    pub rows_removed: u64,
    /// Codes that were missing or damaged.
    pub codes: u64,
    /// The first keys of these rows.
    pub keys: Vec<String>,
    /// Bytes of all questions and answers.
    pub bytes: u64,
    /// Questions that were answered.
    pub questions: u64,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
}

/// The store's record of repairs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RepairRecord {
    /// The repair that the next start does first.
    pub due: Option<RepairCause>,
    /// The batch of the last incident that was repaired. A second incident there is no fault of the state.
    pub repaired: Option<BatchNumber>,
    /// The report of the last repair.
    pub report: Option<RepairReport>,
}

/// The record in its stored form.
#[derive(Serialize, Deserialize)]
struct StoredRecord {
    due: Option<RepairCause>,
    repaired: Option<BatchNumber>,
    report: Option<(Counts, BoundedVec<String, KEYS_MAX>)>,
}

/// The numbers of a [`RepairReport`] in its order: batch, rows put, rows removed, codes, bytes, questions, milliseconds.
type Counts = [u64; 7];

impl RepairRecord {
    /// Reads the record of a store. An unreadable one counts as none, because it only says what to look at.
    ///
    /// # Errors
    /// Errors of the disk, or damage in the store.
    pub fn of(store: &Store) -> Result<RepairRecord, SyncError> {
        Ok(store.record(REPAIR_RECORD)?.map(|bytes| Self::decode(&bytes)).unwrap_or_default())
    }

    /// As [`RepairRecord::of`], from the record's bytes.
    pub fn decode(bytes: &[u8]) -> RepairRecord {
        let stored = codec::decode::<StoredRecord>("repair record", bytes, RECORD_BYTES_MAX);
        let Ok(StoredRecord { due, repaired, report }) = stored else { return RepairRecord::default() };
        let report = report.map(|(counts, keys)| {
            let [number, rows_put, rows_removed, codes, bytes, questions, took_ms] = counts;
            let (number, keys) = (BatchNumber::new(number), keys.into_inner());
            RepairReport { number, rows_put, rows_removed, codes, keys, bytes, questions, took_ms }
        });
        RepairRecord { due, repaired, report }
    }

    /// Encodes the record.
    ///
    /// # Errors
    /// If it has more keys than a report names.
    pub fn encode(&self) -> Result<Vec<u8>, SyncError> {
        let report = self.report.as_ref().map(|it| {
            let counts =
                [it.number.get(), it.rows_put, it.rows_removed, it.codes, it.bytes, it.questions, it.took_ms];
            BoundedVec::new(it.keys.clone()).map(|keys| (counts, keys))
        });
        let report = report.transpose().map_err(|error| SyncError::Worker(error.to_string()))?;
        let stored = StoredRecord { due: self.due.clone(), repaired: self.repaired, report };
        codec::encode("repair record", &stored).map_err(|error| SyncError::Worker(error.to_string()))
    }

    /// Records an incident at a batch. Returns false if that batch was repaired before: then the state is right, and
    /// the incident is for an operator.
    pub fn note(&mut self, number: BatchNumber, what: String) -> bool {
        if self.repaired == Some(number) {
            return false;
        }
        self.due = Some(RepairCause::Incident { number, what });
        true
    }

    /// The record after the due repair.
    pub fn done(self, report: RepairReport) -> RepairRecord {
        let repaired = match self.due {
            Some(RepairCause::Incident { number, .. }) => Some(number),
            Some(RepairCause::Operator) | None => self.repaired,
        };
        RepairRecord { due: None, repaired, report: Some(report) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> RepairReport {
        RepairReport {
            number: BatchNumber::new(6),
            rows_put: 1,
            rows_removed: 2,
            codes: 3,
            keys: vec!["account 0x01".into()],
            bytes: 4,
            questions: 5,
            took_ms: 7,
        }
    }

    /// Goal: a batch is repaired once, even across restarts; another batch may be repaired later.
    #[test]
    fn a_second_incident_at_a_batch_is_not_repaired() {
        let mut record = RepairRecord::default();
        assert!(record.note(BatchNumber::new(7), "another state root".into()));
        let stored = RepairRecord::decode(&record.encode().unwrap());
        assert_eq!(stored, record);
        let mut record = RepairRecord::decode(&stored.done(report()).encode().unwrap());
        assert_eq!((&record.due, record.report.as_ref()), (&None, Some(&report())));
        assert!(!record.note(BatchNumber::new(7), "again".into()));
        assert_eq!(record.due, None);
        assert!(record.note(BatchNumber::new(8), "another".into()));
        let by_hand =
            RepairRecord { due: Some(RepairCause::Operator), ..record.done(report()) }.done(report());
        assert_eq!(by_hand.repaired, Some(BatchNumber::new(8)), "who asks for one settles no incident");
        assert_eq!(RepairRecord::decode(b"nonsense"), RepairRecord::default());
    }
}
