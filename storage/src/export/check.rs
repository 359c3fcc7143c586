//! Checking an export: what it says of itself, against what is trusted.

use std::{
    collections::BTreeSet,
    path::{Path as FilePath, PathBuf},
};

use parking_lot::Mutex;
use rayon::prelude::*;
use slipstream_types::{
    BatchHeader, BatchNumber, Blob, BlobKind, Digest, Genesis, Path, ValidatorSet, Waypoint,
    blob::BLOB_BYTES_MAX, codec, keccak256,
};

use super::{
    CODES_BYTES_MAX, ChunkEntry, CodeFile, ExportError, ExportSummary, FileEntry, GENESIS, MANIFEST,
    MANIFEST_BYTES_MAX, Manifest, VERSION, chunk_path, codes_path, read_bounded, read_entry, write::summary,
};
use crate::{
    chunk::{VerifiedChunk, code_hash},
    restore::follow_each_other,
    takeover::RestoreTarget,
};

/// What is trusted of a ledger: one of the two, or both.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// The export's batch, or batch 0, as `number:hash`.
    pub waypoint: Option<Waypoint>,
    /// The ledger's genesis.
    pub genesis: Option<Genesis>,
}

/// An export whose manifest, headers and genesis belong to the trusted ledger. Its chunks and codes are checked one by one as they
/// are read.
pub(super) struct Export {
    dir: PathBuf,
    pub(super) manifest: Manifest,
    pub(super) genesis: Genesis,
}

/// Checks all of an export: the ledger it is of, each chunk's proof, that no row and no code is missing.
///
/// # Errors
/// The first file that is not accepted, and why.
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
            format!("no file has the code {hash} of an account"),
        )),
    }
}

impl Export {
    /// Reads and checks everything but chunks and codes.
    pub(super) fn open(dir: &FilePath, trust: &Trust) -> Result<Export, ExportError> {
        let path = dir.join(MANIFEST);
        let bytes = read_bounded(&path, MANIFEST_BYTES_MAX)?;
        // Looked at first: what follows may have another form in another version.
        match bytes.first_chunk::<4>().map(|version| u32::from_le_bytes(*version)) {
            Some(VERSION) => {}
            Some(found) => {
                let reason = format!("it has the format {found}, this program reads {VERSION}");
                return Err(ExportError::damaged(&path, reason));
            }
            None => return Err(ExportError::damaged(&path, "it is empty")),
        }
        let manifest: Manifest = codec::decode("manifest", &bytes, bytes.len())
            .map_err(|error| ExportError::damaged(&path, error))?;
        let genesis = read_genesis(dir, &manifest.genesis)?;
        let export = Export { dir: dir.to_owned(), manifest, genesis };
        export.check_ledger().map_err(|reason| ExportError::damaged(&path, reason))?;
        export.check_ranges().map_err(|reason| ExportError::damaged(&path, reason))?;
        export.check_trust(trust)?;
        Ok(export)
    }

    /// What it restores.
    pub(super) fn target(&self) -> Result<RestoreTarget, ExportError> {
        let certificate = self.manifest.certificate.clone();
        let header = self.manifest.headers.last().cloned();
        let header =
            header.ok_or_else(|| ExportError::damaged(&self.dir.join(MANIFEST), "it has no headers"))?;
        Ok(RestoreTarget { header, certificate })
    }

    /// A chunk, checked against the certified state root.
    pub(super) fn chunk(&self, entry: &ChunkEntry) -> Result<VerifiedChunk, ExportError> {
        let path = chunk_path(&self.dir, entry.range, entry.index);
        let bytes = read_entry(&path, &entry.file, BLOB_BYTES_MAX)?;
        let content = Blob::from_bytes(bytes).and_then(|blob| blob.content(BlobKind::StateChunk));
        let content = content.map_err(|error| ExportError::damaged(&path, error))?;
        let chunk = VerifiedChunk::open(content, self.manifest.certificate.info.state_root)
            .map_err(|error| ExportError::damaged(&path, error))?;
        let is_named =
            (chunk.first(), chunk.last(), chunk.rows()) == (entry.first, entry.last, entry.rows as usize);
        if !is_named {
            return Err(ExportError::damaged(&path, "it is another chunk than the manifest names"));
        }
        Ok(chunk)
    }

