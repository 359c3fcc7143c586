//! Stages commits: checks everything before a write, and rolls back a refused batch.

use std::{collections::BTreeSet, sync::Arc};

use slipstream_types::{
    B256, BatchHeader, BatchNumber, Blob, BlobKind, Certificate, Digest, Epoch, StateValue,
};

use crate::{
    backend::{Column, Reader, WriteBatch},
    batch::CommitBatch,
    changes::{Changes, NextState, RowChange},
    error::StorageError,
    kept::KeptRecord,
    schema::{self, GENESIS_KEY, HEAD_KEY, HeadRecord, StateColumn},
    shared::{Head, HeadState},
    state::{Tree, Update},
    transactions::place_key,
    writer::Writer,
};

/// Checked batches, ready to be written all at once.
pub(crate) struct StagedCommit {
    pub(crate) head: Head,
    pub(crate) record: HeadRecord,
    /// The last epoch whose validators are known after the write.
    pub(crate) epoch: Epoch,
    pub(crate) tree: Tree,
    pub(crate) updates: Option<Vec<Update>>,
    /// Hashes of the code that the write adds.
    pub(crate) codes: BTreeSet<Digest>,
    /// The rows that the batches change, for the history.
    pub(crate) touched: Vec<RowChange>,
    pub(crate) writes: WriteBatch,
}

/// The ledger and tree that batches are staged on.
#[derive(Clone, Copy)]
pub(crate) struct CommitBase<'a> {
    pub(crate) head: &'a Head,
    pub(crate) record: &'a HeadRecord,
    /// Hashes of the base's code that may not be written yet; empty for the head.
    pub(crate) codes: &'a BTreeSet<Digest>,
    /// The last epoch whose validators are known.
    pub(crate) epoch: Epoch,
}

/// Why batches were refused, and the tree with their changes.
pub(crate) struct RefusedCommit {
    pub(crate) error: StorageError,
    /// Index of the first batch that does not fit. For a wrong root it is the last batch, though an earlier one may
    /// be wrong.
    pub(crate) index: usize,
    pub(crate) tree: Tree,
    pub(crate) updates: Option<Vec<Update>>,
}

