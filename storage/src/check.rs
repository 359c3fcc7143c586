//! Checking a whole store: every byte is read, so that RocksDB verifies its checksums, and everything that commits to
//! something else is compared with it. What is found is collected, not returned at the first: an operator wants to know
//! how much is damaged.

use std::{collections::BTreeMap, ops::ControlFlow};

use rayon::prelude::*;
use slipstream_types::{
    BatchHeader, BatchNumber, Blob, BlobKind, Certificate, Digest, Path, accumulator::NodePosition,
    batch::content_digest, keccak256,
};

use crate::{
    backend::{Backend, Column, Direction},
    chunk,
    error::StorageError,
    ledger::decode_blob,
    maintenance::kept_ranges,
    prune,
    schema::{self, GENESIS_KEY, HEAD_KEY, HeadRecord, KINDS},
    store::{load_accumulator, load_current, read_node},
};

/// Most findings that are reported; a disk that lost a file has thousands of the same.
pub const DAMAGE_MAX: usize = 32;
/// Rows that are checked at once, on all cores; and their bytes, which bounds the memory.
const PAGE_ROWS: usize = 4_096;
const PAGE_BYTES: usize = 16 << 20;
/// Codes that are looked up at once; bounds the memory too.
const CODES_AT_ONCE: usize = 256;

/// How far a check is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckProgress {
    /// The column that is read.
    pub column: &'static str,
    /// Rows of it so far.
    pub rows: u64,
    /// How many there are, about.
    pub rows_total: u64,
}

/// What a check found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckReport {
    /// What is damaged: which part, where, and how. At most [`DAMAGE_MAX`] of them.
    pub damage: Vec<String>,
    /// Findings beyond those.
    pub more: u64,
    /// What is damaged and not in use: rows of a restore that is under way or was given up.
    pub unused: Vec<String>,
    /// Rows read, over all columns.
    pub rows: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A page of rows: key and value.
type Page = Vec<(Vec<u8>, Vec<u8>)>;

pub(crate) fn check(
    backend: &dyn Backend,
    tree_memory_mib: u64,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<CheckReport, StorageError> {
    let mut check = Check { backend, progress, unused: None, report: CheckReport::default() };
    let head = match head_record(backend) {
        Ok(head) => head,
        Err(error) => {
            check.damaged(error.to_string());
            None
        }
    };
    if let Some(head) = &head {
        check.unused = Some(head.active.other().column());
        check.head(tree_memory_mib);
        check.headers(head);
        for kind in KINDS {
            check.blobs(kind, head);
        }
        check.certificates(head);
        check.state(head.active.column());
        check.codes();
    }
    let seen = |column: Column| {
        let seen = [Column::Headers, Column::Certificates, Column::Codes];
        head.is_some_and(|head| {
            seen.contains(&column)
                || column == head.active.column()
                || KINDS.into_iter().any(|kind| schema::blob_column(kind) == Some(column))
        })
    };
    for column in Column::ALL.into_iter().filter(|column| !seen(*column)) {
        check.column(column, |_| Ok(Vec::new()));
    }
    Ok(check.report)
}

fn head_record(backend: &dyn Backend) -> Result<Option<HeadRecord>, StorageError> {
    let bytes = backend.get(Column::Meta, HEAD_KEY)?;
    bytes.map(|bytes| schema::decode("head record", &bytes)).transpose()
}

struct Check<'a> {
    backend: &'a dyn Backend,
    progress: &'a mut dyn FnMut(CheckProgress),
    /// The state column that no head has.
    unused: Option<Column>,
    report: CheckReport,
}

