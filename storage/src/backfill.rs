//! [`Store::backfill`]: adds batches from before those that are stored, newest first. Their state is known already.
//!
//! A node that began at a snapshot, or leapt by a range delta, has the state and no history. The history comes later,
//! in runs that end right below what is stored. A run is one write, so a kill leaves all of it or nothing, and no
//! other record of the progress is needed.
//!
//! ```text
//!   kept │ gap │◀─ run ─│ stored up to the head        lowest moves down by the run; where it meets what is kept, to the start of it
//! ```

use std::collections::BTreeMap;

use slipstream_types::{
    B256, BatchHeader, BatchNumber, Blob, BlobKind, Certificate, Digest,
    accumulator::{self, AccumulatorRangeProof, NodePosition},
};

use crate::{
    backend::{Column, WriteBatch},
    error::StorageError,
    kept::{KeptRecord, KeptSpan},
    nodes::read_node,
    prune::{self, first_wanted},
    schema::{self, HEAD_KEY, HeadRecord, KINDS, PRUNED_HEADERS_KEY, PrunedRecord},
    shared::HeadState,
    stage::{check_certificate, put_header},
    store::Store,
    takeover::follow_each_other,
};

/// A batch with its parts, without its state. The caller has checked the parts against the header.
#[derive(Clone, Copy, Debug)]
pub struct PastBatch<'a> {
    /// The header.
    pub header: &'a BatchHeader,
    /// Its transactions.
    pub body: Option<&'a Blob>,
    /// The receipts of its transactions.
    pub receipts: Option<&'a Blob>,
    /// Its effect on the state.
    pub delta: Option<&'a Blob>,
    /// The hints of its maker, if there are any.
    pub hints: Option<&'a Blob>,
    /// Hashes of the body's transactions in order, for the index; empty if there is no body.
    pub transaction_hashes: &'a [B256],
}

impl<'a> PastBatch<'a> {
    fn blobs(&self) -> [(BlobKind, Option<&'a Blob>); KINDS.len()] {
        [
            (BlobKind::Body, self.body),
            (BlobKind::Receipts, self.receipts),
            (BlobKind::Delta, self.delta),
            (BlobKind::Hints, self.hints),
        ]
    }
}

/// Consecutive batches for [`Store::backfill`], with the proof of their place in the ledger.
#[derive(Clone, Copy, Debug)]
pub struct PastRun<'a> {
    /// Certifies the last batch, or a later one. The caller has verified its signatures.
    pub certificate: &'a Certificate,
    /// Proves the place of the headers in the ledger that the certificate signs.
    pub proof: &'a AccumulatorRangeProof,
    /// The batches in order, at least one.
    pub batches: &'a [PastBatch<'a>],
}

/// The part of one kind of blob that is missing below the stored batches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backlog {
    /// The kind of blob.
    pub kind: BlobKind,
    /// All batches from this one up to the head are stored. One above the head if none is.
    pub lowest: BatchNumber,
    /// The first batch that the configured window keeps, if known. Nothing is missing unless it is below `lowest`.
    pub wanted_from: BatchNumber,
    /// The first and the last batch of the highest range below `lowest` that is stored. A leap, or a batch without
    /// this kind of blob, left it there; the missing batches lie above it.
    pub kept: Option<(BatchNumber, BatchNumber)>,
}

impl Backlog {
    /// Returns the missing part of the windows: from which batch on all blobs are stored, and from which batch on they
    /// are wanted. `None` if nothing is missing. Hints do not count, because batches may lack them.
    pub fn missing(backlog: &[Backlog]) -> Option<(BatchNumber, BatchNumber)> {
        let is_missing =
            |of_kind: &&Backlog| of_kind.kind != BlobKind::Hints && of_kind.wanted_from < of_kind.lowest;
        let lowest = backlog.iter().filter(is_missing).map(|of_kind| of_kind.lowest).max()?;
        let wanted_from = backlog.iter().filter(is_missing).map(|of_kind| of_kind.wanted_from).min()?;
        Some((lowest, wanted_from))
    }
}

