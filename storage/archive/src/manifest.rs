//! [`Manifest`]: the contents of a snapshot in an archive.

use serde::{Deserialize, Serialize};
use slipstream_storage::{CodePackInfo, Lineage, PieceInfo};
use slipstream_types::{
    BatchNumber, Digest, Waypoint, accumulator::AccumulatorRangeProof, bounded::BoundedVec, codec,
};

use crate::names::{self, RunId, SnapshotName};

/// The format that this release writes and reads.
pub(crate) const VERSION: u32 = 1;
/// Maximum number of pieces of a state: at least half a TiB of rows. Bounds what a reader of a manifest allocates and computes.
const PIECES_MAX: usize = 1 << 20;
/// Maximum number of packs of codes in one manifest.
const PACKS_MAX: usize = 1 << 16;
/// Maximum bytes of a manifest: its pieces and packs, and the ends of many epochs.
pub(crate) const MANIFEST_BYTES_MAX: usize = 256 << 20;
/// Maximum bytes of a piece's or pack's blob: incompressible content grows by a 255th in LZ4.
pub(crate) const BLOB_BYTES_MAX: usize = (1 << 20) + (1 << 13);

/// A snapshot's list of contents. Its object is named by the waypoint of its batch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) version: u32,
    pub(crate) lineage: Lineage,
    /// Digest of batch 0, which names the genesis object.
    pub(crate) genesis: Digest,
    /// Proves that the genesis is the ledger's first batch.
    pub(crate) genesis_proof: AccumulatorRangeProof,
    /// Pieces by their places. Their hashes give the state root.
    pub(crate) pieces: BoundedVec<PieceEntry, PIECES_MAX>,
    /// Packs by their places: the codes of all accounts.
    pub(crate) packs: BoundedVec<PackEntry, PACKS_MAX>,
}

/// A piece, and the object that holds it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PieceEntry {
    pub(crate) piece: PieceInfo,
    pub(crate) object: Object,
}

/// A pack of codes, and the object that holds it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PackEntry {
    pub(crate) pack: CodePackInfo,
    pub(crate) object: Object,
}

/// Identifies one of the objects with the same hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Object {
    /// The export that wrote it.
    pub(crate) run: RunId,
    /// Length of the object in bytes.
    pub(crate) len: u32,
}

impl PieceEntry {
    pub(crate) fn name(&self) -> String {
        names::piece(&self.piece.hash(), self.object.run)
    }
}

impl PackEntry {
    pub(crate) fn name(&self) -> String {
        names::pack(&self.pack.digest, self.object.run)
    }
}

impl Manifest {
    /// Decodes a manifest and checks its rules.
    ///
    /// # Errors
    /// The rule that the manifest breaks.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Manifest, String> {
        // Checked first: another version may have another layout after it.
        match bytes.first_chunk::<4>().map(|version| u32::from_le_bytes(*version)) {
            Some(VERSION) => {
                codec::decode("manifest", bytes, MANIFEST_BYTES_MAX).map_err(|error| error.to_string())
            }
            Some(found) => Err(format!("it has format {found}, but this program reads format {VERSION}")),
            None => Err("it is empty".into()),
        }
    }

    pub(crate) fn name(&self) -> SnapshotName {
        SnapshotName::of(self.lineage.info())
    }

    /// Returns all objects that the manifest needs, by their hashes.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (Digest, Object)> {
        let pieces = self.pieces.iter().map(|entry| (entry.piece.hash(), entry.object));
        pieces.chain(self.packs.iter().map(|entry| (entry.pack.digest, entry.object)))
    }

    pub(crate) fn summary(&self) -> ArchiveSummary {
        let info = self.lineage.info();
        ArchiveSummary {
            number: info.number,
            waypoint: Waypoint::of(info),
            state_root: info.state_root,
            rows: self.pieces.iter().map(|entry| u64::from(entry.piece.rows)).sum(),
            pieces: self.pieces.len(),
            codes: self.packs.iter().map(|entry| u64::from(entry.pack.codes)).sum(),
            bytes: self.objects().map(|(_, object)| u64::from(object.len)).sum(),
        }
    }
}

