//! Making an export.

use std::{collections::BTreeSet, fs, io::Write as _, ops::ControlFlow, path::Path as FilePath};

use parking_lot::Mutex;
use rayon::prelude::*;
use slipstream_types::{
    BatchNumber, Blob, BlobKind, Digest, Waypoint, bounded::BoundedVec, codec, delta::Code,
};

use super::{
    CODES_MAX, ChunkEntry, CodeFile, ExportError, ExportSummary, FileEntry, GENESIS, MANIFEST, Manifest,
    VERSION, chunk_path, codes_path, file_digest,
};
use crate::{
    chunk::{EncodedChunk, code_hashes},
    error::StorageError,
    lineage::Lineage,
    snapshot::Snapshot,
    span::Span,
    spans::Spans,
    store::Store,
};

/// Bytes of rows in one file: large enough that the directory of even the largest state can be listed.
const CHUNK_BYTES: usize = 4 << 20;
/// Parts of the paths that are written in parallel, as a power of two.
const RANGES_BITS: u8 = 4;
/// Bytes of code after which a file ends.
const CODE_BYTES: usize = 4 << 20;

/// Writes the snapshot of a batch as [`write_export`] does.
///
/// # Errors
/// [`ExportError::NoSnapshot`], and those of [`write_export`].
pub fn export_snapshot(
    store: &Store,
    number: BatchNumber,
    dir: &FilePath,
) -> Result<ExportSummary, ExportError> {
    let snapshot = store.snapshot(number)?.ok_or(ExportError::NoSnapshot { number })?;
    write_export(&snapshot, dir)
}

/// Writes a snapshot into a directory that is empty or does not exist yet.
///
/// # Errors
/// [`ExportError::NotEmpty`], or errors of the disk; what was written stays, without a manifest.
pub fn write_export(snapshot: &Snapshot, dir: &FilePath) -> Result<ExportSummary, ExportError> {
    for dir in [dir.to_owned(), dir.join("chunks"), dir.join("codes")] {
        fs::create_dir_all(&dir).map_err(|error| ExportError::io("create", &dir, error))?;
        let mut files = fs::read_dir(&dir).map_err(|error| ExportError::io("list", &dir, error))?;
        if files.next().is_some() {
            return Err(ExportError::NotEmpty { dir });
        }
    }
    // Done here, not by the first of the threads below: rebuilding the tree takes all of them.
    snapshot.tree()?;
    let hashes = Mutex::new(BTreeSet::new());
    let ranges: Vec<(u8, Span)> = (0..).zip(Spans::divided(RANGES_BITS).iter()).collect();
    let chunks: Vec<Vec<ChunkEntry>> = ranges
        .into_par_iter()
        .map(|(range, span)| write_range(snapshot, range, span, dir, &hashes))
        .collect::<Result<_, _>>()?;
    let chunks: Vec<ChunkEntry> = chunks.into_iter().flatten().collect();
    let hashes: Vec<Digest> = hashes.into_inner().into_iter().collect();
    let codes = write_codes(snapshot, &hashes, dir)?;
    let manifest = manifest(snapshot, dir, chunks, codes)?;
    finish(&manifest, dir)?;
    Ok(summary(&manifest, hashes.len() as u64))
}

/// Summarizes a manifest.
pub(super) fn summary(manifest: &Manifest, codes: u64) -> ExportSummary {
    let files = manifest.chunks.iter().map(|chunk| &chunk.file).chain(&manifest.codes);
    ExportSummary {
        number: manifest.lineage.info().number,
        waypoint: Waypoint::of(manifest.lineage.info()),
        state_root: manifest.lineage.info().state_root,
        rows: manifest.chunks.iter().map(|chunk| u64::from(chunk.rows)).sum(),
        chunks: manifest.chunks.len(),
        codes,
        bytes: files.chain([&manifest.genesis]).map(|file| u64::from(file.len)).sum(),
    }
}

