//! [`Restore`]: fills the unused state column with the state of a certified batch, chunk by chunk, then makes it the head.
//!
//! Rows and progress change in the same write, so that a kill leaves the next path exactly behind the rows. The writes
//! between are not synced: the log keeps their order, and the last one syncs them all.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    sync::{Arc, atomic::Ordering},
};

use slipstream_types::{
    BatchHeader, BatchNumber, Certificate, Digest, Path, StateKey, StateValue,
    accumulator::{Accumulator, AccumulatorRangeProof, NodePosition},
    keccak256,
};

use crate::{
    backend::{Column, Direction, WriteBatch},
    commit::put_header,
    error::{RestoreError, StorageError},
    schema::{self, HEAD_KEY, HeadRecord, RESTORE_KEY, RestoreRecord},
    snapshot::StateChunk,
    state::Tree,
    store::{Current, Head, Store, load_tree, read_node},
};

/// Most headers that come with a restored state: as far as BLOCKHASH looks back.
pub const RESTORE_HEADERS_MAX: usize = 256;

/// The batch whose state is restored. The caller has verified the certificate's signatures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RestoreTarget {
    /// Its header.
    pub header: BatchHeader,
    /// Certifies exactly this batch.
    pub certificate: Certificate,
}

/// A restore in progress. Dropping it keeps what was stored; [`Store::restore`] of the same target goes on from there.
pub struct Restore {
    store: Store,
    record: RestoreRecord,
    generation: u64,
}

impl Store {
    /// Goes on with the recorded restore if it has this target; otherwise discards what there is of another one and starts
    /// anew. Handles from earlier calls end here.
    ///
    /// # Errors
    /// [`RestoreError::NotAhead`]; [`StorageError::WrongCertificate`] if header and certificate do not belong together.
    pub fn restore(&self, target: &RestoreTarget) -> Result<Restore, StorageError> {
        let RestoreTarget { header, certificate } = target;
        let number = certificate.info.number;
        if header.number != number || header.state_root != certificate.info.state_root {
            let reason = "it is not about the header that is to be restored";
            return Err(StorageError::WrongCertificate { number, reason });
        }
        let _writer = self.0.writer.lock();
        let current = self.current()?;
        check_ahead(&current, number)?;
        let generation = self.0.restore_generation.fetch_add(1, Ordering::AcqRel) + 1;
        let column = current.record.active.other();
        let record = match self.restore_record()? {
            Some(record) if record.header == *header && record.column == column => record,
            _ => {
                let (header, certificate) = (header.clone(), certificate.clone());
                let record = RestoreRecord { header, certificate, column, next: Some(Path::MIN), rows: 0 };
                let mut writes = WriteBatch::default();
                writes.clear(column.column());
                writes.clear(Column::MissingCodes);
                writes.put(Column::Meta, RESTORE_KEY, schema::encode(&record));
                self.write(writes, true)?;
                record
            }
        };
        Ok(Restore { store: self.clone(), record, generation })
    }

    /// The target of the restore that is recorded but not finished, if there is one: what a restarted node may go on with.
    pub fn recorded_restore(&self) -> Result<Option<RestoreTarget>, StorageError> {
        let record = self.restore_record()?;
        Ok(record.map(|RestoreRecord { header, certificate, .. }| RestoreTarget { header, certificate }))
    }

    fn restore_record(&self) -> Result<Option<RestoreRecord>, StorageError> {
        let bytes = self.0.backend.get(Column::Meta, RESTORE_KEY)?;
        bytes.map(|bytes| schema::decode("restore record", &bytes)).transpose()
    }

    /// Frees the rows of a restore that was given up because the node caught up in another way.
    pub(crate) fn discard_overtaken_restore(&self) -> Result<(), StorageError> {
        let (Some(record), Ok(current)) = (self.restore_record()?, self.current()) else { return Ok(()) };
        if check_ahead(&current, record.header.number).is_ok() {
            return Ok(());
        }
        let mut writes = WriteBatch::default();
        writes.clear(current.record.active.other().column());
        writes.clear(Column::MissingCodes);
        writes.delete(Column::Meta, RESTORE_KEY);
        self.write(writes, true)
    }
}

fn check_ahead(current: &Current, target: BatchNumber) -> Result<(), RestoreError> {
    let head = current.record.number;
    if head < target { Ok(()) } else { Err(RestoreError::NotAhead { head, target }) }
}

