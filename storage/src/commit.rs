//! [`Store::commit`]: a batch becomes the head in one atomic write, or nothing happens.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use rayon::prelude::*;
use slipstream_types::{
    Address, B256, BatchHeader, BatchNumber, Blob, BlobKind, Certificate, Delta, Digest, Path, StateKey,
    StateValue,
    accumulator::{Accumulator, NodePosition},
    delta::DeltaEntry,
    keccak256,
    state::Paths,
    tree::Subtree,
};

use crate::{
    backend::{Column, Rows, WriteBatch},
    error::StorageError,
    schema::{self, GENESIS_KEY, HEAD_KEY, HeadRecord, StateColumn},
    state::{Tree, Update},
    store::{Current, Head, Store},
};

/// Entries that one thread prepares at a time; fewer are not worth another thread.
const PREPARE_ENTRIES: usize = 512;

/// A batch with the parts of it that are to be stored. Parts that are left out are simply not there to be served.
#[derive(Clone, Copy, Debug)]
pub struct CommitBatch<'a> {
    /// Its header.
    pub header: &'a BatchHeader,
    /// Its effect on the state.
    pub delta: &'a Delta,
    /// Its transactions; of batch 0 the genesis.
    pub body: Option<&'a Blob>,
    /// Its receipts.
    pub receipts: Option<&'a Blob>,
    /// The delta as it is served.
    pub delta_blob: Option<&'a Blob>,
    /// Its hints.
    pub hints: Option<&'a Blob>,
    /// Hashes of the body's transactions in order, for the index; empty if there is no body.
    pub transaction_hashes: &'a [B256],
    /// A certificate for exactly this batch.
    pub certificate: Option<&'a Certificate>,
}

impl<'a> CommitBatch<'a> {
    /// A batch of which only header and state are stored.
    pub fn new(header: &'a BatchHeader, delta: &'a Delta) -> Self {
        Self {
            header,
            delta,
            body: None,
            receipts: None,
            delta_blob: None,
            hints: None,
            transaction_hashes: &[],
            certificate: None,
        }
    }

