//! The part of the ledger, its indexes and the history that a rollback drops: everything above the batch.

use std::ops::ControlFlow;

use slipstream_types::{
    BatchHeader, BatchNumber, Blob, BlobKind, Body, Certificate, Path, accumulator::NodePosition, keccak256,
};

use super::{Bounds, PreviousRows, RollbackReport};
use crate::{
    backend::{Column, Direction, Reader, WriteBatch},
    error::StorageError,
    history::past_rows::recorded_sealed,
    history_log::{self, LogRows, LogValue},
    schema::{self, HeadRecord, SEALED_KEY},
    transactions::place_key,
};

/// Visits the key and the value of a row.
type EachRow<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), StorageError> + 'a;

/// Drops headers, their indexes and certificates, accumulator nodes and blobs above a batch.
pub(super) fn drop_ledger(
    reader: &dyn Reader,
    head: &HeadRecord,
    bounds: Bounds,
    writes: &mut WriteBatch,
    report: &mut RollbackReport,
) -> Result<(), StorageError> {
    let to = bounds.to;
    let (first, last) = (schema::number_key(to.next()), schema::number_key(head.number));
    let above = |column, visit: &mut EachRow<'_>| {
        reader.scan(column, &first, Direction::Up, &mut |key, value| {
            visit(key, value)?;
            Ok(ControlFlow::Continue(()))
        })
    };
    above(Column::Headers, &mut |_, header| {
        let header: BatchHeader = schema::decode("header", header)?;
        writes.delete(Column::HeaderIndex, header.digest().0);
        Ok(())
    })?;
    above(Column::Certificates, &mut |_, _| {
        report.certificates += 1;
        Ok(())
    })?;
    let mut transactions = 0;
    above(Column::Bodies, &mut |key, body| {
        report.blob_bytes += body.len() as u64;
        transactions += drop_transactions(schema::decode_number(key)?, body, writes);
        if transactions > bounds.entries_max() { Err(bounds.too_much()) } else { Ok(()) }
    })?;
    for column in [Column::Receipts, Column::Deltas, Column::Hints] {
        above(column, &mut |_, blob| {
            report.blob_bytes += blob.len() as u64;
            Ok(())
        })?;
    }
    let by_number = [
        Column::Headers,
        Column::Certificates,
        Column::Bodies,
        Column::Receipts,
        Column::Deltas,
        Column::Hints,
    ];
    for column in by_number {
        writes.clear_range(column, first, last);
    }
    // A node is stored once it is full. So the nodes with a leaf above the batch begin with the first that was not
    // full then.
    let (leaves, all) = (to.leaves(), head.number.leaves());
    for level in 0..64u8 {
        let node = |index| schema::node_key(NodePosition { level, index });
        let (first, end) = (leaves >> level, all >> level);
        if first < end {
            writes.clear_range(Column::Nodes, node(first), node(end - 1));
        }
    }
    Ok(())
}

/// Drops the entries of a body's transactions from their index, and returns their number. Entries of an unreadable
/// body stay; lookups compare hashes anyway.
fn drop_transactions(number: BatchNumber, body: &[u8], writes: &mut WriteBatch) -> usize {
    let body = Blob::from_bytes(body.to_vec()).and_then(|blob| blob.open::<Body>(BlobKind::Body));
    let transactions = body.iter().flat_map(|body| body.transactions.iter());
    let mut dropped = 0;
    for (index, raw) in (0..).zip(transactions) {
        if let Some(key) = place_key(&keccak256(&raw[..]), number, index) {
            writes.delete(Column::Transactions, key);
            dropped += 1;
        }
    }
    dropped
}

/// Drops the ends of epochs whose last batch is above the batch.
pub(super) fn drop_epoch_ends(
    reader: &dyn Reader,
    to: BatchNumber,
    writes: &mut WriteBatch,
    report: &mut RollbackReport,
) -> Result<(), StorageError> {
    reader.scan(Column::EpochEnds, &[], Direction::Up, &mut |key, value| {
        let end: Certificate = schema::decode("epoch end", value)?;
        if end.info.number > to {
            writes.delete(Column::EpochEnds, key);
            report.certificates += 1;
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// Drops the history of batches above the batch. Cuts a log value that extends beyond it.
pub(super) fn drop_history(
    reader: &dyn Reader,
    head: &HeadRecord,
    to: BatchNumber,
    before: &PreviousRows,
    writes: &mut WriteBatch,
) -> Result<(), StorageError> {
    for key in &before.keys {
        writes.delete(Column::History, key.clone());
    }
    let mut cut = None;
    if before.sealed < to {
        reader.scan(
            Column::HistoryLog,
            &schema::number_key(to.next()),
            Direction::Up,
            &mut |key, value| {
                cut = cut_value(LogValue::parse(key, value)?, to)?;
                // Each later value begins after this one.
                Ok(ControlFlow::Break(()))
            },
        )?;
    }
    writes.clear_range(Column::HistoryLog, schema::number_key(to.next()), schema::number_key(head.number));
    if let Some(cut) = cut {
        writes.put(Column::HistoryLog, schema::number_key(to), cut);
    }
    if recorded_sealed(reader)?.is_some_and(|sealed| sealed > to) {
        writes.put(Column::Meta, SEALED_KEY, schema::encode(&to));
    }
    Ok(())
}

/// Returns the part of a log value with batches up to `to`; `None` if the value begins after it.
fn cut_value(value: LogValue<'_>, to: BatchNumber) -> Result<Option<Vec<u8>>, StorageError> {
    if value.first > to {
        return Ok(None);
    }
    let mut kept = LogRows::with_capacity(0, 0);
    for entry in value.iter() {
        let entry = entry?;
        if entry.batch <= to {
            kept.push(Path(*entry.path), entry.batch.since(value.first) as u32, entry.row);
        }
    }
    history_log::encode(value.first, &[kept]).map(Some)
}
