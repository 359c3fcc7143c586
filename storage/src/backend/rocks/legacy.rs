//! Columns of earlier releases, and their fate when a store is opened.

use rocksdb::{ColumnFamilyDescriptor, DB, IteratorMode, Options, WriteBatch};
use slipstream_types::{B256, BatchNumber};

use super::family;
use crate::{
    backend::Column,
    disk::DiskGuard,
    error::StorageError,
    transactions::{PlaceKey, place_key},
};

/// Transaction hash ─▶ batch number u64 │ index u32, both big-endian: 45 bytes a transaction.
pub(super) const TRANSACTION_INDEX: &str = "transaction_index";

/// Entries that are moved in one write.
const MOVED_AT_ONCE: usize = 16_384;

/// The columns that a database has of a release before.
pub(super) fn columns(options: &Options, dir: &std::path::Path) -> Vec<ColumnFamilyDescriptor> {
    // An unlistable database is missing, or fails when it is opened.
    let known = DB::list_cf(options, dir).unwrap_or_default();
    let known = known.into_iter().filter(|name| name == TRANSACTION_INDEX);
    known.map(|name| ColumnFamilyDescriptor::new(name, Options::default())).collect()
}

/// Moves what those columns hold to where it stands in this release, and drops them. Ended in the middle, it begins again: the column of before
/// goes last.
pub(super) fn take_over(db: &mut DB, disk: &DiskGuard) -> Result<(), StorageError> {
    let Some(old) = db.cf_handle(TRANSACTION_INDEX) else { return Ok(()) };
    // The smaller one takes half of that, and stands beside it for a while.
    disk.check_bytes(db.property_int_value_cf(old, "rocksdb.live-sst-files-size")?.unwrap_or(0))?;
    tracing::info!(
        "the transactions' index takes its smaller form: once, about a second per million transactions"
    );
    let new = family(db, Column::Transactions);
    let (mut writes, mut moved) = (WriteBatch::default(), 0_u64);
    for entry in db.iterator_cf(old, IteratorMode::Start) {
        let (hash, place) = entry?;
        if let Some(key) = parse(&hash, &place)? {
            writes.put_cf(new, key, []);
            moved += 1;
        }
        if writes.len() >= MOVED_AT_ONCE {
            db.write(std::mem::take(&mut writes))?;
        }
    }
    db.write(writes)?;
    db.flush_wal(true)?;
    db.drop_cf(TRANSACTION_INDEX)?;
    tracing::info!(transactions = moved, "the transactions' index has its smaller form");
    Ok(())
}

fn parse(hash: &[u8], place: &[u8]) -> Result<Option<PlaceKey>, StorageError> {
    let damaged = || StorageError::corrupt("an entry of the transactions' index of a release before");
    let hash = B256::try_from(hash).map_err(|_| damaged())?;
    let (number, index) = place.split_first_chunk::<8>().ok_or_else(damaged)?;
    let index = index.try_into().map_err(|_| damaged())?;
    Ok(place_key(&hash, BatchNumber::new(u64::from_be_bytes(*number)), u32::from_be_bytes(index)))
}
