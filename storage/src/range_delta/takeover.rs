//! [`RangeDeltaTakeover`]: takes the chunks of a range delta, then makes its last batch the head in one write.
//!
//! Nothing is on disk before that write: a kill costs what was fetched, and leaves the old head. Until then memory
//! has the head's tree with the changes (which shares what did not change) and the changed rows.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;
use slipstream_types::{BatchHeader, BatchNumber, Digest, keccak256, tree::Subtree};

use super::CheckedRangeDelta;
use crate::{
    backend::{Column, Rows, WriteBatch},
    density::Density,
    error::{ChunkError, RangeDeltaError, StorageError},
    past_states,
    schema::{self, HEAD_KEY, HeadRecord},
    shared::{Head, HeadState},
    span::Span,
    spans::Spans,
    stage::{check_certificate, put_header},
    state::Tree,
    store::Store,
    takeover::{Ancestry, RestoreTarget, Takeover},
};

/// Maximum number of batches that one range delta spans: their headers are held and written at once, about 400 bytes each.
pub const RANGE_DELTA_BATCHES_MAX: u64 = 65_536;

/// A range delta on its way into the store, for many threads at once. Dropping it abandons it. While it lives, the
/// rows of the head that it began at are not freed.
pub struct RangeDeltaTakeover {
    store: Store,
    target: RestoreTarget,
    base: Arc<HeadState>,
    bytes_max: u64,
    /// Maximum number of encoded bytes of changes.
    changes_bytes_max: u64,
    progress: Mutex<Progress>,
}

struct Progress {
    todo: Spans,
    /// The head's tree with all chunks so far.
    tree: Tree,
    /// Leaves in memory of the head's tree.
    base_resident: u64,
    rows: Vec<Rows>,
    changes: u64,
    /// Encoded bytes of these changes.
    changes_bytes: u64,
    missing_codes: BTreeSet<Digest>,
    codes: BTreeMap<Digest, Vec<u8>>,
    /// Bytes of rows and codes.
    bytes: u64,
}

impl Store {
    /// Begins to advance the state from the head to a later batch by a range delta. The paths are divided into
    /// `2^ranges_bits` ranges (at most 256), so that many peers can send at once. `bytes_max` bounds the memory that
    /// the range delta takes until its end.
    ///
    /// # Errors
    /// [`StorageError::WrongCertificate`] if header and certificate do not belong together; [`RangeDeltaError::NotAhead`];
    /// [`RangeDeltaError::TooFar`].
    pub fn take_range_delta(
        &self,
        target: &RestoreTarget,
        ranges_bits: u8,
        bytes_max: u64,
    ) -> Result<RangeDeltaTakeover, StorageError> {
        target.check()?;
        self.check_rules(&target.header)?;
        let (base, tree) = self.current_with_tree()?;
        let (head, to) = (base.record.number, target.header.number);
        match to.since(head) {
            0 => return Err(RangeDeltaError::NotAhead { head, target: to }.into()),
            1..=RANGE_DELTA_BATCHES_MAX => {}
            _ => {
                return Err(RangeDeltaError::TooFar { head, target: to, max: RANGE_DELTA_BATCHES_MAX }.into());
            }
        }
        let progress = Progress {
            todo: Spans::divided(ranges_bits.min(8)),
            base_resident: tree.resident(),
            tree,
            rows: Vec::new(),
            changes: 0,
            changes_bytes: 0,
            missing_codes: BTreeSet::new(),
            codes: BTreeMap::new(),
            bytes: 0,
        };
        let (store, target) = (self.clone(), target.clone());
        let changes_bytes_max = u64::MAX;
        let progress = Mutex::new(progress);
        Ok(RangeDeltaTakeover { store, target, base, bytes_max, changes_bytes_max, progress })
    }
}

impl RangeDeltaTakeover {
    /// Limits the encoded bytes of changes to `bytes_max`. The headers say how many bytes the batches' deltas have
    /// together. A peer exceeds that only by adding unchanged rows, whose true values pass the proof.
    pub fn of_changes(self, bytes_max: u64) -> RangeDeltaTakeover {
        RangeDeltaTakeover { changes_bytes_max: bytes_max, ..self }
    }

