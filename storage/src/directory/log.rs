//! A log of RocksDB, read without it: how far the writes go that are whole. RocksDB itself removes what it cannot read of a log, and
//! says so to nobody.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// Records lie in blocks of this size, and what a block has no room for goes on in the next one.
const BLOCK_BYTES: usize = 32 << 10;
/// Of a part of a record: its checksum, its length, its kind.
const HEADER_BYTES: usize = 7;
/// A write begins with the number of its first change and the count of its changes.
const START_BYTES: usize = 12;
/// RocksDB turns and shifts a checksum, as the bytes may hold checksums themselves.
const MASK: u32 = 0xa282_ead8;

const ALL: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// The whole writes of a log.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct LogSpan {
    /// Number of the first change and of the last one; none if no write is whole.
    pub(super) changes: Option<(u64, u64)>,
    /// Whether nothing follows them.
    pub(super) is_whole: bool,
}

/// Reads a log up to its end, or up to the first thing that is not as it was written.
pub(super) fn read(path: &Path) -> io::Result<LogSpan> {
    let mut file = File::open(path)?;
    let (mut span, mut block) = (LogSpan::default(), Vec::with_capacity(BLOCK_BYTES));
    let mut begun: Option<Vec<u8>> = None;
    loop {
        block.clear();
        file.by_ref().take(BLOCK_BYTES as u64).read_to_end(&mut block)?;
        let mut rest = &block[..];
        while let Some((header, after)) = rest.split_at_checked(HEADER_BYTES) {
            let (len, kind) = (usize::from(u16::from_le_bytes([header[4], header[5]])), header[6]);
            // Room that was taken ahead.
            if (len, kind) == (0, 0) {
                rest = &[];
                break;
            }
            let Some((part, next)) = after.split_at_checked(len) else { return Ok(span) };
            let checksum = crc32c::crc32c_append(crc32c::crc32c(&[kind]), part).rotate_right(15);
            if checksum.wrapping_add(MASK).to_le_bytes() != header[..4] {
                return Ok(span);
            }
            let start = &part[..len.min(START_BYTES)];
            match kind {
                ALL | FIRST => begun = Some(start.to_vec()),
                MIDDLE | LAST => match &mut begun {
                    Some(begun) => begun.extend_from_slice(start),
                    None => return Ok(span),
                },
                // Says something about the log, and writes nothing.
                _ => {}
            }
            if let (ALL | LAST, Some(start)) = (kind, begun.take_if(|_| matches!(kind, ALL | LAST))) {
                let Some((first, last)) = changes(&start) else { return Ok(span) };
                span.changes = Some((span.changes.map_or(first, |(first, _)| first), last));
            }
            rest = next;
        }
        if block.len() < BLOCK_BYTES {
            span.is_whole = rest.is_empty() && begun.is_none();
            return Ok(span);
        }
    }
}

/// Numbers of a write's first and last change.
fn changes(start: &[u8]) -> Option<(u64, u64)> {
    let (first, rest) = start.split_first_chunk()?;
    let (first, count) = (u64::from_le_bytes(*first), u32::from_le_bytes(*rest.first_chunk()?));
    Some((first, first.checked_add(count.into())?.saturating_sub(1)))
}
