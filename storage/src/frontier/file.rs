//! A tree's upper part as a file.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read, Write as _},
    path::Path as FilePath,
};

use slipstream_types::Digest;

use super::{SaveJob, TREE, TreeId};
use crate::{
    error::StorageError,
    schema,
    state::{Tree, frontier::FrontierPart},
};

const MAGIC: &[u8; 22] = b"slipstream frontier 1\n";
/// Parts that are read and decoded at once.
const PARTS_AT_ONCE: usize = 16;
/// Bytes between two syncs, so that no commit waits behind much more than these.
const SYNC_BYTES: u64 = 8 << 20;

/// Writes a tree to a temporary file, syncs it if asked to, and renames it.
pub(super) fn save(dir: &FilePath, job: &SaveJob, fsync: bool) -> Result<(), StorageError> {
    let path = dir.join(format!("{}.{TREE}", job.title.number));
    let aside = dir.join(format!("{}.new", job.title.number));
    let write = || {
        let mut file = io::BufWriter::with_capacity(1 << 20, File::create(&aside)?);
        file.write_all(MAGIC)?;
        write_piece(&mut file, &schema::encode(&job.title))?;
        let mut unsynced = 0;
        job.frontier.encode(|piece| {
            unsynced += piece.len() as u64;
            write_piece(&mut file, &piece)?;
            if fsync && unsynced > SYNC_BYTES {
                unsynced = 0;
                file.flush()?;
                file.get_ref().sync_data()?;
            }
            io::Result::Ok(())
        })?;
        let file = file.into_inner()?;
        if fsync {
            file.sync_all()?;
        }
        fs::rename(&aside, &path)?;
        if fsync { File::open(dir)?.sync_all() } else { Ok(()) }
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&aside);
        StorageError::io("write", &path, error)
    })
}

fn write_piece(file: &mut impl io::Write, piece: &[u8]) -> io::Result<()> {
    file.write_all(&(piece.len() as u64).to_le_bytes())?;
    file.write_all(&Digest::tagged("slipstream/frontier/1", piece).0)?;
    file.write_all(piece)
}

/// Reads the next piece of a file that has `left` bytes left; `None` at its end.
fn read_piece(file: &mut impl Read, left: &mut u64) -> io::Result<Option<Vec<u8>>> {
    if *left == 0 {
        return Ok(None);
    }
    let damaged = || io::Error::other("it is damaged");
    let (mut len, mut digest) = ([0; 8], [0; 32]);
    file.read_exact(&mut len)?;
    file.read_exact(&mut digest)?;
    let len = u64::from_le_bytes(len);
    *left = left.checked_sub(40).and_then(|left| left.checked_sub(len)).ok_or_else(damaged)?;
    let mut piece = vec![0; len as usize];
    file.read_exact(&mut piece)?;
    match Digest::tagged("slipstream/frontier/1", &piece).0 == digest {
        true => Ok(Some(piece)),
        false => Err(damaged()),
    }
}

/// Reads a tree's file. Returns the tree, and the title that names it.
pub(super) fn read(path: &FilePath) -> Result<(TreeId, Tree), String> {
    let damaged = || "it is damaged".to_owned();
    let text = |error: io::Error| error.to_string();
    let mut file = File::open(path).map_err(text)?;
    let mut left = file.metadata().map_err(text)?.len().saturating_sub(MAGIC.len() as u64);
    let mut magic = [0; MAGIC.len()];
    file.read_exact(&mut magic).map_err(text)?;
    if magic != *MAGIC {
        return Err("another release wrote it".to_owned());
    }
    let mut file = BufReader::with_capacity(1 << 20, file);
    let mut next = || read_piece(&mut file, &mut left).map_err(text);
    let title =
        schema::decode("frontier", &next()?.ok_or_else(damaged)?).map_err(|error| error.to_string())?;
    let top = next()?.ok_or_else(damaged)?;
    let mut parts = Vec::new();
    loop {
        let pieces = (0..PARTS_AT_ONCE).map_while(|_| next().transpose()).collect::<Result<Vec<_>, _>>()?;
        if pieces.is_empty() {
            break;
        }
        parts.extend(FrontierPart::decode(&pieces).ok_or_else(damaged)?);
    }
    Ok((title, Tree::of_frontier(&top, parts).ok_or_else(damaged)?))
}
