//! The work of the child processes: a restore, or the floor.

use std::{
    fs,
    io::{BufReader, Read},
    path::{Path, PathBuf},
    process::{self, Command},
    time::Instant,
};

use anyhow::{Context, Result};
use rayon::prelude::*;
use rocksdb::{DB, IngestExternalFileOptions, Options, SstFileWriter};
use serde::{Deserialize, Serialize};
use slipstream_storage::{
    Ancestry, Restore, StorageConfig, Store, Takeover, VerifiedChunk, plain_state_options,
};

use super::{PARTS, source};
use slipnet::memory::peak_mib;

/// The block cache of the restoring store.
pub(super) const CACHE_MIB: u64 = 32;
/// Memory for the restoring store's tree, as on a small machine.
pub(super) const TREE_MIB: u64 = 64;
/// Bytes of rows per file of the floor, as in the restore.
const FILE_BYTES: usize = 32 << 20;
const MEASURED: &str = "measured.json";
const TASK: &str = "SLIPNET_BENCH_SNAPSHOT_TASK";
const WORK: &str = "SLIPNET_BENCH_SNAPSHOT_WORK";
const FILES: &str = "SLIPNET_BENCH_SNAPSHOT_FILES";

/// One side of the comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Task {
    /// A restore with all checks.
    Restore,
    /// Writes sorted files of the same rows, and ingests them.
    Floor,
}

/// The measurements of a child.
#[derive(Clone, Copy, Default, Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    /// From the first chunk to the new head.
    pub(super) seconds: f64,
    /// Seconds until the last row was stored.
    pub(super) rows_seconds: f64,
    /// The process' peak memory at the end.
    pub(super) peak_mib: f64,
    /// The process' peak memory when the last row was stored.
    pub(super) rows_peak_mib: f64,
}

impl Measured {
    pub(super) fn read(work: &Path) -> Result<Measured> {
        Ok(serde_json::from_slice(&fs::read(work.join(MEASURED))?)?)
    }
}

/// A task that this process was started for.
pub(super) struct Assigned {
    task: Task,
    work: PathBuf,
    files: PathBuf,
}

impl Task {
    /// Returns the task that a parent gave this process.
    pub(super) fn of_this_process() -> Option<Assigned> {
        let task = match std::env::var(TASK).ok()?.as_str() {
            "floor" => Task::Floor,
            _ => Task::Restore,
        };
        let path = |name| std::env::var_os(name).map(PathBuf::from);
        Some(Assigned { task, work: path(WORK)?, files: path(FILES)? })
    }

    pub(super) fn prepare<'a>(self, command: &'a mut Command, work: &Path, files: &Path) -> &'a mut Command {
        let name = match self {
            Task::Restore => "restore",
            Task::Floor => "floor",
        };
        command.env(TASK, name).env(WORK, work).env(FILES, files)
    }
}

impl Assigned {
    pub(super) fn run(&self) -> Result<()> {
        let measured = match self.task {
            Task::Restore => restore(&self.work, &self.files)?,
            Task::Floor => floor(&self.work, &self.files)?,
        };
        Ok(fs::write(self.work.join(MEASURED), serde_json::to_vec(&measured)?)?)
    }
}

pub(super) fn chunks_file(dir: &Path, part: u8) -> PathBuf {
    dir.join(format!("{part:02}.chunks"))
}

pub(super) fn rows_file(dir: &Path, part: u8) -> PathBuf {
    dir.join(format!("{part:02}.rows"))
}

fn restore(work: &Path, files: &Path) -> Result<Measured> {
    let config = StorageConfig {
        block_cache_mib: CACHE_MIB,
        tree_memory_mib: TREE_MIB,
        snapshot_interval_batches: 0,
        ..StorageConfig::default()
    };
    let store = Store::open(&config, work)?;
    store.initialize(&source::genesis())?;
    let target = source::Target::read(files)?;
    let start = Instant::now();
    let restore = store.restore(&target.restore_target())?;
    (0..PARTS).into_par_iter().try_for_each(|part| restore_part(&restore, files, part))?;
    let (rows_seconds, rows_peak_mib) = (start.elapsed().as_secs_f64(), peak_mib(process::id())?);
    let (headers, proof, genesis_proof) = target.headers();
    restore.finish(&Ancestry { headers, proof, genesis_proof })?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(Measured { seconds, rows_seconds, peak_mib: peak_mib(process::id())?, rows_peak_mib })
}

fn restore_part(restore: &Restore, files: &Path, part: u8) -> Result<()> {
    let mut file = BufReader::new(fs::File::open(chunks_file(files, part))?);
    let root = restore.target().header.state_root;
    while let Some(len) = read_length(&mut file)? {
        let mut content = vec![0; len];
        file.read_exact(&mut content)?;
        restore.add(VerifiedChunk::open(content, root)?)?;
    }
    Ok(())
}

/// Reads a length; `None` at the end of the file.
fn read_length(file: &mut impl Read) -> Result<Option<usize>> {
    let mut len = [0; 4];
    match file.read_exact(&mut len) {
        Ok(()) => Ok(Some(u32::from_le_bytes(len) as usize)),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the options of a column with the same files as the store's.
fn column_options() -> Options {
    plain_state_options(&StorageConfig { block_cache_mib: CACHE_MIB, ..StorageConfig::default() })
}

fn floor(work: &Path, files: &Path) -> Result<Measured> {
    let db = DB::open(&column_options(), work.join("db"))?;
    let start = Instant::now();
    (0..PARTS).into_par_iter().try_for_each(|part| floor_part(&db, work, files, part))?;
    db.flush_wal(true)?;
    let (seconds, peak_mib) = (start.elapsed().as_secs_f64(), peak_mib(process::id())?);
    Ok(Measured { seconds, rows_seconds: seconds, peak_mib, rows_peak_mib: peak_mib })
}

fn floor_part(db: &DB, work: &Path, files: &Path, part: u8) -> Result<()> {
    let mut rows = BufReader::with_capacity(1 << 20, fs::File::open(rows_file(files, part))?);
    let options = column_options();
    let (mut path, mut row) = ([0; 32], Vec::new());
    let mut is_open = read_path(&mut rows, &mut path)?;
    for index in 0.. {
        if !is_open {
            break;
        }
        let file = work.join(format!("{part:02}-{index:04}.sst"));
        let mut writer = SstFileWriter::create(&options);
        writer.open(&file)?;
        let mut bytes = 0;
        while is_open && bytes < FILE_BYTES {
            let len = read_length(&mut rows)?.context("a path has no row")?;
            row.resize(len, 0);
            rows.read_exact(&mut row)?;
            writer.put(path, &row)?;
            bytes += path.len() + len;
            is_open = read_path(&mut rows, &mut path)?;
        }
        writer.finish()?;
        let mut ingest = IngestExternalFileOptions::default();
        ingest.set_move_files(true);
        db.ingest_external_file_opts(&ingest, vec![file])?;
    }
    Ok(())
}

/// Reads the next path; returns false at the end of the file.
fn read_path(rows: &mut impl Read, path: &mut [u8; 32]) -> Result<bool> {
    match rows.read_exact(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error.into()),
    }
}
