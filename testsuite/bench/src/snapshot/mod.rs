//! The cost of exporting and restoring a snapshot. The floor writes the same rows as sorted files and ingests them
//! without proofs, hashes or records.
//!
//! Export is a scan in chunks of 1 MiB with a proof each, in memory. Then the chunks are put into files, as if from a
//! network, and child processes take turns. One restores them: it checks proofs, writes and ingests rows, records
//! progress, and builds tree and head. The next writes and ingests the same rows. A child is a fresh process, so the
//! peak memory that the kernel reports is its own.
//!
//! Last, nodes bootstrap from that snapshot over the transport ([`network`]). `--keys` measures only this, on states of
//! other sizes.

mod child;
mod network;
pub(super) mod source;

use std::{
    fs,
    io::{BufWriter, Write as _},
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use rayon::prelude::*;
use slipstream_storage::{Snapshot, Span, Store, VerifiedChunk};
use slipstream_types::Path as StatePath;

use self::child::{Measured, Task};
use super::{
    Aim, BenchOptions, Figure, Report,
    harness::{
        files::wait_until_quiet,
        kept::{WorkDir, once},
    },
    size::short,
};
use slipnet::progress::Progress;

/// The number of leaves, and of runs of each side.
const FULL: (u64, usize) = (5_000_000, 5);
const QUICK: (u64, usize) = (200_000, 3);
/// Parts of the path space, each with its own files: one for each value of the first four bits.
const PARTS: u8 = 16;
const CHUNK_BYTES: usize = 1 << 20;
const MIB: f64 = (1 << 20) as f64;

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    if let Some(task) = Task::of_this_process() {
        task.run()?;
        return Ok(Report { bench: "snapshot", runs: 0, figures: Vec::new(), notes: Vec::new() });
    }
    let dir = options.temporary_dir()?;
    let report = match options.keys.is_empty() {
        true => run_standard(options, dir.path(), progress),
        false => run_sizes(options, dir.path(), progress),
    };
    report.map_err(|error| {
        let dir = dir.keep();
        error.context(format!("the bench failed; the stores and logs are in {}", dir.display()))
    })
}

/// Measures the size of the aims: export, restore, floor, and bootstraps.
fn run_standard(options: &BenchOptions, dir: &Path, progress: Progress) -> Result<Report> {
    let (leaves, runs) = standard(options);
    progress.step(&format!("filling a store with {leaves} leaves"));
    let made = MadeSnapshot::at(dir, leaves);
    let store = source::filled(&made.store, leaves, progress)?;
    let start = Instant::now();
    let info = store.create_snapshot()?;
    let create = start.elapsed();
    let snapshot = store.snapshot(info.number)?.context("the new snapshot is missing")?;
    // The first reader opens the checkpoint.
    snapshot.encoded_chunk(StatePath::MIN, StatePath::MAX, 1)?;

    progress.step("exporting");
    let exports = (0..runs).map(|_| export(&snapshot)).collect::<Result<Vec<_>>>()?;
    write_chunks(&snapshot, &made.files)?;
    write_rows(&snapshot, &made.files)?;
    source::write_target(&store, info.number, &made.files)?;
    drop(snapshot);
    close_quiet(&store)?;
    drop(store);

    let mut rounds = Vec::new();
    for round in 1..=runs {
        progress.step(&format!("restore and floor, round {round} of {runs}"));
        // The first task alternates, so that the work that one leaves to the disk slows both alike.
        let mut tasks = [Task::Restore, Task::Floor];
        tasks.rotate_left(round % 2);
        let mut measured = [Measured::default(); 2];
        for task in tasks {
            measured[task as usize] = in_child(task, dir, &made.files)?;
        }
        rounds.push(measured);
    }
    let mut report = report(leaves, runs, create.as_secs_f64(), &exports, &rounds);
    let (figures, notes) = network::measure(&made, dir, options.quick, leaves, progress)?;
    report.figures.extend(figures);
    report.notes.extend(notes);
    Ok(report)
}