    /// A file of codes.
    pub(super) fn codes(&self, index: usize, entry: &FileEntry) -> Result<CodeFile, ExportError> {
        let path = codes_path(&self.dir, index);
        let bytes = read_entry(&path, entry, CODES_BYTES_MAX)?;
        codec::decode("code file", &bytes, CODES_BYTES_MAX)
            .map_err(|error| ExportError::damaged(&path, error))
    }

    /// Whether header, headers, genesis and certificate are of one ledger.
    fn check_ledger(&self) -> Result<(), String> {
        let Manifest { certificate, headers, headers_proof, genesis_proof, .. } = &self.manifest;
        let info = &certificate.info;
        let (Some(first), Some(last)) = (headers.first(), headers.last()) else {
            return Err("it has no headers".into());
        };
        if last.number != info.number || last.state_root != info.state_root {
            return Err("its certificate is not about its last header".into());
        }
        let digests: Vec<Digest> = headers.iter().map(BatchHeader::digest).collect();
        if !follow_each_other(headers, &digests) {
            return Err("its headers do not follow each other".into());
        }
        let leaves = info.number.leaves();
        headers_proof
            .verify(info.accumulator_root, leaves, first.number.get(), &digests)
            .map_err(|error| error.to_string())?;
        let digest = self.genesis.header().map_err(|error| error.to_string())?.digest();
        let proved = genesis_proof.verify(info.accumulator_root, leaves, 0, &[digest]);
        proved.map_err(|error| format!("its genesis is not the ledger's first batch: {error}"))?;
        let set = self.signers()?;
        certificate.verify(&set).map_err(|error| error.to_string())
    }

    /// The validators of the certificate's epoch: each set is named by the certificate that ends the epoch before.
    fn signers(&self) -> Result<ValidatorSet, String> {
        let (mut set, mut before) = (self.genesis.validator_set(), None);
        for end in &self.manifest.epoch_ends {
            let info = &end.info;
            end.verify(&set).map_err(|error| format!("it names validators that nobody signed: {error}"))?;
            let next = info.next_validators.as_ref().ok_or("one of its epoch ends names no validators")?;
            let follows = next.epoch.0.checked_sub(1) == Some(info.epoch.0) && before < Some(info.number);
            if !follows || next.check().is_err() || info.number >= self.manifest.certificate.info.number {
                return Err(format!("its end of epoch {} does not lead to the certificate", info.epoch));
            }
            (set, before) = (next.clone(), Some(info.number));
        }
        Ok(set)
    }

    /// Whether the chunks are all paths, each once.
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
        let untrusted =
            |name: &str, reason: String| ExportError::Untrusted { path: self.dir.join(name), reason };
        let invalid = |error: slipstream_types::CodecError| untrusted(GENESIS, error.to_string());
        let own = Waypoint::of(&self.genesis.ledger_info().map_err(invalid)?);
        if let Some(genesis) = &trust.genesis
            && *genesis != self.genesis
        {
            return Err(untrusted(GENESIS, "it is another genesis than the given one".into()));
        }
        let is_genesis_trusted = trust.genesis.is_some() || trust.waypoint == Some(own);
        let found = Waypoint::of(&self.manifest.certificate.info);
        match trust.waypoint {
            Some(waypoint) if waypoint == found || waypoint == own => {}
            Some(waypoint) if waypoint.number == found.number || waypoint.number == BatchNumber::GENESIS => {
                let reason = format!("the waypoint is {waypoint}, this export has {found}");
                return Err(untrusted(MANIFEST, reason));
            }
            // The way from an earlier waypoint to here is not in the export.
            Some(waypoint) if !is_genesis_trusted => {
                let reason = format!(
                    "the waypoint {waypoint} says nothing of batch {}: give that batch's waypoint, or the genesis",
                    found.number
                );
                return Err(untrusted(MANIFEST, reason));
            }
            Some(_) => {}
            None if is_genesis_trusted => {}
            None => return Err(ExportError::NoTrust),
        }
        Ok(())
    }
}

fn read_genesis(dir: &FilePath, entry: &FileEntry) -> Result<Genesis, ExportError> {
    let path = dir.join(GENESIS);
    let bytes = read_entry(&path, entry, BLOB_BYTES_MAX)?;
    let content = Blob::from_bytes(bytes).and_then(|blob| blob.content(BlobKind::Genesis));
    let genesis = content.and_then(|content| Genesis::decode(&content));
    genesis.map_err(|error| ExportError::damaged(&path, error))
}