impl Restore {
    /// Where the next chunk must start; none when all rows are in.
    pub fn next_path(&self) -> Option<Path> {
        self.record.next
    }

    /// Rows stored so far.
    pub fn rows(&self) -> u64 {
        self.record.rows
    }

    /// Verifies a chunk against the target's state root and stores it with the progress.
    ///
    /// # Errors
    /// [`RestoreError::WrongStart`], [`RestoreError::Chunk`]; nothing of the chunk is stored then.
    pub fn add_chunk(&mut self, chunk: &StateChunk) -> Result<(), StorageError> {
        if self.record.next != Some(chunk.first) {
            return Err(RestoreError::WrongStart { expected: self.record.next, found: chunk.first }.into());
        }
        let paths = chunk.verified_paths(self.record.header.state_root).map_err(RestoreError::Chunk)?;
        let mut record = self.record.clone();
        record.next = chunk.last.successor();
        record.rows += paths.len() as u64;

        let mut writes = WriteBatch::default();
        for (path, (key, value)) in paths.iter().zip(&chunk.rows) {
            writes.put(record.column.column(), path.0, schema::encode_row(key, value));
        }
        writes.put(Column::Meta, RESTORE_KEY, schema::encode(&record));
        let _writer = self.store.0.writer.lock();
        self.check_generation()?;
        for hash in self.codes_not_stored(chunk)? {
            writes.put(Column::MissingCodes, hash.0, []);
        }
        self.store.write(writes, false)?;
        self.record = record;
        Ok(())
    }