/// Measures only bootstraps, of the requested sizes. Their stores are kept.
fn run_sizes(options: &BenchOptions, dir: &Path, progress: Progress) -> Result<Report> {
    let place = WorkDir::of(options)?;
    let runs = network::rounds(options.quick);
    let mut report = Report { bench: "snapshot", runs, figures: Vec::new(), notes: Vec::new() };
    for &rows in &options.keys {
        let kept = place.dir().join(format!("slipnet-snapshot-{}", short(rows)));
        once(&kept, |kept| close_quiet(&MadeSnapshot::fill(kept, rows, progress)?.1))?;
        let work = dir.join(short(rows));
        fs::create_dir_all(&work)?;
        let made = MadeSnapshot::at(&kept, rows);
        let (figures, notes) = network::measure(&made, &work, options.quick, standard(options).0, progress)?;
        report.figures.extend(figures);
        report.notes.extend(notes);
        fs::remove_dir_all(&work)?;
    }
    Ok(report)
}

fn standard(options: &BenchOptions) -> (u64, usize) {
    if options.quick { QUICK } else { FULL }
}

/// A closed store with a snapshot, and the snapshot in files.
struct MadeSnapshot {
    rows: u64,
    store: PathBuf,
    files: PathBuf,
}

impl MadeSnapshot {
    /// Returns the paths of a directory's snapshot, which may not exist yet.
    fn at(dir: &Path, rows: u64) -> MadeSnapshot {
        MadeSnapshot { rows, store: dir.join("source"), files: dir.join("files") }
    }

    /// Fills a directory, without the floor's rows. The store stays open.
    fn fill(dir: &Path, rows: u64, progress: Progress) -> Result<(MadeSnapshot, Store)> {
        progress.step(&format!("filling a store with {} rows", short(rows)));
        let made = MadeSnapshot::at(dir, rows);
        let store = source::filled(&made.store, rows, progress)?;
        let info = store.create_snapshot()?;
        let snapshot = store.snapshot(info.number)?.context("the new snapshot is missing")?;
        progress.step("writing the chunks of its snapshot");
        write_chunks(&snapshot, &made.files)?;
        source::write_target(&store, info.number, &made.files)?;
        Ok((made, store))
    }
}

/// Closes a store when RocksDB has finished its compactions. Otherwise the store's clones would begin with them.
fn close_quiet(store: &Store) -> Result<()> {
    wait_until_quiet()?;
    store.close();
    Ok(())
}

fn part(index: u8) -> Span {
    let (mut first, mut last) = (StatePath::MIN, StatePath::MAX);
    first.0[0] = index << 4;
    last.0[0] = index << 4 | 0x0f;
    Span { first, last }
}

/// One export of all leaves.
#[derive(Clone, Copy)]
struct Exported {
    seconds: f64,
    row_bytes: u64,
    proof_bytes: u64,
}

