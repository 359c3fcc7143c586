//! Readers of an archive's objects that need no archive, for fuzz targets.

use std::{collections::BTreeSet, ops::ControlFlow};

use slipstream_storage::{CodePack, Lineage, Piece, PieceMap, Snapshot, StorageError};
use slipstream_types::{Digest, Genesis, bounded::BoundedVec, codec};

use crate::{
    entry::ArchiveEntry,
    error::ArchiveError,
    index,
    manifest::{ArchiveSummary, Manifest, Object, PackEntry, PieceEntry, VERSION},
    names::SnapshotName,
};

/// Reads a manifest as [`Archive::snapshot`](crate::Archive::snapshot) does, and checks it against a genesis.
///
/// # Errors
/// The rule that the manifest breaks.
pub fn read_manifest(bytes: &[u8], genesis: &Genesis) -> Result<ArchiveSummary, String> {
    let manifest = Manifest::decode(bytes)?;
    let summary = manifest.summary();
    manifest.lineage.check(genesis, &manifest.genesis_proof)?;
    let pieces = manifest.pieces.iter().map(|entry| entry.piece.clone()).collect();
    PieceMap::new(pieces, summary.state_root).map_err(|error| error.to_string())?;
    Ok(summary)
}

/// Returns the number of snapshots that an index names.
///
/// # Errors
/// The rule that the index breaks.
pub fn read_index(bytes: &[u8]) -> Result<usize, String> {
    index::decode(bytes).map(|entries| entries.len())
}

/// Returns the manifest of a snapshot, as an export writes it.
///
/// # Errors
/// If the snapshot cannot be read.
pub fn manifest_of(snapshot: &Snapshot) -> Result<Vec<u8>, ArchiveError> {
    let object = |len: usize| Object { run: 1, len: len as u32 };
    let (mut pieces, mut packs, mut hashes) = (Vec::new(), Vec::new(), BTreeSet::new());
    for range in Snapshot::piece_ranges() {
        snapshot.pieces(range, &mut |piece: Piece| {
            hashes.extend(piece.code_hashes());
            let object = object(piece.blob()?.len());
            pieces.push(PieceEntry { piece: piece.info().clone(), object });
            Ok::<_, StorageError>(ControlFlow::Continue(()))
        })?;
    }
    snapshot.code_packs(&hashes, &mut |pack: CodePack| {
        packs.push(PackEntry { pack: *pack.info(), object: object(pack.blob()?.len()) });
        Ok::<_, StorageError>(ControlFlow::Continue(()))
    })?;
    let (genesis, genesis_proof) = Lineage::genesis_of(snapshot)?;
    let manifest = Manifest {
        version: VERSION,
        lineage: Lineage::of(snapshot)?,
        genesis: Digest::tagged("fuzz", genesis.as_bytes()),
        genesis_proof,
        pieces: BoundedVec::new(pieces)?,
        packs: BoundedVec::new(packs)?,
    };
    Ok(codec::encode("manifest", &manifest)?)
}

/// Returns the index of an archive that has only this snapshot.
///
/// # Errors
/// Never fails for one snapshot.
pub fn index_of(snapshot: &Snapshot) -> Result<Vec<u8>, ArchiveError> {
    let name = SnapshotName::of(&snapshot.info().certificate.info);
    index::encode(&[ArchiveEntry { name, manifest_bytes: 300, modified_ms: 4 }])
}