impl Writer<'_> {
    /// Checks the parts of batches against each other, their state and the ledger before them. `base` is `None` for
    /// genesis. At least one batch is given, and `next` is the state after the last.
    pub(crate) fn stage(
        &self,
        base: Option<CommitBase<'_>>,
        batches: &[CommitBatch<'_>],
        next: NextState,
    ) -> Result<StagedCommit, Box<RefusedCommit>> {
        let mut writes = WriteBatch::default();
        let NextState { tree, changes, updates } = next;
        let checked = check_order(base, batches)
            .and_then(|digests| {
                for (index, batch) in batches.iter().enumerate() {
                    self.store.check_rules(batch.header).map_err(|error| (index, error))?;
                }
                check_root(batches, &tree)?;
                self.check_codes(batches, &changes, base.map(|base| base.codes))?;
                Ok(digests)
            })
            .and_then(|digests| self.next_head(base, batches, &digests, &mut writes));
        let (head, epoch) = match checked {
            Ok(checked) => checked,
            Err((index, error)) => return Err(Box::new(RefusedCommit { error, index, tree, updates })),
        };
        let (mut record, mut kept) = (base.map(|base| *base.record), None);
        for (index, batch) in batches.iter().enumerate() {
            if let Some(record) = &record
                && let Err(error) = self.leave_lacking(record, batch, &mut kept)
            {
                return Err(Box::new(RefusedCommit { error, index, tree, updates }));
            }
            record = Some(next_record(record, batch));
        }
        let record = record.expect("at least one batch is staged");
        if let Some(kept) = kept {
            kept.put(&mut writes);
        }
        let codes = changes.codes.keys().copied().collect();
        let touched = changes.apply(record.active.column(), &mut writes);
        for batch in batches {
            self.put_parts(&mut writes, batch);
        }
        writes.put(Column::Meta, HEAD_KEY, schema::encode(&record));
        Ok(StagedCommit { head, record, epoch, tree, updates, codes, touched, writes })
    }

    /// Rolls a refused tree back, and returns the reason for the refusal.
    pub(crate) fn refuse(&self, current: &HeadState, refused: RefusedCommit) -> StorageError {
        self.return_tree(current, refused.tree, [refused.updates]);
        refused.error
    }

    /// Restores the head's tree after changes that were not written, because they were refused or the disk is nearly
    /// full. `updates` are those since the head, the newest first. A copied tree has none, and needs no restoring.
    pub(crate) fn return_tree<const N: usize>(
        &self,
        current: &HeadState,
        mut tree: Tree,
        updates: [Option<Vec<Update>>; N],
    ) {
        for updates in updates {
            let Some(updates) = updates.filter(|_| self.store.check_poison().is_ok()) else { return };
            tree = match put_back(tree, &updates, &current.reader, current.record.active.column()) {
                Ok(tree) => tree,
                // Without it, the tree is rebuilt when it is needed.
                Err(error) => {
                    return tracing::warn!(%error, "cannot undo unwritten changes in the state tree: the node rebuilds the tree");
                }
            };
        }
        *current.tree.lock() = Some(tree.read_from(current.rows()));
    }

    /// The base for the next batch.
    pub(crate) fn base<'a>(&self, current: &'a HeadState) -> CommitBase<'a> {
        static NONE: BTreeSet<Digest> = BTreeSet::new();
        CommitBase { head: &current.head, record: &current.record, codes: &NONE, epoch: self.store.epoch() }
    }

    fn check_codes(
        &self,
        batches: &[CommitBatch<'_>],
        changes: &Changes,
        unwritten: Option<&BTreeSet<Digest>>,
    ) -> Result<(), AtBatch> {
        let is_new = |hash: &Digest| {
            changes.codes.contains_key(hash) || unwritten.is_some_and(|codes| codes.contains(hash))
        };
        let stored: Vec<_> = changes.referenced.iter().filter(|(hash, _)| !is_new(hash)).collect();
        let keys: Vec<&[u8]> = stored.iter().map(|(hash, _)| &hash.0[..]).collect();
        let codes = self.store.0.backend.multi_get(Column::Codes, &keys).map_err(|error| (0, error))?;
        let missing = stored.iter().zip(codes).filter(|(_, code)| code.is_none());
        match missing.map(|((hash, at), _)| (**at, **hash)).min() {
            None => Ok(()),
            Some(((index, address), hash)) => {
                let number = batches[index].header.number;
                Err((index, StorageError::UnknownCode { number, address, hash }))
            }
        }
    }

    /// Returns the ledger with these batches' headers, and the last known epoch. Adds headers, accumulator nodes and
    /// epoch ends to `writes`.
    fn next_head(
        &self,
        base: Option<CommitBase<'_>>,
        batches: &[CommitBatch<'_>],
        digests: &[Digest],
        writes: &mut WriteBatch,
    ) -> Result<(Head, Epoch), AtBatch> {
        let mut accumulator = base.map(|base| base.head.accumulator.clone()).unwrap_or_default();
        let mut epoch = base.map_or(Epoch(0), |base| base.epoch);
        for (index, (batch, digest)) in batches.iter().zip(digests).enumerate() {
            for (position, node) in accumulator.append(*digest) {
                writes.put(Column::Nodes, schema::node_key(position), node.0);
            }
            put_header(writes, batch.header, digest);
            epoch =
                self.check_parts(epoch, batch, accumulator.root(), writes).map_err(|error| (index, error))?;
        }
        let last = batches.len() - 1;
        Ok((Head { header: batches[last].header.clone(), digest: digests[last], accumulator }, epoch))
    }

    /// Checks a batch's parts other than header and delta. Returns the last epoch that is known after it.
    fn check_parts(
        &self,
        epoch: Epoch,
        batch: &CommitBatch<'_>,
        accumulator_root: Digest,
        writes: &mut WriteBatch,
    ) -> Result<Epoch, StorageError> {
        for (kind, blob) in batch.blobs() {
            blob.map(|blob| blob.content_len(kind)).transpose()?;
        }
        self.store.check_waypoint(batch.header, accumulator_root, batch.certificate)?;
        let Some(certificate) = batch.certificate else { return Ok(epoch) };
        check_certificate(certificate, batch.header, accumulator_root)?;
        self.stage_epoch_end(epoch, certificate, writes)
    }

    /// If a batch lacks parts that the batches below it have, records these parts, so that a backfill that reaches them
    /// joins them. Missing hints do not count. Such records of batches that are staged but not yet written are
    /// forgotten, and their parts would be fetched again.
    fn leave_lacking(
        &self,
        record: &HeadRecord,
        batch: &CommitBatch<'_>,
        kept: &mut Option<KeptRecord>,
    ) -> Result<(), StorageError> {
        let parts = batch.blobs().into_iter().zip(record.lowest).enumerate();
        let lacks = |(_, ((kind, blob), lowest)): &(usize, ((BlobKind, Option<&Blob>), BatchNumber))| {
            *kind != BlobKind::Hints && blob.is_none() && *lowest <= record.number
        };
        let lacking: Vec<usize> = parts.filter(lacks).map(|(kind, _)| kind).collect();
        if lacking.is_empty() {
            return Ok(());
        }
        let kept = match kept {
            Some(kept) => kept,
            none => none.insert(KeptRecord::read(&*self.store.0.backend)?),
        };
        let pruned = self.store.0.floors.record();
        lacking.into_iter().for_each(|kind| kept.leave_kind(kind, record, &pruned));
        Ok(())
    }

    fn put_parts(&self, writes: &mut WriteBatch, batch: &CommitBatch<'_>) {
        let number = batch.header.number;
        self.put_blobs(writes, number, batch.blobs(), batch.transaction_hashes);
        if let Some(certificate) = batch.certificate {
            writes.put(Column::Certificates, schema::number_key(number), schema::encode(certificate));
        }
    }

    /// Adds a batch's blobs to a write, and the places of its transactions, whose hashes are in order.
    pub(crate) fn put_blobs(
        &self,
        writes: &mut WriteBatch,
        number: BatchNumber,
        blobs: [(BlobKind, Option<&Blob>); 4],
        transaction_hashes: &[B256],
    ) {
        let key = schema::number_key(number);
        for (kind, blob) in blobs {
            match (kind, schema::blob_column(kind), blob) {
                (BlobKind::Genesis, _, Some(blob)) => writes.put(Column::Meta, GENESIS_KEY, blob.as_bytes()),
                (_, Some(column), Some(blob)) => writes.put(column, key, blob.as_bytes()),
                _ => {}
            }
        }
        if self.store.0.config.transaction_index {
            let indexed = (0..).zip(transaction_hashes);
            for key in indexed.filter_map(|(index, hash)| place_key(hash, number, index)) {
                writes.put(Column::Transactions, key, []);
            }
        }
    }
}

/// An error, and the index of its batch.
type AtBatch = (usize, StorageError);

/// Checks that the batches follow the head and each other. Returns the digests of their headers.
fn check_order(base: Option<CommitBase<'_>>, batches: &[CommitBatch<'_>]) -> Result<Vec<Digest>, AtBatch> {
    let mut before = base.map(|base| (base.head.header.number, base.head.digest));
    let mut digests = Vec::with_capacity(batches.len());
    for (index, batch) in batches.iter().enumerate() {
        if let Some((number, digest)) = before {
            check_follows(number, digest, batch.header).map_err(|error| (index, error))?;
        }
        let digest = batch.header.digest();
        before = Some((batch.header.number, digest));
        digests.push(digest);
    }
    Ok(digests)
}