fn export(snapshot: &Snapshot) -> Result<Exported> {
    let (row_bytes, all_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
    let start = Instant::now();
    (0..PARTS).into_par_iter().try_for_each(|index| {
        let Span { first, last } = part(index);
        snapshot.chunks(first, last, CHUNK_BYTES, &mut |chunk| {
            row_bytes.fetch_add(chunk.row_bytes as u64, Ordering::Relaxed);
            all_bytes.fetch_add(chunk.content.len() as u64, Ordering::Relaxed);
            Ok(ControlFlow::Continue(()))
        })
    })?;
    let row_bytes = row_bytes.into_inner();
    let seconds = start.elapsed().as_secs_f64();
    // Everything that is not rows counts as proof, including ends and lengths.
    Ok(Exported { seconds, row_bytes, proof_bytes: all_bytes.into_inner() - row_bytes })
}

/// Writes a file of chunks per part, for the restore.
fn write_chunks(snapshot: &Snapshot, dir: &Path) -> Result<()> {
    write_parts(snapshot, dir, child::chunks_file, |file, content| {
        file.write_all(&(content.len() as u32).to_le_bytes())?;
        Ok(file.write_all(&content)?)
    })
}

/// Writes a file of paths and rows per part, for the floor.
fn write_rows(snapshot: &Snapshot, dir: &Path) -> Result<()> {
    let root = snapshot.info().state_root;
    write_parts(snapshot, dir, child::rows_file, |file, content| {
        for (path, row) in VerifiedChunk::open(content, root)?.stored_rows() {
            file.write_all(&path.0)?;
            file.write_all(&(row.len() as u32).to_le_bytes())?;
            file.write_all(row)?;
        }
        Ok(())
    })
}

fn write_parts(
    snapshot: &Snapshot,
    dir: &Path,
    name: fn(&Path, u8) -> PathBuf,
    write: impl Fn(&mut BufWriter<fs::File>, Vec<u8>) -> Result<()> + Sync,
) -> Result<()> {
    fs::create_dir_all(dir)?;
    (0..PARTS).into_par_iter().try_for_each(|index| {
        let mut file = BufWriter::new(fs::File::create(name(dir, index))?);
        let mut first = Some(part(index).first);
        while let Some(start) = first {
            let chunk = snapshot.encoded_chunk(start, part(index).last, CHUNK_BYTES)?;
            first = chunk.last.successor().filter(|next| *next <= part(index).last);
            write(&mut file, chunk.content)?;
        }
        Ok(file.into_inner()?.sync_all()?)
    })
}

/// Runs a task in its own process, in a new directory.
fn in_child(task: Task, dir: &Path, files: &Path) -> Result<Measured> {
    let work = dir.join("work");
    fs::create_dir_all(&work)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("snapshot").stdout(Stdio::null());
    let status = task.prepare(&mut command, &work, files).status()?;
    ensure!(status.success(), "the child that ran {task:?} failed: {status}");
    let measured = Measured::read(&work)?;
    fs::remove_dir_all(&work)?;
    rustix::fs::sync();
    Ok(measured)
}

fn report(leaves: u64, runs: usize, create: f64, exports: &[Exported], rounds: &[[Measured; 2]]) -> Report {
    let leaves = leaves as f64;
    let row_bytes = exports[0].row_bytes as f64;
    let of_exports = |value: fn(f64, &Exported) -> f64| exports.iter().map(|e| value(leaves, e)).collect();
    let of_rounds = |value: &dyn Fn(&Measured, &Measured) -> f64| {
        rounds
            .iter()
            .map(|round| value(&round[Task::Restore as usize], &round[Task::Floor as usize]))
            .collect()
    };
    let figures = vec![
        Figure::new("restore_time_vs_floor", "ratio", of_rounds(&|ours, floor| ours.seconds / floor.seconds))
            .aim(Aim::AtMost(1.5)),
        Figure::new("restore_leaves_per_s", "1/s", of_rounds(&|ours, _| leaves / ours.seconds))
            .aim(Aim::AtLeast(2_000_000.0)),
        Figure::new("floor_leaves_per_s", "1/s", of_rounds(&|_, floor| leaves / floor.seconds)),
        Figure::new("restore_mib_per_s", "MiB/s", of_rounds(&|ours, _| row_bytes / MIB / ours.seconds)),
        Figure::new("restore_rows_share", "ratio", of_rounds(&|ours, _| ours.rows_seconds / ours.seconds)),
        Figure::new("export_leaves_per_s", "1/s", of_exports(|leaves, e| leaves / e.seconds))
            .aim(Aim::AtLeast(5_000_000.0)),
        Figure::new("export_mib_per_s", "MiB/s", of_exports(|_, e| e.row_bytes as f64 / MIB / e.seconds)),
        Figure::new("restore_rss_mib", "MiB", of_rounds(&|ours, _| ours.peak_mib - child::CACHE_MIB as f64))
            .aim(Aim::AtMost(256.0)),
        Figure::new(
            "restore_rows_rss_mib",
            "MiB",
            of_rounds(&|ours, _| ours.rows_peak_mib - child::CACHE_MIB as f64),
        ),
        Figure::new("proof_share", "ratio", of_exports(|_, e| e.proof_bytes as f64 / e.row_bytes as f64))
            .aim(Aim::AtMost(0.01)),
        Figure::new("create_ms", "ms", vec![1e3 * create]),
    ];
    let notes = vec![
        "floor: the same rows, read from files, written as sorted files and ingested; no proof, hash or record".into(),
        "restore_rows_share: the part of the time until the last row was in; the rest is tree, headers and head".into(),
        format!(
            "restore_rss_mib: VmHWM of the restoring process less its block cache of {} MiB, the finished tree included; \
             restore_rows_rss_mib: the same when the last row was in",
            child::CACHE_MIB
        ),
    ];
    Report { bench: "snapshot", runs, figures, notes }
}
