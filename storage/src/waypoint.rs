//! The operator's waypoint. The store refuses to begin or continue a ledger that does not pass through it.
//!
//! Batches reach the store by sync, by a validator's own consensus, and by leaps over many of them. This module checks all three: a
//! store that expects a waypoint refuses that batch in any other ledger, whoever commits it. A leap skips the batch itself. The
//! leaping node therefore proves the waypoint's place in the new ledger and notes it ([`Store::note_waypoint`]). A
//! later start can then distinguish a ledger that was compared from one that was led past the waypoint.

use serde::{Deserialize, Serialize};
use slipstream_types::{BatchHeader, BatchNumber, Certificate, Digest, LedgerInfo, Waypoint};

use crate::{
    backend::{Column, Reader, WriteBatch},
    error::StorageError,
    schema,
    store::Store,
    takeover::RestoreTarget,
};

/// The record of the last proven leap over a waypoint.
const PASSED_RECORD: &str = "storage/waypoint";

/// States that the ledger with the target batch passes through a waypoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct PassageRecord {
    number: BatchNumber,
    hash: Digest,
    target: BatchNumber,
    target_digest: Digest,
}

impl PassageRecord {
    fn of(waypoint: &Waypoint, target: &BatchHeader) -> PassageRecord {
        let Waypoint { number, hash } = *waypoint;
        PassageRecord { number, hash, target: target.number, target_digest: target.digest() }
    }
}

impl Store {
    /// Refuses from now on every batch that leads past the waypoint on another ledger. Call it once, before anything
    /// is committed; a second waypoint is ignored.
    ///
    /// # Errors
    /// Those of [`Store::passes_waypoint`].
    pub fn expect_waypoint(&self, waypoint: &Waypoint) -> Result<(), StorageError> {
        self.passes_waypoint(waypoint)?;
        self.0.waypoint.get_or_init(|| *waypoint);
        Ok(())
    }

    /// Whether the ledger has passed through a waypoint. False while the head is before it or the store is empty.
    ///
    /// # Errors
    /// [`StorageError::WrongWaypoint`] if it missed the waypoint. [`StorageError::UnprovenWaypoint`] if it began
    /// after the waypoint without proof of passing it. Otherwise errors of the disk.
    pub fn passes_waypoint(&self, waypoint: &Waypoint) -> Result<bool, StorageError> {
        if !self.is_initialized() || self.head()?.header.number < waypoint.number {
            return Ok(false);
        }
        match self.ledger_info(waypoint.number)? {
            Some(info) => compare(waypoint, &info).map(|()| true),
            None if self.is_noted(waypoint)? => Ok(true),
            None => Err(StorageError::UnprovenWaypoint { waypoint: *waypoint }),
        }
    }

    /// Notes durably that the ledger that ends with a takeover's target passes through a waypoint; the caller has the
    /// proof. The note counts once the target is stored.
    ///
    /// # Errors
    /// Errors of the disk, or damage in the store.
    pub fn note_waypoint(&self, waypoint: &Waypoint, target: &BatchHeader) -> Result<(), StorageError> {
        self.put_record(PASSED_RECORD, &schema::encode(&PassageRecord::of(waypoint, target)))
    }

    /// Whether the note covers the waypoint. A note about another ledger proves nothing: the operator may since have
    /// led the store elsewhere, without a waypoint.
    fn is_noted(&self, waypoint: &Waypoint) -> Result<bool, StorageError> {
        let Some(passed) = self.passed()? else { return Ok(false) };
        let target = self.header(passed.target)?;
        Ok(target.is_some_and(|target| passed == PassageRecord::of(waypoint, &target)))
    }