    /// Up to `max` hashes of code that restored accounts have and the store does not.
    pub fn missing_codes(&self, max: usize) -> Result<Vec<Digest>, StorageError> {
        let mut hashes = Vec::new();
        if max == 0 {
            return Ok(hashes);
        }
        self.store.0.backend.scan(Column::MissingCodes, &[], Direction::Up, &mut |key, _| {
            hashes.push(schema::decode_digest(key)?);
            Ok(if hashes.len() == max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(hashes)
    }

    /// Stores code under its Keccak-256.
    ///
    /// # Errors
    /// [`RestoreError::UnwantedCode`] if it is not one of the missing ones.
    pub fn add_code(&mut self, code: &[u8]) -> Result<(), StorageError> {
        let hash = Digest::from(keccak256(code));
        let _writer = self.store.0.writer.lock();
        self.check_generation()?;
        if self.store.0.backend.get(Column::MissingCodes, &hash.0)?.is_none() {
            return Err(RestoreError::UnwantedCode { hash }.into());
        }
        let mut writes = WriteBatch::default();
        writes.delete(Column::MissingCodes, hash.0);
        writes.put(Column::Codes, hash.0, code);
        self.store.write(writes, false)
    }

    /// Makes the target the head: checks that nothing is missing, the whole tree's root, and that the headers (up to
    /// [`RESTORE_HEADERS_MAX`], the last of them the target's) stand in the certified ledger; then switches state and head
    /// in one durable write.
    ///
    /// # Errors
    /// What is missing or does not fit. The rows stay, so that the restore can be taken up again with other headers.
    pub fn finish(self, headers: &[BatchHeader], proof: &AccumulatorRangeProof) -> Result<(), StorageError> {
        let target = self.record.header.number;
        if let Some(next) = self.record.next {
            return Err(RestoreError::RowsMissing { target, next }.into());
        }
        if let Some(&hash) = self.missing_codes(1)?.first() {
            return Err(RestoreError::CodeMissing { target, hash }.into());
        }
        let (nodes, accumulator) = self.check_headers(headers, proof)?;

        let store = &self.store;
        let _writer = store.0.writer.lock();
        self.check_generation()?;
        let current = store.current()?;
        check_ahead(&current, target)?;
        let tree = self.load_checked_tree()?;
        let record = HeadRecord { number: target, active: self.record.column, lowest: [target.next(); 4] };

        let mut writes = WriteBatch::default();
        for header in headers {
            put_header(&mut writes, header, &header.digest());
        }
        for (position, node) in nodes {
            writes.put(Column::Nodes, schema::node_key(position), node.0);
        }
        let certificate = &self.record.certificate;
        writes.put(Column::Certificates, schema::number_key(target), schema::encode(certificate));
        writes.put(Column::Meta, HEAD_KEY, schema::encode(&record));
        writes.delete(Column::Meta, RESTORE_KEY);
        writes.clear(current.record.active.column());
        store.write(writes, true)?;

        store.0.restore_generation.fetch_add(1, Ordering::AcqRel);
        let header = self.record.header.clone();
        let head = Head { digest: header.digest(), header, accumulator };
        let restored = Arc::new(Current { head, record, tree, reader: store.0.backend.snapshot() });
        store.install(Arc::clone(&restored));
        store.make_snapshot(&restored, certificate);
        Ok(())
    }

    /// Rebuilds the tree from the restored rows. Each chunk was verified, so another root means that the rows were damaged
    /// since: the record is dropped, and the next restore starts anew.
    fn load_checked_tree(&self) -> Result<Tree, StorageError> {
        let backend = &self.store.0.backend;
        let tree = load_tree(&**backend, self.record.column.column())?;
        let (expected, found) = (self.record.header.state_root, tree.root());
        if found == expected {
            return Ok(tree);
        }
        let mut writes = WriteBatch::default();
        writes.delete(Column::Meta, RESTORE_KEY);
        self.store.write(writes, true)?;
        let number = self.record.header.number;
        Err(StorageError::corrupt(format!(
            "the rows restored for batch {number} have the root {found}, it should be {expected}"
        )))
    }

    /// The accumulator up to the target, and the nodes to store for it.
    fn check_headers(
        &self,
        headers: &[BatchHeader],
        proof: &AccumulatorRangeProof,
    ) -> Result<(Vec<(NodePosition, Digest)>, Accumulator), StorageError> {
        let target = self.record.header.number;
        let refused = |reason| RestoreError::BadHeaders { target, reason };
        if headers.len() > RESTORE_HEADERS_MAX {
            return Err(refused("there are more than BLOCKHASH can ask for").into());
        }
        let (Some(first), Some(last)) = (headers.first(), headers.last()) else {
            return Err(refused("there are none").into());
        };
        if *last != self.record.header {
            return Err(refused("the last is not the target's").into());
        }
        let digests: Vec<Digest> = headers.iter().map(BatchHeader::digest).collect();
        let follows = |i: usize| {
            headers[i].number.0 == first.number.0 + i as u64
                && (i == 0 || headers[i].parent == digests[i - 1])
        };
        if !(0..headers.len()).all(follows) {
            return Err(refused("they do not follow each other").into());
        }
        let leaves = target.0 + 1;
        let root = self.record.certificate.info.accumulator_root;
        let nodes = proof.verify(root, leaves, first.number.0, &digests)?;
        self.check_same_ledger(headers, &digests)?;

        let known: BTreeMap<_, _> = nodes.iter().copied().collect();
        let accumulator = Accumulator::load(leaves, |position| known.get(&position).copied())
            .ok_or_else(|| refused("their proof lacks a part of the ledger before them"))?;
        Ok((nodes, accumulator))
    }

    /// Where the headers overlap with the ledger that the store already has, they must be the same.
    fn check_same_ledger(&self, headers: &[BatchHeader], digests: &[Digest]) -> Result<(), StorageError> {
        let head = self.store.current()?.record.number;
        for (header, digest) in headers.iter().zip(digests).take_while(|(header, _)| header.number <= head) {
            let position = NodePosition { level: 0, index: header.number.0 };
            if read_node(&*self.store.0.backend, position)?.is_some_and(|stored| stored != *digest) {
                let reason = "they contradict the batches that this store has: it followed another ledger";
                return Err(RestoreError::BadHeaders { target: self.record.header.number, reason }.into());
            }
        }
        Ok(())
    }

    /// The caller holds the writer's lock.
    fn check_generation(&self) -> Result<(), RestoreError> {
        match self.store.0.restore_generation.load(Ordering::Acquire) == self.generation {
            true => Ok(()),
            false => Err(RestoreError::Superseded { target: self.record.header.number }),
        }
    }

    fn codes_not_stored(&self, chunk: &StateChunk) -> Result<Vec<Digest>, StorageError> {
        let code_of = |(_, value): &(StateKey, StateValue)| match value {
            StateValue::Account(account) => account.code_hash,
            StateValue::Slot(_) => None,
        };
        let hashes: Vec<Digest> =
            chunk.rows.iter().filter_map(code_of).collect::<BTreeSet<_>>().into_iter().collect();
        let keys: Vec<&[u8]> = hashes.iter().map(|hash| &hash.0[..]).collect();
        let stored = self.store.0.backend.multi_get(Column::Codes, &keys)?;
        Ok(hashes.into_iter().zip(stored).filter(|(_, code)| code.is_none()).map(|(hash, _)| hash).collect())
    }
}
