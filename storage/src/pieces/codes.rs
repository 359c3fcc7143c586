//! [`CodePack`]: contract codes whose hashes share their first bits.

use std::{collections::BTreeSet, ops::ControlFlow};

use serde::{Deserialize, Serialize};
use slipstream_types::{
    Blob, BlobKind, CodecError, Digest, Path, bounded::BoundedVec, codec, delta::Code, keccak256, limits,
};

use super::{
    PIECE_ROWS_BYTES_MAX,
    cut::{Cut, Cutter},
};
use crate::{
    chunk::put_count,
    error::{PieceError, StorageError},
    place::PathPrefix,
    snapshot::Snapshot,
};

/// Maximum number of codes in a pack: no account's code is empty, and each is preceded by its length.
const CODES_MAX: usize = PIECE_ROWS_BYTES_MAX / 2;

/// Describes a pack of codes to a store that lacks it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CodePackInfo {
    /// The bits that the codes' hashes share.
    pub place: PathPrefix,
    /// `H("slipstream/code-pack/1", content)`, which is its name.
    pub digest: Digest,
    /// Number of codes.
    pub codes: u32,
}

/// Codes by ascending Keccak-256. Only cutting and checking make a pack.
pub struct CodePack {
    info: CodePackInfo,
    content: Vec<u8>,
}

impl CodePack {
    /// Returns the pack's description.
    pub fn info(&self) -> &CodePackInfo {
        &self.info
    }

    /// Encodes the pack as it is kept elsewhere.
    ///
    /// # Errors
    /// Never fails for packs within their limits.
    pub fn blob(&self) -> Result<Blob, CodecError> {
        Blob::compress(BlobKind::CodePack, &self.content)
    }

    /// Returns the codes of a pack's blob, with their hashes, if they match the pack's description.
    ///
    /// # Errors
    /// The first fault: malformed bytes, or content that does not match its name.
    pub fn open(info: &CodePackInfo, blob: &Blob) -> Result<Vec<(Digest, Code)>, PieceError> {
        let content = blob.content(BlobKind::CodePack)?;
        let other = PieceError::OtherCodes { place: info.place, expected: info.digest };
        if pack_digest(&content) != info.digest {
            return Err(other);
        }
        let codes: BoundedVec<Code, CODES_MAX> =
            codec::decode("code pack", &content, limits::PIECE_BYTES_MAX)?;
        let hashed = codes.into_inner().into_iter().map(|code| (Digest::from(keccak256(&code[..])), code));
        let codes: Vec<(Digest, Code)> = hashed.collect();
        let is_inside = codes.iter().all(|(hash, _)| info.place.contains(&Path(hash.0)));
        let is_sorted = codes.is_sorted_by(|(a, _), (b, _)| a < b);
        match is_inside && is_sorted && codes.len() == info.codes as usize {
            true => Ok(codes),
            false => Err(other),
        }
    }

    fn of_cut(cut: Cut) -> CodePack {
        let mut content = Vec::with_capacity(cut.items.len() + 5);
        put_count(&mut content, cut.paths.len());
        content.extend_from_slice(&cut.items);
        let info =
            CodePackInfo { place: cut.place, digest: pack_digest(&content), codes: cut.paths.len() as u32 };
        CodePack { info, content }
    }
}

fn pack_digest(content: &[u8]) -> Digest {
    Digest::tagged("slipstream/code-pack/1", content)
}

impl Snapshot {
    /// Makes the packs of these codes, in the order of their hashes. They depend on the hashes alone.
    ///
    /// # Errors
    /// [`StorageError::DamagedSnapshot`] if a code is missing; errors of the disk or the visitor.
    pub fn code_packs(
        &self,
        hashes: &BTreeSet<Digest>,
        visit: &mut dyn FnMut(CodePack) -> Result<ControlFlow<()>, StorageError>,
    ) -> Result<(), StorageError> {
        let mut cutter = Cutter::new(PathPrefix::ROOT, PIECE_ROWS_BYTES_MAX);
        for hash in hashes {
            let code = self.code(hash)?;
            let code =
                code.ok_or_else(|| self.damaged(format!("the code {hash} of an account is missing")))?;
            let mut item = Vec::with_capacity(code.len() + 5);
            put_count(&mut item, code.len());
            item.extend_from_slice(&code);
            if cutter.push(Path(hash.0), &item, &mut |cut| visit(CodePack::of_cut(cut)))?.is_break() {
                return Ok(());
            }
        }
        cutter.finish(&mut |cut| visit(CodePack::of_cut(cut)))
    }
}
