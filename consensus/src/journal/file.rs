//! The file's format, and how the file is rewritten.

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use alloy_primitives::keccak256;
use slipstream_types::limits::TRANSACTION_BYTES_MAX;

/// The first bytes of the file.
pub(super) const MAGIC: &[u8] = b"slipstream journal 1\n";
const LENGTH_BYTES: usize = 4;
const CHECKSUM_BYTES: usize = 8;

/// The content of the file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Recovered {
    /// The envelopes, in their order.
    pub(super) transactions: Vec<Vec<u8>>,
    /// Bytes that belong to no whole entry.
    pub(super) damaged_bytes: usize,
}

/// Bytes of the entry of an envelope of `raw_len` bytes.
pub(super) fn entry_bytes(raw_len: usize) -> u64 {
    (LENGTH_BYTES + CHECKSUM_BYTES + raw_len) as u64
}

pub(super) fn entry(raw: &[u8]) -> Vec<u8> {
    let length = u32::try_from(raw.len()).unwrap_or(u32::MAX).to_le_bytes();
    [&length[..], &keccak256(raw)[..CHECKSUM_BYTES], raw].concat()
}

/// Returns the envelope of the entry that the bytes begin with.
fn first(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
    let length = u32::from_le_bytes(*length) as usize;
    if length == 0 || length > TRANSACTION_BYTES_MAX {
        return None;
    }
    let (checksum, rest) = rest.split_at_checked(CHECKSUM_BYTES)?;
    let raw = rest.get(..length)?;
    (keccak256(raw)[..CHECKSUM_BYTES] == *checksum).then_some(raw)
}

/// Recovers every whole entry. After damage it continues at the next one, wherever that begins.
pub(super) fn recover(bytes: &[u8]) -> Recovered {
    let mut recovered = Recovered::default();
    let mut rest = bytes.strip_prefix(MAGIC).unwrap_or(bytes);
    while !rest.is_empty() {
        match first(rest) {
            Some(raw) => {
                recovered.transactions.push(raw.to_vec());
                rest = &rest[LENGTH_BYTES + CHECKSUM_BYTES + raw.len()..];
            }
            None => {
                recovered.damaged_bytes += 1;
                rest = &rest[1..];
            }
        }
    }
    recovered
}

/// The part of the disk that a journal waits for: its syncs.
pub trait Disk: Send + Sync + fmt::Debug {
    /// Returns when the content of a file, or the names in a directory, are on disk.
    ///
    /// # Errors
    /// If the disk refuses.
    fn sync(&self, file: &File) -> io::Result<()>;
}

/// The disk of this machine.
#[derive(Clone, Copy, Debug)]
pub struct SystemDisk;

impl Disk for SystemDisk {
    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }
}

/// Writes a file with these entries beside the present one, and syncs it.
pub(super) fn write_beside<'a>(
    disk: &dyn Disk,
    path: &Path,
    entries: impl Iterator<Item = &'a [u8]>,
) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().create(true).write(true).truncate(true).open(beside(path))?;
    let mut writer = io::BufWriter::new(file);
    writer.write_all(MAGIC)?;
    let mut bytes = MAGIC.len() as u64;
    for raw in entries {
        let entry = entry(raw);
        writer.write_all(&entry)?;
        bytes += entry.len() as u64;
    }
    let file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
    disk.sync(&file)?;
    Ok((file, bytes))
}

/// Replaces the present file with the one that was written beside it. Until the returned directory is synced, a power
/// cut leaves either the old or the new file.
pub(super) fn replace(path: &Path) -> io::Result<Option<File>> {
    // Everything that can fail comes before the old file goes.
    let dir = path.parent().map(File::open).transpose()?;
    fs::rename(beside(path), path)?;
    Ok(dir)
}

fn beside(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// Replaces the present file with one that has these entries. A power cut leaves either the old or the new file.
pub(super) fn rewrite<'a>(
    disk: &dyn Disk,
    path: &Path,
    entries: impl Iterator<Item = &'a [u8]>,
) -> io::Result<(File, u64)> {
    let written = write_beside(disk, path, entries)?;
    if let Some(dir) = replace(path)? {
        disk.sync(&dir)?;
    }
    Ok(written)
}