impl Store {
    /// Returns what a backfill has to fetch, per kind of blob: body, receipts, delta, hints.
    ///
    /// # Errors
    /// [`StorageError::NotInitialized`], or errors of the disk.
    pub fn backlog(&self) -> Result<[Backlog; 4], StorageError> {
        let (current, backend) = (self.current()?, &*self.0.backend);
        let (record, kept) = (&current.record, KeptRecord::read(backend)?);
        let windows = self.0.config.prune.blobs();
        let mut backlog =
            KINDS.map(|kind| Backlog { kind, lowest: record.number, wanted_from: record.number, kept: None });
        for (index, of_kind) in backlog.iter_mut().enumerate() {
            let Some(column) = schema::blob_column(of_kind.kind) else { continue };
            let floor = self.0.floors.get(index);
            of_kind.lowest = record.lowest[index].max(floor);
            of_kind.wanted_from =
                first_wanted(backend, record.number, of_kind.lowest, column, windows[index])?;
            of_kind.kept = kept.below(index, of_kind.lowest, floor).map(|span| (span.first, span.last));
        }
        Ok(backlog)
    }

    /// Stores batches that end right below what is stored, or within it, in one write. Afterwards they are served,
    /// proved and found as if they had been committed. A crash may lose the last of these writes, each as a whole;
    /// the batches are then fetched again.
    ///
    /// # Errors
    /// [`StorageError::NotBelow`] if a batch is missing in between; [`StorageError::WrongParent`],
    /// [`StorageError::Accumulator`] or [`StorageError::WrongCertificate`] if they are not of this ledger. Nothing is
    /// written then.
    pub fn backfill(&self, run: &PastRun<'_>) -> Result<(), StorageError> {
        let (Some(first), Some(last)) = (run.batches.first(), run.batches.last()) else { return Ok(()) };
        let (first, last) = (first.header, last.header);
        let headers: Vec<BatchHeader> = run.batches.iter().map(|batch| batch.header.clone()).collect();
        let digests: Vec<Digest> = headers.iter().map(BatchHeader::digest).collect();
        if !follow_each_other(&headers, &digests) {
            let head = self.head()?.header.number;
            return Err(StorageError::NotBelow { number: last.number, head });
        }
        let info = &run.certificate.info;
        let leaves = info.number.leaves();
        let nodes = run.proof.verify(info.accumulator_root, leaves, first.number.get(), &digests)?;

        let floors = &self.0.floors;
        let _moving = floors.moving();
        let writer = self.writer();
        let current = self.current()?;
        self.check_below(&current, last, digests[digests.len() - 1])?;
        let joins = self.check_above(first)?;
        let mut writes = WriteBatch::default();
        for (batch, digest) in run.batches.iter().zip(&digests) {
            put_header(&mut writes, batch.header, digest);
            writer.put_blobs(&mut writes, batch.header.number, batch.blobs(), batch.transaction_hashes);
        }
        let nodes: BTreeMap<NodePosition, Digest> = nodes.into_iter().collect();
        let leaf = NodePosition { level: 0, index: last.number.get() };
        let nodes = self.with_ancestors(nodes, leaf, current.record.number.leaves())?;
        if let Some(certified) = run.batches.iter().find(|batch| batch.header.number == info.number) {
            check_certificate(run.certificate, certified.header, info.accumulator_root)?;
            writes.put(
                Column::Certificates,
                schema::number_key(info.number),
                schema::encode(run.certificate),
            );
        }
        for (position, node) in &nodes {
            writes.put(Column::Nodes, schema::node_key(*position), node.0);
        }

        let pruned = floors.record();
        let (record, floor) = self.reach(run, &current, &pruned, joins, &mut writes)?;
        let headers_floor = floors.headers().min(first.number);
        if floor != pruned {
            writes.0.extend(prune::record_write(&floor).0);
        }
        if headers_floor != floors.headers() {
            writes.put(Column::Meta, PRUNED_HEADERS_KEY, schema::number_key(headers_floor));
        }
        // Before the write, because a compaction would drop the rows again.
        self.0.backend.forget_transactions_below(floor.below[0].get());
        self.0.backend.forget_headers_below(headers_floor.get());
        self.write(writes, false)?;
        floors.set(&floor, headers_floor);
        writer.replace_record(&current, record);
        Ok(())
    }

    /// Records in a leap's write what the leap leaves below the gap.
    pub(crate) fn leave_behind(
        &self,
        current: &HeadState,
        writes: &mut WriteBatch,
    ) -> Result<(), StorageError> {
        let mut kept = KeptRecord::read(&*self.0.backend)?;
        kept.leave(&current.record, &self.0.floors.record());
        kept.put(writes);
        Ok(())
    }