    /// The head that the range delta began at. Chunks must have all changes after that head, and may have older ones.
    pub fn base(&self) -> &BatchHeader {
        &self.base.head.header
    }

    /// Adds a chunk anywhere in what is missing. The chunk is accepted if the head's state with the chunk's changes
    /// matches the target's root between the chunk's ends.
    ///
    /// # Errors
    /// [`RangeDeltaError::Chunk`] if the chunk is false, which is its sender's fault; [`RangeDeltaError::NotMissing`];
    /// [`RangeDeltaError::OverBudget`]; [`RangeDeltaError::Padded`]. Nothing of it is kept then.
    pub fn add(&self, chunk: CheckedRangeDelta) -> Result<(), StorageError> {
        let unknown = self.store.unknown_codes(&chunk.codes)?;
        let CheckedRangeDelta { span, rows, updates, proof, bytes: chunk_bytes, .. } = chunk;
        let mut progress = self.progress.lock();
        if !progress.todo.contains(span) {
            return Err(RangeDeltaError::NotMissing { first: span.first, last: span.last }.into());
        }
        let changes = progress.changes + updates.len() as u64;
        let changes_bytes = progress.changes_bytes + chunk_bytes;
        self.check_padding(changes_bytes)?;
        let tree = progress.tree.clone().apply(&updates)?;
        let mut unread = None;
        let verified = proof.verify_subtrees(self.root(), span.first, span.last, |prefix, bits| {
            tree.subtree(prefix, bits).unwrap_or_else(|error| {
                unread = Some(error);
                Subtree::Empty
            })
        });
        if let Some(error) = unread {
            return Err(error);
        }
        verified.map_err(|error| RangeDeltaError::Chunk(ChunkError::Range(error)))?;
        let bytes = progress.bytes + rows.byte_len() as u64;
        self.check_budget(bytes + tree.bytes_beside(progress.base_resident, changes))?;

        progress.todo.remove_chunk(span, Density::of(updates.len(), |index| updates[index].0));
        (progress.tree, progress.bytes) = (tree, bytes);
        (progress.changes, progress.changes_bytes) = (changes, changes_bytes);
        progress.rows.push(rows);
        for hash in unknown {
            if !progress.codes.contains_key(&hash) {
                progress.missing_codes.insert(hash);
            }
        }
        Ok(())
    }

    /// Implements [`Takeover::finish`], which describes it.
    fn become_head(&self, headers: &[BatchHeader]) -> Result<(), StorageError> {
        let target = self.target.header.number;
        let mut progress = self.progress.lock();
        if let Some(span) = progress.todo.first() {
            return Err(RangeDeltaError::RowsMissing { target, next: span.first }.into());
        }
        if let Some(&hash) = progress.missing_codes.first() {
            return Err(RangeDeltaError::CodeMissing { target, hash }.into());
        }
        let mut writes = WriteBatch::default();
        let head = self.checked_head(headers, &mut writes)?;

        let store = &self.store;
        let writer = store.writer();
        let current = store.current()?;
        if current.version != self.base.version {
            let (base, head) = (self.base.record.number, current.record.number);
            return Err(RangeDeltaError::HeadMoved { base, head, target }.into());
        }
        let (expected, found) = (self.root(), progress.tree.root());
        if found != expected {
            return Err(StorageError::StateRootMismatch { number: target, expected, found });
        }
        let certificate = &self.target.certificate;
        let epoch = writer.stage_epoch_end(store.epoch(), certificate, &mut writes)?;
        writes.put(Column::Certificates, schema::number_key(target), schema::encode(certificate));
        let active = current.record.active;
        let record = HeadRecord { number: target, active, lowest: [target.next(); 4] };
        for rows in std::mem::take(&mut progress.rows) {
            writes.rows(active.column(), rows);
        }
        for (hash, code) in std::mem::take(&mut progress.codes) {
            writes.put(Column::Codes, hash.0, code);
        }
        writes.put(Column::Meta, HEAD_KEY, schema::encode(&record));
        store.leave_behind(&current, &mut writes)?;
        past_states::forget(&mut writes, current.record.number);
        if let Err(error) = store.write(writes, true) {
            // The tree stays: applying the same changes again gives the same tree.
            (progress.todo, progress.bytes) = (Spans::divided(0), 0);
            return Err(error);
        }
        writer.learn_epoch(epoch);
        let tree = std::mem::take(&mut progress.tree);
        let advanced = writer.current_of(head, record, store.new_version(), Some(tree));
        writer.install_after(self.base.record.number, &advanced);
        writer.make_snapshot(&advanced, certificate);
        writer.save_due_frontier(&advanced);
        Ok(())
    }

