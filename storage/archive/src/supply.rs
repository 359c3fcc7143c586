//! Supplies from an archive what a node otherwise requests from its peers.

use std::{collections::BTreeMap, sync::Arc};

use slipstream_storage::{CodePack, EncodedChunk, Lineage, Piece, Span};
use slipstream_types::{
    BatchHeader, BatchNumber, Blob, Digest, Path,
    accumulator::{self, AccumulatorRangeProof},
    delta::Code,
    tree::StateRangeProof,
};
use tokio::task::spawn_blocking;

use crate::{error::ArchiveError, manifest::BLOB_BYTES_MAX, snapshot::ArchivedSnapshot};

/// Why something is not supplied.
#[derive(Debug)]
pub enum SupplyError {
    /// The archive does not keep it.
    NotKept,
    /// The archive could not be read.
    Failed(ArchiveError),
    /// The archive has something else under that name.
    Wrong {
        /// Bytes of the supplied object.
        bytes: Vec<u8>,
        /// The object's fault.
        error: Box<ArchiveError>,
    },
}

impl ArchivedSnapshot {
    /// Returns the proof that the snapshot belongs to its ledger.
    pub fn lineage(&self) -> &Lineage {
        &self.manifest.lineage
    }

    /// Returns the digest of batch 0.
    pub fn genesis(&self) -> Digest {
        self.manifest.genesis
    }

    /// Returns the proof that the genesis is the first batch of the ledger that ends with the snapshot.
    pub fn genesis_proof(&self) -> &AccumulatorRangeProof {
        &self.manifest.genesis_proof
    }

    /// Returns the headers from one batch to another, with the proof of their place in the ledger that ends with the
    /// snapshot. Returns `None` if the archive lacks one of them.
    pub fn headers(
        &self,
        first: BatchNumber,
        last: BatchNumber,
    ) -> Option<(Vec<BatchHeader>, AccumulatorRangeProof)> {
        let Lineage { headers, headers_proof, .. } = self.lineage();
        let from = headers.iter().position(|header| header.number == first)?;
        let to = headers.iter().position(|header| header.number == last).filter(|to| *to >= from)?;
        let asked = headers[from..=to].to_vec();
        let info = self.lineage().info();
        let digests: Vec<Digest> = headers.iter().map(BatchHeader::digest).collect();
        let (start, leaves) = (headers.first()?.number.get(), info.number.leaves());
        let nodes = headers_proof.verify(info.accumulator_root, leaves, start, &digests).ok()?;
        let nodes: BTreeMap<_, _> = nodes.into_iter().collect();
        let proof =
            accumulator::prove(leaves, first.get(), asked.len(), &|position| nodes.get(&position).copied());
        Some((asked, proof.ok()?))
    }

    /// Returns the rows of a span, or the first `bytes_max` bytes of them, with their proof. It reads further pieces
    /// until the chunk is full. A chunk that ended with its first piece, before the span's end, would look like a lie
    /// to the requester.
    ///
    /// # Errors
    /// [`SupplyError`].
    pub async fn chunk(self: &Arc<Self>, span: Span, bytes_max: usize) -> Result<EncodedChunk, SupplyError> {
        let mut index = self.map.piece_of(&span.first);
        let first = self.piece(index).await?;
        let (mut bytes, mut pieces) = (first.bytes_from(&span.first), vec![first]);
        while bytes <= bytes_max && self.map.span(index).last < span.last {
            index += 1;
            let piece = self.piece(index).await?;
            bytes += piece.info().bytes as usize;
            pieces.push(piece);
        }
        let this = Arc::clone(self);
        let made = spawn_blocking(move || {
            let pieces: Vec<&Piece> = pieces.iter().collect();
            this.map.chunk_of(&pieces, span, bytes_max)
        });
        made.await.map_err(failed)?.map_err(|_| SupplyError::NotKept)
    }

    /// Returns the siblings beside a span.
    ///
    /// # Errors
    /// [`SupplyError`].
    pub async fn range_proof(self: &Arc<Self>, span: Span) -> Result<StateRangeProof, SupplyError> {
        let first = self.end_piece(&span.first).await?;
        let last = self.end_piece(&span.last).await?;
        let this = Arc::clone(self);
        let made = spawn_blocking(move || {
            let pieces: Vec<&Piece> = first.iter().chain(&last).collect();
            this.map.range_proof(span, &pieces)
        });
        made.await.map_err(failed)?.map_err(|_| SupplyError::NotKept)
    }

    /// Returns codes by their Keccak-256, in the requested order.
    ///
    /// # Errors
    /// [`SupplyError::NotKept`] if one of them is not a code of the snapshot's accounts; or errors of the archive.
    pub async fn codes(&self, hashes: &[Digest]) -> Result<Vec<Code>, SupplyError> {
        let mut found: BTreeMap<Digest, Code> = BTreeMap::new();
        for hash in hashes {
            if found.contains_key(hash) {
                continue;
            }
            let packs = &self.manifest.packs;
            let path = Path(hash.0);
            let at = packs.partition_point(|entry| entry.pack.place.span().last < path);
            let entry = packs.get(at).ok_or(SupplyError::NotKept)?;
            let bytes = self.object(&entry.name()).await?;
            let opened = Blob::from_bytes(bytes.clone())
                .map_err(Into::into)
                .and_then(|blob| CodePack::open(&entry.pack, &blob));
            let codes = opened.map_err(|error| self.wrong(&entry.name(), bytes, error))?;
            found.extend(codes.into_iter().filter(|(hash, _)| hashes.contains(hash)));
            if !found.contains_key(hash) {
                return Err(SupplyError::NotKept);
            }
        }
        hashes.iter().map(|hash| found.get(hash).cloned().ok_or(SupplyError::NotKept)).collect()
    }

    /// Returns the piece that contains a path, if one does.
    async fn end_piece(self: &Arc<Self>, path: &Path) -> Result<Option<Piece>, SupplyError> {
        let index = self.map.piece_of(path);
        let Span { first, last } = self.map.pieces()[index].place.span();
        match first <= *path && *path <= last {
            true => self.piece(index).await.map(Some),
            false => Ok(None),
        }
    }

    async fn piece(self: &Arc<Self>, index: usize) -> Result<Piece, SupplyError> {
        let entry = &self.manifest.pieces[index];
        let bytes = self.object(&entry.name()).await?;
        let (info, given) = (entry.piece.clone(), bytes.clone());
        let opened = spawn_blocking(move || Piece::open(&info, &Blob::from_bytes(given)?));
        opened.await.map_err(failed)?.map_err(|error| self.wrong(&entry.name(), bytes, error))
    }

    async fn object(&self, name: &str) -> Result<Vec<u8>, SupplyError> {
        self.archive.read(name, BLOB_BYTES_MAX).await.map_err(|error| match error {
            // The object is longer than any piece or pack can be, and was not read.
            error @ ArchiveError::Damaged { .. } => {
                SupplyError::Wrong { bytes: Vec::new(), error: Box::new(error) }
            }
            error => SupplyError::Failed(error),
        })
    }

    fn wrong(&self, name: &str, bytes: Vec<u8>, error: slipstream_storage::PieceError) -> SupplyError {
        SupplyError::Wrong { bytes, error: Box::new(self.archive.damaged(name, error)) }
    }
}

fn failed(error: tokio::task::JoinError) -> SupplyError {
    SupplyError::Failed(error.into())
}