fn check_root(batches: &[CommitBatch<'_>], tree: &Tree) -> Result<(), AtBatch> {
    let index = batches.len() - 1;
    let (number, expected) = (batches[index].header.number, batches[index].header.state_root);
    match tree.root() {
        found if found == expected => Ok(()),
        found => Err((index, StorageError::StateRootMismatch { number, expected, found })),
    }
}

/// Checks that a header directly follows the header of number `head` and digest `expected`.
pub(crate) fn check_follows(
    head: BatchNumber,
    expected: Digest,
    header: &BatchHeader,
) -> Result<(), StorageError> {
    let (number, found) = (header.number, header.parent);
    if number != head.next() {
        return Err(StorageError::NotNext { head, number });
    }
    if found != expected {
        return Err(StorageError::WrongParent { number, expected, found });
    }
    Ok(())
}

/// Undoes updates: each path gets the hash of the row that the reader has.
fn put_back(
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

fn next_record(base: Option<HeadRecord>, batch: &CommitBatch<'_>) -> HeadRecord {
    let number = batch.header.number;
    let Some(base) = base else {
        return HeadRecord { number, active: StateColumn::A, lowest: [number.next(); 4] };
    };
    let mut record = HeadRecord { number, ..base };
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

/// Checks that a certificate is about this header in this ledger. The caller checks its signatures.
pub(crate) fn check_certificate(
    certificate: &Certificate,
    header: &BatchHeader,
    accumulator_root: Digest,
) -> Result<(), StorageError> {
    let info = &certificate.info;
    let reason = if info.number != header.number {
        "it certifies another batch"
    } else if info.state_root != header.state_root {
        "its state root differs from the batch's"
    } else if info.accumulator_root != accumulator_root {
        "its accumulator root differs from the ledger's at the batch"
    } else {
        return Ok(());
    };
    Err(StorageError::WrongCertificate { number: info.number, reason })
}