    /// If the head's ledger passes through the configured or noted waypoint, adds a note of that to a write. The write
    /// may drop the headers that show the passage.
    pub(crate) fn keep_passage(
        &self,
        head: &BatchHeader,
        writes: &mut WriteBatch,
    ) -> Result<(), StorageError> {
        let noted = self.passed()?.map(|PassageRecord { number, hash, .. }| Waypoint { number, hash });
        let configured = self.0.waypoint.get().copied();
        for waypoint in [configured, noted].into_iter().flatten() {
            match self.passes_waypoint(&waypoint) {
                Ok(true) => {
                    writes.put(
                        Column::Records,
                        PASSED_RECORD,
                        schema::encode(&PassageRecord::of(&waypoint, head)),
                    );
                    return Ok(());
                }
                // The waypoint lies ahead, or the note is about another ledger.
                Ok(false) | Err(StorageError::UnprovenWaypoint { .. }) => {}
                Err(StorageError::WrongWaypoint { .. }) if Some(waypoint) != configured => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn passed(&self) -> Result<Option<PassageRecord>, StorageError> {
        let noted = self.record(PASSED_RECORD)?;
        noted.map(|bytes| schema::decode("waypoint record", &bytes)).transpose()
    }

    /// Refuses a takeover that leads from before the waypoint to a ledger that was not compared with it.
    pub(crate) fn check_leap(&self, head: BatchNumber, target: &RestoreTarget) -> Result<(), StorageError> {
        let leads_over =
            |waypoint: &&Waypoint| head < waypoint.number && waypoint.number <= target.header.number;
        let Some(waypoint) = self.0.waypoint.get().filter(leads_over) else { return Ok(()) };
        if waypoint.number == target.header.number {
            return compare(waypoint, &target.certificate.info);
        }
        match self.passed()? == Some(PassageRecord::of(waypoint, &target.header)) {
            true => Ok(()),
            false => Err(StorageError::UnprovenWaypoint { waypoint: *waypoint }),
        }
    }

    /// Refuses the waypoint's batch if it is not the operator's.
    pub(crate) fn check_waypoint(
        &self,
        header: &BatchHeader,
        accumulator_root: Digest,
        certificate: Option<&Certificate>,
    ) -> Result<(), StorageError> {
        let Some(waypoint) = self.0.waypoint.get().filter(|waypoint| waypoint.number == header.number) else {
            return Ok(());
        };
        // If the batch ends its epoch, the next validators are part of its info, and only the certificate of that end
        // names them.
        let own = certificate.filter(|certificate| certificate.info.number == header.number).cloned();
        let end = match own {
            Some(own) => Some(own),
            None => self.epoch_ends(header.epoch, 1)?.pop().filter(|end| end.info.number == header.number),
        };
        let next_validators = end.and_then(|end| end.info.next_validators);
        compare(waypoint, &LedgerInfo::of(header, accumulator_root, next_validators))
    }
}

/// Adds to a rollback's write the note that the earlier head's ledger passes through the noted waypoint, unless that
/// head lies before it. The headers that showed it may be pruned, and the batch that the note names is dropped.
pub(crate) fn passage_before(
    reader: &dyn Reader,
    head: &BatchHeader,
    writes: &mut WriteBatch,
) -> Result<(), StorageError> {
    let Some(noted) = reader.get(Column::Records, PASSED_RECORD.as_bytes())? else { return Ok(()) };
    let passed: PassageRecord = schema::decode("waypoint record", &noted)?;
    if passed.number > head.number || passed.target <= head.number {
        return Ok(());
    }
    let target = reader.get(Column::Headers, &schema::number_key(passed.target))?;
    let target: Option<BatchHeader> = target.map(|header| schema::decode("header", &header)).transpose()?;
    if target.is_some_and(|target| target.digest() == passed.target_digest) {
        let waypoint = Waypoint { number: passed.number, hash: passed.hash };
        writes.put(Column::Records, PASSED_RECORD, schema::encode(&PassageRecord::of(&waypoint, head)));
    }
    Ok(())
}

fn compare(waypoint: &Waypoint, info: &LedgerInfo) -> Result<(), StorageError> {
    match Waypoint::of(info) {
        found if found == *waypoint => Ok(()),
        found => Err(StorageError::WrongWaypoint { waypoint: *waypoint, found }),
    }
}
