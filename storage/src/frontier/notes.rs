//! The format in which a file notes the paths that writes touch.

use std::{fs::File, io::Read, path::Path as FilePath};

use slipstream_types::{BatchNumber, Digest, Path, state::PATH_ACCOUNT_BYTES};

use super::{TOUCHED, TOUCHED_BYTES_MAX, number_of};
use crate::state::REREAD_NIBBLES;

/// Bytes of a path that are noted: the account's part and four bytes.
const NOTED: usize = REREAD_NIBBLES / 2;
const BELOW: usize = NOTED - PATH_ACCOUNT_BYTES;

/// Encodes the paths of one write as a note.
pub(super) struct NoteEncoder<'a> {
    bytes: &'a mut Vec<u8>,
    paths: u64,
    /// The position of the count of the newest group of paths, and the account's part that they share.
    group: Option<(usize, [u8; PATH_ACCOUNT_BYTES])>,
}

/// Bytes before the paths of a write: the head after the write (0 if it moves no head), and the length of the paths.
const NOTE_HEADER: usize = 12;
/// Bytes of the digest after the paths; it covers the whole note before it.
const NOTE_DIGEST: usize = 8;

impl NoteEncoder<'_> {
    /// Begins the note of a write that makes `head` the head; 0 if it moves no head.
    pub(super) fn begin(bytes: &mut Vec<u8>, head: u64) -> NoteEncoder<'_> {
        bytes.clear();
        bytes.extend(head.to_le_bytes());
        bytes.extend([0; 4]);
        NoteEncoder { bytes, paths: 0, group: None }
    }

    pub(super) fn path(&mut self, path: &Path) {
        let (account, below) = path.0.split_at(PATH_ACCOUNT_BYTES);
        let count_at = match self.group {
            Some((at, group)) if group == *account && self.bytes[at..at + 2] != [0xff; 2] => at,
            _ => {
                self.bytes.extend(account);
                let at = self.bytes.len();
                self.bytes.extend([0; 2]);
                self.group = account.try_into().ok().map(|account| (at, account));
                at
            }
        };
        let count = u16::from_le_bytes([self.bytes[count_at], self.bytes[count_at + 1]]) + 1;
        self.bytes[count_at..count_at + 2].copy_from_slice(&count.to_le_bytes());
        self.bytes.extend(&below[..BELOW]);
        self.paths += 1;
    }

    /// Completes the note. Returns its number of paths.
    pub(super) fn end(self) -> u64 {
        let len = (self.bytes.len() - NOTE_HEADER) as u32;
        self.bytes[NOTE_HEADER - 4..NOTE_HEADER].copy_from_slice(&len.to_le_bytes());
        let digest = Digest::tagged("slipstream/touched/1", self.bytes);
        self.bytes.extend(&digest.0[..NOTE_DIGEST]);
        self.paths
    }
}

/// Adds the paths of a file. Returns the last head in its complete notes, and the length of these; `None` if the file
/// is unreadable.
pub(super) fn read_touched(path: &FilePath, paths: &mut Vec<Path>) -> Option<(BatchNumber, u64)> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(TOUCHED_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let mut last = number_of(path.file_name()?.to_str()?, TOUCHED)?;
    let mut rest = &bytes[..];
    while let Some((header, _)) = rest.split_first_chunk::<NOTE_HEADER>() {
        let (head, len) = header.split_at(8);
        let len = u32::from_le_bytes(len.try_into().ok()?) as usize;
        let Some((note, after)) = rest.split_at_checked(NOTE_HEADER + len) else { break };
        let Some((digest, after)) = after.split_first_chunk::<NOTE_DIGEST>() else { break };
        if Digest::tagged("slipstream/touched/1", note).0[..NOTE_DIGEST] != digest[..] {
            break;
        }
        read_paths(&note[NOTE_HEADER..], paths)?;
        last = last.max(BatchNumber::new(u64::from_le_bytes(head.try_into().ok()?)));
        rest = after;
    }
    Some((last, (bytes.len() - rest.len()) as u64))
}

fn read_paths(mut note: &[u8], paths: &mut Vec<Path>) -> Option<()> {
    while !note.is_empty() {
        let (account, rest) = note.split_first_chunk::<PATH_ACCOUNT_BYTES>()?;
        let (count, rest) = rest.split_first_chunk::<2>()?;
        let (below, rest) = rest.split_at_checked(BELOW * usize::from(u16::from_le_bytes(*count)))?;
        paths.extend(below.chunks_exact(BELOW).map(|below| {
            let mut path = [0; 32];
            path[..PATH_ACCOUNT_BYTES].copy_from_slice(account);
            path[PATH_ACCOUNT_BYTES..NOTED].copy_from_slice(below);
            Path(path)
        }));
        note = rest;
    }
    Some(())
}
