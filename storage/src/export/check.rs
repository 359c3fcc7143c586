//! Compares an export's claims with the trusted ledger.

use std::{
    collections::BTreeSet,
    path::{Path as FilePath, PathBuf},
};

use parking_lot::Mutex;
use rayon::prelude::*;
use slipstream_types::{
    Blob, BlobKind, Digest, Genesis, Path, blob::BLOB_BYTES_MAX, codec, genesis::GenesisError, keccak256,
};

use super::{
    CODES_BYTES_MAX, ChunkEntry, CodeFile, ExportError, ExportSummary, FileEntry, GENESIS, MANIFEST,
    MANIFEST_BYTES_MAX, Manifest, VERSION, chunk_path, codes_path, read_bounded, read_entry, write::summary,
};
use crate::{
    chunk::{VerifiedChunk, code_hash},
    lineage::{LineageError, Trust},
};

/// An export whose manifest, headers and genesis belong to the trusted ledger. Its chunks and codes are checked one by one as they
/// are read.
pub(super) struct Export {
    dir: PathBuf,
    pub(super) manifest: Manifest,
    pub(super) genesis: Genesis,
}

/// Checks a whole export: its ledger, the proof of each chunk, and that all rows and codes are there.
///
/// # Errors
/// The first file that is refused, and why.
pub fn verify_export(dir: &FilePath, trust: &Trust) -> Result<ExportSummary, ExportError> {
    let export = Export::open(dir, trust)?;
    let needed = Mutex::new(BTreeSet::new());
    export.manifest.chunks.par_iter().try_for_each(|entry| {
        let chunk = export.chunk(entry)?;
        needed.lock().extend(chunk.stored_rows().filter_map(|(_, row)| code_hash(row)));
        Ok::<_, ExportError>(())
    })?;
    let mut needed = needed.into_inner();
    let mut codes = 0;
    for (index, entry) in export.manifest.codes.iter().enumerate() {
        let path = codes_path(dir, index);
        for code in export.codes(index, entry)?.codes.iter() {
            let hash = Digest::from(keccak256(&code[..]));
            if !needed.remove(&hash) {
                return Err(ExportError::damaged(&path, format!("no account needs its code {hash}")));
            }
            codes += 1;
        }
    }
    match needed.first() {
        None => Ok(summary(&export.manifest, codes)),
        Some(hash) => Err(ExportError::damaged(
            &dir.join(MANIFEST),
            format!("an account's code {hash} is missing from all files"),
        )),
    }
}

impl Export {
    /// Reads and checks everything but chunks and codes.
    pub(super) fn open(dir: &FilePath, trust: &Trust) -> Result<Export, ExportError> {
        let path = dir.join(MANIFEST);
        let bytes = read_bounded(&path, MANIFEST_BYTES_MAX)?;
        // Checked first: another version may have another layout after it.
        match bytes.first_chunk::<4>().map(|version| u32::from_le_bytes(*version)) {
            Some(VERSION) => {}
            Some(found) => {
                let reason = format!("it has format {found}, but this program reads format {VERSION}");
                return Err(ExportError::damaged(&path, reason));
            }
            None => return Err(ExportError::damaged(&path, "it is empty")),
        }
        let manifest: Manifest = codec::decode("manifest", &bytes, bytes.len())
            .map_err(|error| ExportError::damaged(&path, error))?;
        let genesis = read_genesis(dir, &manifest.genesis)?;
        let export = Export { dir: dir.to_owned(), manifest, genesis };
        let Manifest { lineage, genesis_proof, .. } = &export.manifest;
        lineage
            .check(&export.genesis, genesis_proof)
            .map_err(|reason| ExportError::damaged(&path, reason))?;
        export.check_ranges().map_err(|reason| ExportError::damaged(&path, reason))?;
        export.check_trust(trust)?;
        Ok(export)
    }

    /// Reads a chunk, and checks it against the certified state root.
    pub(super) fn chunk(&self, entry: &ChunkEntry) -> Result<VerifiedChunk, ExportError> {
        let path = chunk_path(&self.dir, entry.range, entry.index);
        let bytes = read_entry(&path, &entry.file, BLOB_BYTES_MAX)?;
        let content = Blob::from_bytes(bytes).and_then(|blob| blob.content(BlobKind::StateChunk));
        let content = content.map_err(|error| ExportError::damaged(&path, error))?;
        let chunk = VerifiedChunk::open(content, self.manifest.lineage.info().state_root)
            .map_err(|error| ExportError::damaged(&path, error))?;
        let is_named =
            (chunk.first(), chunk.last(), chunk.rows()) == (entry.first, entry.last, entry.rows as usize);
        if !is_named {
            return Err(ExportError::damaged(
                &path,
                "its content differs from the chunk that the manifest names",
            ));
        }
        Ok(chunk)
    }

    /// Reads a file of codes.
    pub(super) fn codes(&self, index: usize, entry: &FileEntry) -> Result<CodeFile, ExportError> {
        let path = codes_path(&self.dir, index);
        let bytes = read_entry(&path, entry, CODES_BYTES_MAX)?;
        codec::decode("code file", &bytes, CODES_BYTES_MAX)
            .map_err(|error| ExportError::damaged(&path, error))
    }

    /// Checks that the chunks cover all paths, each once.
    fn check_ranges(&self) -> Result<(), String> {
        let mut due = Some(Path::MIN);
        for entry in &self.manifest.chunks {
            if due != Some(entry.first) || entry.last < entry.first {
                return Err(format!("its chunks have a gap or overlap at path {:?}", entry.first));
            }
            due = entry.last.successor();
        }
        match due {
            None => Ok(()),
            Some(due) => Err(format!("its chunks end before path {due:?}")),
        }
    }

    fn check_trust(&self, trust: &Trust) -> Result<(), ExportError> {
        let untrusted = |name: &str, error: &LineageError| ExportError::Untrusted {
            path: self.dir.join(name),
            reason: error.to_string(),
        };
        trust.check(&self.genesis, self.manifest.lineage.info()).map_err(|error| match error {
            LineageError::NoTrust => ExportError::NoTrust,
            LineageError::Genesis { .. } => untrusted(GENESIS, &error),
            LineageError::Snapshot { .. } => untrusted(MANIFEST, &error),
        })
    }
}

fn read_genesis(dir: &FilePath, entry: &FileEntry) -> Result<Genesis, ExportError> {
    let path = dir.join(GENESIS);
    let bytes = read_entry(&path, entry, BLOB_BYTES_MAX)?;
    let content = Blob::from_bytes(bytes).and_then(|blob| blob.content(BlobKind::Genesis));
    let genesis = content.map_err(GenesisError::from).and_then(|content| Genesis::decode(&content));
    genesis.map_err(|error| ExportError::damaged(&path, error))
}