/// Counts the contents of an archived snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArchiveSummary {
    /// Number of the snapshot's batch.
    pub number: BatchNumber,
    /// The waypoint that it satisfies.
    pub waypoint: Waypoint,
    /// Root of its state.
    pub state_root: Digest,
    /// Rows of the state.
    pub rows: u64,
    /// Number of pieces.
    pub pieces: usize,
    /// Number of contract codes.
    pub codes: u64,
    /// Bytes of the objects of pieces and codes.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use slipstream_storage::PathPrefix;
    use slipstream_types::{
        LedgerInfo, Path,
        tree::{Leaf, SiblingNode},
    };

    use super::*;
    use crate::{entry::ArchiveEntry, index};

    fn manifest() -> Manifest {
        let info = LedgerInfo {
            accumulator_root: Digest([1; 32]),
            state_root: Digest([2; 32]),
            timestamp_ms: 9,
            ..slipstream_testkit::info(3, 77)
        };
        let certificate = slipstream_testkit::sign(info, &[slipstream_testkit::key(7)]);
        let lineage = Lineage {
            certificate,
            epoch_ends: Default::default(),
            headers: BoundedVec::new(vec![slipstream_testkit::header(77, Digest([5; 32]))]).unwrap(),
            headers_proof: Default::default(),
        };
        let piece = |first: u8, node, rows| PieceEntry {
            piece: PieceInfo { place: PathPrefix::new(&Path([first; 32]), 9), node, rows, bytes: 80 * rows },
            object: Object { run: 5, len: 60 },
        };
        let leaf = Leaf { path: Path([8; 32]), value_hash: Digest([9; 32]) };
        let pieces =
            vec![piece(8, SiblingNode::Leaf(leaf), 1), piece(200, SiblingNode::Inner(Digest([4; 32])), 3)];
        let pack = CodePackInfo { place: PathPrefix::ROOT, digest: Digest([6; 32]), codes: 2 };
        let packs = vec![PackEntry { pack, object: Object { run: u64::MAX, len: 7 } }];
        Manifest {
            version: VERSION,
            lineage,
            genesis: Digest([3; 32]),
            genesis_proof: Default::default(),
            pieces: BoundedVec::new(pieces).unwrap(),
            packs: BoundedVec::new(packs).unwrap(),
        }
    }

    /// Goal: later releases read this release's manifests, and refuse every other form.
    #[test]
    fn the_formats_are_pinned() {
        let manifest = manifest();
        let bytes = codec::encode("manifest", &manifest).unwrap();
        assert_eq!((bytes.len(), Digest::tagged("pinned", &bytes).to_string().as_str()), MANIFEST);
        assert_eq!(Manifest::decode(&bytes).unwrap(), manifest);
        let entry = ArchiveEntry { name: manifest.name(), manifest_bytes: 300, modified_ms: 4 };
        let index = index::encode(&[entry]).unwrap();
        assert_eq!((index.len(), Digest::tagged("pinned", &index).to_string().as_str()), INDEX);
        assert_eq!(index::decode(&index).unwrap(), [entry]);

        for end in 0..bytes.len() {
            assert!(Manifest::decode(&bytes[..end]).is_err(), "cut at {end}");
        }
        assert!(Manifest::decode(&[&bytes[..], &[0]].concat()).is_err());
        // A length without content is refused before memory is allocated for it.
        let mut many = bytes;
        let at = many.len() - 1;
        many.truncate(at);
        many.extend([0xff, 0xff, 0xff, 0x7f]);
        assert!(Manifest::decode(&many).is_err());
    }

    const MANIFEST: (usize, &str) =
        (677, "0x5440881ef89989692ac638ab34ccbb460c0b44cca69de14efc5e7526e07ed52d");
    const INDEX: (usize, &str) = (61, "0x7fa1eabd74567c6557ceee7d9f43edab386b37f3bca9465a9573da09e2c4b0f6");
}
