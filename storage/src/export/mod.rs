//! Writes a snapshot as a directory of files, checks such a directory, and imports it into an empty store. Checks need only a
//! waypoint or a genesis, and the import asks no peer. docs/formats.md draws the files.
//!
//! ```text
//!   DIR/MANIFEST     written last: a directory without one is not an export
//!   DIR/genesis      the genesis blob
//!   DIR/chunks/      RANGE-INDEX.chunk: state chunks, each proved by itself
//!   DIR/codes/       INDEX.codes: contract code, by ascending hash
//! ```

mod check;
mod import;
mod write;

use std::{
    fs,
    io::Read as _,
    path::{Path as FilePath, PathBuf},
};

use serde::{Deserialize, Serialize};
use slipstream_types::{
    BatchNumber, Digest, Path, Waypoint, accumulator::AccumulatorRangeProof, bounded::BoundedVec, delta::Code,
};

use crate::{error::StorageError, lineage::Lineage};
pub use check::verify_export;
pub use import::import_snapshot;
pub use write::{export_snapshot, write_export};

/// The format that this release writes and reads.
const VERSION: u32 = 3;
const MANIFEST: &str = "MANIFEST";
const GENESIS: &str = "genesis";
/// Maximum number of files of an export: enough for 16 TiB of state. Bounds the manifest.
const FILES_MAX: usize = 1 << 22;
/// Maximum bytes of a manifest: its files and the rest.
const MANIFEST_BYTES_MAX: u64 = 1 << 30;
/// Maximum number of codes in one file.
const CODES_MAX: usize = 4_096;
/// Maximum bytes of one file of codes: it ends once it has 4 MiB, and its last code may exceed that.
const CODES_BYTES_MAX: usize = 5 << 20;

/// Lists the files of an export.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Manifest {
    version: u32,
    lineage: Lineage,
    genesis: FileEntry,
    /// Proves that the genesis is the ledger's first batch.
    genesis_proof: AccumulatorRangeProof,
    /// Chunks by ascending path, without a gap.
    chunks: BoundedVec<ChunkEntry, FILES_MAX>,
    codes: BoundedVec<FileEntry, FILES_MAX>,
}

/// The length and the digest that a file must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct FileEntry {
    len: u32,
    digest: Digest,
}

/// A file with one state chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct ChunkEntry {
    /// The part of the paths that it covers; parts are written and read in parallel.
    range: u8,
    /// Its index within the part.
    index: u32,
    first: Path,
    last: Path,
    rows: u32,
    file: FileEntry,
}

/// One file of codes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct CodeFile {
    codes: BoundedVec<Code, CODES_MAX>,
}

/// Counts what an export holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExportSummary {
    /// Number of the exported batch.
    pub number: BatchNumber,
    /// The waypoint that it satisfies.
    pub waypoint: Waypoint,
    /// Root of its state.
    pub state_root: Digest,
    /// Rows of the state.
    pub rows: u64,
    /// Number of files of chunks.
    pub chunks: usize,
    /// Number of contract codes.
    pub codes: u64,
    /// Bytes of all files but the manifest.
    pub bytes: u64,
}

/// Why making or importing an export failed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The file system failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The file is not what it should be.
    #[error("{} is refused: {reason}; copy the export again, or use another one", path.display())]
    Damaged {
        /// The refused file.
        path: PathBuf,
        /// The rule that the file breaks.
        reason: String,
    },
    /// The files belong together, but not to the trusted ledger.
    #[error("{} does not belong to the trusted ledger: {reason}", path.display())]
    Untrusted {
        /// The refused file.
        path: PathBuf,
        /// The contradiction to the trusted ledger.
        reason: String,
    },
    /// The caller gave neither waypoint nor genesis.
    #[error(
        "no trusted ledger is given: give the waypoint NUMBER:0xHASH of the export's batch, or the genesis"
    )]
    NoTrust,
    /// An export needs an empty directory.
    #[error("{} is not empty: export into a new directory", dir.display())]
    NotEmpty {
        /// The directory that is not empty.
        dir: PathBuf,
    },
    /// The store has no such snapshot.
    #[error(
        "the store has no snapshot of batch {number}: `slipstream snapshot list` shows the existing snapshots"
    )]
    NoSnapshot {
        /// Number of the batch.
        number: BatchNumber,
    },
    /// An import needs an empty store.
    #[error("the store is already at batch {head}: import into an empty data directory")]
    NotFresh {
        /// Number of the store's head.
        head: BatchNumber,
    },
    /// The store refuses the request.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl ExportError {
    fn io(action: &'static str, path: &FilePath, source: std::io::Error) -> ExportError {
        ExportError::Io { action, path: path.to_owned(), source }
    }

    fn damaged(path: &FilePath, reason: impl ToString) -> ExportError {
        ExportError::Damaged { path: path.to_owned(), reason: reason.to_string() }
    }
}

fn chunk_path(dir: &FilePath, range: u8, index: u32) -> PathBuf {
    dir.join("chunks").join(format!("{range:02x}-{index:06}.chunk"))
}

fn codes_path(dir: &FilePath, index: usize) -> PathBuf {
    dir.join("codes").join(format!("{index:06}.codes"))
}

fn file_digest(bytes: &[u8]) -> Digest {
    Digest::tagged("slipstream/export-file/1", bytes)
}

/// Reads a file of at most `bytes_max` bytes.
fn read_bounded(path: &FilePath, bytes_max: u64) -> Result<Vec<u8>, ExportError> {
    let failed = |source| ExportError::io("read", path, source);
    let mut bytes = Vec::new();
    fs::File::open(path).map_err(failed)?.take(bytes_max + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > bytes_max {
        return Err(ExportError::damaged(path, format!("it is longer than {bytes_max} bytes")));
    }
    Ok(bytes)
}

/// Reads a file that the manifest describes.
fn read_entry(path: &FilePath, entry: &FileEntry, bytes_max: usize) -> Result<Vec<u8>, ExportError> {
    if entry.len as usize > bytes_max {
        let reason = format!("the manifest gives it {} bytes, but the limit is {bytes_max}", entry.len);
        return Err(ExportError::damaged(path, reason));
    }
    let bytes = read_bounded(path, u64::from(entry.len))?;
    if bytes.len() != entry.len as usize || file_digest(&bytes) != entry.digest {
        return Err(ExportError::damaged(path, "its length or digest differs from the manifest"));
    }
    Ok(bytes)
}
