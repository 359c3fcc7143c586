//! Ends a restore: checks that nothing is missing and the headers fit, then changes state and head in one write.

use std::{collections::BTreeMap, sync::Arc};

use slipstream_types::{
    BatchHeader, Digest,
    accumulator::{Accumulator, AccumulatorRangeProof, NodePosition},
};

use super::{Restore, check_ahead};
use crate::{
    backend::{Column, WriteBatch},
    error::{RestoreError, StorageError},
    nodes::read_node,
    past_states,
    schema::{self, HEAD_KEY, HeadRecord, RESTORE_KEY},
    shared::Head,
    stage::put_header,
    state::{Tree, load::grow_tree},
    takeover::{Ancestry, RESTORE_HEADERS_MAX, Takeover, follow_each_other},
    writer::Writer,
};

impl Restore {
    /// Implements [`crate::Takeover::finish`] for a restore.
    pub(super) fn become_head(&self, ancestry: &Ancestry<'_>) -> Result<(), StorageError> {
        let Ancestry { headers, proof, genesis_proof } = *ancestry;
        let target = self.target.header.number;
        self.commit_files()?;
        let record = self.progress.lock().record.clone();
        let missing = record.todo.iter().chain(record.unchecked.iter()).map(|span| span.first).min();
        if let Some(next) = missing {
            return Err(RestoreError::RowsMissing { target, next }.into());
        }
        if let Some(&hash) = self.missing_codes(1)?.first() {
            return Err(RestoreError::CodeMissing { target, hash }.into());
        }
        let (mut nodes, accumulator) = self.check_headers(headers, proof)?;
        nodes.extend(self.check_genesis(genesis_proof)?);

        let store = &self.store;
        let writer = self.writer()?;
        let current = store.current()?;
        check_ahead(&current, target)?;
        store.check_leap(current.record.number, &self.target)?;
        let tree = self.checked_tree(&writer)?;
        let record = HeadRecord { number: target, active: record.column, lowest: [target.next(); 4] };

        let mut writes = WriteBatch::default();
        for header in headers {
            put_header(&mut writes, header, &header.digest());
        }
        for (position, node) in nodes {
            writes.put(Column::Nodes, schema::node_key(position), node.0);
        }
        let certificate = &self.target.certificate;
        writes.put(Column::Certificates, schema::number_key(target), schema::encode(certificate));
        let epoch = writer.stage_epoch_end(store.epoch(), certificate, &mut writes)?;
        writes.put(Column::Meta, HEAD_KEY, schema::encode(&record));
        store.leave_behind(&current, &mut writes)?;
        past_states::forget(&mut writes, current.record.number);
        writes.delete(Column::Meta, RESTORE_KEY);
        writes.clear(current.record.active.column());
        store.write(writes, true)?;
        writer.learn_epoch(epoch);

        writer.end_restores();
        let header = self.target.header.clone();
        let head = Head { digest: header.digest(), header, accumulator };
        let restored = writer.current_of(head, record, store.new_version(), Some(tree));
        writer.install(Arc::clone(&restored));
        let replaced = current.record.active.column();
        drop(current);
        // Runs before the snapshot, which would share the files. The next start or restore frees the rest, and the rows
        // that an older view still reads: a compaction now would delay the next batches.
        if !store.has_older_readers() {
            store.guard(|backend| backend.drop_files(replaced))?;
        }
        writer.make_snapshot(&restored, certificate);
        // All its rows were just compared.
        store.end_scrub();
        writer.save_frontier(&restored);
        Ok(())
    }

    /// Returns the tree of the chunks that this handle stored, and of the rows that earlier handles stored. Each was
    /// verified, so another root means that rows were damaged since.
    fn checked_tree(&self, writer: &Writer<'_>) -> Result<Tree, StorageError> {
        let rows = self.store.0.backend.snapshot();
        let (tree, not_in_tree) = {
            let mut progress = self.progress.lock();
            (std::mem::take(&mut progress.tree), progress.not_in_tree.clone())
        };
        let memory_mib = self.store.0.config.tree_memory_mib;
        let grown = grow_tree(tree, &rows, self.column, memory_mib, &not_in_tree);
        let expected = self.target.header.state_root;
        let checked = grown.and_then(|tree| match tree.root() {
            found if found == expected => Ok(tree),
            found => {
                Err(StorageError::corrupt(format!("they have the root {found}, but it should be {expected}")))
            }
        });
        checked.map_err(|error| writer.give_up_damaged(self.target.header.number, error))
    }

    /// Returns the accumulator up to the target, and the nodes to store for it.
    fn check_headers(
        &self,
        headers: &[BatchHeader],
        proof: &AccumulatorRangeProof,
    ) -> Result<(Vec<(NodePosition, Digest)>, Accumulator), StorageError> {
        let target = self.target.header.number;
        let refused = |reason| RestoreError::BadHeaders { target, reason };
        if headers.len() > RESTORE_HEADERS_MAX {
            return Err(refused("they exceed the number that BLOCKHASH can ask for").into());
        }
        let (Some(first), Some(last)) = (headers.first(), headers.last()) else {
            return Err(refused("the list is empty").into());
        };
        if *last != self.target.header {
            return Err(refused("the last header is not the target's").into());
        }
        let digests: Vec<Digest> = headers.iter().map(BatchHeader::digest).collect();
        if !follow_each_other(headers, &digests) {
            return Err(refused("they do not form a chain").into());
        }
        let leaves = target.leaves();
        let root = self.target.certificate.info.accumulator_root;
        let nodes = proof.verify(root, leaves, first.number.get(), &digests)?;
        self.check_same_ledger(headers, &digests)?;

        let known: BTreeMap<_, _> = nodes.iter().copied().collect();
        let accumulator = Accumulator::load(leaves, |position| known.get(&position).copied())
            .ok_or_else(|| refused("their proof lacks a part of the ledger before them"))?;
        Ok((nodes, accumulator))
    }

    /// Returns the nodes beside the genesis in the target's ledger. To prove the genesis in a later ledger, the store
    /// needs the full nodes among them, and those that appending needs.
    fn check_genesis(
        &self,
        proof: &AccumulatorRangeProof,
    ) -> Result<Vec<(NodePosition, Digest)>, StorageError> {
        let info = &self.target.certificate.info;
        let genesis = self.store.genesis_digest()?;
        Ok(proof.verify(info.accumulator_root, info.number.leaves(), 0, &[genesis])?)
    }

    /// Checks that headers of batches that the store already has are the same as in its ledger.
    fn check_same_ledger(&self, headers: &[BatchHeader], digests: &[Digest]) -> Result<(), StorageError> {
        let head = self.store.current()?.record.number;
        for (header, digest) in headers.iter().zip(digests).take_while(|(header, _)| header.number <= head) {
            let position = NodePosition { level: 0, index: header.number.get() };
            if read_node(&*self.store.0.backend, position)?.is_some_and(|stored| stored != *digest) {
                let reason = "they contradict the batches that this store has: it followed another ledger";
                return Err(RestoreError::BadHeaders { target: self.target.header.number, reason }.into());
            }
        }
        Ok(())
    }
}
