//! Checks a whole store. It reads every byte, so RocksDB verifies its checksums, and compares everything that commits
//! to other data. It collects all damage, because an operator wants to know its extent.

mod column;
mod headers;

use std::collections::BTreeMap;

use rayon::prelude::*;
use slipstream_types::{
    BatchHeader, BatchNumber, Blob, BlobKind, Certificate, Digest, Path, batch::content_digest, keccak256,
};

use self::column::{Part, batches};
use crate::{
    backend::{Backend, Column},
    chunk,
    error::StorageError,
    floors::{kept_ranges, read_headers_floor, read_record},
    ledger::decode_blob,
    nodes::load_accumulator,
    schema::{self, GENESIS_KEY, HEAD_KEY, HeadRecord, KINDS},
    shared::HeadState,
};

/// Maximum number of findings that are reported; a disk that lost a file has thousands of the same.
pub const DAMAGE_MAX: usize = 32;
/// Codes that are looked up at once; this bounds memory too.
const CODES_AT_ONCE: usize = 256;

/// The progress of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckProgress {
    /// The column that is being read.
    pub column: &'static str,
    /// Rows of the column that were read so far.
    pub rows: u64,
    /// About how many rows the column has.
    pub rows_total: u64,
}

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckReport {
    /// The findings: each names the damaged part, its place, and the fault. At most [`DAMAGE_MAX`] of them.
    pub damage: Vec<String>,
    /// Number of further findings.
    pub more: u64,
    /// Damage to data out of use: rows of a restore that is in progress or was abandoned.
    pub unused: Vec<String>,
    /// Rows read, over all columns.
    pub rows: u64,
    /// Their bytes in the store.
    pub bytes: u64,
}

