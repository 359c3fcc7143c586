//! [`LogRows`] and [`LogValue`]: one write's entry in the history's log, and how to find a row in it.
//!
//! ```text
//!  first batch u64 │ count u32 │ count × (path [32] │ batches after the first u32 │ end of its row u32) │ rows
//! ```
//! Numbers are big-endian, so that path and batch compare as bytes. Entries are sorted by both. An entry whose row
//! did not exist has the same end as the entry before it. The value's key is its last batch. A value is searched
//! without decoding it all: a batch of ten thousand changes has a megabyte.

use slipstream_types::{BatchNumber, Path};

use crate::{error::StorageError, schema};

const HEAD_BYTES: usize = 8 + 4;
const PLACE_BYTES: usize = 32 + 4;
const ENTRY_BYTES: usize = PLACE_BYTES + 4;

/// Entries of a value under construction, in the order that the value needs.
#[derive(Debug, Default)]
pub(crate) struct LogRows {
    entries: Vec<Entry>,
    rows: Vec<u8>,
}

#[derive(Debug)]
struct Entry {
    path: Path,
    step: u32,
    end: usize,
}

impl LogRows {
    pub(crate) fn with_capacity(entries: usize, row_bytes: usize) -> LogRows {
        LogRows { entries: Vec::with_capacity(entries), rows: Vec::with_capacity(entries * row_bytes) }
    }

    /// Appends the row before the batch that is `step` after the first; empty if there was none.
    pub(crate) fn push(&mut self, path: Path, step: u32, row: &[u8]) {
        self.rows.extend_from_slice(row);
        self.entries.push(Entry { path, step, end: self.rows.len() });
    }
}

/// Encodes parts as one value. The entries of each part come after those of the part before it.
///
/// # Errors
/// If they take more than 4 GiB, which no write can hold.
pub(crate) fn encode(first: BatchNumber, parts: &[LogRows]) -> Result<Vec<u8>, StorageError> {
    let count: usize = parts.iter().map(|part| part.entries.len()).sum();
    let rows: usize = parts.iter().map(|part| part.rows.len()).sum();
    let sizes = u32::try_from(count).ok().zip(u32::try_from(rows).ok());
    let (count_u32, _) = sizes.ok_or(StorageError::HistoryTooLong { count, bytes: rows })?;
    let mut value = Vec::with_capacity(HEAD_BYTES + count * ENTRY_BYTES + rows);
    value.extend_from_slice(&schema::number_key(first));
    value.extend_from_slice(&count_u32.to_be_bytes());
    let mut start = 0;
    for part in parts {
        for entry in &part.entries {
            let end = (start + entry.end) as u32;
            value.extend_from_slice(&place(&entry.path, entry.step));
            value.extend_from_slice(&end.to_be_bytes());
        }
        start += part.rows.len();
    }
    parts.iter().for_each(|part| value.extend_from_slice(&part.rows));
    Ok(value)
}

fn place(path: &Path, step: u32) -> [u8; PLACE_BYTES] {
    let mut place = [0; PLACE_BYTES];
    place[..32].copy_from_slice(&path.0);
    place[32..].copy_from_slice(&step.to_be_bytes());
    place
}

/// A value of the log, with its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogValue<'a> {
    /// The first of its batches.
    pub(crate) first: BatchNumber,
    /// The last of its batches.
    pub(crate) last: BatchNumber,
    entries: &'a [[u8; ENTRY_BYTES]],
    rows: &'a [u8],
}

impl<'a> LogValue<'a> {
    /// Parses what comes before the entries. Entries are parsed when they are used.
    pub(crate) fn parse(key: &[u8], value: &'a [u8]) -> Result<LogValue<'a>, StorageError> {
        let last = schema::decode_number(key)?;
        let parse = || {
            let (first, rest) = value.split_first_chunk::<8>()?;
            let (count, rest) = rest.split_first_chunk::<4>()?;
            let (first, count) = (BatchNumber::new(u64::from_be_bytes(*first)), u32::from_be_bytes(*count));
            let (entries, rows) = rest.split_at_checked((count as usize).checked_mul(ENTRY_BYTES)?)?;
            (first <= last).then_some(LogValue { first, last, entries: entries.as_chunks().0, rows })
        };
        parse().ok_or_else(|| damaged(last))
    }

    /// Returns the row before the first batch after `after` that changed it. Returns `None` if no batch did, and an
    /// empty value if the row did not exist.
    pub(crate) fn find(&self, path: &Path, after: BatchNumber) -> Result<Option<&'a [u8]>, StorageError> {
        let from = after.next().since(self.first);
        let Ok(from) = u32::try_from(from) else { return Ok(None) };
        let from = place(path, from);
        let at = self.entries.partition_point(|entry| entry[..PLACE_BYTES] < from[..]);
        match self.entries.get(at) {
            Some(entry) if entry[..32] == path.0 => self.row(at).map(Some),
            _ => Ok(None),
        }
    }