impl Check<'_> {
    fn damaged(&mut self, what: String) {
        match self.report.damage.len() < DAMAGE_MAX {
            true => self.report.damage.push(what),
            false => self.report.more += 1,
        }
    }

    /// Head, accumulator, tree: what every start checks, the state's root among it.
    fn head(&mut self, tree_memory_mib: u64) {
        if let Err(error) = load_current(self.backend.snapshot(), tree_memory_mib) {
            self.damaged(format!("the head cannot be loaded: {}", reason(&error)));
        }
        let genesis = self.backend.get(Column::Meta, GENESIS_KEY).and_then(|bytes| {
            let missing = || StorageError::corrupt("the genesis is missing");
            check_blob(BlobKind::Genesis, &decode_blob(bytes.ok_or_else(missing)?)?, None)
        });
        if let Err(error) = genesis {
            self.damaged(format!("genesis: {}", reason(&error)));
        }
    }

    /// Reads a column page by page; `find` tells what is wrong with the rows of one. A part that cannot be read is one
    /// finding, and ends the column.
    fn column(&mut self, column: Column, mut find: impl FnMut(&Page) -> Result<Vec<String>, StorageError>) {
        let rows_total = self.backend.size(column).map_or(0, |size| size.keys);
        let (mut rows, mut from) = (0, Some(Vec::new()));
        while let Some(first) = from.take() {
            let read = self.page(column, &first).and_then(|(page, next)| Ok((find(&page)?, page, next)));
            let (found, page, next) = match read {
                Ok(read) => read,
                Err(error) => {
                    let what = format!("column {}: {}", column.name(), reason(&error));
                    return match self.unused == Some(column) {
                        true => self.report.unused.push(what),
                        false => self.damaged(what),
                    };
                }
            };
            found.into_iter().for_each(|what| self.damaged(what));
            rows += page.len() as u64;
            self.report.rows += page.len() as u64;
            self.report.bytes +=
                page.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum::<u64>();
            (self.progress)(CheckProgress { column: column.name(), rows, rows_total: rows_total.max(rows) });
            from = next;
        }
    }

    /// Rows from a key on, and the key of the next page.
    fn page(&self, column: Column, first: &[u8]) -> Result<(Page, Option<Vec<u8>>), StorageError> {
        let (mut page, mut bytes, mut next) = (Page::new(), 0, None);
        self.backend.scan(column, first, Direction::Up, &mut |key, value| {
            if page.len() == PAGE_ROWS || bytes >= PAGE_BYTES {
                next = Some(key.to_vec());
                return Ok(ControlFlow::Break(()));
            }
            bytes += key.len() + value.len();
            page.push((key.to_vec(), value.to_vec()));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok((page, next))
    }

    /// Every header under its number, in the accumulator, in the index, and following the one before it.
    fn headers(&mut self, head: &HeadRecord) {
        let backend = self.backend;
        let mut previous: Option<(BatchNumber, Digest)> = None;
        self.column(Column::Headers, |page| {
            let mut found = Vec::new();
            for (key, value) in page {
                let number = schema::decode_number(key)?;
                let header: BatchHeader = match schema::decode("header", value) {
                    Ok(header) => header,
                    Err(error) => {
                        found.push(format!("header {number}: {}", reason(&error)));
                        continue;
                    }
                };
                let digest = header.digest();
                found.extend(check_header(backend, number, &header, digest, previous)?);
                previous = Some((number, digest));
            }
            Ok(found)
        });
        match previous {
            Some((last, _)) if last == head.number => {}
            last => self.damaged(format!(
                "headers end at {}, the head is batch {}",
                last.map_or("none".into(), |(number, _)| number.to_string()),
                head.number
            )),
        }
    }

    /// Every blob against the digest in its header, and none missing from what the store says that it keeps.
    fn blobs(&mut self, kind: BlobKind, head: &HeadRecord) {
        let Some(column) = schema::blob_column(kind) else { return };
        let pruned = prune::read_record(self.backend).unwrap_or_default();
        let kept = kept_ranges(head, &pruned).into_iter().find(|range| range.kind == kind);
        let mut expected = kept.and_then(|range| range.lowest);
        let backend = self.backend;
        self.column(column, |page| {
            let check = |(key, value): &(Vec<u8>, Vec<u8>)| {
                let number = schema::decode_number(key)?;
                Ok((
                    number,
                    check_stored_blob(backend, kind, number, value).err().map(|error| reason(&error)),
                ))
            };
            let mut found = Vec::new();
            for checked in page.par_iter().map(check).collect::<Result<Vec<_>, StorageError>>()? {
                let (number, wrong) = checked;
                found.extend(wrong.map(|what| format!("{} of batch {number}: {what}", kind.name())));
                if let Some(next) = expected.filter(|next| *next <= number) {
                    if next < number {
                        let last = BatchNumber(number.0 - 1);
                        found.push(format!("{} of batches {next} to {last}: missing", kind.name()));
                    }
                    expected = Some(number.next());
                }
            }
            Ok(found)
        });
        if let Some(next) = expected.filter(|next| *next <= head.number) {
            self.damaged(format!("{} of batches {next} to {}: missing", kind.name(), head.number));
        }
    }

    /// Every certificate against the header and the accumulator that it certifies.
    fn certificates(&mut self, head: &HeadRecord) {
        let (backend, head) = (self.backend, head.number);
        self.column(Column::Certificates, |page| {
            let check = |(key, value): &(Vec<u8>, Vec<u8>)| {
                let number = schema::decode_number(key)?;
                let wrong = check_certificate(backend, number, value).err();
                let above = (number > head).then(|| "it is above the head".to_owned());
                let wrong = wrong.map(|error| reason(&error)).or(above);
                Ok(wrong.map(|what| format!("certificate {number}: {what}")))
            };
            Ok(page
                .par_iter()
                .map(check)
                .collect::<Result<Vec<_>, StorageError>>()?
                .into_iter()
                .flatten()
                .collect())
        });
    }

    /// Every row under its own path, and its account's code in the store. Their root was compared when the head was loaded.
    fn state(&mut self, column: Column) {
        let backend = self.backend;
        self.column(column, |page| {
            let check = |(path, row): &(Vec<u8>, Vec<u8>)| {
                let path = Path(schema::decode_digest(path)?.0);
                let wrong = match schema::decode_row(row) {
                    Ok((key, value)) if key.path() == path && value.fits(&key) => None,
                    Ok((key, _)) => Some(format!("it holds {key:?}")),
                    Err(error) => Some(reason(&error)),
                };
                Ok(wrong.map(|what| format!("state row {path:?}: {what}")))
            };
            let wrong = page.par_iter().map(check).collect::<Result<Vec<_>, StorageError>>()?;
            Ok(wrong.into_iter().flatten().chain(missing_codes(backend, page)?).collect())
        });
    }

    /// Every code under its own hash.
    fn codes(&mut self) {
        self.column(Column::Codes, |page| {
            let wrong = page.iter().filter(|(hash, code)| keccak256(code)[..] != hash[..]);
            Ok(wrong.map(|(hash, _)| format!("code {hash:02x?}: it has another hash")).collect())
        });
    }
}

/// Without the words that every kind of damage begins with.
fn reason(error: &StorageError) -> String {
    match error {
        StorageError::Corrupt { what } => what.to_string(),
        other => other.to_string(),
    }
}

fn check_header(
    backend: &dyn Backend,
    number: BatchNumber,
    header: &BatchHeader,
    digest: Digest,
    previous: Option<(BatchNumber, Digest)>,
) -> Result<Vec<String>, StorageError> {
    let mut found = Vec::new();
    if header.number != number {
        found.push(format!("header {number}: it is that of batch {}", header.number));
    }
    match previous {
        Some((before, parent)) if before.next() == number && header.parent != parent => {
            found.push(format!(
                "header {number}: its parent is {}, batch {before} is {parent}",
                header.parent
            ));
        }
        None if number != BatchNumber(0) => {
            found.push(format!("headers before {number}: missing, the genesis too"))
        }
        // A restore leaves a gap, in the accumulator too. One leaf of it is enough to tell a lost header.
        Some((before, _)) if before.next() != number => {
            let lost = BatchNumber(number.0 - 1);
            if read_node(backend, NodePosition { level: 0, index: lost.0 })?.is_some() {
                found.push(format!("header {lost}: missing, its digest is in the accumulator"));
            }
        }
        _ => {}
    }
    if read_node(backend, NodePosition { level: 0, index: number.0 })? != Some(digest) {
        found.push(format!("header {number}: its digest {digest} is not the one in the accumulator"));
    }
    match backend
        .get(Column::HeaderIndex, &digest.0)?
        .map(|bytes| schema::decode_number(&bytes))
        .transpose()?
    {
        Some(indexed) if indexed == number => {}
        _ => found.push(format!("header {number}: the index does not find it by its digest {digest}")),
    }
    Ok(found)
}

/// The code of a page's accounts that is not stored.
fn missing_codes(backend: &dyn Backend, page: &Page) -> Result<Vec<String>, StorageError> {
    let codes: BTreeMap<Digest, &[u8]> =
        page.iter().filter_map(|(path, row)| Some((chunk::code_hash(row)?, &path[..]))).collect();
    let codes: Vec<(Digest, &[u8])> = codes.into_iter().collect();
    let mut found = Vec::new();
    for some in codes.chunks(CODES_AT_ONCE) {
        let keys: Vec<&[u8]> = some.iter().map(|(hash, _)| &hash.0[..]).collect();
        let stored = backend.multi_get(Column::Codes, &keys)?;
        let missing = some.iter().zip(stored).filter(|(_, code)| code.is_none());
        for ((hash, path), _) in missing {
            let path = Path(schema::decode_digest(path)?.0);
            found.push(format!("state row {path:?}: its account has the code {hash}, which is not stored"));
        }
    }
    Ok(found)
}

fn check_stored_blob(
    backend: &dyn Backend,
    kind: BlobKind,
    number: BatchNumber,
    value: &[u8],
) -> Result<(), StorageError> {
    let header = backend.get(Column::Headers, &schema::number_key(number))?;
    let header = header.ok_or_else(|| StorageError::corrupt("its header is missing"))?;
    let header: BatchHeader = schema::decode("header", &header)?;
    let committed = match kind {
        BlobKind::Body => Some(header.transactions_root),
        BlobKind::Receipts => Some(header.receipts_root),
        BlobKind::Delta => Some(header.delta_digest),
        // Nothing certifies the others: they must open, no more.
        _ => None,
    };
    check_blob(kind, &decode_blob(value.to_vec())?, committed)
}

fn check_blob(kind: BlobKind, blob: &Blob, committed: Option<Digest>) -> Result<(), StorageError> {
    let content = blob.content(kind).map_err(|error| StorageError::corrupt(error.to_string()))?;
    let digest = content_digest(kind, &content);
    match committed {
        Some(committed) if committed != digest => {
            Err(StorageError::corrupt(format!("its digest is {digest}, its header says {committed}")))
        }
        _ => Ok(()),
    }
}

fn check_certificate(backend: &dyn Backend, number: BatchNumber, value: &[u8]) -> Result<(), StorageError> {
    let certificate: Certificate = schema::decode("certificate", value)?;
    let header = backend.get(Column::Headers, &schema::number_key(number))?;
    let header = header.ok_or_else(|| StorageError::corrupt("its header is missing"))?;
    let header: BatchHeader = schema::decode("header", &header)?;
    let accumulator = load_accumulator(backend, number)?
        .ok_or_else(|| StorageError::corrupt("nodes of the accumulator up to it are missing"))?;
    crate::stage::check_certificate(&certificate, &header, accumulator.root())
}
