//! [`Store::commit`]: a batch becomes the head in one atomic write, or nothing happens.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use rayon::prelude::*;
use slipstream_types::{
    Address, B256, BatchHeader, BatchNumber, Blob, BlobKind, Certificate, Delta, Digest, Path, StateKey,
    StateValue, delta::DeltaEntry, keccak256,
};

use crate::{
    backend::{Column, WriteBatch},
    error::StorageError,
    schema::{self, HEAD_KEY, HeadRecord, StateColumn},
    state::{Tree, Update},
    store::{Current, Head, Store},
};

/// Below this many entries one thread prepares a delta faster than two.
const PARALLEL_ENTRIES_MIN: usize = 256;

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
    /// Row bytes by path, none for a deletion.
    rows: Vec<(Path, Option<Vec<u8>>)>,
    /// New code by its hash.
    codes: BTreeMap<Digest, Vec<u8>>,
    /// Code that accounts of the delta have, with one of them each.
    referenced: BTreeMap<Digest, Address>,
}

impl Changes {
    fn of(delta: &Delta) -> (Changes, Vec<Update>) {
        let prepare = |entry: &DeltaEntry| {
            let path = entry.key.path();
            let row = entry.value.map(|value| schema::encode_row(&entry.key, &value));
            ((path, row), (path, entry.value.map(|value| value.hash(&entry.key))))
        };
        let (rows, updates) = match delta.entries() {
            entries if entries.len() < PARALLEL_ENTRIES_MIN => entries.iter().map(prepare).unzip(),
            entries => entries.par_iter().map(prepare).unzip(),
        };
        let codes =
            delta.codes().iter().map(|code| (Digest::from(keccak256(&code[..])), code.to_vec())).collect();
        let code_of = |entry: &DeltaEntry| match (entry.key, entry.value) {
            (StateKey::Account(address), Some(StateValue::Account(account))) => {
                account.code_hash.map(|hash| (hash, address))
            }
            _ => None,
        };
        let referenced = delta.entries().iter().filter_map(code_of).collect();
        (Changes { rows, codes, referenced }, updates)
    }

    fn apply(self, column: Column, batch: &mut WriteBatch) {
        for (path, row) in self.rows {
            match row {
                Some(row) => batch.put(column, path.0, row),
                None => batch.delete(column, path.0),
            }
        }
        for (hash, code) in self.codes {
            batch.put(Column::Codes, hash.0, code);
        }
    }
}

impl Store {
    /// The root that the head's state would have after a delta. Writes nothing.
    ///
    /// # Errors
    /// [`StorageError::NotInitialized`].
    pub fn speculate(&self, delta: &Delta) -> Result<Speculation, StorageError> {
        Ok(speculate(Some(&*self.current()?), delta))
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
        let number = header.number;
        let speculation = speculation
            .filter(|speculation| speculation.base == base_digest(base))
            .unwrap_or_else(|| speculate(base, batch.delta));
        let (expected, found) = (header.state_root, speculation.root());
        if found != expected {
            return Err(StorageError::StateRootMismatch { number, expected, found });
        }
        self.check_codes(number, &speculation.changes)?;
        for (kind, blob) in batch.blobs() {
            blob.map(|blob| blob.content_len(kind)).transpose()?;
        }

        let digest = header.digest();
        let mut accumulator = base.map(|base| base.head.accumulator.clone()).unwrap_or_default();
        let nodes = accumulator.append(digest);
        if let Some(certificate) = batch.certificate {
            check_certificate(certificate, header, accumulator.root())?;
        }
        let record = next_record(base, batch);
        let Speculation { tree, changes, .. } = speculation;

        let mut writes = WriteBatch::default();
        changes.apply(record.active.column(), &mut writes);
        for (position, node) in nodes {
            writes.put(Column::Nodes, schema::node_key(position), node.0);
        }
        put_header(&mut writes, header, &digest);
        self.put_parts(&mut writes, batch);
        writes.put(Column::Meta, HEAD_KEY, schema::encode(&record));
        self.write(writes, true)?;

        let head = Head { header: header.clone(), digest, accumulator };
        let current = Arc::new(Current { head, record, tree, reader: self.0.backend.snapshot() });
        self.install(Arc::clone(&current));
        if let Some(certificate) = batch.certificate {
            self.make_snapshot(&current, certificate);
        }
        Ok(())
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
            if let (Some(column), Some(blob)) = (schema::blob_column(kind), blob) {
                writes.put(column, key, blob.as_bytes());
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

fn base_digest(base: Option<&Current>) -> Digest {
    base.map_or(Digest::ZERO, |base| base.head.digest)
}

fn speculate(base: Option<&Current>, delta: &Delta) -> Speculation {
    let (changes, updates) = Changes::of(delta);
    let tree = base.map(|base| base.tree.clone()).unwrap_or_default().apply(&updates);
    Speculation { base: base_digest(base), tree, changes }
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