pub(crate) fn check(
    backend: &dyn Backend,
    tree_memory_mib: u64,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<CheckReport, StorageError> {
    let mut check = Check {
        backend,
        progress,
        unused: None,
        head: BatchNumber::GENESIS,
        headers_floor: read_headers_floor(backend).unwrap_or_default(),
        report: CheckReport::default(),
    };
    let head = match head_record(backend) {
        Ok(head) => head,
        Err(error) => {
            check.damaged(error.to_string());
            None
        }
    };
    if let Some(head) = &head {
        check.unused = Some(head.active.other().column());
        check.head = head.number;
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
    for column in Column::ALL.iter().copied().filter(|column| !seen(*column)) {
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
    /// The state column that is not in use.
    unused: Option<Column>,
    /// The store's head.
    head: BatchNumber,
    /// Headers below it are pruned. Leftover rows that would be compared with them are skipped.
    headers_floor: BatchNumber,
    report: CheckReport,
}

impl Check<'_> {
    fn damaged(&mut self, what: String) {
        match self.report.damage.len() < DAMAGE_MAX {
            true => self.report.damage.push(what),
            false => self.report.more += 1,
        }
    }

    /// Checks head, accumulator and tree as every start does, including the state's root.
    fn head(&mut self, tree_memory_mib: u64) {
        if let Err(error) = HeadState::load(self.backend.snapshot(), tree_memory_mib, None) {
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

    /// Checks every blob against the digest in its header, and that no blob is missing that the store claims to keep.
    fn blobs(&mut self, kind: BlobKind, head: &HeadRecord) {
        let Some(column) = schema::blob_column(kind) else { return };
        let pruned = read_record(self.backend).unwrap_or_default();
        let kept = kept_ranges(head, &pruned).into_iter().find(|range| range.kind == kind);
        let mut expected = kept.and_then(|range| range.lowest);
        let (backend, headers_floor) = (self.backend, self.headers_floor.get());
        let mut missing = |first: BatchNumber, last: BatchNumber| {
            let next = expected.filter(|next| *next <= last)?;
            expected = Some(last.next());
            (next < first).then(|| missing_blobs(kind, next, first.before(1)))
        };
        let is_whole = self.column(column, |part| {
            if let Part::Unreadable(first, last) = part {
                return Ok(missing(first, last).into_iter().collect());
            }
            let check = |(key, value): &column::Row| {
                let number = schema::decode_number(key)?;
                let wrong = match schema::is_header_pruned(number, headers_floor) {
                    true => None,
                    false => check_stored_blob(backend, kind, number, value).err(),
                };
                Ok((number, wrong.map(|error| reason(&error))))
            };
            let mut found = Vec::new();
            for checked in part.rows().par_iter().map(check).collect::<Result<Vec<_>, StorageError>>()? {
                let (number, wrong) = checked;
                found.extend(wrong.map(|what| format!("{} of batch {number}: {what}", kind.name())));
                found.extend(missing(number, number));
            }
            Ok(found)
        });
        // If reading ended early, nobody knows which blobs follow.
        if let Some(next) = expected.filter(|next| is_whole && *next <= head.number) {
            self.damaged(missing_blobs(kind, next, head.number));
        }
    }

    /// Checks every certificate against the header and the accumulator that it certifies.
    fn certificates(&mut self, head: &HeadRecord) {
        let (backend, head, headers_floor) = (self.backend, head.number, self.headers_floor.get());
        self.column(Column::Certificates, |part| {
            let check = |(key, value): &column::Row| {
                let number = schema::decode_number(key)?;
                if schema::is_header_pruned(number, headers_floor) {
                    return Ok(None);
                }
                let wrong = check_certificate(backend, number, value).err();
                let above = (number > head).then(|| "it is above the head".to_owned());
                let wrong = wrong.map(|error| reason(&error)).or(above);
                Ok(wrong.map(|what| format!("certificate {number}: {what}")))
            };
            Ok(part
                .rows()
                .par_iter()
                .map(check)
                .collect::<Result<Vec<_>, StorageError>>()?
                .into_iter()
                .flatten()
                .collect())
        });
    }

    /// Checks that every row is under its own path, and its account's code in the store. The root was compared when
    /// the head was loaded.
    fn state(&mut self, column: Column) {
        let backend = self.backend;
        self.column(column, |part| {
            let page = part.rows();
            let check = |(path, row): &column::Row| {
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

    /// Checks that every code is under its own hash.
    fn codes(&mut self) {
        self.column(Column::Codes, |part| {
            let wrong = part.rows().iter().filter(|(hash, code)| keccak256(code)[..] != hash[..]);
            Ok(wrong.map(|(hash, _)| format!("code {hash:02x?}: its bytes have another hash")).collect())
        });
    }
}

fn missing_blobs(kind: BlobKind, first: BatchNumber, last: BatchNumber) -> String {
    format!("{} of {}: missing", kind.name(), batches(first, last))
}

/// Returns an error's text without the words that every kind of damage begins with.
fn reason(error: &StorageError) -> String {
    match error {
        StorageError::Corrupt { what } => what.to_string(),
        other => other.to_string(),
    }
}

/// Finds code that a page's accounts have but the store lacks.
fn missing_codes(backend: &dyn Backend, page: &[column::Row]) -> Result<Vec<String>, StorageError> {
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
        // The other blobs are not certified: it is enough that they open.
        _ => None,
    };
    check_blob(kind, &decode_blob(value.to_vec())?, committed)
}

fn check_blob(kind: BlobKind, blob: &Blob, committed: Option<Digest>) -> Result<(), StorageError> {
    let content = blob.content(kind).map_err(|error| StorageError::corrupt(error.to_string()))?;
    let digest = content_digest(kind, &content);
    match committed {
        Some(committed) if committed != digest => {
            Err(StorageError::corrupt(format!("its digest is {digest}, but its header says {committed}")))
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
        .ok_or_else(|| StorageError::corrupt("accumulator nodes up to it are missing"))?;
    crate::stage::check_certificate(&certificate, &header, accumulator.root())
}
