//! What a commit does before it writes: a delta becomes rows and a new tree, and everything is checked that can be.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use rayon::prelude::*;
use slipstream_types::{
    Address, BatchHeader, BatchNumber, BlobKind, Certificate, Delta, Digest, StateKey, StateValue,
    delta::DeltaEntry, keccak256, state::Paths,
};

use crate::{
    backend::{Column, Reader, Rows, WriteBatch},
    commit::CommitBatch,
    error::StorageError,
    schema::{self, GENESIS_KEY, HEAD_KEY, HeadRecord, StateColumn},
    state::{Tree, Update},
    store::{Head, Store},
};

/// Entries that one thread prepares at a time; fewer are not worth another thread.
const PREPARE_ENTRIES: usize = 512;

/// A delta as it is written.
pub(crate) struct Changes {
    /// In runs, as they were prepared.
    rows: Vec<Rows>,
    /// New code by its hash.
    codes: BTreeMap<Digest, Vec<u8>>,
    /// Code that accounts of the delta have, with one of them each.
    referenced: BTreeMap<Digest, Address>,
}

impl Changes {
    pub(crate) fn of(delta: &Delta) -> (Changes, Vec<Update>) {
        let entries = delta.entries();
        let runs: Vec<_> = if entries.len() <= PREPARE_ENTRIES {
            entries.chunks(PREPARE_ENTRIES).map(prepare).collect()
        } else {
            entries.par_chunks(PREPARE_ENTRIES).map(prepare).collect()
        };
        let mut updates = Vec::with_capacity(entries.len());
        let mut rows = Vec::with_capacity(runs.len());
        for (run_rows, run_updates) in runs {
            updates.extend(run_updates);
            rows.push(run_rows);
        }
        let codes =
            delta.codes().iter().map(|code| (Digest::from(keccak256(&code[..])), code.to_vec())).collect();
        let code_of = |entry: &DeltaEntry| match (entry.key, entry.value) {
            (StateKey::Account(address), Some(StateValue::Account(account))) => {
                account.code_hash.map(|hash| (hash, address))
            }
            _ => None,
        };
        let referenced = entries.iter().filter_map(code_of).collect();
        (Changes { rows, codes, referenced }, updates)
    }

    fn apply(self, column: Column, batch: &mut WriteBatch) {
        for rows in self.rows {
            batch.rows(column, rows);
        }
        for (hash, code) in self.codes {
            batch.put(Column::Codes, hash.0, code);
        }
    }
}

/// Path, bytes and hash of each row, all computed once.
fn prepare(entries: &[DeltaEntry]) -> (Rows, Vec<Update>) {
    let mut rows = Rows::with_capacity(entries.len());
    let mut paths = Paths::default();
    let update = |entry: &DeltaEntry| {
        let path = paths.path(&entry.key);
        let write = entry.value.map(|value| move |row: &mut Vec<u8>| value.append_row(&entry.key, row));
        (path, rows.push(path, write).map(StateValue::row_hash))
    };
    let updates = entries.iter().map(update).collect();
    (rows, updates)
}

/// The state after a batch, with its root computed and nothing checked.
pub(crate) struct Next {
    pub(crate) tree: Tree,
    pub(crate) changes: Changes,
    /// Where the tree was changed in place: what to put back if the batch is refused. None where it is a copy.
    pub(crate) updates: Option<Vec<Update>>,
}

/// A batch that only has to be written.
pub(crate) struct Staged {
    pub(crate) head: Head,
    pub(crate) record: HeadRecord,
    pub(crate) tree: Tree,
    pub(crate) updates: Option<Vec<Update>>,
    /// Hashes of the code that is written with it.
    pub(crate) codes: BTreeSet<Digest>,
    pub(crate) writes: WriteBatch,
}

/// What a batch is staged on.
#[derive(Clone, Copy)]
pub(crate) struct Base<'a> {
    pub(crate) head: &'a Head,
    pub(crate) record: &'a HeadRecord,
    /// Code of a base that may not be written yet; empty for the head.
    pub(crate) codes: &'a BTreeSet<Digest>,
}

/// Why a batch cannot be the next, and the tree as it was about to be.
pub(crate) struct Refused {
    pub(crate) error: StorageError,
    pub(crate) tree: Tree,
    pub(crate) updates: Option<Vec<Update>>,
}

impl Next {
    /// Changes a tree that nobody else needs.
    ///
    /// # Errors
    /// If rows that the tree stands on cannot be read. The tree is gone then.
    pub(crate) fn of(tree: Tree, delta: &Delta) -> Result<Next, StorageError> {
        let (changes, updates) = Changes::of(delta);
        Ok(Next { tree: tree.apply(&updates)?, changes, updates: Some(updates) })
    }
}

impl Store {
    /// Checks whether the batch's parts fit each other, its state and the ledger before it, of which none is what genesis
    /// stands on.
    pub(crate) fn stage(
        &self,
        base: Option<Base<'_>>,
        batch: &CommitBatch<'_>,
        next: Next,
    ) -> Result<Staged, Box<Refused>> {
        let mut writes = WriteBatch::default();
        let Next { tree, changes, updates } = next;
        let head = match self.checked_head(base, batch, &tree, &changes, &mut writes) {
            Ok(head) => head,
            Err(error) => return Err(Box::new(Refused { error, tree, updates })),
        };
        let record = next_record(base.map(|base| base.record), batch);
        let codes = changes.codes.keys().copied().collect();
        changes.apply(record.active.column(), &mut writes);
        put_header(&mut writes, batch.header, &head.digest);
        self.put_parts(&mut writes, batch);
        writes.put(Column::Meta, HEAD_KEY, schema::encode(&record));
        Ok(Staged { head, record, tree, updates, codes, writes })
    }