    fn root(&self) -> Digest {
        self.target.header.state_root
    }

    fn check_budget(&self, bytes: u64) -> Result<(), RangeDeltaError> {
        let (target, max) = (self.target.header.number, self.bytes_max);
        if bytes > max { Err(RangeDeltaError::OverBudget { target, bytes, max }) } else { Ok(()) }
    }

    fn check_padding(&self, bytes: u64) -> Result<(), RangeDeltaError> {
        let (target, max) = (self.target.header.number, self.changes_bytes_max);
        if bytes > max { Err(RangeDeltaError::Padded { target, bytes, max }) } else { Ok(()) }
    }

    /// Checks the headers, and returns the ledger up to the target. Adds the headers and their accumulator nodes to
    /// `writes`.
    fn checked_head(&self, headers: &[BatchHeader], writes: &mut WriteBatch) -> Result<Head, StorageError> {
        let target = self.target.header.number;
        let refused = |reason| RangeDeltaError::BadHeaders { target, reason };
        if headers.last() != Some(&self.target.header) {
            return Err(refused("the last header is not the target's").into());
        }
        let Head { header: base, mut digest, mut accumulator } = self.base.head.clone();
        for (header, number) in headers.iter().zip(base.number.next().through(BatchNumber::MAX)) {
            if header.number != number || header.parent != digest {
                return Err(refused("they do not form a chain from the head on").into());
            }
            digest = header.digest();
            for (position, node) in accumulator.append(digest) {
                writes.put(Column::Nodes, schema::node_key(position), node.0);
            }
            self.store.check_waypoint(header, accumulator.root(), Some(&self.target.certificate))?;
            put_header(writes, header, &digest);
        }
        let header = self.target.header.clone();
        check_certificate(&self.target.certificate, &header, accumulator.root())
            .map_err(|_| refused("they do not belong to the certified ledger"))?;
        Ok(Head { header, digest, accumulator })
    }
}

impl Takeover for RangeDeltaTakeover {
    fn target(&self) -> &RestoreTarget {
        &self.target
    }

    fn missing(&self, max: usize) -> Vec<Span> {
        self.progress.lock().todo.iter().take(max).collect()
    }

    fn rows(&self) -> u64 {
        self.progress.lock().changes
    }

    fn share(&self) -> f64 {
        (1.0 - self.progress.lock().todo.share()).clamp(0.0, 1.0)
    }

    fn missing_codes(&self, max: usize) -> Result<Vec<Digest>, StorageError> {
        Ok(self.early_codes(max))
    }

    /// All missing hashes are in memory.
    fn early_codes(&self, max: usize) -> Vec<Digest> {
        self.progress.lock().missing_codes.iter().take(max).copied().collect()
    }

    fn add_code(&self, code: &[u8]) -> Result<(), StorageError> {
        let hash = Digest::from(keccak256(code));
        let mut progress = self.progress.lock();
        if !progress.missing_codes.contains(&hash) {
            return Err(RangeDeltaError::UnwantedCode { hash }.into());
        }
        let bytes = progress.bytes + code.len() as u64;
        self.check_budget(bytes + progress.tree.bytes_beside(progress.base_resident, progress.changes))?;
        progress.missing_codes.remove(&hash);
        progress.codes.insert(hash, code.to_vec());
        progress.bytes = bytes;
        Ok(())
    }

    /// Needs all headers after the head, up to the target's. They prove themselves: they lead from the head to the
    /// ledger that the certificate names. Bodies, receipts and deltas in between are missing afterwards, as after a
    /// restore. If the write itself is refused because the disk is full, the chunks are missing again.
    fn finish(&self, ancestry: &Ancestry<'_>) -> Result<(), StorageError> {
        self.become_head(ancestry.headers)
    }
}
