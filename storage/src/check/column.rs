//! Reads a column from end to end, past parts that the disk cannot read.

use std::ops::ControlFlow;

use slipstream_types::BatchNumber;

use super::{Check, CheckProgress, reason};
use crate::{
    backend::{Column, Direction},
    error::StorageError,
    schema::{self, KINDS},
};

/// Maximum number, and maximum bytes, of the rows that are checked at once, on all cores. The latter bounds the memory.
const PAGE_ROWS: usize = 4_096;
const PAGE_BYTES: usize = 16 << 20;
/// Batches that are tried one by one after an unreadable part: more than a damaged block holds, and seconds of work.
const PROBES_MAX: u64 = 16_384;

/// Key and value.
pub(super) type Row = (Vec<u8>, Vec<u8>);

/// Rows that are read at once.
type Page = Vec<Row>;

/// A part of a column, in the column's order.
#[derive(Clone, Copy)]
pub(super) enum Part<'a> {
    /// The rows of one page.
    Rows(&'a Page),
    /// Batches, from the first to the last, that the disk cannot read.
    Unreadable(BatchNumber, BatchNumber),
}

impl<'a> Part<'a> {
    /// Its rows; none for an unreadable part.
    pub(super) fn rows(self) -> &'a [Row] {
        match self {
            Part::Rows(page) => page,
            Part::Unreadable(..) => &[],
        }
    }
}

/// Batches that the disk cannot read.
#[derive(Clone, Copy)]
struct Gap {
    first: BatchNumber,
    last: BatchNumber,
    /// Where reading continues, if anything after the gap is known to be readable.
    next: Option<BatchNumber>,
}

impl Gap {
    fn describe(&self, column: Column, error: &StorageError) -> String {
        format!("column {}, {}: {}", column.name(), batches(self.first, self.last), reason(error))
    }
}

impl Check<'_> {
    /// Reads a column page by page; `find` reports what is wrong with a part of it. An unreadable part is one
    /// finding. In a column of batches, which have numbers, reading continues after it. Returns false if an unreadable
    /// part ends the column.
    pub(super) fn column(
        &mut self,
        column: Column,
        mut find: impl FnMut(Part<'_>) -> Result<Vec<String>, StorageError>,
    ) -> bool {
        let rows_total = self.backend.size(column).map_or(0, |size| size.keys);
        let (mut rows, mut from) = (0, Some(Vec::new()));
        while let Some(first) = from.take() {
            let (page, end) = self.page(column, &first);
            if let Err(error) = find(Part::Rows(&page)).map(|found| self.all_damaged(found)) {
                return self.unread(column, &error);
            }
            rows += page.len() as u64;
            self.report.rows += page.len() as u64;
            self.report.bytes +=
                page.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum::<u64>();
            (self.progress)(CheckProgress { column: column.name(), rows, rows_total: rows_total.max(rows) });
            from = match end {
                Ok(next) => next,
                Err(error) => {
                    let last = page.last().map_or(&first, |(key, _)| key);
                    let Some(gap) = self.unreadable(column, last, page.is_empty()) else {
                        return self.unread(column, &error);
                    };
                    self.damaged(gap.describe(column, &error));
                    if let Ok(found) = find(Part::Unreadable(gap.first, gap.last)) {
                        self.all_damaged(found);
                    }
                    gap.next.map(|next| schema::number_key(next).to_vec())
                }
            };
        }
        true
    }

    fn all_damaged(&mut self, found: Vec<String>) {
        found.into_iter().for_each(|what| self.damaged(what));
    }

    /// Records that a column is not read further.
    fn unread(&mut self, column: Column, error: &StorageError) -> bool {
        let what = format!("column {}: {}", column.name(), reason(error));
        match self.unused == Some(column) {
            true => self.report.unused.push(what),
            false => self.damaged(what),
        }
        false
    }

    /// Reads the rows from a key on, up to an unreadable part. Returns them with the next page's key, or with the
    /// error that ended the scan.
    fn page(&self, column: Column, first: &[u8]) -> (Page, Result<Option<Vec<u8>>, StorageError>) {
        let (mut page, mut bytes, mut next) = (Page::new(), 0, None);
        let scanned = self.backend.scan(column, first, Direction::Up, &mut |key, value| {
            if page.len() == PAGE_ROWS || bytes >= PAGE_BYTES {
                next = Some(key.to_vec());
                return Ok(ControlFlow::Break(()));
            }
            bytes += key.len() + value.len();
            page.push((key.to_vec(), value.to_vec()));
            Ok(ControlFlow::Continue(()))
        });
        (page, scanned.map(|()| next))
    }

    /// Finds the unreadable batches from a key on, or after it. Returns `None` if the column does not hold batches,
    /// or if each batch alone is readable.
    fn unreadable(&self, column: Column, key: &[u8], from_key: bool) -> Option<Gap> {
        let is_of_batches = matches!(column, Column::Headers | Column::Certificates)
            || KINDS.into_iter().any(|kind| schema::blob_column(kind) == Some(column));
        let number = match key {
            [] if column == Column::Headers => BatchNumber::GENESIS,
            [] => BatchNumber::new(1),
            key => schema::decode_number(key).ok()?,
        };
        let first = if from_key { number } else { number.after(1) };
        if !is_of_batches {
            return None;
        }
        // A gap that extends beyond the probes is continued: the scan resumes after them.
        let end = first.after(PROBES_MAX);
        let mut gap: Option<Gap> = None;
        for number in first.through(self.head.min(end)) {
            let next = Some(number);
            match self.backend.get(column, &schema::number_key(number)) {
                Err(_) => {
                    gap = Some(Gap { first: gap.map_or(number, |gap| gap.first), last: number, next: None })
                }
                Ok(Some(_)) => return gap.map(|gap| Gap { next, ..gap }),
                Ok(None) => {}
            }
        }
        gap.map(|gap| Gap { next: Some(end).filter(|end| *end < self.head).map(|end| end.next()), ..gap })
    }
}

/// Names a range of batches, or a single one.
pub(super) fn batches(first: BatchNumber, last: BatchNumber) -> String {
    if first == last { format!("batch {first}") } else { format!("batches {first} to {last}") }
}
