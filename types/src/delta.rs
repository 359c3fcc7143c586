//! [`Delta`]: the net effect of a batch on the state.

use serde::{Deserialize, Serialize};

use crate::{
    blob::{Blob, BlobKind},
    bounded::{BoundedBytes, BoundedVec},
    codec::{self, CodecError},
    limits,
    state::{Path, Paths, StateKey, StateValue},
};

/// One contract's code; its Keccak-256 is its name.
pub type Code = BoundedBytes<{ limits::CODE_BYTES_MAX }>;

/// One key's last value, or its deletion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeltaEntry {
    /// Key of the changed row.
    pub key: StateKey,
    /// Its new value; `None` deletes the row.
    pub value: Option<StateValue>,
}

/// Each key once, sorted by path, and the code of the contracts that the batch created, sorted by hash.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Delta {
    entries: BoundedVec<DeltaEntry, { limits::DELTA_ENTRIES_MAX }>,
    codes: BoundedVec<Code, { limits::DELTA_CODES_MAX }>,
}

impl Delta {
    /// Sorts entries by path and codes by hash, and drops repeated codes.
    ///
    /// # Errors
    /// If a key occurs twice, a value does not fit its key, or a limit is exceeded.
    pub fn new(entries: Vec<DeltaEntry>, codes: Vec<Vec<u8>>) -> Result<Delta, CodecError> {
        let mut paths = Paths::default();
        let mut entries: Vec<_> = entries.into_iter().map(|entry| (paths.path(&entry.key), entry)).collect();
        entries.sort_unstable_by_key(|(path, _)| *path);
        check_entries(entries.iter().map(|(path, entry)| (*path, entry)))?;
        let mut codes = codes.into_iter().map(Code::new).collect::<Result<Vec<_>, _>>()?;
        codes.sort_by_cached_key(|code| alloy_primitives::keccak256(&code[..]));
        codes.dedup();
        let entries = entries.into_iter().map(|(_, entry)| entry).collect();
        Ok(Delta { entries: BoundedVec::new(entries)?, codes: BoundedVec::new(codes)? })
    }

    /// Opens a delta's blob and checks order and values, which decoding alone does not.
    pub fn open(blob: &Blob) -> Result<Delta, CodecError> {
        Self::decode(&blob.content(BlobKind::Delta)?)
    }

    /// Decodes a delta's content; see [`Delta::open`].
    pub fn decode(content: &[u8]) -> Result<Delta, CodecError> {
        let delta: Delta = codec::decode("delta", content, limits::DELTA_BYTES_MAX)?;
        delta.check()?;
        Ok(delta)
    }

    /// The canonical content that a header's `delta_digest` commits to.
    pub fn content(&self) -> Result<Vec<u8>, CodecError> {
        codec::encode("delta", self)
    }

    /// The changes, sorted by path.
    pub fn entries(&self) -> &[DeltaEntry] {
        &self.entries
    }

    /// New contract code, sorted by its hash.
    pub fn codes(&self) -> &[Code] {
        &self.codes
    }

    fn check(&self) -> Result<(), CodecError> {
        let mut paths = Paths::default();
        check_entries(self.entries.iter().map(|entry| (paths.path(&entry.key), entry)))?;
        let hashes: Vec<_> = self.codes.iter().map(|code| alloy_primitives::keccak256(&code[..])).collect();
        if !hashes.is_sorted_by(|a, b| a < b) {
            let rule = "codes must be sorted by hash, each once";
            return Err(CodecError::Invalid { what: "delta", rule });
        }
        Ok(())
    }
}

fn check_entries<'a>(entries: impl Iterator<Item = (Path, &'a DeltaEntry)>) -> Result<(), CodecError> {
    let invalid = |rule| Err(CodecError::Invalid { what: "delta", rule });
    let mut last: Option<Path> = None;
    for (path, entry) in entries {
        if last.is_some_and(|last| last >= path) {
            return invalid("entries must be sorted by path, each key once");
        }
        if entry.value.is_some_and(|value| !value.fits(&entry.key)) {
            return invalid("a value must have its key's type and must not be empty");
        }
        last = Some(path);
    }
    Ok(())
}