    /// Checks that a run with this last batch ends right below what is stored, or within it, and is of the same
    /// ledger.
    fn check_below(
        &self,
        current: &HeadState,
        last: &BatchHeader,
        digest: Digest,
    ) -> Result<(), StorageError> {
        let head = current.record.number;
        let number = last.number;
        let expected = match number == head {
            true => Some((head, current.head.digest)),
            false => self.header(number.next())?.map(|header| (header.number, header.parent)),
        };
        let (child, expected) =
            expected.filter(|_| number <= head).ok_or(StorageError::NotBelow { number, head })?;
        match digest == expected {
            true => Ok(()),
            false => Err(StorageError::WrongParent { number: child, expected: digest, found: expected }),
        }
    }

    /// Whether the batch before a run is stored and is the parent of the run's first batch. Refuses a run whose first
    /// batch follows the genesis but has another parent.
    fn check_above(&self, first: &BatchHeader) -> Result<bool, StorageError> {
        let before = self.header(first.number.before(1))?.map(|header| header.digest());
        let joins = before == Some(first.parent);
        match before {
            Some(expected) if !joins && first.number.before(1) == BatchNumber::GENESIS => {
                Err(StorageError::WrongParent { number: first.number, expected, found: first.parent })
            }
            _ => Ok(joins),
        }
    }

    /// Returns the nodes of a run's proof that a ledger of `leaves` batches has, and the ancestors of `position`, the
    /// run's last leaf. Each ancestor's other half is in the proof, or begins after the run, where all nodes are
    /// stored.
    fn with_ancestors(
        &self,
        mut nodes: BTreeMap<NodePosition, Digest>,
        mut position: NodePosition,
        leaves: u64,
    ) -> Result<BTreeMap<NodePosition, Digest>, StorageError> {
        nodes.retain(|position, _| position.is_within(leaves));
        while let Some(node) = nodes.get(&position).copied().filter(|_| position.parent().is_within(leaves)) {
            let other = match nodes.get(&position.sibling()) {
                Some(other) => Some(*other),
                None => read_node(&*self.0.backend, position.sibling())?,
            };
            let other = other.ok_or_else(|| {
                StorageError::corrupt(format!("the accumulator's node {:?} is missing", position.sibling()))
            })?;
            let (left, right) = if position.index.is_multiple_of(2) { (node, other) } else { (other, node) };
            position = position.parent();
            nodes.insert(position, accumulator::join(left, right));
        }
        Ok(nodes)
    }

    /// Computes, per kind, from which batch on all blobs are stored after a run, and below which batch none is served.
    /// Adds the records of both to the writes.
    fn reach(
        &self,
        run: &PastRun<'_>,
        current: &HeadState,
        pruned: &PrunedRecord,
        joins: bool,
        writes: &mut WriteBatch,
    ) -> Result<(HeadRecord, PrunedRecord), StorageError> {
        let (first, last) = (run.batches[0].header.number, run.batches[run.batches.len() - 1].header.number);
        let (mut record, mut floor) = (current.record, *pruned);
        let mut kept = KeptRecord::read(&*self.0.backend)?;
        kept.prune(pruned);
        for index in 0..KINDS.len() {
            let stored =
                run.batches.iter().rev().take_while(|batch| batch.blobs()[index].1.is_some()).count();
            let lowest = record.lowest[index].max(pruned.below[index]);
            let mut reached = last.next().before(stored as u64);
            if lowest <= reached {
                continue;
            }
            // A kept span below the run that is of another ledger is forgotten, and fetched again.
            if record.lowest[index] > last.next() && reached <= last {
                // The batches right above the run still lack these blobs. They are fetched later.
                if reached == first && !joins {
                    kept.forget(index, first.before(1));
                }
                kept.add(index, KeptSpan { first: reached, last });
                floor.below[index] = floor.below[index].min(reached);
            }
            if lowest > last.next() {
                continue;
            }
            if reached == first {
                let joined = kept.take(index, first.before(1));
                reached = joined.filter(|_| joins).unwrap_or(first);
            }
            record.lowest[index] = record.lowest[index].min(reached);
            floor.below[index] = floor.below[index].min(reached);
        }
        kept.put(writes);
        writes.put(Column::Meta, HEAD_KEY, schema::encode(&record));
        Ok((record, floor))
    }
}
