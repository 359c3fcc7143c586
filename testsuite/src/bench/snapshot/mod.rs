//! What it costs to export and to restore a snapshot, beside writing the same rows as sorted files and ingesting them with no proof,
//! no hash and no record.
//!
//! Export is a scan in chunks of 1 MiB with a proof each, in memory. Then the chunks lie in files, as a network would hand them over,
//! and child processes take turns: one restores them (proofs checked, rows written and ingested, progress recorded, tree and head
//! in place), the next writes and ingests the same rows. A child has no past, so the peak that the kernel notes is its own.

mod child;
pub(super) mod source;

use std::{
    fs,
    io::{BufWriter, Write as _},
    ops::ControlFlow,
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use rayon::prelude::*;
use slipstream_storage::{Snapshot, Span};
use slipstream_types::Path as StatePath;

use self::child::{Measured, Task};
use super::{Aim, BenchOptions, Figure, Report};
use crate::progress::Progress;

/// Leaves, and how often each side runs.
const FULL: (u64, usize) = (5_000_000, 5);
const QUICK: (u64, usize) = (200_000, 3);
/// Parts of the paths, each in its files: as many as the first four bits have values.
const PARTS: u8 = 16;
const CHUNK_BYTES: usize = 1 << 20;
const MIB: f64 = (1 << 20) as f64;

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    if let Some(task) = Task::of_this_process() {
        task.run()?;
        return Ok(Report { bench: "snapshot", runs: 0, figures: Vec::new(), notes: Vec::new() });
    }
    let (leaves, runs) = if options.quick { QUICK } else { FULL };
    let dir = tempfile::Builder::new().prefix("slipnet-bench-").tempdir_in(&options.dir)?;
    progress.step(&format!("filling a store with {leaves} leaves"));
    let store = source::filled(&dir.path().join("source"), leaves, progress)?;
    let start = Instant::now();
    let info = store.create_snapshot()?;
    let create = start.elapsed();
    let snapshot = store.snapshot(info.number)?.context("the snapshot that was just made")?;
    // The first reader opens the checkpoint.
    snapshot.encoded_chunk(StatePath::MIN, StatePath::MAX, 1)?;

    progress.step("exporting");
    let exports = (0..runs).map(|_| export(&snapshot)).collect::<Result<Vec<_>>>()?;
    let files = dir.path().join("files");
    write_files(&snapshot, &files)?;
    source::write_target(&store, info.number, &files)?;
    drop(snapshot);
    drop(store);
    fs::remove_dir_all(dir.path().join("source"))?;

    let mut rounds = Vec::new();
    for round in 1..=runs {
        progress.step(&format!("restore and floor, round {round} of {runs}"));
        // Who comes first changes, so that what the disk still has to do after the other is shared.
        let mut tasks = [Task::Restore, Task::Floor];
        tasks.rotate_left(round % 2);
        let mut measured = [Measured::default(); 2];
        for task in tasks {
            measured[task as usize] = in_child(task, dir.path(), &files)?;
        }
        rounds.push(measured);
    }
    Ok(report(leaves, runs, create.as_secs_f64(), &exports, &rounds))
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
    // Everything that is not rows counts as proof: ends and lengths too.
    Ok(Exported { seconds, row_bytes, proof_bytes: all_bytes.into_inner() - row_bytes })
}

/// Per part a file of chunks for the restore, and one of paths and rows for the floor.
fn write_files(snapshot: &Snapshot, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir)?;
    (0..PARTS).into_par_iter().try_for_each(|index| {
        let mut chunks = BufWriter::new(fs::File::create(child::chunks_file(dir, index))?);
        let mut rows = BufWriter::new(fs::File::create(child::rows_file(dir, index))?);
        let root = snapshot.info().state_root;
        let mut first = Some(part(index).first);
        while let Some(start) = first {
            let chunk = snapshot.encoded_chunk(start, part(index).last, CHUNK_BYTES)?;
            first = chunk.last.successor().filter(|next| *next <= part(index).last);
            chunks.write_all(&(chunk.content.len() as u32).to_le_bytes())?;
            chunks.write_all(&chunk.content)?;
            let verified = slipstream_storage::VerifiedChunk::open(chunk.content, root)?;
            for (path, row) in verified.stored_rows() {
                rows.write_all(&path.0)?;
                rows.write_all(&(row.len() as u32).to_le_bytes())?;
                rows.write_all(row)?;
            }
        }
        chunks.into_inner()?.sync_all()?;
        Ok(rows.into_inner()?.sync_all()?)
    })
}

/// Runs a task in a process of its own, on a new directory.
fn in_child(task: Task, dir: &Path, files: &Path) -> Result<Measured> {
    let work = dir.join("work");
    fs::create_dir_all(&work)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench", "snapshot"]).stdout(Stdio::null());
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