    fn blobs(&self) -> [(BlobKind, Option<&'a Blob>); 4] {
        let body = if self.header.number == BatchNumber(0) { BlobKind::Genesis } else { BlobKind::Body };
        [
            (body, self.body),
            (BlobKind::Receipts, self.receipts),
            (BlobKind::Delta, self.delta_blob),
            (BlobKind::Hints, self.hints),
        ]
    }
}

/// What a delta would make of the head's state. Holds the rows that it computed the root of, so that a commit stores
/// exactly those.
pub struct Speculation {
    /// Digest of the head that it was made on; zero for the empty store.
    base: Digest,
    tree: Tree,
    changes: Changes,
}

impl Speculation {
    /// The state root after the delta.
    pub fn root(&self) -> Digest {
        self.tree.root()
    }
}

/// A delta as it is written.
struct Changes {
    /// In runs, as they were prepared.
    rows: Vec<Rows>,
    /// New code by its hash.
    codes: BTreeMap<Digest, Vec<u8>>,
    /// Code that accounts of the delta have, with one of them each.
    referenced: BTreeMap<Digest, Address>,
}

impl Changes {
    fn of(delta: &Delta) -> (Changes, Vec<Update>) {
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

impl Store {
    /// The root that the head's state would have after a delta. Writes nothing.
    ///
    /// # Errors
    /// [`StorageError::NotInitialized`].
    pub fn speculate(&self, delta: &Delta) -> Result<Speculation, StorageError> {
        let (current, tree) = self.current_with_tree()?;
        let (changes, updates) = Changes::of(delta);
        Ok(Speculation { base: current.head.digest, tree: tree.apply(&updates)?, changes })
    }

    /// The root that the head's state would have after a run of deltas: they are merged first, so that a node's hash is
    /// computed once however often it changes. Writes nothing.
    ///
    /// # Errors
    /// [`StorageError::NotInitialized`].
    pub fn speculate_run(&self, deltas: &[&Delta]) -> Result<Digest, StorageError> {
        let (_, tree) = self.current_with_tree()?;
        let mut merged: BTreeMap<Path, Option<Digest>> = BTreeMap::new();
        for delta in deltas {
            merged.extend(Changes::of(delta).1);
        }
        Ok(tree.apply(&merged.into_iter().collect::<Vec<_>>())?.root())
    }

    /// The part of the head's state whose paths share the first `bits` bits of `path`: two versions are equal there if
    /// these are.
    ///
    /// # Errors
    /// [`StorageError::NotInitialized`].
    pub fn subtree(&self, path: &Path, bits: usize) -> Result<Subtree, StorageError> {
        self.current_with_tree()?.1.subtree(path, bits.min(256))
    }

    /// Makes the next batch the head: checks number, parent, state root, certificate and code, then writes everything at
    /// once and durably. A speculation on the same head saves computing the root again; one on an older head is ignored.
    ///
    /// # Errors
    /// [`StorageError::NotNext`] if somebody else was first; otherwise what does not fit. Nothing is written then.
    pub fn commit(
        &self,
        batch: CommitBatch<'_>,
        speculation: Option<Speculation>,
    ) -> Result<(), StorageError> {
        let _writer = self.0.writer.lock();
        let current = self.current()?;
        let (head, header) = (&current.head, batch.header);
        if header.number != head.header.number.next() {
            return Err(StorageError::NotNext { head: head.header.number, number: header.number });
        }
        if header.parent != head.digest {
            let (number, expected, found) = (header.number, head.digest, header.parent);
            return Err(StorageError::WrongParent { number, expected, found });
        }
        self.commit_locked(Some(&*current), &batch, speculation)
    }

    /// What genesis and every other batch share. The caller holds the writer's lock and knows that the batch continues
    /// `base`.
    pub(crate) fn commit_locked(
        &self,
        base: Option<&Current>,
        batch: &CommitBatch<'_>,
        speculation: Option<Speculation>,
    ) -> Result<(), StorageError> {
        let header = batch.header;
        let base_digest = base.map_or(Digest::ZERO, |base| base.head.digest);
        let next = match speculation.filter(|speculation| speculation.base == base_digest) {
            Some(Speculation { tree, changes, .. }) => Next { tree, changes, updates: None },
            None => Next::of(base, batch.delta)?,
        };
        let Appended { digest, accumulator, nodes } = match self.check_next(base, batch, &next) {
            Ok(checked) => checked,
            Err(error) => {
                put_back(base, next.tree, next.updates)?;
                return Err(error);
            }
        };
        let record = next_record(base, batch);
        let Next { tree, changes, updates } = next;

        let mut writes = WriteBatch::default();
        changes.apply(record.active.column(), &mut writes);
        for (position, node) in nodes {
            writes.put(Column::Nodes, schema::node_key(position), node.0);
        }
        put_header(&mut writes, header, &digest);
        self.put_parts(&mut writes, batch);
        writes.put(Column::Meta, HEAD_KEY, schema::encode(&record));
        if let Err(error) = self.write(writes, true) {
            if self.check_poison().is_ok() {
                // Nothing was written, as on a disk that is nearly full: the batch may come again.
                put_back(base, tree, updates)?;
            }
            return Err(error);
        }

        let head = Head { header: header.clone(), digest, accumulator };
        let current = self.current_of(head, record, tree);
        self.install(Arc::clone(&current));
        if let Some(certificate) = batch.certificate {
            self.make_snapshot(&current, certificate);
        }
        self.prepare_snapshot(header.number);
        Ok(())
    }

    /// Whether the batch's parts fit each other, its state and the ledger before it.
    fn check_next(
        &self,
        base: Option<&Current>,
        batch: &CommitBatch<'_>,
        next: &Next,
    ) -> Result<Appended, StorageError> {
        let header = batch.header;
        let (number, expected, found) = (header.number, header.state_root, next.tree.root());
        if found != expected {
            return Err(StorageError::StateRootMismatch { number, expected, found });
        }
        self.check_codes(number, &next.changes)?;
        for (kind, blob) in batch.blobs() {
            blob.map(|blob| blob.content_len(kind)).transpose()?;
        }
        let digest = header.digest();
        let mut accumulator = base.map(|base| base.head.accumulator.clone()).unwrap_or_default();
        let nodes = accumulator.append(digest);
        if let Some(certificate) = batch.certificate {
            check_certificate(certificate, header, accumulator.root())?;
        }
        Ok(Appended { digest, accumulator, nodes })
    }

    fn check_codes(&self, number: BatchNumber, changes: &Changes) -> Result<(), StorageError> {
        let new: BTreeSet<_> = changes.codes.keys().collect();
        let stored: Vec<_> = changes.referenced.iter().filter(|(hash, _)| !new.contains(hash)).collect();
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

/// The ledger with one header more.
struct Appended {
    digest: Digest,
    accumulator: Accumulator,
    nodes: Vec<(NodePosition, Digest)>,
}

/// The state after the batch that is being committed.
struct Next {
    tree: Tree,
    changes: Changes,
    /// Where the tree is the head's own, changed in place; none where it is a copy.
    updates: Option<Vec<Update>>,
}

impl Next {
    /// Takes the head's tree: a commit that succeeds has no use for the old one, and one that fails at the disk ends the
    /// store.
    fn of(base: Option<&Current>, delta: &Delta) -> Result<Next, StorageError> {
        let (changes, updates) = Changes::of(delta);
        let tree = match base {
            Some(base) => base.tree.lock().take().ok_or(StorageError::Poisoned)?,
            None => Tree::default(),
        };
        Ok(Next { tree: tree.apply(&updates)?, changes, updates: Some(updates) })
    }
}

/// Makes the head's tree again of the next one, because the batch was refused: the keys that it changed get the hashes of
/// their rows back.
fn put_back(base: Option<&Current>, next: Tree, updates: Option<Vec<Update>>) -> Result<(), StorageError> {
    let (Some(base), Some(updates)) = (base, updates) else { return Ok(()) };
    let keys: Vec<&[u8]> = updates.iter().map(|(path, _)| &path.0[..]).collect();
    let rows = base.reader.multi_get(base.record.active.column(), &keys)?;
    let undo: Vec<Update> = updates
        .iter()
        .zip(rows)
        .map(|((path, _), row)| (*path, row.map(|row| StateValue::row_hash(&row))))
        .collect();
    *base.tree.lock() = Some(next.apply(&undo)?);
    Ok(())
}

fn next_record(base: Option<&Current>, batch: &CommitBatch<'_>) -> HeadRecord {
    let number = batch.header.number;
    let Some(base) = base else {
        return HeadRecord { number, active: StateColumn::A, lowest: [number.next(); 4] };
    };
    let mut record = HeadRecord { number, ..base.record };
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