fn write_range(
    snapshot: &Snapshot,
    range: u8,
    span: Span,
    dir: &FilePath,
    hashes: &Mutex<BTreeSet<Digest>>,
) -> Result<Vec<ChunkEntry>, ExportError> {
    let mut entries: Vec<ChunkEntry> = Vec::new();
    let mut failure = None;
    snapshot.chunks(span.first, span.last, CHUNK_BYTES, &mut |chunk| {
        match write_chunk(&chunk, range, entries.len() as u32, dir) {
            Ok(entry) => entries.push(entry),
            Err(error) => {
                failure = Some(error);
                return Ok(ControlFlow::Break(()));
            }
        }
        hashes.lock().extend(code_hashes(&chunk)?);
        Ok(ControlFlow::Continue(()))
    })?;
    failure.map_or(Ok(entries), Err)
}

fn write_chunk(
    chunk: &EncodedChunk,
    range: u8,
    index: u32,
    dir: &FilePath,
) -> Result<ChunkEntry, ExportError> {
    let blob = Blob::compress(BlobKind::StateChunk, &chunk.content).map_err(StorageError::from)?;
    let file = write_file(&chunk_path(dir, range, index), blob.as_bytes())?;
    Ok(ChunkEntry { range, index, first: chunk.first, last: chunk.last, rows: chunk.rows as u32, file })
}

fn write_codes(
    snapshot: &Snapshot,
    hashes: &[Digest],
    dir: &FilePath,
) -> Result<Vec<FileEntry>, ExportError> {
    let mut entries = Vec::new();
    let (mut codes, mut bytes) = (Vec::new(), 0);
    let mut end = |codes: Vec<Code>| -> Result<(), ExportError> {
        let codes = BoundedVec::new(codes).map_err(StorageError::from)?;
        let content = codec::encode("code file", &CodeFile { codes }).map_err(StorageError::from)?;
        entries.push(write_file(&codes_path(dir, entries.len()), &content)?);
        Ok(())
    };
    for hash in hashes {
        let code = snapshot.code(hash)?;
        let code =
            code.ok_or_else(|| snapshot.damaged(format!("the code {hash} of an account is missing")))?;
        bytes += code.len();
        codes.push(Code::new(code.to_vec()).map_err(StorageError::from)?);
        if bytes >= CODE_BYTES || codes.len() == CODES_MAX {
            end(std::mem::take(&mut codes))?;
            bytes = 0;
        }
    }
    if !codes.is_empty() {
        end(codes)?;
    }
    Ok(entries)
}

fn manifest(
    snapshot: &Snapshot,
    dir: &FilePath,
    chunks: Vec<ChunkEntry>,
    codes: Vec<FileEntry>,
) -> Result<Manifest, ExportError> {
    let (genesis, genesis_proof) = Lineage::genesis_of(snapshot)?;
    Ok(Manifest {
        version: VERSION,
        lineage: Lineage::of(snapshot)?,
        genesis: write_file(&dir.join(GENESIS), genesis.as_bytes())?,
        genesis_proof,
        chunks: BoundedVec::new(chunks).map_err(StorageError::from)?,
        codes: BoundedVec::new(codes).map_err(StorageError::from)?,
    })
}

/// Writes the manifest last. It gets its name only when it is complete, and after all file names have reached the
/// disk.
fn finish(manifest: &Manifest, dir: &FilePath) -> Result<(), ExportError> {
    let sync = |dir: &FilePath| {
        let synced = fs::File::open(dir).and_then(|dir| dir.sync_all());
        synced.map_err(|error| ExportError::io("sync", dir, error))
    };
    sync(&dir.join("chunks"))?;
    sync(&dir.join("codes"))?;
    let content = codec::encode("manifest", manifest).map_err(StorageError::from)?;
    let (aside, path) = (dir.join("MANIFEST.new"), dir.join(MANIFEST));
    write_file(&aside, &content)?;
    fs::rename(&aside, &path).map_err(|error| ExportError::io("rename", &aside, error))?;
    sync(dir)
}

fn write_file(path: &FilePath, bytes: &[u8]) -> Result<FileEntry, ExportError> {
    let written = fs::OpenOptions::new().write(true).create_new(true).open(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.map_err(|error| ExportError::io("write", path, error))?;
    Ok(FileEntry { len: bytes.len() as u32, digest: file_digest(bytes) })
}