    /// Iterates over all entries: path, batch, and the row before that batch.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = Result<LogEntry<'a>, StorageError>> {
        let (value, entries) = (*self, self.entries);
        entries.iter().enumerate().map(move |(at, entry)| {
            let (path, step) = entry.split_first_chunk::<32>().expect("an entry is longer than a path");
            let step = u32::from_be_bytes(*step.first_chunk().expect("behind a path stands a number"));
            let batch = value.first.after(u64::from(step));
            (batch <= value.last).then_some(()).ok_or_else(|| damaged(value.last))?;
            Ok(LogEntry { path, batch, row: value.row(at)? })
        })
    }

    fn row(&self, at: usize) -> Result<&'a [u8], StorageError> {
        let start = at.checked_sub(1).map_or(0, |before| end(&self.entries[before]));
        self.rows.get(start..end(&self.entries[at])).ok_or_else(|| damaged(self.last))
    }
}

/// An entry of the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogEntry<'a> {
    pub(crate) path: &'a [u8; 32],
    pub(crate) batch: BatchNumber,
    pub(crate) row: &'a [u8],
}

fn end(entry: &[u8; ENTRY_BYTES]) -> usize {
    let end = entry.last_chunk().expect("an entry ends with a number");
    u32::from_be_bytes(*end) as usize
}

fn damaged(last: BatchNumber) -> StorageError {
    StorageError::corrupt(format!("the history's log is malformed at batch {last}"))
}

/// An example value, for the fingerprint of the stored formats.
pub(crate) fn example() -> Vec<u8> {
    let mut rows = LogRows::default();
    rows.push(Path([67; 32]), 1, &[68]);
    encode(BatchNumber::new(69), &[rows]).expect("one row is not too long")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(byte: u8) -> Path {
        Path([byte; 32])
    }

    /// Goal: rows of several parts are found by their path and batch, and by no others.
    #[test]
    fn rows_are_found_by_path_and_batch() {
        let mut parts = [LogRows::default(), LogRows::with_capacity(3, 2)];
        parts[0].push(path(1), 0, b"one");
        parts[0].push(path(1), 2, b"");
        parts[1].push(path(3), 1, b"three");
        parts[1].push(path(3), 3, b"four");
        let value = encode(BatchNumber::new(10), &parts).unwrap();
        let value = LogValue::parse(&schema::number_key(BatchNumber::new(13)), &value).unwrap();
        let find = |byte, after| value.find(&path(byte), BatchNumber::new(after)).unwrap();
        assert_eq!(
            [5, 9, 10, 11].map(|after| find(1, after)),
            [Some(&b"one"[..]), Some(&b"one"[..]), Some(&b""[..]), Some(&b""[..])]
        );
        assert_eq!(find(1, 12), None);
        assert_eq!(
            [10, 11, 12, 13].map(|after| find(3, after).map(<[u8]>::len)),
            [Some(5), Some(4), Some(4), None]
        );
        assert_eq!([0, 2, 4].map(|byte| find(byte, 0)), [None; 3]);
        let all: Vec<_> =
            value.iter().map(|entry| entry.map(|it| (it.path[0], it.batch.get(), it.row))).collect();
        let expected: [(u8, u64, &[u8]); 4] =
            [(1, 10, b"one"), (1, 12, b""), (3, 11, b"three"), (3, 13, b"four")];
        assert_eq!(all.into_iter().collect::<Result<Vec<_>, _>>().unwrap(), expected);
    }

    /// Goal: arbitrary bytes on disk are read or refused.
    #[test]
    fn damage_is_refused() {
        let mut part = LogRows::default();
        part.push(path(1), 0, b"one");
        part.push(path(2), 0, b"two");
        let value = encode(BatchNumber::new(10), &[part]).unwrap();
        let key = schema::number_key(BatchNumber::new(10));
        for len in 0..value.len() {
            if let Ok(cut) = LogValue::parse(&key, &value[..len]) {
                assert!(cut.find(&path(2), BatchNumber::new(9)).is_err(), "{len}");
                assert!(cut.iter().any(|entry| entry.is_err()), "{len}");
            }
        }
        assert!(LogValue::parse(&schema::number_key(BatchNumber::new(9)), &value).is_err());
        assert!(LogValue::parse(b"x", &value).is_err());
        let mut later = value.clone();
        later[HEAD_BYTES + 32..HEAD_BYTES + 36].copy_from_slice(&1u32.to_be_bytes());
        assert!(LogValue::parse(&key, &later).unwrap().iter().any(|entry| entry.is_err()));
    }
}