    /// The ledger with this batch's header; what that adds to the accumulator goes to the writes.
    fn checked_head(
        &self,
        base: Option<Base<'_>>,
        batch: &CommitBatch<'_>,
        tree: &Tree,
        changes: &Changes,
        writes: &mut WriteBatch,
    ) -> Result<Head, StorageError> {
        let header = batch.header;
        if let Some(base) = base {
            check_follows(base.head, header)?;
        }
        let (number, expected, found) = (header.number, header.state_root, tree.root());
        if found != expected {
            return Err(StorageError::StateRootMismatch { number, expected, found });
        }
        self.check_codes(number, changes, base.map(|base| base.codes))?;
        for (kind, blob) in batch.blobs() {
            blob.map(|blob| blob.content_len(kind)).transpose()?;
        }
        let digest = header.digest();
        let mut accumulator = base.map(|base| base.head.accumulator.clone()).unwrap_or_default();
        for (position, node) in accumulator.append(digest) {
            writes.put(Column::Nodes, schema::node_key(position), node.0);
        }
        if let Some(certificate) = batch.certificate {
            check_certificate(certificate, header, accumulator.root())?;
        }
        Ok(Head { header: header.clone(), digest, accumulator })
    }

    fn check_codes(
        &self,
        number: BatchNumber,
        changes: &Changes,
        unwritten: Option<&BTreeSet<Digest>>,
    ) -> Result<(), StorageError> {
        let is_new = |hash: &Digest| {
            changes.codes.contains_key(hash) || unwritten.is_some_and(|codes| codes.contains(hash))
        };
        let stored: Vec<_> = changes.referenced.iter().filter(|(hash, _)| !is_new(hash)).collect();
        let keys: Vec<&[u8]> = stored.iter().map(|(hash, _)| &hash.0[..]).collect();
        for ((hash, address), code) in stored.iter().zip(self.0.backend.multi_get(Column::Codes, &keys)?) {
            if code.is_none() {
                return Err(StorageError::UnknownCode { number, address: **address, hash: **hash });
            }
        }
        Ok(())
    }

    fn put_parts(&self, writes: &mut WriteBatch, batch: &CommitBatch<'_>) {
        let number = batch.header.number;
        let key = schema::number_key(number);
        for (kind, blob) in batch.blobs() {
            match (kind, schema::blob_column(kind), blob) {
                (BlobKind::Genesis, _, Some(blob)) => writes.put(Column::Meta, GENESIS_KEY, blob.as_bytes()),
                (_, Some(column), Some(blob)) => writes.put(column, key, blob.as_bytes()),
                _ => {}
            }
        }
        if let Some(certificate) = batch.certificate {
            writes.put(Column::Certificates, key, schema::encode(certificate));
        }
        if self.0.config.transaction_index {
            for (index, hash) in (0..).zip(batch.transaction_hashes) {
                writes.put(Column::TransactionIndex, hash.0, schema::encode_position(number, index));
            }
        }
    }
}

/// Whether a header stands right behind the head.
pub(crate) fn check_follows(head: &Head, header: &BatchHeader) -> Result<(), StorageError> {
    let (number, expected, found) = (header.number, head.digest, header.parent);
    if number != head.header.number.next() {
        return Err(StorageError::NotNext { head: head.header.number, number });
    }
    if found != expected {
        return Err(StorageError::WrongParent { number, expected, found });
    }
    Ok(())
}

/// Takes updates back: the keys get the hashes of the rows that a reader has.
pub(crate) fn put_back(
    tree: Tree,
    updates: &[Update],
    reader: &Arc<dyn Reader>,
    column: Column,
) -> Result<Tree, StorageError> {
    let keys: Vec<&[u8]> = updates.iter().map(|(path, _)| &path.0[..]).collect();
    let rows = reader.multi_get(column, &keys)?;
    let undo: Vec<Update> = updates
        .iter()
        .zip(rows)
        .map(|((path, _), row)| (*path, row.map(|row| StateValue::row_hash(&row))))
        .collect();
    tree.apply(&undo)
}

fn next_record(base: Option<&HeadRecord>, batch: &CommitBatch<'_>) -> HeadRecord {
    let number = batch.header.number;
    let Some(base) = base else {
        return HeadRecord { number, active: StateColumn::A, lowest: [number.next(); 4] };
    };
    let mut record = HeadRecord { number, ..*base };
    for (lowest, (_, blob)) in record.lowest.iter_mut().zip(batch.blobs()) {
        if blob.is_none() {
            *lowest = number.next();
        }
    }
    record
}

pub(crate) fn put_header(writes: &mut WriteBatch, header: &BatchHeader, digest: &Digest) {
    let key = schema::number_key(header.number);
    writes.put(Column::Headers, key, schema::encode(header));
    writes.put(Column::HeaderIndex, digest.0, key);
}

/// Whether a certificate is about this header in this ledger. Its signatures are the caller's to check.
pub(crate) fn check_certificate(
    certificate: &Certificate,
    header: &BatchHeader,
    accumulator_root: Digest,
) -> Result<(), StorageError> {
    let info = &certificate.info;
    let reason = if info.number != header.number {
        "it certifies another batch"
    } else if info.state_root != header.state_root {
        "its state root is not that of the batch"
    } else if info.accumulator_root != accumulator_root {
        "its accumulator root is not that of the ledger up to the batch"
    } else {
        return Ok(());
    };
    Err(StorageError::WrongCertificate { number: info.number, reason })
}
